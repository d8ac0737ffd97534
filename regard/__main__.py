"""`python -m regard` is `regard`."""

from regard.cli import main

main()
