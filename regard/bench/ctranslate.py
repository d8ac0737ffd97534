"""CTranslate2 by itself, with weights that Regard has exported."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.bench.peers import need, quiet
from regard.system import System
from regard.tasks.writing import Writing


def write_model(task: Writing, folder: Path) -> None:
    """Write a model as CTranslate2 reads it, in float32."""
    need("ctranslate2")
    from regard.exchange.ctranslate2 import specify

    folder.mkdir()
    with quiet():
        specify(System(task, folder)).save(str(folder))


class Translator:
    """CTranslate2's translator on a CPU, with the split of threads that was quickest on the first batch.

    It ends an output at the length without a closing mark, so it takes one step less than the others.
    """

    def __init__(self, task: Writing, precision: str, *, beam: int, length: int) -> None:
        self.ctranslate2 = need("ctranslate2")
        self.precision, self.beam, self.length = precision, beam, length
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "model"
        write_model(task, self.path)
        self.all = torch.get_num_threads()
        self.threads = (1, self.all)  # at a time, and for each
        self.translator = self._translator()

    def _translator(self) -> Any:
        inter, intra = self.threads
        made = self.ctranslate2.Translator(
            str(self.path), device="cpu", compute_type=self.precision, inter_threads=inter, intra_threads=intra
        )
        torch.set_num_threads(self.all)  # which it has set to its own number, for the whole process
        return made

    def tune(self, sources: Sequence[Sequence[int]]) -> None:
        """Keep the split of threads that is quickest on these."""
        most = min(self.all, len(sources))
        splits = [(n, self.all // n) for n in (1, 2, 4) if n <= most and self.all % n == 0]
        seconds = {}
        for self.threads in splits:
            self.translator = self._translator()
            self(sources)
            began = time.perf_counter()
            self(sources)
            seconds[self.threads] = time.perf_counter() - began
        self.threads = min(seconds, key=lambda split: seconds[split])
        self.translator = self._translator()

    @property
    def note(self) -> str:
        inter, intra = self.threads
        return f"{inter} at a time with {intra} threads each; no step for the closing mark"

    def __call__(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        share = -(-len(sources) // self.threads[0])
        found = self.translator.translate_batch(
            [[f"w{i}" for i in x] for x in sources], beam_size=self.beam, max_batch_size=share,
            min_decoding_length=self.length, max_decoding_length=self.length,
        )  # fmt: skip
        return [[int(word[1:]) for word in x.hypotheses[0]] for x in found]
