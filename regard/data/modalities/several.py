"""Several sources as one: each part is read, encoded and packed by itself, and their vectors stand end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.evaluation.alignment import Alignment

if TYPE_CHECKING:
    from regard.bundle import Bundle
    from regard.data.examples import Example


class Several(Modality):
    """A tuple of sources. Its words are those of the first, then those of the second, and so on."""

    def __init__(self, parts: Sequence[Modality]) -> None:
        super().__init__(parts[0].settings, parts[0].stem)
        self._parts = list(parts)
        self.several_references = any(part.several_references for part in parts)

    @property
    def parts(self) -> Sequence[Modality]:
        return self._parts

    def digest(self, field: Field) -> str:
        found = [part.digest(one) for part, one in self._each(field)]
        return " ".join(found) if any(found) else ""

    def _each(self, values: Sequence[Any]) -> list[tuple[Modality, Any]]:
        return list(zip(self._parts, values, strict=True))

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[tuple[Item, ...]]:
        columns = [part.encode_many([field[i] for field in fields]) for i, part in enumerate(self._parts)]
        return list(zip(*columns, strict=True))

    def length(self, item: Item) -> int:
        return sum(part.length(one) for part, one in self._each(item))

    @property
    def most_bytes(self) -> int:
        return sum(part.most_bytes for part in self._parts)

    def pack(self, items: Sequence[Item]) -> Bundle:  # type: ignore[override]
        from regard.bundle import Bundle

        return Bundle(tuple(part.pack([item[i] for item in items]) for i, part in enumerate(self._parts)))

    def problem(self, item: Item, limit: int) -> str | None:
        for number, (part, one) in enumerate(self._each(item), 1):
            if what := part.problem(one, limit):
                return f"has a source {number} that {what}"
        return None

    def places(self, item: Item) -> int:
        return sum(part.places(one) for part, one in self._each(item))

    def positions_needed(self, item: Item) -> int:
        return max(part.places(one) for part, one in self._each(item))

    def most_places(self, limit: int) -> int:
        return max(part.most_places(limit) for part in self._parts)

    def pieces(self, item: Item) -> list[str]:
        return [piece for part, one in self._each(item) for piece in part.pieces(one)]

    def words(self, item: Item) -> list[int]:
        found: list[int] = []
        for part, one in self._each(item):
            before = max(found, default=-1) + 1
            found += [before + word if word >= 0 else -1 for word in part.words(one)]
        return found

    def gold(self, example: Example) -> Alignment | None:
        """That of the first source, whose words come first."""
        return self._parts[0].gold(example)

    @property
    def seconds_per_place(self) -> float:  # type: ignore[override]
        """That of the first source, as `gold` is."""
        return self._parts[0].seconds_per_place

    def room(self, item: Item, ratio: float) -> int:
        return max(part.room(one, ratio) for part, one in self._each(item))
