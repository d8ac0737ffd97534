"""Decoding with CTranslate2: a task like any other, whose network runs elsewhere.

By default it is one search under CTranslate2's own rules, the fastest. Its beams choose as Regard's do, and differ in
three things: they stop as soon as `beam` hypotheses have ended, where Regard goes on while an open one scores better
than the worst of them; they share out the probability of tokens that may not come among the others; and they break off
at the limit, where Regard does what `at_limit` says. So an output may be another than Regard's, with a score at most as
good.

With `exact` it gives what Regard gives, the tokens and, up to rounding, the numbers. Marks are not forbidden but end a
hypothesis, which is then left out. The search goes on for more hypotheses, of which those are left out that ended after
Regard's search had stopped (`judge`). What was cut off at its limit is scored once more, with its end. Two things
remain: under `no_repeat` a beam goes by probabilities that leave out what may not come, and an output ends right after
its prefix only where that is likeliest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.config import parse, read_yaml, resolve_paths
from regard.data.forms import Formed
from regard.data.side import Item
from regard.data.sides import Sides
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, ModelError, require
from regard.evaluation.exposure import ExposureCounts
from regard.exchange.ct2_hypotheses import Verdict, Written, best, judge
from regard.loading import CONFIG
from regard.ragged import Ragged
from regard.search.limits import Hypothesis, Limits
from regard.search.tree import TreeObserver
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import PairScore, Tokens

EXPORT = "export.json"  # what an exported folder was made from
LINES = 32  # in a batch on a CPU, where more are no faster
NEVER = -1e9  # below it, `log p` of what CTranslate2 only fills its beam with
_ELSEWHERE = "CTranslate2 writes and scores, and does not show what it attends to; load the Regard model for that"
_PLAIN: dict[str, tuple[object, ...]] = {
    "sample": (False,), "mbr": (0,), "contrastive": (0.0,), "coverage": (0.0,), "stop": ("heuristic", "early"),
    "groups": (1,), "repetition_penalty": (1.0,), "prefix_scored": (True,),
}  # fmt: skip
_AS_REGARD = {**_PLAIN, "stop": ("heuristic",), "at_limit": ("scored",)}  # of which it gives what Regard gives


def ct2() -> Any:
    """The package, if it is there."""
    return require("ctranslate2")


def names(tokenizer: Tokenizer) -> list[str]:
    """A name for each token, by its id: SentencePiece's own, or as it is shown; each once."""
    if isinstance(tokenizer, Formed):
        return names(tokenizer.inner)
    if isinstance(tokenizer, Prefixed):
        return [*names(tokenizer.inner), *tokenizer.prefixes]
    if isinstance(tokenizer, Subwords):
        shown = [str(tokenizer.processor.id_to_piece(i)) for i in range(tokenizer.size)]
    else:
        shown = tokenizer.pieces(range(tokenizer.size))
    marks, unique = tokenizer.marks.names, dict[str, None]()
    for i, name in enumerate(shown):
        name = marks.get(i, name)
        while name in unique:
            name = f"{name}#{i}"
        unique[name] = None
    return list(unique)


def refuse(search: Search, phrases: object = None, *, exact: bool = False) -> None:
    """Raise an error if a search is asked for that CTranslate2 does not have, or of which it has not what Regard would
    give, if that is wanted (`exact`)."""
    for name, plain in (_AS_REGARD if exact else _PLAIN).items():
        if (value := getattr(search, name)) not in plain:
            raise ConfigError(
                f"search.{name} is {value}, and the engine ctranslate2 has plain beam search alone; leave out --engine"
            )
    if phrases is not None:
        raise ConfigError("the engine ctranslate2 cannot hold outputs to phrases; leave out --engine")


class Elsewhere(nn.Module):
    """Stands where the network was, and says so when it is asked for anything."""

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        raise ConfigError(_ELSEWHERE)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else ConfigError(_ELSEWHERE)


class Line(NamedTuple):
    """A source to write for, in the names of its tokens."""

    source: list[str]
    prefix: list[int]
    limit: int  # most tokens, the end not counted


@dataclass
class CTranslate2Engine(TextGeneration):
    """Writes and scores with an exported model; `System(engine, folder)` is a system that does."""

    continuous = False

    model: Elsewhere  # type: ignore[assignment]  # nothing of a writer is left here
    folder: Path
    quantization: str  # how weights are stored
    threads: int
    exact: bool  # gives what Regard gives; otherwise the fastest
    _translators: dict[int, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        source, target = self.source.tokenizer, self.target.tokenizer
        assert source is not None, "exported models read text"
        assert target is not None, "exported models write text"
        self.read, self.write, self.end = names(source), names(target), target.marks.end
        self.number = {name: i for i, name in enumerate(self.write)}

    @property
    def compute_type(self) -> str:
        """What it computes in here, which may be wider than what it is stored in."""
        return str(self._translator(1).compute_type)

    # What a task has to be able to do

    def search(
        self, sources: Sequence[Item], settings: Search, *, prefixes: Sequence[Tokens] | None = None,
        phrases: Sequence[Sequence[Tokens]] | None = None, numbers: Sequence[int] | None = None,
        observer: TreeObserver | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        refuse(settings, phrases, exact=self.exact)
        if observer is not None:
            raise ConfigError(_ELSEWHERE)
        room, before = self.room(sources, settings), prefixes or [[] for _ in sources]
        Limits(torch.tensor(room), self.first[-1], self.end, prefix=before)  # says what is wrong with a prefix
        given = zip(sources, before, room, strict=True)
        lines = [Line([self.read[i] for i in item], list(prefix), limit) for item, prefix, limit in given]
        found = self._exact(lines, settings) if self.exact else self._fast(lines, settings)
        return [best(some, line.limit, settings) for some, line in zip(found, lines, strict=True)]

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        pairs = [([self.read[i] for i in x], y) for x, y in zip(sources, targets, strict=True)]
        return [PairScore(math.fsum(tokens), tokens) for tokens in self._score(pairs)]

    def groups(self, sources: Sequence[Item], budget: int, targets: Sequence[Tokens] | None = None) -> list[list[int]]:
        """All at once: batches are made further down."""
        return [list(range(len(sources)))] if len(sources) else []

    def _shared_out(self, items: Sequence[Item], search: Search, budget: int) -> list[list[int]]:
        return self.groups(items, budget)

    def align(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[list[tuple[int, int]]]:
        raise ConfigError(_ELSEWHERE)

    def _count_exposure(self, items: Sequence[Item], targets: Sequence[Tokens], counts: ExposureCounts) -> None:
        """Not known: it takes the network's guesses after true prefixes."""

    # Searching

    def _fast(self, lines: Sequence[Line], settings: Search) -> list[list[Written]]:
        """One search: what ended within the limit, or else all that was found, cut."""
        results = []
        for line, found in zip(lines, self._translate(lines, settings, strict=True), strict=True):
            ended = [h for h in found if h.end == self.end and len(h.tokens) <= line.limit]
            cut = {tuple(h.tokens[: line.limit]): h.log_prob for h in reversed(found)}
            results.append(ended or [Written(list(tokens), log_prob, None) for tokens, log_prob in cut.items()])
        return results

    def _rescored(self, lines: Sequence[Line], settings: Search) -> list[list[Written]]:
        """One search, scored as Regard does: greedily its output, and of a beam nearly always."""
        found = self._fast(lines, settings)
        for h in (h for some in found for h in some):
            h.end = self.end
        self._score_again([(line, h) for line, some in zip(lines, found, strict=True) for h in some])
        return found

    def _exact(self, lines: Sequence[Line], settings: Search) -> list[list[Written]]:
        """Search until each line has what Regard's search would have when it stops."""
        if settings.no_repeat:
            return self._rescored(lines, settings)
        results, left = [list[Written]() for _ in lines], list(range(len(lines)))
        for last in (False, True) if settings.beam > 1 else (False,):
            some = [lines[i] for i in left]
            found = self._translate(some, settings, patience=50 if last else 3, alone=last)
            if last:  # and once more, a token beyond the limits: the two show all that is open there
                beyond = self._translate(some, settings, patience=50, alone=True, further=1)
                for one, other in zip(found, beyond, strict=True):
                    known = {(*h.tokens, h.end) for h in one}
                    one += [h for h in other if (*h.tokens, h.end) not in known]
            verdicts = self._judged(some, found, settings, last=last)
            for i, verdict in zip(left, verdicts, strict=True):
                results[i] = verdict.closed
            left = [i for i, verdict in zip(left, verdicts, strict=True) if verdict.again]
        for i, again in zip(left, self._rescored([lines[i] for i in left], settings), strict=True):
            results[i] = again  # too few ended, as where marks are likely
        return results

    def _judged(
        self, lines: Sequence[Line], found: Sequence[list[Written]], settings: Search, *, last: bool = False
    ) -> list[Verdict]:
        """What Regard would have found of what a search has; what that hangs on is scored."""
        decide = partial(judge, search=settings, last=last, end=self.end)
        verdicts = [decide(some, line.limit) for line, some in zip(lines, found, strict=True)]
        while unclear := [(line, h) for line, verdict in zip(lines, verdicts, strict=True) for h in verdict.unclear]:
            self._score_again(unclear)
            verdicts = [
                decide(some, line.limit) if verdict.unclear else verdict
                for line, some, verdict in zip(lines, found, verdicts, strict=True)
            ]
        return verdicts

    def _translate(
        self, lines: Sequence[Line], settings: Search, *, strict: bool = False, patience: int = 1, alone: bool = False,
        further: int = 0,
    ) -> list[list[Written]]:  # fmt: skip
        """What CTranslate2 finds for each line, going on until `patience` times `beam` hypotheses have ended.

        `strict`: what may not come is left out; otherwise it ends a hypothesis. `alone`: a line is searched up to its
        own limit and not up to the longest of its batch, or so much `further`.
        """
        flat = settings.length_penalty == "none" or not settings.alpha
        quick = strict and flat and settings.nbest == 1  # stop when the best has ended, and give that alone
        patience = patience if settings.beam > 1 else 1
        power = 0.0 if quick else 1e-6 if flat else settings.alpha
        forbidden = self.target.marks.forbidden(unknown=settings.unknown)
        marks, translator = [self.write[i] for i in forbidden], self._translator(len(lines))
        ends = [self.write[self.end], *marks]
        rules = {"suppress_sequences": [[mark] for mark in marks]} if strict else {"end_token": ends}

        def translate(batch: list[int]) -> Any:
            most = max(lines[i].limit for i in batch) + further
            prefixes = [[self.write[token] for token in lines[i].prefix] for i in batch]
            return translator.translate_batch(
                [lines[i].source for i in batch], prefixes if any(prefixes) else None, beam_size=settings.beam,
                num_hypotheses=1 if quick else patience * settings.beam, patience=patience, length_penalty=power,
                no_repeat_ngram_size=settings.no_repeat, max_decoding_length=most, max_input_length=0,
                min_decoding_length=min(settings.min_length, most) if strict else 0, return_scores=True,
                return_end_token=True, asynchronous=True, **rules,
            )  # fmt: skip

        # A batch with prefixes treats what comes first in its own way, also in lines without one.
        keys = [(bool(line.prefix), line.limit if alone else 0) for line in lines]
        lengths, budget = [len(line.source) for line in lines], settings.batch_tokens // settings.beam
        results = self._batched(lengths, budget, translate, keys)
        held = iter(self._score([(line.source, line.prefix) for line in lines if line.prefix]))
        closing, found = {self.end, *forbidden}, [list[Written]() for _ in lines]
        for line, result, some in zip(lines, results, found, strict=True):
            before = math.fsum(next(held)[:-1]) if line.prefix else 0.0  # which is not counted there
            for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
                tokens = [self.number[name] for name in hypothesis]
                log_prob = score * len(tokens) ** power
                end = tokens.pop() if tokens[-1] in closing and len(tokens) > len(line.prefix) else None
                # What goes on after its end is there only because nothing else was.
                if log_prob > NEVER and closing.isdisjoint(tokens[len(line.prefix) :]):
                    some.append(Written(tokens, log_prob + before, end))
        return found

    def _score_again(self, pairs: Sequence[tuple[Line, Written]]) -> None:
        """Let hypotheses know their `log p` by token."""
        scored = self._score([(line.source, h.tokens) for line, h in pairs])
        for (_, h), by_token in zip(pairs, scored, strict=True):
            h.by_token = by_token
            h.log_prob = math.fsum(by_token if h.end == self.end else by_token[:-1])

    def _score(self, pairs: Sequence[tuple[list[str], Tokens]]) -> list[list[float]]:
        """`log p` of each token of each target, and of its end."""
        translator = self._translator(len(pairs))

        def score(batch: list[int]) -> Any:
            sources, targets = [pairs[i][0] for i in batch], [[self.write[t] for t in pairs[i][1]] for i in batch]
            return translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)

        lengths = [max(len(source), len(target)) for source, target in pairs]
        return [list(x.log_probs) for x in self._batched(lengths, self.config.training.batch_tokens, score)]

    # Batches and threads

    def _batched(
        self, lengths: Sequence[int], budget: int, ask: Callable[[list[int]], Any], keys: Sequence[Any] | None = None
    ) -> list[Any]:
        """What `ask` gives for each index, those of one key and like lengths asked together, within a budget of tokens.

        On a CPU, where large batches are no faster, those who work side by side get as many.
        """
        most = len(lengths)
        if self.device.type == "cpu" and most:
            side = self._side(most)
            most = -(-most // (side * -(-most // (side * LINES))))
        order = sorted(range(len(lengths)), key=lambda i: (keys[i] if keys else 0, -lengths[i]))
        waiting: dict[int, Any] = {}
        while order:
            count = min(most, max(1, budget // (lengths[order[0]] + 1)))
            batch = [i for i in order[:count] if keys is None or keys[i] == keys[order[0]]]
            order = order[len(batch) :]
            waiting |= zip(batch, ask(batch), strict=True)
        return [waiting[i].result() for i in range(len(lengths))]

    def _side(self, lines: int) -> int:
        """How many batches to work on side by side: a thread each for many lines; all threads share a few."""
        return self.threads if lines >= 4 * self.threads else 1

    def _translator(self, lines: int) -> Any:
        side = self._side(lines)
        if side not in self._translators:
            threads = torch.get_num_threads()
            try:
                self._translators[side] = ct2().Translator(
                    str(self.folder), device=self.device.type, inter_threads=side, intra_threads=self.threads // side,
                    max_queued_batches=-1,
                )  # fmt: skip
            except (RuntimeError, ValueError) as error:
                raise ModelError(f"CTranslate2 cannot load {self.folder}: {error}") from None
            finally:
                torch.set_num_threads(threads)  # it sets those of the whole process
        return self._translators[side]


def load_engine(
    folder: str | Path, device: str = "cpu", threads: int | None = None, *, exact: bool = False
) -> CTranslate2Engine:
    """Load an exported folder: the Regard model it was made from is not needed, and nothing in it is run.

    `threads`: as many as torch has, if not given. `exact`: write what Regard writes (see above), at about half the
    speed, rather than what CTranslate2 finds by itself.
    """
    folder = Path(folder)
    try:
        stored = json.loads((folder / EXPORT).read_text(encoding="utf-8"))["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(f"{folder} is no export: its {EXPORT} is not there or cannot be read") from None
    config = resolve_paths(parse(read_yaml(folder / CONFIG), str(folder / CONFIG)), folder)
    sides = Sides.of(config)
    sides.load(folder)
    if device == "auto":
        device = "cuda" if ct2().get_cuda_device_count() else "cpu"
    elif device not in ("cpu", "cuda"):
        raise ConfigError(f"the engine ctranslate2 has no device '{device}'; try auto, cpu or cuda")
    threads = 1 if device == "cuda" else threads or torch.get_num_threads()
    return CTranslate2Engine(sides, Elsewhere(), torch.device(device), folder, stored, threads, exact)
