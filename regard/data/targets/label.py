"""A label of the whole source."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field as Setting

from regard.artifacts import distinct_texts, write_text
from regard.data.side import Field, Item
from regard.data.target import LABELS, Answer, HeadTarget, Scoring, measure
from regard.data.tokens import clean
from regard.errors import DataError, ModelError
from regard.evaluation.bootstrap import interval
from regard.evaluation.labels import BinaryF1, ClassScore, class_scores, label_scores, ranked_accuracy
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import PooledSettings, TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.examples import Example
    from regard.ragged import Ragged

IGNORED = -100  # an answer that does not count, as in torch


class LabelSettings(PooledSettings):
    """A label of the whole source."""

    best = "accuracy"
    usual = ("accuracy", "macro_f1", "span_f1", "top5", "f1", "matthews")
    steering = ("accuracy",)
    bare = (int,)

    positive: str | None = Setting(
        None,
        description="the label whose F1 is reported (f1), such as that of a paraphrase (default: 1, if the labels are "
        "0 and 1)",
    )


@register("label")
class Label(HeadTarget):
    """One of a list of labels, most frequent first. One that was not met in training is `size`, which is none of
    them."""

    Settings: ClassVar[type[TargetSettings]] = LabelSettings
    kind, per = "label", "example"
    ranked = 5
    labels: Sequence[str] = ()

    @property
    def positive(self) -> str | None:
        """The label whose F1 is reported, if there is one."""
        by_itself = "1" if set(self.labels) == {"0", "1"} else None
        return by_itself if self.settings.positive is None else clean(self.settings.positive)

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "uint16" if self.size < 2**16 else "uint32"

    def cut(self, text: str) -> list[str]:
        """The labels in a target."""
        cleaned = clean(text)
        return [cleaned] if cleaned else []

    def counted(self, text: str) -> Sequence[Any]:
        return self.cut(text)

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        ids = {label: i for i, label in enumerate(self.labels)}
        return [[ids.get(label, self.size) for label in self.cut(text)] for text in fields]

    def decode(self, values: Sequence[int]) -> str:
        return " ".join(self.labels[i] if i < self.size else "<unk>" for i in values)

    def learn(
        self, examples: Iterable[Example], *, seed: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        counts: Counter[str] = Counter()
        for example in examples:
            counts.update(self.cut(example.target))
        if len(counts) < 2:
            raise DataError(
                f"the training data hold {len(counts)} label{'s' * (len(counts) != 1)}; at least 2 are needed"
            )
        self.labels = sorted(counts, key=lambda label: (-counts[label], label))
        if self.positive is not None and self.positive not in counts:
            raise DataError(f"target.positive is '{self.positive}', but the training data hold {_some(self.labels)}")
        if self.positive is None and "f1" in (self.settings.metrics or ()):
            raise DataError(
                f"the metric f1 is of one label of the whole source (target.kind label), which target.positive names, "
                f"such as {self.labels[-1]}; macro_f1 is of all"
            )

    def save(self, folder: Path) -> None:
        content = {"kind": self.kind, "labels": self.labels}
        write_text(folder / f"{LABELS}.json", json.dumps(content, ensure_ascii=False, indent=0))

    def load(self, folder: Path) -> None:
        self.labels = read_learnt(folder, self.kind, lambda content: distinct_texts(content["labels"]))

    def unseen(self, texts: Iterable[str]) -> list[str]:
        return sorted({label for text in texts for label in self.cut(text)} - set(self.labels))

    def describe_unseen(self, texts: Iterable[str], name: str) -> tuple[str, bool] | None:
        found = {label for text in texts for label in self.cut(text)}
        if not (new := self.unseen(found)):
            return None
        known = f"the model knows {self.size}: {_some(self.labels)}"
        if len(new) == len(found):
            what = f"{name} has no label that training saw, so that no example of it can be right: it has {_some(new)}"
            return f"{what}, and {known}; write labels as in the training data", True
        many = f"{len(new)} label{'s' * (len(new) != 1)} that training never saw: {_some(new)}"
        return f"{name} has {many}; their examples count as wrong, and {known}", False

    def pack(self, targets: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        return Ragged.of([[int(y) if y < self.size else IGNORED for y in target] for target in targets])

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        from torch.nn.functional import cross_entropy

        logits, labels = found.values.float(), right.values
        if share is None:
            return cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
        return (share * cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")).sum()

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        top = found[0].float().log_softmax(-1).topk(min(count, self.size))
        return [Answer([i], x) for x, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        check_length(found, target)
        rows = found.float().log_softmax(-1)
        return [float(row[y]) if y < self.size else -math.inf for row, y in zip(rows, target, strict=True)]

    def hits(self, found: Ragged, right: Ragged) -> float | None:
        return float((found.values.argmax(-1) == right.values).sum())

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        """Also whether the right label is among the best five, where there are more; of two labels, Matthews
        correlation, and F1 of the positive one; and, where several people gave an answer, VQA accuracy."""
        predicted, right = [self.cut(x) for x in outputs], [self.cut(x) for x in references]
        found = label_scores(predicted, right, per=self.per)
        if scoring.ranked and self.size > self.ranked > 1:
            found["top5"] = ranked_accuracy(scoring.ranked, [clean(x) for x in references], self.ranked)
        if self.size == 2 and self.per == "example":
            found["matthews"] = measure("matthews", outputs, references, scoring)
        if (positive := self.positive) is not None:
            metric = BinaryF1(positive)
            score, rows = metric(outputs, references), metric.statistics(outputs, [references])
            found["f1"] = replace(score, interval=interval("f1", rows)) if scoring.confidence else score
        if scoring.references:
            found["vqa"] = measure("vqa", outputs, references, scoring)
        return found

    def class_scores(self, outputs: Sequence[str], references: Sequence[str]) -> tuple[ClassScore, ...]:
        return class_scores([self.cut(x) for x in outputs], [self.cut(x) for x in references])


def check_length(found: Sequence[Any] | Tensor, target: Item) -> None:
    """Refuse as many labels as are not predicted."""
    if len(found) != len(target):
        raise DataError(f"a source of {len(found)} words cannot have {len(target)} tags; each word needs one")


def _some(labels: Sequence[str]) -> str:
    """The first few labels."""
    return ", ".join(label[:60] for label in labels[:5]) + ("…" if len(labels) > 5 else "")


def read_learnt(folder: Path, kind: str, read: Any) -> Any:
    """What a target of this kind wrote when it had learnt."""
    path = folder / f"{LABELS}.json"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != kind:
            raise ValueError(f"it is of kind {content['kind']!r}")
        return read(content)
    except FileNotFoundError:
        raise ModelError(f"{folder} has no {path.name}; the folder is not whole") from None
    except (RecursionError, ValueError, LookupError, TypeError, ArithmeticError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}); the folder is damaged") from None
