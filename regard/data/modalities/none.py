"""No source: what a user gives is how the output begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.registry import register
from regard.section import SideSettings

if TYPE_CHECKING:
    from regard.ragged import Ragged


class NoneSettings(SideSettings):
    """None: lines of plain text, for language models."""

    stem = "tokens"
    given = False


@register("none")
class Nothing(Modality):
    """No source."""

    Settings = NoneSettings
    dtype = "uint16"

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return [[] for _ in fields]

    def pack(self, items: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        return Ragged.of([[] for _ in items])

    def problem(self, item: Item, limit: int) -> str | None:
        return None

    def places(self, item: Item) -> int:
        return 0

    def most_places(self, limit: int) -> int:
        return 0

    def prompt(self, field: Field) -> str:
        return str(field)

    def export(self) -> dict[str, Any] | None:
        return {"kind": "none"}

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[list[int]]:
        return [[] for _ in range(count)]
