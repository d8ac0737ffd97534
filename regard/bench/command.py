"""The benchmarks as commands: `regard bench train-cpu` and so on, and the scripts of `benchmarks/`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.bench import decode, grow, startup, train
from regard.bench.measure import Race
from regard.bench.report import Report
from regard.bench.workload import SHAPES, WINDOW, Shape
from regard.errors import ConfigError, RegardError
from regard.system import choose_device

TITLES = {
    "train-gpu": "Training on a GPU",
    "train-cpu": "Training on a CPU",
    "decode-gpu": "Decoding on a GPU",
    "decode-cpu": "Decoding on a CPU",
    "start-up": "Start-up",
    "grow": "Growth",
}
PEERS = {
    "train": ("marian", "marian-compiled", "marian-unsorted", "marian-unsorted-compiled", "torch", "torch-compiled",
              "joeynmt"),
    "decode": ("marian", "marian-static", "ctranslate2", "engine"),  # the last: Regard through CTranslate2
    "start-up": ("marian", "joeynmt"),
}  # fmt: skip
# Measured on an H200: a large bfloat16 product reaches this many operations a second. The bandwidth is its maker's.
PEAK, BANDWIDTH = 790.0, 4.8
USUAL = {
    "cuda": {"transformer": ("marian-unsorted", "marian", "marian-compiled", "torch-compiled"), "lstm": ("torch",)},
    "cpu": {"transformer": ("marian", "joeynmt"), "lstm": ("joeynmt",)},
}
Options = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark that the arguments name, and print what came of it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    device, began = _device(options), time.monotonic()
    report = Report(TITLES[options.command], f"regard bench {' '.join(given)}", "", device)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    rounds = options.rounds or (2 if options.quick else 5)
    deadline = began + options.limit if options.limit else float("inf")
    race = Race(device, rounds, say, deadline, lambda: report.save(options.json))
    match options.command.partition("-")[0]:
        case "train":
            report.words = train.WORDS
            train.run(_train(options, device), report, race)
        case "decode":
            report.words = decode.WORDS
            decode.run(_decode(options, device), report, race)
        case "start":
            report.words = startup.WORDS
            shape = SHAPES["tiny" if options.quick else options.model]
            startup.run(startup.Plan(shape, _peers(options, PEERS["start-up"]), options.seed), report, race)
        case _:
            report.words = grow.WORDS
            grow.run(_grow(options, device), report, race)
    report.save(options.json)
    print(report.text(markdown=options.markdown), flush=True)
    return report


def script(command: str) -> None:
    """One benchmark as a program of its own; what goes wrong is said in a line."""
    sys.path.pop(0)  # the script's folder: its files are no modules
    try:
        main([command, *sys.argv[1:]])
    except RegardError as error:
        sys.exit(f"regard: {error}")


def parser() -> argparse.ArgumentParser:
    """All options."""
    top = argparse.ArgumentParser(prog="regard bench", description="Regard and its peers side by side, turn by turn.")
    commands = top.add_subparsers(dest="command", required=True, metavar="BENCHMARK")
    for name, title in TITLES.items():
        one = commands.add_parser(name, help=title.lower(), description=title + ".")
        kind = name.partition("-")[0]
        _common(one, name)
        if kind in ("train", "decode", "start"):
            peers = PEERS["start-up" if kind == "start" else kind]
            one.add_argument(
                "--peers", nargs="+", choices=[*peers, "none"], metavar="PEER", help=f"{', '.join(peers)}; or none"
            )
        if kind == "train":
            one.add_argument("--models", nargs="+", choices=SHAPES, help="sizes of model, each a case")
            one.add_argument("--vocabulary", type=int, help="instead of the model's own")
        else:
            one.add_argument(
                "--model", choices=SHAPES, default="small" if kind == "start" else None, help="size of model"
            )
        if kind in ("train", "grow"):
            one.add_argument("--batch-tokens", type=int, help="tokens a side in a batch")
            one.add_argument("--batches", type=int, default=8, help="different batches in a turn")
            one.add_argument("--peak", type=float, help=f"10^12 operations a second (on a GPU {PEAK:g}, of an H200)")
            one.add_argument(
                "--bandwidth", type=float, help=f"10^12 bytes a second (on a GPU {BANDWIDTH:g}, of an H200)"
            )
        if kind == "decode":
            one.add_argument("--batch", type=int, nargs="+", help="sentences at once, each a case")
            one.add_argument("--beam", type=int, nargs="+", help="each a case; 1 is greedy")
            one.add_argument("--length", type=int, help="tokens in and tokens out")
            one.add_argument("--calls", type=int, default=2, help="batches in a turn; of single sentences four times")
        if kind == "grow":
            one.add_argument("--what", nargs="+", choices=grow.WHAT, default=list(grow.WHAT), help="what grows")
            for what in ("lengths", "budgets", "vocabularies"):
                one.add_argument(f"--{what}", type=int, nargs="+")
            one.add_argument("--sizes", nargs="+", choices=SHAPES)
        if kind in ("train", "decode", "grow"):
            one.add_argument("--precision", choices=("float32", "bfloat16"), help="of both sides")
        if kind in ("train", "decode"):
            shown = ("float32", "bfloat16") if kind == "train" else ("float32", "bfloat16", "int8")
            one.add_argument("--beside", nargs="+", default=[], choices=shown, help="other precisions to show beside")
    return top


def _common(one: argparse.ArgumentParser, name: str) -> None:
    one.add_argument("--quick", action="store_true", help="a tiny model and little data: to see that it runs")
    one.add_argument("--rounds", type=int, help="turns of each contestant (5; 2 when quick)")
    one.add_argument("--limit", type=float, help="begin no case and no further round after so many seconds")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    one.add_argument("--json", type=Path, metavar="FILE", help="write everything there, after each round")
    one.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    if name != "start-up":
        default = "auto" if name == "grow" else "cuda" if name.endswith("gpu") else "cpu"
        one.add_argument("--device", choices=("cpu", "cuda", "auto"), default=default)


def _device(options: Options) -> torch.device:
    wanted = getattr(options, "device", "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"{options.command} needs a GPU that torch can use; run {options.command.replace('gpu', 'cpu')}, or give "
            "--device cpu to try it out"
        )
    return choose_device(wanted)


def _peers(options: Options, usual: Sequence[str]) -> list[str]:
    return [name for name in (options.peers or usual) if name != "none"]


def _plan(options: Options, device: torch.device, shapes: Sequence[Shape]) -> train.Plan:
    """What training and growth share."""
    gpu = device.type == "cuda"
    peak, bandwidth = options.peak or (PEAK if gpu else None), options.bandwidth or (BANDWIDTH if gpu else None)
    return train.Plan(
        shapes=shapes,
        device=device,
        peers=[],
        precision=options.precision or ("bfloat16" if gpu else "float32"),
        beside=[],
        budget=options.batch_tokens or (256 if options.quick else 32_768 if gpu else 2_048),
        batches=2 if options.quick else options.batches,
        seed=options.seed,
        peak=None if peak is None else peak * 1e12,
        bandwidth=None if bandwidth is None else bandwidth * 1e12,
        window=2_000 if options.quick else WINDOW,
    )


def _train(options: Options, device: torch.device) -> train.Plan:
    quick, usual = ["tiny", "tiny-lstm"], ["base"] if options.command == "train-gpu" else ["small", "base", "lstm"]
    names = options.models or (quick if options.quick else usual)
    changes = {"vocabulary": options.vocabulary} if options.vocabulary else {}
    plan = _plan(options, device, [SHAPES[name].like(**changes) for name in names])
    peers = None if options.peers is None else _peers(options, ())
    return replace(plan, peers=peers, usual=USUAL[options.command.replace("train-", "").replace("gpu", "cuda")],
                   beside=options.beside)  # fmt: skip


def _decode(options: Options, device: torch.device) -> decode.Plan:
    gpu = options.command == "decode-gpu"
    precision = options.precision or ("bfloat16" if device.type == "cuda" else "float32")
    return decode.Plan(
        shape=SHAPES[options.model or ("tiny" if options.quick else "base")],
        device=device,
        peers=_peers(options, ("marian",) if gpu else ("marian", "ctranslate2")),
        precision=precision,
        beside=[name for name in options.beside if name != precision],
        batches=options.batch or ([2] if options.quick else [64, 512] if gpu else [1, 32]),
        beams=options.beam or ([1, 2] if options.quick else [4] if gpu else [1, 5]),
        length=options.length or (5 if options.quick else 24 if gpu else 25),
        calls=1 if options.quick else options.calls,
        seed=options.seed,
    )


def _grow(options: Options, device: torch.device) -> grow.Plan:
    gpu, quick = device.type == "cuda", options.quick
    shape = SHAPES[options.model or ("tiny" if quick else "base" if gpu else "small")]
    sizes = options.sizes or (["tiny"] if quick else ["small", "base", "big"] if gpu else ["small", "base"])
    lengths = [8, 32] if quick else [32, 128, 512, 2048, 8192] if gpu else [32, 128, 512]
    budgets = [128, 256] if quick else [4096, 16384, 32768, 65536, 131072] if gpu else [512, 1024, 2048, 4096]
    vocabularies = [100, 200] if quick else [8000, 32000, 64000, 128000] if gpu else [4000, 8000, 16000, 32000]
    return grow.Plan(
        _plan(options, device, []), shape, options.lengths or lengths, options.budgets or budgets,
        options.vocabularies or vocabularies, [SHAPES[name] for name in sizes], options.what,
    )  # fmt: skip
