"""Text generation: a text for each source, by search or by sampling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import torch

from regard.data.batches import Batch, Layout, Pairs, make_batch, pack
from regard.data.examples import Example
from regard.data.side import Field, Item
from regard.data.target import Scoring, measure
from regard.data.tokens import clean
from regard.data.words import Phrase
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import AlignmentCounts, TimeErrors, Weights, links, merge_words
from regard.evaluation.exposure import ExposureCounts
from regard.evaluation.metrics import Score, perplexity
from regard.memory import retain_memory
from regard.models.ctc import IMPOSSIBLE, CTCModel, JointStepper
from regard.models.decoding import for_decoding
from regard.models.model import AutoregressiveModel, EncoderDecoder
from regard.search.beam import beam_search, new_beam_search
from regard.search.contrastive import ContrastiveSearch, contrastive_search
from regard.search.ensemble import Ensemble, Together
from regard.search.incremental import IncrementalSearch
from regard.search.limits import Hypothesis, Limits
from regard.search.phrases import count_phrases, owed_after
from regard.search.rerank import coverage_penalty, minimum_bayes_risk
from regard.search.sample import Sampling, line_keys, sample
from regard.search.stepper import LazyStart, Step, Stepper, begun, scoring
from regard.search.tree import TreeObserver
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
    Request,
    Shown,
    Tokens,
    Warn,
    columns,
)
from regard.tasks.task import Task, chosen, inference, windows


@dataclass
class TextGeneration(Task):
    """Text, or what else is written a token at a time, from a source of any kind."""

    model: AutoregressiveModel

    begins = "prefix"  # what the user calls how an output begins
    grows = True  # the tokens written so far are how the text of an output begins
    continuous = True  # whether a search can be advanced a token at a time (`incremental`)

    @property
    def together(self) -> bool:
        """Whether source and target are one text, with a mark between."""
        return self.config.model.decoder_only and self.config.sources[0].given

    @property
    def first(self) -> tuple[int, ...]:
        marks = self.target.marks
        return (marks.end if marks.separator is None else marks.separator,) if self.together else marks.first

    @property
    def layout(self) -> Layout:
        return Pairs(self.source, self.target.marks, self.first)

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

    # Decoding

    @retain_memory()
    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        given = given or Given()
        asked = self.requests(fields, search, problem, given)
        usable = list(asked)
        results: list[list[Output]] = [[] for _ in fields]
        budget = search.batch_tokens // self.width(search)
        for group in self._shared_out([asked[i].item for i in usable], search, budget):
            members = [usable[k] for k in group]
            some = [asked[i] for i in members]
            found = self.search(
                [one.item for one in some], search, prefixes=[one.prefix for one in some],
                phrases=None if given.phrases is None else [one.phrases for one in some],
                numbers=[one.number for one in some],
            )  # fmt: skip
            for i, hypotheses in zip(members, found, strict=True):
                results[i] = self.written(asked[i].item, hypotheses, search)
            advance(len(members))
        return results

    def requests(
        self, fields: Sequence[Field], search: Search, problem: Problem, given: Given
    ) -> dict[int, Request]:  # fmt: skip
        """Each input that something can be written for, by its place; `problem` hears of the others."""
        items = self._read(fields, problem)
        prompts = [self.source.prompt(field) for field in fields]
        if (given.prefixes or given.prefix_tokens) and any(prompts):
            raise ConfigError("what a language model is given is how its output begins; leave out the prefixes")
        prefixes: list[Tokens] = list(self.target.encode_many(given.prefixes or prompts))
        for i, tokens in enumerate(given.prefix_tokens or []):
            prefixes[i] = prefixes[i] if tokens is None else tokens
        phrases = [self.target.phrases(some) for some in given.phrases or []] or [[] for _ in fields]
        numbers = range(given.first, given.first + len(fields)) if given.numbers is None else given.numbers
        asked = {}
        for i, item in items.items():
            if what := self._problem(item, prefixes[i], phrases[i], search):
                problem(i, what)
            else:
                asked[i] = Request(item, prefixes[i], phrases[i], numbers[i])
        return asked

    def written(self, source: Item, hypotheses: Sequence[Hypothesis], search: Search) -> list[Output]:
        """What was found for a source, as outputs, best first."""
        outputs = [Output(self.text_of(source, h.tokens), h.score, h.log_prob, h.tokens) for h in hypotheses]
        return least_risk(outputs, search) if search.mbr else outputs

    def width(self, search: Search) -> int:
        """Rows that a search has for each source."""
        if search.contrastive:
            return candidates(search)
        return search.nbest if search.sample else search.mbr or search.beam

    def text_of(self, source: Item, tokens: Tokens) -> str:
        """The text of what was written for a source."""
        return self.target.decode(tokens)

    def _shared_out(self, items: Sequence[Item], search: Search, budget: int) -> list[list[int]]:
        """Groups to search for at once; where there is no source, the output is what takes room."""
        lengths = np.array([self.source.places(item) or search.max_length for item in items], np.int64) + 1
        return [group.tolist() for group in pack([lengths], [budget])] if items else []

    def _problem(self, item: Item, prefix: Tokens, phrases: Sequence[Phrase], search: Search) -> str | None:
        """Why nothing can be written for a source, or not what is asked for; None if it can."""
        if what := self.source.problem(item, search.max_source) or self.unfit(item, []):
            return what
        (room,) = self.room([item], search)
        if room >= 1 and not prefix and not phrases:
            return None
        limit = self._limit(item, room, search)
        start, within = f"a {self.begins} of {len(prefix)} tokens", f"more than the {room} that {limit} allows"
        if room < 1:
            return f"has {self.source.length(item)} tokens, after which {limit} leaves no room for an output; split it"
        marks = self.target.marks
        for name, given in ((self.begins, [prefix]), ("phrase", [one.tokens for one in phrases])):
            if odd := sorted({marks.names[token] for tokens in given for token in tokens if token in marks.framing}):
                return f"has a {name} that holds {' and '.join(odd)}, which no output does"
        if len(prefix) > room:
            return f"has {start}, {within}"
        edges = self.target.edges if phrases else None
        if (owed := owed_after(prefix, count_phrases(phrases), edges)) > room - len(prefix):
            return f"has {f'{start} and ' if prefix else ''}phrases of {owed} tokens, {within}"
        return None

    def room(self, sources: Sequence[Item], search: Search) -> list[int]:
        """The most tokens of an output for each source."""
        if self.target.fixed_length is not None:
            return [self.target.fixed_length] * len(sources)
        left = self.longest - 1 - self.hidden
        rooms = [min(search.max_length, left - (self.source.length(item) if self.together else 0)) for item in sources]
        return [min(room, self.source.room(item, search.max_ratio)) for room, item in zip(rooms, sources, strict=True)]

    def _limit(self, item: Item, room: int, search: Search) -> str:
        """The setting that leaves a source no more room than this."""
        if self.target.fixed_length is not None:
            return f"target.kind {self.config.target.kind}"
        if room == search.max_length:
            return f"search.max_length={search.max_length}"
        if room == self.source.room(item, search.max_ratio):
            return f"search.max_ratio={search.max_ratio:g}"
        return f"a model of {self.longest} positions"

    def unfit(self, source: Item, target: Tokens) -> str | None:
        """Why a pair, with its marks, is more than the model has positions for; None if it is not."""
        given = self.source.length(source)
        most = f"more than a model of {self.longest} positions can read"
        if self.positions_needed(source) + self.together > self.longest:
            return f"has {given} tokens, {most}"
        if len(target) + self.hidden >= self.longest:
            return f"has a target of {len(target)} tokens, {most}"
        if self.together and given + 1 + len(target) > self.longest:
            return f"has {given} tokens and a target of {len(target)}, together {most}"
        return None

    def search(
        self, sources: Sequence[Item], settings: Search, *, prefixes: Sequence[Tokens] | None = None,
        phrases: Sequence[Sequence[Phrase]] | None = None, numbers: Sequence[int] | None = None,
        observer: TreeObserver | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Search or sample for a batch of sources; those of other `numbers` (0, 1, …) draw other samples. An `observer`
        watches the beam search for a single source."""
        with inference(for_decoding(self.model, settings.precision)):
            model = self.stepper(settings)
            limits = self._limits(sources, settings, prefixes)
            start = LazyStart(begun(model, self.first), self.source.pack(sources), self.device, self.longest)
            if settings.sample or settings.mbr:
                _refuse_phrases(phrases, "sample and mbr")
                return sample(
                    model, start, limits=limits.to(self.device),
                    keys=line_keys(settings.seed, range(len(sources)) if numbers is None else numbers),
                    count=settings.mbr or settings.nbest, temperature=settings.temperature, epsilon=settings.least,
                    top_k=settings.top_k, top_p=settings.top_p,
                )  # fmt: skip
            if settings.contrastive:
                _refuse_phrases(phrases, "contrastive")
                return contrastive_search(
                    model.advance, model.predict, start, limits=limits.to(self.device),
                    top_k=candidates(settings), penalty=settings.contrastive,
                )  # fmt: skip
            found = beam_search(
                model, start, limits=limits, width=settings.beam,
                nbest=settings.beam if settings.coverage else settings.nbest,
                penalty=settings.length_penalty, alpha=settings.alpha, stop=settings.stop,
                groups=settings.groups, diversity=settings.diversity, constraints=phrases,
                edges=self.target.edges if phrases else None, counted=self.target.marks.counted,
                observe=None if observer is None else observer.watch,
            )  # fmt: skip
        found = [self.possible(some, settings) for some in found]
        return self._cover(sources, found, settings) if settings.coverage else found

    def possible(self, found: list[Hypothesis], settings: Search) -> list[Hypothesis]:
        """Without what no path of CTC reads, which is an output only where there is no other."""
        if not self.ctc_weight(settings) and not isinstance(self.model, CTCModel):
            return found
        return [one for one in found if one.log_prob > IMPOSSIBLE] or found[:1]

    def stepper(self, settings: Search) -> Any:
        """What a search of these settings drives: the model, laid out to decode fast, with CTC at its side."""
        model, weight = for_decoding(self.model, settings.precision), self.ctc_weight(settings)
        return _with_ctc(model, weight) if weight else model

    def incremental(self, asked: Sequence[Request], searches: Sequence[Search]) -> IncrementalSearch:
        """A search for some requests, whose settings may differ in lengths and seed alone, for who has the model to
        advance it by the steps of `step_of`."""
        settings = searches[0]
        _, normalised = scoring(self.stepper(settings))
        limits = self._limits([one.item for one in asked], settings, [one.prefix for one in asked], searches)
        limits = limits.to(self.device)
        phrases = [one.phrases for one in asked] if any(one.phrases for one in asked) else None
        if settings.sample or settings.mbr:
            _refuse_phrases(phrases, "sample and mbr")
            pairs, count = zip(asked, searches, strict=True), settings.mbr or settings.nbest
            keys = torch.cat([line_keys(search.seed, [one.number]) for one, search in pairs])
            return Sampling(
                limits, keys, count, temperature=settings.temperature, epsilon=settings.least, top_k=settings.top_k,
                top_p=settings.top_p, rows=count, normalised=normalised,
            )  # fmt: skip
        if settings.contrastive:
            _refuse_phrases(phrases, "contrastive")
            predict, top_k = self.stepper(settings).predict, min(candidates(settings), self.target.size)
            return ContrastiveSearch(predict, limits, top_k, settings.contrastive, rows=top_k)
        if settings.coverage:
            self._check_coverage()
        return new_beam_search(
            limits, width=settings.beam, nbest=settings.beam if settings.coverage else settings.nbest,
            groups=settings.groups, diversity=settings.diversity, penalty=settings.length_penalty, alpha=settings.alpha,
            stop=settings.stop, counted=self.target.marks.counted, constraints=phrases, normalised=normalised,
            edges=self.target.edges if phrases else None,
        )  # fmt: skip

    def step_of(self, settings: Search) -> Step:
        """One step of the model for an `incremental` search."""
        stepper = self.stepper(settings)
        step: Step = stepper.advance if settings.contrastive else scoring(stepper)[0]
        return step

    def found(self, asked: Request, hypotheses: list[Hypothesis], settings: Search) -> list[Output]:
        """What an `incremental` search has found for a request, as outputs, best first."""
        possible = self.possible(hypotheses, settings)
        if settings.coverage:
            (possible,) = self._cover([asked.item], [possible], settings)
        return self.written(asked.item, possible, settings)

    def _limits(
        self, sources: Sequence[Item], settings: Search, prefixes: Sequence[Tokens] | None,
        each: Sequence[Search] | None = None,
    ) -> Limits:  # fmt: skip
        """Those of a search for some sources; `each` has settings of its own for lengths, or all have the same."""
        fixed = self.target.fixed_length
        if each is None:
            room = self.room(sources, settings)
        else:
            room = [self.room([source], search)[0] for source, search in zip(sources, each, strict=True)]
        limits = Limits(
            longest=torch.tensor(room),
            bos=self.first[-1],
            eos=self.target.marks.end,
            forbidden=self.target.marks.forbidden(unknown=settings.unknown and fixed is None),
            shortest=settings.min_length if fixed is None else fixed,
            no_repeat=settings.no_repeat,
            prefix=prefixes,
            opening=self.target.marks.opening,
            at_limit=settings.at_limit,
            prefix_scored=settings.prefix_scored,
            repetition=settings.repetition_penalty,
            before=self.first[:-1],
        )
        return limits if each is None or fixed is not None else limits.at_least([search.min_length for search in each])

    def ctc_weight(self, settings: Search) -> float:
        """That of CTC beside a decoder, which only beam search minds."""
        models = self.model.models if isinstance(self.model, Ensemble) else [self.model]
        if not any(map(_joint, models)):
            return 0.0
        if settings.sample or settings.mbr or settings.contrastive:
            return 0.0
        return 0.3 if settings.ctc is None else settings.ctc

    def _cover(
        self, sources: Sequence[Item], found: list[list[Hypothesis]], settings: Search
    ) -> list[list[Hypothesis]]:
        """Add the coverage penalty to the score of each hypothesis, and sort anew."""
        layer, ranked = self._check_coverage(), []
        for item, hypotheses in zip(sources, found, strict=True):
            scored = list(hypotheses)
            for i, attended in self.attention([item] * len(scored), [h.tokens for h in hypotheses], [layer]):
                penalty = coverage_penalty(torch.from_numpy(attended[layer].mean(0)), settings.coverage)
                scored[i] = replace(scored[i], score=scored[i].score + penalty)
            ranked.append(sorted(scored, key=lambda h: -h.score)[: settings.nbest])
        return ranked

    def _check_coverage(self) -> str:
        """The layer whose attention covers a source."""
        if self.best_layer is None or isinstance(self.model, CTCModel):  # CTC names nothing at most times
            raise ConfigError("search.coverage needs a model with attention over its source; set it to 0")
        return self.best_layer

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
                loss, tokens = loss - pair.log_prob, tokens + len(pair.tokens)
            first = {id(x) for x in new}  # the greedy output of an input is held against one reference
            some = [k for k, i in enumerate(usable) if id(written[i]) in first]
            if self.target.comparable:
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
        signature = f"per:token|tokens:{kind}|end:counted"
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
        """The mean of `-log p` over all target tokens."""
        total, tokens = 0.0, 0
        for _, batch, logits in self.logits(examples.sources, examples.targets):
            total -= math.fsum(math.fsum(row) for row in chosen(logits, batch))
            tokens += batch.tokens
        return total / tokens


def least_risk(outputs: list[Output], search: Search) -> list[Output]:
    """The samples nearest to all the others, each once; their score is their mean utility."""
    utilities = minimum_bayes_risk([output.text for output in outputs], search.utility)
    best: dict[str, Output] = {}
    for output, utility in zip(outputs, utilities, strict=True):
        best.setdefault(output.text, replace(output, score=utility))
    return sorted(best.values(), key=lambda output: -output.score)[: search.nbest]


def candidates(search: Search) -> int:
    """Tokens that contrastive search reads before it chooses among them."""
    return search.top_k or 4


def _refuse_phrases(phrases: object, way: str) -> None:
    if phrases is not None:
        raise ConfigError(f"phrases that must appear need beam search; leave out {way}")


def _joint(model: Any) -> TypeGuard[EncoderDecoder]:
    """Whether a model has a CTC output layer beside its decoder."""
    return isinstance(model, EncoderDecoder) and model.ctc is not None


def _with_ctc(model: Any, weight: float) -> Stepper:
    """A model whose CTC output layer has its say, or several, of which some have one."""
    if isinstance(model, Ensemble):
        return Together([JointStepper(one, weight) if _joint(one) else one for one in model.models])
    return JointStepper(model, weight)
