"""A number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.artifacts import write_text
from regard.data.side import Field, Item
from regard.data.target import LABELS, Answer, HeadTarget, Scoring
from regard.data.targets.label import read_learnt
from regard.data.tokens import clean
from regard.errors import DataError
from regard.evaluation.labels import number_scores
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import PooledSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.examples import Example
    from regard.ragged import Ragged


class NumberSettings(PooledSettings):
    """A number."""

    usual = ("pearson", "spearman", "rmse")
    bare = (int, float)


@register("number")
class Number(HeadTarget):
    """A number, brought to mean 0 and standard deviation 1 over the training data."""

    Settings = NumberSettings
    dtype = "float64"
    explained = False
    mean, spread = 0.0, 1.0

    @property
    def size(self) -> int:
        return 1

    def find_fault(self, field: str) -> tuple[str, str] | None:
        if fault := super().find_fault(field):
            return fault
        try:
            parse_number(field, "it")
        except DataError as error:
            return "malformed", f"has a target that is no number: {error}"
        return None

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[float]]:
        return [[(parse_number(x) - self.mean) / self.spread] if clean(x) else [] for x in fields]

    def decode(self, values: Sequence[float]) -> str:
        return " ".join(f"{self.mean + self.spread * value:.6g}" for value in values)

    def learn(
        self, examples: Iterable[Example], *, seed: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        values = [parse_number(x.target, x.place) for x in examples if clean(x.target)]
        if not values:
            raise DataError("the training data hold no number")
        self.mean = math.fsum(values) / len(values)
        self.spread = math.sqrt(math.fsum((x - self.mean) ** 2 for x in values) / len(values)) or 1.0

    def save(self, folder: Path) -> None:
        content = {"kind": "number", "mean": self.mean, "spread": self.spread}
        write_text(folder / f"{LABELS}.json", json.dumps(content))

    def load(self, folder: Path) -> None:
        def read(content: Any) -> tuple[float, float]:
            mean, spread = float(content["mean"]), float(content["spread"])
            if not math.isfinite(mean) or not 0 < spread < math.inf:
                raise ValueError(f"a mean of {mean} and a spread of {spread}")
            return mean, spread

        self.mean, self.spread = read_learnt(folder, "number", read)

    def mismatch(self, source: Any, field: Any, text: str) -> str | None:
        fault = self.find_fault(text) if clean(text) else None
        return f"cannot be used: {fault[1]}" if fault else None

    def pack(self, targets: Sequence[Item]) -> Ragged:
        import torch

        from regard.ragged import Ragged

        values = torch.tensor([float(target[0]) for target in targets], dtype=torch.float32)
        return Ragged.from_lengths(values, [1] * len(targets))

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        """Half the squared error."""
        each = 0.5 * (found.values.float().squeeze(1) - right.values).square()
        return (each if share is None else share * each).sum()

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        return [Answer([float(found[0, 0])], 0.0)]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        """Of a normal distribution of standard deviation 1 around what is predicted, in units of the training
        data's."""
        return [-0.5 * (float(found[0, 0]) - float(target[0])) ** 2 - 0.5 * math.log(2 * math.pi)]

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        return number_scores([float(x) for x in outputs], [parse_number(x) for x in references])


def parse_number(text: str, place: str = "a target") -> float:
    """A number as it is written; `place` says where."""
    try:
        value = float(clean(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place} should be a number, but '{text}' is none; write it as 3, -0.5 or 1e6")
    return value
