"""What in the source an output depends on, by other means than attention: by gradients, and by leaving parts out.

Every vector `x_j` with which the source enters a network (what its stem makes of it; a token's embedding, where a
decoder alone reads it) is multiplied by a gate `g_j`, which is 1. For each target token `y_t`,

- `gradient` is `|∂ log p(y_t) / ∂ g_j| = |x_j · ∂ log p(y_t) / ∂ x_j|`, gradient times input (Shrikumar et al. 2016);
- `erasure` is how much `log p(y_t)` falls with `g_j = 0` (Li et al. 2016, "Understanding Neural Networks through
  Representation Erasure"), 0 where it rises;

each as shares of 1 over the source. Which of them, and which attention, is to be believed says `faithfulness`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import IGNORED, Batch
from regard.data.side import Item
from regard.errors import ConfigError
from regard.evaluation.alignment import Weights
from regard.explain.trace import Explanation, Layer
from regard.inspection.inspect import written_by
from regard.models.encoders import SeveralEncoders
from regard.models.model import AutoregressiveModel
from regard.models.stems import Stem
from regard.nn.edits import Edits, edited
from regard.nn.graphs import exclusive
from regard.ragged import Ragged
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Tokens
from regard.tasks.task import Task

Method = Literal["gradient", "erasure"]
METHODS: tuple[Method, ...] = ("gradient", "erasure")
SHARE = 0.2  # of the source, which `faithfulness` leaves out
AT_ONCE = 2048  # positions of source and target in a batch
DRAWS = 4  # of each token, for what chance would give
NONE = "gradient and erasure, which say what each written token depends on, say nothing of it; explain by attention"
RANDOM = "random"  # the name of that


class Gate(nn.Module):
    """Multiplies each vector that a module makes by a number of its own."""

    numbers: Tensor  # (total,)

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> Tensor:
        """That of an embedding, of which others ask where it lies."""
        weight: Tensor = self.inner.weight  # type: ignore[assignment]
        return weight

    def forward(self, *given: Any) -> Any:
        found = self.inner(*given)
        if isinstance(found, Ragged):
            return found.like(found.values * self.numbers[:, None])
        return found * self.numbers[:, None]


class GatedPair:
    """One source and target, whose `log p` is a function of gates on the source."""

    def __init__(self, task: TextGeneration, item: Item, target: Tokens, explanation: Explanation) -> None:
        self.task, self.item, self.target = task, item, target
        self.model: AutoregressiveModel = edited(task.model, Edits())  # a copy of its own, to put gates into
        self.pieces, self.tokens = len(explanation.source), len(explanation.target)
        self.parts = [slice(part.start, part.end) for part in explanation.parts] or [slice(0, self.pieces)]
        self.by_part = self._insert()

    def _insert(self) -> list[list[Gate]]:
        """Gates, those of each encoder."""
        model: Any = self.model
        if model.reads_source_first:
            model.decoder.embedding.table = Gate(model.decoder.embedding.table)
            return [[model.decoder.embedding.table]]
        if getattr(model, "encoder", None) is None:
            raise ConfigError("an ensemble has several readers of its source; explain one of its models")
        bodies = list(model.encoder.encoders) if isinstance(model.encoder, SeveralEncoders) else [model.encoder]
        gates = []
        for body in dict.fromkeys(bodies):
            stems = [(name, child) for name, child in body.named_children() if isinstance(child, Stem)]
            for name, child in stems:
                setattr(body, name, Gate(child))
            gates.append([getattr(body, name) for name, _ in stems])
        return gates

    def _set(self, numbers: Tensor, batch: Batch) -> None:
        """Gates `(rows, source)`, for a batch."""
        if self.model.reads_source_first:  # and then the target, which has no gates
            assert isinstance(batch.source, Ragged), "a decoder alone reads one text"
            read = (batch.source.values.shape[0] + batch.inputs.values.shape[0]) // len(numbers)
            whole = torch.cat((numbers, numbers.new_ones(len(numbers), read - self.pieces)), dim=1)
            self.by_part[0][0].numbers = whole.flatten()
            return
        by_part = [numbers[:, part].flatten() for part in self.parts]
        if len(self.by_part) < len(by_part):  # one encoder reads all sources, one after the other
            by_part = [torch.cat(by_part)]
        for gates, own in zip(self.by_part, by_part, strict=True):
            for gate in gates:
                gate.numbers = own

    def log_probs(self, numbers: Tensor) -> Tensor:
        """`log p` of each target token that is shown, `(rows, target)`, under gates `(rows, source)`."""
        rows, task = len(numbers), self.task
        batch = task.batch([self.item] * rows, [self.target] * rows).to(task.device)
        self._set(numbers, batch)
        logits = self.model(batch.source, batch.inputs).values
        found = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        outputs = batch.outputs.values
        chosen = found.gather(1, outputs.clamp(min=0)[:, None]).squeeze(1)[outputs != IGNORED]
        return chosen.view(rows, -1)[:, -self.tokens :]

    def ones(self, rows: int) -> Tensor:
        """Gates that let everything through."""
        weight = next(self.model.parameters())
        return torch.ones(rows, self.pieces, dtype=weight.dtype, device=weight.device)

    def in_chunks(self, rows: int, each: Callable[[range], Tensor]) -> Tensor:
        """What `each` gives for some rows at a time, one below the other."""
        size = max(1, AT_ONCE // (self.pieces + self.tokens))
        # Where there is no gradient, kernels embed tokens without asking a gate.
        with exclusive(self.task.device), torch.inference_mode(False), torch.enable_grad():
            return torch.cat([each(range(rows)[i : i + size]).detach() for i in range(0, rows, size)])

    def own(self) -> Tensor:
        """`log p` of each token as it is, `(target,)`."""
        return self.in_chunks(1, lambda rows: self.log_probs(self.ones(1)))[0]

    def gradient(self) -> Tensor:
        """`∂ log p(y_t) / ∂ g_j`, `(target, source)`."""

        def each(rows: range) -> Tensor:
            gates = self.ones(len(rows)).requires_grad_()
            own = self.log_probs(gates)[torch.arange(len(rows)), torch.tensor(rows)]
            (found,) = torch.autograd.grad(own.sum(), gates)
            return found

        return self.in_chunks(self.tokens, each)

    def without(self, left_out: Tensor) -> Tensor:
        """`log p` of each token, `(rows, target)`, without what is True in `(rows, source)`."""
        return self.in_chunks(
            len(left_out),
            lambda rows: self.log_probs(self.ones(len(rows)).masked_fill(left_out[rows.start : rows.stop], 0.0)),
        )

    def erasure(self) -> Tensor:
        """How much `log p` of each token falls without each source vector, `(target, source)`."""
        alone = torch.eye(self.pieces, dtype=torch.bool, device=self.task.device)
        return (self.own() - self.without(alone)).mT


def attributed(
    task: Task, item: Item, target: Tokens, explanation: Explanation, methods: Sequence[Method]
) -> Explanation:
    """With a layer for each of the methods, the first of which is what to show first, and how faithful each layer over
    the source is."""
    if unknown := [method for method in methods if method not in METHODS]:
        raise ConfigError(f"no method '{unknown[0]}'; there are: {', '.join(METHODS)}")
    pair = GatedPair(written_by(task, NONE), item, target, explanation)
    found = {"gradient": lambda: pair.gradient().abs(), "erasure": lambda: pair.erasure().clamp(min=0.0)}
    layers = [Layer(method, "cross", _shares(found[method]())[None]) for method in methods]
    explanation = replace(explanation, layers=[*explanation.layers, *layers], best=methods[0])
    return replace(explanation, faithfulness=faithfulness(pair, explanation.layers))


def _shares(found: Tensor) -> Weights:
    """As shares of 1 over the source; zeros where there are none."""
    found = torch.nan_to_num(found.double().cpu())
    return (found / found.sum(-1, keepdim=True).clamp(min=1e-30)).float().numpy()


def faithfulness(pair: GatedPair, layers: Sequence[Layer]) -> dict[str, float]:
    """How well each layer over the source says what each token depends on: by how much `log p` of it falls, in the
    mean, without the fifth of the source that the layer gives most weight to (comprehensiveness, DeYoung et al. 2020).
    `random` is what a fifth that is drawn gives. Heads count as their mean."""
    own, count = pair.own(), max(1, math.ceil(SHARE * pair.pieces))
    draw = np.random.default_rng(0)
    drawn = draw.random((DRAWS, pair.tokens, pair.pieces), dtype=np.float32)
    ranked: dict[str, list[Weights]] = {x.name: [x.weights.mean(0)] for x in layers if x.kind == "cross"}
    found = {}
    for name, several in (ranked | {RANDOM: list(drawn)}).items():
        falls = []
        for weights in several:
            top = torch.from_numpy(np.ascontiguousarray(weights)).topk(count, dim=-1).indices.to(own.device)
            left_out = torch.zeros(pair.tokens, pair.pieces, dtype=torch.bool, device=own.device).scatter(1, top, True)
            falls.append(float((own - pair.without(left_out).diagonal()).mean()))
        found[name] = math.fsum(falls) / len(falls)
    return found
