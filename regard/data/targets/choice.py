"""One of several candidates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field as Setting

from regard.data.modalities.text import texts_in
from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.data.target import Answer, Scoring
from regard.data.targets.rows import RowsTarget, bind
from regard.data.tokens import clean
from regard.errors import DataError
from regard.evaluation.labels import label_scores
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.ragged import Ragged


class ChoiceSettings(TargetSettings):
    """Multiple choice. The source is text in several columns: first what all candidates are read with, then each
    candidate; lines may have fewer candidates, or a list of them in .jsonl."""

    of_texts = True
    keys = (("context", "candidates"), "gold")
    bare = (int,)
    best = "accuracy"
    usual = ("accuracy",)
    steering = ("accuracy",)

    context: int = Setting(
        1, ge=1, le=16, description="how many of the source's texts come before the candidates and are read with each"
    )
    answer: Literal["number", "letter", "text"] = Setting(
        "number", description="how the right one is given: by its number, its letter (A is the first), or its text"
    )
    first: Literal[0, 1] = Setting(0, description="number of the first candidate")


@register("choice")
class Choice(RowsTarget):
    """Radford et al. 2018, Fig. 1: every candidate is read together with what it is a candidate for, by one body, and
    gets one score `s_i`; `p(i) = exp s_i / Σ_j exp s_j` over the candidates of a line."""

    Settings = ChoiceSettings
    dtype = "uint16"

    @property
    def size(self) -> int:
        return 1

    def candidates(self, field: Field) -> tuple[list[str], list[str]]:
        """What all candidates are read with, and the candidates; empty ones at the end do not count."""
        texts = texts_in(field)
        while texts and not clean(texts[-1]):
            texts.pop()
        context, found = texts[: self.settings.context], texts[self.settings.context :]
        if len(found) < 2:
            raise DataError(
                f"has {len(found)} candidate{'s' * (len(found) != 1)} after {len(context)} other text"
                f"{'s' * (len(context) != 1)}; at least 2 are needed, in columns of their own (source.column)"
            )
        for number, text in enumerate(found, 1):
            if not clean(text):
                raise DataError(f"has an empty candidate {number}; leave it out, or write it last")
        return context, found

    def index(self, text: str, candidates: Sequence[str] | None = None) -> int:
        """Which candidate a target names, from 0."""
        name, how = clean(text), self.settings.answer
        if how == "text":
            cleaned = [clean(candidate) for candidate in candidates or ()]
            if name not in cleaned:
                raise DataError(f"has the answer '{name[:60]}', which is none of its {len(cleaned)} candidates")
            return cleaned.index(name)
        if how == "letter":
            number = ord(name.upper()) - ord("A") if re.fullmatch("[A-Za-z]", name) else -1
        else:
            number = int(name) - self.settings.first if re.fullmatch("[0-9]{1,4}", name) else -1
        if number < 0 or (candidates is not None and number >= len(candidates)):
            most = f"up to {self._name(len(candidates) - 1)}" if candidates is not None else "on"
            wanted = f"a {how} from {self._name(0)} {most}"
            raise DataError(f"has the answer '{name[:60]}', but candidates are named by {wanted} (target.answer)")
        return number

    def _name(self, index: int) -> str:
        return chr(ord("A") + index) if self.settings.answer == "letter" else str(index + self.settings.first)

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return [[self.index(text)] for text in fields]

    def decode(self, values: Sequence[int]) -> str:
        return " ".join(self._name(int(value)) for value in values)

    def text(self, source: Modality, field: Field, values: Sequence[int]) -> str:
        if self.settings.answer == "text":
            return clean(self.candidates(field)[1][values[0]])
        return self.decode(values)

    def reference(self, source: Modality, field: Field, text: str) -> str:
        return self.text(source, field, [self.index(text, self.candidates(field)[1])])

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        try:
            _, candidates = self.candidates(field)
            if not self.is_missing(text):
                self.index(text, candidates)
        except DataError as error:
            return str(error)
        return None

    def parts(self, source: Any, field: Field, item: Item) -> list[Item]:
        context, candidates = self.candidates(field)
        ids = source.tokenizer.encode_many([*context, *candidates])
        before, each = ids[: len(context)], ids[len(context) :]
        return [bind([source.joined([*before, own]) for own in each])]

    def numbers(self, source: Any, field: Field, item: Item, text: str) -> list[tuple[Item, Item]]:
        index = self.index(text, self.candidates(field)[1])
        return [(self.parts(source, field, item)[0], [index])]

    def pack(self, targets: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        return Ragged.of([[int(y) for y in target] for target in targets])

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        import torch

        logits = found.like(found.values.float().squeeze(1))
        log_p = logits.padded(-torch.inf).log_softmax(-1)  # (rows, candidates)
        each = -log_p.gather(1, right.values[:, None]).squeeze(1)
        if smoothing:
            mean = -logits.unpadded(log_p).mean()
            each = (1.0 - smoothing) * each + smoothing * mean
        return (each if share is None else share * each).sum()

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        top = found.float().flatten().log_softmax(-1).topk(min(count, len(found)))
        return [Answer([i], x) for x, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        return [float(found.float().flatten().log_softmax(-1)[int(target[0])])]

    def hits(self, found: Ragged, right: Ragged) -> float | None:
        import torch

        best = found.like(found.values.float().squeeze(1)).padded(-torch.inf).argmax(-1)
        return float((best == right.values).sum())

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        found = label_scores([[x] for x in outputs], [[clean(x)] for x in references], per="example")
        return {"accuracy": found["accuracy"]}
