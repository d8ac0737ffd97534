"""Training speed on a GPU, beside its peers; `regard bench train-gpu` is the same. `--help` tells the options."""

from regard.bench.command import script

if __name__ == "__main__":
    script("train-gpu")
