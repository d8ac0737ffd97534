"""Attention as it would be were it otherwise: heads switched off, rows of weights replaced by hand.

Lee et al. 2017 ("Interactive Visualization and Manipulation of Attention-based Neural Machine Translation") let a user
move attention and watch the output change; Voita et al. 2019 and Michel et al. 2019 leave heads out to see which are
needed. `edited` gives a model of the same weights whose attention is edited so, in the full pass and step by step.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import ConfigError

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class RowEdit:
    """In the attention called `layer`, in one head (from 0) or all, the query at `position` (from 0) looks at its keys
    with these weights; they are normalised over the keys that it may see, and keys beyond them get none."""

    layer: str
    head: int | None
    position: int
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        where = f"position {self.position} of {self.layer}"
        if not 0 <= self.position < 2**31:
            raise ConfigError(f"no {where}; positions are counted from 0")
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights):
            raise ConfigError(f"weights for {where} should be numbers of 0 or more")
        if not sum(self.weights):
            raise ConfigError(f"weights for {where} are all 0; to leave attention out, switch heads off")


@dataclass(frozen=True)
class Edits:
    """What is changed inside a model: `heads_off` are (layer, head), whose contexts are zeros, `rows` are weights in
    place of the model's own. A head that is off stays off."""

    heads_off: tuple[tuple[str, int], ...] = ()
    rows: tuple[RowEdit, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.heads_off or self.rows)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Edits:
        """From plain data: `{"heads_off": [[layer, head], …], "rows": [{"layer", "head", "position", "weights"}, …]}`,
        where a head may be null or left out."""
        try:
            _only(data, {"heads_off", "rows"})
            off = tuple((str(layer), int(head)) for layer, head in data.get("heads_off", []))
            return Edits(off, tuple(_row(row) for row in data.get("rows", [])))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise ConfigError(
                f"these are no edits ({error}); write {{'heads_off': [[layer, head]], 'rows': [{{'layer': …, "
                "'head': …, 'position': …, 'weights': […]}]}"
            ) from None

    @staticmethod
    def off(heads: Iterable[str]) -> Edits:
        """Heads to switch off, each as `LAYER:HEAD`."""
        split = [(text, *text.rpartition(":")[::2]) for text in heads]
        if wrong := [text for text, layer, head in split if not (layer and head.isascii() and head.isdigit())]:
            raise ConfigError(f"'{wrong[0]}' is no head; write LAYER:HEAD, such as decoder.blocks.0.cross_attention:0")
        return Edits(tuple((layer, int(head)) for _, layer, head in split))

    @property
    def layers(self) -> set[str]:
        """The attention that is edited, by name."""
        return {layer for layer, _ in self.heads_off} | {row.layer for row in self.rows}

    def of(self, layer: str) -> LayerEdits:
        """What is edited in one layer."""
        off = frozenset(head for name, head in self.heads_off if name == layer)
        return LayerEdits(off, tuple(row for row in self.rows if row.layer == layer))


def _row(data: dict[str, Any]) -> RowEdit:
    _only(data, {"layer", "head", "position", "weights"})
    head = data.get("head")
    weights = tuple(map(float, data["weights"]))
    return RowEdit(str(data["layer"]), None if head is None else int(head), int(data["position"]), weights)


def _only(data: dict[str, Any], names: set[str]) -> None:
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} is no mapping")
    if unknown := sorted(set(data) - names):
        raise ValueError(f"unknown name '{unknown[0]}'")


@dataclass(frozen=True)
class LayerEdits:
    """What is edited in one attention."""

    off: frozenset[int]
    rows: tuple[RowEdit, ...]

    def __call__(self, weights: Tensor, seen: Tensor, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """Weights `(rows, heads, target, source)` as edited. `seen` spreads to that shape and is True where a query may
        look; `queries` `(rows or 1, target)` are the positions of queries, and `keys` `(rows or 1, source)` those of
        keys, unless they stand in order from 0."""
        head = torch.arange(weights.shape[1], device=weights.device)[:, None, None]  # (heads, 1, 1)
        if keys is None:
            keys = torch.arange(weights.shape[-1], device=weights.device)[None]
        for edit in self.rows:
            most, last = max(edit.weights), len(edit.weights)
            given = weights.new_tensor([*(weight / most for weight in edit.weights), 0.0])  # the last: of keys beyond
            row = given[torch.where((keys >= 0) & (keys < last), keys, last)][:, None, None, :]
            row = torch.where(seen, row, 0.0)
            row = row / row.sum(-1, keepdim=True).clamp(min=torch.finfo(row.dtype).tiny)
            here = (queries == edit.position)[:, None, :, None]
            weights = torch.where(here if edit.head is None else here & (head == edit.head), row, weights)
        if self.off:
            weights = weights.masked_fill(torch.isin(head, torch.tensor(sorted(self.off), device=head.device)), 0.0)
        return weights

    def check(self, layer: str, heads: int) -> None:
        """Refuse heads that there are not in a layer."""
        named = {*self.off, *(row.head for row in self.rows if row.head is not None)}
        if wrong := sorted(head for head in named if not 0 <= head < heads):
            raise ConfigError(f"no head {wrong[0]} in {layer}; there are {heads}, counted from 0")


class Editable(nn.Module, ABC):
    """An attention that can be edited; it consults `edits` where it has weights in hand. Without any, its computation
    does not know of them."""

    edits: LayerEdits | None = None

    @property
    @abstractmethod
    def head_count(self) -> int:
        """How many heads it has."""

    def edit(self, layer: str, edits: LayerEdits) -> None:
        """From now on with these edits; `layer` is what it is called in errors."""
        edits.check(layer, self.head_count)
        self.edits = edits


def editable(model: nn.Module) -> Iterator[tuple[str, Editable]]:
    """Every attention of a model that can be edited, by name."""
    for name, module in model.named_modules():
        if isinstance(module, Editable):
            yield name, module


@dataclass(frozen=True, eq=False)
class Origin:
    """What an edited model was made of."""

    model: nn.Module
    edits: Edits


def origin_of(model: nn.Module) -> Origin | None:
    """What a model was made of by `edited`; None: it was not."""
    found: Origin | None = vars(model).get("origin")
    return found


def edited(model: M, edits: Edits) -> M:
    """A model that has the weights of this one, the very tensors, and whose attention is edited. The other stays as it
    is; with no edits, both compute the same bits. It is made to be looked at and not to be trained."""
    names = [name for name, _ in editable(model)]
    if unknown := sorted(edits.layers - set(names)):
        there = f"there are: {', '.join(names)}" if names else "it has no attention that can be"
        raise ConfigError(f"no attention '{unknown[0]}' to edit in this model; {there}")
    shared: list[Any] = [*model.parameters(), *model.buffers(), origin_of(model)]
    made = copy.deepcopy(model, {id(one): one for one in shared}).eval()
    made.origin = Origin(model, edits)  # type: ignore[assignment]
    for name, module in editable(made):
        if name in edits.layers:
            module.edit(name, edits.of(name))
    return made


def shifted(edits: Edits, layers: dict[str, tuple[int, int]]) -> Edits:
    """With positions of queries and keys moved on, by as much as is said of a layer; weights of 0 are filled in."""

    def moved(row: RowEdit) -> RowEdit:
        queries, keys = layers.get(row.layer, (0, 0))
        return replace(row, position=row.position + queries, weights=(*[0.0] * keys, *row.weights))

    return replace(edits, rows=tuple(map(moved, edits.rows)))
