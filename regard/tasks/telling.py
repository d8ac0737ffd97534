"""Telling something of a source: its label, a tag of each of its words, or a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.data.batches import Batch, Told
from regard.data.corpora import Example
from regard.data.labels import Labels, Numbers, cut, number
from regard.data.sources import Item
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError
from regard.evaluation.labels import class_scores, label_scores, number_scores
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

    def mismatch(self, example: Example) -> str | None:
        """As many tags as words are needed, and numbers that are numbers."""
        if isinstance(self.target, Numbers) and clean(example.target):
            try:
                number(example.target)
            except DataError as error:
                return f"cannot be used: {error}"
        if self._each:
            words = len(self.layout.places(self.source.encode_many([example.source])[0]))
            tags = len(cut(example.target, each=True))
            if words and tags and words != tags:
                return f"has words and tags, but {words} and {tags}; each word needs one"
        return None

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return self.layout(sources, targets, np.random.default_rng(0))

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return len(self.source.pieces(source))

    def shown(self, text: str, source: Item, target: Tokens) -> Shown:
        """The source, and what is told of it; a number has no probability to show beside it."""
        pieces, number = self.source.pieces(source), isinstance(self.target, Numbers)
        return Shown(
            source=pieces,
            source_word=self.source.words(source),
            target=self.target.pieces(target),
            target_word=self.target.words(target),
            inputs=pieces if self.model.alone else [],
            log_probs=[] if number else self.score_items([source], [target])[0].tokens,
            tokens=target,
            places=self.layout.places(source) if self._each else [-1],
        )

    def forced(self, text: str, target: str) -> Tokens:
        if isinstance(self.target, Numbers):
            raise ConfigError("a number that is told has no probability to explain; leave out the target")
        return super().forced(text, target)

    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """The likeliest labels of the whole, best first; else the one answer: the likeliest tags, or the number."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError(f"model.head is '{self.config.model.head}'; it takes no prefixes or phrases")
        found = self._answers(self._usable(texts, problem), search, advance)
        return [found.get(i, []) for i in range(len(texts))]

    def _usable(self, texts: Sequence[str], problem: Problem) -> dict[int, Item]:
        """The sources that something can be told of, by number; `problem` hears of the others."""
        usable = {}
        for i, item in self._read(texts, problem).items():
            if what := self.source.problem(item, self.longest - 2):
                problem(i, what)
            else:
                usable[i] = item
        return usable

    def _answers(self, items: dict[int, Item], search: Search, advance: Advance) -> dict[int, list[Output]]:
        """What is told of each of these, under the same number."""
        numbers, answers = list(items), {}
        count = search.nbest if isinstance(self.target, Labels) and not self.target.each else 1
        for group in self.groups(list(items.values()), search.batch_tokens):
            members = [numbers[k] for k in group]
            for i, found in zip(members, self._told([items[i] for i in members]), strict=True):
                answers[i] = self._ranked(found, count)
            advance(len(members))
        return answers

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
        """Accuracy and F1 of labels, correlation and error of numbers. An example that cannot be used is left out, and
        `warn` hears of it."""

        def left_out(index: int, what: str) -> None:
            warn(f"{examples[index].place} {what}; left out")

        for _ in self.checked(examples):  # before anything is told, for it raises
            pass
        items = self._usable([x.source for x in examples], left_out)
        for i in [i for i in items if not clean(examples[i].target)]:
            left_out(i, "has an empty target")
            del items[i]
        if not items:
            raise DataError(f"none of the {len(examples)} examples can be used")
        found = self._answers(items, search, advance)
        told, usable = [found[i][0].text for i in items], [examples[i] for i in items]
        if isinstance(self.target, Numbers):
            numbers = number_scores([float(x) for x in told], [number(x.target) for x in usable])
            return Evaluation(numbers, told, usable)
        each = self.target.each
        rows, right = [cut(x, each=each) for x in told], [cut(x.target, each=each) for x in usable]
        scores = label_scores(rows, right, per="word" if each else "example")
        return Evaluation(scores, told, usable, classes=class_scores(rows, right))

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
