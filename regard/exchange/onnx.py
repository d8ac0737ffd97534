"""Export to ONNX: what reads a source as one graph, a decoder's step as another, held against the model.

    report = export(system, "runs/demo-onnx")
    print(report)

An exported folder is whole: `encoder.onnx` (none for a language model), `step.onnx`, the tokenizers, `config.yaml`, and
`runner.json`, which says how a runtime drives the graphs; `onnx_runner.py` is one that does.

The graphs are traced from the model's own modules by `torch.onnx.export(dynamo=True)`, under the stand-ins of
`onnx_trace.py`.
"""

from __future__ import annotations

import copy
import json
import random
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.artifacts import new_folder, write_text
from regard.config import dump
from regard.data.examples import read_examples
from regard.data.sources import Item, Pictures
from regard.data.tokens import BOS, EOS, MARKS, MASK, PAD, SEP, UNK
from regard.errors import ConfigError, DataError, ModelError
from regard.exchange.onnx_runner import RUNNER, Found, Runner
from regard.exchange.onnx_runner import Search as RunnerSearch
from regard.exchange.onnx_trace import Growing, Rectangle, prepare, traceable
from regard.models.decoders import State
from regard.models.model import EncoderDecoder, OneNetwork, Reader, Writer
from regard.models.recurrent import RecurrentDecoder, RecurrentState, View
from regard.models.transformer import TransformerDecoder, TransformerState
from regard.nn.hard import HardAttention
from regard.search.limits import Hypothesis
from regard.system import CONFIG, System, save_tokenizers
from regard.tasks.writing import Writing

KIND = "ONNX export"
ENCODER, STEP = "encoder.onnx", "step.onnx"
TOLERANCE = 1e-3  # of the score of an output
ROUNDING = 1e-5  # of an attention weight
SIZES = {"rows": 6, "sources": 3, "source": 5, "past": 4}  # of what is traced; in use they may be any


@dataclass(frozen=True)
class Report:
    """How an export compares with the model it was made from, on some sources."""

    folder: str
    bytes: int
    lines: int
    made_up: bool  # the sources: no validation data were found
    beam: int
    greedy_same: int
    beam_same: int
    difference: float  # the largest, of the score of an output that both write
    left_out: list[str]  # settings of search that the model has and the runner does not know

    def __str__(self) -> str:
        left_out = f"; the runner does without {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.folder}: {self.bytes / 2**20:.1f} MiB; of {self.lines} {'made-up ' if self.made_up else ''}sources "
            f"{self.greedy_same} are written the same greedily and {self.beam_same} with beam {self.beam}; the "
            f"score of an output differs by at most {self.difference:.1e}{left_out}"
        )


def export(system: System, folder: str | Path, *, lines: int = 16, force: bool = False) -> Report:
    """Write a model as ONNX graphs, and compare what they write with what it writes on some validation data.

    `force` replaces an older export, and nothing else. A folder that writes something else than Regard is an error, and
    thrown away.
    """
    task, folder = system.task, Path(folder)
    if isinstance(task.model, Reader):
        raise ConfigError(f"model.head is '{system.config.model.head}': only what writes can be exported")
    if not isinstance(task.model, Writer):
        raise ConfigError("model.decoder.kind is none: an encoder alone writes nothing, so there is no step to export")
    if not isinstance(task, Writing) or not isinstance(task.model, EncoderDecoder | OneNetwork):
        raise ConfigError("an ensemble is several models, which ONNX runs one at a time; export each by itself")
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            raise ConfigError(f"export to ONNX needs {name}; install it with: pip install 'regard[export]'") from None
    with new_folder(folder, KIND, force=force) as new:
        model = copy.deepcopy(task.model).to("cpu", torch.float32).eval()
        task = replace(task, model=model, device=torch.device("cpu"))  # graphs are compared with the same on a CPU
        save_tokenizers(new, task.source.tokenizer, task.target)
        write_text(new / CONFIG, dump(task.config))
        layout = layout_of(task)
        write_text(new / RUNNER, json.dumps(facts(task, layout), indent=1) + "\n")
        trace(task, layout, new)
        return compare(task, new, folder, lines)


# A decoder's state as tensors with names


@dataclass(frozen=True)
class Kept:
    """One tensor of a decoder's state, as `runner.json` tells of it."""

    name: str
    of: str  # `row`: it changes places with the hypotheses; `source`: it stays, once for all rows of a source
    shape: tuple[int | str, ...]  # a word is a size that differs from call to call
    begins: str  # `encoder`: as its output; `zeros`: of this shape, with 0 for `past`
    dtype: str = "float32"
    grows: int | None = None  # the axis along which each step adds one

    @property
    def after(self) -> str | None:
        """What a step calls it when it has changed."""
        return f"next_{self.name}" if self.of == "row" else None

    def example(self) -> Tensor:
        """Something of its shape."""
        kind = torch.bool if self.dtype == "bool" else torch.float32
        return torch.zeros([SIZES[n] if isinstance(n, str) else n for n in self.shape], dtype=kind)

    def axes(self) -> dict[int, str]:
        """The axes that differ from call to call."""
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}


class Layout(ABC):
    """The tensors of a decoder's state, and the way from it to them and back."""

    kept: list[Kept]

    @abstractmethod
    def tensors(self, state: State) -> dict[str, Tensor]:
        """Those of a state before the first token or after a step."""

    @abstractmethod
    def state(self, given: dict[str, Tensor]) -> State:
        """The state before a step."""

    def start(self, model: Writer, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token, of padded sources `(sources, source, …)`."""
        return model.start(Rectangle.lay(source.flatten(0, 1), lengths, source.shape[1]))


class RecurrentLayout(Layout):
    """A carry, and what the context mode needs."""

    def __init__(self, decoder: RecurrentDecoder, *, source: bool) -> None:
        d_model, attention = decoder.carry_shape[-1], decoder.attention
        begins = "encoder" if source else "zeros"
        self.kept = [Kept("carry", "row", ("rows", *decoder.carry_shape), begins)]
        if decoder.mode.enters == "output":
            self.kept.append(Kept("fed", "row", ("rows", d_model), "zeros"))
        if decoder.mode.context == "summary":
            self.kept.append(Kept("summary", "source", ("sources", d_model), begins))
        if attention is not None:
            heads = attention.heads or 1
            shape = ("sources", heads, "source", d_model // heads)
            self.kept += [Kept(name, "source", shape, begins) for name in ("values", "keys")]
            self.kept.append(Kept("mask", "source", ("sources", "source"), begins, "bool"))

    def tensors(self, state: State) -> dict[str, Tensor]:
        assert isinstance(state, RecurrentState), "this is the state of another decoder"
        return {"carry": state.carry, "fed": state.fed, **({} if state.view is None else vars(state.view))}

    def state(self, given: dict[str, Tensor]) -> RecurrentState:
        carry = given["carry"]
        # A view has all of these; what its decoder does not look at is left out of the graph.
        summary = given.get("summary", given["values"][:, 0, 0] if "values" in given else carry)
        values, keys, mask = (given.get(name, summary) for name in ("values", "keys", "mask"))
        return RecurrentState(carry, given.get("fed", carry), View(summary, values, keys, mask, mask))


class TransformerLayout(Layout):
    """What each block keeps of the target so far, and of the source. Where the source stands before the target
    (`before`), it is part of the past, and `real` tells what of the past is no padding."""

    def __init__(self, decoder: TransformerDecoder, *, before: bool) -> None:
        self.decoder, self.before = decoder, before
        attention = decoder.blocks[0].self_attention
        self.shape = (2, attention.heads, attention.d_model // attention.heads)
        self.cross, layers = decoder.blocks[0].cross, range(len(decoder.blocks))
        begins = "encoder" if before else "zeros"
        self.kept = [Kept(f"past_{i}", "row", ("rows", "past", *self.shape), begins, grows=1) for i in layers]
        if before:
            self.kept.append(Kept("real", "row", ("rows", "past"), begins, "bool", grows=1))
        if self.cross:
            shape = ("sources", "source", *self.shape)
            self.kept += [Kept(f"source_{i}", "source", shape, "encoder") for i in layers]
            self.kept.append(Kept("mask", "source", ("sources", "source"), "encoder", "bool"))

    def tensors(self, state: State) -> dict[str, Tensor]:
        assert isinstance(state, TransformerState), "this is the state of another decoder"
        found = {f"source_{i}": both for i, both in enumerate(state.source)}
        caches: Any = state.caches
        found |= {f"past_{i}": cache.grown for i, cache in enumerate(caches) if isinstance(cache, Growing)}
        if state.mask is not None:
            found["mask"] = state.mask.flatten(1)
        return found if state.real is None else {**found, "real": state.real}

    def state(self, given: dict[str, Tensor]) -> TransformerState:
        pasts = [given[f"past_{i}"] for i in range(len(self.decoder.blocks))]
        caches: Any = tuple(Growing(past, 1) for past in pasts)
        source = tuple(given[f"source_{i}"] for i in range(len(pasts))) if self.cross else ()
        mask = given["mask"][:, None, None, :] if self.cross else None
        at = torch.arange(pasts[0].shape[1] + 1)[-1:]  # as a tensor: how long a past is, the graph finds out
        real = torch.cat((given["real"], torch.zeros_like(given["real"][:, :1])), dim=1) if self.before else None
        return TransformerState(caches, source, mask, at, real=real)

    def start(self, model: Writer, source: Tensor, lengths: Tensor) -> State:
        if not self.before:
            return super().start(model, source, lengths)
        # All rows end in the same slot, so that what comes next has the same slot in all of them.
        longest = source.shape[1]
        back = (torch.arange(longest) + lengths[:, None] - longest).clamp(min=0)  # before a row, any token will do
        tokens = Rectangle.lay(source.gather(1, back).flatten(), lengths, longest, flush_right=True)
        empty = self.decoder.embedding.table.weight.new_zeros(source.shape[0], 0, *self.shape)
        caches: Any = tuple(Growing(empty, longest) for _ in self.decoder.blocks)
        return self.decoder.read(tokens, TransformerState(caches, (), None, 0))[1]


def layout_of(task: Writing) -> Layout:
    """How the state of a task's decoder is laid out."""
    decoder: Any = task.model.decoder
    given = task.config.data.source != "none"
    if isinstance(decoder, RecurrentDecoder):
        return RecurrentLayout(decoder, source=given)
    return TransformerLayout(decoder, before=given and isinstance(task.model, OneNetwork))


def facts(task: Writing, layout: Layout) -> dict[str, Any]:
    """All that a runtime has to know: `runner.json`."""
    kind, search, shared = task.config.data.source, task.config.search, task.source.tokenizer is task.target
    source: dict[str, Any] = {"kind": kind}
    if kind == "text":
        source |= {"tokens": "tokens" if shared else "source", "end": task.source.pack([[]]).values.tolist()}
    if isinstance(task.source, Pictures):
        source |= {"side": task.source.side}
    return {
        "format": 1,
        "regard": regard.__version__,
        "encoder": None if kind == "none" else ENCODER,
        "step": STEP,
        "source": source,
        "target_tokens": "target" if kind == "text" and not shared else "tokens",
        "vocabulary": task.target.size,
        "marks": {"first": task.first, "end": EOS, "unknown": UNK, "forbidden": [PAD, UNK, BOS, SEP, MASK]},
        "positions": task.longest,
        "search": {name: getattr(search, name) for name in RunnerSearch.__dataclass_fields__},
        "state": [{**asdict(kept), "after": kept.after} for kept in layout.kept],
    }


# The graphs


class _Encode(nn.Module):
    """Padded sources and their lengths to what a decoder starts from."""

    def __init__(self, model: Writer, layout: Layout) -> None:
        super().__init__()
        self.model, self.layout = model, layout
        self.names = [kept.name for kept in layout.kept if kept.begins == "encoder"]

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        found = self.layout.tensors(self.layout.start(self.model, source, lengths))
        return tuple(found[name] for name in self.names)


class _Step(nn.Module):
    """A token for each row and the state to log-probabilities of the next, and the state after."""

    def __init__(self, model: Writer, layout: Layout) -> None:
        super().__init__()
        self.model, self.layout = model, layout

    def forward(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        given = {kept.name: tensor for kept, tensor in zip(self.layout.kept, state, strict=True)}
        log_probs, after = self.model.step(tokens, self.layout.state(given))
        found = self.layout.tensors(after)
        return log_probs, *(found[kept.name] for kept in self.layout.kept if kept.after)


def trace(task: Writing, layout: Layout, folder: Path) -> None:
    """Write the graphs."""
    kept = layout.kept
    if task.config.data.source != "none":
        encode = _Encode(task.model, layout)
        rows, longest = SIZES["sources"], SIZES["source"]
        source, axes = torch.ones(rows, longest, dtype=torch.long), {0: "sources", 1: "source"}
        lengths = torch.arange(longest - rows, longest) + 1
        if isinstance(task.source, Pictures):  # which are all of one size
            side = task.source.side
            source, axes = torch.zeros(rows, side, 3 * side, dtype=torch.uint8), {0: "sources"}
            lengths = torch.full((rows,), side)
        _write(folder / ENCODER, encode, (source, lengths), (axes, {0: "sources"}), ["source", "lengths"], encode.names)
    _write(
        folder / STEP,
        _Step(task.model, layout),
        (torch.ones(SIZES["rows"], dtype=torch.long), *(one.example() for one in kept)),
        ({0: "rows"}, tuple(one.axes() for one in kept)),
        ["tokens", *(one.name for one in kept)],
        ["log_probs", *(one.after for one in kept if one.after)],
    )


def _write(
    path: Path, module: nn.Module, given: tuple[Tensor, ...], axes: tuple[Any, ...], inputs: list[str],
    outputs: list[str],
) -> None:  # fmt: skip
    prepare(module)
    with traceable():
        program = torch.onnx.export(
            module, given, dynamic_shapes=axes, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
        )
        assert program is not None, "a program is made where no file is named"
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # where in whose files each line of code stands
        program.save(path)


# Held against each other


def compare(task: Writing, made: Path, folder: Path, count: int) -> Report:
    """Search for some sources with both. A difference beyond rounding is an error."""
    items, prefixes, made_up = _sources(task, count)
    runner = Runner(made)
    plain = {"nbest": 1, "sample": False, "mbr": 0, "contrastive": 0.0, "groups": 1, "coverage": 0.0}
    known = task.config.search
    same, difference = {}, 0.0
    for beam in dict.fromkeys((1, known.beam)):
        theirs = runner.search(items, prefixes, beam=beam)
        ours = task.search(items, known.model_copy(update={**plain, "beam": beam}), prefixes=prefixes)
        pairs = [(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)]
        same[beam] = [one.tokens == other.tokens for one, other in pairs]
        for i, (one, other) in enumerate(pairs):
            apart = _apart(one, other)
            if apart > TOLERANCE and not _tie(task, items[i], one.tokens):
                raise ModelError(
                    f"the export does not write what the model writes, and is thrown away: with beam {beam}, "
                    f"{other.tokens} of score {other.score:.5f} for {one.tokens} of {one.score:.5f}"
                )
            if one.tokens == other.tokens and apart <= TOLERANCE:
                difference = max(difference, apart)
    return Report(
        folder=str(folder),
        bytes=sum(path.stat().st_size for path in made.iterdir()),
        lines=len(items),
        made_up=made_up,
        beam=known.beam,
        greedy_same=sum(same[1]),
        beam_same=sum(same[known.beam]),
        difference=difference,
        left_out=[f"search.{name}" for name in plain if name != "nbest" and getattr(known, name) != plain[name]],
    )


def _apart(one: Hypothesis, other: Found) -> float:
    """How far the scores of two outputs are apart; outputs that nothing closed have none."""
    return 0.0 if one.score == other.score else abs(one.score - other.score)


def _tie(task: Writing, item: Item, tokens: list[int]) -> bool:
    """Whether hard attention had two places to choose from, on the way to an output, that were as good: rounding then
    decides, and what follows is another thing."""
    gaps = []

    def choose(self: HardAttention, weights: Tensor, rows: Tensor) -> Tensor:
        if weights.shape[-1] > 1:
            first, second = weights.topk(2).values.unbind(-1)
            gaps.append(float((first - second).min()))
        return plainly(self, weights, rows)

    plainly = HardAttention.choose
    with patch.object(HardAttention, "choose", choose):
        task.score_items([item], [tokens])
    return min(gaps, default=1.0) < ROUNDING


def _sources(task: Writing, count: int) -> tuple[list[Item], list[list[int]], bool]:
    """Some validation data as sources, and how outputs begin; where the files are not there, drawn from a seed, and
    True. A language model goes on from the first tokens of a text."""
    begin = min(4, task.config.search.max_length)
    try:
        texts = [example.source or example.target for example in read_examples(task.config.data, "valid")]
        some = min(count, len(texts))
        texts = [texts[i * len(texts) // some] for i in range(some)]
        items = list(task.source.encode_many(texts))
        starts = [task.target.encode(task.source.prompt(text))[:begin] for text in texts]
        usable = [i for i, item in enumerate(items) if not task.source.problem(item, _longest(task))]
        if usable:
            return [items[i] for i in usable], [starts[i] for i in usable], False
    except (ConfigError, DataError, OSError):
        pass
    draw = random.Random(1)
    nothing: list[list[int]] = [[] for _ in range(count)]

    def tokens(size: int, least: int, most: int) -> list[list[int]]:
        return [[draw.randrange(len(MARKS), size) for _ in range(draw.randint(least, most))] for _ in range(count)]

    if task.config.data.source == "none":
        return list(nothing), tokens(task.target.size, 0, begin), True
    if isinstance(task.source, Pictures):
        pixels = np.random.default_rng(1).integers(256, size=(count, task.source.side, 3 * task.source.side))
        return list(pixels.astype(np.uint8)), nothing, True
    return list(tokens(task.source.size, 1, min(24, _longest(task)))), nothing, True


def _longest(task: Writing) -> int:
    return min(task.config.search.max_source, task.longest - 1)
