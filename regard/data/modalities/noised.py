"""What noise leaves of a text, as the source of a denoising encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regard.data.marks import Frame
from regard.data.modalities.text import Text, TextSettings
from regard.data.modality import Modality
from regard.data.noise import NOISES, Noise
from regard.data.side import Field, Item
from regard.data.targets.text import TextTarget
from regard.data.tokens import Tokenizer
from regard.section import SideSettings
from regard.stem_settings import StemSettings
from regard.training_settings import ObjectiveSettings

if TYPE_CHECKING:
    from regard.ragged import Ragged


class Noised(Modality):
    """No source in the data: a layout makes it from the target (`Denoised`). In use, a text in which `<mask>` stands
    for any number of tokens that are missing. Its tokens are the target's."""

    def __init__(
        self, settings: SideSettings, stem: StemSettings, target: TextTarget, objective: ObjectiveSettings
    ) -> None:
        super().__init__(settings, stem)
        self.target, self.objective = target, objective

    @property
    def has_tokens(self) -> bool:
        return True

    @cached_property
    def noise(self) -> Noise:
        """What the model learns to undo."""
        return NOISES[self.objective.kind](self.objective, self.target.tokenizer)

    @cached_property
    def _text(self) -> Text:
        text = Text(TextSettings(), self.stem)
        text.tokenizer = self.target.tokenizer
        return text

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return self.target.tokenizer

    @property
    def frame(self) -> Frame:
        """The marks around what is read."""
        return self._text.frame

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return self.target.tokenizer.size

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.target.tokenizer.dtype

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        found = []
        for field in fields:
            first, *others = field.split(self.tokenizer.marks.blank)
            ids = self.target.encode(first)
            for number, part in enumerate(others):
                ids += [self.noise.blank(number), *self.target.encode(part)]
            found.append(ids)
        return found

    def problem(self, item: Item, limit: int) -> str | None:
        return self._text.problem(item, limit) if len(item) else None

    def pack(self, items: Sequence[Item]) -> Ragged:
        return self._text.pack(items)

    def places(self, item: Item) -> int:
        return self._text.places(item)

    def most_places(self, limit: int) -> int:
        return limit + 2  # before there are tokens, and so marks, to ask

    def pieces(self, item: Item) -> list[str]:
        return self._text.pieces(item)

    def words(self, item: Item) -> list[int]:
        return self._text.words(item)

    def room(self, item: Item, ratio: float) -> int:
        return self._text.room(item, ratio)

    def made_up(self, draw: Any, count: int, longest: int) -> list[list[int]]:
        return self._text.made_up(draw, count, longest)
