"""What a trained model writes when it is decoded in other ways: `precision` and `sampling`.

    python -m benchmarks precision runs/demo
    python -m benchmarks precision runs/demo --data test.en test.de --lines 500 --json precision.json
    python -m benchmarks sampling runs/demo --data runs/phrasebook-de/test.tsv --rounds 3

`precision`: Regard in float32, bfloat16 and int8, by itself and through CTranslate2, and CTranslate2 by itself.
`sampling`: beam and greedy search, sampling from all of the model's distribution and from a part of it, and minimum
Bayes risk over 16 and 64 samples; each round has its seed. Both take texts and give texts.
"""

from __future__ import annotations

import math
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import regard
from benchmarks.decode import contenders
from benchmarks.peers import DECODING
from benchmarks.peers.base import Job, Peer
from benchmarks.race import Case, Contender, Work
from regard.data.examples import Example, Files, read_files
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import Bleu, Chrf
from regard.search_settings import Search
from regard.system import System
from regard.tasks.generating import TextGeneration
from regard.tasks.language_model import LanguageModeling
from regard.tasks.results import Output

WORKLOAD = (
    "Texts go in and come out. 'tokens' is how many were written, as a share of the first system's: a speed with more "
    "or fewer is one of other work. '% exact match' is the share of outputs that equal its outputs token by token. "
    "'log p' is what the model in float32 says of an output less what it says of the first system's, and 'rounding' "
    "how far the log p that a search returns is from what the model in float32 says of that output, means over lines; "
    "through CTranslate2, unless exact, that log p is among allowed tokens alone. 'low' and 'high' are of rounds."
)
WARM = 32  # lines to warm up with
SEARCHES: dict[str, dict[str, Any]] = {
    "beam (5)": {"beam": 5},
    "greedy": {"beam": 1},
    "sampling": {"sample": True},
    "sampling, top-p 0.9": {"sample": True, "top_p": 0.9},
    "sampling, epsilon 0.02": {"sample": True, "epsilon": 0.02},
    "MBR (16), epsilon 0": {"mbr": 16, "epsilon": 0.0},
    "MBR (16), epsilon 0.02": {"mbr": 16, "epsilon": 0.02},
    "MBR (64), epsilon 0": {"mbr": 64, "epsilon": 0.0},
    "MBR (64), epsilon 0.02": {"mbr": 64, "epsilon": 0.02},
}


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of `precision` or `sampling`."""
    parser.add_argument("model", type=Path, help="folder of a trained model that writes")
    parser.add_argument("--data", nargs="+", metavar="PATH", help="pairs (the model's own test or validation data)")
    parser.add_argument("--lines", type=int, help="at most so many, at even distances")
    if command == "precision":
        parser.add_argument("--beam", type=int, help="instead of the model's own")


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """One case: the model's own data, or others."""
    system = regard.load(options.model, device=device.type)
    if not isinstance(system.task, TextGeneration) or isinstance(system.task, LanguageModeling):
        raise ConfigError(f"{options.model} writes nothing to a source, so there is nothing to compare")
    own = (system.config.data.split("test") or system.config.data.split("valid"))[0].files
    files = own if not options.data else options.data[0] if len(options.data) == 1 else options.data
    beam = {"beam": options.beam} if options.command == "precision" and options.beam else {}
    search = system.search_settings(nbest=1, **beam)
    examples, left = examples_of(system, files, search, options.lines)
    name = files if isinstance(files, str) else ", ".join(files)
    without = f" ({left} cannot be read and are left out)" if left else ""
    words = f"{len(examples)} lines of {name}{without}, beam {search.beam}, {system.parameters():,} parameters"
    written = Written(system.task, examples)
    with tempfile.TemporaryDirectory() as folder:
        if options.command == "precision":
            job = Job(system.task, search, written.items, Path(folder))
            peers = [DECODING[name] for name in ("ctranslate2", "engine", "engine-exact")]
            entered = contenders(job, peers, ("float32", "bfloat16", "int8"), written.decoded)
        else:
            entered = [
                Contender(
                    name, "beside" if i else "ours", partial(written.searched, system.search_settings(**settings))
                )
                for i, (name, settings) in enumerate(SEARCHES.items())
            ]
        case = Case("lines", "lines/s", entered, words)
        yield case
        case.notes.append("; ".join(sorted(written.signatures)))


def examples_of(system: System, files: Files, search: Search, most: int | None) -> tuple[list[Example], int]:
    """What can be decoded, at even distances if it is more than `most`; and how many lines cannot."""
    task, read = system.task, list(read_files(files, system.task.sides.form))
    items = task.source.encode_many([x.source for x in read])
    limit = min(search.max_source, task.longest - 1)
    found = [x for x, item in zip(read, items, strict=True) if not task.source.problem(item, limit)]
    if not found:
        raise DataError(f"none of the {len(read)} examples can be used")
    count = min(most or len(found), len(found))
    return [found[i * len(found) // count] for i in range(count)], len(read) - len(found)


class Written:
    """What contenders write, and how it compares with what the first of them wrote in its first round."""

    def __init__(self, task: TextGeneration, examples: Sequence[Example]) -> None:
        assert task.source.tokenizer is not None, "texts are written from texts"
        self.task, self.tokenizer, self.texts = task, task.source.tokenizer, [x.source for x in examples]
        self.items, self.references = self.tokenizer.encode_many(self.texts), [clean(x.target) for x in examples]
        self.signatures: set[str] = set()
        self.first: tuple[list[Output], list[float]] | None = None

    def decoded(self, peer: Peer, job: Job) -> Work:
        """What a peer writes."""
        decode, note = peer.decoding(job)

        def write(texts: Sequence[str], number: int) -> list[Output]:
            found = decode(self.tokenizer.encode_many(texts))
            return [Output(self.task.target.decode(x.tokens), x.score, x.log_prob, x.tokens) for x in found]

        return replace(self._work(write), note=note, inside=peer.inside)

    def searched(self, search: Search) -> Work:
        """What Regard writes, in each round with another seed."""

        def write(texts: Sequence[str], number: int) -> list[Output]:
            settings = search.model_copy(update={"seed": search.seed + number})
            return [best[0] for best in self.task.outputs(texts, settings, lambda *_: None)]

        return self._work(write)

    def _work(self, write: Callable[[Sequence[str], int], list[Output]]) -> Work:
        rounds: list[dict[str, float]] = []
        last: list[Output] = []

        def turn() -> float:
            last[:] = write(self.texts, len(rounds))
            return float(len(self.texts))

        def extra(rate: float) -> dict[str, float]:
            rounds.append(self._compared(list(last)))
            found = {key: fmean(x[key] for x in rounds) for key in rounds[0] if not math.isnan(rounds[0][key])}
            for key in ("BLEU", "chrF") if len({x["BLEU"] for x in rounds}) > 1 else ():
                found |= {f"{key} low": min(x[key] for x in rounds), f"{key} high": max(x[key] for x in rounds)}
            return found

        return Work(turn, lambda: write(self.texts[:WARM], 0), extra=extra, warm_again=False)

    def _compared(self, outputs: list[Output]) -> dict[str, float]:
        texts = [clean(x.text) for x in outputs]
        scores = {"BLEU": Bleu()(texts, self.references), "chrF": Chrf()(texts, self.references)}
        self.signatures |= {f"{score.name}: `{score.signature}`" for score in scores.values()}
        log_probs = [x.log_prob for x in self.task.score_items(self.items, [x.tokens for x in outputs])]
        self.first = self.first or (outputs, log_probs)
        mine, theirs = self.first
        return {
            **{name: score.value for name, score in scores.items()},
            "tokens": sum(len(x.tokens) for x in outputs) / max(1, sum(len(x.tokens) for x in mine)),
            "% exact match": 100 * fmean(x.tokens == y.tokens for x, y in zip(outputs, mine, strict=True)),
            "log p": fmean(x - y for x, y in zip(log_probs, theirs, strict=True)),
            "rounding": fmean(abs(x.log_prob - y) for x, y in zip(outputs, log_probs, strict=True)),
        }
