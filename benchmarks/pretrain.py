"""Pretraining throughput on plain text: Regard and Hugging Face in turns, on the same texts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.peers import add_peers
from benchmarks.peers.base import training_work
from benchmarks.peers.pretraining import MASKED, PRETRAINING, LanguageModel, RegardText, TextLoad, TextPeer
from benchmarks.race import Case, Contender, Work
from benchmarks.train import PEAK
from benchmarks.workload import DROPOUT
from regard.memory import retain_memory

UNIT = "tokens/s"
WORKLOAD = (
    "A step is forward, cross-entropy, backward, clipping, AdamW (fused) and clearing of gradients. Tokens are drawn "
    "at random and lie on the device already. All tokens of a text are counted, its marks too; of a masked language "
    f"model {MASKED:.0%} are predicted, and Regard computes logits of those alone. No attention has dropout. Each side "
    "trains on the same texts, and has as many weights."
)
SHAPES = {
    shape.name: shape
    for shape in (
        LanguageModel("toy-bert", "bert", 2, 32, 64, 2, 100, 32),
        LanguageModel("toy-gpt2", "gpt2", 2, 32, 64, 2, 100, 32),
        LanguageModel("bert-base", "bert", 12, 768, 3072, 12, 30522),
        LanguageModel("gpt2-small", "gpt2", 12, 768, 3072, 12, 50257),
    )
}


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of the benchmark of pretraining."""
    parser.add_argument("--models", nargs="+", choices=SHAPES, help="sizes of model")
    parser.add_argument("--mean", type=float, nargs="+", help="mean length of texts, log-normal, each a case; 0: all "
                        "are blocks of the longest (0 and 128)")  # fmt: skip
    parser.add_argument("--batch-tokens", type=int, help="tokens in a batch (on a GPU 32,768)")
    parser.add_argument("--batches", type=int, help="different batches in a turn (on a GPU 8)")
    parser.add_argument("--dropout", type=float, default=DROPOUT, help=f"everywhere but in attention ({DROPOUT})")
    parser.add_argument("--precisions", nargs=1, choices=("float32", "bfloat16"), metavar="PRECISION",
                        help="float32 or bfloat16 (of a GPU bfloat16)")  # fmt: skip
    parser.add_argument("--peak", type=float, help=f"peak TFLOP/s (on a GPU {PEAK:g}, of an H200)")
    add_peers(parser, PRETRAINING)


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each model and each length of texts."""
    gpu, quick = device.type == "cuda", options.quick
    precision = options.precisions[0] if options.precisions else "bfloat16" if gpu else "float32"
    budget = options.batch_tokens or (128 if quick else 32_768 if gpu else 2_048)
    count = options.batches or (8 if gpu and not quick else 2)
    for name in options.models or (["toy-bert", "toy-gpt2"] if quick else ["bert-base", "gpt2-small"]):
        for mean in options.mean or ([0] if quick else [0, 128]):
            load = TextLoad(SHAPES[name], device, precision, options.dropout, budget, count, options.seed, mean or None)
            usual = ["hf-compiled", "hf-flattened-compiled"] if gpu else ["hf"]
            contenders = [RegardText(), *(PRETRAINING[peer] for peer in options.peers or usual if peer != "none")]
            made = [Contender(x.title, x.role, partial(_work, x, load, options)) for x in contenders]
            what = f"texts of {mean:g} tokens in the mean" if mean else f"blocks of {load.shape.longest}"
            cut = f"{precision}, {count} batches of {budget:,} tokens, {what}, dropout {options.dropout:g}"
            yield Case(f"{name}, {what}", UNIT, made, f"{load.shape}; {cut}")
            torch.compiler.reset()


def _work(peer: TextPeer, load: TextLoad, options: Namespace) -> Work:
    """Steps of one of them."""
    torch.manual_seed(load.seed)
    batches, step, model = peer.training(load)
    texts = load.texts()
    tokens = float(sum(len(text) for some in texts for text in some))
    tflop = sum(load.shape.flop([len(text) for text in some]) for some in texts) / 1e12
    peak = options.peak or (PEAK if load.device.type == "cuda" else 0.0)
    weights = sum(x.numel() for x in model.parameters())

    def found(rate: float) -> dict[str, float]:
        seconds = tokens / rate
        values = {"ms/step": 1000 * seconds / len(texts), "TFLOP/s": tflop / seconds}
        return values | ({"% of peak": 100 * tflop / seconds / peak} if peak else {})

    note = "; ".join(filter(None, (peer.note, f"{weights:,} weights")))
    inside = nullcontext if peer.role == "peer" else retain_memory
    return training_work(step, batches, tokens, load.device, note=note, extra=found, inside=inside)
