"""A tag of each word."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from regard.data.side import Item
from regard.data.target import Answer
from regard.data.targets.label import Label, LabelSettings
from regard.data.tokens import clean
from regard.registry import register
from regard.section import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.modality import Modality


class TagsSettings(TargetSettings):
    """A tag of each word of the source, separated by blanks."""

    best, usual, steering = LabelSettings.best, LabelSettings.usual, LabelSettings.steering
    of_words = True


@register("tags")
class Tags(Label):
    """A tag for each word of the source."""

    Settings = TagsSettings
    kind, per = "tags", "word"
    ranked = 1
    positive = None

    def cut(self, text: str) -> list[str]:
        cleaned = clean(text)
        return cleaned.split(" ") if cleaned else []

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        words = len(self.positions(source, source.encode_many([field])[0], last=False))
        tags = len(self.cut(text))
        if words and tags and words != tags:
            return f"has words and tags, but {words} and {tags}; each word needs one"
        return None

    def positions(self, source: Modality, item: Item, *, last: bool) -> list[int]:
        """The first piece of each word or, where the body sees no further than it has read, the last."""
        found: dict[int, int] = {}
        for place, word in enumerate(source.words(item)):
            if word >= 0 and (last or word not in found):
                found[word] = place
        return list(found.values())

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        best = found.float().log_softmax(-1).max(-1)
        return [Answer(best.indices.tolist(), math.fsum(best.values.tolist()))]
