"""Masked language modelling: an encoder alone, which says what stood at `<mask>`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from regard.data.batch import Batch
from regard.data.batches import Batches
from regard.data.examples import Example
from regard.data.layouts import Masked
from regard.data.marks import Frame
from regard.data.side import Field, Item
from regard.data.store import ExampleStore, Store
from regard.data.stream import BlockBatches, Stream
from regard.data.target import Scoring
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import Score, perplexity
from regard.models.model import MaskedLanguageModel
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.tasks.results import Advance, Encoded, Evaluation, Given, Output, PairScore, Problem, Shown, Tokens, Warn
from regard.tasks.task import Pack, Task, chosen, tell_unused, windows

CANDIDATES = 5  # of a blank, to show


@dataclass
class MaskedLanguageModeling(Task):
    """Texts with blanks in, texts without out. The text is the target: there is no other source."""

    model: MaskedLanguageModel

    always = False  # whether a mask stands in place of every token to be predicted, as it does in use

    @cached_property
    def layout(self) -> Masked:
        objective, target = self.config.training.objective, self.target
        return Masked(
            objective.masked, target.size, target.marks, objective.masking, target.words, always=self.always
        )  # fmt: skip

    @property
    def frame(self) -> Frame:
        """The marks around a text."""
        return self.target.marks.frame(begins=True, ends=True)

    def training_batches(self, store: ExampleStore, budgets: Sequence[int], seed: int) -> Batches:
        if (block := self.target.block) is None:
            return super().training_batches(store, budgets, seed)
        return BlockBatches(store, self.sides, self.layout, budgets, seed, block=block)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        """Whole texts, nothing asked."""
        none = Ragged.of([[] for _ in targets])
        return Batch(self._framed(targets), none, none)

    def _framed(self, texts: Sequence[Tokens]) -> Ragged:
        return Ragged.of(texts, before=self.frame.before, after=self.frame.after)

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return len(target) + len(self.frame)

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        """The source is the text with its blanks, and the target what they are filled with."""
        ids = self.read(field)
        places, odds = self._odds([ids])
        blanks = places.tolist()[0]
        said = [target[place - len(self.frame.before)] for place in blanks]
        possible = self.target.size - len(self._unsaid)
        best = odds.exp().topk(min(CANDIDATES, possible))
        return Shown(
            source=self.target.pieces(self.frame.around(ids)),
            source_word=[*[-1] * len(self.frame.before), *self.target.words(ids), *[-1] * len(self.frame.after)],
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
        mask, name = self._mask
        parts = text.split(name)
        ids = self.target.encode(parts[0])
        for part in parts[1:]:
            ids += [mask, *self.target.encode(part)]
        return ids

    @property
    def _mask(self) -> tuple[int, str]:
        """What stands for a token to be filled in, and its name."""
        marks = self.target.marks
        if marks.mask is None:
            raise ConfigError("this vocabulary has no mark for a token to be filled in, so nothing can be masked")
        return marks.mask, marks.names[marks.mask]

    @property
    def _unsaid(self) -> list[int]:
        """Of all marks only `<unk>` may stand in a blank."""
        return [mark for mark in self.target.marks.names if mark != self.target.marks.unknown]

    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """Each blank filled with its likeliest token, all at once."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError("a model without a decoder fills in masks; it takes no prefixes or phrases")
        results: list[list[Output]] = [[] for _ in fields]
        items, usable = [self.read(field) for field in fields], []
        (mask, name), most = self._mask, self.longest - len(self.frame)
        for i, ids in enumerate(items):
            if mask not in ids:
                problem(i, f"has no mask to fill in; write {name} where one is")
            elif len(ids) > most:
                problem(i, f"has {len(ids)} tokens, more than {most}; split it")
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
                    ids[place - len(self.frame.before)] = token
                    log_prob += odds.pop(0)
                results[i] = [Output(self.target.decode(ids), log_prob, log_prob, ids)]
            advance(len(members))
        return results

    def _odds(self, texts: Sequence[Tokens]) -> tuple[Ragged, torch.Tensor]:
        """Where the blanks of each text are, and `(blanks, vocabulary)` log-probabilities of what stood there."""
        (mask, _), before = self._mask, len(self.frame.before)
        places = Ragged.of([[k + before for k, token in enumerate(ids) if token == mask] for ids in texts])
        source = self._framed(texts)
        with self.inference():
            logits = self.model(source.to(self.device), places.to(self.device)).values.float()
            logits[:, self._unsaid] = -math.inf
            return places, logits.log_softmax(-1).cpu()

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """Pseudo-log-likelihood (Salazar et al. 2020): each token given all the others, a blank at a time."""
        results, mask, before = [], self._mask[0], len(self.frame.before)
        for target in targets:
            asked = [k for k, token in enumerate(target) if token != self.target.marks.end]
            found: list[float] = []
            size = max(1, self.config.training.batch_tokens // (len(target) + len(self.frame)))
            for start in range(0, len(asked), size):
                places = asked[start : start + size]
                rows = [[*target[:k], mask, *target[k + 1 :]] for k in places]
                batch = Batch(
                    self._framed(rows), Ragged.of([[k + before] for k in places]),
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
            usable, texts = self.as_read(targets)
            hits, asked, _ = self._masked(texts)
            for pair in self.score_items([[]] * len(texts), texts):
                log_prob, tokens = log_prob + pair.log_prob, tokens + len(pair.tokens)
            seen, count = seen + [window[i] for i in usable], count + len(window)
            right, total = right + hits, total + asked
            advance(len(usable))
        if not total:
            raise DataError("these data hold no token that could be masked")
        tell_unused(len(seen), count, warn)
        kind = (self.config.target.own_tokens or self.config.tokens).kind
        accuracy = Score("accuracy", 100.0 * right / total, f"percent|{self.drawn}|seed:0")
        value = perplexity(-log_prob / tokens)
        pseudo = Score(
            "pseudo-perplexity", value, f"per:token|tokens:{kind}|one mask each", higher_is_better=False
        )  # fmt: skip
        return Evaluation({"accuracy": accuracy, "pseudo_perplexity": pseudo}, [], seen)

    def as_read(self, targets: Sequence[Tokens]) -> tuple[Sequence[int], list[Tokens]]:
        """Which texts can be used, and what is read of them: each by itself or, of a stream, its blocks."""
        if (block := self.target.block) is None:
            usable = [i for i, target in enumerate(targets) if 0 < len(target) <= self.longest - len(self.frame)]
            return usable, [targets[i] for i in usable]
        ids = [token for target in targets for token in (*target, self.target.marks.end)]
        return range(len(targets)), [ids[start : start + block] for start in range(0, len(ids), block)]

    @property
    def drawn(self) -> str:
        """Which tokens are predicted, as scores sign it."""
        objective = self.config.training.objective
        return f"masked:{objective.masked}{'' if objective.masking == 'tokens' else f' {objective.masking}'}"

    def validate(self, examples: Encoded) -> dict[str, float]:
        right, total, loss = self._masked(self.validated(examples))
        if not total:
            raise DataError("the validation data hold no token that could be masked: all their texts are blank")
        return {"loss": loss / total, "accuracy": 100.0 * right / total}

    def validated(self, examples: Encoded) -> Sequence[Item]:
        """What is read in a validation: all texts or, of a stream, its blocks."""
        if self.target.block is None:
            return examples.targets
        assert isinstance(examples.targets, Store), "a stream is cut into blocks as a whole"
        return Stream(examples.targets, self.target.marks.end).blocks(self.target.block)

    def fixed_batches(self, targets: Sequence[Tokens]) -> Iterator[Batch]:
        """Batches of all texts, with masks from a fixed seed."""
        for number, group in enumerate(self.groups(targets, self.config.training.batch_tokens)):
            draw = np.random.default_rng((0, number))
            yield self.layout([[]] * len(group), [targets[i] for i in group], draw).to(self.device)

    def _masked(self, targets: Sequence[Tokens]) -> tuple[int, int, float]:
        """Over masks from a fixed seed: how many tokens are right, how many there are, the sum of `-log p`."""
        right, total, loss = 0, 0, 0.0
        for batch in self.fixed_batches(targets):
            with self.inference():
                logits = self.model(batch.source, batch.inputs).values.float()
                loss += float(torch.nn.functional.cross_entropy(logits, batch.outputs.values, reduction="sum"))
            right += int((logits.argmax(-1) == batch.outputs.values).sum())
            total += batch.tokens
        return right, total, loss
