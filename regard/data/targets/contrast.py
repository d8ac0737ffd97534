"""Vectors of sentences, learnt by contrast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field as Setting

from regard.data.modalities.text import texts_in
from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.data.target import Answer, Scoring
from regard.data.targets.number import parse_number
from regard.data.targets.rows import RowsTarget, bind
from regard.data.tokens import clean
from regard.errors import DataError
from regard.evaluation.labels import number_scores
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.examples import Form
    from regard.ragged import Ragged


KEYS = (("sentence1", "sentence2"), "score")  # of pairs in .jsonl


class ContrastSettings(TargetSettings):
    """Sentence embeddings. A line of training data is a sentence alone, which is its own positive under another
    dropout, or a sentence, a positive and optionally a hard negative (source.column). Validation and test data are
    pairs of sentences with a similarity score (default: columns 1, 2 and 3; sentence1, sentence2 and score)."""

    of_texts = True
    vectors = True
    wanted = False
    best = "spearman"
    usual = ("spearman", "pearson")
    steering = ("spearman",)

    temperature: float = Setting(
        0.05, gt=0, le=10, description="temperature: cosines are divided by it (Gao et al. 2021)"
    )
    pooling: Literal["first", "mean"] | None = Setting(
        None,
        description="the embedding of a sentence: its first vector, through a dense layer with tanh in training, or "
        "the mean of all (default: the first of a Transformer's encoder, the last of a decoder, the summary of "
        "others)",
    )
    projected: bool = Setting(
        False,
        description="pooling first: keep the dense layer in inference, as Gao et al. do with positives from the data",
    )
    pair: list[int | str] | None = Setting(
        None, min_length=2, max_length=2, description="columns of the two sentences in validation and test data"
    )

    @property
    def projects(self) -> bool:
        return self.projected

    @property
    def pool(self) -> Literal["first", "mean"] | None:
        return self.pooling


@register("contrast")
class Contrast(RowsTarget):
    """SimCSE (Gao et al. 2021), eq. 1 and 5: of a sentence `h_i`, its positive `h⁺_i` and hard negatives `h⁻_j`, the
    loss is `-log exp(cos(h_i, h⁺_i) / τ) / Σ_j (exp(cos(h_i, h⁺_j) / τ) + exp(cos(h_i, h⁻_j) / τ))` over a batch.

    In use it tells the cosine of the two sentences of a pair; `System.sentence_embeddings` gives vectors.
    """

    Settings = ContrastSettings
    dtype = "float64"
    explained = False
    contrasts = True

    @property
    def size(self) -> int:
        return 0

    def is_missing(self, field: str) -> bool:
        return False  # training data have none

    def read(self, field: str, folder: Path) -> str:
        """How alike a pair is, which training data do not say."""
        try:
            parse_number(field, "how alike they are")
        except DataError as error:
            raise ValueError(f"cannot be used: {error}") from None
        return field

    def judged(self, form: Form) -> Form:
        """Pairs, and how alike they are."""
        pair = self.settings.pair
        return replace(
            form, columns=((tuple(pair) if pair else None),), target=self.settings.column, answered=True, keys=KEYS
        )

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[float]]:
        return [[parse_number(text) if clean(text) else 0.0] for text in fields]

    def decode(self, values: Sequence[float]) -> str:
        return " ".join(f"{value:.6g}" for value in values)

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        try:
            self._texts(field)
        except DataError as error:
            return str(error)
        return None

    def _texts(self, field: Field, least: int = 1) -> list[str]:
        """The sentences of a line, of which the last may be missing."""
        texts = texts_in(field)
        while texts and not clean(texts[-1]):
            texts.pop()
        if not least <= len(texts) <= 3 or not all(map(clean, texts)):
            most = "a pair of sentences, with a tab between" if least == 2 else "a sentence, a positive and a negative"
            raise DataError(f"has {len(texts)} texts, of which none may be empty; what is read is {most}")
        return texts

    def parts(self, source: Any, field: Field, item: Item) -> list[Item]:
        texts = self._texts(field, least=2)
        if len(texts) > 2:
            raise DataError("has 3 texts; a pair of sentences, with a tab between, is compared")
        return [bind(source.tokenizer.encode_many(texts))]

    def numbers(self, source: Any, field: Field, item: Item, text: str) -> list[tuple[Item, Item]]:
        texts = self._texts(field)
        rows = source.tokenizer.encode_many(texts)
        return [(bind(rows if len(rows) > 1 else [*rows, *rows]), self.encode_many([text])[0])]

    def pack(self, targets: Sequence[Item]) -> Ragged:
        import torch

        from regard.ragged import Ragged

        values = torch.tensor([float(target[0]) for target in targets], dtype=torch.float32)
        return Ragged.from_lengths(values, [1] * len(targets))

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        import torch
        from torch.nn.functional import cross_entropy, normalize

        h = normalize(found.values.float(), dim=-1)
        place = found.offsets[:-1].long()
        negative = place[found.lengths > 2] + 2
        others = torch.cat((h[place + 1], h[negative]))  # positives of all rows, then hard negatives of those with one
        cosines = h[place] @ others.mT / self.settings.temperature
        return cross_entropy(cosines, torch.arange(len(place), device=h.device), reduction="sum")

    def judged_loss(self, found: Ragged, right: Ragged) -> Tensor:
        """How far apart pairs are, `Σ (1 - cos)`: of what is more or less alike, not all is a positive."""
        from torch.nn.functional import cosine_similarity

        place = found.offsets[:-1].long()
        return (1.0 - cosine_similarity(found.values[place].float(), found.values[place + 1].float())).sum()

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        from torch.nn.functional import cosine_similarity

        return [Answer([float(cosine_similarity(found[0].float(), found[1].float(), dim=0))], 0.0)]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        raise DataError("how alike two sentences are has no probability; `regard evaluate` correlates it with data")

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        """Correlations times 100, as STS is reported."""
        found = number_scores([float(x) for x in outputs], [parse_number(x) for x in references])
        return {
            name: replace(
                found[name], value=100.0 * found[name].value, signature=f"percent|cosine|{found[name].signature}"
            )
            for name in ("spearman", "pearson")
        }
