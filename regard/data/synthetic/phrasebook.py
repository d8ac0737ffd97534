"""The phrasebook corpus: English with German or Turkish, any number of pairs of any length, and their gold alignment.

Sentences are drawn from a synchronous grammar (`grammar`) and spelt out by one lineariser for each language, so the
target is a function of the source: a model that has learnt the grammar can score close to 100 BLEU. German reorders
verbs (second, last, split in two), numbers and adverbs; Turkish reorders nearly everything.

The corpus depends on its arguments alone: the same ones give the same bytes on any machine. Which split a sentence
belongs to is decided by a hash of its English text, never by where it was drawn, so train, valid and test share no
source sentence, whatever their sizes, lengths and seeds; and no source occurs twice in a split. The sources do not
depend on the language: the German and the Turkish corpus have the same English side.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from regard.data.synthetic import english, german, turkish
from regard.data.synthetic.corpus import SPLITS as SPLITS
from regard.data.synthetic.corpus import check_split, write_splits
from regard.data.synthetic.grammar import Grammar
from regard.data.synthetic.syntax import Link, Sentence, Token, links

LANGUAGES: dict[str, str] = {"de": "German", "tr": "Turkish"}

_LINEARISERS: dict[str, Callable[[Sentence], list[Token]]] = {"de": german.sentence, "tr": turkish.sentence}
_PUNCTUATION = frozenset(".,?!")
_SHORTEST = 3
# So many sentences in a row that were there already mean that hardly any is left.
_PATIENCE = 300


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence, its translation, and which tokens (split at spaces, counted from 0) translate which.

    `sure` links are beyond doubt; `possible` ones, which do not repeat them, are for words that only one of the two
    grammars asks for. The alignment error rate (Och and Ney, 2003) is meant to count both as possible.
    """

    source: str
    target: str
    sure: tuple[Link, ...]
    possible: tuple[Link, ...]

    @property
    def alignment(self) -> str:
        """The links as text, sorted: `0-0 1-2 3p4`, where `-` is sure and `p` possible."""
        marked = [(link, "-") for link in self.sure] + [(link, "p") for link in self.possible]
        return " ".join(f"{i}{mark}{j}" for (i, j), mark in sorted(marked))

    @property
    def line(self) -> str:
        """Source, target and alignment with tabs between."""
        return f"{self.source}\t{self.target}\t{self.alignment}"


def pairs(
    size: int, *, language: str = "de", split: str = "train", words: tuple[int, int] = (5, 20), seed: int = 1
) -> Iterator[Pair]:
    """Yield `size` pairs whose English side has between `words[0]` and `words[1]` words, punctuation not counted.

    Lengths spread evenly over that range. A larger `size` continues a smaller one.
    """
    if language not in LANGUAGES:
        raise ValueError(f"unknown language {language!r}; the phrasebook has {' and '.join(map(repr, LANGUAGES))}")
    check_split(size, split, "the phrasebook has", "pairs")
    low, high = words
    if low < _SHORTEST:
        raise ValueError(f"words {words} start below the shortest sentence; try ({_SHORTEST}, {max(high, _SHORTEST)})")
    if high < low:
        raise ValueError(f"words {words} is an empty range; try ({high}, {low})")
    return _pairs(size, language, split, words, seed)


def write(
    folder: Path, *, language: str = "de", train: int = 20000, valid: int = 500, test: int = 500,
    words: tuple[int, int] = (5, 20), seed: int = 1, line: Callable[[Pair], str] = attrgetter("line"),
    ending: str = "tsv", progress: Callable[[int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write `train.tsv`, `valid.tsv` and `test.tsv` into `folder`; returns where each split is.

    A line is source, target and alignment with tabs between, or what `line` makes of a pair; files may have another
    `ending`. Each file appears when it is complete, never half written, and none that is there is replaced. `progress`
    is called now and then with the number of pairs so far, of all splits together.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    drawn = {
        split: map(line, pairs(size, language=language, split=split, words=words, seed=seed))
        for split, size in sizes.items()
    }
    return write_splits(folder, ending, drawn, progress)


def _pairs(size: int, language: str, split: str, words: tuple[int, int], seed: int) -> Iterator[Pair]:
    low, high = words
    # `random()` is the one method whose sequence Python promises not to change.
    draw = random.Random(f"phrasebook {low} {high} {seed}").random
    grammar, spell, owned = Grammar(draw), _LINEARISERS[language], SPLITS[split]
    seen: set[bytes] = set()
    repeats = 0
    while len(seen) < size:
        tree = grammar.sentence(low + int(draw() * (high - low + 1)))
        source = english.sentence(tree)
        if not low <= sum([token[0] not in _PUNCTUATION for token in source]) <= high:
            continue
        text = " ".join([token[0] for token in source])
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest[0] % 8 not in owned:
            continue
        if digest not in seen:
            repeats = 0
            seen.add(digest)
            target = spell(tree)
            yield Pair(text, " ".join([token[0] for token in target]), *links(source, target))
        elif (repeats := repeats + 1) > _PATIENCE:
            raise ValueError(
                f"size ({size}) of {split} is too large: of {low} to {high} words there are hardly more than"
                f" {len(seen)} sentences in this split; try a smaller size or more words"
            )
