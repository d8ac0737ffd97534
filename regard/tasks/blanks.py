"""Filling in blanks: an encoder alone, which says what stood at `<mask>`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.data.batches import Batch, Blanks
from regard.data.corpora import Example
from regard.data.sources import Item
from regard.data.tokens import BOS, EOS, MARKS, MASK, UNK, clean
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import Score, perplexity
from regard.models.model import FillIn
from regard.ragged import Ragged
from regard.settings import Search
from regard.tasks.task import (
    Advance,
    Evaluation,
    Given,
    Output,
    Pack,
    PairScore,
    Problem,
    Shown,
    Task,
    Tokens,
    Warn,
    chosen,
)

CANDIDATES = 5  # of a blank, to show


@dataclass
class FillingIn(Task):
    """Texts with blanks in, texts without out. The text is the target: there is no other source."""

    model: FillIn

    @property
    def layout(self) -> Blanks:
        return Blanks(self.config.training.objective.blanks, self.target.size)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        """Whole texts, nothing asked."""
        none = Ragged.of([[] for _ in targets])
        return Batch(Ragged.of([[BOS, *y, EOS] for y in targets]), none, none)

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return len(target) + 2

    def shown(self, text: str, source: Item, target: Tokens) -> Shown:
        """The source is the text with its blanks, and the target what they are filled with."""
        ids = self.read(text)
        places, odds = self._odds([ids])
        blanks = places.tolist()[0]
        said = [target[place - 1] for place in blanks]
        possible = self.target.size - len(MARKS) + 1  # of all marks only <unk> may stand there
        best = odds.exp().topk(min(CANDIDATES, possible))
        return Shown(
            source=self.target.pieces([BOS, *ids, EOS]),
            source_word=[-1, *self.target.words(ids), -1],
            target=self._each(said),
            target_word=list(range(len(said))),
            inputs=[],
            log_probs=[float(row[token]) for row, token in zip(odds, said, strict=True)],
            tokens=ids,
            places=blanks,
            candidates=[
                list(zip(self._each(tokens), shares, strict=True))
                for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ],
        )

    def _each(self, tokens: Sequence[int]) -> list[str]:
        """Tokens that do not stand side by side, in pieces."""
        return [piece for token in tokens for piece in self.target.pieces([token])]

    def forced(self, text: str, target: str) -> Tokens:
        raise ConfigError("a model without a decoder fills in the blanks of a text itself; leave out the target")

    def read(self, text: str) -> list[int]:
        """Token ids of a text in which `<mask>` stands for one token."""
        parts = text.split(MARKS[MASK])
        ids = self.target.encode(parts[0])
        for part in parts[1:]:
            ids += [MASK, *self.target.encode(part)]
        return ids

    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """Each blank filled with its likeliest token, all at once."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError("a model without a decoder fills in blanks; it takes no prefixes or phrases")
        results: list[list[Output]] = [[] for _ in texts]
        items, usable = [self.read(text) for text in texts], []
        for i, ids in enumerate(items):
            if MASK not in ids:
                problem(i, f"has no blank to fill in; write {MARKS[MASK]} where one is")
            elif len(ids) + 2 > self.longest:
                problem(i, f"has {len(ids)} tokens, more than {self.longest - 2}; split it")
            else:
                usable.append(i)
        for group in self.groups([items[i] for i in usable], search.batch_tokens):
            members = [usable[k] for k in group]
            places, log_probs = self._odds([items[i] for i in members])
            best = log_probs.max(-1)
            said, odds = places.like(best.indices).tolist(), best.values.tolist()
            for row, i in enumerate(members):
                ids, log_prob = list(items[i]), 0.0
                for place, token in zip(places.tolist()[row], said[row], strict=True):
                    ids[place - 1] = token
                    log_prob += odds.pop(0)
                results[i] = [Output(self.target.decode(ids), log_prob, log_prob, ids)]
            advance(len(members))
        return results

    def _odds(self, texts: Sequence[Tokens]) -> tuple[Ragged, torch.Tensor]:
        """Where the blanks of each text are, and `(blanks, vocabulary)` log-probabilities of what stood there."""
        places = Ragged.of([[k + 1 for k, token in enumerate(ids) if token == MASK] for ids in texts])
        source = Ragged.of([[BOS, *ids, EOS] for ids in texts])
        with self.inference():
            logits = self.model(source.to(self.device), places.to(self.device)).values.float()
            logits[:, [i for i in range(len(MARKS)) if i != UNK]] = -math.inf
            return places, logits.log_softmax(-1).cpu()

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """Pseudo-log-likelihood (Salazar et al. 2020): each token given all the others, a blank at a time."""
        results = []
        for target in targets:
            rows = [[BOS, *target[:k], MASK, *target[k + 1 :], EOS] for k in range(len(target))]
            found: list[float] = []
            size = max(1, self.config.training.batch_tokens // (len(target) + 2))
            for start in range(0, len(rows), size):
                places = range(start, min(start + size, len(rows)))
                batch = Batch(
                    Ragged.of([rows[k] for k in places]), Ragged.of([[k + 1] for k in places]),
                    Ragged.of([[target[k]] for k in places]),
                ).to(self.device)  # fmt: skip
                with self.inference():
                    found += [row[0] for row in chosen(self.model(batch.source, batch.inputs).values, batch)]
            results.append(PairScore(math.fsum(found), found))
        return results

    def readable(self, texts: Sequence[str]) -> tuple[Sequence[Item], Pack]:
        return self.target.encode_many(texts), lambda items: self.batch(items, items).source

    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """How many blanks are filled in right (drawn as in training, from a fixed seed), and pseudo-perplexity."""
        usable = [x for x in examples if 0 < len(self.target.encode(x.target)) <= self.longest - 2]
        if not usable:
            raise DataError(f"none of the {len(examples)} texts can be used")
        if len(usable) < len(examples):
            warn(f"{len(examples) - len(usable)} texts are empty or too long; left out")
        right, total, _ = self._blanks(usable)
        scored = self.score([""] * len(usable), [clean(x.target) for x in usable])
        advance(len(usable))
        loss = -math.fsum(x.log_prob for x in scored) / sum(len(x.tokens) for x in scored)
        share = self.config.training.objective.blanks
        return Evaluation(
            {
                "accuracy": Score("accuracy", 100.0 * right / total, f"percent|blanks:{share}|seed:0"),
                "pseudo_perplexity": Score(
                    "pseudo-perplexity", perplexity(loss), f"per:token|tokens:{self.config.tokens.kind}|one blank each",
                    higher_is_better=False,
                ),
            },
            [],
            usable,
        )  # fmt: skip

    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        right, total, loss = self._blanks(examples)
        return {"loss": loss / total, "accuracy": 100.0 * right / total}

    def _blanks(self, examples: Sequence[Example]) -> tuple[int, int, float]:
        """Over the same blanks each time: how many are told right, how many there are, the sum of `-log p`."""
        targets = self.target.encode_many([x.target for x in examples])
        right, total, loss = 0, 0, 0.0
        for number, group in enumerate(self.groups(targets, self.config.training.batch_tokens)):
            draw = np.random.default_rng((0, number))
            batch = self.layout([[]] * len(group), [targets[i] for i in group], draw).to(self.device)
            with self.inference():
                logits = self.model(batch.source, batch.inputs).values.float()
                loss += float(torch.nn.functional.cross_entropy(logits, batch.outputs.values, reduction="sum"))
            right += int((logits.argmax(-1) == batch.outputs.values).sum())
            total += batch.tokens
        return right, total, loss
