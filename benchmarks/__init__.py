"""Benchmarks of Regard and its peers; `python -m benchmarks --help` lists them. They run from a checkout alone."""
