"""Regard's kernels on a GPU: are they right, which tiles are best, and how fast are they beside torch's own?

    python benchmarks/kernel_sweep.py                     # all parts, about two minutes
    python benchmarks/kernel_sweep.py --parts sweep loss  # some of them

`check` compares with float64 and replays a CUDA graph; `sweep` tries tiles, warps and stages; `attention` stands beside
`varlen_attn` on packed batches of 32k tokens; `loss` is the output layer with its loss, in time and memory; `around` is
what stands around the products, norms and activations. Times are medians on the device: the queue is filled while the
device sleeps, so what Python takes is not in them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from regard.nn import fused, kernels, triton_kernels
from regard.nn.dropout import Dropout
from regard.nn.kernels import Spans, attend_spans, spans
from regard.nn.triton_kernels import Plan, Tiles
from regard.ragged import Ragged
from regard.training.losses import linear_cross_entropy

DEVICE = "cuda"
TOKENS, MEAN, D_HEAD = 32768, 24, 64
MODELS = {"base": 8, "big": 16}  # heads
REPEATS = 25
# Queries and keys of a tile, warps, stages; for the gradients of keys the two sides change places.
SWEEP = [
    (32, 32, 2, 1), (32, 32, 2, 2), (32, 32, 4, 2), (64, 32, 4, 1), (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 1),
    (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
]  # fmt: skip
PROJECTION = (32768, 512, 32000)  # tokens, d_model, vocabulary
CHUNKS = (2048, 4096, 8192, 16384, 32768)
BLOCKS = [(2048, 4), (4096, 8), (4096, 16), (8192, 8), (8192, 16), (16384, 16), (16384, 32), (32768, 32)]


@dataclass(frozen=True)
class Case:
    """A packed batch to attend in."""

    name: str
    x: Ragged  # (Tq, 3, heads, d_head): queries, keys and values; or (Tq, 1, …) with a memory
    memory: Ragged | None  # (Tk, 2, heads, d_head)
    causal: bool

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.x.values,) if self.memory is None else (self.x.values, self.memory.values)

    @property
    def parts(self) -> list[Tensor]:
        """Queries, keys and values."""
        return [part for tensor in self.inputs for part in tensor.unbind(1)]

    @property
    def source(self) -> Ragged:
        return self.x if self.memory is None else self.memory

    @cached_property
    def spans(self) -> Spans:
        """Worked out once for a batch: all layers share them."""
        return spans(self.x, self.source, self.causal)

    @property
    def unit(self) -> float:
        """Bytes of the four tensors of a forward pass, the least it can move; a backward pass moves eight."""
        return 4.0 / 3.0 * sum(x.numel() * x.element_size() for x in self.inputs)

    @property
    def operations(self) -> float:
        """Of the forward pass, over the pairs that are seen; the backward pass has 5 products for its 2."""
        pairs = float((self.spans.key_end - self.spans.key_begin).sum())
        return 4.0 * pairs * self.x.values.shape[2] * self.x.values.shape[3]

    @cached_property
    def grad(self) -> Tensor:
        return torch.randn_like(self.parts[0])

    def own(self) -> Tensor:
        return attend_spans(self.x.values, None if self.memory is None else self.memory.values, *self.spans)

    def other(self) -> Tensor:
        window = (-1, 0) if self.causal else (-1, -1)
        found = varlen_attn(
            *self.parts, self.x.offsets, self.source.offsets, self.x.longest, self.source.longest, window_size=window
        )
        assert isinstance(found, Tensor)
        return found


def sentences(tokens: int, mean: float, seed: int = 1, spread: float = 0.6) -> list[int]:
    """Log-normal lengths that add up to `tokens`."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(4 * int(tokens / mean) + 4, generator=generator) * spread + math.log(mean) - spread**2 / 2
    lengths = draws.exp().round().clamp(min=1).long()
    count = int((lengths.cumsum(0) < tokens).sum())
    return [*lengths[:count].tolist(), tokens - int(lengths[:count].sum())]


def case(
    name: str, lengths: list[int], heads: int, kind: str, dtype: torch.dtype = torch.bfloat16, d_head: int = D_HEAD
) -> Case:
    """Random numbers of these lengths; the sources of `cross` are as long on average, but not one by one."""
    generator = torch.Generator(DEVICE).manual_seed(2)

    def draw(counts: list[int], parts: int) -> Ragged:
        values = torch.randn(sum(counts), parts, heads, d_head, generator=generator, device=DEVICE).to(dtype)
        return Ragged.from_lengths(values.requires_grad_(), counts)

    if kind == "cross":
        return Case(f"{name} {kind}", draw(lengths, 1), draw(lengths[::-1], 2), causal=False)
    return Case(f"{name} {kind}", draw(lengths, 3), None, kind == "causal")


def timed(run: Callable[..., object], *arguments: Any) -> float:
    """Median milliseconds on the device."""
    for _ in range(3):
        run(*arguments)
    torch.cuda.synchronize()
    began = time.perf_counter()
    run(*arguments)
    ahead = min((time.perf_counter() - began) * (REPEATS + 2), 0.2)  # seconds to fill the queue
    torch.cuda.synchronize()
    torch.cuda._sleep(int(ahead * 2e9))
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for start, end in marks:
        start.record()
        run(*arguments)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


def show(name: str, *cells: object) -> None:
    """A line of a table, at once: a run that is cut off leaves what it had."""
    parts = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"{name:<26}", *(f"{part:>10}" for part in parts), flush=True)


def exact(batch: Case) -> Tensor:
    """Attention in float64, row by row."""
    parts = []
    ends = [x.offsets.tolist() for x in (batch.x, batch.source)]
    q, k, v = batch.parts
    for i in range(len(batch.x)):
        query = q[ends[0][i] : ends[0][i + 1]].double().transpose(0, 1)
        key, value = (x[ends[1][i] : ends[1][i + 1]].double().transpose(0, 1) for x in (k, v))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if batch.causal:
            scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
        parts.append((torch.softmax(scores, -1) @ value).transpose(0, 1))
    return torch.cat(parts)


def errors(batch: Case, found: Tensor, expected: Tensor) -> list[str]:
    """Greatest errors of contexts and of the gradients of inputs, each as a part of the greatest number."""
    weights = torch.randn_like(found.detach())
    pairs = [(found.detach(), expected.detach())]
    got = torch.autograd.grad(found, batch.inputs, weights, retain_graph=True)
    wanted = torch.autograd.grad(expected, batch.inputs, weights.double(), retain_graph=True)
    pairs += zip(got, wanted, strict=True)
    return [f"{float((a.double() - b.double()).abs().max() / b.double().abs().max()):.1e}" for a, b in pairs]


def check() -> None:
    """Errors against float64, ours and torch's; and a CUDA graph of both passes."""
    print("\n# check: greatest error against float64, as a part of the greatest number")
    show("case", "dtype", "d_head", "context", "gradients")
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    for kind, dtype, d_head in product(("self", "causal", "cross"), kinds, (24, 64, 128)):
        batch = case("short", sentences(1500, MEAN), 3, kind, dtype, d_head)
        expected = exact(batch)
        show(batch.name, str(dtype)[6:], d_head, *errors(batch, batch.own(), expected))
        if dtype == torch.bfloat16 and d_head == 64:
            show("varlen_attn", str(dtype)[6:], d_head, *errors(batch, batch.other(), expected))
    batch = case("long", [2049, 700], 2, "causal")
    show(batch.name, "bfloat16", D_HEAD, *errors(batch, batch.own(), exact(batch)))

    batch = case("graph", sentences(4096, MEAN), 8, "causal")
    expected_all = both_passes(batch, batch.own)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both_passes(batch, batch.own)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_passes(batch, batch.own)
    graph.replay()
    torch.cuda.synchronize()
    same = all(torch.equal(a, b) for a, b in zip(captured, expected_all, strict=True))
    print(f"a CUDA graph of both passes gives {'the same bits' if same else 'SOMETHING ELSE'}", flush=True)


def sweep() -> None:
    """Milliseconds for each choice of tiles, for short sentences and long ones."""
    heads = MODELS["base"]
    sweep_tiles(case("short", sentences(TOKENS, MEAN), heads, "self"))
    for length in (512, 8192):
        sweep_tiles(case(str(length), [length] * (TOKENS // length), heads, "causal"))


def sweep_tiles(batch: Case) -> None:
    """Forward, and the whole backward pass with one of its two kernels changed at a time."""
    print(
        f"\n# sweep: {batch.name}, heads of {D_HEAD}; ms of forward, and of backward with other tiles for dq or dk/dv"
    )
    show("queries keys warps stages", "forward", "dq", "dk/dv")
    q, k, v = (x.detach() for x in batch.parts)
    context, lse = triton_kernels.attend(q, k, v, *batch.spans[:2])
    grad, usual = torch.randn_like(context), triton_kernels.plan(q)
    into = torch.empty_like(batch.x.values).unbind(1)

    def forward(tiles: Tiles) -> object:
        return triton_kernels.attend(q, k, v, *batch.spans[:2], tiles=tiles)

    def backward(plan: Plan) -> object:
        return triton_kernels.attend_backward(grad, q, k, v, context, lse, *batch.spans, *into, tiles=plan)

    best: dict[str, tuple[float, str]] = {}
    for queries, keys, warps, stages in SWEEP:
        tiles, turned = Tiles(queries, keys, warps, stages), Tiles(keys, queries, warps, stages)
        runs: list[tuple[str, Callable[..., object], Any]] = [
            ("forward", forward, tiles),
            ("dq", backward, usual._replace(dq=tiles)),
            ("dk/dv", backward, usual._replace(dkv=turned)),
        ]
        name, cells = f"{queries} {keys} {warps} {stages}", []
        for what, run, argument in runs:
            try:
                took = timed(run, argument)
            except triton.runtime.errors.OutOfResources:
                took = math.inf
            best[what] = min(best.get(what, (math.inf, "")), (took, name))
            cells.append(took)
        show(name, *cells)
    print("best:", ", ".join(f"{what} {took:.3f} ms at {name}" for what, (took, name) in best.items()), flush=True)


def batches() -> Iterator[Case]:
    """Short sentences in three ways for two models, then longer and longer rows."""
    for (model, heads), kind in product(MODELS.items(), ("self", "causal", "cross")):
        yield case(f"{model} mean {MEAN}", sentences(TOKENS, MEAN), heads, kind)
    for length, kind in product((128, 512, 2048, 8192), ("self", "causal")):
        yield case(f"base {length}", [length] * (TOKENS // length), MODELS["base"], kind)


def both_passes(batch: Case, way: Callable[[], Tensor]) -> tuple[Tensor, ...]:
    """Contexts and the gradients of inputs."""
    context = way()
    return (context.detach(), *torch.autograd.grad(context, batch.inputs, batch.grad))


def attention() -> None:
    """Ours beside `varlen_attn`, with the bandwidth and the arithmetic that ours achieves."""
    print(f"\n# attention: ms for {TOKENS} tokens in bfloat16, forward and forward + backward; GB/s of the least bytes")
    names = ("f", "f+b")
    show(
        "case",
        "ours f",
        "varlen f",
        "",
        "ours f+b",
        "varlen f+b",
        "",
        *(f"{x} {n}" for x in ("GB/s", "TF/s") for n in names),
    )
    for batch in batches():
        with torch.no_grad():
            ours, others = timed(batch.own), timed(batch.other)
        ours_both, others_both = timed(both_passes, batch, batch.own), timed(both_passes, batch, batch.other)
        speeds = [f"{batch.unit * n / took / 1e6:.0f}" for n, took in ((1, ours), (3, ours_both))]
        rates = [f"{batch.operations * n / took / 1e9:.1f}" for n, took in ((1, ours), (3.5, ours_both))]
        ratios = [f"x{a / b:.2f}" for a, b in ((others, ours), (others_both, ours_both))]
        show(batch.name, ours, others, ratios[0], ours_both, others_both, ratios[1], *speeds, *rates)


def loss() -> None:
    """The output layer with its loss, chunk by chunk and at once; and the kernel of the loss alone."""
    tokens, d_model, vocabulary = PROJECTION
    torch.manual_seed(4)
    targets = torch.randint(vocabulary, (tokens,), device=DEVICE)

    logits = torch.randn(2, 8192, vocabulary, device=DEVICE, dtype=torch.bfloat16)
    ways: tuple[tuple[str, Tensor, Callable[..., Tensor], tuple[float, ...]], ...] = (
        ("one pass", logits[0], triton_kernels.softmax_cross_entropy_, (0.1,)),
        ("two passes that should agree", logits, triton_kernels.softmax_agreement_, (0.1, 5.0)),
    )
    for name, taken, way, weights in ways:
        print(f"\n# loss: the kernel alone, {name} of 8192 x {vocabulary} in bfloat16, by block and warps")
        show("block warps", "ms", "GB/s")
        for block, warps in BLOCKS:
            took = timed(way, taken, targets[:8192], *weights, kernels.IGNORED, block, warps)
            show(f"{block} {warps}", took, f"{2 * taken.numel() * taken.element_size() / took / 1e6:.0f}")
    del logits, taken, ways

    print(f"\n# loss: {tokens} tokens, d_model {d_model}, vocabulary {vocabulary}, bfloat16 autocast, both passes")
    show("way", "ms", "peak GiB", "TF/s", "loss", "dW apart")
    x = torch.randn(tokens, d_model, device=DEVICE, requires_grad=True)
    weight = (torch.randn(vocabulary, d_model, device=DEVICE) / math.sqrt(d_model)).requires_grad_()
    bias = torch.zeros(vocabulary, device=DEVICE, requires_grad=True)

    def at_once() -> Tensor:
        return F.cross_entropy(F.linear(x, weight, bias).float(), targets, label_smoothing=0.1, reduction="sum")

    def in_chunks(chunk: int) -> Tensor:
        return linear_cross_entropy(x, weight, bias, targets, 0.1, chunk)

    def both(chunk: int) -> tuple[Tensor, ...]:
        with torch.autocast(DEVICE, torch.bfloat16):
            value = in_chunks(chunk) if chunk else at_once()
        return (value.detach(), *torch.autograd.grad(value, (x, weight, bias)))

    reference: Tensor | None = None
    for chunk in (0, *CHUNKS):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        value, _, dweight, _ = both(chunk)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
        reference = dweight if reference is None else reference
        apart = float((dweight - reference).abs().max() / reference.abs().max())
        total = float(value) / tokens
        del dweight, value
        took = timed(both, chunk)
        name = f"chunks of {chunk}" if chunk else "F.linear, F.cross_entropy"
        show(name, took, peak, f"{6.0 * tokens * d_model * vocabulary / took / 1e9:.0f}", total, f"{apart:.1e}")


def around() -> None:
    """A residual with dropout and norm, and an activation with dropout: ours, and torch's own one by one."""
    print(f"\n# around: ms for {TOKENS} tokens in bfloat16, forward and forward + backward; GB/s of the least bytes")
    show("case", "ours f", "ours f+b", "torch f", "torch f+b", "GB/s f", "GB/s b")
    for width in (512, 1024):
        around_norm(width)
        around_relu(4 * width)


def around_norm(width: int) -> None:
    module, drop = torch.nn.LayerNorm(width, device=DEVICE), Dropout(0.1)
    x, added = (torch.randn(TOKENS, width, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(2))

    def theirs() -> Tensor:
        summed = (x + F.dropout(added, 0.1)).float()
        return F.layer_norm(summed, (width,), module.weight, module.bias).to(x.dtype)

    inputs = [x, added, *module.parameters()]
    compare(f"norm {width}", inputs, lambda: fused.add_norm(x, added, module, drop), theirs, (3, 5))


def around_relu(width: int) -> None:
    x, drop = torch.randn(TOKENS, width, device=DEVICE, dtype=torch.bfloat16).requires_grad_(), Dropout(0.1)
    compare(f"relu {width}", [x], lambda: fused.relu_dropout(x, drop), lambda: F.dropout(F.relu(x), 0.1), (2, 3))


def compare(
    name: str, inputs: list[Tensor], ours: Callable[[], Tensor], theirs: Callable[[], Tensor], moved: tuple[int, int]
) -> None:
    """`moved`: how many tensors like the first each pass has to read or write."""
    gradient, cells = torch.randn_like(inputs[0]), list[float]()

    def both(way: Callable[[], Tensor]) -> object:
        return torch.autograd.grad(way(), inputs, gradient)

    for way in (ours, theirs):
        with torch.no_grad():
            cells.append(timed(way))
        cells.append(timed(both, way))
    unit = inputs[0].numel() * 2 / 1e6
    speeds = (moved[0] * unit / cells[0], moved[1] * unit / (cells[1] - cells[0]))
    show(name, *cells, *(f"{speed:.0f}" for speed in speeds))


PARTS = {"check": check, "sweep": sweep, "attention": attention, "loss": loss, "around": around}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; tests/test_kernels.py runs the kernels without one")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for name in arguments.parts:
        began = time.perf_counter()
        PARTS[name]()
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
