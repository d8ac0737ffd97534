"""Attention as pictures for print: one heat map, or all heads of a layer side by side.

Figures are built on Matplotlib's objects, not on pyplot, so nothing here depends on a display or leaves a figure
behind, and Matplotlib is imported only when a picture is drawn. The same explanation gives the same file, byte for
byte.
"""

from __future__ import annotations

import logging
import math
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import ConfigError
from regard.evaluation.alignment import Weights
from regard.explain.trace import Explanation, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#22262e", "#e4e6ea"
COLORS = "Blues"  # lightness falls evenly from near white: weak weights cost no ink and it survives a grey printer
LABEL = 10  # points
DPI = 150
LONGEST_LABEL = 24  # characters; one long web address should not push the map off the paper
LARGEST_SIDE = 40.0  # inches; beyond it labels are thinned out, so that a page of text does not exhaust memory
MAP, GAP, BAR = 4.5, 0.22, 0.14  # inches: a comfortable map, between maps, the width of the colour bar
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: the reader's own fonts draw scripts that ours lack
    "svg.hashsalt": "regard",
    "pdf.fonttype": 42,
    "text.usetex": False,
    "axes.unicode_minus": True,
}
SIDES = {"cross": ("target", "source"), "encoder": ("source", "source"), "decoder": ("target so far", "target so far")}


def heat_map(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw who looked at whom in one layer: rows attend, columns are attended to.

    `layer` is the best one over the source unless named, `head` (from 0) the mean of all unless given. The ending of
    `path` is .png, .svg or .pdf.
    """
    chosen = explanation.layer(layer)
    weights = explanation.weights(layer, head)
    title = chosen.name
    if head is not None:
        title += f", head {head}"
    elif len(chosen.weights) > 1:
        title += f", mean of {len(chosen.weights)} heads"
    with _canvas(path, explanation, chosen) as figure:
        pitch = _pitch(max(weights.shape), least=0.22, limit=LARGEST_SIDE)
        axes = _map(figure, weights, pitch, left=0.0, top=0.0)
        _label_rows(axes, explanation, chosen, pitch)
        _label_columns(axes, explanation, chosen, pitch)
        axes.set_title(title, loc="left", fontsize=LABEL + 1, color=INK, pad=10, parse_math=False)
        _color_bar(figure, axes, left=weights.shape[1] * pitch + GAP)


def head_grid(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw all heads of one layer as small maps over the same rows and columns, to see which does what."""
    chosen = explanation.layer(layer)
    heads, rows, columns = chosen.weights.shape
    across = _columns_of_grid(heads, rows, columns)
    pitch = _pitch(max(rows, columns), least=0.16, limit=LARGEST_SIDE / across, comfortable=MAP / 2)
    width, height = columns * pitch + GAP, rows * pitch + 2 * GAP
    with _canvas(path, explanation, chosen) as figure:
        for head in range(heads):
            down, right = divmod(head, across)
            axes = _map(figure, chosen.weights[head], pitch, left=right * width, top=down * height)
            if right == 0:
                _label_rows(axes, explanation, chosen, pitch)
            if down == 0:
                _label_columns(axes, explanation, chosen, pitch)
            if head == 0:
                axes.set_title(
                    f"{chosen.name}, {heads} head{'s' * (heads > 1)}",
                    loc="left", fontsize=LABEL + 1, color=INK, pad=10, parse_math=False,
                )  # fmt: skip
            # Below the map: above it stand the labels of the columns, in the first line of maps only.
            axes.text(0.5, -0.06 / (rows * pitch), f"head {head}", transform=axes.transAxes,
                      ha="center", va="top", fontsize=LABEL - 1, color=INK)  # fmt: skip
        _color_bar(figure, figure.axes[0], left=across * width)


@contextmanager
def _canvas(path: Path, explanation: Explanation, layer: Layer) -> Iterator[Figure]:
    """A figure of one inch square, whose axes lie in inches from its upper left corner; written to `path` at the end.

    Its own size does not matter, for the file is cut to what was drawn.
    """
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"cannot draw '{path.suffix}' ({path}); the ending may be .png, .svg or .pdf")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pieces = [piece for axis in explanation.axes(layer) for piece in axis]
    stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix]
    with matplotlib.rc_context({**SETTINGS, "font.family": _families("".join(map(_shown, pieces)))}), _any_script():
        figure = Figure(figsize=(1.0, 1.0), facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata=stamp)


@contextmanager
def _any_script() -> Iterator[None]:
    """Let a character that no installed font has become an empty box, without a warning for each.

    A picture with a box in a label still shows its attention; in .svg the text is whole in any case.
    """
    fonts = logging.getLogger("matplotlib.font_manager")  # grumbles when a font for a rare script has one weight only
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
            warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")
            yield
    finally:
        fonts.setLevel(level)


def _families(text: str) -> list[str]:
    """The fonts to draw `text` with: Matplotlib's own, then whichever installed ones have what it lacks."""
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {ord(x) for x in text} - font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap().keys()
    for entry in font_manager.fontManager.ttflist if missing else ():
        # Matplotlib falls back to Last Resort, a font of boxes, by itself: it must not stand before a real one.
        if entry.style != "normal" or entry.name in families or entry.name.startswith("Last Resort"):
            continue
        try:
            found = missing & font_manager.get_font(entry.fname).get_charmap().keys()
        except (OSError, RuntimeError):  # a font listed earlier and gone since, or one FreeType cannot read
            continue
        if found:
            families.append(entry.name)
            missing -= found
        if not missing:
            break
    return [*families, "sans-serif"]


def _shown(piece: str) -> str:
    """A piece as a label: spaces and SentencePiece's mark as ␣, control characters as escapes, never too long."""
    label = "".join(_visible(x) for x in piece)
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _visible(character: str) -> str:
    if character in "▁ \u00a0\u3000":
        return "␣"
    match unicodedata.category(character):
        case "Cc":
            return repr(character)[1:-1]
        case "Cs":  # half of a character, as a byte tokenizer may leave behind; no font and no file can hold it
            return "\N{REPLACEMENT CHARACTER}"
        case _:
            return character


def _pitch(longest: int, *, least: float, limit: float, comfortable: float = MAP) -> float:
    """Inches from one row to the next: few tokens get large cells, many get just room for a label, within `limit`."""
    return min(max(comfortable / max(longest, 1), least), 2 * least, limit / max(longest, 1))


def _columns_of_grid(heads: int, rows: int, columns: int) -> int:
    """How many maps side by side, so that the whole is somewhat wider than high and few places stay empty."""

    def cost(across: int) -> float:
        down = math.ceil(heads / across)
        shape = across * columns / (down * max(rows, 1))
        return abs(math.log(max(shape, 1e-9) / 1.5)) + 0.2 * (across * down - heads)

    return min(range(1, heads + 1), key=cost)


def _map(figure: Figure, weights: Weights, pitch: float, *, left: float, top: float) -> Axes:
    """Cells of `pitch` inches, the upper left one at (`left`, `top`) inches; no labels yet."""
    from matplotlib.collections import PolyCollection

    rows, columns = weights.shape
    axes = figure.add_axes((left, 1 - top - rows * pitch, columns * pitch, rows * pitch))
    # Shapes, not an image, for viewers blur a small image when they enlarge it; and only cells that differ from the
    # background, for in most heads they are few and the file stays small.
    queries, keys = np.nonzero(weights >= 1 / 512)
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
    cells = PolyCollection(
        np.stack([keys, queries], axis=-1)[:, None] + corners, array=weights[queries, keys], cmap=COLORS, clim=(0, 1)
    )
    axes.add_collection(cells, autolim=False)
    axes.set_facecolor(cells.to_rgba(np.zeros(1))[0])
    axes.hlines(range(1, rows), 0, columns, colors=GRID, linewidth=0.4)
    axes.vlines(range(1, columns), 0, rows, colors=GRID, linewidth=0.4)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.spines[:].set_color(GRID)
    return axes


def _ticks(pieces: list[str], pitch: float) -> tuple[list[float], list[str]]:
    """Where labels stand and what they say; every one unless the lines would overlap."""
    step = math.ceil(LABEL / 72 / pitch)
    return [i + 0.5 for i in range(0, len(pieces), step)], [_shown(x) for x in pieces[::step]]


def _label_rows(axes: Axes, explanation: Explanation, layer: Layer, pitch: float) -> None:
    places, labels = _ticks(explanation.axes(layer)[0], pitch)
    axes.set_yticks(places, labels, **_style())
    axes.tick_params(axis="y", length=0, pad=4)
    axes.set_ylabel(SIDES[layer.kind][0], fontsize=LABEL, color=INK, style="italic")


def _label_columns(axes: Axes, explanation: Explanation, layer: Layer, pitch: float) -> None:
    places, labels = _ticks(explanation.axes(layer)[1], pitch)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(places, labels, rotation=60, rotation_mode="anchor", ha="left", va="center", **_style())
    axes.tick_params(axis="x", length=0, pad=6)
    axes.set_xlabel(SIDES[layer.kind][1], fontsize=LABEL, color=INK, style="italic")


def _style() -> dict[str, Any]:
    # A dollar sign is a token here, not the start of a formula.
    return {"fontsize": LABEL, "color": INK, "parse_math": False}


def _color_bar(figure: Figure, axes: Axes, *, left: float) -> None:
    """A scale from 0 to 1, beside the top of the first map."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    box = axes.get_position()  # of a figure of one inch: inches
    height = min(box.height, 2.5)
    bar = figure.add_axes((left, box.y1 - height, BAR, height))
    scale = figure.colorbar(ScalarMappable(Normalize(0, 1), COLORS), cax=bar)
    scale.set_ticks([0.0, 0.5, 1.0] if height > 1 else [0.0, 1.0])
    scale.outline.set_edgecolor(GRID)
    bar.tick_params(length=2, labelsize=LABEL - 1, labelcolor=INK, color=GRID)
