"""Start-up time, beside its peers; `regard bench start-up` is the same. `--help` tells the options."""

from regard.bench.command import script

if __name__ == "__main__":
    script("start-up")
