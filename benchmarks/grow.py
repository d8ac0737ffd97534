"""How Regard's training speed and memory grow; `regard bench grow` is the same. `--help` tells the options."""

from regard.bench.command import script

if __name__ == "__main__":
    script("grow")
