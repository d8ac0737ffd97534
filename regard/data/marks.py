"""The ids of a vocabulary that stand for no text, and how texts stand among them.

Regard's own vocabularies share six marks at their start (`NATIVE`); those of other programs keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARKS = ("<pad>", "<unk>", "<s>", "</s>", "<sep>", "<mask>")  # of Regard's own vocabularies, as are their ids
PAD, UNK, BOS, EOS, SEP, MASK = range(6)


@dataclass(frozen=True)
class Frame:
    """Marks around texts that are read as one: before the first, between two of them, after the last."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        """How many marks one text gets."""
        return len(self.before) + len(self.after)

    def around(self, ids: Sequence[int]) -> list[int]:
        """Token ids with the marks before and after them."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class Marks:
    """The ids of a vocabulary that stand for no text. None: there is no such mark; one id may serve as several."""

    names: Mapping[int, str]  # every mark, as it is shown
    end: int  # closes an output
    begin: int | None = None
    pad: int | None = None
    unknown: int | None = None
    separator: int | None = None
    mask: int | None = None
    first: tuple[int, ...] = ()  # what the input of a decoder begins with; all but one are neither scored nor shown
    counted: int = 0  # how many of them count in the length of an output
    unwritten: tuple[int, ...] = ()  # what no output holds, beside `unknown`
    opening: tuple[int, ...] = ()  # what no output begins with, be it the end
    banned: tuple[tuple[int, ...], ...] = ()  # sequences of two or more tokens that no output holds
    source: Frame | None = None  # what stands around a source, whatever reads it; None: what the model asks for
    sentinels: tuple[int, ...] = ()  # what stands for spans that are missing, one after the other, as T5 has them

    @property
    def blank(self) -> str:
        """What a user writes where something is missing."""
        return MARKS[MASK] if self.mask is None else self.names[self.mask]

    @cached_property
    def framing(self) -> frozenset[int]:
        """The marks that belong around texts and not into them."""
        ids = (self.pad, self.begin, self.end, self.separator, self.mask)
        return frozenset(i for i in ids if i is not None)

    def is_text(self, token: int) -> bool:
        """Whether a token stands for text, if only for one that is unknown."""
        return token not in self.names or token == self.unknown

    def frame(self, *, begins: bool, ends: bool) -> Frame:
        """What stands around a source that has a mark before and after it, where the model asks for one."""
        return self._frames[begins, ends] if self.source is None else self.source

    @cached_property
    def _frames(self) -> dict[tuple[bool, bool], Frame]:
        before, between = ((i,) if i is not None else () for i in (self.begin, self.separator))
        return {
            (begins, ends): Frame(before if begins else (), between, (self.end,) if ends else ())
            for begins in (False, True)
            for ends in (False, True)
        }

    def forbidden(self, *, unknown: bool) -> tuple[int, ...]:
        """What a search may not write, `unknown` only where it may."""
        more = () if unknown or self.unknown is None else (self.unknown,)
        return tuple(sorted({*self.unwritten, *more} - {self.end}))

    def text_ids(self, size: int) -> NDArray[np.int64]:
        """All ids of a vocabulary of this size that are no marks, in order."""
        return np.setdiff1d(np.arange(size), list(self.names))


NATIVE = Marks(
    dict(enumerate(MARKS)), end=EOS, begin=BOS, pad=PAD, unknown=UNK, separator=SEP, mask=MASK, first=(BOS,),
    unwritten=(PAD, BOS, SEP, MASK),
)  # fmt: skip

SENTINEL = "<extra_id_{}>"  # as T5 calls them


def native_marks(sentinels: int) -> Marks:
    """The marks of Regard's own vocabularies, with so many sentinels after them."""
    ids = range(len(MARKS), len(MARKS) + sentinels)
    more = {i: SENTINEL.format(number) for number, i in enumerate(ids)}
    return replace(NATIVE, names={**NATIVE.names, **more}, sentinels=tuple(ids)) if sentinels else NATIVE


def check_marks(marks: Marks, size: int) -> None:
    """Refuse marks that are no ids of a vocabulary of this size: each would index an embedding, or logits."""
    frame = marks.source or Frame()
    named = (marks.end, marks.begin, marks.pad, marks.unknown, marks.separator, marks.mask)
    several = (
        *marks.first,
        *marks.unwritten,
        *marks.opening,
        *marks.sentinels,
        *(i for tokens in marks.banned for i in tokens),
        *frame.before,
        *frame.between,
        *frame.after,
    )
    for i in (*marks.names, *(one for one in named if one is not None), *several):
        if type(i) is not int or not 0 <= i < size:
            raise ValueError(f"it has a mark {i!r}, and a size of {size}")


def marks_to_json(marks: Marks) -> dict[str, Any]:
    """Marks as they are saved: `banned` only where there are some, so that older files say the same."""
    found = {**asdict(marks), "names": {str(i): name for i, name in marks.names.items()}}
    return {name: value for name, value in found.items() if name != "banned" or value}


def marks_from_json(content: Mapping[str, Any]) -> Marks:
    """Marks that were saved; what is none is a ValueError."""
    known = {field.name for field in fields(Marks)}
    given = {name: value for name, value in content.items() if name in known}
    names = {int(i): str(name) for i, name in given.pop("names").items()}
    frame = given.pop("source", None)
    source = None if frame is None else Frame(**{side: _ids(frame[side]) for side in frame})
    lists = ("first", "unwritten", "opening", "sentinels")
    first, unwritten, opening, sentinels = (_ids(given.pop(name, ())) for name in lists)
    banned = tuple(map(_ids, given.pop("banned", ())))
    if any(len(tokens) < 2 for tokens in banned):
        raise ValueError("what it bans should be sequences of two or more tokens")
    if any(not isinstance(i, int | None) for i in given.values()) or not isinstance(given.get("end"), int):
        raise ValueError("its marks should be whole numbers")
    return Marks(
        names, source=source, first=first, unwritten=unwritten, opening=opening, banned=banned, sentinels=sentinels,
        **given,
    )  # fmt: skip


def _ids(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(i, int) for i in given):
        raise ValueError("its marks should be whole numbers")
    return tuple(given)
