"""A batch: examples packed end to end, as a model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray

from regard.bundle import Bundle, Source, parts_of
from regard.data.marks import NATIVE, Marks
from regard.ragged import Ragged, round_up

IGNORED = -100  # an output that does not count, as in torch
FILLED = 10  # so many times as much may a side become that is filled up for the sake of one of pictures
Tokens = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class Room:
    """What a batch holds at most: elements of the source, tokens of the target, rows, tokens of one target (0: nobody
    asks), and elements of one of each source."""

    source: int
    target: int
    rows: int
    longest: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Examples ready for a model, which says of each of `inputs` what it should be followed by (`outputs`)."""

    source: Source
    inputs: Ragged
    outputs: Ragged
    filler: int = 0  # how many of the outputs do not count: they fill up, are forced, or are ends that are left out
    goes_on: bool = False  # its rows go on where those of the batch before it ended

    @property
    def tokens(self) -> int:
        """How many target tokens are learnt from."""
        return self.outputs.values.shape[0] - self.filler

    def to(self, device: torch.device) -> Batch:
        source, inputs, outputs = (x.to(device, non_blocking=True) for x in (self.source, self.inputs, self.outputs))
        return replace(self, source=source, inputs=inputs, outputs=outputs)

    def filled(self, room: Room) -> Batch | None:
        """With each side filled up to what there is room for, so that all batches are of one shape.

        None if there is more than that. What fills up belongs to no sequence, and its outputs do not count.
        """
        source, inputs, outputs = self.source, self.inputs, self.outputs
        fits = source.values.shape[0] <= room.source and inputs.values.shape[0] <= room.target
        if not fits or len(inputs) > room.rows or inputs.longest > (room.longest or inputs.longest):
            return None
        more = room.target - outputs.values.shape[0]
        source = source.filled(room.source, room.rows)
        inputs, outputs = (
            side.filled(room.target, room.rows, fill, room.longest) for side, fill in ((inputs, 0), (outputs, IGNORED))
        )
        return Batch(source, inputs, outputs, self.filler + more)

    def evened(self, room: Room, *, written: bool) -> Batch | None:
        """Where a source has all rows of one length, such as pictures: with the others, and with a target that is
        `written`, filled up to what as many rows have at most, so that all batches of as many rows are of one shape.

        None if no source is such, if there is more than that, or if nearly all would be there to fill up.
        """
        rows, parts = len(self.inputs), parts_of(self.source)
        longest = [*room.sources, *[room.longest] * written]
        totals = [round_up(rows * each, 64) for each in longest]
        sides = [*parts, *[self.outputs] * written]
        own = [len(side.values) for side in sides]
        fits = [
            side.uniform or (count <= total <= FILLED * count and side.longest <= each)
            for side, count, total, each in zip(sides, own, totals, longest, strict=True)
        ]
        if not all(fits) or not any(part.uniform for part in parts):
            return None
        made = tuple(
            part if part.uniform else part.filled(total, rows, longest=each)
            for part, total, each in zip(parts, totals, longest, strict=False)
        )
        inputs, outputs, filler = self.inputs, self.outputs, self.filler
        if written:
            filler += totals[-1] - own[-1]
            inputs, outputs = (
                side.filled(totals[-1], rows, fill, room.longest) for side, fill in ((inputs, 0), (outputs, IGNORED))
            )
        return Batch(Bundle(made) if isinstance(self.source, Bundle) else made[0], inputs, outputs, filler)

    def pinned(self) -> Batch:
        """In memory from which a GPU can fetch it by itself."""
        source, inputs, outputs = (x.pinned() for x in (self.source, self.inputs, self.outputs))
        return replace(self, source=source, inputs=inputs, outputs=outputs)


def make_batch(
    source: Source, targets: Sequence[Tokens], marks: Marks = NATIVE, first: Sequence[int] | None = None,
    ends: bool = True,
) -> Batch:  # fmt: skip
    """Put the marks of the target in place and pack; `first` is what the first token is written after (that of the
    marks). Where these are several, all but one are forced, and do not count; nor does the end, without `ends`."""
    first = marks.first if first is None else first
    forced, last = [IGNORED] * (len(first) - 1), marks.end if ends else IGNORED
    inputs, outputs = Ragged.of(targets, before=first), Ragged.of(targets, before=forced, after=[last])
    return Batch(source, inputs, outputs, (len(forced) + (not ends)) * len(targets))
