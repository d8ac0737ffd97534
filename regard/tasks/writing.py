"""Writing: a text to each source, or a text from nothing but how it begins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

import torch

from regard.data.batches import Batch, Pairs, make_batch
from regard.data.corpora import Example
from regard.data.sources import Item
from regard.data.tokens import BOS, EOS, MARKS, MASK, PAD, SEP, UNK, clean
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import alignment_error_rate, links, merge_words, pointing
from regard.evaluation.exposure import Exposure, exposure
from regard.evaluation.metrics import Score, bleu_score, chrf_score, exact_match, perplexity, text_scores
from regard.memory import retain_memory
from regard.models.decoding import for_decoding
from regard.models.model import OneNetwork, Writer
from regard.parts import NoEncoder
from regard.ragged import Ragged
from regard.search.beam import beam_search
from regard.search.constraints import owed_after
from regard.search.contrastive import contrastive_search
from regard.search.limits import Hypothesis, Limits
from regard.search.rerank import coverage_penalty, minimum_bayes_risk
from regard.search.sample import line_keys, sample
from regard.search.stepper import LazyStart
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
    inference,
)

UNWRITTEN = (PAD, BOS, EOS, SEP, MASK)  # marks that no output holds


@dataclass
class Writing(Task):
    """Text from a source: a text, a picture."""

    model: Writer  # type: ignore[assignment]  # narrower: this task needs one that writes

    begins = "prefix"  # what the user calls how an output begins

    def __post_init__(self) -> None:
        if isinstance(self.config.model.encoder, NoEncoder) and self.config.data.source == "text":
            self.first = SEP  # source and target are one text, with this between

    @property
    def layout(self) -> Pairs:
        return Pairs(self.source, self.first)

    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        return make_batch(self.source.pack(sources), targets, self.first)

    def length(self, side: str, source: Item, target: Tokens) -> int:
        given = len(self.source.pieces(source))
        if side == "source":
            return given
        return len(target) + 1 + (given if self.first == SEP else 0)

    def shown(self, text: str, source: Item, target: Tokens) -> Shown:
        pieces = [*self.target.pieces(target), MARKS[EOS]]
        given = [*self.source.pieces(source), MARKS[SEP]] if self.first == SEP else []
        return Shown(
            source=self.source.pieces(source),
            source_word=self.source.words(source),
            target=pieces,
            target_word=[*self.target.words(target), -1],
            inputs=[*(given or [MARKS[BOS]]), *pieces[:-1]],
            log_probs=self.score_items([source], [target])[0].tokens,
            tokens=target,
            given=len(given),
        )

    # Decoding

    @retain_memory()
    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        items = self._read(texts, problem)
        given = given or Given()
        if given.prefixes and any(self.source.prompt(text) for text in texts):
            raise ConfigError("what a language model is given is how its output begins; leave out the prefixes")
        prefixes = self.target.encode_many(given.prefixes or [self.source.prompt(text) for text in texts])
        phrases = None if given.phrases is None else [self.target.encode_many(some) for some in given.phrases]
        usable = []
        for i, item in items.items():
            if what := self._problem(item, prefixes[i], [] if phrases is None else phrases[i], search):
                problem(i, what)
            else:
                usable.append(i)
        results: list[list[Output]] = [[] for _ in texts]
        width = search.nbest if search.sample else search.mbr or search.beam
        lengths = [items[i] if len(items[i]) else [0] * search.max_length for i in usable]
        for group in self.groups(lengths, search.batch_tokens // width):
            members = [usable[k] for k in group]
            found = self.search(
                [items[i] for i in members], search, prefixes=[prefixes[i] for i in members],
                phrases=None if phrases is None else [phrases[i] for i in members],
                numbers=[given.first + i for i in members],
            )  # fmt: skip
            for i, hypotheses in zip(members, found, strict=True):
                outputs = [Output(self.target.decode(h.tokens), h.score, h.log_prob, h.tokens) for h in hypotheses]
                results[i] = least_risk(outputs, search) if search.mbr else outputs
            advance(len(members))
        return results

    def _problem(self, item: Item, prefix: Tokens, phrases: Sequence[Tokens], search: Search) -> str | None:
        """Why nothing can be written for a source, or not what is asked for; None if it can."""
        if what := self.source.problem(item, search.max_source) or self.unfit(item, []):
            return what
        (room,) = self.room([item], search)
        if room >= 1 and not prefix and not phrases:
            return None
        limit = self._limit(item, room, search)
        start, within = f"a {self.begins} of {len(prefix)} tokens", f"more than the {room} that {limit} allows"
        if room < 1:
            return f"has {len(item)} tokens, after which {limit} leaves no room for an output; split it"
        for name, given in ((self.begins, [prefix]), ("phrase", phrases)):
            if marks := sorted({MARKS[token] for tokens in given for token in tokens if token in UNWRITTEN}):
                return f"has a {name} that holds {' and '.join(marks)}, which no output does"
        if len(prefix) > room:
            return f"has {start}, {within}"
        if (owed := owed_after(prefix, Counter(map(tuple, filter(None, phrases))))) > room - len(prefix):
            return f"has {f'{start} and ' if prefix else ''}phrases of {owed} tokens, {within}"
        return None

    def room(self, sources: Sequence[Item], search: Search) -> list[int]:
        """The most tokens of an output for each source."""
        left, together = self.longest - 1, self.first == SEP
        rooms = [min(search.max_length, left - (len(item) if together else 0)) for item in sources]
        return [min(room, self.source.room(item, search.max_ratio)) for room, item in zip(rooms, sources, strict=True)]

    def _limit(self, item: Item, room: int, search: Search) -> str:
        """The setting that leaves a source no more room than this."""
        if room == search.max_length:
            return f"search.max_length={search.max_length}"
        if room == self.source.room(item, search.max_ratio):
            return f"search.max_ratio={search.max_ratio:g}"
        return f"a model of {self.longest} positions"

    def unfit(self, source: Item, target: Tokens) -> str | None:
        """Why a pair, with its marks, is more than the model has positions for; None if it is not."""
        given = len(source) if self.source.tokenizer is not None else 0
        most = f"more than a model of {self.longest} positions can read"
        if given >= self.longest:
            return f"has {given} tokens, {most}"
        if len(target) >= self.longest:
            return f"has a target of {len(target)} tokens, {most}"
        if self.first == SEP and given + 1 + len(target) > self.longest:
            return f"has {given} tokens and a target of {len(target)}, together {most}"
        return None

    def search(
        self, sources: Sequence[Item], settings: Search, *, prefixes: Sequence[Tokens] | None = None,
        phrases: Sequence[Sequence[Tokens]] | None = None, numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Search or sample for a batch of sources; those of other `numbers` (0, 1, …) draw other samples."""
        model = for_decoding(self.model, settings.precision)
        room = self.room(sources, settings)
        with inference(model):
            limits = Limits(
                longest=torch.tensor(room),
                bos=self.first,
                eos=EOS,
                forbidden=(PAD, BOS, SEP, MASK) if settings.unknown else (PAD, UNK, BOS, SEP, MASK),
                shortest=settings.min_length,
                no_repeat=settings.no_repeat,
                prefix=prefixes,
            )
            start = LazyStart(model.start, self.source.pack(sources), self.device, self.longest)
            if settings.sample or settings.mbr:
                if phrases is not None:
                    raise ConfigError("phrases that must appear need beam search; leave out sample and mbr")
                return sample(
                    model, start, limits=limits.to(self.device),
                    keys=line_keys(settings.seed, range(len(sources)) if numbers is None else numbers),
                    count=settings.mbr or settings.nbest, temperature=settings.temperature, epsilon=settings.least,
                    top_k=settings.top_k, top_p=settings.top_p,
                )  # fmt: skip
            if settings.contrastive:
                if phrases is not None:
                    raise ConfigError("phrases that must appear need beam search; leave out contrastive")
                return contrastive_search(
                    model.advance, model.predict, start, limits=limits.to(self.device),
                    top_k=settings.top_k or 4, penalty=settings.contrastive,
                )  # fmt: skip
            found = beam_search(
                model, start, limits=limits, width=settings.beam,
                nbest=settings.beam if settings.coverage else settings.nbest,
                penalty=settings.length_penalty, alpha=settings.alpha, exact=settings.exact,
                groups=settings.groups, diversity=settings.diversity, constraints=phrases,
            )  # fmt: skip
        return self._cover(sources, found, settings) if settings.coverage else found

    def _cover(
        self, sources: Sequence[Item], found: list[list[Hypothesis]], settings: Search
    ) -> list[list[Hypothesis]]:
        """Add the coverage penalty to the score of each hypothesis, and sort anew."""
        layer = self.best_layer
        if layer is None:
            raise ConfigError("search.coverage needs a model with attention over its source; set it to 0")
        ranked = []
        for item, hypotheses in zip(sources, found, strict=True):
            attended = self.attention([item] * len(hypotheses), [h.tokens for h in hypotheses])
            scored = [
                replace(h, score=h.score + coverage_penalty(torch.from_numpy(a[layer].mean(0)), settings.coverage))
                for h, a in zip(hypotheses, attended, strict=True)
            ]
            ranked.append(sorted(scored, key=lambda h: -h.score)[: settings.nbest])
        return ranked

    # Scoring, teacher forced

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        results: list[PairScore | None] = [None] * len(sources)
        for group in self.groups(sources, self.config.training.batch_tokens, targets):
            batch = self.batch([sources[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self.inference():
                found = chosen(self.model(batch.source, batch.inputs).values, batch)
            for i, tokens in zip(group, found, strict=True):
                results[i] = PairScore(math.fsum(tokens), tokens)
        return [result for result in results if result is not None]

    def align(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[list[tuple[int, int]]]:
        """The links between words that the attention makes, (source word, target word)."""
        layer = self.best_layer
        if layer is None:
            raise ConfigError("this model has no attention over its source, so it aligns nothing")
        found = []
        for x, y, attended in zip(sources, targets, self.attention(sources, targets), strict=True):
            weights = attended[layer].mean(0)
            found.append(links(merge_words(weights, [*self.target.words(y), -1], self.source.words(x))))
        return found

    def exposure(self, examples: Sequence[Example]) -> Exposure:
        """Quality after true prefixes against quality in free running, by position."""
        items = self.source.encode_many([x.source for x in examples])
        targets = self.target.encode_many([x.target for x in examples])
        forced: list[list[int]] = [[] for _ in examples]
        free: list[list[int]] = [[] for _ in examples]
        greedy = Search(beam=1, max_length=self.config.search.max_length, max_ratio=self.config.search.max_ratio)
        for group in self.groups(items, self.config.training.batch_tokens, targets):
            batch = self.batch([items[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self.inference():
                guesses = batch.outputs.like(self.model(batch.source, batch.inputs).values.argmax(-1)).tolist()
            found = self.search([items[i] for i in group], greedy)
            for row, i in enumerate(group):
                forced[i] = guesses[row]
                free[i] = [*found[row][0].tokens, EOS] if found[row] else []
        return exposure([[*y, EOS] for y in targets], forced, free)

    # Scores

    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """All scores of the examples. One that cannot be used counts as an empty output, and `warn` hears of it."""
        sources, references = [x.source for x in examples], [clean(x.target) for x in examples]
        found = self.outputs(
            sources, search, lambda index, what: warn(f"{examples[index].place} {what}; scored as empty"), advance
        )
        outputs = [clean(best[0].text) if best else "" for best in found]
        scores = text_scores(outputs, references)
        usable = []
        written = [x for x, best in zip(examples, found, strict=True) if best]
        items = self.source.encode_many([x.source for x in written])
        for x, item, target in zip(written, items, self.target.encode_many([x.target for x in written]), strict=True):
            if what := self.unfit(item, target):
                warn(f"{x.place} {what}; left out of perplexity and attention")
            else:
                usable.append(x)
        if not usable:
            raise DataError(f"none of the {len(examples)} examples can be used")
        scores["perplexity"] = self._perplexity(self.loss(usable))
        scores |= self._attention_scores(usable)
        return Evaluation(scores, outputs, list(examples), self.exposure(usable))

    def _attention_scores(self, examples: Sequence[Example]) -> dict[str, Score]:
        """How well the attention agrees with gold alignments, where there are any."""
        gold = [(x, truth) for x in examples if (truth := self.source.gold(x)) is not None]
        if not gold or self.best_layer is None:
            return {}
        items = self.source.encode_many([x.source for x, _ in gold])
        found = self.align(items, self.target.encode_many([x.target for x, _ in gold]))
        truths = [truth for _, truth in gold]
        signature = f"layer:{self.best_layer}|heads:mean|forced:reference"
        places = [max(self.source.words(item), default=-1) + 1 for item in items]
        rate, luck = pointing(found, truths, places)
        scores = {"pointing": Score("pointing", rate, f"{signature}|percent|chance:{luck:.1f}")}
        if any(truth.sure for truth in truths):
            error = alignment_error_rate(found, truths)
            scores["aer"] = Score("AER", error, signature, higher_is_better=False)
        return scores

    def _perplexity(self, loss: float) -> Score:
        signature = f"per:token|tokens:{self.config.tokens.kind}|end:counted"
        return Score("perplexity", perplexity(loss), signature, higher_is_better=False)

    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        """Loss over all examples, the rest from greedy outputs of some."""
        some = examples[:sentences]
        greedy = self.config.search.model_copy(
            update={"beam": 1, "nbest": 1, "groups": 1, "sample": False, "mbr": 0, "contrastive": 0.0, "coverage": 0.0}
        )
        found = self.outputs([x.source for x in some], greedy, lambda *_: None)
        outputs = [clean(best[0].text) if best else "" for best in found]
        references = [clean(x.target) for x in some]
        metrics = (bleu_score, chrf_score, exact_match)
        bleu, chrf, exact = (metric(outputs, references).value for metric in metrics)
        return {"loss": self.loss(examples), "bleu": bleu, "chrf": chrf, "exact": exact}


@dataclass
class LanguageModel(Writing):
    """Text from nothing: what a user gives is how it begins."""

    model: OneNetwork

    begins = "prompt"

    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """Perplexity by token, by word and in bits by character: the last two compare models of different tokens."""
        usable = []
        for example in examples:
            count = len(self.target.encode(example.target))
            if 0 < count < self.longest:
                usable.append(example)
            else:
                warn(f"{example.place} is {'empty' if not count else f'{count} tokens long'}; left out")
        if not usable:
            raise DataError(f"none of the {len(examples)} texts can be used")
        total, tokens, texts = 0.0, 0, [clean(x.target) for x in usable]
        for pair in self.score([x.source for x in usable], texts):
            total, tokens = total - pair.log_prob, tokens + len(pair.tokens)
        advance(len(usable))
        words = sum(len(text.split()) + 1 for text in texts)
        characters = sum(len(text) + 1 for text in texts)
        scores = {
            "perplexity": self._perplexity(total / tokens),
            "word_perplexity": Score(
                "word perplexity",
                perplexity(total / words),
                "per:word|words:blanks|end:counted",
                higher_is_better=False,
            ),
            "bits": Score(
                "bits", total / characters / math.log(2), "per:character|end:counted", higher_is_better=False
            ),
        }
        return Evaluation(scores, [], usable)

    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        loss = self.loss(examples)
        return {"loss": loss, "perplexity": perplexity(loss)}

    def shown(self, text: str, source: Item, target: Tokens) -> Shown:
        """The source is the prompt, and the target what was written after it."""
        prompt = self.target.encode(text)
        same = (a == b for a, b in zip(prompt, target, strict=False))
        count = sum(takewhile(bool, same))  # a given target may be cut differently where the prompt ends
        pieces = [*self.target.pieces([BOS, *target]), MARKS[EOS]]
        return Shown(
            source=pieces[: count + 1],
            source_word=[-1, *self.target.words(target[:count])],
            target=pieces[count + 1 :],
            target_word=[*self.target.words(target[count:]), -1],
            inputs=pieces[:-1],
            log_probs=self.score_items([source], [target])[0].tokens[count:],
            tokens=target,
            given=count + 1,
        )

    def forced(self, text: str, target: str) -> Tokens:
        if not clean(target).startswith(clean(text)):
            raise DataError(f"the target should begin with the prompt '{clean(text)}', as what is generated does")
        return self.target.encode(target)

    def readable(self, texts: Sequence[str]) -> tuple[Sequence[Item], Pack]:
        return self.target.encode_many(texts), lambda items: self.batch(items, items).inputs

    def stream(self, lines: Iterable[str], chunk: int = 256) -> Iterator[list[float]]:
        """`log p` of each token of a long text, a list for each line (its end counted), with the state carried on.

        A recurrent model carries its state without end. A Transformer looks back at most as far as it has positions:
        before they run out, it reads its latest half again and goes on from there.
        """
        if self.model.decoder.bounded:
            chunk = min(chunk, self.longest // 2)  # the half that is read again and what is new have to fit
        reader = _Reader(self, chunk)
        waiting: list[list[int]] = []
        for line in lines:
            waiting.append([*self.target.encode(line), EOS])
            if sum(map(len, waiting)) >= chunk:
                yield from reader.read(waiting)
                waiting = []
        yield from reader.read(waiting)


class _Reader:
    """A language model in the middle of a long text."""

    def __init__(self, task: LanguageModel, chunk: int) -> None:
        self.task, self.chunk = task, min(chunk, task.longest // 2)
        self.state = task.model.decoder.alone(1)
        self.seen = [BOS]  # the latest tokens, of which the last has not been read yet

    def read(self, lines: Sequence[Tokens]) -> list[list[float]]:
        """`log p` of each token of some more lines."""
        tokens = [token for line in lines for token in line]
        found: list[float] = []
        with self.task.inference():
            for start in range(0, len(tokens), self.chunk):
                found += self._read(tokens[start : start + self.chunk])
        rest = iter(found)
        return [list(islice(rest, len(line))) for line in lines]

    def _read(self, tokens: Tokens) -> list[float]:
        task, model = self.task, self.task.model
        if model.decoder.bounded and len(self.seen) + len(tokens) > task.longest:
            self.seen = self.seen[-(task.longest // 2) :]
            self.state = model.start(Ragged.of([self.seen[:-1]], task.device))
        outputs, self.state = model.read(Ragged.of([[self.seen[-1], *tokens[:-1]]], task.device), self.state)
        self.seen = [*self.seen, *tokens][-task.longest :]
        chosen = torch.tensor(tokens, device=task.device)[:, None]
        return model.predict(outputs.values).gather(1, chosen).squeeze(1).tolist()


def least_risk(outputs: list[Output], search: Search) -> list[Output]:
    """The samples nearest to all the others, each once; their score is their mean utility."""
    utilities = minimum_bayes_risk([output.text for output in outputs], search.utility)
    best: dict[str, Output] = {}
    for output, utility in zip(outputs, utilities, strict=True):
        best.setdefault(output.text, replace(output, score=utility))
    return sorted(best.values(), key=lambda output: -output.score)[: search.nbest]
