"""Decoding throughput: outputs of one length from sources of one length, with the same weights on every side."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers import DECODING, add_peers
from benchmarks.peers.base import Job, Peer
from benchmarks.peers.ours import Regard, fixed_search, liven, make_task
from benchmarks.race import Case, Contender, UnavailableError, Work
from benchmarks.workload import SHAPES, Tokens, sentences
from regard.errors import ModelError

CHECKED = 16  # outputs that are compared
EXACT = "% exact match"
WORKLOAD = (
    "Weights are random, and the same on every side. EOS is forbidden until the length is reached, and then all else "
    "is; it takes a step, and is not counted among output tokens. Tokens go in and come out as ids. On a CPU a turn "
    "begins with calls that are not timed, and Regard, as where it writes files, has freed memory retained. "
    f"'{EXACT}' is the share of outputs that equal Regard's in float32, of the first {CHECKED} or fewer."
)


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of decoding."""
    parser.add_argument("--model", choices=SHAPES, help="size of model")
    add_peers(parser, DECODING)
    shown = "float32, bfloat16, int8: the first is everyone's, others are Regard's and CTranslate2's"
    parser.add_argument(
        "--precisions", nargs="+", choices=("float32", "bfloat16", "int8"), metavar="PRECISION", help=shown
    )
    parser.add_argument("--batch", type=int, nargs="+", help="sentences at once, each a case")
    parser.add_argument("--beam", type=int, nargs="+", help="each a case; 1 is greedy")
    parser.add_argument("--length", type=int, help="tokens in and tokens out")
    parser.add_argument("--calls", type=int, default=2, help="batches in a turn; of single sentences four times")


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each size of batch and each beam."""
    gpu, quick = options.command == "decode-gpu", options.quick
    shape = SHAPES[options.model or ("tiny" if quick else "base")]
    precisions = options.precisions or ["bfloat16" if device.type == "cuda" else "float32"]
    peers = [DECODING[name] for name in options.peers or ("marian", "ctranslate2") if name != "none"]
    length = options.length or (5 if quick else 24 if gpu else 25)
    task = make_task(shape, device, options.seed, dropout=0.0)
    liven(task, shape)
    with tempfile.TemporaryDirectory() as folder:
        for batch in options.batch or ([2] if quick else [64, 512] if gpu else [1, 32]):
            count = (1 if quick else options.calls) * (4 if batch == 1 else 1)
            sources = sentences(batch * count, length, shape.vocabulary, options.seed)
            groups = [sources[i : i + batch] for i in range(0, len(sources), batch)]
            for beam in options.beam or ([1, 2] if quick else [4] if gpu else [1, 5]):
                job = Job(task, fixed_search(beam, length, precisions[0]), groups[0], Path(folder), shape, at_once=True)
                reference = _tokens(Regard(), replace(job, search=fixed_search(beam, length, "float32")), sources)
                make = partial(_work, groups=groups, reference=reference)
                name = f"batch {batch}, {'greedy' if beam == 1 else f'beam {beam}'}"
                words = f"{shape}; {batch} at once, {length} tokens and EOS in, as many out"
                case = Case(name, "output tokens/s", contenders(job, peers, precisions, make), words)
                case.notes += check(job, sources, reference) if DECODING["marian"] in peers else []
                yield case


def _tokens(peer: Peer, job: Job, sources: Tokens) -> list[list[int]]:
    """The first outputs, to compare."""
    return [found.tokens for found in peer.decoding(job)[0](sources[:CHECKED])]


def check(job: Job, sources: Tokens, reference: list[list[int]]) -> list[str]:
    """Whether Marian in float32 writes what Regard writes in float32."""
    exact = replace(job, search=job.search.model_copy(update={"precision": "float32"}))
    try:
        found = _tokens(DECODING["marian"], exact, sources)
    except UnavailableError:
        return []  # the race says so
    same, different = sum(map(list.__eq__, reference, found)), len({token for tokens in reference for token in tokens})
    return [f"float32 check: {same} of {len(found)} outputs of HF Marian equal Regard's ({different} different tokens)"]


def contenders(
    job: Job, peers: Sequence[Peer], precisions: Sequence[str], make: Callable[[Peer, Job], Work]
) -> list[Contender]:
    """Regard and its peers, those who can in all precisions."""
    found = []
    for peer in (Regard(), *peers):
        for precision in precisions if peer.every_precision else precisions[:1]:
            own = replace(job, search=job.search.model_copy(update={"precision": precision}))
            role = peer.role if precision == precisions[0] else "beside"
            against = f"{peer.against} {precision}" if peer.against else ""
            found.append(Contender(f"{peer.title} {precision}", role, partial(make, peer, own), against))
    return found


def _work(peer: Peer, job: Job, groups: Sequence[Tokens], reference: list[list[int]]) -> Work:
    """Turns that decode every batch once, and check that each output has its length."""
    decode, note = peer.decoding(job)
    length, written = job.search.max_length, list[list[int]]()

    def turn(some: Sequence[Tokens] = groups) -> float:
        written[:] = [found.tokens for group in some for found in decode(group)]
        if wrong := [len(tokens) for tokens in written if len(tokens) != length]:
            raise ModelError(f"an output has {wrong[0]} tokens instead of {length}: what was timed is another task")
        return float(len(written) * length)

    def extra(rate: float) -> dict[str, float]:
        return {EXACT: 100 * sum(map(list.__eq__, reference, written)) / len(reference)}

    # Warm after two: a GPU may record the first.
    return Work(turn, lambda: turn([groups[0], groups[0]]), note, extra, peer.inside)
