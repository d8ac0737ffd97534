"""One format for what any model attended to, whatever its layers and heads."""

from __future__ import annotations

import base64
import binascii
import html
import io
import json
import math
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import write_text
from regard.errors import ConfigError, DataError, require
from regard.evaluation.alignment import Kind, Weights, links, merge_words
from regard.explain.canvas import shorten

FORMAT = "regard-explanation-1"
PNG = "data:image/png;base64,"  # a picture in JSON is an address that a browser can show


@dataclass(frozen=True)
class Layer:
    """The weights of one attention, `(heads, queries, keys)`; each row of a head sums to 1.

    `kind` says what attends to what: `cross`, the target to the source; `encoder`, the source to itself; `decoder`,
    the target so far to itself.
    """

    name: str  # the module, e.g. decoder.blocks.1.cross_attention
    kind: Kind
    weights: Weights
    part: int = 0  # where one of several sources attends to itself: which (from 1)


@dataclass(frozen=True)
class Part:
    """Which pieces are of one source, where there are several; and its picture, if it is one."""

    name: str
    start: int
    end: int
    picture: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Explanation:
    """One source and target in pieces, with all that was attended to while the target was read off.

    Row `i` of a `cross` layer is the look at the source from which target piece `i` was written. `source_word[j]` is
    the word of the text that piece `j` belongs to, -1 for a mark such as `</s>`.

    Where the source is a `picture`, its pieces, and its words, are the cells of a square grid over it, row by row.

    A decoder alone reads what was `given` (a source and `<sep>`; `<s>` and a prompt, which are then the source) before
    what it has written. A target that is not written but predicted of a text has `places`: a tag that of its word, a
    filled blank that of its `<mask>`, a label or a number of the whole none.
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
    picture: NDArray[np.uint8] | None = None  # (height, width, 3)
    given: int = 0  # how many of the inputs were given and not written; 0 where the source is not among them
    places: list[int] = field(default_factory=list)  # the input each target piece is predicted of; -1: the whole
    candidates: list[list[tuple[str, float]]] = field(default_factory=list)  # likeliest first, for each target piece
    parts: list[Part] = field(default_factory=list)  # of several sources

    def __post_init__(self) -> None:
        if not self.inputs and not self.places:  # where something is predicted, nothing is written
            object.__setattr__(self, "inputs", ["<s>", *self.target[:-1]])
        if self.picture is not None and self.side**2 != len(self.source):
            raise DataError(f"a picture is seen as a square grid of cells, which {len(self.source)} cells do not make")

    def __repr__(self) -> str:
        """One line: its weights would fill a screen."""
        source, target = (shorten(" ".join(pieces), 60) for pieces in (self.source, self.target))
        seen = f"picture, {self.side} by {self.side} cells" if self.picture is not None else f"'{source}'"
        return f"Explanation(source={seen}, target='{target}', layers={[x.name for x in self.layers]})"

    def _repr_html_(self) -> str:
        """The page, in a frame: what a notebook shows of an explanation."""
        from regard.explain.page import page

        return (
            f'<iframe srcdoc="{html.escape(page([self]))}" width="100%" height="640" style="border:0" '
            'sandbox="allow-scripts"></iframe>'
        )

    @property
    def side(self) -> int:
        """How many cells of a picture lie side by side."""
        return math.isqrt(len(self.source))

    def part(self, number: int) -> Explanation:
        """What was attended to of one of several sources (from 1), as if it were the only one."""
        count = max(len(self.parts), 1)
        if not 1 <= number <= count:
            raise ConfigError(f"no source {number} in this explanation; it has {count}, counted from 1")
        if not self.parts:
            return self
        part = self.parts[number - 1]
        cut = slice(part.start, part.end)
        first = min((word for word in self.source_word[cut] if word >= 0), default=0)
        cross = [replace(x, weights=x.weights[:, :, cut]) for x in self.layers if x.kind == "cross"]
        own = [replace(x, part=0) for x in self.layers if x.part == number]
        return replace(
            self, source=self.source[cut], source_word=[max(word - first, -1) for word in self.source_word[cut]],
            layers=[*own, *cross], picture=part.picture, parts=[],
        )  # fmt: skip

    def sees(self, layer: Layer) -> bool:
        """Whether a layer looks at a picture, to be shown on it, and not at pieces in a row."""
        return self.picture is not None and layer.kind == "cross"

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

    def layer(self, name: str | None = None) -> Layer:
        """The named layer, or the best one over the source."""
        if not self.layers:
            raise ConfigError(
                "this model has no attention, so there is none to show; train one with context: attention"
            )
        wanted = name or self.best or self.layers[0].name
        for layer in self.layers:
            if layer.name == wanted:
                return layer
        raise ConfigError(f"no attention '{wanted}' in this model; there are: {', '.join(x.name for x in self.layers)}")

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
        layers = [
            {"name": x.name, "kind": x.kind, "weights": np.round(x.weights.astype(np.float64), 5).tolist(),
             **_some(part=x.part)}
            for x in self.layers
        ]  # fmt: skip
        parts = [
            {"name": x.name, "start": x.start, "end": x.end, **_some(picture=_to_png(x.picture))} for x in self.parts
        ]
        candidates = [[[piece, round(share, 5)] for piece, share in row] for row in self.candidates]
        return {
            "format": FORMAT, "source": self.source, "target": self.target, "source_word": self.source_word,
            "target_word": self.target_word, "inputs": self.inputs, "best": self.best,
            "log_probs": [round(x, 5) for x in self.log_probs], "layers": layers,
            **_some(given=self.given, places=self.places, candidates=candidates, parts=parts,
                    picture=_to_png(self.picture)),
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any]) -> Explanation:
        """The inverse of `to_json`."""
        if data.get("format") != FORMAT:
            raise DataError(f"this is not a saved explanation (its format is {data.get('format')!r}, not '{FORMAT}')")
        same = ("source", "target", "source_word", "target_word", "log_probs", "best", "inputs", "given", "places")
        return Explanation(
            layers=[
                Layer(x["name"], x["kind"], np.array(x["weights"], dtype=np.float32), x.get("part", 0))
                for x in data["layers"]
            ],
            picture=_from_png(data.get("picture")),
            candidates=[[(str(piece), float(share)) for piece, share in row] for row in data.get("candidates", [])],
            parts=[Part(x["name"], x["start"], x["end"], _from_png(x.get("picture"))) for x in data.get("parts", [])],
            **{name: data[name] for name in same if name in data},
        )

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


def _some(**values: Any) -> dict[str, Any]:
    """Those values that there are."""
    return {name: value for name, value in values.items() if value}


def _to_png(picture: NDArray[np.uint8] | None) -> str | None:
    if picture is None:
        return None
    require("PIL")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return PNG + base64.b64encode(file.getvalue()).decode("ascii")


def _from_png(text: str | None) -> NDArray[np.uint8] | None:
    if text is None:
        return None
    require("PIL")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(base64.b64decode(text.removeprefix(PNG), validate=True)), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (binascii.Error, OSError, ValueError) as error:
        raise DataError(f"the picture of a saved explanation cannot be read ({error}); it should be {PNG}…") from None
