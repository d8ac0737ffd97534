"""Denoising: an encoder and a decoder that learn from plain text to undo noise (BART, T5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from regard.data.batch import Batch
from regard.data.examples import Example
from regard.data.layouts import Denoised
from regard.data.side import Field, Item
from regard.data.target import Scoring
from regard.data.words import Phrase
from regard.errors import ConfigError
from regard.evaluation.metrics import Score, perplexity
from regard.models.model import EncoderDecoder
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Advance, Encoded, Evaluation, PairScore, Tokens, Warn
from regard.tasks.task import chosen, tell_unused, windows


@dataclass
class Denoising(TextGeneration):
    """Texts with `<mask>` in, where any number of tokens may be missing, and whole texts out.

    What the model was trained on has no source: it is made from the text. How well it undoes noise is measured on noise
    from a fixed seed.
    """

    model: EncoderDecoder

    grows = False  # spans are put where they were missing

    @property
    def _source(self) -> Any:
        return self.source  # a `Noised`

    @cached_property
    def layout(self) -> Denoised:
        return Denoised(self.source, self._source.noise, self.target.marks)

    def text_of(self, source: Item, tokens: Tokens) -> str:
        return self.target.decode(self._source.noise.restored(source, tokens))

    def _problem(self, item: Item, prefix: Tokens, phrases: Sequence[Phrase], search: Search) -> str | None:
        return super()._problem(item, prefix, phrases, search) if len(item) else "is empty"

    def score(self, sources: Sequence[Field], targets: Sequence[str]) -> list[PairScore]:
        raise ConfigError(
            "a denoising model has a probability for a text given what noise leaves of it, and none for a text alone; "
            "`evaluate` measures it, and start.model begins another task with its weights"
        )

    def fixed(self, targets: Sequence[Tokens]) -> Iterator[tuple[list[int], Batch]]:
        """Batches of all texts, with noise from a fixed seed, each with the numbers of its texts."""
        for number, group in enumerate(self.groups(targets, self.config.training.batch_tokens)):
            draw = np.random.default_rng((0, number))
            yield group, self.layout([[]] * len(group), [targets[i] for i in group], draw).to(self.device)

    def _counted(self, targets: Sequence[Tokens]) -> tuple[float, int, int]:
        """Over noise from a fixed seed: the sum of `-log p`, how many tokens are likeliest, how many there are."""
        loss, right, tokens = 0.0, 0, 0
        for _, batch in self.fixed(targets):
            with self.inference():
                logits = self.model(batch.source, batch.inputs).values.float()
                loss -= math.fsum(math.fsum(row) for row in chosen(logits, batch))
                right += int((logits.argmax(-1) == batch.outputs.values).sum())
            tokens += batch.tokens
        return loss, right, tokens

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """Perplexity and accuracy, a token at a time after true ones, given texts with noise from a fixed seed."""
        seen: list[Example] = []
        loss, right, tokens, count = 0.0, 0, 0, 0
        for window in windows(examples, self.window):
            targets = self.target.encode_many([x.target for x in window])
            usable = [i for i, target in enumerate(targets) if 0 < len(target) <= self.longest - 2]
            own = self._counted([targets[i] for i in usable])
            loss, right, tokens = loss + own[0], right + own[1], tokens + own[2]
            seen, count = seen + [window[i] for i in usable], count + len(window)
            advance(len(usable))
        tell_unused(len(seen), count, warn)
        kind = (self.config.target.own_tokens or self.config.tokens).kind
        how = f"tokens:{kind}|noise:{self.config.training.objective.kind}|seed:0"
        scores = {
            "accuracy": Score("accuracy", 100.0 * right / tokens, f"percent|{how}"),
            "perplexity": Score("perplexity", perplexity(loss / tokens), f"per:token|{how}", higher_is_better=False),
        }
        return Evaluation(scores, [], seen)

    def validate(self, examples: Encoded) -> dict[str, float]:
        loss, right, tokens = self._counted(examples.targets)
        return {"loss": loss / tokens, "accuracy": 100.0 * right / tokens}
