"""What a head tells, as numbers and back: a label of the whole, a tag of each word, or a number."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.data.corpora import Example
from regard.data.tokens import Tokenizer, clean, texts_of
from regard.errors import DataError, ModelError
from regard.parts import HeadKind

NAME = "labels.json"


class Labels(Tokenizer):
    """A list of labels, most frequent first. One that was not met in training is `size`, which is none of them."""

    def __init__(self, labels: Sequence[str], *, each: bool) -> None:
        self.labels, self.each, self.size = list(labels), each, len(labels)
        self.ids = {label: i for i, label in enumerate(self.labels)}

    @property
    def dtype(self) -> str:
        return "uint16" if self.size < 2**16 else "uint32"

    def encode(self, text: str) -> list[int]:
        return [self.ids.get(label, self.size) for label in cut(text, each=self.each)]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.pieces(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.labels[i] if i < self.size else "<unk>" for i in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        return list(range(len(ids)))

    def save(self, folder: Path, name: str) -> None:
        content = {"kind": "tags" if self.each else "label", "labels": self.labels}
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")


class Numbers(Tokenizer):
    """Numbers, brought to mean 0 and spread 1 over the training data."""

    size = 1
    dtype = "float64"

    def __init__(self, mean: float, spread: float) -> None:
        self.mean, self.spread = mean, spread

    def encode(self, text: str) -> list[int]:
        """A list of one number, no id: stores and batches carry it as they carry ids."""
        return [(number(text) - self.mean) / self.spread] if clean(text) else []  # type: ignore[list-item]

    def decode(self, ids: Sequence[float]) -> str:
        return " ".join(f"{self.mean + self.spread * value:.6g}" for value in ids)

    def pieces(self, ids: Sequence[float]) -> list[str]:
        return [self.decode([value]) for value in ids]

    def words(self, ids: Sequence[float]) -> list[int]:
        return list(range(len(ids)))

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.json").write_text(json.dumps({"kind": "number", "mean": self.mean, "spread": self.spread}))


def cut(text: str, *, each: bool) -> list[str]:
    """The labels in a target: the whole of it, or what stands between blanks."""
    cleaned = clean(text)
    return (cleaned.split(" ") if each else [cleaned]) if cleaned else []


def number(text: str, place: str = "a target") -> float:
    """A number as it is written; `place` says where."""
    try:
        value = float(clean(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place} is to tell a number, but '{text}' is none; write it as 3, -0.5 or 1e6")
    return value


def learn_labels(examples: Iterable[Example], head: HeadKind) -> Labels | Numbers:
    """What the targets of the training data hold."""
    if head == "number":
        values = [number(x.target, x.place) for x in examples if clean(x.target)]
        if not values:
            raise DataError("the training data hold no number")
        mean = math.fsum(values) / len(values)
        return Numbers(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values)) or 1.0)
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(cut(example.target, each=head == "tags"))
    if len(counts) < 2:
        raise DataError(f"the training data hold {len(counts)} label{'s' * (len(counts) != 1)}; at least 2 are needed")
    return Labels(sorted(counts, key=lambda label: (-counts[label], label)), each=head == "tags")


def load_labels(folder: Path) -> Labels | Numbers:
    """What `save` wrote."""
    path = folder / NAME
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        kind = content["kind"]
        if kind == "number":
            mean, spread = float(content["mean"]), float(content["spread"])
            if not math.isfinite(mean) or not 0 < spread < math.inf:
                raise ValueError(f"a mean of {mean} and a spread of {spread}")
            return Numbers(mean, spread)
        if kind not in ("label", "tags"):
            raise ValueError(f"it is of kind {kind!r}")
        return Labels(texts_of(content["labels"]), each=kind == "tags")
    except FileNotFoundError:
        raise ModelError(f"{folder} has no {NAME}; the folder is not whole") from None
    except (RecursionError, ValueError, LookupError, TypeError, ArithmeticError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}); the folder is damaged") from None
