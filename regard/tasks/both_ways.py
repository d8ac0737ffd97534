"""Language modelling in both directions at once: each word from those before it, and from those after it (ELMo)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.data.batch import Batch
from regard.data.examples import Example
from regard.data.layouts import BothWays
from regard.data.side import Field, Item
from regard.data.target import Scoring
from regard.errors import ConfigError
from regard.evaluation.metrics import Score, perplexity
from regard.models.elmo import BidirectionalLanguageModel
from regard.search_settings import Search
from regard.tasks.results import Advance, Encoded, Evaluation, Given, Output, PairScore, Problem, Shown, Tokens, Warn
from regard.tasks.task import Task, chosen, tell_unused, windows

WRITES_NOTHING = (
    "two language models that read towards each other write nothing; `score` and `evaluate` take them, and "
    "start.encoder begins another task with them"
)


@dataclass
class BidirectionalLanguageModeling(Task):
    """Texts, and how probable their words are from either side."""

    model: BidirectionalLanguageModel  # type: ignore[assignment]

    generates = False

    @property
    def layout(self) -> BothWays:
        return BothWays(self.source, self.target.marks)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return self.layout(sources, targets, np.random.default_rng(0))

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return self.source.places(source)

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        raise ConfigError(WRITES_NOTHING)

    def forced(self, field: Field, target: str) -> Tokens:
        raise ConfigError(WRITES_NOTHING)

    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        raise ConfigError(WRITES_NOTHING)

    def score(self, sources: Sequence[Field], targets: Sequence[str]) -> list[PairScore]:
        """`log p` of each text by the model that reads on, a word at a time, the end included."""
        return self.score_items(self.source.encode_many(targets), self.target.encode_many(targets))

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        return [on for on, _ in self._both(sources, targets)]

    def _both(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[tuple[PairScore, PairScore]]:
        """`log p` of each text, read on and read back."""
        results = [(PairScore(0.0, []), PairScore(0.0, []))] * len(sources)
        for group, batch, logits in self.logits(sources, targets):
            for i, found in zip(group, chosen(logits, batch), strict=True):
                half = len(found) // 2
                on, back = found[:half], found[half:]
                results[i] = PairScore(math.fsum(on), on), PairScore(math.fsum(back), back)
        return results

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """Perplexity by word in each direction, the mark at the other end counted."""
        seen: list[Example] = []
        on, back, words, count = 0.0, 0.0, 0, 0
        for window in windows(examples, self.window):
            targets = self.target.encode_many([x.target for x in window])
            usable = [i for i, target in enumerate(targets) if 0 < len(target) <= self.longest - 2]
            own = [targets[i] for i in usable]
            for one, other in self._both(self.source.encode_many([window[i].target for i in usable]), own):
                on, back, words = on - one.log_prob, back - other.log_prob, words + len(one.tokens)
            seen, count = seen + [window[i] for i in usable], count + len(window)
            advance(len(usable))
        tell_unused(len(seen), count, warn)
        how = "per:word|end:counted|direction:"
        scores = {
            "perplexity": Score("perplexity", perplexity(on / words), f"{how}forward", higher_is_better=False),
            "backward_perplexity": Score(
                "backward perplexity", perplexity(back / words), f"{how}backward", higher_is_better=False
            ),
        }
        return Evaluation(scores, [], seen)

    def validate(self, examples: Encoded) -> dict[str, float]:
        """`loss` is the mean over both directions."""
        pairs = self._both(examples.sources, examples.targets)
        total = -math.fsum(pair.log_prob for both in pairs for pair in both)
        loss = total / sum(len(pair.tokens) for both in pairs for pair in both)
        return {"loss": loss, "perplexity": perplexity(loss)}
