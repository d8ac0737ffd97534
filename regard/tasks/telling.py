"""Telling something of a source: its label, a tag of each of its words, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.data.batches import Batch, Told
from regard.data.corpora import Example
from regard.data.labels import Labels, Numbers, cut, number
from regard.data.sources import Item
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError
from regard.evaluation.labels import label_scores, number_scores
from regard.models.model import Reader
from regard.settings import Search
from regard.tasks.task import (
    Advance,
    Evaluation,
    Given,
    Output,
    PairScore,
    Problem,
    Shown,
    Task,
    Tokens,
    Warn,
)


@dataclass
class Telling(Task):
    """Sources in, labels out (or tags, or numbers)."""

    model: Reader
    target: Labels | Numbers

    @property
    def layout(self) -> Told:
        return Told(self.source, self.target, last=self.model.alone)

    def checked(self, examples: Iterable[Example]) -> Iterator[Example]:
        """As many tags as words, and numbers that are numbers."""
        for example in examples:
            if isinstance(self.target, Numbers) and clean(example.target):
                number(example.target, example.place)
            elif self._each:
                words = len(self.layout.places(self.source.encode_many([example.source])[0]))
                tags = len(cut(example.target, each=True))
                if words and tags and words != tags:
                    raise DataError(f"{example.place} has words and tags, but {words} and {tags}; each word needs one")
            yield example

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return self.layout(sources, targets, np.random.default_rng(0))

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return len(self.source.pieces(source))

    def shown(self, source: Item, target: Tokens) -> Shown:
        """The source, and the labels told of it; a number has no probability to show beside it."""
        pieces, words = self.source.pieces(source), self.source.words(source)
        read = pieces if self.model.alone else []
        if isinstance(self.target, Numbers) or (self._each and self.model.alone):  # whose tags lie among what it reads
            return Shown(pieces, words, [], [], read)
        return Shown(pieces, words, self.target.pieces(target), self.target.words(target), read)

    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """The likeliest labels of the whole, best first; else the one answer: the likeliest tags, or the number."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError(f"model.head is '{self.config.model.head}'; it takes no prefixes or phrases")
        results: list[list[Output]] = [[] for _ in texts]
        items, usable = self.source.encode_many(texts), []
        for i, item in enumerate(items):
            if (what := self.source.problem(item, self.longest - 2)) is None:
                usable.append(i)
            else:
                problem(i, what)
        count = search.nbest if isinstance(self.target, Labels) and not self.target.each else 1
        for group in self.groups([items[i] for i in usable], search.batch_tokens):
            members = [usable[k] for k in group]
            for i, found in zip(members, self._told([items[i] for i in members]), strict=True):
                results[i] = self._ranked(found, count)
            advance(len(members))
        return results

    def _ranked(self, found: torch.Tensor, count: int) -> list[Output]:
        """Of `(answers, outputs)` for one source: log-probabilities, or the number."""
        if isinstance(self.target, Numbers):
            value = [float(found[0, 0])]
            return [Output(self.target.decode(value), 0.0, 0.0, value)]  # type: ignore[arg-type]
        if self.target.each:
            best = found.max(-1)
            log_prob = math.fsum(best.values.tolist())
            return [Output(self.target.decode(best.indices.tolist()), log_prob, log_prob, best.indices.tolist())]
        top = found[0].topk(min(count, self.target.size))
        return [
            Output(self.target.decode([i]), log_prob, log_prob, [i])
            for log_prob, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]

    def _told(self, items: Sequence[Item]) -> list[torch.Tensor]:
        """What is told of each: `(answers, labels)` log-probabilities, or `(1, 1)` the number."""
        none = [0.0] if isinstance(self.target, Numbers) else [0]
        targets = [[0] * len(self.layout.places(item)) for item in items] if self._each else [none] * len(items)
        batch = self.batch(items, targets).to(self.device)  # type: ignore[arg-type]
        with self.inference():
            found = self.model(batch.source, batch.inputs).values.float()
        found = found if isinstance(self.target, Numbers) else found.log_softmax(-1)
        return list(found.cpu().split([len(target) for target in targets]))

    @property
    def _each(self) -> bool:
        return isinstance(self.target, Labels) and self.target.each

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """`log p` of each label. A number has none: it gets that of a normal distribution of spread 1 around what is
        told, in units of the training data's spread."""
        results: list[PairScore] = [PairScore(0.0, [])] * len(sources)
        for group in self.groups(sources, self.config.training.batch_tokens):
            for i, found in zip(group, self._told([sources[i] for i in group]), strict=True):
                results[i] = self._scored(found, targets[i])
        return results

    def _scored(self, found: torch.Tensor, target: Tokens) -> PairScore:
        if isinstance(self.target, Numbers):
            log_prob = -0.5 * (float(found[0, 0]) - float(target[0])) ** 2 - 0.5 * math.log(2 * math.pi)
            return PairScore(log_prob, [log_prob])
        if len(found) != len(target):
            raise DataError(f"a source of {len(found)} words cannot have {len(target)} tags; each word needs one")
        each = [float(row[y]) if y < self.target.size else -math.inf for row, y in zip(found, target, strict=True)]
        return PairScore(math.fsum(each), each)

    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """Accuracy and F1 of labels, correlation and error of numbers."""
        usable = []
        items = self.source.encode_many([x.source for x in examples])
        for example, item in zip(self.checked(examples), items, strict=True):
            if clean(example.target) and self.source.problem(item, self.longest - 2) is None:
                usable.append(example)
        if not usable:
            raise DataError(f"none of the {len(examples)} examples can be used")
        if len(usable) < len(examples):
            warn(f"{len(examples) - len(usable)} examples are empty or too long; left out")
        told = [found[0].text for found in self.outputs([x.source for x in usable], search, _impossible, advance)]
        if isinstance(self.target, Numbers):
            scores = number_scores([float(x) for x in told], [number(x.target) for x in usable])
        else:
            each = self.target.each
            rows = [cut(x, each=each) for x in told]
            right = [cut(x.target, each=each) for x in usable]
            scores = label_scores(rows, right, per="word" if each else "example")
        return Evaluation(scores, told, usable)

    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        """Over all examples: telling is quick. A label that training did not meet is told wrong, and costs nothing."""
        items = self.source.encode_many([x.source for x in examples])
        targets = self.target.encode_many([x.target for x in examples])
        loss, count, right = 0.0, 0, 0
        for group in self.groups(items, self.config.training.batch_tokens):
            batch = self.batch([items[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self.inference():
                found, wanted = self.model(batch.source, batch.inputs).values.float(), batch.outputs.values
                if isinstance(self.target, Numbers):
                    loss += 0.5 * float((found.squeeze(1) - wanted).square().sum())
                else:
                    loss += float(torch.nn.functional.cross_entropy(found, wanted, reduction="sum"))
                    right += int((found.argmax(-1) == wanted).sum())
            count += batch.tokens
        accuracy = {} if isinstance(self.target, Numbers) else {"accuracy": 100.0 * right / count}
        return {"loss": loss / count, **accuracy}


def _impossible(index: int, what: str) -> None:
    raise AssertionError(f"example {index} was found usable, but {what}")
