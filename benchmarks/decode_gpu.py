"""Decoding speed on a GPU, beside its peers; `regard bench decode-gpu` is the same. `--help` tells the options."""

from regard.bench.command import script

if __name__ == "__main__":
    script("decode-gpu")
