"""A comparison as figures: quality by length of the source, by cost of training, and as training goes on.

A model has the same colour and marker in all of them. The same results give the same file, byte for byte.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.compare.results import Group, Results, Trajectory
from regard.compare.tables import flops, metric_name, span
from regard.errors import ConfigError
from regard.evaluation.metrics import Numbers
from regard.explain.drawing import GRID, INK, drawing, shorten
from regard.explain.space import label_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUIET, SHADE = "#6b7280", "#f1f2f4"
TEXT, SMALL = 9.0, 8.0  # points: nine are 12 px in a picture of 700 px
WIDTH, WIDE, GAP, LINE = 4.9, 6.4, 0.22, 0.18  # inches: axes beside names, and alone; between axes; between names
LONGEST = 28  # characters of a name
# Paul Tol's muted scheme, which all common kinds of colour vision tell apart, and ink; neighbours far from each other.
# There are ten colours and eleven markers, so that a hundred and ten models differ in one or the other.
COLORS = ("#332288", "#cc6677", "#44aa99", "#882255", "#999933",
          "#88ccee", "#117733", "#aa4499", "#22262e", "#ddaa33")  # fmt: skip
MARKERS = {"o": 1.0, "s": 0.95, "^": 1.1, "D": 0.85, "v": 1.1, "P": 1.15, "X": 1.15, "<": 1.15, ">": 1.15, "*": 1.35,
           "p": 1.0}  # sized so that all look as large as a circle  # fmt: skip
SETTINGS: dict[Any, Any] = {
    "text.parse_math": False, "font.size": TEXT, "text.color": INK, "axes.labelcolor": INK, "axes.labelsize": TEXT,
    "axes.edgecolor": QUIET, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.6,
    "xtick.color": QUIET, "xtick.labelcolor": INK, "xtick.labelsize": SMALL, "xtick.major.size": 3,
    "ytick.color": QUIET, "ytick.labelcolor": INK, "ytick.labelsize": SMALL, "ytick.major.size": 3,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7,
}  # fmt: skip


def write_figure(draw: Callable[[Figure, Results], None], results: Results, path: Path) -> None:
    """Draw `length_figure`, `cost_figure` or `learning_figure` into a .png, .svg or .pdf file."""
    with drawing(path, results.models, SETTINGS) as figure:
        draw(figure, results)


def length_figure(figure: Figure, results: Results) -> None:
    """The metric against the number of source words, beyond those of training too: where a bottleneck shows."""
    groups = results.groups
    if not groups:
        raise ConfigError("there is no quality by length to draw: no run has scores of length groups")
    (axes,) = _panels(figure, results, WIDTH, 3.6)
    x = np.array([(low + high) / 2 for low, high in groups])
    for model in results.models:
        known = [(at, m) for at, group in zip(x, groups, strict=True) if (m := results.measure(model, group=group))]
        if known:
            places, means, spreads = np.array([(at, m.mean, m.spread or 0.0) for at, m in known]).T
            _line(axes, results, model, Trajectory(places, means, spreads if spreads.any() else None), 1)
    room = 0.05 * (x[-1] - x[0]) or 1.0
    axes.set(xlim=(x[0] - room, x[-1] + room), xlabel="words of the source", ylabel=metric_name(results.metric))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    labels = [span(group) for group in groups]
    axes.set_xticks(x, labels)
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    if any(a.x1 + 4 > b.x0 for a, b in pairwise(boxes)):
        axes.set_xticks(x, labels, rotation=60, rotation_mode="anchor", ha="right", va="center")
    if results.trained is not None:
        _shade(axes, results.trained, groups)
    _name_lines(axes, results)


def cost_figure(figure: Figure, results: Results) -> None:
    """The metric against the operations of training: a small mark for each run, a large one for their mean."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    (axes,) = _panels(figure, results, WIDE, 4.0)
    axes.set_xscale("log")
    means: dict[str, tuple[float, float]] = {}
    marks: list[tuple[float, float]] = []
    for model in results.models:
        scores = [(run.flops, run.score(results.metric)) for run in results.of(model)]
        runs = [(x, y) for x, y in scores if x > 0 and y is not None]
        if not runs:
            continue
        style = _look(results, model)
        color, size = style["color"], style["markersize"]
        path = results.trajectory(model, "flops", "quality")
        if path is not None and len(path.x) > 1:
            axes.plot(path.x, path.mean, color=color, linewidth=1.0, alpha=0.3, zorder=1, label=f"_path {model}")
        x, y = np.array(runs).T
        axes.plot(x, y, linestyle="", marker=style["marker"], markersize=0.55 * size, color=color, alpha=0.55, zorder=3,
                  markeredgewidth=0, label=f"_runs {model}")  # fmt: skip
        style |= {"markersize": 1.35 * size, "markeredgewidth": 0.8}
        means[model] = float(x.mean()), float(y.mean())
        marks += runs
        axes.plot(*means[model], linestyle="", zorder=4, label=model, **style)
    if not means:
        raise ConfigError("there is no quality by cost to draw: no run has both a score and its FLOPs")
    # Limits by where training ended: the ways there come in from the left and from below.
    x, y = np.array(marks).T
    wide, tall = float(np.log10(x.max() / x.min())), float(y.max() - y.min())
    low, high = x.min() / 10 ** (0.12 * wide + 0.2), x.max() * 10 ** (0.12 * wide + 0.1)
    axes.set(xlim=(low, high), ylim=(y.min() - 0.15 * tall - 0.5, y.max() + 0.1 * tall + 0.5),
             xlabel="FLOPs of training (logarithmic)", ylabel=metric_name(results.metric))  # fmt: skip
    best = sorted(means[model] for model in results.frontier())
    if len(best) > 1:
        axes.plot(*np.array(best).T, drawstyle="steps-post", color=QUIET, linewidth=0.9, linestyle=(0, (1, 2)),
                  zorder=2, label="_frontier")  # fmt: skip
    few, some, many = (1.0,), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    axes.xaxis.set_major_locator(LogLocator(subs=many if high < 10 * low else some if high < 100 * low else few))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: flops(value).replace(".0e", "e")))
    names, colors = [shorten(model, LONGEST) for model in means], [_look(results, model)["color"] for model in means]
    texts = label_points(axes, np.array(list(means.values())), names, colors, np.array(marks), fontsize=SMALL)
    for text, color in zip(texts, colors, strict=True):
        text.set(color=_dark(color))


def learning_figure(figure: Figure, results: Results) -> None:
    """Validation quality, and loss if there is one, against the target tokens seen."""
    from matplotlib.ticker import EngFormatter

    quality = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "quality"))}
    loss = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "loss"))}
    panels = [(f"validation {metric_name(results.metric)}", quality), ("validation loss", loss)]
    panels = [(name, paths) for name, paths in panels if paths]
    if not panels:
        raise ConfigError("there is no learning curve to draw: no run was validated as it trained")
    drawn = _panels(figure, results, WIDTH, *(2.9, 1.9)[: len(panels)])
    for axes, (name, paths) in zip(drawn, panels, strict=True):
        for model, path in paths.items():
            _line(axes, results, model, path, max(1, len(path.x) // 6))
        axes.set(ylabel=name, xlim=(0, 1.01 * max(path.x[-1] for path in paths.values())))
        axes.xaxis.set_major_formatter(EngFormatter())
        if paths is quality:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        else:  # without the first fall of the loss, which is as high for all and would flatten what follows
            values = np.concatenate([path.mean[len(path.mean) // 6 :] for path in paths.values()])
            room = 0.06 * float(np.ptp(values)) or 0.1
            axes.set_ylim(float(values.min()) - room, float(values.max()) + room)
        axes.tick_params(labelbottom=axes is drawn[-1])
        _name_lines(axes, results)
    drawn[-1].set_xlabel("target tokens seen")


def _panels(figure: Figure, results: Results, width: float, *heights: float) -> list[Axes]:
    """Axes one under the other, each of so many inches or more, so that the names of all models have room."""
    drawn, top = [], 1.0
    for height in heights:
        tall = max(height, LINE * len(results.models))
        drawn.append(figure.add_axes((0, top - tall, width, tall)))
        top -= tall + GAP
    return drawn


def _look(results: Results, model: str) -> dict[str, Any]:
    """Colour and marker: by the model's place in the list, so the same in every figure."""
    place = results.models.index(model)
    color, (marker, size) = COLORS[place % len(COLORS)], list(MARKERS.items())[place % len(MARKERS)]
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.6}
    return {"color": color, "marker": marker, "markersize": 5.2 * size, **edge}


def _line(axes: Axes, results: Results, model: str, path: Trajectory, markevery: int) -> None:
    """The mean as a line, and a band of one standard deviation on either side of it."""
    style = _look(results, model)
    if path.spread is not None:
        low, high = path.mean - path.spread, path.mean + path.spread
        axes.fill_between(path.x, low, high, color=style["color"], alpha=0.14, linewidth=0, zorder=2)
    axes.plot(path.x, path.mean, linewidth=1.4, markevery=markevery, zorder=3, label=model, **style)


def _shade(axes: Axes, trained: Group, groups: Sequence[Group]) -> None:
    """Mark the lengths that training had none of."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set_ylim(low, high + 0.08 * (high - low))  # for the words at the top
    for outside, start, end, words in (
        (groups[-1][1] > trained[1], trained[1] + 0.5, right, "longer than any in training"),
        (groups[0][0] < trained[0], left, trained[0] - 0.5, "shorter than any in training"),
    ):
        if not outside or end <= start:
            continue
        axes.axvspan(start, end, color=SHADE, zorder=0, linewidth=0)
        edge = start if start > left else end
        axes.axvline(edge, color=QUIET, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1, label="_edge of training")
        label = axes.text((start + end) / 2, 0.985, words, transform=axes.get_xaxis_transform(), ha="center", va="top",
                          fontsize=SMALL, color=QUIET, style="italic", zorder=5)  # fmt: skip
        if label.get_window_extent().width > (end - start) / (right - left) * axes.get_window_extent().width - 8:
            label.set_text("\n".join(textwrap.wrap(words, 14)))


def _name_lines(axes: Axes, results: Results) -> None:
    """The name of each line beside its end, with its marker, moved apart where lines end close together."""
    lines = {str(line.get_label()): np.asarray(line.get_xydata(), dtype=np.float64) for line in axes.get_lines()}
    ends = sorted((float(lines[x][-1, 1]), float(lines[x][-1, 0]), x) for x in results.models if x in lines)
    box, (low, high) = axes.get_position(), axes.get_ylim()  # of a figure of one inch: inches
    wanted = np.clip([(y - low) / (high - low) for y, *_ in ends], 0, 1)
    inch = 1 / box.width
    from_axes: dict[str, Any] = {"transform": axes.transAxes}
    leader = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.6, "shrinkA": 0, "shrinkB": 0}
    for (y, x, model), place in zip(ends, spaced(wanted, LINE / box.height, 0.02, 0.98), strict=True):
        style = _look(results, model)
        axes.annotate("", xy=(x, min(max(y, low), high)), xycoords="data", xytext=(1 + 0.22 * inch, place),
                      textcoords="axes fraction", annotation_clip=False, zorder=1,
                      arrowprops={**leader, "color": style["color"]})  # fmt: skip
        axes.plot([1 + 0.22 * inch, 1 + 0.36 * inch], [place, place], linewidth=1.4, markevery=[1], clip_on=False,
                  label=f"_key {model}", **style, **from_axes)  # fmt: skip
        axes.text(1 + 0.45 * inch, place, shorten(model, LONGEST), va="center_baseline", fontsize=SMALL, **from_axes)


def spaced(wanted: Numbers, gap: float, low: float, high: float) -> Numbers:
    """Places at least `gap` apart and within the limits, as near to the wanted ones (sorted) as can be.

    Without the gaps this is a regression on rising values: neighbours that clash are pooled at their mean.
    """
    steps = gap * np.arange(len(wanted))
    pools: list[list[float]] = []
    for value in wanted - steps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = np.array([np.mean(pool) for pool in pools for _ in pool])
    room = high - low - (steps[-1] if len(steps) else 0.0)
    return np.asarray(np.clip(level, low, low + max(room, 0.0)) + steps, dtype=np.float64)


def _dark(color: str) -> tuple[float, ...]:
    """The colour, dark enough to read words in."""
    from matplotlib.colors import to_rgb

    shade = np.array(to_rgb(color))
    return tuple((shade * min(1.0, 0.42 / float(shade @ (0.30, 0.59, 0.11)))).tolist())  # what each adds to lightness
