"""Replaced-token detection: a generator fills in masks, and an encoder says which tokens are not the text's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F

from regard.data.examples import Example
from regard.data.target import Scoring
from regard.evaluation.metrics import Score
from regard.models.electra import ReplacedTokenModel, draw_tokens
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.tasks.masked import MaskedLanguageModeling
from regard.tasks.results import Advance, Encoded, Evaluation, Tokens, Warn


class Found(NamedTuple):
    """What the discriminator makes of texts: the sum of its loss, how many tokens it read and said rightly of, how many
    were replaced, and of how many it said so, rightly and at all."""

    loss: float = 0.0
    tokens: int = 0
    right: int = 0
    replaced: int = 0
    hits: int = 0
    said: int = 0


@dataclass
class ReplacedTokenDetection(MaskedLanguageModeling):
    """Texts with blanks in, texts without out, as a masked language model: that is the generator, whose attention is
    shown. The discriminator is what embeddings are of, and what others begin from."""

    model: ReplacedTokenModel  # type: ignore[assignment]

    always = True

    def validate(self, examples: Encoded) -> dict[str, float]:
        """`loss` is that of training, with tokens drawn from a fixed seed."""
        generator, found = super().validate(examples), self._detected(self.validated(examples))
        loss = generator["loss"] + self.config.training.objective.detection * found.loss / found.tokens
        return {"loss": loss, "accuracy": generator["accuracy"], "detection": 100.0 * found.right / found.tokens}

    def _detected(self, targets: Sequence[Tokens]) -> Found:
        total = Found()
        for number, batch in enumerate(self.fixed_batches(targets)):
            source = batch.source
            assert isinstance(source, Ragged), "a generator reads one text"
            with self.inference():
                seeded = torch.Generator().manual_seed(number)
                drawn = draw_tokens(self.model(source, batch.inputs).values.cpu(), seeded).to(self.device)
                odd = self.model.replaced(
                    source.like(torch.zeros_like(source.values)), batch.inputs, (drawn != batch.outputs.values).long()
                ).values.bool()
                logits = self.model.detect(self.model.replaced(source, batch.inputs, drawn)).float()
                loss = F.binary_cross_entropy_with_logits(logits, odd.float(), reduction="sum")
            said = logits > 0
            counts = (len(odd), int((said == odd).sum()), int(odd.sum()), int((said & odd).sum()), int(said.sum()))
            total = Found(total.loss + float(loss), *(a + b for a, b in zip(total[1:], counts, strict=True)))
        return total

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """The generator's scores, and how well the discriminator tells its tokens apart."""
        result = super().evaluate(examples, search, warn, advance, scoring)
        found = self._detected(self.as_read(self.target.encode_many([x.target for x in result.examples]))[1])
        how = f"{self.drawn}|seed:0"
        f1 = 200.0 * found.hits / max(found.said + found.replaced, 1)
        scores = {
            "detection": Score("detection", 100.0 * found.right / found.tokens, f"percent|per:token|{how}"),
            "detection_f1": Score("detection F1", f1, f"percent|class:replaced|{how}"),
        }
        return replace(result, scores={**result.scores, **scores})
