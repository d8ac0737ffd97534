"""Decoding speed on a CPU, beside its peers; `regard bench decode-cpu` is the same. `--help` tells the options."""

from regard.bench.command import script

if __name__ == "__main__":
    script("decode-cpu")
