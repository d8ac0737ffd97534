"""What is drawn on a canvas: how much attention each cell gets, for each word of the target or from a layer as a
whole."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regard.evaluation.alignment import Weights, merge_words
from regard.explain.drawing import shorten
from regard.explain.trace import ROLLOUT, Explanation, Layer

Table = list[list["Look | None"]]  # a row for each head


@dataclass(frozen=True)
class Look:
    """Attention over the cells of a canvas, under its label; the cells that are right, where that is known; and what is
    drawn as if it were none."""

    label: str
    cells: Weights
    gold: frozenset[int] = frozenset()
    least: float = 0.0

    @property
    def share(self) -> Weights:
        """From 0 to 1, for the cell that has most; each word has a scale of its own."""
        above = (self.cells - self.least).clip(min=0)
        return (above / max(float(above.max(initial=0)), 1e-9)).astype(np.float32)


def by_layer(explanation: Explanation, layer: str | None) -> bool:
    """Whether all layers are shown: where none is named and the target attends to nothing, as under a label."""
    return layer is None and explanation.best is None


def looks(explanation: Explanation, layer: str | None = None, head: int | None = None) -> list[Look]:
    """What to show of one layer, of one of its heads (from 0) or their mean: each word of the target; of an encoder's
    layer, the whole; of no named one under a label, each layer's whole and then their rollout."""
    if not by_layer(explanation, layer):
        return _of(explanation, explanation.layer(layer), explanation.weights(layer, head))
    names = [x.name for x in explanation.encoder_layers]
    found = [_whole(explanation, explanation.weights(name, head), f"layer {i}") for i, name in enumerate(names, 1)]
    return [*found, _rollout(explanation)]


def head_looks(explanation: Explanation, layer: str | None = None) -> Table:
    """A row for each head of what `looks` shows of their mean; rollout, which has but one, is in the first row."""
    if not by_layer(explanation, layer):
        chosen = explanation.layer(layer)
        return [list(_of(explanation, chosen, weights)) for weights in chosen.weights]
    layers = explanation.encoder_layers
    rows: Table = [
        [
            _whole(explanation, x.weights[head], f"layer {i}") if head < len(x.weights) else None
            for i, x in enumerate(layers, 1)
        ]
        for head in range(max(len(x.weights) for x in layers))
    ]
    rows[0].append(_rollout(explanation))
    return rows


def viewpoint(explanation: Explanation) -> str:
    """Of what the attention of a layer is shown as a whole: a class token, if there is one, or else all cells."""
    return "the class token" if explanation.source_word[0] < 0 else "the mean of all cells"


def heading(explanation: Explanation, layer: str | None, head: int | None, *, heads: int = 0) -> str:
    """What is shown, in words; with `heads`, that each of so many is."""
    each = f"{heads} head{'s' * (heads > 1)}"
    if not by_layer(explanation, layer):
        chosen = explanation.layer(layer)
        title = f"{chosen.name}, {each}" if heads else explanation.title(layer, head)
        from_where = f", from {viewpoint(explanation)}" if chosen.kind == "encoder" else ""
        return title + from_where
    shown = each if heads else f"head {head}" if head is not None else "mean of heads"
    return f"{len(explanation.encoder_layers)} layers, {shown}, from {viewpoint(explanation)}"


def _of(explanation: Explanation, layer: Layer, weights: Weights) -> list[Look]:
    if layer.kind == "encoder":
        return [_rollout(explanation) if layer.name == ROLLOUT else _whole(explanation, weights, "")]
    words, numbers = explanation.steps()
    merged = merge_words(np.nan_to_num(weights), numbers, explanation.source_word)
    first = [numbers.index(i) for i in range(len(words))]  # the first piece of each
    found = [
        Look(shorten(word), cells, gold_cells(explanation, explanation.target_word[piece]))
        for word, cells, piece in zip(words, merged, first, strict=True)
    ]
    return [_above_least(look) for look in found] if layer.name == ROLLOUT else found


def gold_words(explanation: Explanation) -> list[Look]:
    """The words of the target of which it is known where they belong, with no attention."""
    words, numbers = explanation.steps()
    none = np.zeros(explanation.canvas.cells if explanation.canvas else 0, dtype=np.float32)
    cells = [gold_cells(explanation, explanation.target_word[numbers.index(i)]) for i in range(len(words))]
    return [Look(shorten(word), none, gold) for word, gold in zip(words, cells, strict=True) if gold]


def gold_cells(explanation: Explanation, word: int) -> frozenset[int]:
    """The cells that belong to a word of the target; a word may end after the last of them."""
    cells = explanation.canvas.cells if explanation.canvas else 0
    return frozenset(cell for cell, other in explanation.gold if other == word >= 0 and cell < cells)


def _whole(explanation: Explanation, weights: Weights, label: str) -> Look:
    """What a layer, or rollout, attends to on the whole; see `viewpoint`."""
    row = weights[0] if explanation.source_word[0] < 0 else weights.mean(axis=0)
    return Look(label, merge_words(np.nan_to_num(row)[None], [0], explanation.source_word)[0])


def _rollout(explanation: Explanation) -> Look:
    return _above_least(_whole(explanation, explanation.rollout(), ROLLOUT))


def _above_least(look: Look) -> Look:
    """Something of each cell comes through all layers: drawn of rollout is what is more than that."""
    least, most = float(look.cells.min(initial=1)), float(look.cells.max(initial=0))
    return replace(look, least=least if most > least else 0.0)
