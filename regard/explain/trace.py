"""One format for what any model attended to, whatever its layers and heads."""

from __future__ import annotations

import html
import json
import math
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import write_text
from regard.data.modality import Canvas
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import Kind, Link, Weights, links, merge_words
from regard.explain.drawing import shorten

ROLLOUT = "rollout"  # the name by which it is asked for as if it were a layer


@dataclass(frozen=True)
class Layer:
    """The weights of one attention, `(heads, queries, keys)`; each row of a head sums to 1, or is zeros where there is
    nothing that it attends to. What CTC names when is kept as an attention too.

    `kind` says what attends to what: `cross`, the target to the source; `encoder`, the source to itself; `decoder`,
    the target so far to itself.
    """

    name: str  # the module, e.g. decoder.blocks.1.cross_attention
    kind: Kind
    weights: Weights
    part: int = 0  # where one of several sources attends to itself: which (from 1)


@dataclass(frozen=True)
class Part:
    """Which pieces are of one source, where there are several; and what attention over it is drawn on, if anything."""

    name: str
    start: int
    end: int
    canvas: Canvas | None = None


@dataclass(frozen=True)
class Explanation:
    """One source and target in pieces, with all that was attended to while the target was read off.

    Row `i` of a `cross` layer is the look at the source from which target piece `i` was written. `source_word[j]` is
    the word of the text that piece `j` belongs to, -1 for a mark such as `</s>`.

    Attention over a picture, a sound or a clip is drawn on its `canvas`: source word `i` is cell `i` of the grid there,
    and a piece of no word, such as a class token, lies in no cell. `gold` links (source word, target word) are the
    truth, where it is known: in which cells the thing is that a word names, or when a word is spoken.

    A decoder alone reads what was `given` (a source and `<sep>`; `<s>` and a prompt, which are then the source) before
    what it has written. A target that is not written but predicted of a text has `places`: a tag that of its word, a
    filled blank that of its `<mask>`, a label or a number of the whole none. A target that is a picture is also
    `drawn`.
    """

    source: list[str]
    target: list[str]
    source_word: list[int]
    target_word: list[int]
    log_probs: list[float]  # of each target piece; none where the target is a number
    layers: list[Layer]
    best: str | None  # the layer to show first and to align by; None without attention over the source
    _: KW_ONLY
    inputs: list[str] = field(default_factory=list)  # what the decoder read; unless given, the target one place late
    canvas: Canvas | None = None
    given: int = 0  # how many of the inputs were given and not written; 0 where the source is not among them
    places: list[int] = field(default_factory=list)  # the input each target piece is predicted of; -1: the whole
    candidates: list[list[tuple[str, float]]] = field(default_factory=list)  # likeliest first, for each target piece
    parts: list[Part] = field(default_factory=list)  # of several sources
    gold: list[Link] = field(default_factory=list)
    drawn: NDArray[np.uint8] | None = None  # the picture that the target is, `(height, width, 3)`
    faithfulness: dict[str, float] = field(default_factory=dict)  # by layer: what leaving out its favourites costs

    def __post_init__(self) -> None:
        if not self.inputs and not self.places:  # where something is predicted, nothing is written
            object.__setattr__(self, "inputs", ["<s>", *self.target[:-1]])
        words = max(self.source_word, default=-1) + 1
        if self.canvas is not None and self.canvas.cells != words:
            raise DataError(
                f"the source has {words} words, but its canvas {self.canvas.rows} x {self.canvas.columns} cells; each "
                "word should be a cell"
            )

    def __repr__(self) -> str:
        """One line: its weights would fill a screen."""
        source, target = (shorten(" ".join(pieces), 60) for pieces in (self.source, self.target))
        canvas = self.canvas
        seen = f"'{source}'" if canvas is None else f"{canvas.kind}, {canvas.rows} by {canvas.columns} cells"
        return f"Explanation(source={seen}, target='{target}', layers={[x.name for x in self.layers]})"

    def _repr_html_(self) -> str:
        """The page, in a frame: what a notebook shows of an explanation."""
        from regard.explain.page import page

        return (
            f'<iframe srcdoc="{html.escape(page([self]))}" width="100%" height="640" style="border:0" '
            'sandbox="allow-scripts"></iframe>'
        )

    @property
    def picture(self) -> NDArray[np.uint8] | None:
        """The pixels of the canvas, `(height, width, 3)`."""
        return None if self.canvas is None else self.canvas.pixels

    def part(self, number: int) -> Explanation:
        """What was attended to of one of several sources (from 1), as if it were the only one."""
        count = max(len(self.parts), 1)
        if not 1 <= number <= count:
            raise ConfigError(f"no source {number} in this explanation; it has {count}, counted from 1")
        if not self.parts:
            return self
        part = self.parts[number - 1]
        cut = slice(part.start, part.end)
        words = [word for word in self.source_word[cut] if word >= 0]
        first, last = min(words, default=0), max(words, default=-1)
        cross = [replace(x, weights=x.weights[:, :, cut]) for x in self.layers if x.kind == "cross"]
        own = [replace(x, part=0) for x in self.layers if x.part == number]
        best = self.best
        if self.places == [-1] and self.encoder_layers:  # predicted of the mean of all sources' vectors
            cross = [Layer(ROLLOUT, "cross", self.rollout().mean(0)[None, None, cut])]
            best = ROLLOUT
        return replace(
            self, source=self.source[cut], source_word=[max(word - first, -1) for word in self.source_word[cut]],
            layers=[*own, *cross], best=best, canvas=part.canvas, parts=[],
            gold=[(word - first, target) for word, target in self.gold if first <= word <= last],
        )  # fmt: skip

    def sees(self, layer: Layer) -> bool:
        """Whether a layer is shown on the canvas, and not between pieces in a row. Of a sound, its encoder's layers are
        not: a map of moments by moments shows more."""
        if self.canvas is None or layer.kind == "decoder":
            return False
        return layer.kind == "cross" or layer.name == ROLLOUT or self.canvas.kind != "sound"

    def axes(self, layer: Layer) -> tuple[list[str], list[str]]:
        """The pieces that attend and the pieces attended to in a layer: what to write beside rows and columns."""
        match layer.kind:
            case "cross":
                return self.target, self.source
            case "encoder":
                part = self.parts[layer.part - 1] if layer.part else Part("", 0, len(self.source))
                pieces = self.source[part.start : part.end]
                return pieces, pieces
            case "decoder":
                return self.inputs, self.inputs

    @property
    def predicted(self) -> dict[int, str]:
        """What is predicted of a piece that was read, by its place: the tag of a word, what fills a blank."""
        return {place: piece for place, piece in zip(self.places, self.target, strict=False) if place >= 0}

    def notes(self) -> list[str]:
        """What is predicted, in a line each, where it stands beside no piece: a label or a number of the whole, and the
        candidates for each blank, with their probabilities."""
        if self.places == [-1]:
            return [f"predicted: {self.target[0]}" + "".join(f" {percent(math.exp(x))}" for x in self.log_probs)]
        texts = [", ".join(f"{piece} {percent(share)}" for piece, share in row) for row in self.candidates]
        return [f"<mask> {i}: {text}" if texts[1:] else f"<mask>: {text}" for i, text in enumerate(texts, 1)]

    @property
    def encoder_layers(self) -> list[Layer]:
        """Those in which the source attends to itself, in the order in which they are run."""
        return [x for x in self.layers if x.kind == "encoder"]

    def rollout(self) -> Weights:
        """How much of each source piece there is in the encoder's vector for each, `(source, source)`: attention
        rollout (Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers").

        Each layer's attention `W`, the mean of its heads, stands beside the residual connection: `A = 0.5 W + 0.5 I`,
        whose rows are normalised. What comes out is the product over layers, `A_n ... A_2 A_1`. It is linear: what
        feed-forward layers and value vectors do is left out.
        """
        if not self.encoder_layers:
            raise ConfigError("attention rollout needs an encoder with self-attention, such as kind: transformer")
        found = np.eye(len(self.source))
        for layer in self.encoder_layers:
            rows = slice(0, len(self.source))
            if layer.part:  # one of several sources attends to itself, and the others stay as they are
                rows = slice(self.parts[layer.part - 1].start, self.parts[layer.part - 1].end)
            attended, identity = layer.weights.mean(axis=0).astype(np.float64), np.eye(rows.stop - rows.start)
            if attended.shape != identity.shape:
                raise ConfigError(
                    f"attention rollout needs layers over the same {len(identity)} pieces; {layer.name} attends from "
                    f"{attended.shape[0]} to {attended.shape[1]}"
                )
            mixed = 0.5 * attended + 0.5 * identity
            found[rows] = mixed / mixed.sum(axis=1, keepdims=True) @ found[rows]
        return found.astype(np.float32)

    def layer(self, name: str | None = None) -> Layer:
        """The named layer, `rollout` as if it were one, or what to show first: the best one over the source; without
        any, rollout over what there is to draw on; else the first."""
        if not self.layers:
            writes = "a decoder that attends (context: attention) or a Transformer"
            raise ConfigError(
                "this model has no attention, so there is none to draw; train one with "
                f"{'a Transformer encoder' if self.places else writes}, or write a page (.html), which shows the rest"
            )
        first = ROLLOUT if self.canvas is not None and self.encoder_layers else self.layers[0].name
        wanted = name or self.best or first
        for layer in self.layers:
            if layer.name == wanted:
                return layer
        if wanted == ROLLOUT:
            return Layer(ROLLOUT, "encoder", self.rollout()[None])
        names = [*(x.name for x in self.layers), *([ROLLOUT] * bool(self.encoder_layers))]
        raise ConfigError(f"no attention '{wanted}' in this model; there are: {', '.join(names)}")

    def weights(self, layer: str | None = None, head: int | None = None) -> Weights:
        """`(queries, keys)` of one head (from 0), or the mean of all heads."""
        heads = self.layer(layer).weights
        if head is None:
            return heads.mean(axis=0)
        if not 0 <= head < len(heads):
            raise ConfigError(f"no head {head} in {self.layer(layer).name}; there are {len(heads)}, counted from 0")
        return heads[head]

    def words(self, layer: str | None = None, head: int | None = None) -> Weights:
        """`(target words, source words)` of an attention over the source; see `merge_words`."""
        if self.layer(layer).kind != "cross":
            raise ConfigError(f"{self.layer(layer).name} does not attend to the source, so it links no words")
        return merge_words(self.weights(layer, head), self.target_word, self.source_word)

    def alignment(self, layer: str | None = None, head: int | None = None) -> list[tuple[int, int]]:
        """Links (source word, target word): each target word with the source word it attended to most."""
        return links(self.words(layer, head))

    def steps(self) -> tuple[list[str], list[int]]:
        """The target's words as they read, a mark such as `</s>` by itself; and which of them each piece belongs to."""
        texts: list[str] = []
        numbers: list[int] = []
        for i, (piece, word) in enumerate(zip(self.target, self.target_word, strict=True)):
            if i and 0 <= word == self.target_word[i - 1]:
                texts[-1] += piece.removeprefix("·")  # the dot of a piece that goes on a word
            else:
                texts.append(piece)
            numbers.append(len(texts) - 1)
        return [text.replace("▁", " ").strip() or "␣" for text in texts], numbers

    def title(self, layer: str | None = None, head: int | None = None) -> str:
        """What `weights` of the same arguments are, in words."""
        chosen = self.layer(layer)
        if head is not None:
            return f"{chosen.name}, head {head}"
        return chosen.name + (f", mean of {len(chosen.weights)} heads" if len(chosen.weights) > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` reads it back."""
        from regard.explain.saved import to_json

        return to_json(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Explanation:
        """The inverse of `to_json`."""
        from regard.explain.saved import from_json

        return from_json(data)

    def save(self, path: str | Path, *, layer: str | None = None, head: int | None = None, grid: bool = False) -> Path:
        """Write a picture (.png, .svg, .pdf), a page (.html) or the data (.json), by the ending of `path`.

        A picture shows one layer: one head of it, the mean of its heads, or with `grid` each head beside the others.
        """
        return save([self], path, layer=layer, head=head, grid=grid)


def save(
    explanations: list[Explanation], path: str | Path, *, layer: str | None = None, head: int | None = None,
    grid: bool = False,
) -> Path:  # fmt: skip
    """Write explanations: a page or the data hold any number, a picture holds one."""
    path = Path(path)
    match path.suffix:
        case ".png" | ".svg" | ".pdf" if len(explanations) > 1:
            raise ConfigError(f"a picture shows one sentence, not {len(explanations)}; use .html, or one picture each")
        case ".png" | ".svg" | ".pdf":
            from regard.explain.plots import draw

            explanations[0].layer(layer)  # a wrong name should not leave an empty folder behind
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(explanations[0], path, layer=layer, head=head, grid=grid)
            return path
        case ".html":
            from regard.explain.page import page

            text = page(explanations)
        case ".json":
            text = json.dumps([x.to_json() for x in explanations], ensure_ascii=False)
        case other:
            raise ConfigError(f"cannot write '{other}' ({path}); the ending may be .png, .svg, .pdf, .html or .json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def percent(share: float) -> str:
    """`97%`; a small share with a decimal."""
    return f"{share:.0%}" if share >= 0.0995 or share < 0.0005 else f"{share:.1%}"
