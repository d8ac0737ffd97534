"""Decoding with CTranslate2: a task like any other, whose network runs elsewhere.

With `same` it gives what Regard gives, the tokens and, up to rounding, the numbers. Marks are not forbidden but end a
hypothesis, which is then left out, so that probabilities stay as they are; `ct2_search.py` tells when to stop; what was
cut off at its limit is scored once more, with its end. Two things remain: under `no_repeat` a beam goes by
probabilities that leave out what may not come, and an output ends right after its prefix only where that is likeliest.

Without it, one search under CTranslate2's own rules, the fastest. Beams stop earlier, so an output may be another than
Regard's, with a score at most as good. `log_prob` is among the tokens that may come and, where an output was cut off,
of what had been written when the search broke off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from regard.config import parse, read_yaml, resolve_paths
from regard.data.examples import Example
from regard.data.sources import Item, Text
from regard.data.tokens import EOS, MARKS, Subwords, Tokenizer
from regard.errors import ConfigError, ModelError
from regard.evaluation.exposure import Exposure
from regard.exchange.ct2_search import Line, Rules, Verdict, Written, best, judge, plain, refuse
from regard.ragged import Ragged
from regard.search.limits import Hypothesis, Limits
from regard.settings import Search
from regard.system import CONFIG, load_tokenizers
from regard.tasks.task import PairScore, Tokens
from regard.tasks.writing import Writing

EXPORT = "export.json"  # what an exported folder was made from
LINES = 32  # in a batch on a CPU, where more are no faster
NEVER = -1e9  # below it, `log p` of what CTranslate2 only fills its beam with


def ct2() -> ModuleType:
    """The package, if it is there."""
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError("CTranslate2 is not installed; try: pip install 'regard[export]'") from None
    return ctranslate2


def names(tokenizer: Tokenizer) -> list[str]:
    """A name for each token, by its id: SentencePiece's own, or as it is shown; each once."""
    if isinstance(tokenizer, Subwords):
        shown = [str(tokenizer.processor.id_to_piece(i)) for i in range(tokenizer.size)]
    else:
        shown = tokenizer.pieces(range(tokenizer.size))
    unique = dict.fromkeys(MARKS)
    for i, name in enumerate(shown[len(MARKS) :], len(MARKS)):
        while name in unique:
            name = f"{name}#{i}"
        unique[name] = None
    return list(unique)


_ELSEWHERE = "CTranslate2 writes and scores, and does not show what it attends to; load the Regard model for that"


class Elsewhere(nn.Module):
    """Stands where the network was, and says so when it is asked for anything."""

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        raise ConfigError(_ELSEWHERE)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else ConfigError(_ELSEWHERE)


@dataclass(frozen=True)
class Way:
    """How CTranslate2 is to search."""

    strict: bool  # what may not come is left out; otherwise it ends a hypothesis
    patience: int = 1  # go on until so many times `beam` hypotheses have ended
    alone: bool = False  # each line is searched up to its own limit, not up to the longest of its batch
    further: bool = False  # and once more a token beyond it: the two show all that is open there
    quick: bool = False  # stop when the best is found, and give that alone


# Nearly all searches of Regard stop before three times `beam` have ended; the others are made anew, with time enough.
WAYS = (
    Way(strict=False, patience=3),
    Way(strict=False, patience=50, alone=True, further=True),
    Way(strict=True, patience=50, alone=True),
)


@dataclass
class CTranslate2Engine(Writing):
    """Writes and scores with an exported model; `System(engine, folder)` is a system that does."""

    model: Elsewhere  # type: ignore[assignment]  # nothing of a writer is left here
    folder: Path
    threads: int
    same: bool  # gives what Regard gives; otherwise the fastest
    _translators: dict[int, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.source, Text), "exported models read text"
        self.read, self.write = names(self.source.tokenizer), names(self.target)
        self.number = {name: i for i, name in enumerate(self.write)}

    @property
    def compute_type(self) -> str:
        """What it computes in here, which may be wider than what it is stored in."""
        return str(self._translator(1).compute_type)

    # What a task has to be able to do

    def search(
        self, sources: Sequence[Item], settings: Search, *, prefixes: Sequence[Tokens] | None = None,
        phrases: Sequence[Sequence[Tokens]] | None = None, numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:  # fmt: skip
        refuse(settings, phrases)
        room = self.room(sources, settings)
        Limits(torch.tensor(room), self.first, EOS, prefix=prefixes)  # says what is wrong with a prefix
        before = prefixes or [[] for _ in sources]
        lines = [
            Line([self.read[i] for i in item], list(prefix), limit)
            for item, prefix, limit in zip(sources, before, room, strict=True)
        ]
        rules = Rules.of(settings, min(settings.max_length, self.longest - 1))
        found = self._same(lines, rules) if self.same else self._fast(lines, rules)
        return [best(some, line, rules) for some, line in zip(found, lines, strict=True)]

    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        pairs = [([self.read[i] for i in x], y) for x, y in zip(sources, targets, strict=True)]
        return [PairScore(math.fsum(tokens), tokens) for tokens in self._score(pairs)]

    @staticmethod
    def groups(sources: Sequence[Item], budget: int, targets: Sequence[Tokens] | None = None) -> list[list[int]]:
        """All at once: batches are made further down."""
        return [list(range(len(sources)))] if sources else []

    def align(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[list[tuple[int, int]]]:
        raise ConfigError(_ELSEWHERE)

    def exposure(self, examples: Sequence[Example]) -> Exposure | None:  # type: ignore[override]
        """Not known: it takes the network's guesses after true prefixes."""
        return None

    # Searching

    def _fast(self, lines: Sequence[Line], rules: Rules) -> list[list[Written]]:
        found = self._translate(lines, rules, Way(strict=True, quick=rules.quick))
        return [plain(some, line) for some, line in zip(found, lines, strict=True)]

    def _same(self, lines: Sequence[Line], rules: Rules) -> list[list[Written]]:
        """Search until each line has what Regard's search would have when it stops."""
        if rules.settings.no_repeat and rules.settings.beam > 1:
            return self._nearly_same(lines, rules)
        results: list[list[Written]] = [[] for _ in lines]
        left = list(range(len(lines)))
        for attempt, way in enumerate(WAYS):
            if attempt == 1 and rules.settings.beam == 1:
                continue  # it would find the same
            way = replace(way, quick=rules.quick and not attempt)
            verdicts = self._judged([lines[i] for i in left], rules, attempt, way)
            for i, verdict in zip(left, verdicts, strict=True):
                results[i] = verdict.kept
            left = [i for i, verdict in zip(left, verdicts, strict=True) if verdict.again]
            if not left:
                break
        return results

    def _nearly_same(self, lines: Sequence[Line], rules: Rules) -> list[list[Written]]:
        """One search, scored as Regard does: where it goes by other probabilities, when it stops matters little."""
        found = self._fast(lines, rules)
        for h in (h for some in found for h in some):
            h.end = EOS
        self._score_again([(line, h) for line, some in zip(lines, found, strict=True) for h in some])
        return found

    def _judged(self, lines: Sequence[Line], rules: Rules, attempt: int, way: Way) -> list[Verdict]:
        """One search for all lines, and what came of it."""
        found = self._translate(lines, rules, way)
        if way.further:
            for some, more in zip(found, self._translate(lines, rules, way, further=1), strict=True):
                known = {(*h.tokens, h.end) for h in some}
                some += [h for h in more if (*h.tokens, h.end) not in known]
        pairs = list(zip(lines, found, strict=True))
        if way.strict or rules.settings.no_repeat:
            self._score_again([(line, h) for line, some in pairs for h in some])
        verdicts = [judge(some, line, rules, attempt, quick=way.quick) for line, some in pairs]
        while unclear := [(line, h) for line, verdict in zip(lines, verdicts, strict=True) for h in verdict.unclear]:
            self._score_again(unclear)
            verdicts = [
                judge(some, line, rules, attempt, quick=way.quick) if verdict.unclear else verdict
                for (line, some), verdict in zip(pairs, verdicts, strict=True)
            ]
        return verdicts

    def _translate(self, lines: Sequence[Line], rules: Rules, way: Way, *, further: int = 0) -> list[list[Written]]:
        """What CTranslate2 finds for each line."""
        settings = rules.settings
        power = 0.0 if way.quick else 1e-6 if rules.flat else settings.alpha  # at 0 it stops when the best has ended
        patience = way.patience if settings.beam > 1 and not way.quick else 1
        marks = [self.write[i] for i in rules.forbidden]
        options: dict[str, Any] = {
            "beam_size": settings.beam, "num_hypotheses": 1 if way.quick else patience * settings.beam,
            "patience": patience, "length_penalty": power, "no_repeat_ngram_size": settings.no_repeat,
            "max_input_length": 0, "return_scores": True, "return_end_token": True, "asynchronous": True,
        }  # fmt: skip
        if way.strict:
            options["suppress_sequences"] = [[mark] for mark in marks]
        else:
            options["end_token"] = [MARKS[EOS], *marks]
        translator = self._translator(len(lines))
        # A batch with prefixes treats what comes first in its own way, also in lines without one.
        keys = [(bool(line.prefix), line.limit if way.alone else 0) for line in lines]
        waiting = []
        for batch in self._batches([len(line.source) for line in lines], settings.batch_tokens // settings.beam, keys):
            most = max(lines[i].limit for i in batch) + further
            prefixes = [[self.write[token] for token in lines[i].prefix] for i in batch]
            results = translator.translate_batch(
                [lines[i].source for i in batch], prefixes if any(prefixes) else None, max_decoding_length=most,
                min_decoding_length=min(settings.min_length, most) if way.strict else 0, **options,
            )  # fmt: skip
            waiting.append((batch, results))
        before = self._prefixes(lines)
        found: list[list[Written]] = [[] for _ in lines]
        for batch, results in waiting:
            for i, result in zip(batch, results, strict=True):
                found[i] = self._written(result.result(), lines[i], rules, power, before[i])
        return found

    def _written(self, result: Any, line: Line, rules: Rules, power: float, before: float) -> list[Written]:
        """What a result holds. What goes on after its end is there only because nothing else was."""
        found, ends = [], {EOS, *rules.forbidden}
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            tokens = [self.number[name] for name in hypothesis]
            log_prob = score * len(tokens) ** power
            end = tokens.pop() if tokens[-1] in ends and len(tokens) > len(line.prefix) else None
            if log_prob > NEVER and ends.isdisjoint(tokens[len(line.prefix) :]):
                found.append(Written(tokens, log_prob + before, end))
        return found

    def _prefixes(self, lines: Sequence[Line]) -> list[float]:
        """`log p` of each prefix, which CTranslate2 does not count."""
        held = [(line.source, line.prefix) for line in lines if line.prefix]
        scored = iter(self._score(held) if held else [])
        return [math.fsum(next(scored)[:-1]) if line.prefix else 0.0 for line in lines]

    def _score_again(self, pairs: Sequence[tuple[Line, Written]]) -> None:
        """Let hypotheses know their `log p` by token."""
        scored = self._score([(line.source, h.tokens) for line, h in pairs])
        for (_, h), by_token in zip(pairs, scored, strict=True):
            h.by_token = by_token
            h.log_prob = math.fsum(by_token if h.end == EOS else by_token[:-1])

    def _score(self, pairs: Sequence[tuple[list[str], Tokens]]) -> list[list[float]]:
        """`log p` of each token of each target, and of its end."""
        translator = self._translator(len(pairs))
        lengths = [max(len(source), len(target)) for source, target in pairs]
        waiting = []
        for batch in self._batches(lengths, self.config.training.batch_tokens):
            sources, targets = [pairs[i][0] for i in batch], [[self.write[t] for t in pairs[i][1]] for i in batch]
            results = translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)
            waiting += list(zip(batch, results, strict=True))
        found: list[list[float]] = [[] for _ in pairs]
        for i, result in waiting:
            found[i] = list(result.result().log_probs)
        return found

    # Batches and threads

    def _batches(self, lengths: Sequence[int], budget: int, keys: Sequence[Hashable] | None = None) -> list[list[int]]:
        """Indices of like lengths within a budget of tokens, those of one key together, the longest first.

        On a CPU, where large ones are no faster, those who work side by side get as many.
        """
        most = len(lengths)
        if self.device.type == "cpu":
            side = self._side(most)
            most = -(-most // (side * max(1, -(-most // (side * LINES)))))
        groups: dict[Hashable, list[int]] = {}
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            groups.setdefault(keys[i] if keys else None, []).append(i)
        batches = []
        for group in groups.values():
            while group:
                count = min(most, max(1, budget // (lengths[group[0]] + 1)))
                batches.append(group[:count])
                group = group[count:]
        return batches

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
    folder: str | Path, device: str = "cpu", threads: int | None = None, *, same: bool = False
) -> CTranslate2Engine:
    """Load an exported folder: the Regard model it was made from is not needed, and nothing in it is run.

    `threads`: as many as torch has, if not given. `same`: write what Regard writes (see above), at about half the
    speed, rather than what CTranslate2 finds by itself.
    """
    folder = Path(folder)
    try:
        json.loads((folder / EXPORT).read_text(encoding="utf-8"))["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(f"{folder} is no export: its {EXPORT} is not there or cannot be read") from None
    config = resolve_paths(parse(read_yaml(folder / CONFIG), str(folder / CONFIG)), folder)
    source, target = load_tokenizers(folder, config)
    if source is None:
        raise ModelError(f"{folder} has no tokenizer of the source; exported models read text")
    if device == "auto":
        device = "cuda" if ct2().get_cuda_device_count() else "cpu"
    elif device not in ("cpu", "cuda"):
        raise ConfigError(f"the engine ctranslate2 has no device '{device}'; try auto, cpu or cuda")
    threads = 1 if device == "cuda" else threads or torch.get_num_threads()
    return CTranslate2Engine(config, Text(source), target, Elsewhere(), torch.device(device), folder, threads, same)
