"""Text, written a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field as Setting

from regard.data.forms import Casing, Normalization, TextForm
from regard.data.side import Field
from regard.data.target import Scoring, Target, measure
from regard.data.tokens import Tokenizer, clean
from regard.data.words import Phrase, WordEdges
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import TargetSettings, TokenSettings


class TextTargetSettings(TargetSettings):
    """A text."""

    text = True
    written = True
    best = "bleu"
    usual = ("bleu", "chrf", "ter", "exact")
    steering = ("bleu", "chrf", "exact")

    tokens: TokenSettings | None = Setting(
        None, description="its own vocabulary (default: that of [tokens], shared by all text without its own)"
    )
    max_length: int = Setting(256, ge=1, le=10**6, description="maximum length of a training text, in tokens")
    normalize: Normalization | None = Setting(
        None,
        description="Unicode normalisation before tokenisation: nfc, nfd, nfkc, nfkd, jamo (nfc, with Hangul split "
        "into letters) or none; outputs are composed again (default: nfc)",
    )
    case: Literal["lower", "recase"] | None = Setting(
        None,
        description="lower: convert to lower case; recase: also restore capitals in outputs with a truecaser, learnt "
        "from the training targets (default: unchanged)",
    )
    stream: int | None = Setting(
        None,
        ge=2,
        le=10**6,
        description="without a source: join all texts, also blank ones, with </s> after each, and train on blocks of "
        "this many tokens, without padding and regardless of max_length; a recurrent decoder carries its state from "
        "block to block, with as many rows as batch_tokens hold (default: each text by itself)",
    )

    @property
    def own_tokens(self) -> TokenSettings | None:
        return self.tokens


@register("text")
class TextTarget(Target):
    """A text in tokens. Its loss is the training objective, its decoding a search."""

    Settings = TextTargetSettings
    tokenizer: Tokenizer
    sampling = 0.0
    casing: Casing | None = None  # where outputs get their capitals back
    usual: Sequence[str] = TextTargetSettings.usual  # metrics, where the settings name none
    questioned = False  # it may be the answer of several people to a question about a picture

    @property
    def form(self) -> TextForm:
        """How it is brought to what the model writes, and back."""
        return TextForm(self.settings.normalize or "nfc", self.settings.case is not None, self.casing)

    @property
    def block(self) -> int | None:
        found: int | None = self.settings.stream
        return found

    @property
    def longest(self) -> int | None:
        return super().longest if self.block is None else None

    def find_fault(self, field: str) -> tuple[str, str] | None:
        return super().find_fault(field) if self.block is None else None

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tokenizer.dtype

    @property
    def sampled(self) -> float:
        return self.sampling

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return self.tokenizer.encode_many(fields, sampling=sampling, seed=seed)

    @property
    def edges(self) -> WordEdges | None:
        return self.tokenizer.edges

    def phrases(self, texts: Sequence[str]) -> list[Phrase]:
        return self.tokenizer.phrases(texts)

    def decode(self, values: Sequence[int]) -> str:
        return self.tokenizer.decode(values)

    def pieces(self, values: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(values)

    def words(self, values: Sequence[int]) -> list[int]:
        return self.tokenizer.words(values)

    def scores(
        self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring | None = None
    ) -> dict[str, Score]:
        scoring = scoring or Scoring()
        ours, theirs = [clean(x) for x in outputs], [clean(x) for x in references]
        more = [[None if x is None else clean(x) for x in texts] for texts in scoring.references]
        scoring = replace(scoring, references=more)
        answers = ("vqa",) if self.questioned and scoring.references else ()
        wanted = [*self.usual, *answers] if self.settings.metrics is None else self.settings.metrics
        return {name: measure(name, ours, theirs, scoring) for name in wanted}
