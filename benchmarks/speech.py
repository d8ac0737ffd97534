"""Training throughput of a Conformer with CTC: Regard and torch's own modules in turns, on the same recordings."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.peers import add_peers
from benchmarks.peers.base import training_work
from benchmarks.peers.conformer import PER_SECOND, SECONDS, SPEECH, Conformer, RegardConformer, SpeechLoad, SpeechPeer
from benchmarks.race import Case, Contender, Work
from benchmarks.workload import DROPOUT
from regard.memory import retain_memory

UNIT = "frames/s"
WORKLOAD = (
    "A step is log-mel frames of 10 ms from 16-bit samples, forward, CTC loss, backward, clipping, AdamW (fused) and "
    f"clearing of gradients. Recordings last {SECONDS[0]:g} to {SECONDS[1]:g} s, drawn evenly, and their texts have "
    f"about {PER_SECOND:g} tokens a second. Real frames are counted, no padding. Batches are those that Regard cuts "
    "from recordings sorted by text and duration, for all but who is called by duration: its own are sorted so. "
    "Making batches is not timed; bringing them to the device is. No attention has dropout, and each side has as many "
    "weights."
)
SHAPES = {
    shape.name: shape
    for shape in (Conformer("toy", 2, 32, 64, 2, 7, 20, 50), Conformer("conformer-m", 16, 256, 1024, 4))
}
RECORDINGS = 28_000  # as many as 100 hours of LibriSpeech have


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of the benchmark of recordings."""
    parser.add_argument("--models", nargs="+", choices=SHAPES, help="sizes of model")
    parser.add_argument("--frames", type=int, nargs="+", help="most frames in a batch, each a case (on a GPU 64,000)")
    parser.add_argument("--batches", type=int, help="different batches in a turn (on a GPU 8)")
    parser.add_argument("--dropout", type=float, default=DROPOUT, help=f"everywhere but in attention ({DROPOUT})")
    parser.add_argument("--precisions", nargs=1, choices=("float32", "bfloat16"), metavar="PRECISION",
                        help="float32 or bfloat16 (of a GPU bfloat16)")  # fmt: skip
    add_peers(parser, SPEECH)


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each size of model and of batch."""
    gpu, quick = device.type == "cuda", options.quick
    precision = options.precisions[0] if options.precisions else "bfloat16" if gpu else "float32"
    peers = options.peers or (["torch-compiled", "torch-compiled-sorted"] if gpu else ["torch"])
    for name in options.models or ["toy" if quick else "conformer-m"]:
        for budget in options.frames or [1000 if quick else 64_000 if gpu else 2_000]:
            count, recordings = options.batches or (8 if gpu and not quick else 2), 50 if quick else RECORDINGS
            load = SpeechLoad(
                SHAPES[name], device, precision, options.dropout, budget, count, recordings, options.seed,
                (0.5, 2.0) if quick else SECONDS,
            )  # fmt: skip
            contenders = [RegardConformer(), *(SPEECH[name] for name in peers if name != "none")]
            made = [Contender(x.title, x.role, partial(_work, x, load)) for x in contenders]
            cut = f"{precision}, {count} batches of at most {budget:,} frames, dropout {options.dropout:g}"
            yield Case(f"{name}, {budget:,} frames", UNIT, made, f"{load.shape}; {cut}")
            torch.compiler.reset()


def _work(peer: SpeechPeer, load: SpeechLoad) -> Work:
    """Steps of one of them."""
    torch.manual_seed(load.seed)
    batch, step, model = peer.training(load)
    packs, hops = load.packs(by_duration=peer.by_duration), load.lengths[0]
    frames, places = sum(int(hops[x].sum()) for x in packs), sum(len(x) * int(hops[x].max()) for x in packs)
    weights = sum(x.numel() for x in model.parameters())
    padding = f"{100 - 100 * frames / places:.1f} % of padded frames are padding"
    note = "; ".join(filter(None, (peer.note, padding, f"{weights:,} weights")))

    def found(rate: float) -> dict[str, float]:
        return {"ms/step": 1000 * frames / rate / len(packs)}

    inside = nullcontext if peer.role == "peer" else retain_memory
    made = [batch(x) for x in packs]
    return training_work(step, made, float(frames), load.device, note=note, extra=found, inside=inside)
