"""Split a file of sentence pairs from www.manythings.org/anki so that no sentence, of either side, is in two parts.

    python recipes/tatoeba.py deu.txt

writes train, dev and test (.en, .de) to the folder tatoeba beside this one. The file has an English sentence a line, a
tab and its translation; what follows (who wrote it) is not used. Pairs that share a sentence, directly or by way of
others, stay together. Dev and test are pairs that share none, of three English words or more: the first 2,000 each by
SHA-1.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

Pair = tuple[str, str]


def split(pairs: Iterable[Pair], dev: int = 2000, test: int = 2000) -> dict[str, list[Pair]]:
    """Pairs by part. Those that share a sentence stand together, in the order of the file."""
    known = list(dict.fromkeys(pairs))
    parent: dict[str, str] = {}

    def root(sentence: str) -> str:
        while parent.setdefault(sentence, sentence) != sentence:
            parent[sentence] = parent[parent[sentence]]
            sentence = parent[sentence]
        return sentence

    for source, target in known:
        parent[root("s" + source)] = root("t" + target)
    related: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in known:
        related[root("s" + pair[0])].append(pair)
    parts: dict[str, list[Pair]] = {"dev": [], "test": [], "train": []}
    for group in sorted(related.values(), key=lambda group: min(map(_digest, group))):
        alone = len(group) == 1 and len(group[0][0].split()) >= 3
        open_ = [name for name, size in (("dev", dev), ("test", test)) if len(parts[name]) < size]
        parts[open_[0] if alone and open_ else "train"] += group
    return parts


def _digest(pair: Pair) -> str:
    return hashlib.sha1("\t".join(pair).encode()).hexdigest()


def read(path: Path) -> list[Pair]:
    """The pairs of a file; what cannot be read is said in a line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"cannot read {path} ({error}); unpack deu-eng.zip and give its deu.txt")
    rows = [(number, line.split("\t")) for number, line in enumerate(lines, 1) if line.strip()]
    for number, row in rows:
        if len(row) < 2:
            sys.exit(f"{path}, line {number}: no tab; each line should have a sentence, a tab and its translation")
    return [(row[0], row[1]) for _, row in rows]


def main(path: str) -> None:
    parts = split(read(Path(path)))
    folder = Path(__file__).with_name("tatoeba")
    folder.mkdir(exist_ok=True)
    for name, pairs in parts.items():
        for side, ending in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(pairs):,} pairs")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file to split: python recipes/tatoeba.py deu.txt")
    main(sys.argv[1])
