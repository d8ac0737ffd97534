"""How examples are laid out for a model: what it reads, and what it should say of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.batch import Batch, Room, Tokens, make_batch
from regard.data.marks import NATIVE, Frame, Marks
from regard.data.modality import Modality
from regard.data.noise import Noise, choose_spans, choose_words, word_spans
from regard.data.side import Item
from regard.data.target import HeadTarget
from regard.errors import ConfigError
from regard.ragged import Ragged


class Layout(ABC):
    """How examples are laid out for a model; what it draws at random comes from `draw`."""

    added = 1  # how many marks each target gets

    @abstractmethod
    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        """A batch of these examples."""

    def room(self, room: Room) -> Room:
        """What its batches hold at most, where sources, and targets with their marks, take so much `room`."""
        return room


@dataclass(frozen=True)
class Pairs(Layout):
    """A source, and a target to write a token at a time."""

    source: Modality
    marks: Marks = NATIVE
    first: Sequence[int] | None = None  # what the first token is written after, if not what the marks say
    ends: bool = True  # whether the end of a target is learnt

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        return make_batch(self.source.pack(sources), targets, self.marks, self.first, self.ends)


@dataclass(frozen=True)
class Continued(Layout):
    """Blocks of a stream, each with the token before it: every token is to follow the one before."""

    added = 0

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        inputs, outputs = (Ragged.of([block[part] for block in targets]) for part in (slice(-1), slice(1, None)))
        return Batch(Ragged.of(sources), inputs, outputs)


@dataclass(frozen=True)
class Masked(Layout):
    """Devlin et al. 2019, 3.1: a share of the tokens is to be predicted from the others.

    Of these 80 % are replaced by `<mask>`, 10 % by any token, 10 % stay. A model is told where they are (`inputs` holds
    positions) and should say what they were (`outputs`). Texts stand between `<s>` and `</s>`. They are drawn one by
    one, as whole words, or as spans of words, each of which has one fate (Joshi et al. 2020): `words` says which word
    each token of a text belongs to.
    """

    share: float
    vocabulary: int
    marks: Marks = NATIVE
    masking: str = "tokens"
    words: Callable[[Any], Sequence[int]] = field(default=lambda tokens: range(len(tokens)))
    always: bool = False  # `<mask>` in place of all of them

    @property
    def added(self) -> int:  # type: ignore[override]
        return len(self._frame)

    def room(self, room: Room) -> Room:
        """The whole of each text is read, and a share of it predicted.

        That is one token at least, and a rounded number of them: an eighth more than the share, in a batch, of texts of
        four tokens or more where it is 15 %. A batch of shorter ones may have more than there is room for.
        """
        each = self._count(room.longest - self.added) if room.longest else room.target
        predicted = min(room.rows * each, math.ceil(room.target * self.share * 9 / 8), room.target)
        return Room(room.target, predicted, room.rows, each if room.longest else 0, (room.longest,))

    @cached_property
    def _frame(self) -> Frame:
        return self.marks.frame(begins=True, ends=True)

    def _count(self, length: int) -> int:
        """How many tokens of a text of this length are predicted."""
        return max(1, round(self.share * length))

    @cached_property
    def _others(self) -> NDArray[np.int64]:
        """The tokens that may stand in the place of another."""
        return self.marks.text_ids(self.vocabulary)

    def _chosen(self, target: Tokens, draw: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Which tokens are to be predicted, and a number for each from which follows what is done to it."""
        count = self._count(len(target))
        words = word_spans(self.words(target)) if self.masking != "tokens" else []
        if not words:
            inside = np.flatnonzero(np.asarray(target) != self.marks.end)  # in a stream texts end within a block
            if not len(inside):
                return inside, np.zeros(0)
            count = min(count, len(inside))
            return inside[np.sort(draw.choice(len(inside), count, replace=False))], draw.random(count)
        spans = (choose_words if self.masking == "words" else choose_spans)(words, count, draw)
        places = np.concatenate([np.arange(*span) for span in spans])
        if self.masking == "words":
            return places, draw.random(len(places))
        return places, np.repeat(draw.random(len(spans)), [end - start for start, end in spans])

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        texts, places, answers = [], [], []
        frame, mask = self._frame, self.marks.mask
        if mask is None:
            raise ConfigError("this vocabulary has no mark for a token to be filled in, so nothing can be masked")
        for target in targets:
            chosen, fates = self._chosen(target, draw)
            text = list(target)
            for place, fate in zip(chosen.tolist(), fates.tolist(), strict=True):
                if self.always or fate < 0.8:
                    text[place] = mask
                elif fate < 0.9:
                    text[place] = int(self._others[draw.integers(len(self._others))])
            texts.append(text)
            places.append((chosen + len(frame.before)).tolist())
            answers.append([target[place] for place in chosen.tolist()])
        source = Ragged.of(texts, before=frame.before, after=frame.after)
        return Batch(source, Ragged.of(places), Ragged.of(answers))


@dataclass(frozen=True)
class Denoised(Layout):
    """What noise leaves of a text as the source, and what it should become as the target."""

    source: Modality
    noise: Noise
    marks: Marks = NATIVE

    def room(self, room: Room) -> Room:
        return replace(room, source=room.target, sources=(room.longest + 1,))

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        pairs = [self.noise(target, draw) for target in targets]
        return make_batch(self.source.pack([read for read, _ in pairs]), [written for _, written in pairs], self.marks)


@dataclass(frozen=True)
class BothWays(Layout):
    """Words, each of which is to be predicted from those before it and from those after it.

    A source of `n` words, its marks counted, gives `2 (n - 1)` outputs: those from the second on after each position
    `k` (`inputs` holds `k`), and those up to the last but one before each (`n + k`).
    """

    source: Modality
    marks: Marks = NATIVE

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        frame = self.marks.frame(begins=True, ends=True)
        texts = [frame.around(list(target)) for target in targets]
        places = [[*range(len(text) - 1), *range(len(text) + 1, 2 * len(text))] for text in texts]
        outputs = [[*text[1:], *text[:-1]] for text in texts]
        return Batch(self.source.pack(sources), Ragged.of(places), Ragged.of(outputs))


@dataclass(frozen=True)
class Predicted(Layout):
    """A source, and what a head is to predict: of the whole (`inputs` then say nothing), or at some of its positions.

    Of a word that is its first piece or, where the body sees no further than it has read, its `last`.
    """

    source: Modality
    target: HeadTarget
    last: bool = False

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        places = [self.target.positions(self.source, item, last=self.last) for item in sources]
        read = [row for item in sources for row in self.target.rows(item)] if self.target.wrapped else sources
        return Batch(self.source.pack(read), Ragged.of(places), self.target.pack(targets))
