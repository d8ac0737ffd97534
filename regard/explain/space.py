"""Sentences as points: the vectors a model makes of them, seen along the two directions in which they differ most.

Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", figure 2.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import write_text
from regard.errors import ConfigError
from regard.explain.drawing import DPI, GRID, LABEL, QUIET, drawing, legible, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Points = NDArray[np.float64]  # (n, 2)

FEWEST = 3  # two points always lie on a line, which says nothing about them
WRAP, LINES = 26, 3  # a label's characters in a line, and its lines
SIZE = LABEL - 2.5  # of a label, in points
APART = 0.12  # inches; a label that lies farther from its point gets a line to it
# Told apart with any kind of colour vision (Okabe and Ito 2008); after the last come the same with another mark.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
MARKS = "osD^v"


def project(vectors: NDArray[Any]) -> tuple[Points, NDArray[np.float64]]:
    """`(n, d_model)` to `(n, 2)` by principal components, and the share of the variance that each axis holds.

    An axis has two ends, either of which may be called positive: here its largest component is.
    """
    if len(vectors) < FEWEST:
        raise ConfigError(f"a picture of the space needs at least {FEWEST} sentences, not {len(vectors)}")
    centred = np.asarray(vectors, dtype=np.float64)
    if not np.isfinite(centred).all():
        raise ConfigError("some vectors are not finite, so they have no place in a picture of the space")
    centred = centred - centred.mean(axis=0)
    if centred.shape[1] < 2:
        centred = np.pad(centred, ((0, 0), (0, 1)))
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]  # (2, d_model)
    axes = axes * np.where(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1) < 0, -1.0, 1.0)
    variance = lengths**2
    return centred @ axes.T, variance[:2] / max(float(variance.sum()), np.finfo(np.float64).tiny)


def space_plot(vectors: NDArray[Any], labels: list[str], groups: list[str] | None, path: str | Path) -> Path:
    """Write the sentences' points as a picture (.png, .svg, .pdf) or as data (.json), by the ending of `path`.

    `groups`, one for each sentence, give the colours.
    """
    path = Path(path)
    if path.suffix not in {".png", ".svg", ".pdf", ".json"}:
        raise ConfigError(f"cannot write '{path.suffix}' ({path}); the ending may be .png, .svg, .pdf or .json")
    for name, given in (("labels", labels), ("groups", groups)):
        if given is not None and len(given) != len(vectors):
            raise ConfigError(f"{len(vectors)} sentences but {len(given)} {name}; each sentence needs its own")
    points, shares = project(vectors)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        data = {"labels": labels, "groups": groups, "points": points.round(6).tolist(), "shares": shares.tolist()}
        write_text(path, json.dumps(data, ensure_ascii=False))
        return path
    with drawing(path, [*labels, *(groups or [])]) as figure:
        width = min(13.0, 7.0 + 0.15 * len(labels))  # inches
        axes = figure.add_axes((0.0, 1 - 0.72 * width, width, 0.72 * width))
        _scatter(axes, points, groups)
        wrapped, lines = [_wrapped(label) for label in labels], [QUIET] * len(labels)
        label_points(axes, points, wrapped, lines, linespacing=1.1, **style(SIZE))
        for axis, name, share in zip((axes.xaxis, axes.yaxis), ("first", "second"), shares, strict=True):
            axis.set_label_text(f"{name} principal component ({share:.0%} of the variance)", **style(LABEL - 1))
    return path


def _scatter(axes: Axes, points: Points, groups: list[str] | None) -> None:
    members = groups or [""] * len(points)
    for i, group in enumerate(dict.fromkeys(members)):
        chosen = points[[x == group for x in members]]
        color, mark = PALETTE[i % len(PALETTE)], MARKS[i // len(PALETTE) % len(MARKS)]
        (x, y), name = chosen.T, legible(group) or " "
        axes.scatter(x, y, s=34, color=color, marker=mark, label=name, zorder=3, linewidths=0)
    if groups is not None:
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, borderaxespad=0)
        for text in legend.get_texts():
            text.set(**style(LABEL - 1))
    axes.axhline(0, color=GRID, linewidth=0.8, zorder=0)
    axes.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    axes.margins(0.12)
    axes.tick_params(length=2, labelsize=SIZE, labelcolor=QUIET, color=GRID)
    axes.spines[:].set_color(GRID)


def label_points(
    axes: Axes, points: Points, labels: Sequence[str], lines: Sequence[str], others: Points | None = None, **look: Any
) -> list[Text]:
    """Write each label near its point, free of points, `others` and labels as far as there is room, with a line of the
    colour given in `lines` where the two are apart."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    frame, pixels = axes.get_window_extent(), axes.transData
    style = {"ha": "center", "va": "center", "zorder": 6, **look}
    texts = [axes.text(x, y, label, **style) for (x, y), label in zip(points, labels, strict=True)]
    sizes = np.array([text.get_window_extent().size for text in texts])
    dots = pixels.transform(points) - frame.p0
    crowd = None if others is None else (pixels.transform(others) - frame.p0) / DPI
    places = DPI * arrange(dots / DPI, sizes / DPI, np.array(frame.size) / DPI, crowd)
    for text, color, dot, place, size in zip(texts, lines, dots, places, sizes, strict=True):
        tip = np.clip(dot, place - size / 2, place + size / 2)  # the point of the label's edge that is nearest
        centre, *ends = pixels.inverted().transform(frame.p0 + np.array([place, dot, tip]))
        text.set_position(tuple(centre))
        if np.hypot(*(tip - dot)) > APART * DPI:
            axes.plot(*np.array(ends).T, color=color, linewidth=0.6, zorder=2)
    return texts


def arrange(dots: Points, sizes: Points, room: Points, others: Points | None = None) -> Points:
    """Centres for boxes of the given sizes, each as near its dot as the other boxes and the dots let it, all in `room`.

    One box after the other takes the best of many places around its dot; the outermost come first, and go outward.
    `others` are dots without a box, which none should cover.
    """
    gap, dot = 0.05, 0.1  # inches
    outward = dots - dots.mean(axis=0)
    angles = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    around = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    far = np.arange(dot, 4.0, 0.08)[:, None]  # from a dot to its box
    along = np.linspace(0.1, 1, 16)[:, None]  # the line between them
    there = dots if others is None else np.concatenate([dots, others])  # what is in the way already: dots, boxes, lines
    widths = np.full_like(there, dot)
    places = np.zeros_like(dots)
    order = np.argsort(-np.hypot(*outward.T), kind="stable")
    for done, i in enumerate(order):
        half = sizes[i] / 2
        tries = (dots[i] + (far[..., None] + half) * around).reshape(-1, 2)
        tries = np.clip(tries, half, np.maximum(room - half, half))
        covered = ((half + widths / 2 + gap) - np.abs(tries[:, None] - there)).clip(min=0).prod(axis=-1).sum(axis=-1)
        lines = dots[i] + along * (np.clip(dots[i], tries - half, tries + half) - dots[i])[:, None]  # (tries, along, 2)
        boxes = order[:done]
        crossed = (np.abs(lines[:, :, None] - places[boxes]) < sizes[boxes] / 2).all(axis=-1).sum(axis=(1, 2))
        inward = -(around @ outward[i]) / max(float(np.hypot(*outward[i])), 1e-9)
        best = np.argmin(100 * covered + crossed + np.add(far, 0.15 * inward).ravel())
        places[i] = tries[best]
        there = np.concatenate([there, tries[best : best + 1], lines[best]])
        widths = np.concatenate([widths, sizes[i : i + 1], np.zeros_like(lines[best])])
    return places


def _wrapped(label: str) -> str:
    """In lines of about the same length, so that none has a full stop to itself."""
    lines = textwrap.wrap(label, WRAP, max_lines=LINES, placeholder=" …")
    widths = range(max(len(label) // LINES, 1), WRAP)
    even = next((x for x in (textwrap.wrap(label, width) for width in widths) if len(x) == len(lines)), lines)
    return "\n".join(map(legible, even))
