"""Prediction by a head: a label of a source, a tag of each of its words, a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import Batch
from regard.data.batches import Batches
from regard.data.examples import Example
from regard.data.layouts import Predicted
from regard.data.side import Field, Item
from regard.data.store import ExampleStore
from regard.data.target import HeadTarget, Scoring
from regard.errors import ConfigError, DataError
from regard.models.model import EncoderWithHead
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.tasks.results import (
    Advance,
    Encoded,
    Evaluation,
    Given,
    Inputs,
    Output,
    PairScore,
    Problem,
    Shown,
    Tokens,
    Warn,
    columns,
)
from regard.tasks.task import Task, windows


@dataclass
class HeadPrediction(Task):
    """Sources in, predictions out: what they are, the target says."""

    model: EncoderWithHead

    def __post_init__(self) -> None:
        super().__post_init__()
        target = self.sides.target
        if not isinstance(target, HeadTarget):
            raise ConfigError(
                f"target.kind '{target.settings.kind}' is predicted by a head, so its class ({type(target).__name__}) "
                "has to derive from regard.HeadTarget"
            )
        self.target: HeadTarget = target

    @property
    def layout(self) -> Predicted:
        return Predicted(self.source, self.target, last=self.model.causal)

    def training_batches(self, store: ExampleStore, budgets: Sequence[int], seed: int) -> Batches:
        if self.target.contrasts and not self.source.sampled:
            costs = np.sort(self.source.cost(np.diff(store.stores[0].offsets)))
            if len(costs) < 2:
                raise DataError("there is one sentence to train on, and no other to be told apart from")
            if costs[:2].sum() > budgets[0]:
                raise ConfigError(
                    f"every sentence would be alone in its batch of {budgets[0]:,} tokens, with no other to be told "
                    f"apart from; raise training.batch_tokens, to {16 * int(costs[-1]):,} say"
                )
        return super().training_batches(store, budgets, seed)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return self.layout(sources, targets, np.random.default_rng(0))

    def length(self, side: str, source: Item, target: Tokens) -> int:
        return self.source.places(self.target.rows(source)[0])

    def item(self, field: Field) -> Item:
        read = super().item(field)
        first, *more = self.target.parts(self.source, field, read)
        if len(self.target.rows(first)) > 1:
            raise ConfigError(
                f"target.kind '{self.config.target.kind}' is predicted from several texts, each read by itself; what a "
                "model attends to is shown where it reads one"
            )
        if more:
            raise DataError(f"the source is read in {len(more) + 1} windows; give one that fits into source.max_length")
        return first

    def _positions(self, source: Item) -> list[int]:
        return self.target.positions(self.source, source, last=self.model.causal)

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        """The source, and what is predicted of it; where answers have no probability, none is shown beside them."""
        row, of_words = self.target.rows(source)[0], self.config.target.of_words
        pieces = self.source.pieces(row)
        log_probs = self.score_items([source], [target])[0].tokens if self.target.explained else []
        return Shown(
            source=pieces,
            source_word=self.source.words(row),
            target=self.target.pieces(target) if of_words else [self.target.text(self.source, field, target)],
            target_word=self.target.words(target) if of_words else [0],
            inputs=pieces if self.model.causal else [],
            log_probs=log_probs if of_words or not log_probs else [math.fsum(log_probs)],
            tokens=target,
            places=self._positions(source) if of_words else [-1],
        )

    def forced(self, field: Field, target: str) -> Tokens:
        if not self.target.explained:
            raise ConfigError("a number that is predicted has no probability to explain; leave out the target")
        if not self.target.paired:
            return super().forced(field, target)
        return self._numbers(field, super().item(field), target)[0][1]

    def _numbers(self, field: Field, item: Item, target: str) -> list[tuple[Item, Tokens]]:
        """Both sides of an example as they are trained on."""
        found: list[tuple[Item, Tokens]] | None = self.target.numbers(self.source, field, item, target)
        return found or [(item, self.target.encode(target))]

    def unfit_pairs(self, sources: Sequence[Field], targets: Sequence[str]) -> list[str | None]:
        if not self.target.paired:
            return super().unfit_pairs(sources, targets)
        found: dict[int, str] = {}
        self._usable(sources, found.__setitem__)
        return [found.get(i) for i in range(len(sources))]

    def score(self, sources: Sequence[Field], targets: Sequence[str]) -> list[PairScore]:
        if not self.target.paired:
            return super().score(sources, targets)
        results = []
        for field, item, target in zip(sources, self.source.encode_many(sources), targets, strict=True):
            pairs = self._numbers(field, item, target)
            each = self.target.log_probs_of(self._found([x for x, _ in pairs]), [y for _, y in pairs])
            results.append(PairScore(math.fsum(each), each))
        return results

    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """The best predictions, best first: several labels of the whole, else one."""
        if given is not None and (given.prefixes or given.phrases):
            raise ConfigError(f"target.kind is '{self.config.target.kind}'; it takes no prefixes or phrases")
        found = self._answers(fields, self._usable(fields, problem), search, advance)
        return [found.get(i, []) for i in range(len(fields))]

    def _usable(self, fields: Sequence[Field], problem: Problem) -> dict[int, list[Item]]:
        """What is read of each source that something can be predicted of, by number; `problem` hears of the others."""
        usable = {}
        for i, item in self._read(fields, problem).items():
            try:
                parts = self.target.parts(self.source, fields[i], item)
            except DataError as error:
                problem(i, str(error))
                continue
            rows = (row for part in parts for row in self.target.rows(part))
            if what := next(filter(None, (self.source.problem(row, self.longest - 2) for row in rows)), None):
                problem(i, what)
            else:
                usable[i] = parts
        return usable

    def _answers(
        self, fields: Sequence[Field], items: dict[int, list[Item]], search: Search, advance: Advance
    ) -> dict[int, list[Output]]:
        """What is predicted of each of these, under the same number."""
        flat = [(i, number) for i, parts in items.items() for number in range(len(parts))]
        waiting: dict[int, list[Any]] = {i: [None] * len(parts) for i, parts in items.items()}
        answers = {}
        for group in self.groups([items[i][number] for i, number in flat], search.batch_tokens):
            members = [flat[k] for k in group]
            for (i, number), said in zip(members, self._found([items[i][n] for i, n in members]), strict=True):
                waiting[i][number] = said
                if any(part is None for part in waiting[i]):
                    continue
                answers[i] = [
                    Output(self.target.text(self.source, fields[i], values), log_prob, log_prob, values)
                    for values, log_prob in self.target.answers(items[i], waiting.pop(i), search.nbest)
                ]
                advance(1)
        return answers

    def _found(self, items: Sequence[Item]) -> list[Tensor]:
        """What the head says of each, `(positions, size)`."""
        places = [self._positions(item) for item in items]
        read = [row for item in items for row in self.target.rows(item)]
        source, inputs = self.source.pack(read).to(self.device), Ragged.of(places).to(self.device)
        with self.inference():
            found = self.model(source, inputs).values.float()
        return list(found.cpu().split([len(row) for row in places]))

    def sentence_embeddings(self, fields: Sequence[Field]) -> NDArray[np.float32]:
        """What the encoder makes of the whole; where vectors are what was learnt, those."""
        if not self.config.target.vectors:
            return super().sentence_embeddings(fields)
        items = self.source.encode_many(fields)
        found = np.zeros((len(fields), self.config.model.d_model), np.float32)
        for group in self.groups(items, self.config.training.batch_tokens):
            source, inputs = self.source.pack([items[i] for i in group]), Ragged.of([[0]] * len(group))
            with self.inference():
                vectors = self.model(source.to(self.device), inputs.to(self.device)).values
            found[group] = vectors.float().cpu().numpy()
        return found

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """`log p` of each right answer, as its target has it."""
        results: list[PairScore] = [PairScore(0.0, [])] * len(sources)
        for group in self.groups(sources, self.config.training.batch_tokens):
            for i, found in zip(group, self._found([sources[i] for i in group]), strict=True):
                each = self.target.log_probs(found, targets[i])
                results[i] = PairScore(math.fsum(each), each)
        return results

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """The target's scores. An example that cannot be used is left out, and `warn` hears of it."""
        inputs = Inputs(together=self.several_references)
        answers: dict[int, list[str]] = {}  # of each input, best first
        count = 0
        search = search.model_copy(update={"nbest": max(search.nbest, self.target.ranked)})
        for window in windows(self.checked(examples), self.window):
            count += len(window)
            before = len(inputs.examples)
            inputs.add(replace(x, target=self.reference(x)) for x in window if not self.target.is_missing(x.target))
            new = inputs.examples[before:]

            def left_out(index: int, what: str, new: Sequence[Example] = new) -> None:
                warn(f"{new[index].place} {what}; left out")

            fields = [x.source for x in new]
            found = self._answers(fields, self._usable(fields, left_out), search, advance)
            answers |= {before + i: [x.text for x in best] for i, best in sorted(found.items())}
            for x in window:
                if self.target.is_missing(x.target):
                    warn(f"{x.place} has an empty target; left out")
        if not answers:
            raise DataError(f"none of the {count} examples can be used")
        # Of several answers to one input, what most people said comes first.
        given = [[x for x, n in Counter(inputs.references[i]).most_common() for _ in range(n)] for i in answers]
        right, more = columns(given)
        predicted = [best[0] for best in answers.values()]
        scoring = replace(scoring or Scoring(), references=more, ranked=list(answers.values()))
        seen = [replace(inputs.examples[i], target=text) for i, text in zip(answers, right, strict=True)]
        return Evaluation(
            self.target.scores(predicted, right, scoring), predicted, seen,
            classes=self.target.class_scores(predicted, right), references=given,
        )  # fmt: skip

    @property
    def several_references(self) -> bool:
        return self.source.several_references or self.target.several_references

    def reference(self, example: Example) -> str:
        return self.target.reference(self.source, example.source, example.target)

    def lower_is_better(self, metric: str, examples: Sequence[Example] = ()) -> bool:
        """Of a metric that depends on the data (F1 needs a label to be of), answers that are right say whether there
        is one."""
        if metric == "loss" or metric in self.config.target.steering:
            return super().lower_is_better(metric)
        right = [self.reference(x) for x in examples]
        found = self.target.scores(right, right, Scoring(ranked=[[x] for x in right]))
        if metric not in found:
            raise ConfigError(
                f"training.metric {metric!r} cannot be had of these data, which give {', '.join(['loss', *found])}; "
                f"set it to one of them, or name {metric} in target.metrics as well"
            )
        return not found[metric].higher_is_better

    def validate(self, examples: Encoded) -> dict[str, float]:
        """Over all examples: a label that training did not meet is predicted wrong, and costs nothing. Metrics that
        take whole answers are taken of `some`."""
        loss, count, right = 0.0, 0, 0.0
        hits: float | None = None
        for _, batch in self.batches(examples.sources, examples.targets):
            with self.inference():
                found = self.model(batch.source, batch.inputs)
                loss += float(self.target.judged_loss(found, batch.outputs))
                hits = self.target.hits(found, batch.outputs)
            right, count = right + (hits or 0.0), count + batch.tokens
        steering: dict[str, float] = {
            "loss": loss / count,
            **({} if hits is None else {"accuracy": 100.0 * right / count}),
        }
        names = dict.fromkeys([*self.config.target.steering, self.config.metric])
        if wanted := [name for name in names if name not in steering]:
            scores = self.evaluate(examples.some, self.config.search, lambda text: None).scores
            steering |= {name: scores[name].value for name in wanted}
        return steering
