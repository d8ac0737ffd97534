"""Text generation: a text for each source, how probable a text is, and the scores of those that are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from regard.data.batch import Batch, make_batch
from regard.data.examples import Example
from regard.data.layouts import Layout, Pairs
from regard.data.side import Field, Item
from regard.data.target import Scoring, measure
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import AlignmentCounts, TimeErrors, Weights, links, merge_words
from regard.evaluation.exposure import ExposureCounts
from regard.evaluation.metrics import Score, perplexity
from regard.models.ctc import IMPOSSIBLE
from regard.search_settings import Search
from regard.tasks.results import Advance, Encoded, Evaluation, Inputs, PairScore, Shown, Tokens, Warn, columns
from regard.tasks.searching import SearchingTask
from regard.tasks.task import chosen, windows


@dataclass
class TextGeneration(SearchingTask):
    """Text, or what else is written a token at a time, from a source of any kind."""

    @property
    def ends(self) -> bool:
        """Whether the model learns where outputs end."""
        return self.config.training.objective.ends

    @property
    def layout(self) -> Layout:
        return Pairs(self.source, self.target.marks, self.first, self.ends)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return make_batch(self.source.pack(sources), targets, self.target.marks, self.first)

    def length(self, side: str, source: Item, target: Tokens) -> int:
        given = len(self.source.pieces(source))
        if side == "source":
            return given
        return len(target) + 1 + (given if self.together else 0)

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        names, first = self.target.marks.names, self.first[-1]
        pieces = [*self.target.pieces(target), names[self.target.marks.end]]
        given = [*self.source.pieces(source), names[first]] if self.together else []
        return Shown(
            source=self.source.pieces(source),
            source_word=self.source.words(source),
            target=pieces,
            target_word=[*self.target.words(target), -1],
            inputs=[*(given or [names[first]]), *pieces[:-1]],
            log_probs=self.score_items([source], [target])[0].tokens,
            tokens=target,
            given=len(given),
        )

    # Scoring, teacher forced

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        results = [PairScore(0.0, [])] * len(sources)
        for group, batch, logits in self.logits(sources, targets):
            for i, tokens in zip(group, chosen(logits, batch), strict=True):
                tokens = [x if x > IMPOSSIBLE else -math.inf for x in tokens]
                results[i] = PairScore(math.fsum(tokens), tokens)
        return results

    def align(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[list[tuple[int, int]]]:
        """The links between words that the attention makes, (source word, target word)."""
        found: list[list[tuple[int, int]]] = [[] for _ in sources]
        for i, words in self.attended_words(sources, targets):
            found[i] = links(words)
        return found

    def attended_words(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Iterator[tuple[int, Weights]]:
        """The number of each pair, in any order, and its attention, `(target words, source words)`."""
        layer = self.best_layer
        if layer is None:
            raise ConfigError("this model has no attention over its source, so it aligns nothing")
        for i, attended in self.attention(sources, targets, [layer]):
            source_word, target_word = self.source.words(sources[i]), [*self.target.words(targets[i]), -1]
            yield i, merge_words(attended[layer].mean(0), target_word, source_word)

    def _count_exposure(self, items: Sequence[Item], targets: Sequence[Tokens], counts: ExposureCounts) -> None:
        """Quality after true prefixes against quality in free running, by position."""
        greedy = Search(beam=1, max_length=self.config.search.max_length, max_ratio=self.config.search.max_ratio)
        end = self.target.marks.end
        for group, batch in self.batches(items, targets):
            with self.inference():
                guesses = batch.outputs.like(self.model(batch.source, batch.inputs).values.argmax(-1)).tolist()
            found = self.search([items[i] for i in group], greedy)
            for row, i in enumerate(group):
                free = [*found[row][0].tokens, end] if found[row] else []
                counts.add([*targets[i], end], guesses[row][self.hidden :], free)

    # Scores

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """All scores of the examples. One that cannot be used counts as an empty output, and `warn` hears of it."""
        inputs = Inputs(together=self.source.several_references)
        outputs: list[str] = []
        read = set[int]()  # inputs that can be
        loss, tokens, exposed, aligned, timed = 0.0, 0, ExposureCounts(), AlignmentCounts(), TimeErrors()
        for window in windows(examples, self.window):
            before = len(outputs)
            numbers = inputs.add(window)
            new = inputs.examples[before:]

            def problem(index: int, what: str, new: Sequence[Example] = new) -> None:
                warn(f"{new[index].place} {what}; scored as empty")

            found = self.outputs([x.source for x in new], search, problem, advance)
            outputs += [clean(best[0].text) if best else "" for best in found]
            read |= {before + i for i, best in enumerate(found) if best}
            written = [x for x, n in zip(window, numbers, strict=True) if n in read]
            numbers = [n for n in numbers if n in read]
            distinct = {n: x.source for n, x in zip(numbers, written, strict=True)}
            encoded = dict(zip(distinct, self.source.encode_many(list(distinct.values())), strict=True))
            items = [encoded[n] for n in numbers]
            targets = self.target.encode_many([x.target for x in written])
            usable = []
            for i, x in enumerate(written):
                if what := self.unfit(items[i], targets[i]):
                    warn(f"{x.place} {what}; left out of perplexity and attention")
                else:
                    usable.append(i)
            items, targets = [items[i] for i in usable], [targets[i] for i in usable]
            for pair in self.score_items(items, targets):
                learnt = self._learnt(pair.tokens)
                loss, tokens = loss - math.fsum(learnt), tokens + len(learnt)
            first = {id(x) for x in new}  # the greedy output of an input is held against one reference
            some = [k for k, i in enumerate(usable) if id(written[i]) in first]
            if self.target.comparable and self.ends:  # what never stops is as long as it may be
                self._count_exposure([items[k] for k in some], [targets[k] for k in some], exposed)
            self._count_links([written[i] for i in usable], items, targets, aligned, timed)
        if not tokens:
            raise DataError(f"none of the {len(inputs.numbers)} examples can be used")
        scoring = scoring or Scoring()
        for further in scoring.references:
            if len(further) != len(inputs.numbers):
                raise DataError(
                    f"{len(further)} further references for {len(inputs.numbers)} examples; each needs its own"
                )
            for number, text in zip(inputs.numbers, further, strict=True):
                inputs.references[number] += [] if text is None else [text]
        references, more = columns(inputs.references)
        scores = self.target.scores(outputs, references, replace(scoring, references=more))
        scores["perplexity"] = self._perplexity(loss / tokens)
        how = f"layer:{self.best_layer}|heads:mean|forced:reference"
        scores |= aligned.scores(how) | timed.scores(how, self.source.seconds_per_place)
        exposure = exposed.result() if exposed.longest else None
        return Evaluation(scores, outputs, inputs.examples, exposure, references=inputs.references)

    def _count_links(
        self, examples: Sequence[Example], items: Sequence[Item], targets: Sequence[Tokens], counts: AlignmentCounts,
        timed: TimeErrors,
    ) -> None:  # fmt: skip
        """How well the attention agrees with gold alignments, where there are any; in time, where words are moments."""
        truths = {i: truth for i, x in enumerate(examples) if (truth := self.source.gold(x)) is not None}
        if not truths or self.best_layer is None:
            return
        some, seconds = list(truths), self.source.seconds_per_place
        for k, words in self.attended_words([items[i] for i in some], [targets[i] for i in some]):
            i = some[k]
            counts.add(links(words), truths[i], words.shape[1])
            if seconds:
                own = self.source.parts[0].words(items[i] if len(self.source.parts) == 1 else items[i][0])
                timed.add(words[:, : max(own, default=-1) + 1], truths[i], seconds)

    def _perplexity(self, loss: float) -> Score:
        target = self.config.target
        kind = (target.own_tokens or self.config.tokens).kind if target.text else target.kind
        signature = f"per:token|tokens:{kind}|end:{'counted' if self.ends else 'left out'}"
        return Score("perplexity", perplexity(loss), signature, higher_is_better=False)

    def validate(self, examples: Encoded) -> dict[str, float]:
        """Loss over all examples, the rest from greedy outputs of some."""
        names = dict.fromkeys((*self.config.steering_metrics, *([self.config.metric] * (self.config.metric != "loss"))))
        if not names:
            return {"loss": self.loss(examples)}
        greedy = self.config.search.model_copy(
            update={"beam": 1, "nbest": 1, "groups": 1, "sample": False, "mbr": 0, "contrastive": 0.0, "coverage": 0.0}
        )
        inputs = Inputs(examples.some, together=self.source.several_references)
        found = self.outputs([x.source for x in inputs.examples], greedy, lambda *_: None)
        outputs = [clean(best[0].text) if best else "" for best in found]
        references, more = columns([clean(text) for text in row] for row in inputs.references)
        scoring = Scoring(references=more)
        scores = {name: measure(name, outputs, references, scoring).value for name in names}
        return {"loss": self.loss(examples), **scores}

    def loss(self, examples: Encoded) -> float:
        """The mean of `-log p` over all target tokens that are learnt."""
        total, tokens = 0.0, 0
        for _, batch, logits in self.logits(examples.sources, examples.targets):
            rows = [self._learnt(row) for row in chosen(logits, batch)]
            total -= math.fsum(map(math.fsum, rows))
            tokens += sum(map(len, rows))
        return total / tokens

    def _learnt(self, log_probs: list[float]) -> list[float]:
        """Of a target's tokens and its end, those that are learnt."""
        return log_probs if self.ends else log_probs[:-1]
