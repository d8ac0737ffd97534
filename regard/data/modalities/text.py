"""Text, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting

from regard.data.lines import BLANKS
from regard.data.modality import Modality
from regard.data.records import BETWEEN
from regard.data.side import Field, Item
from regard.data.tokens import EOS, MARKS, SEP, Tokenizer
from regard.registry import register
from regard.section import SideSettings, TokenSettings

if TYPE_CHECKING:
    from regard.ragged import Ragged


class TextSettings(SideSettings):
    """A text."""

    stem = "tokens"
    text = True
    joined = True

    tokens: TokenSettings | None = Setting(
        None, description="a vocabulary of its own (default: the one of [tokens], shared by all text without its own)"
    )
    max_length: int = Setting(256, ge=1, le=10**6, description="longest text to train on, in tokens")

    @property
    def own_tokens(self) -> TokenSettings | None:
        return self.tokens


@register("text")
class Text(Modality):
    """A text: token ids, framed by the marks that the model wants.

    Several texts read as one have `<sep>` (or a tab) between them, `<s> a <sep> b </s>`, where `several` is set.
    """

    Settings = TextSettings
    tokenizer: Tokenizer
    sampling = 0.0  # how freely subwords are drawn in training
    before: int | None = None
    after: int | None = EOS
    several = False

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return self.tokenizer.size

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tokenizer.dtype

    @property
    def sampled(self) -> float:
        return self.sampling

    def find_fault(self, field: str) -> tuple[str, str] | None:
        return None if field.strip(BLANKS) else ("blank", "has an empty source")

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        if not self.several:
            return self.tokenizer.encode_many(fields, sampling=sampling, seed=seed)
        parts = [texts_in(text) for text in fields]
        flat = iter(self.tokenizer.encode_many([part for row in parts for part in row], sampling=sampling, seed=seed))
        return [self.joined([next(flat) for _ in row]) for row in parts]

    def joined(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """The token ids of several texts as one text."""
        first, *others = texts
        return [*first, *(token for text in others for token in (SEP, *text))]

    @property
    def lead(self) -> int:
        """How many marks stand before it."""
        return int(self.before is not None)

    def pack(self, items: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        return Ragged.of(items, before=self.before, after=self.after)

    def problem(self, item: Item, limit: int) -> str | None:
        if not len(item):
            return "is empty"
        if len(item) > limit:
            return f"has {len(item)} tokens, more than search.max_source={limit}; split it"
        return None

    def framed(self, item: Item) -> list[int]:
        """Token ids with their marks."""
        return [*([] if self.before is None else [self.before]), *item, *([] if self.after is None else [self.after])]

    def places(self, item: Item) -> int:
        return len(item) + (self.before is not None) + (self.after is not None)

    def most_places(self, limit: int) -> int:
        return limit + (self.before is not None) + (self.after is not None)

    def pieces(self, item: Item) -> list[str]:
        return self.tokenizer.pieces(self.framed(item))

    def words(self, item: Item) -> list[int]:
        numbers: list[int] = [-1] * (self.before is not None)
        ids, before = [*item], 0
        while ids:
            end = ids.index(SEP) if self.several and SEP in ids else len(ids)
            own = self.tokenizer.words(ids[:end])
            numbers += [before + word if word >= 0 else -1 for word in own] + [-1] * (end < len(ids))
            before, ids = before + max(own, default=-1) + 1, ids[end + 1 :]
        return [*numbers, *([-1] * (self.after is not None))]

    def room(self, item: Item, ratio: float) -> int:
        return int((len(item) + (self.after is not None)) * ratio) + 10

    def export(self) -> dict[str, Any] | None:
        end = [] if self.after is None else [self.after]
        return {"kind": "text", "end": end} if self.before is None else None

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[list[int]]:
        lengths = draw.integers(1, min(24, longest) + 1, size=count)
        return [draw.integers(len(MARKS), self.vocabulary, size=length).tolist() for length in lengths]


def texts_in(field: str) -> list[str]:
    """The texts that a field holds, with a tab or `<sep>` between them; one blank at each side of that is its own."""
    return field.replace("\t", MARKS[SEP]).replace(BETWEEN, MARKS[SEP]).split(MARKS[SEP])
