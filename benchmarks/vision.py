"""Training throughput of a Vision Transformer: Regard and torch's own modules in turns, on the same pictures."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.peers import add_peers
from benchmarks.peers.base import training_work
from benchmarks.peers.vit import VISION, RegardViT, VisionLoad, VisionPeer, ViT
from benchmarks.race import Case, Contender, Work
from benchmarks.train import PEAK
from benchmarks.workload import DROPOUT
from regard.memory import retain_memory

UNIT = "images/s"
WORKLOAD = (
    "A step is forward, cross-entropy, backward, clipping, AdamW (fused) and clearing of gradients. Pictures are "
    "random bytes that lie on the device already; both make numbers from -1 to 1 of them there. No attention has "
    "dropout. Each side trains on the same batches, and has as many weights."
)
SHAPES = {
    shape.name: shape
    for shape in (
        ViT("toy", 2, 32, 64, 2, 32, 8, 10),
        ViT("vit-tiny", 12, 192, 768, 3),
        ViT("vit-small", 12, 384, 1536, 6),
        ViT("vit-base", 12, 768, 3072, 12),
    )
}


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of the benchmark of pictures."""
    parser.add_argument("--models", nargs="+", choices=SHAPES, help="sizes of model")
    parser.add_argument("--rows", type=int, nargs="+", help="pictures in a batch, each a case (on a GPU 256)")
    parser.add_argument("--batches", type=int, help="different batches in a turn (on a GPU 8)")
    parser.add_argument("--dropout", type=float, default=DROPOUT, help=f"everywhere but in attention ({DROPOUT})")
    parser.add_argument("--precisions", nargs=1, choices=("float32", "bfloat16"), metavar="PRECISION",
                        help="float32 or bfloat16 (of a GPU bfloat16)")  # fmt: skip
    parser.add_argument("--peak", type=float, help=f"peak TFLOP/s (on a GPU {PEAK:g}, of an H200)")
    add_peers(parser, VISION)


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each size of model and of batch."""
    gpu, quick = device.type == "cuda", options.quick
    precision = options.precisions[0] if options.precisions else "bfloat16" if gpu else "float32"
    peers = options.peers or (["torch-compiled"] if gpu else ["torch"])
    for name in options.models or ["toy" if quick else "vit-base" if gpu else "vit-tiny"]:
        for rows in options.rows or [4 if quick else 256 if gpu else 8]:
            count = options.batches or (8 if gpu and not quick else 2)
            load = VisionLoad(SHAPES[name], device, precision, options.dropout, rows, count, options.seed)
            contenders = [RegardViT(), *(VISION[name] for name in peers if name != "none")]
            made = [Contender(x.title, x.role, partial(_work, x, load, options)) for x in contenders]
            cut = f"{precision}, {count} batches of {rows} pictures, dropout {options.dropout:g}"
            yield Case(f"{name}, {rows} pictures", UNIT, made, f"{load.shape}; {cut}")
            torch.compiler.reset()


def _work(peer: VisionPeer, load: VisionLoad, options: Namespace) -> Work:
    """Steps of one of them."""
    torch.manual_seed(load.seed)
    batches, step, model = peer.training(load)
    peak = options.peak or (PEAK if load.device.type == "cuda" else 0.0)
    weights = sum(x.numel() for x in model.parameters())

    def found(rate: float) -> dict[str, float]:
        tflops = rate * load.shape.flop() / 1e12
        values = {"ms/step": 1000 * load.rows / rate, "TFLOP/s": tflops}
        return values | ({"% of peak": 100 * tflops / peak} if peak else {})

    note = "; ".join(filter(None, (peer.note, f"{weights:,} weights")))
    inside, amount = nullcontext if peer.role == "peer" else retain_memory, float(load.rows * load.count)
    return training_work(step, batches, amount, load.device, note=note, extra=found, inside=inside)
