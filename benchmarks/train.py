"""Training throughput: updates over batches whose shapes vary as in a corpus, Regard and its peers in turns.

`grow` trains Regard alone, as sentences, batches, vocabulary and model grow, one at a time.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.flops import floor_seconds, step_flop
from benchmarks.peers import TRAINING, add_peers
from benchmarks.peers.base import Load, Peer, training_work
from benchmarks.peers.ours import Regard
from benchmarks.race import Case, Contender, Role, Work
from benchmarks.workload import DROPOUT, LONGEST, MEAN, SHAPES, SIGMA, SMOOTHING, STRETCH, WINDOW, Shape, Window
from regard.data.batches import Index
from regard.model_settings import ModelSettings
from regard.models.build import count_parameters

UNIT = "target tokens/s"
WORKLOAD = (
    f"A step is forward, loss with label smoothing {SMOOTHING}, backward, clipping, AdamW (fused) and clearing of "
    f"gradients, with dropout {DROPOUT} everywhere but in attention. Source lengths are log-normal with mean {MEAN:g} "
    f"(sigma {SIGMA}), targets a log-normal stretch of them (sigma {STRETCH}), both at most {LONGEST}. Real target "
    "tokens are counted, EOS included. A batch has so many tokens a side at most: Regard's hold no padding; for peers, "
    "who pad, padding counts. Batches are cut from sentences sorted by length, for peers in the one of two orders that "
    "pads less (by target and source, or by the longer side), and taken at even distances; who is called unsorted "
    "takes sentences as they come, the default of the trainer of transformers. Making batches is not timed; bringing "
    "them to the device is. On a CPU a turn begins with a step that is not timed, and Regard, as in its trainer, has "
    "freed memory retained; peers use the allocator as they do by themselves."
)
# Measured on an H200: a large bfloat16 product reaches so many TFLOP/s. The bandwidth in TB/s is the maker's.
PEAK, BANDWIDTH = 790.0, 4.8
USUAL = {  # peers, by command and kind of model
    ("train-gpu", "transformer"): ("marian-unsorted", "marian", "marian-compiled", "torch-compiled"),
    ("train-gpu", "lstm"): ("torch",),
    ("train-cpu", "transformer"): ("marian", "joeynmt"),
    ("train-cpu", "lstm"): ("joeynmt",),
}


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of training, or of growth."""
    if command == "grow":
        parser.add_argument("--model", choices=SHAPES, help="size of model")
        for name, what in (("lengths", "of sentences"), ("budgets", "tokens in a batch"), ("vocabularies", "sizes")):
            parser.add_argument(f"--{name}", type=int, nargs="*", help=f"{what}; without a value: none")
        parser.add_argument("--sizes", nargs="*", choices=SHAPES, help="of model; without a value: none")
    else:
        parser.add_argument("--models", nargs="+", choices=SHAPES, help="sizes of model, each a case")
        parser.add_argument("--vocabulary", type=int, help="instead of the model's own")
        add_peers(parser, TRAINING)
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), metavar="PRECISION",
                        help="float32, bfloat16: the first is everyone's, others are Regard's alone")  # fmt: skip
    parser.add_argument("--batch-tokens", type=int, help="tokens a side in a batch")
    parser.add_argument("--batches", type=int, default=8, help="different batches in a turn")
    parser.add_argument("--peak", type=float, help=f"peak TFLOP/s (on a GPU {PEAK:g}, of an H200)")
    parser.add_argument("--bandwidth", type=float, help=f"TB/s of memory (on a GPU {BANDWIDTH:g}, of an H200)")


def load_of(options: Namespace, device: torch.device, shape: Shape) -> Load:
    """A load of the options' size, over sentences as in a translation corpus."""
    gpu, quick = device.type == "cuda", options.quick
    window = Window.draw(shape.vocabulary, options.seed, 2_000 if quick else WINDOW)
    precision = options.precisions[0] if options.precisions else "bfloat16" if gpu else "float32"
    budget = options.batch_tokens or (256 if quick else 32_768 if gpu else 2_048)
    return Load(shape, window, device, precision, budget, 2 if quick else options.batches)


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each size of model, or for each point of growth."""
    if options.command == "grow":
        yield from _grown(options, device)
        return
    usual = ["base"] if options.command == "train-gpu" else ["small", "base", "lstm"]
    for name in options.models or (["tiny", "tiny-lstm"] if options.quick else usual):
        shape = SHAPES[name].like(**({"vocabulary": options.vocabulary} if options.vocabulary else {}))
        load = load_of(options, device, shape)
        peers = options.peers or USUAL[options.command, shape.kind]
        contenders = [contender(Regard(), load, options)]
        contenders += [contender(TRAINING[name], load, options) for name in peers if name != "none"]
        for precision in (options.precisions or [])[1:]:
            contenders.append(contender(Regard(), replace(load, precision=precision), options, "beside"))
        cut = f"{load.count} batches of {load.budget:,} tokens out of {len(load.window.source):,} sentences"
        yield Case(shape.name, UNIT, contenders, f"{shape}; {cut}")
        torch.compiler.reset()


def _grown(options: Namespace, device: torch.device) -> Iterator[Case]:
    """One point after the other; one model is in memory at a time."""
    before: Shape | None = None
    for name, load in _points(options, device):
        if before is not None and load.shape.like(vocabulary=0) != before.like(vocabulary=0):
            torch.compiler.reset()  # torch keeps only a few compilations of one function
        before = load.shape
        yield Case(name, UNIT, [contender(Regard(), load, options)], f"{load.shape}; batches of {load.budget:,} tokens")


def _points(options: Namespace, device: torch.device) -> Iterator[tuple[str, Load]]:
    gpu, quick = device.type == "cuda", options.quick
    shape = SHAPES[options.model or ("tiny" if quick else "base" if gpu else "small")]
    load = load_of(options, device, shape)

    def chosen(given: list[Any] | None, for_quick: list[Any], for_gpu: list[Any], for_cpu: list[Any]) -> list[Any]:
        return given if given is not None else for_quick if quick else for_gpu if gpu else for_cpu

    for length in chosen(options.lengths, [8, 32], [32, 128, 512, 2048, 8192], [32, 128, 512]):
        rows = max(load.budget // length, 1) * load.count
        yield f"length {length}", replace(load, window=Window.even(shape.vocabulary, options.seed, rows, length))
    for budget in chosen(options.budgets, [128, 256], [4096, 16384, 32768, 65536, 131072], [512, 1024, 2048, 4096]):
        yield f"batch {budget}", replace(load, budget=budget)
    for size in chosen(options.vocabularies, [100, 200], [8000, 32000, 64000, 128000], [4000, 8000, 16000, 32000]):
        yield f"vocabulary {size}", load_of(options, device, shape.like(vocabulary=size))
    for name in chosen(options.sizes, ["tiny"], ["small", "base", "big"], ["small", "base"]):
        yield f"size {name}", load_of(options, device, SHAPES[name])


def contender(peer: Peer, load: Load, options: Namespace, role: Role | None = None) -> Contender:
    """Steps of training over a window of sentences; `role` may be another than the peer's own."""
    name = f"{peer.title} {load.precision}" if peer.every_precision else peer.title
    return Contender(name, role or peer.role, partial(_work, peer, load, options))


def _work(peer: Peer, load: Load, options: Namespace) -> Work:
    """Steps of a peer over batches in its own form."""
    torch.manual_seed(load.window.seed)
    batch, step = peer.training(load)
    source, target = load.window.source, load.window.target
    if peer.packed:
        packs, padding = load.window.packed(load.budget, load.count), "no padding"
    else:
        packs = load.window.padded(load.budget, load.count, by_length=peer.by_length)
        # What is compiled for two sides of one width is compiled again as soon as they differ: such batches come last.
        packs.sort(key=lambda x: int(source[x].max()) == int(target[x].max()))
        share = sum(int((target[x] + 1).sum()) for x in packs) / sum(len(x) * int(target[x].max() + 1) for x in packs)
        padding = f"{100 - 100 * share:.1f} % of its target positions are padding"
    batches = [batch(*load.window.pairs(x)) for x in packs]
    tokens = sum(int((target[x] + 1).sum()) for x in packs)
    note, extra = "; ".join(filter(None, (peer.note, padding))), _meaning(load, packs, tokens, options)
    return training_work(step, batches, float(tokens), load.device, note=note, extra=extra, inside=peer.inside)


def _meaning(
    load: Load, packs: Sequence[Index], tokens: int, options: Namespace
) -> Callable[[float], dict[str, float]]:
    """What a throughput means: time of a step, TFLOP/s, share of the peak, distance from the floor."""
    gpu, shape = load.device.type == "cuda", load.shape
    peak, bandwidth = options.peak or (PEAK if gpu else 0.0), options.bandwidth or (BANDWIDTH if gpu else 0.0)
    lengths = [(load.window.source[x] + 1, load.window.target[x] + 1) for x in packs]
    tflop, floor = sum(step_flop(shape, *both) for both in lengths) / 1e12, 0.0
    if peak and bandwidth:
        parameters = count_parameters(ModelSettings(**shape.settings()), shape.vocabulary)
        floor = sum(floor_seconds(shape, *both, parameters, 1e12 * peak, 1e12 * bandwidth) for both in lengths)

    def found(rate: float) -> dict[str, float]:
        seconds = tokens / rate
        values = {"ms/step": 1000 * seconds / len(packs), "TFLOP/s": tflop / seconds}
        values |= {"% of peak": 100 * tflop / seconds / peak} if peak else {}
        return values | ({"times the floor": seconds / floor} if floor else {})

    return found
