"""Regard's kernels on a GPU: which tiles are best, and how fast are they beside torch's own?

    python -m benchmarks kernels                     # all parts, about two minutes
    python -m benchmarks kernels --parts sweep loss  # some of them

`sweep` tries tiles, blocks, warps and stages, `sweep_around` those of norms and activations; `attention` stands beside
`varlen_attn` on packed batches of 32k tokens; `loss` is the output layer with its loss, in time and memory; `around` is
norms and activations; `convolution` is that of a Conformer over time, and its tiles; `ctc` is the CTC loss. Whether
kernels are right is for their tests, on a GPU where there is one. Times are medians on the device: the queue is filled
while the device sleeps, so they leave out what Python takes.
"""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workload import draw_lengths
from regard.errors import ConfigError
from regard.nn import fused, kernels
from regard.nn.ctc_loss import ctc_loss
from regard.nn.depthwise import depthwise
from regard.nn.dropout import Dropout
from regard.nn.kernels import attend_spans, spans
from regard.ragged import Ragged
from regard.training.losses import linear_cross_entropy

TOKENS, D_HEAD, D_MODEL, VOCABULARY = 32768, 64, 512, 32000
MODELS = {"base": 8, "big": 16}  # heads
REPEATS = 25
# Queries and keys of a tile, warps, stages; for the gradients of keys the two sides change places.
TILES = [
    (32, 32, 2, 1), (32, 32, 2, 2), (32, 32, 4, 2), (64, 32, 4, 1), (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 1),
    (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
]  # fmt: skip
BLOCKS = [(2048, 4), (4096, 8), (4096, 16), (8192, 8), (8192, 16), (16384, 16), (16384, 32), (32768, 32)]  # and warps
# Times of a tile, or taps for the gradient of the weights, channels and warps.
CONVOLUTIONS = [
    (32, 32, 2), (32, 32, 4), (32, 64, 4), (64, 32, 4), (64, 64, 4), (32, 64, 8), (64, 64, 8), (64, 128, 8),
    (128, 32, 8), (128, 64, 8),
]  # fmt: skip
RECORDINGS, TIMES, LABELS, PIECES = 64, (100, 375), 60, 1000  # times of each, its tokens, and the vocabulary of CTC
CHUNKS = (2048, 4096, 8192, 16384, 32768)
POINTWISE = [(1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16)]  # numbers of a program, and warps
STRIPES = [(64, 8, 256, 8), *product((32, 64, 128, 256), (4,), (256,), (4,)), (64, 2, 512, 4), (64, 4, 512, 8),
           (64, 8, 128, 4), (64, 16, 128, 8)]  # rows of a program, rows and columns at a time, and warps  # fmt: skip
ROWS = list(product((1, 2), (2, 4, 8), (1056, 2112), (1, 2, 3)))
Outputs = Tensor | tuple[Tensor, ...]
on_gpu = partial(torch.randn, device="cuda", dtype=torch.bfloat16)


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of the kernels."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))


def run(options: Namespace) -> None:
    """Print a table for each part."""
    if not torch.cuda.is_available():
        raise ConfigError("there is no GPU here; tests/test_kernels.py runs the kernels without one")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in options.parts:
        began = time.perf_counter()
        PARTS[name]()
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)


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
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for start, end in events:
        start.record()
        run(*arguments)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def show(name: str, *cells: object) -> None:
    """A line of a table, at once: a run that is cut off leaves what it had."""
    parts = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"{name:<26}", *(f"{part:>11}" for part in parts), flush=True)


class Packed:
    """A packed batch to attend in: `self`, `causal`, or `cross` to as many tokens in sentences of other lengths."""

    def __init__(self, name: str, lengths: list[int], heads: int, kind: str) -> None:
        generator = torch.Generator("cuda").manual_seed(2)

        def draw(counts: list[int], parts: int) -> Ragged:
            values = on_gpu(sum(counts), parts, heads, D_HEAD, generator=generator)
            return Ragged.from_lengths(values.requires_grad_(), counts)

        self.name, self.causal = f"{name} {kind}", kind == "causal"
        self.x = draw(lengths, 1 if kind == "cross" else 3)  # (Tq, 3, heads, d_head): queries, keys and values
        self.memory = draw(lengths[::-1], 2) if kind == "cross" else None  # (Tk, 2, heads, d_head)
        self.source = self.x if self.memory is None else self.memory
        self.inputs = [self.x.values] if self.memory is None else [self.x.values, self.memory.values]
        self.queries, self.keys, self.values = (part for tensor in self.inputs for part in tensor.unbind(1))
        self.spans = spans(self.x, self.source, self.causal)  # once for a batch: all layers share them

    def own(self) -> Tensor:
        """Contexts by Regard's kernel."""
        return attend_spans(self.x.values, None if self.memory is None else self.memory.values, *self.spans)

    def other(self) -> Tensor:
        """Contexts by torch's."""
        from torch.nn.attention.varlen import varlen_attn

        found = varlen_attn(
            self.queries, self.keys, self.values, self.x.offsets, self.source.offsets, self.x.longest,
            self.source.longest, window_size=(-1, 0) if self.causal else (-1, -1),
        )  # fmt: skip
        assert isinstance(found, Tensor)
        return found


def sentences() -> list[int]:
    """Lengths as in a translation corpus that add up to `TOKENS`."""
    lengths = draw_lengths(TOKENS, 1)[0]
    count = int((lengths.cumsum() < TOKENS).sum())
    return [*lengths[:count].tolist(), TOKENS - int(lengths[:count].sum())]


def sweep() -> None:
    """Tiles of attention, with one kernel changed at a time; blocks of the loss, of one pass and of R-Drop's two."""
    from regard.nn import triton_kernels
    from regard.nn.triton_kernels import Plan, Tiles

    def tiles_of(batch: Packed) -> None:
        q, k, v = (x.detach() for x in (batch.queries, batch.keys, batch.values))
        context, lse = triton_kernels.attend(q, k, v, *batch.spans[:2])
        grad, usual, into = torch.randn_like(context), triton_kernels.plan(q), torch.empty_like(batch.x.values)

        def backward(plan: Plan) -> None:
            into_q, into_k, into_v = into.unbind(1)
            triton_kernels.attend_backward(grad, q, k, v, context, lse, *batch.spans, into_q, into_k, into_v, plan)

        best(f"{batch.name}: queries, keys, warps, stages", TILES, {
            "forward": lambda *x: triton_kernels.attend(q, k, v, *batch.spans[:2], tiles=Tiles(*x)),
            "backward, dq": lambda *x: backward(usual._replace(dq=Tiles(*x))),
            "dk/dv": lambda queries, keys, *x: backward(usual._replace(dkv=Tiles(keys, queries, *x))),
        })  # fmt: skip

    tiles_of(Packed("short", sentences(), MODELS["base"], "self"))
    for length in (512, 8192):
        tiles_of(Packed(str(length), [length] * (TOKENS // length), MODELS["base"], "causal"))
    logits, targets = on_gpu(2, 8192, VOCABULARY), torch.randint(VOCABULARY, (8192,), device="cuda")
    losses, none = triton_kernels.softmax_losses_, kernels.IGNORED
    best(f"loss of 8192 x {VOCABULARY}: block, warps", BLOCKS, {
        "one pass": lambda *x: losses(logits[0], targets, 0.1, none, None, *x),
        "two passes": lambda *x: losses(logits, targets, 0.1, none, 5.0, *x),
    })  # fmt: skip


def sweep_around(width: int = 768) -> None:
    """Blocks of an activation with dropout and of a sum with dropout; rows of a sum with its norm."""
    from regard.nn import triton_fused as f

    seed = torch.randint(2**31 - 1, (2,), device="cuda", dtype=torch.int32)
    inner, back = on_gpu(TOKENS, 4 * width), on_gpu(TOKENS, 4 * width)
    shift = torch.ones(4 * width, device="cuda")

    def stripe(share: int, rows: int, columns: int, warps: int) -> dict[str, int]:
        return {"share": share, "rows": rows, "columns": columns, "num_warps": warps}

    best(f"bias, gelu and dropout of {TOKENS} x {4 * width}: share, rows, columns, warps", STRIPES, {
        "forward": lambda *x: f.activate_dropout(inner, shift, seed, 0.1, "gelu", stripe(*x)),
        "backward": lambda *x: f.activate_dropout_backward(back, inner, shift, seed, 0.1, "gelu", stripe(*x)),
    })  # fmt: skip
    best(f"sum with dropout of {TOKENS} x {4 * width}: block, warps", POINTWISE, {
        "sum": lambda *x: f.add_dropout(inner, back, seed, 0.1, 1.0, inner.dtype, *x),
    })  # fmt: skip
    added, grad = (on_gpu(TOKENS, width) for _ in range(2))
    x, through = added.float(), grad.float()  # residuals are, under autocast
    weight, bias = (torch.ones(width, device="cuda") for _ in range(2))
    terms = (weight, bias, seed, 0.1, 1e-5, True, added.dtype, x.dtype)
    summed, _, mean, inverse = f.add_norm(x, added, *terms)

    def shape(rows: int, warps: int) -> dict[str, int]:
        return {"rows": rows, "tile": 1 << (width - 1).bit_length(), "num_warps": warps}

    saved = (grad, through, summed, None, weight, seed, mean, inverse, 0.1, True, added.dtype)
    best(f"sum and norm of {TOKENS} x {width}: rows, warps, programs and stages of the backward pass", ROWS, {
        "forward": lambda rows, warps, *_: f.add_norm(x, added, *terms, 1.0, shape(rows, warps)),
        "backward": lambda rows, warps, programs, stages: f.add_norm_backward(
            *saved, 1.0, {**shape(rows, warps), "stages": stages}, programs),
    })  # fmt: skip


def best(title: str, choices: Sequence[tuple[int, ...]], runs: dict[str, Callable[..., object]]) -> None:
    """Milliseconds of each choice, and the best."""
    from triton.runtime.errors import OutOfResources

    print(f"\n# sweep, ms, of {title}")
    show("", *runs)
    found: dict[str, list[tuple[float, str]]] = {name: [] for name in runs}
    for choice in choices:
        shown = " ".join(map(str, choice))
        for name, run in runs.items():
            try:
                found[name].append((timed(run, *choice), shown))
            except OutOfResources:
                found[name].append((math.inf, shown))
        show(shown, *(times[-1][0] for times in found.values()))
    show("best", *(min(times)[1] for times in found.values()))


def compare(
    name: str, inputs: Sequence[Tensor], ours: Callable[[], Outputs], theirs: Callable[[], Outputs],
    moved: tuple[float, float], flop: tuple[float, float] = (0, 0),
) -> None:  # fmt: skip
    """Times of both, forward and with backward; of ours, the rates at which the least bytes and FLOP are done."""
    torch.compiler.reset()  # what was compiled for other cases counts against a limit
    outputs, times, peaks = ours(), list[float](), list[float]()
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    gradients = [torch.randn_like(output.detach()) for output in outputs]

    def both(way: Callable[[], Outputs]) -> object:
        found = way()
        return torch.autograd.grad((found,) if isinstance(found, Tensor) else found, inputs, gradients)

    for way in (ours, theirs):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both(way)
        peaks.append((torch.cuda.max_memory_allocated() - before) / 2**30)
        with torch.no_grad():
            times.append(timed(way))
        times.append(timed(both, way))
    rates = [f"{done / took / 1e6:.0f}" for done, took in zip(moved, times[:2], strict=True)]
    rates += [f"{done / took / 1e9:.0f}" for done, took in zip(flop, times[:2], strict=True)]
    ratios = [f"x{times[2] / times[0]:.2f}", f"x{times[3] / times[1]:.2f}"]
    show(name, times[0], times[2], ratios[0], times[1], times[3], ratios[1], *rates, *peaks)


def heading(text: str, tokens: int = TOKENS) -> None:
    """What stands above the lines of `compare`."""
    print(
        f"\n# {text}: ms for {tokens} tokens in bfloat16, forward (f) and with backward (f+b); peaks are of f+b, in GiB"
    )
    show("case", "ours f", "torch f", "", "ours f+b", "torch f+b", "", "GB/s f", "GB/s f+b", "TFLOP/s f", "TFLOP/s f+b",
         "ours peak", "torch peak")  # fmt: skip


def attention() -> None:
    """Short sentences in three ways for two models, then longer and longer rows."""
    heading("attention beside varlen_attn")
    batches = [(f"{model}, short", sentences(), heads, kind)
               for (model, heads), kind in product(MODELS.items(), ("self", "causal", "cross"))]  # fmt: skip
    batches += [(f"base {length}", [length] * (TOKENS // length), MODELS["base"], kind)
                for length, kind in product((128, 512, 2048, 8192), ("self", "causal"))]  # fmt: skip
    for made in batches:
        batch = Packed(*made)
        unit = 4.0 / 3.0 * sum(x.numel() * x.element_size() for x in batch.inputs)  # four tensors, and backward eight
        pairs = float((batch.spans.key_end - batch.spans.key_begin).sum())
        flop = 4.0 * pairs * batch.x.values.shape[2] * D_HEAD  # of two products; backward has five
        compare(batch.name, batch.inputs, batch.own, batch.other, (unit, 3 * unit), (flop, 3.5 * flop))


def around() -> None:
    """A residual with dropout and norm (`norm`), also where the sum goes on as well (`sum, norm`) or alone (`sum`), and
    activations with bias and dropout; torch's own are compiled."""
    heading("around the products, beside torch.compile")
    drop, seed = Dropout(0.1), torch.randint(2**31 - 1, (2,), device="cuda", dtype=torch.int32)

    @torch.compile
    def both(x: Tensor, added: Tensor, norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
        summed = x + F.dropout(added, 0.1)
        return summed, F.layer_norm(summed.float(), norm.normalized_shape, norm.weight, norm.bias).to(x.dtype)

    def normed(x: Tensor, added: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
        return both(x, added, norm)[1]

    @torch.compile
    def plain_sum(x: Tensor, added: Tensor) -> Tensor:
        return x + F.dropout(added, 0.1)

    @torch.compile
    def plain_activation(x: Tensor, bias: Tensor, activation: torch.nn.Module) -> Tensor:
        return F.dropout(activation(x + bias).to(x.dtype), 0.1)

    for width in (512, 768, 1024):
        x, added, inner = (on_gpu(TOKENS, size).requires_grad_() for size in (width, width, 4 * width))
        module, unit = torch.nn.LayerNorm(width, device="cuda"), 2.0 * TOKENS * width
        bias = torch.zeros(4 * width, device="cuda", requires_grad=True)
        inputs = [x, added, *module.parameters()]
        alone = partial(fused.add_norm, x, added, module, drop), partial(normed, x, added, module)
        compare(f"norm {width}", inputs, *alone, (3 * unit, 8 * unit))
        pair = partial(fused.add_and_norm, x, added, module, drop), partial(both, x, added, module)
        compare(f"sum, norm {width}", inputs, *pair, (4 * unit, 9 * unit))
        compare(f"sum {width}", [x, added], partial(fused.add_dropout, x, added, drop), partial(plain_sum, x, added),
                (3 * unit, 5 * unit))  # fmt: skip
        for kind, activation in (("relu", torch.nn.ReLU()), ("gelu", torch.nn.GELU()), ("silu", torch.nn.SiLU())):
            ours = partial(torch.ops.regard.activate_dropout, inner, bias, seed, 0.1, kind)
            theirs = partial(plain_activation, inner, bias, activation)
            compare(f"{kind} {4 * width}", [inner, bias], ours, theirs, (8 * unit, 20 * unit))


def loss() -> None:
    """The output layer with its loss, in chunks, where gradients are made on the way forward; and torch's, at once."""
    heading(f"output layer and loss, d_model {D_MODEL}, vocabulary {VOCABULARY}")
    targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
    x, weight = (torch.randn(size, D_MODEL, device="cuda", requires_grad=True) for size in (TOKENS, VOCABULARY))
    bias = torch.zeros(VOCABULARY, device="cuda", requires_grad=True)
    flop = 2.0 * TOKENS * D_MODEL * VOCABULARY

    def ours(chunk: int) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return linear_cross_entropy(x, weight, bias, targets, 0.1, chunk)

    def theirs() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = F.linear(x, weight, bias).float()
        return F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")

    for chunk in CHUNKS:
        compare(f"chunks of {chunk}", (x, weight, bias), partial(ours, chunk), theirs, (0, 0), (flop, 3 * flop))


def convolution() -> None:
    """Over recordings of 2 to 15 s, 25 vectors a second, for which torch's own needs rows laid apart, and over a single
    one; then tiles, and into how many shares times are cut for the gradient of the weights."""
    from regard.nn import triton_depthwise
    from regard.nn.triton_depthwise import Tile

    vectors, generator = 16_000, torch.Generator().manual_seed(2)
    drawn = torch.randint(50, 376, (vectors // 50,), generator=generator)
    lengths = drawn[: int((drawn.cumsum(0) <= vectors).sum())].tolist()
    lengths.append(vectors - sum(lengths))
    heading("depthwise convolution beside nn.Conv1d", vectors)
    for (width, kernel), counts in product(((256, 31), (512, 31), (256, 15)), (lengths, [vectors])):
        x = Ragged.from_lengths(on_gpu(vectors, width).requires_grad_(), counts).indexed()
        module = torch.nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, device="cuda")
        assert module.bias is not None, "it has one unless told"
        inputs, unit, macs = [x.values, *module.parameters()], 2.0 * vectors * width, float(vectors * width * kernel)

        def ours(x: Ragged = x, module: torch.nn.Conv1d = module) -> Tensor:
            assert module.bias is not None, "it has one unless told"
            return depthwise(x.values, module.weight.squeeze(1), module.bias, x.row)

        def theirs(x: Ragged = x, module: torch.nn.Conv1d = module) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                if len(x) == 1:
                    return module(x.values.mT.unsqueeze(0)).squeeze(0).mT
                return x.along(module, module.padding[0]).values  # type: ignore[arg-type]

        name = f"{width} x {kernel}, {'one row' if len(x) == 1 else f'{len(x)} rows'}"
        compare(name, inputs, ours, theirs, (2 * unit, 6 * unit), (2 * macs, 6 * macs))
    rows = Ragged.from_lengths(on_gpu(vectors, 256), lengths)
    values, row, weight, bias = rows.values, rows.row, on_gpu(31, 256), on_gpu(256)
    grad, convolve, correlate = on_gpu(vectors, 256), triton_depthwise.convolve, triton_depthwise.correlate
    best("256 x 31: times or taps, channels, warps", CONVOLUTIONS, {
        "forward": lambda *x: convolve(values, weight, bias, row, Tile(*x)),
        "dx": lambda *x: convolve(grad, weight, None, row, Tile(*x), backward=True),
        **{f"dw, {shares}": lambda *x, shares=shares: correlate(grad, values, row, 31, Tile(*x), shares)
           for shares in (64, 128, 256)},
    })  # fmt: skip


def ctc() -> None:
    """The CTC loss from logits on: ours over packed rows, with a copy of the logits, as it leaves its gradient in them;
    torch's over padded log-probabilities. Lengths for torch's are on the CPU, from where it fetches them each time, so
    that it cannot be queued, and its times have in them what Python takes."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(TIMES[0], TIMES[1] + 1, (RECORDINGS,), generator=generator).tolist()
    total = sum(lengths)
    heading(f"CTC of {RECORDINGS} recordings, {LABELS} tokens each, vocabulary {PIECES}", total)
    logits = Ragged.from_lengths(on_gpu(total, PIECES).requires_grad_(), lengths)
    targets = torch.randint(1, PIECES, (RECORDINGS, LABELS), device="cuda")
    labels = torch.arange(RECORDINGS + 1, device="cuda", dtype=torch.int32) * LABELS
    ends = (torch.tensor(lengths), torch.full((RECORDINGS,), LABELS))

    def ours() -> Tensor:
        return ctc_loss(logits.values.clone(), logits.offsets, targets.flatten(), labels, LABELS, 0, ends=0)

    def theirs() -> Tensor:
        log_probs = logits.like(logits.values.float().log_softmax(-1)).padded().transpose(0, 1)
        return F.ctc_loss(log_probs, targets, *ends, reduction="sum", zero_infinity=True)

    unit = 2.0 * total * PIECES
    compare("ctc", [logits.values], ours, theirs, (5 * unit, 7 * unit))  # copied, read twice, written; then scaled


PARTS = {
    "sweep": sweep, "sweep_around": sweep_around, "attention": attention, "loss": loss, "around": around,
    "convolution": convolution, "ctc": ctc,
}  # fmt: skip
