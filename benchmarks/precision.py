"""What fewer bits do to a trained model: how fast it writes with them, how well, and how often the same.

    python benchmarks/precision.py runs/demo
    python benchmarks/precision.py runs/demo --data test.en test.de --lines 500 --rounds 5 > precision.md

Regard decodes in float32, bfloat16 and int8, by itself and through CTranslate2, and CTranslate2 decodes by itself: the
same lines, texts in and texts out, in one process and in turns. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch

import regard
from regard.bench.ctranslate import Translator
from regard.bench.measure import Case, Entry, NotThereError, Race, Work
from regard.bench.peers import need, quiet
from regard.bench.report import hardware, headlines, remarks, versions
from regard.data.corpora import Example, Files, read_files
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError, RegardError
from regard.evaluation.metrics import bleu_score, chrf_score
from regard.exchange.ct2_engine import load_engine, refuse
from regard.exchange.ctranslate2 import export
from regard.settings import Search
from regard.system import System
from regard.tasks.task import Output, Task
from regard.tasks.writing import LanguageModel, Writing

OURS = "Regard float32"
# It takes one limit for all; where outputs do not end by themselves, it has more to write than the others.
LIMIT = "its limit for each line is that of the longest, where Regard's is the line's own"
WARM, TUNED = 32, 256  # lines to warm up with, and to choose CTranslate2's threads with
Write = Callable[[Sequence[str]], list[Output]]


def examples_of(system: System, files: Files, search: Search, most: int | None) -> tuple[list[Example], int]:
    """What can be decoded, at even distances if it is more than `most`; and how many lines cannot."""
    task, read = system.task, list(read_files(files, system.config.data))
    items = task.source.encode_many([x.source for x in read])
    limit = min(search.max_source, task.longest - 1)
    found = [x for x, item in zip(read, items, strict=True) if not task.source.problem(item, limit)]
    if not found:
        raise DataError(f"none of the {len(read)} examples can be used")
    count = min(most or len(found), len(found))
    return [found[i * len(found) // count] for i in range(count)], len(read) - len(found)


def entries(
    system: System, search: Search, texts: Sequence[str], folder: Path, written: dict[str, list[Output]]
) -> list[Entry]:
    """All contestants; what each writes is put in `written`."""
    task = system.task

    @cache
    def exported(precision: str) -> Path:
        need("ctranslate2")
        if task.device.type != "cpu":
            raise NotThereError("CTranslate2 is measured on a CPU; give --device cpu")
        refuse(search)
        with quiet():
            export(system, folder / precision, precision)
        return folder / precision

    def work(name: str, write: Write, note: str = "") -> Work:
        def turn() -> float:
            written[name] = write(texts)
            return float(len(texts))

        return Work(turn, lambda: write(texts[:WARM]), note)

    def by_regard(one: Task, precision: str = "float32") -> Write:
        settings = search.model_copy(update={"precision": precision})
        return lambda some: [best[0] for best in one.outputs(some, settings, lambda *_: None)]

    def itself(precision: str) -> Work:
        return work(f"Regard {precision}", by_regard(task, precision))

    def through(name: str, precision: str, same: bool) -> Work:
        return work(name, by_regard(load_engine(exported(precision), exact=same)))

    def alone(precision: str) -> Work:
        tokenizer = task.source.tokenizer
        assert isinstance(task, Writing)
        assert tokenizer is not None, "what is exported reads text"
        most = max(task.source.room(item, search.max_ratio) for item in tokenizer.encode_many(texts))
        translator = Translator(
            exported(precision), precision, task, beam_size=search.beam, no_repeat_ngram_size=search.no_repeat,
            length_penalty=0.0 if search.length_penalty == "none" else search.alpha,
            min_decoding_length=search.min_length, max_decoding_length=min(search.max_length, task.longest - 1, most),
        )  # fmt: skip

        def write(some: Sequence[str]) -> list[Output]:
            tokens = translator(tokenizer.encode_many(some))
            return [Output(task.target.decode(x), math.nan, math.nan, x) for x in tokens]

        translator.tune(tokenizer.encode_many(texts[:: max(1, len(texts) // TUNED)]))
        return work(f"CTranslate2 {precision}", write, f"{translator.note}; {LIMIT}")

    found = [Entry(OURS, "ours", partial(itself, "float32"))]
    found += [Entry(f"Regard {x}", "beside", partial(itself, x)) for x in ("bfloat16", "int8")]
    for precision in ("float32", "int8"):
        found.append(Entry(f"CTranslate2 {precision}", "beside", partial(alone, precision)))
        for same in (True, False) if precision == "float32" else (False,):
            name = f"Regard through CTranslate2 {precision}, {'same' if same else 'fastest'}"
            make = partial(through, name, precision, same)
            found.append(Entry(name, "beside", make, f"CTranslate2 {precision}"))
    return found


def table(task: Task, case: Case, examples: Sequence[Example], written: dict[str, list[Output]]) -> tuple[str, str]:
    """The result as Markdown, and the signatures of its scores."""
    header = ["decoded by", "times as fast", "least–most", "tokens", "BLEU", "chrF", "same, %", "log p", "rounding"]
    rows, items = (
        [header, ["---"] + ["---:"] * (len(header) - 1)],
        task.source.encode_many([x.source for x in examples]),
    )
    references, signatures, own = [clean(x.target) for x in examples], "", list[float]()
    assert case.ours is not None, "Regard itself may not break"
    for result in (x for x in case.results if x.values):
        outputs = written[result.name]
        count = sum(len(x.tokens) for x in outputs) / max(1, sum(len(x.tokens) for x in written[OURS]))
        ratio = case.ratio(case.ours, result)
        assert ratio is not None
        texts = [clean(x.text) for x in outputs]
        bleu, chrf = bleu_score(texts, references), chrf_score(texts, references)
        signatures = f"BLEU `{bleu.signature}`, chrF `{chrf.signature}`"
        scored = [x.log_prob for x in task.score_items(items, [x.tokens for x in outputs])]
        own = own or scored  # Regard's in float32 come first
        same = [x.tokens == y.tokens for x, y in zip(outputs, written[OURS], strict=True)]
        worse = statistics.fmean(x - y for x, y in zip(scored, own, strict=True))
        off = statistics.fmean(abs(x.log_prob - y) for x, y in zip(outputs, scored, strict=True))
        rows.append(
            [result.name, f"{ratio.median:.2f}", f"{ratio.low:.2f}–{ratio.high:.2f}", f"{count:.3f}",
             f"{bleu.value:.2f}", f"{chrf.value:.2f}", f"{100 * statistics.fmean(same):.1f}", f"{worse:+.4f}",
             "–" if math.isnan(off) else f"{off:.1e}"]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows), signatures


def page(system: System, case: Case, shown: tuple[str, str], command: str) -> str:
    """All of it as Markdown."""
    names = ", ".join(f"{name} {number}" for name, number in versions().items())
    held = "".join(f"- {line}\n" for line in headlines(case))
    said = "".join(f"- {line}\n" for line in remarks([case]))
    return f"""# Precision of {system.folder.name}

{case.words}

{shown[0]}

{held}
*Times as fast* is as {OURS}, the median of {len(case.results[0].values)} rounds. *Tokens* is how many it wrote, as a
share of those of {OURS}: a speed with more or fewer is one of other work. *Same* is the share of outputs that equal its
outputs token by token. *log p* is what the float32 model says of an output less what it says of its own, a
mean over lines. *Rounding* is how far the log p that a search gives is from what the float32 model says of the same
output, a mean over lines; through CTranslate2 by the fastest way that log p is among the tokens that may come alone.

Signatures: {shown[1]}.

{said}- measured on {hardware(system.task.device)}, with {names}

```
{command}
```"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a trained model")
    parser.add_argument("--data", nargs="+", metavar="FILE", help="pairs (the run's test or valid data)")
    parser.add_argument("--lines", type=int, help="at most so many, at even distances")
    parser.add_argument("--beam", type=int, help="instead of the model's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    parser.add_argument("--device", default="cpu")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    system = regard.load(options.run, device=options.device)
    if not isinstance(system.task, Writing) or isinstance(system.task, LanguageModel):
        raise ConfigError(f"{options.run} writes nothing to a source, so there is nothing to compare")
    own = system.config.data.test or system.config.data.valid
    files = own if not options.data else options.data[0] if len(options.data) == 1 else options.data
    search = system.search(nbest=1, **({"beam": options.beam} if options.beam else {}))
    examples, left = examples_of(system, files, search, options.lines)
    without = f" ({left} cannot be read and are left out)" if left else ""
    name = files if isinstance(files, str) else ", ".join(files)
    words = f"{len(examples)} lines of {name}{without}, beam {search.beam}, {system.parameters():,} parameters."
    case, written = Case("decoding", "lines/s", words), dict[str, list[Output]]()
    race = Race(system.task.device, options.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory() as folder:
        race.run(case, entries(system, search, [x.source for x in examples], Path(folder), written))
    shown = table(system.task, case, examples, written)
    print(page(system, case, shown, shlex.join(["python", "benchmarks/precision.py", *given])))


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(f"regard: {error}")
