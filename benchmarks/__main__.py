"""The command line of the benchmarks: `python -m benchmarks NAME …`."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard.errors import ConfigError, RegardError

RACES = {
    "train-gpu": ("train", "training throughput on a GPU"),
    "train-cpu": ("train", "training throughput on a CPU"),
    "decode-gpu": ("decode", "decoding throughput on a GPU"),
    "decode-cpu": ("decode", "decoding throughput on a CPU"),
    "vision-gpu": ("vision", "training throughput of a Vision Transformer on a GPU"),
    "vision-cpu": ("vision", "training throughput of a Vision Transformer on a CPU"),
    "speech-gpu": ("speech", "training throughput of a Conformer on a GPU"),
    "speech-cpu": ("speech", "training throughput of a Conformer on a CPU"),
    "pretrain-gpu": ("pretrain", "pretraining throughput on plain text on a GPU"),
    "pretrain-cpu": ("pretrain", "pretraining throughput on plain text on a CPU"),
    "serve-gpu": ("serve", "throughput and latency of HTTP servers under many clients, on a GPU"),
    "serve-cpu": ("serve", "throughput and latency of HTTP servers under many clients, on a CPU"),
    "start-up": ("start_up", "time until something happens"),
    "grow": ("train", "throughput and memory as sentences, batches, vocabulary and model grow"),
    "precision": ("quality", "speed and quality of a trained model in fewer bits"),
    "sampling": ("quality", "speed and quality of beam search, sampling and minimum Bayes risk"),
}
OTHERS = {
    "exposure": ("experiments", "exposure bias and two remedies"),
    "transfer": ("experiments", "what a pretrained encoder or decoder is worth"),
    "loss-curve": ("experiments", "whether training with kernels and CUDA graphs learns what plain training learns"),
    "overload": ("overload", "the server at twice the load that it can take"),
    "kernels": ("kernels", "kernels on a GPU: the best tiles, and torch's own beside them"),
}
TOP = "Regard and its peers, measured side by side. `BENCHMARK --help` lists the options of each."


def main(arguments: Sequence[str] | None = None) -> object:
    """Run the benchmark that the arguments name; a race returns its report."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=TOP)
    commands = top.add_subparsers(dest="command", required=True, metavar="BENCHMARK")
    parsers = {name: commands.add_parser(name, help=title) for name, (_, title) in (RACES | OTHERS).items()}
    if given[:1] and given[0] in parsers:  # only what is asked for is imported
        name = given[0]
        module = import_module(f"benchmarks.{(RACES | OTHERS)[name][0]}")
        parsers[name].description, parsers[name].formatter_class = module.__doc__, argparse.RawDescriptionHelpFormatter
        module.add_options(parsers[name], name)
        if name in RACES:
            _add_race_options(parsers[name], name)
    options = top.parse_args(given)
    options.line = f"python -m benchmarks {shlex.join(given)}"
    return _race(module, options) if options.command in RACES else module.run(options)


def _add_race_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--quick", action="store_true", help="a tiny model and little data: to see that it runs")
    parser.add_argument("--rounds", type=int, help="turns of each contender (5; 2 when quick)")
    parser.add_argument("--limit", type=float, help="begin no case and no further round after so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of the CPU (torch's own choice)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, after each round")
    if name != "start-up":
        default = "auto" if name in ("grow", "sampling") else "cuda" if name.endswith("gpu") else "cpu"
        parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default=default)


def _race(module: ModuleType, options: argparse.Namespace) -> object:
    """Run the cases of a module one by one, and print the report."""
    import torch

    from benchmarks.race import Race
    from benchmarks.report import Report
    from regard.loading import choose_device

    if options.threads:
        torch.set_num_threads(options.threads)
    wanted = getattr(options, "device", "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"{options.command} needs a GPU that torch can use; run {options.command.replace('gpu', 'cpu')}, or give "
            "--device cpu to try it out"
        )
    device, began, title = choose_device(wanted), time.monotonic(), RACES[options.command][1]
    report = Report(title[0].upper() + title[1:], options.line, module.WORKLOAD, device)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    rounds = options.rounds or (2 if options.quick else 5)
    deadline = began + options.limit if options.limit else float("inf")
    race = Race(device, rounds, say, deadline, lambda: report.save(options.json))
    for case in module.cases(options, device):
        report.cases.append(case)
        race.run(case)
    report.save(options.json)
    print(report.text(), flush=True)
    return report


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(f"benchmarks: {error}")
