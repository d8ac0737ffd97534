"""What tasks take and give: inputs beside a source, outputs, scores, evaluations, examples in pieces to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from regard.data.examples import Example
from regard.data.side import Item
from regard.data.store import ExampleStore
from regard.data.words import Phrase
from regard.evaluation.exposure import Exposure
from regard.evaluation.labels import ClassScore
from regard.evaluation.metrics import References, Score, perplexity

Tokens = Sequence[Any]
Problem = Callable[[int, str], None]  # which input, and what is wrong with it
Warn = Callable[[str], None]
Advance = Callable[[int], None]  # how many more inputs are done
SHOWN = 10  # warnings of one kind


@contextmanager
def few_warnings(warn: Warn) -> Iterator[Warn]:
    """Pass on the first few warnings about single inputs, and say at the end how many more there were. What a warning
    says after its last semicolon, which is what becomes of the input, is its kind."""
    counts = Counter[str]()

    def tell(text: str) -> None:
        kind = text.rpartition("; ")[2]
        counts[kind] += 1
        if counts[kind] <= SHOWN:
            warn(text)

    try:
        yield tell
    finally:
        for kind, count in counts.items():
            if count > SHOWN:
                warn(f"{count - SHOWN:,} more inputs cannot be used; {kind}")


@dataclass(frozen=True)
class Output:
    """One output for a source."""

    text: str
    score: float  # what it was ranked by
    log_prob: float
    tokens: list[int]


@dataclass(frozen=True)
class Given:
    """What goes with some inputs: how each output begins, as text or as token ids, phrases that each must hold, and the
    number of the first input, as which it and those after it draw what is drawn at random, or the number of each."""

    prefixes: Sequence[str] | None = None
    phrases: Sequence[Sequence[str]] | None = None
    first: int = 0
    numbers: Sequence[int] | None = None
    prefix_tokens: Sequence[Tokens | None] | None = None


@dataclass(frozen=True)
class Request:
    """An input as numbers: its source, how its output begins, phrases that it must hold, and as which it draws."""

    item: Item
    prefix: Tokens
    phrases: Sequence[Phrase]
    number: int


@dataclass(frozen=True)
class PairScore:
    """How probable a target is given its source: `log p` in all, and of each token."""

    log_prob: float
    tokens: list[float]

    @property
    def perplexity(self) -> float:
        """`exp` of the mean of `-log p` over its tokens."""
        return perplexity(-self.log_prob / max(len(self.tokens), 1))  # an empty text has none where blanks are filled


class Inputs:
    """Examples to be evaluated, by what is given: with `together`, those of one source are one input with several
    references, which is decoded once."""

    def __init__(self, examples: Iterable[Example] = (), *, together: bool) -> None:
        self.together = together
        self.examples: list[Example] = []  # the first of each input
        self.references: list[list[str]] = []  # of each input
        self.numbers: list[int] = []  # of the input that each example is one of
        self._known: dict[Any, int] = {}
        self.add(examples)

    def add(self, examples: Iterable[Example]) -> list[int]:
        """The number of the input that each of some more examples is one of."""
        before = len(self.numbers)
        for example in examples:
            number = len(self.examples)
            if self.together:
                number = self._known.setdefault(example.source, number)
            if number == len(self.examples):
                self.examples.append(example)
                self.references.append([])
            self.references[number].append(example.target)
            self.numbers.append(number)
        return self.numbers[before:]


def columns(rows: Iterable[Sequence[str]]) -> tuple[list[str], list[References]]:
    """The first of each row, and what further ones there are, as lists with None where a row has ended."""
    first, *more = [*map(list, zip_longest(*rows))] or [[]]
    return [text or "" for text in first], list(more)


@dataclass(frozen=True)
class Evaluation:
    """Scores, what they are scores of, and what it was held against: of several examples of one source, the first, and
    the references of all."""

    scores: dict[str, Score]
    outputs: list[str]
    examples: list[Example]
    exposure: Exposure | None = field(default=None)
    classes: tuple[ClassScore, ...] = ()  # of each label, where labels are predicted
    references: list[list[str]] = field(default_factory=list)  # of each output
    corpora: dict[str, dict[str, Score]] = field(default_factory=dict)  # scores of each of several corpora


@dataclass(frozen=True)
class Shown:
    """An example in pieces to show: those of the source and of the target, the words they belong to (-1: none), what
    the decoder reads at each step, and `log p` of each piece of the target. See `Explanation` for the others."""

    source: list[str]
    source_word: list[int]
    target: list[str]
    target_word: list[int]
    inputs: list[str]
    log_probs: list[float]
    tokens: Tokens  # what the model is run on, with the source, to see what it attends to
    given: int = 0
    places: list[int] = field(default_factory=list)
    candidates: list[list[tuple[str, float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Encoded:
    """Examples as numbers, read from disk when they are asked for; and some of them as they stood."""

    sources: Sequence[Item]
    targets: Sequence[Item]
    some: Sequence[Example]

    @staticmethod
    def stored(store: ExampleStore, some: Sequence[Example], part: range | None = None) -> Encoded:
        """All examples of a store, or a `part` of them."""
        *sources, target = store.stores if part is None else [Part(one, part) for one in store.stores]
        return Encoded(sources[0] if len(sources) == 1 else Rows(sources), target, some)


class Part(Sequence[Any]):
    """Some neighbours in a sequence."""

    def __init__(self, whole: Sequence[Any], part: range) -> None:
        self.whole, self.part = whole, part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: Any) -> Any:
        return self.whole[self.part[index]]


class Rows(Sequence[Any]):
    """Sequences side by side: item `i` is the tuple of theirs."""

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        return tuple(column[index] for column in self.columns)
