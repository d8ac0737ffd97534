"""Masked language modelling: an encoder alone, which says what stood at `<mask>`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.data.batches import Batch, Batches, Masked
from regard.data.examples import Example
from regard.data.side import Field, Item
from regard.data.store import ExampleStore, Store
from regard.data.stream import BlockBatches, Stream
from regard.data.target import Scoring
from regard.data.tokens import BOS, EOS, MARKS, MASK, UNK
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import Score, perplexity
from regard.models.model import MaskedLanguageModel
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.tasks.results import Advance, Encoded, Evaluation, Given, Output, PairScore, Problem, Shown, Tokens, Warn
from regard.tasks.task import Pack, Task, chosen, windows

CANDIDATES = 5  # of a blank, to show


@dataclass
class MaskedLanguageModeling(Task):
    """Texts with blanks in, texts without out. The text is the target: there is no other source."""

    model: MaskedLanguageModel

    @property
    def layout(self) -> Masked:
        return Masked(self.config.training.objective.masked, self.target.size)

    def training_batches(self, store: ExampleStore, budgets: Sequence[int], seed: int) -> Batches:
        if (block := self.target.block) is None:
            return super().training_batches(store, budgets, seed)
        return BlockBatches(store, self.sides, self.layout, budgets, seed, block=block)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        """Whole texts, nothing asked."""
        none = Ragged.of([[] for _ in targets])
        return Batch(Ragged.of([[BOS, *y, EOS] for y in targets]), none, none)

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return len(target) + 2

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        """The source is the text with its blanks, and the target what they are filled with."""
        ids = self.read(field)
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

    def forced(self, field: Field, target: str) -> Tokens:
        raise ConfigError("a model without a decoder fills in the masks of a text itself; leave out the target")

    def read(self, text: str) -> list[int]:
        """Token ids of a text in which `<mask>` stands for one token."""
        parts = text.split(MARKS[MASK])
        ids = self.target.encode(parts[0])
        for part in parts[1:]:
            ids += [MASK, *self.target.encode(part)]
        return ids

    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """Each blank filled with its likeliest token, all at once."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError("a model without a decoder fills in masks; it takes no prefixes or phrases")
        results: list[list[Output]] = [[] for _ in fields]
        items, usable = [self.read(field) for field in fields], []
        for i, ids in enumerate(items):
            if MASK not in ids:
                problem(i, f"has no mask to fill in; write {MARKS[MASK]} where one is")
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

    def readable(self, fields: Sequence[Field]) -> tuple[Sequence[Item], Pack]:
        return self.target.encode_many(fields), lambda items: self.batch(items, items).source

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """Accuracy on masked tokens (drawn as in training, from a fixed seed), and pseudo-perplexity."""
        seen: list[Example] = []
        right, total, count, log_prob, tokens = 0, 0, 0, 0.0, 0
        for window in windows(examples, self.window):
            targets = self.target.encode_many([x.target for x in window])
            usable = [i for i, target in enumerate(targets) if 0 < len(target) <= self.longest - 2]
            hits, asked, _ = self._masked([targets[i] for i in usable])
            for pair in self.score_items([[]] * len(usable), [targets[i] for i in usable]):
                log_prob, tokens = log_prob + pair.log_prob, tokens + len(pair.tokens)
            seen, count = seen + [window[i] for i in usable], count + len(window)
            right, total = right + hits, total + asked
            advance(len(usable))
        if not seen:
            raise DataError(f"none of the {count} texts can be used")
        if len(seen) < count:
            warn(f"{count - len(seen)} texts are empty or too long; left out")
        share, kind = self.config.training.objective.masked, (self.config.target.own_tokens or self.config.tokens).kind
        accuracy = Score("accuracy", 100.0 * right / total, f"percent|masked:{share}|seed:0")
        value = perplexity(-log_prob / tokens)
        pseudo = Score(
            "pseudo-perplexity", value, f"per:token|tokens:{kind}|one mask each", higher_is_better=False
        )  # fmt: skip
        return Evaluation({"accuracy": accuracy, "pseudo_perplexity": pseudo}, [], seen)

    def validate(self, examples: Encoded) -> dict[str, float]:
        targets = examples.targets
        if self.target.block is not None:
            assert isinstance(targets, Store), "a stream is read from disk"
            targets = Stream(targets).blocks(self.target.block)
        right, total, loss = self._masked(targets)
        return {"loss": loss / total, "accuracy": 100.0 * right / total}

    def _masked(self, targets: Sequence[Tokens]) -> tuple[int, int, float]:
        """Over masks from a fixed seed: how many tokens are right, how many there are, the sum of `-log p`."""
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
