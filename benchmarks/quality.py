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
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import regard
from benchmarks.peers.ctranslate import Engine, Translator, export_once
from benchmarks.race import Case, Contender, Role, Work
from regard.data.examples import Example, Files, read_files
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import Bleu, Chrf
from regard.exchange.ct2_search import refuse
from regard.settings import Search
from regard.system import System
from regard.tasks.generating import TextGeneration
from regard.tasks.language_model import LanguageModeling
from regard.tasks.task import Output, Task

WORKLOAD = (
    "Texts go in and come out. 'tokens' is how many were written, as a share of the first system's: a speed with more "
    "or fewer is one of other work. '% exact match' is the share of outputs that equal its outputs token by token. "
    "'log p' is what the model in float32 says of an output less what it says of the first system's, and 'rounding' "
    "how far the log p that a search returns is from what the model in float32 says of that output, means over lines; "
    "through CTranslate2, unless exact, that log p is among allowed tokens alone. 'low' and 'high' are of rounds."
)
# Where outputs do not end by themselves, it has more to write than the others.
LIMIT = "its limit for each line is that of the longest, where Regard's is the line's own"
WARM, TUNED = 32, 256  # lines to warm up with, and to choose CTranslate2's threads with
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
Write = Callable[[Sequence[str], int], list[Output]]  # from texts and the number of the round


def add_options(parser: ArgumentParser, command: str) -> None:
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
    own = system.config.data.test or system.config.data.valid
    files = own if not options.data else options.data[0] if len(options.data) == 1 else options.data
    beam = {"beam": options.beam} if options.command == "precision" and options.beam else {}
    search = system.search_settings(nbest=1, **beam)
    examples, left = examples_of(system, files, search, options.lines)
    name = files if isinstance(files, str) else ", ".join(files)
    without = f" ({left} cannot be read and are left out)" if left else ""
    words = f"{len(examples)} lines of {name}{without}, beam {search.beam}, {system.parameters():,} parameters"
    with tempfile.TemporaryDirectory() as folder:
        written = Written(system.task, examples)
        if options.command == "precision":
            contenders = precisions(system, search, Path(folder), written)
        else:
            contenders = [
                written.contender(name, "beside" if i else "ours", partial(_by_search, system, settings))
                for i, (name, settings) in enumerate(SEARCHES.items())
            ]
        case = Case("lines", "lines/s", contenders, words)
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
    """What contenders write, and how it compares with what the first of them wrote in the same round."""

    def __init__(self, task: Task, examples: Sequence[Example]) -> None:
        self.task, self.texts = task, [x.source for x in examples]
        self.items, self.references = task.source.encode_many(self.texts), [clean(x.target) for x in examples]
        self.signatures: set[str] = set()
        self.first: tuple[list[Output], list[float]] | None = None

    def contender(self, name: str, role: Role, make: Callable[[], tuple[Write, str]], against: str = "") -> Contender:
        def ready() -> Work:
            write, note = make()
            rounds: list[dict[str, float]] = []
            last: list[Output] = []

            def turn() -> float:
                last[:] = write(self.texts, len(rounds))
                return float(len(self.texts))

            def extra(rate: float) -> dict[str, float]:
                rounds.append(self._compared(list(last), first=role == "ours"))
                found = {key: fmean(x[key] for x in rounds) for key in rounds[0] if not math.isnan(rounds[0][key])}
                for key in ("BLEU", "chrF") if len({x["BLEU"] for x in rounds}) > 1 else ():
                    found |= {f"{key} low": min(x[key] for x in rounds), f"{key} high": max(x[key] for x in rounds)}
                return found

            return Work(turn, lambda: write(self.texts[:WARM], 0), note, extra, warm_again=False)

        return Contender(name, role, ready, against)

    def _compared(self, outputs: list[Output], *, first: bool) -> dict[str, float]:
        texts = [clean(x.text) for x in outputs]
        scores = {"BLEU": Bleu()(texts, self.references), "chrF": Chrf()(texts, self.references)}
        self.signatures |= {f"{score.name}: `{score.signature}`" for score in scores.values()}
        log_probs = [x.log_prob for x in self.task.score_items(self.items, [x.tokens for x in outputs])]
        if first or self.first is None:
            self.first = outputs, log_probs
        mine, theirs = self.first
        return {
            **{name: score.value for name, score in scores.items()},
            "tokens": sum(len(x.tokens) for x in outputs) / max(1, sum(len(x.tokens) for x in mine)),
            "% exact match": 100 * fmean(x.tokens == y.tokens for x, y in zip(outputs, mine, strict=True)),
            "log p": fmean(x - y for x, y in zip(log_probs, theirs, strict=True)),
            "rounding": fmean(abs(x.log_prob - y) for x, y in zip(outputs, log_probs, strict=True)),
        }


def _by_search(system: System, settings: dict[str, Any]) -> tuple[Write, str]:
    return lambda texts, number: _outputs(system.task, texts, system.search_settings(**settings, seed=number + 1)), ""


def _outputs(task: Task, texts: Sequence[str], search: Search) -> list[Output]:
    return [best[0] for best in task.outputs(texts, search, lambda *_: None)]


def precisions(system: System, search: Search, folder: Path, written: Written) -> list[Contender]:
    """Regard and CTranslate2 in each precision."""
    task = system.task

    def by_regard(one: Task, precision: str) -> tuple[Write, str]:
        settings = search.model_copy(update={"precision": precision})
        return lambda texts, _: _outputs(one, texts, settings), ""

    def exported(precision: str) -> Path:
        refuse(search)
        return export_once(system.folder, folder / precision, precision)

    def through(engine: Engine, precision: str) -> tuple[Write, str]:
        return by_regard(engine.open(exported(precision), task.device, precision), "float32")

    def alone(precision: str) -> tuple[Write, str]:
        tokenizer = task.source.tokenizer
        assert isinstance(task, TextGeneration)
        assert tokenizer is not None, "what is exported reads text"
        translator = Translator(
            exported(precision), precision, task, beam_size=search.beam, no_repeat_ngram_size=search.no_repeat,
            length_penalty=0.0 if search.length_penalty == "none" else search.alpha,
            min_decoding_length=search.min_length, max_decoding_length=max(task.room(written.items, search)),
        )  # fmt: skip
        translator.tune(tokenizer.encode_many(written.texts[:: max(1, len(written.texts) // TUNED)]))

        def write(texts: Sequence[str], _: int) -> list[Output]:
            tokens = translator(tokenizer.encode_many(texts))
            return [Output(task.target.decode(x), math.nan, math.nan, x) for x in tokens]

        return write, f"{translator.note}; {LIMIT}"

    found = [written.contender("Regard float32", "ours", partial(by_regard, task, "float32"))]
    found += [written.contender(f"Regard {x}", "beside", partial(by_regard, task, x)) for x in ("bfloat16", "int8")]
    exact, fastest = Engine("Regard via CTranslate2, exact", exact=True), Engine()
    for role, precision, engines in (("peer", "float32", (exact, fastest)), ("beside", "int8", (fastest,))):
        name = f"CTranslate2 {precision}"
        found.append(written.contender(name, role, partial(alone, precision)))  # type: ignore[arg-type]
        for engine in engines:
            make = partial(through, engine, precision)
            found.append(written.contender(f"{engine.title} {precision}", "beside", make, name))
    return found
