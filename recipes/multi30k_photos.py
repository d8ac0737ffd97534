"""The lines of Multi30k, task 1, whose photograph is one of Flickr8k, with its path.

    python recipes/multi30k_photos.py MULTI30K PHOTOGRAPHS

`MULTI30K` is a folder with train, val and test_2016_flickr (.en, .de, tokenised and in lower case) and the list of the
photographs of each, train.txt and so on, which the corpus has in image_splits: there, or beside the texts.
`PHOTOGRAPHS` is the folder of Flickr8k's, or an .npz of them with an array `names`. Writes train.tsv, val.tsv and
test.tsv (photograph, English, German) to the folder multi30k-photos beside this file. Names agree up to the first mark
that is no digit: 1000268201.jpg of Flickr30k is 1000268201_693b08cb0e.jpg of Flickr8k.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PARTS = {"train": "train", "val": "val", "test_2016_flickr": "test"}


def lines(path: Path) -> list[str]:
    """The lines of a file; one that cannot be read is said in a line."""
    try:
        return path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"cannot read {path} ({error})")


def photographs(path: Path) -> dict[str, str]:
    """Where the photograph of each number is, as a record of Regard names it."""
    if path.suffix == ".npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as arrays:
            found = {str(name): f"{path.resolve()}::{name}" for name in arrays["names"]}
    else:
        found = {name.name: str(name.resolve()) for name in sorted(path.glob("*.jpg"))}
    if not found:
        sys.exit(f"{path}: no photographs; give the folder with Flickr8k's .jpg files, or an .npz of them")
    return {number(name): where for name, where in found.items()}


def number(name: str) -> str:
    """The number that Flickr gave the photograph."""
    return re.split(r"\D", name, maxsplit=1)[0]


def joined(folder: Path, part: str, known: dict[str, str]) -> list[str]:
    """The records of one part that have a photograph."""
    split = folder / "image_splits" / f"{part}.txt"
    pictures = lines(split if split.exists() else folder / f"{part}.txt")
    texts = [lines(folder / f"{part}.{language}") for language in ("en", "de")]
    if len({len(pictures), *map(len, texts)}) > 1:
        counts = f"{len(pictures)} photographs, {len(texts[0])} and {len(texts[1])} lines"
        sys.exit(f"{folder}: {part} has {counts}; as many will do")
    rows = zip(pictures, *texts, strict=True)
    return ["\t".join((known[number(row[0])], *row[1:])) for row in rows if number(row[0]) in known]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, known = Path(sys.argv[1]), photographs(Path(sys.argv[2]))
    target = Path(__file__).parent / "multi30k-photos"
    target.mkdir(exist_ok=True)
    for part, name in PARTS.items():
        records = joined(folder, part, known)
        (target / f"{name}.tsv").write_text("\n".join(records) + "\n", encoding="utf-8")
        print(f"{len(records)} lines to {target / name}.tsv")
