"""Export to ONNX: what reads a source as one graph, a decoder's step as another, checked against the model.

    report = export(system, "runs/demo-onnx")
    print(report)

An exported folder is whole: `encoder.onnx` (none for a language model), `step.onnx`, the tokenizers, `config.yaml`,
`runner.json`, which says how a runtime drives the graphs, and `runner.pyz`, a program that does, without torch:

    pip install onnxruntime numpy sentencepiece     # and pillow, for pictures
    python runs/demo-onnx/runner.pyz < input.txt

The graphs are traced by `torch.onnx.export(dynamo=True)` from the model's own modules; `onnx_trace.py` has the few that
take the place of others.
"""

from __future__ import annotations

import copy
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.artifacts import new_folder, write_text
from regard.config import dump
from regard.data.side import Item
from regard.errors import ConfigError, require
from regard.exchange.onnx_runner import RUNNER, SETTINGS, Runner
from regard.exchange.onnx_trace import GrowingCache, Padded, exportable, quiet
from regard.exchange.parity import PLAIN, Report, check_rules, compare
from regard.loading import CONFIG
from regard.models.model import AutoregressiveModel, DecoderOnly, EncoderDecoder, State
from regard.models.recurrent import RecurrentDecoder, RecurrentState, View
from regard.models.transformer import TransformerDecoder, TransformerState
from regard.search.limits import Hypothesis
from regard.search_settings import Search
from regard.system import System
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Tokens

KIND = "ONNX export"
ENCODER, STEP, PROGRAM = "encoder.onnx", "step.onnx", "runner.pyz"
MASKS = ("mask", "real")  # tensors of a state that hold truths
SIZES = {"rows": 6, "sources": 3, "source": 5, "past": 4}  # of what is traced; in use they may be any
MODULES = (
    "errors", "artifacts", "data/__init__", "data/marks", "data/words", "data/tokens", "data/forms",
    "data/tokenizers/__init__", "data/tokenizers/kinds", "data/tokenizers/subwords", "data/tokenizers/symbols",
    "data/tokenizers/prefixed", "data/tokenizers/published",
    "data/readers/__init__", "data/readers/archives", "data/readers/members", "data/modalities/__init__",
    "data/modalities/pixels", "exchange/__init__", "exchange/onnx_runner",
)  # fmt: skip


def export(system: System, folder: str | Path, *, lines: int = 16, force: bool = False) -> Report:
    """Write a model as ONNX graphs, and compare what they write with what it writes on some validation data.

    `force` replaces an older export, and nothing else. A folder that writes something else than Regard is an error, and
    thrown away.
    """
    task, folder = system.task, Path(folder)
    if not system.config.target.text:
        raise ConfigError(f"target.kind is '{system.config.target.kind}': only what writes text can be exported")
    if not isinstance(task.model, AutoregressiveModel):
        raise ConfigError("model.decoder.kind is none: an encoder alone writes nothing, so there is no step to export")
    if system.config.model.ctc:
        raise ConfigError("models with model.ctc cannot be exported: Regard alone sums over the paths of CTC")
    if system.config.model.output != "full":
        raise ConfigError("models with model.output adaptive cannot be exported: its clusters are Regard's own")
    if not isinstance(task, TextGeneration) or not isinstance(task.model, EncoderDecoder | DecoderOnly):
        raise ConfigError("an ensemble is several models, which ONNX runs one at a time; export each by itself")
    if system.config.denoises:
        raise ConfigError(f"{system.folder} learnt to undo noise alone; export the model of a task that begins from it")
    decoder: Any = task.model.decoder
    if not isinstance(decoder, RecurrentDecoder | TransformerDecoder):
        kind = system.config.model.decoder.kind
        raise ConfigError(f"model.decoder.kind {kind} cannot be exported to ONNX; rnn, lstm, gru and transformer can")
    if task.source.export() is None:
        kinds = " and ".join(side.kind for side in system.config.sources)
        raise ConfigError(f"models whose source is {kinds} cannot be exported to ONNX")
    check_rules(task)
    for part in system.config.model.encoders:
        if segments := getattr(part.stem, "segments", 0):
            raise ConfigError(
                f"model.encoder.stem.segments is {segments}: ONNX graphs do not count separators; set it to 0"
            )
    require("onnx", "onnxscript", "onnxruntime")
    with new_folder(folder, KIND, force=force) as new:
        model = copy.deepcopy(task.model).to("cpu", torch.float32).eval()
        task = replace(task, model=model, device=torch.device("cpu"))  # what the graphs are compared with
        task.sides.save(new)
        write_text(new / CONFIG, dump(task.config))
        write_text(new / RUNNER, json.dumps(facts(task), indent=1) + "\n")
        write_program(new / PROGRAM)
        trace(task, new)
        runner, search = Runner(new), task.config.search

        def decode(items: Sequence[Item], settings: Search, prefixes: Sequence[Tokens]) -> list[list[Hypothesis]]:
            return [[Hypothesis(*one) for one in some] for some in runner.search(items, prefixes, beam=settings.beam)]

        left_out = [f"search.{name}" for name in PLAIN if name != "nbest" and getattr(search, name) != PLAIN[name]]
        return compare(task, decode, search, lines, folder, new, left_out=left_out)


# A decoder's state as tensors with names


class Layout(ABC):
    """The tensors of a decoder's state, and the way from it to them and back."""

    shapes: dict[str, tuple[int | str, ...]]  # a word is a size that differs from call to call; `rows` are hypotheses
    started: list[str]  # those that reading a source gives; others begin as zeros

    @abstractmethod
    def tensors(self, state: State) -> dict[str, Tensor]:
        """Those of a state before the first token or after a step."""

    @abstractmethod
    def state(self, given: dict[str, Tensor]) -> State:
        """The state before a step."""

    def start(self, model: AutoregressiveModel, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token, of padded sources `(sources, source, …)`."""
        return model.start(Padded.of_rows(source.flatten(0, 1), lengths, source.shape[1]))


class RecurrentLayout(Layout):
    """A carry, and what the decoder needs of the source."""

    def __init__(self, decoder: RecurrentDecoder) -> None:
        d_model, attention = decoder.carry_shape[-1], decoder.attention
        self.shapes = {"carry": ("rows", *decoder.carry_shape)}
        if decoder.mode.enters == "output":
            self.shapes["fed"] = ("rows", d_model)
        if decoder.mode.context == "summary":
            self.shapes["summary"] = ("sources", d_model)
        if attention is not None:
            heads = attention.heads or 1
            self.shapes["values"] = self.shapes["keys"] = ("sources", heads, "source", d_model // heads)
            self.shapes["mask"] = ("sources", "source")
            if decoder.looks_back:
                self.shapes["past"] = ("rows", heads, "source")
        self.started = list(self.shapes)

    def tensors(self, state: State) -> dict[str, Tensor]:
        assert isinstance(state, RecurrentState), "this is the state of another decoder"
        own = {"carry": state.carry, "fed": state.fed, "past": state.past}
        return {**own, **({} if state.view is None else vars(state.view))}

    def state(self, given: dict[str, Tensor]) -> RecurrentState:
        carry = given["carry"]
        # A view has all of these; what its decoder does not look at is left out of the graph.
        summary = given.get("summary", given["values"][:, 0, 0] if "values" in given else carry)
        values, keys, mask = (given.get(name, summary) for name in ("values", "keys", "mask"))
        past = given.get("past", carry)
        return RecurrentState(carry, given.get("fed", carry), past, View(summary, values, keys, mask, mask))


class TransformerLayout(Layout):
    """The cache of each block, and its keys and values of the source. Where the source stands before the target
    (`before`), it is part of the cache, and the mask `real` is False where the cache holds padding."""

    def __init__(self, decoder: TransformerDecoder, *, before: bool) -> None:
        self.decoder, self.before, self.cross = decoder, before, decoder.blocks[0].cross
        attention, layers = decoder.blocks[0].self_attention, range(len(decoder.blocks))
        self.shape = (2, attention.heads, attention.d_head)
        self.shapes = {f"past_{i}": ("rows", "past", *self.shape) for i in layers}
        if before:
            self.shapes["real"] = ("rows", "past")
        if self.cross:
            self.shapes |= {f"source_{i}": ("sources", "source", *self.shape) for i in layers}
            self.shapes["mask"] = ("sources", "source")
        self.started = [name for name, shape in self.shapes.items() if before or shape[0] == "sources"]

    def tensors(self, state: State) -> dict[str, Tensor]:
        assert isinstance(state, TransformerState), "this is the state of another decoder"
        caches: Any = state.caches
        found = {f"source_{i}": both for i, both in enumerate(state.source)}
        found |= {f"past_{i}": cache.grown for i, cache in enumerate(caches) if isinstance(cache, GrowingCache)}
        if state.mask is not None:
            found["mask"] = state.mask.flatten(1)
        return found if state.real is None else {**found, "real": state.real}

    def state(self, given: dict[str, Tensor]) -> TransformerState:
        pasts = [given[f"past_{i}"] for i in range(len(self.decoder.blocks))]
        caches: Any = tuple(GrowingCache(past, 1) for past in pasts)
        source = tuple(given[f"source_{i}"] for i in range(len(pasts))) if self.cross else ()
        mask = given["mask"][:, None, None, :] if self.cross else None
        at = torch.arange(pasts[0].shape[1] + 1)[-1:]  # as a tensor: how long a past is, the graph finds out
        real = torch.cat((given["real"], torch.zeros_like(given["real"][:, :1])), dim=1) if self.before else None
        return TransformerState(caches, source, mask, at, real=real)

    def start(self, model: AutoregressiveModel, source: Tensor, lengths: Tensor) -> State:
        if not self.before:
            return super().start(model, source, lengths)
        # All rows end in the same slot, so that what comes next has the same slot in all of them.
        longest = source.shape[1]
        back = (torch.arange(longest) + lengths[:, None] - longest).clamp(min=0)  # before a row, any token will do
        tokens = Padded.of_rows(source.gather(1, back).flatten(), lengths, longest, flush_right=True)
        empty = self.decoder.embedding.table.weight.new_zeros(source.shape[0], 0, *self.shape)
        caches: Any = tuple(GrowingCache(empty, longest) for _ in self.decoder.blocks)
        return self.decoder.read(tokens, TransformerState(caches, (), None, 0))[1]


def layout_of(task: TextGeneration) -> Layout:
    """How the state of a task's decoder is laid out."""
    decoder: Any = task.model.decoder
    if isinstance(decoder, RecurrentDecoder):
        return RecurrentLayout(decoder)
    return TransformerLayout(decoder, before=task.together)


def facts(task: TextGeneration) -> dict[str, Any]:
    """What a runtime has to know beside the graphs: `runner.json`."""
    tokens = {side: name for name, sides in task.sides.vocabularies.items() for side in sides}
    forms = {name: side.form.to_json() for name, side in task.sides.texts.items()}
    marks = task.target.marks
    forbidden = list(marks.forbidden(unknown=False))
    source = {**(task.source.export() or {}), **({"tokens": tokens["source"]} if "source" in tokens else {})}
    return {
        "format": 2, "regard": regard.__version__, "encoder": ENCODER if task.config.sources[0].given else None,
        "step": STEP, "source": source, "target_tokens": tokens["target"], "forms": forms,
        "vocabulary": task.target.size,
        "marks": {"first": task.first[-1], "end": marks.end, "unknown": marks.unknown, "forbidden": forbidden},
        "positions": task.longest, "together": task.together,  # source and target share the positions
        "search": {name: getattr(task.config.search, name) for name in SETTINGS},
    }  # fmt: skip


def write_program(path: Path) -> None:
    """Write the runner as a program of its own: what it needs of Regard, in one file that Python runs."""
    package = Path(regard.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", "from regard.exchange.onnx_runner import main\n\nmain()\n")
        archive.writestr("regard/__init__.py", f'__version__ = "{regard.__version__}"\n')
        for name in MODULES:
            archive.write(package / f"{name}.py", f"regard/{name}.py")


# The graphs


class Traced(nn.Module):
    """A function of tensors, as a module that holds the weights it uses."""

    def __init__(self, model: nn.Module, function: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return self.function(*given)


def functions(model: AutoregressiveModel, layout: Layout) -> tuple[Traced, Traced]:
    """What is traced: padded sources and their lengths to what a decoder starts from; a token for each row and the
    state to log-probabilities of the next, and the state after."""

    def encode(source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        found = layout.tensors(layout.start(model, source, lengths))
        return tuple(found[name] for name in layout.started)

    def step(tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        log_probs, after = model.step(tokens, layout.state(dict(zip(layout.shapes, state, strict=True))))
        found = layout.tensors(after)
        return log_probs, *(found[name] for name, shape in layout.shapes.items() if shape[0] == "rows")

    return Traced(model, encode), Traced(model, step)


def trace(task: TextGeneration, folder: Path) -> None:
    """Write the graphs."""
    layout = layout_of(task)
    encode, step = functions(exportable(task.model), layout)
    if task.config.sources[0].given:
        rows, longest = SIZES["sources"], task.source.fixed_length or SIZES["source"]
        dtype = torch.long if task.source.vocabulary else getattr(torch, task.source.dtype)
        source, axes = torch.ones(rows, longest, *task.source.shape, dtype=dtype), {0: "sources", 1: "source"}
        lengths = torch.arange(longest - rows, longest) + 1
        if task.source.fixed_length:
            axes, lengths = {0: "sources"}, torch.full((rows,), longest)
        inputs = {"source": (source, axes), "lengths": (lengths, {0: "sources"})}
        write(folder / ENCODER, encode, inputs, layout.started)
    inputs = {"tokens": (torch.ones(SIZES["rows"], dtype=torch.long), {0: "rows"})}
    for name, shape in layout.shapes.items():
        sizes = [SIZES[size] if isinstance(size, str) else size for size in shape]
        example = torch.zeros(sizes, dtype=torch.bool if name in MASKS else torch.float32)
        inputs[name] = example, {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}
    after = [f"next_{name}" for name, shape in layout.shapes.items() if shape[0] == "rows"]
    write(folder / STEP, step, inputs, ["log_probs", *after])


def write(path: Path, module: nn.Module, inputs: dict[str, tuple[Tensor, dict[int, str]]], outputs: list[str]) -> None:
    """Trace a module and write its graph; `inputs` are examples, with the axes of each whose size may differ."""
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module, tuple(example for example, _ in inputs.values()), input_names=list(inputs), output_names=outputs,
            dynamic_shapes=(tuple(axes for _, axes in inputs.values()),), dynamo=True, verbose=False,
        )  # fmt: skip
        assert program is not None, "a program is made where no file is named"
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # where in whose files each line of code stands
        program.save(path)
