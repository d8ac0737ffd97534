"""CTranslate2, with weights that Regard has exported; on a CPU, and on a GPU where its libraries are found."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import regard
from benchmarks.peers.base import Decode, Job, Peer, need, quiet
from benchmarks.peers.ours import make_decode
from benchmarks.race import Role, UnavailableError
from benchmarks.workload import Tokens
from regard.exchange.ct2_engine import load_engine, names, refuse
from regard.exchange.ctranslate2 import export
from regard.search.limits import Hypothesis
from regard.system import System

ROWS = (32, 128, 512)  # in a batch at most
TRIES, TUNED = 3, 256  # of each choice, of which the quickest counts; sentences to choose with


@dataclass(frozen=True)
class CTranslate2(Peer):
    """CTranslate2's own translator."""

    title: str = "CTranslate2"
    every_precision: bool = True

    def decoding(self, job: Job) -> tuple[Decode, str]:
        translator = Translator(job)
        translator.tune(job.sample[:: max(1, len(job.sample) // TUNED)])
        return translator, f"{translator.note}; one limit of length for all, where it writes no EOS"


@dataclass(frozen=True)
class Engine(Peer):
    """Regard through CTranslate2, as `--engine ctranslate2` decodes."""

    title: str = "Regard via CTranslate2"
    role: Role = "beside"
    against: str = "CTranslate2"
    exact: bool = False  # writes what Regard writes

    def decoding(self, job: Job) -> tuple[Decode, str]:
        precision = job.search.precision
        if self.exact and precision != "float32":
            raise UnavailableError("what is rounded writes something else")
        engine = load_engine(exported(job), job.task.device.type, exact=self.exact)
        if not engine.compute_type.startswith(precision):
            raise UnavailableError(f"CTranslate2 computes in {engine.compute_type} here")
        return make_decode(engine, job), self.note


def exported(job: Job) -> Path:
    """The job's model as `regard export --to ctranslate2` writes it."""
    need("ctranslate2")
    refuse(job.search)
    model, precision = job.folder / "model", job.search.precision
    with quiet():
        if not model.exists():
            System(job.task, model).save(model)
        if not (job.folder / precision).exists():
            export(regard.load(model, device="cpu"), job.folder / precision, precision, lines=1)
    return job.folder / precision


class Translator:
    """A translator of an exported folder. It sorts sentences by length and makes batches; `tune` chooses how."""

    def __init__(self, job: Job) -> None:
        task, search = job.task, job.search
        source, target = task.source.tokenizer, task.target.tokenizer
        assert source is not None, "exported models read text"
        assert target is not None, "exported models write text"
        self.folder, self.precision, self.device = exported(job), search.precision, task.device.type
        self.options = {
            "beam_size": search.beam, "length_penalty": 0.0 if search.length_penalty == "none" else search.alpha,
            "no_repeat_ngram_size": search.no_repeat, "min_decoding_length": search.min_length,
            "max_decoding_length": max(task.room(job.sample, search)),
        }  # fmt: skip
        self.read, self.write = names(source), names(target)
        self.number = {name: i for i, name in enumerate(self.write)}
        self.threads = torch.get_num_threads()
        self._choose(1, ROWS[0])

    def _choose(self, parallel: int, rows: int) -> None:
        """So many batches at a time, which share the threads of a CPU, of so many rows at most."""
        self.parallel, self.rows = parallel, rows
        self.translator = need("ctranslate2").Translator(
            str(self.folder), device=self.device, compute_type=self.precision, inter_threads=parallel,
            intra_threads=self.threads // parallel if self.device == "cpu" else 0,
        )  # fmt: skip
        torch.set_num_threads(self.threads)  # it has set the number for the whole process

    def tune(self, sources: Tokens) -> None:
        """Keep the choice that is quickest on these."""
        most = min(self.threads, len(sources))
        counts = [n for n in range(1, most + 1) if self.threads % n == 0] if self.device == "cpu" else [1, 2, 4]
        smaller = dict(zip(ROWS[1:], ROWS, strict=False))  # more rows are tried where fewer do not hold all
        choices = [(n, rows) for n in counts for rows in ROWS if n * smaller.get(rows, 0) < len(sources)]
        seconds = dict.fromkeys(choices, float("inf"))
        for choice in [*choices] * TRIES:  # in turns, so that what slows the machine for a while misleads less
            self._choose(*choice)
            self(sources)
            began = time.perf_counter()
            self(sources)
            seconds[choice] = min(seconds[choice], time.perf_counter() - began)
        self._choose(*min(choices, key=lambda choice: seconds[choice]))

    @property
    def note(self) -> str:
        """What was chosen."""
        return f"batches of at most {self.rows}, {self.parallel} at a time: the quickest it tried"

    def __call__(self, sources: Tokens) -> list[Hypothesis]:
        named, share = [[self.read[i] for i in x] for x in sources], -(-len(sources) // self.parallel)
        found = self.translator.translate_batch(named, max_batch_size=min(self.rows, share), **self.options)
        return [Hypothesis([self.number[name] for name in x.hypotheses[0]], math.nan, math.nan) for x in found]
