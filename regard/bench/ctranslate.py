"""CTranslate2 by itself, with weights that Regard has exported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.bench.peers import need
from regard.exchange.ct2_engine import names
from regard.tasks.writing import Writing

ROWS = (32, 128)  # in a batch at most
TRIES = 3  # of each choice, of which the quickest counts


class Translator:
    """CTranslate2's own translator on a CPU, of an exported folder; tokens go in and come out as numbers.

    It sorts what it is given by length, and makes batches of it. `tune` chooses threads and batches.
    """

    def __init__(self, folder: Path, precision: str, task: Writing, **options: Any) -> None:
        assert task.source.tokenizer is not None, "exported models read text"
        self.ctranslate2 = need("ctranslate2")
        self.folder, self.precision, self.options = folder, precision, options
        self.read, self.write = names(task.source.tokenizer), names(task.target)
        self.number = {name: i for i, name in enumerate(self.write)}
        self.all = torch.get_num_threads()
        self.threads = (1, self.all)  # batches at a time, and threads for each
        self.rows = ROWS[0]
        self.translator = self._translator()

    def _translator(self) -> Any:
        inter, intra = self.threads
        made = self.ctranslate2.Translator(
            str(self.folder), device="cpu", compute_type=self.precision, inter_threads=inter, intra_threads=intra
        )
        torch.set_num_threads(self.all)  # which it has set to its own number, for the whole process
        return made

    def tune(self, sources: Sequence[Sequence[int]]) -> None:
        """Keep the split of threads and the size of batches that are quickest on these."""
        counts = [n for n in range(1, min(self.all, len(sources)) + 1) if self.all % n == 0]
        sizes = {n: ROWS if n * ROWS[0] < len(sources) else ROWS[:1] for n in counts}
        choices = [((n, self.all // n), rows) for n in counts for rows in sizes[n]]
        seconds = dict.fromkeys(choices, float("inf"))
        for choice in [*choices] * TRIES:  # in turns, so that what slows the machine for a while misleads less
            self._choose(*choice)
            self(sources)
            seconds[choice] = min(seconds[choice], self._time(sources))
        self._choose(*min(choices, key=lambda choice: seconds[choice]))

    def _choose(self, threads: tuple[int, int], rows: int) -> None:
        self.threads, self.rows = threads, rows
        self.translator = self._translator()

    def _time(self, sources: Sequence[Sequence[int]]) -> float:
        began = time.perf_counter()
        self(sources)
        return time.perf_counter() - began

    @property
    def note(self) -> str:
        inter, intra = self.threads
        return f"batches of at most {self.rows}, {inter} at a time with {intra} threads each: the quickest it tried"

    def __call__(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        share = -(-len(sources) // self.threads[0])
        found = self.translator.translate_batch(
            [[self.read[i] for i in x] for x in sources], max_batch_size=min(self.rows, share),
            **self.options,
        )  # fmt: skip
        return [[self.number[name] for name in x.hypotheses[0]] for x in found]
