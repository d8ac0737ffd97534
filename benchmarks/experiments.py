"""Experiments that train: `exposure`, `transfer`, `loss-curve`. What is done already in the folder is not done again.

    python -m benchmarks exposure --folder runs/exposure
    python -m benchmarks transfer --folder runs/transfer
    python -m benchmarks loss-curve --folder runs/loss-curve --plot docs/loss-curve.svg

`exposure`: how much is lost when a model writes after its own prefixes? An attentive LSTM learns the phrasebook by
likelihood and by scheduled sampling; from the first, training goes on by likelihood and by minimum risk, with as many
further updates. Each is scored on the same fresh sentences. docs/exposure.md explains the table.

`transfer`: what is a pretrained body worth? A BERT (a masked language model) and a GPT (a language model) learn from
plain sentences; then each gets a head that tags every word, and learns from few tagged sentences: from scratch, with
the pretrained body frozen, or fine-tuned, a GPT also with its language model's loss beside.

`loss-curve`: does training with kernels and CUDA graphs (`fast`, as `regard train` does on a GPU) learn what torch's
own operators learn (`plain`)? A seed has the same first weights and batches in every way; what dropout drops differs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.report import mean, measured_on, table
from regard.config import dump, merge
from regard.data.examples import read_files
from regard.data.synthetic import phrasebook
from regard.errors import ConfigError
from regard.loading import choose_device
from regard.tasks.generating import TextGeneration

Settings = dict[str, Any]
WORDS = (5, 16)  # of a sentence
FRESH = 2000  # sentences that exposure bias is measured on
EVERY = 50  # updates that a mean loss is over

EXPOSURE: Settings = {
    "tokens": {"kind": "unigram", "size": 3500},
    "model": {"d_model": 256, "dropout": 0.0, "share_embeddings": True,
              "decoder": {"context": "attention", "score": "bilinear", "place": "output"}},
    "training": {"steps": 1500, "batch_tokens": 1024, "learning_rate": 3e-3, "warmup": 100, "schedule": "cosine",
                 "validate_every": 500, "validate_sentences": 200, "save_every": 500, "tensorboard": False},
}  # fmt: skip
FURTHER = {"steps": 400, "learning_rate": 5e-4, "warmup": 20, "validate_every": 200}
RISK = {"kind": "minimum_risk", "samples": 8, "sharpness": 0.05, "likelihood": 0.1}
OBJECTIVES: dict[str, Settings] = {
    "likelihood": {},
    "scheduled sampling": {"objective": {"kind": "scheduled_sampling", "own_tokens": 0.25}},
    "likelihood, further": FURTHER,
    "minimum risk, further": {**FURTHER, "objective": RISK},
}

BODIES = {"BERT": ("bert-mini", "encoder"), "GPT": ("gpt-mini", "decoder")}
BODY = {"steps": 1500, "batch_tokens": 2048, "learning_rate": 2e-3, "validate_every": 500, "tensorboard": False}
HEAD = {
    "steps": 200, "batch_tokens": 512, "learning_rate": 1e-3, "warmup": 20, "validate_every": 200, "save_every": 200,
    "log_every": 50, "label_smoothing": 0.0, "schedule": "cosine", "tensorboard": False,
}  # fmt: skip

BLOCKS = {"kind": "transformer", "layers": 3, "heads": 4, "d_ff": 1024, "norm": "post"}
CURVE: Settings = {
    "tokens": {"kind": "unigram", "size": 3500},
    "model": {"d_model": 256, "dropout": 0.1, "share_embeddings": True, "encoder": BLOCKS, "decoder": BLOCKS},
    "training": {"steps": 1000, "batch_tokens": 4096, "learning_rate": 1e-3, "warmup": 200, "schedule": "inverse_sqrt",
                 "label_smoothing": 0.1, "validate_every": 1000, "validate_sentences": 200, "save_every": 1000,
                 "log_every": EVERY, "tensorboard": False},
}  # fmt: skip
WAYS = {
    "plain, float32": {"compile": False, "precision": "float32"},
    "plain, bfloat16": {"compile": False, "precision": "bfloat16"},
    "fast, bfloat16": {"compile": True, "precision": "bfloat16"},
}
# A plain run is a process in which Triton, and with it every kernel of Regard's, cannot be imported.
TRAIN = "import sys; sys.modules.update(dict.fromkeys(sys.argv[2:])); import regard; regard.train(sys.argv[1])"


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of an experiment."""
    parser.add_argument("--folder", type=Path, default=Path("runs") / command, help="for corpora and runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5] if command == "exposure" else [1, 2, 3])
    if command == "transfer":
        parser.add_argument("--sizes", type=int, nargs="+", default=[20, 100, 500], help="tagged sentences")
    if command == "loss-curve":
        parser.add_argument("--steps", type=int, default=CURVE["training"]["steps"])
        parser.add_argument("--plot", type=Path, help="draw the curves there")


def run(options: Namespace) -> None:
    """Train and score what is missing; print a table."""
    folder = options.folder.absolute()
    if options.command == "exposure":
        exposure(folder, options.seeds)
    elif options.command == "transfer":
        transfer(folder, options.seeds, options.sizes)
    elif torch.cuda.is_available():
        loss_curve(folder, options.seeds, options.steps, options.plot)
    else:
        raise ConfigError("there is no GPU here, and without one all three ways are one")
    print(f"\n{measured_on(choose_device('auto'))}\n\n```\n{options.line}\n```")


def once(path: Path, make: Callable[[], Any]) -> Any:
    """What `make` returns, kept as JSON: with the file there it is read and not made again."""
    if not path.exists():
        found = json.dumps(make())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    return json.loads(path.read_text())


def pairs(folder: Path, **options: Any) -> dict[str, str]:
    """The phrasebook in a folder, written if it is not there."""
    if not (folder / "train.tsv").exists():
        phrasebook.write(folder, **options)
    return {split: str(folder / f"{split}.tsv") for split in phrasebook.SPLITS}


# Exposure bias


def exposure(folder: Path, seeds: list[int]) -> None:
    """Scores after true prefixes and after the model's own, by objective."""
    found = {name: [_exposure(folder, name, seed) for seed in seeds] for name in OBJECTIVES}
    places = [(x["first"], x["last"]) for x in found["likelihood"][0]["positions"] if x["tokens"] > FRESH / 10]
    rows = [["trained by", "BLEU", "true prefixes", "free running", "gap", *(f"gap at {a}–{b}" for a, b in places)]]
    for name, runs in found.items():
        cells = [[run[key] for run in runs] for key in ("bleu", "teacher_forced", "free_running", "gap")]
        for start, _ in places:
            place = [next(x for x in run["positions"] if x["first"] == start) for run in runs]
            cells.append([x["teacher_forced"] - x["free_running"] for x in place])
        rows.append([name, *(mean(values, 2) for values in cells)])
    print(f"{table(rows)}\n")
    for name, other in (("scheduled sampling", "likelihood"), ("minimum risk, further", "likelihood, further")):
        # Pair by pair: a pair shares its data and first weights.
        gaps = [a["gap"] - b["gap"] for a, b in zip(found[name], found[other], strict=True)]
        bleu = [a["bleu"] - b["bleu"] for a, b in zip(found[name], found[other], strict=True)]
        smaller = f"smaller in {sum(gap < 0 for gap in gaps)} of {len(gaps)} seeds"
        print(f"- `{name}` against `{other}`, seed by seed: the gap changes by {mean(gaps, 2)} ({smaller}), BLEU by "
              f"{mean(bleu, 2)}.")  # fmt: skip


def _exposure(folder: Path, objective: str, seed: int) -> dict[str, Any]:
    run, fresh = folder / f"{objective.replace(', ', '-').replace(' ', '-')}-{seed}", folder / "fresh.tsv"

    def made() -> dict[str, Any]:
        own: Settings = {"run": str(run), "data": pairs(folder, words=WORDS), "training": OBJECTIVES[objective]}
        if not fresh.exists():
            drawn = phrasebook.pairs(FRESH, split="test", words=WORDS, seed=7)
            fresh.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in drawn))
        if "further" in objective:
            own["start"] = {"model": str(folder / f"likelihood-{seed}")}
        system = regard.train(regard.Config.parse(merge(merge(EXPOSURE, own), {"training": {"seed": seed}})))
        assert isinstance(system.task, TextGeneration)
        result = system.task.evaluate(read_files(str(fresh), system.task.sides.form), system.search_settings(), print)
        assert result.exposure is not None
        return {"bleu": result.scores["bleu"].value, **result.exposure.to_json()}

    found: dict[str, Any] = once(run / "exposure.json", made)
    return found


# Transfer


def transfer(folder: Path, seeds: list[int], sizes: list[int]) -> None:
    """Percent of words tagged right, by how the head was trained and on how many sentences."""
    rows = [["", *(f"{size:,} sentences" for size in sizes)]]
    for name, (_, part) in BODIES.items():
        ways: dict[str, Settings] = {"from scratch": {}, "body frozen": {"freeze": [part]}, "fine-tuned": {}}
        ways |= {"with LM loss": {"objective": {"language": 0.5}}} if name == "GPT" else {}
        for way, more in ways.items():
            found = [[_accuracy(folder, name, way, size, seed, more) for seed in seeds] for size in sizes]
            rows.append([f"{name}, {way}", *(mean(values, 1, statistics.pstdev) for values in found)])
    print(table(rows))


def _accuracy(folder: Path, name: str, way: str, size: int, seed: int, more: Settings) -> float:
    run = folder / "heads" / f"{name}-{way}-{size}-{seed}".replace(" ", "-")

    def made() -> float:
        from regard.demo import make_corpus

        # Sentences of other seeds than the body's; the test set is never trained on, by body or head.
        files = make_corpus("tags", folder / f"tags-{size}-{seed}", "de", size, WORDS, 10 + seed)
        files["test"] = make_corpus("tags", folder / f"tags-{size}-1", "de", size, WORDS, 11)["test"]
        preset, part = BODIES[name]
        settings = {
            "preset": preset,
            "run": str(run),
            "data": {"source": "text", **files},
            "tokens": {"kind": "word", "size": 4000},
            "model": {"dropout": 0.1, "head": "tags"},
            "start": {part: str(_body(folder, name, trained=way != "from scratch"))},
            "training": merge({**HEAD, "seed": seed}, more),
        }
        return regard.train(regard.Config.parse(settings)).test().scores["accuracy"].value

    return float(once(run / "done", made))


def _body(folder: Path, name: str, *, trained: bool) -> Path:
    """A pretrained body in its run; one that is not trained has the same tokens, and weights as they were drawn."""
    run = folder / (f"body-{name}" if trained else f"nobody-{name}")

    def made() -> None:
        from regard.demo import corpus_settings, make_corpus

        training = BODY if trained else {**BODY, "steps": 1, "learning_rate": 1e-30}
        settings = merge(corpus_settings("text"), {"preset": BODIES[name][0], "run": str(run), "training": training})
        settings["data"] = {"source": "none", **make_corpus("text", folder / "text", "de", None, WORDS, 1)}
        settings["tokens"] = {"kind": "word", "size": 4000}
        regard.train(regard.Config.parse(settings))

    once(run / "done", made)
    return run


# Loss curves


def loss_curve(folder: Path, seeds: list[int], steps: int, plot: Path | None) -> None:
    """Mean losses of each way, with their spread over seeds."""
    found = {way: [losses(folder, way, seed, steps) for seed in seeds] for way in WAYS}
    count = len(found["fast, bfloat16"][0])
    shown = sorted({max(1, round(count * part)) - 1 for part in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)})
    rows = [[f"mean loss of the {EVERY} updates up to", *(str((i + 1) * EVERY) for i in shown)]]
    for way, curves in found.items():
        rows.append([way, *(mean([curve[i] for curve in curves], 3, statistics.pstdev) for i in shown)])
    print(table(rows))
    if plot:
        draw(found, plot)


def losses(folder: Path, way: str, seed: int, steps: int) -> list[float]:
    """The mean training loss of each `EVERY` updates."""
    run = folder / f"{way.replace(', ', '-')}-{seed}"

    def made() -> list[float]:
        training = {**WAYS[way], "seed": seed, "steps": steps}
        own = {"run": str(run), "data": pairs(folder), "training": training}
        config = folder / f"{run.name}.yaml"
        config.write_text(dump(regard.Config.parse(merge(CURVE, own))))
        hidden = [] if way.startswith("fast") else ["triton"]
        subprocess.run([sys.executable, "-c", TRAIN, str(config), *hidden], check=True)
        records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        return [record["loss"] for record in records if "loss" in record]

    found: list[float] = once(run / "losses.json", made)
    return found


def draw(found: dict[str, list[list[float]]], path: Path) -> None:
    """Every curve of every way."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for number, (way, curves) in enumerate(found.items()):
        for i, curve in enumerate(curves):
            steps = [EVERY * (k + 1) for k in range(len(curve))]
            axes.plot(steps, curve, color=f"C{number}", alpha=0.7, linewidth=1, label=None if i else way)
    axes.set(xlabel="updates", ylabel="training loss", yscale="log")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
