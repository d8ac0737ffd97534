"""What a task that writes a token at a time searches or samples for its sources, and within which limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import torch

from regard.data.batches import pack
from regard.data.side import Field, Item
from regard.data.words import Phrase
from regard.errors import ConfigError
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
from regard.tasks.results import Advance, Given, Output, Problem, Request, Tokens
from regard.tasks.task import Task, inference


@dataclass
class SearchingTask(Task):
    """A source of any kind, and a search for what follows from it."""

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
                    top_k=settings.top_k, top_p=settings.top_p, typical_p=settings.typical_p,
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
        longest, limits = int(limits.longest.max()), limits.to(self.device)
        phrases = [one.phrases for one in asked] if any(one.phrases for one in asked) else None
        if settings.sample or settings.mbr:
            _refuse_phrases(phrases, "sample and mbr")
            pairs, count = zip(asked, searches, strict=True), settings.mbr or settings.nbest
            keys = torch.cat([line_keys(search.seed, [one.number]) for one, search in pairs])
            return Sampling(
                limits, keys, count, temperature=settings.temperature, epsilon=settings.least, top_k=settings.top_k,
                top_p=settings.top_p, typical_p=settings.typical_p, rows=count, normalised=normalised,
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
            edges=self.target.edges if phrases else None, longest=longest,
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
            banned=self.target.marks.banned,
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
