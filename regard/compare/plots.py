"""A comparison as pictures for print: quality by length of the source, by cost of training, and as training goes on.

A model has the same colour and marker in all of them. Figures are built on Matplotlib's objects, not on pyplot, and
Matplotlib is imported only when one is drawn. The same results give the same file, byte for byte.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.artifacts import replacing
from regard.compare.results import Group, Measure, Numbers, Results, Trajectory, called, flops, frontier
from regard.errors import ConfigError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INK, QUIET, GRID, SHADE = "#22262e", "#6b7280", "#e4e6ea", "#f1f2f4"
WIDTH, TEXT, SMALL, DPI = 7.2, 9.0, 8.0, 150  # inches, points, points: nine points are 12 px in a picture of 700 px
LEFT, RIGHT, TOP, BOTTOM, LINE = 0.62, 0.12, 0.15, 0.55, 0.18  # inches around the axes; from label to label
LEADER = 16  # pixels; a name that lies farther from its mark gets a line to it
KEY = 0.42  # inches from the axes to the names: room for a leader and a marker
# Paul Tol's muted scheme, which all common kinds of colour vision tell apart, and ink; neighbours far from each other.
# There are ten colours and eleven markers, so that a hundred and ten models differ in one or the other.
COLORS = ("#332288", "#cc6677", "#44aa99", "#882255", "#999933",
          "#88ccee", "#117733", "#aa4499", "#22262e", "#ddaa33")  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p")
SIZES = {
    "*": 1.35,
    "P": 1.15,
    "X": 1.15,
    "D": 0.85,
    "s": 0.95,
    "^": 1.1,
    "v": 1.1,
    "<": 1.15,
    ">": 1.15,
}  # so that all look as large as a circle
SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": TEXT,
    "svg.fonttype": "none",
    "svg.hashsalt": "regard",
    "text.usetex": False,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.labelsize": TEXT,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


Box = tuple[float, float, float, float]  # in pixels: left, bottom, right, top


class End(NamedTuple):
    """Where a model's line ends, in the coordinates of the data."""

    model: str
    x: float
    y: float


def quality_by_length(results: Results, path: Path) -> None:
    """Draw the metric against the number of source words, beyond those of training too: where a bottleneck shows."""
    _write(length_figure, results, path)


def quality_by_cost(results: Results, path: Path) -> None:
    """Draw the metric against the operations of training: a small mark for each run, a large one for their mean."""
    _write(cost_figure, results, path)


def learning_curves(results: Results, path: Path) -> None:
    """Draw validation quality, and loss if there is one, against the target tokens seen."""
    _write(learning_figure, results, path)


def length_figure(results: Results) -> Figure:
    """The drawing of `quality_by_length`; call it within Matplotlib's `rc_context(SETTINGS)` for its look."""
    groups = results.groups
    if not groups:
        raise ConfigError("there is no quality by length to draw: no run has scores of length groups")
    figure, (axes,) = _figure(results, (4.3,))
    x = np.array([(low + high) / 2 for low, high in groups])
    for model in results.models:
        known = [(at, m) for at, group in zip(x, groups, strict=True) if (m := results.measure(model, group=group))]
        _line(axes, results, model, _measured(known), markevery=1)
    room = 0.05 * (x[-1] - x[0]) or 1.0
    axes.set_xlim(x[0] - room, x[-1] + room)
    _from_zero(axes)
    axes.set(xlabel="words of the source", ylabel=called(results.metric))
    _length_ticks(axes, groups, x)
    if results.trained is not None:
        _shade(axes, results.trained, groups)
    _name_lines(axes, results)
    return figure


def cost_figure(results: Results) -> Figure:
    """The drawing of `quality_by_cost`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure, (axes,) = _figure(results, (4.7,), names=False)
    axes.set_xscale("log")
    ends: list[End] = []
    marks: list[tuple[float, float]] = []
    for model in results.models:
        color, marker, size = _look(results, model)
        runs = [(run.flops, y) for run in results.of(model) if (y := run.score(results.metric)) is not None]
        runs = [(x, y) for x, y in runs if x > 0]
        if not runs:
            continue
        path = results.trajectory(model, "flops", "quality")
        if path is not None and len(path.x) > 1:
            axes.plot(path.x, path.mean, color=color, linewidth=1.0, alpha=0.3, zorder=1, label=f"_path {model}")
        x, y = np.array(runs).T
        axes.plot(x, y, linestyle="", marker=marker, markersize=0.55 * size, color=color, alpha=0.55, zorder=3,
                  markeredgewidth=0, label=f"_runs {model}")  # fmt: skip
        end = End(model, float(x.mean()), float(y.mean()))
        axes.plot(end.x, end.y, linestyle="", marker=marker, markersize=1.35 * size, color=color, zorder=4,
                  markeredgecolor="white", markeredgewidth=0.8, label=model)  # fmt: skip
        ends.append(end)
        marks += [*runs, (end.x, end.y)]
    if not ends:
        raise ConfigError("there is no quality by cost to draw: no run has both a score and its FLOPs")
    _frame_costs(axes, marks)
    _staircase(axes, results)
    low, high = axes.get_xlim()
    few, some, many = (1.0,), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    axes.xaxis.set_major_locator(LogLocator(subs=many if high < 10 * low else some if high < 100 * low else few))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: flops(value).replace(".0e", "e")))
    axes.set(xlabel="FLOPs of training (logarithmic)", ylabel=called(results.metric))
    _name_points(axes, ends, marks, [_look(results, end.model)[0] for end in ends])
    return figure


def learning_figure(results: Results) -> Figure:
    """The drawing of `learning_curves`."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    quality = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "quality"))}
    loss = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "loss"))}
    names = [(f"validation {called(results.metric)}", quality), ("validation loss", loss)]
    panels = [(name, paths) for name, paths in names if paths]
    if not panels:
        raise ConfigError("there is no learning curve to draw: no run was validated as it trained")
    figure, drawn = _figure(results, (3.6, 2.6)[: len(panels)])
    for axes, (name, paths) in zip(drawn, panels, strict=True):
        for model, path in paths.items():
            _line(axes, results, model, path, markevery=max(1, len(path.x) // 6))
        axes.set_ylabel(name)
        axes.set_xlim(0, 1.01 * max(path.x[-1] for path in paths.values()))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g} M" if value else "0"))
        if paths is quality:
            _from_zero(axes)
        else:
            _loss_range(axes, list(paths.values()))
    drawn[-1].set_xlabel("target tokens seen")
    for axes in drawn[:-1]:
        axes.tick_params(labelbottom=False)
    for axes in drawn:
        _name_lines(axes, results)
    return figure


# The frame


def _write(draw: Any, results: Results, path: Path) -> None:
    if path.suffix not in {".png", ".svg"}:
        raise ConfigError(f"cannot draw '{path.suffix}' ({path}); the ending may be .png or .svg")
    require("matplotlib")
    import matplotlib

    with matplotlib.rc_context(SETTINGS), replacing(path) as temporary:
        facts = {"Date": None} if path.suffix == ".svg" else {}
        draw(results).savefig(temporary, dpi=DPI, metadata=facts, format=path.suffix.removeprefix("."))


def _figure(results: Results, heights: Sequence[float], *, names: bool = True) -> tuple[Figure, list[Axes]]:
    """Axes one under the other, each of so many inches or more, with room on the right for the names of models."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    gap = 0.22
    inner = [max(height - TOP - BOTTOM, LINE * len(results.models)) if names else height - TOP - BOTTOM
             for height in heights]  # fmt: skip
    tall = sum(inner) + TOP + BOTTOM + gap * (len(inner) - 1)
    figure = Figure(figsize=(WIDTH, tall), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    right = RIGHT
    if names:
        probes = [figure.text(0, 0, _short(model), fontsize=SMALL) for model in results.models]
        widest = max(_extent(probe).width for probe in probes)
        for probe in probes:
            probe.remove()
        right = KEY + widest / DPI + 0.08
    drawn, top = [], tall - TOP
    for height in inner:
        box = (LEFT / WIDTH, (top - height) / tall, (WIDTH - LEFT - right) / WIDTH, height / tall)
        axes = figure.add_axes(box)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.tick_params(length=3, width=0.7)
        drawn.append(axes)
        top -= height + gap
    return figure, drawn


def _extent(text: Any) -> Bbox:
    """Of a text, in pixels."""
    box: Bbox = text.get_window_extent()
    return box


def _short(name: str) -> str:
    return textwrap.shorten(name, 28, placeholder="…") if " " in name else name if len(name) <= 28 else name[:27] + "…"


def _look(results: Results, model: str) -> tuple[str, str, float]:
    """Colour, marker and size of the marker: by the model's place in the list, so the same in every figure."""
    place = results.models.index(model)
    marker = MARKERS[place % len(MARKERS)]
    return COLORS[place % len(COLORS)], marker, 5.2 * SIZES.get(marker, 1.0)


# Lines


def _measured(known: Sequence[tuple[float, Measure]]) -> Trajectory:
    mean = np.array([m.mean for _, m in known])
    spread = np.array([m.spread or 0.0 for _, m in known])
    return Trajectory(np.array([at for at, _ in known]), mean, spread if spread.any() else None)


def _line(axes: Axes, results: Results, model: str, path: Trajectory, *, markevery: int) -> None:
    """The mean as a line, and a band of one standard deviation on either side of it."""
    if not len(path.x):
        return
    color, marker, size = _look(results, model)
    if path.spread is not None:
        low, high = path.mean - path.spread, path.mean + path.spread
        axes.fill_between(path.x, low, high, color=color, alpha=0.14, linewidth=0, zorder=2)
    axes.plot(path.x, path.mean, color=color, linewidth=1.4, marker=marker, markersize=size, markeredgecolor="white",
              markeredgewidth=0.6, markevery=markevery, zorder=3, label=model)  # fmt: skip


def _from_zero(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), high)


def _loss_range(axes: Axes, paths: Sequence[Trajectory]) -> None:
    """Leave the first fall of the loss out of the panel: it is as high for all, and would flatten what follows."""
    values = np.concatenate([path.mean[len(path.mean) // 6 :] for path in paths])
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.1
    axes.set_ylim(low - room, high + room)


def _length_ticks(axes: Axes, groups: Sequence[Group], x: Numbers) -> None:
    labels = [f"{low}–{high}" if low < high else f"{low}" for low, high in groups]
    axes.set_xticks(x, labels)
    boxes = [_extent(label) for label in axes.get_xticklabels()]
    if any(a.x1 + 4 > b.x0 for a, b in pairwise(boxes)):
        axes.set_xticks(x, labels, rotation=60, rotation_mode="anchor", ha="right", va="center")


def _shade(axes: Axes, trained: Group, groups: Sequence[Group]) -> None:
    """Mark the lengths that training had none of."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
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
        width = (end - start) / (right - left) * axes.get_window_extent().width
        label = axes.text((start + end) / 2, 0.985, words, transform=axes.get_xaxis_transform(), ha="center", va="top",
                          fontsize=SMALL, color=QUIET, style="italic", zorder=5)  # fmt: skip
        if _extent(label).width > width - 8:
            label.set_text("\n".join(textwrap.wrap(words, 14)))


def _name_lines(axes: Axes, results: Results) -> None:
    """The name of each line beside its end, with its marker, moved apart where lines end close together."""
    ends = []
    for line in axes.get_lines():
        if line.get_label() in results.models:
            x, y = (np.asarray(values, dtype=np.float64) for values in line.get_data())
            ends.append(End(str(line.get_label()), float(x[-1]), float(y[-1])))
    box = axes.get_window_extent()
    low, high = axes.get_ylim()
    ends.sort(key=lambda end: end.y)
    wanted = np.clip([(end.y - low) / (high - low) for end in ends], 0, 1)
    places = spaced(wanted, LINE * DPI / box.height, 0.02, 0.98)
    inch = DPI / box.width
    for end, place in zip(ends, places, strict=True):
        color, marker, size = _look(results, end.model)
        axes.annotate("", xy=(end.x, min(max(end.y, low), high)), xycoords="data", xytext=(1 + 0.22 * inch, place),
                      textcoords="axes fraction", annotation_clip=False, zorder=1,
                      arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.6,
                                  "shrinkA": 0, "shrinkB": 0})  # fmt: skip
        axes.plot([1 + 0.22 * inch, 1 + 0.36 * inch], [place, place], color=color, linewidth=1.4, marker=marker,
                  markersize=size, markeredgecolor="white", markeredgewidth=0.6, markevery=[1], clip_on=False,
                  transform=axes.transAxes, label=f"_key {end.model}")  # fmt: skip
        axes.text(1 + (KEY + 0.03) * inch, place, _short(end.model), transform=axes.transAxes, va="center_baseline",
                  fontsize=SMALL)  # fmt: skip


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


# Points


def _frame_costs(axes: Axes, marks: Sequence[tuple[float, float]]) -> None:
    """Limits by where training ended: the ways there come in from the left and from below."""
    x, y = np.array(marks).T
    wide, tall = float(np.log10(x.max() / x.min())), float(y.max() - y.min())
    axes.set_xlim(x.min() / 10 ** (0.12 * wide + 0.2), x.max() * 10 ** (0.12 * wide + 0.1))
    axes.set_ylim(y.min() - 0.15 * tall - 0.5, y.max() + 0.1 * tall + 0.5)


def _staircase(axes: Axes, results: Results) -> None:
    """A line along the models that no other beats in both cost and quality."""
    best = sorted((results.mean(x, "flops"), m.mean) for x in frontier(results) if (m := results.measure(x)))
    if len(best) < 2:
        return
    x, y = np.array(best).T
    axes.plot(x, y, drawstyle="steps-post", color=QUIET, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2,
              label="_frontier")  # fmt: skip


def _name_points(axes: Axes, ends: Sequence[End], marks: Sequence[tuple[float, float]], colors: Sequence[str]) -> None:
    """A name beside each mean, in the nearest place that is free of marks and of other names.

    Each name in turn takes the place that costs least given all others, a few times over. A place costs what it lies
    away from its mark and, far more, what it covers; one that is nearer to another model's mark would be misread.
    """
    pixels = axes.transData.transform([(end.x, end.y) for end in ends])
    dots = axes.transData.transform(marks)
    style: dict[str, Any] = {"fontsize": SMALL, "zorder": 6, "va": "center", "ha": "center"}
    texts = [axes.text(end.x, end.y, _short(end.model), **style) for end in ends]
    frame = axes.get_window_extent().extents
    options = [_places(pixels, i, _extent(text), dots, frame) for i, text in enumerate(texts)]
    chosen = [min(option)[1] for option in options]
    for _ in range(6):
        for i, option in enumerate(options):
            rest = chosen[:i] + chosen[i + 1 :]
            chosen[i] = min((cost + 5 * sum(_overlap(box, other) for other in rest), box) for cost, box in option)[1]
    back = axes.transData.inverted()
    for end, at, text, box, color in zip(ends, pixels, texts, chosen, colors, strict=True):
        text.set_color(_dark(color))
        text.set_position(tuple(back.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))))
        if _distance(at, box) > LEADER:
            line = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4}
            tip = tuple(back.transform(_nearest(at, box)))
            axes.annotate("", xy=(end.x, end.y), xytext=tip, zorder=2, arrowprops=line)


def _places(pixels: Numbers, i: int, size: Bbox, dots: Numbers, frame: Box) -> list[tuple[float, Box]]:
    """Where the name of the mean at `pixels[i]` may stand, and what each place costs by itself."""
    at, others = pixels[i], np.delete(pixels, i, axis=0)
    half = np.array([size.width / 2 + 3, size.height / 2])
    covered: list[Box] = [(x - 7, y - 7, x + 7, y + 7) for x, y in dots]
    found = []
    for away in range(9, 200, 8):
        for angle in np.radians(range(0, 360, 15)):
            way = np.round([np.cos(angle), np.sin(angle)], 6)
            middle = at + way * away + np.sign(way) * half * np.minimum(1, np.abs(way) * 2)
            left, bottom, right, top = (float(x) for x in (*(middle - half), *(middle + half)))
            box = (left, bottom, right, top)
            inside = frame[0] < left and frame[1] < bottom and right < frame[2] and top < frame[3]
            own = _distance(at, box)
            cost = away + 8 * abs(float(way[1])) + 0.5 * sum(_overlap(box, dot) for dot in covered)
            cost += 0.0 if inside else 1e5
            cost += 200 * sum(_distance(other, box) < min(own + 20, 40) for other in others)
            if own > LEADER:
                line = at + (_nearest(at, box) - at) * np.linspace(0.2, 1, 9)[:, None]
                cost += 60 * sum(bool((np.hypot(*(line - other).T) < 9).any()) for other in others)
            found.append((cost, box))
    return sorted(found)[:200]


def _dark(color: str) -> str:
    """The colour, dark enough to read words in."""
    from matplotlib.colors import to_hex, to_rgb

    shade = np.array(to_rgb(color))
    red, green, blue = shade * min(1.0, 0.42 / float(shade @ (0.30, 0.59, 0.11)))  # what each adds to lightness
    return to_hex((float(red), float(green), float(blue)))


def _nearest(point: Numbers, box: Box) -> Numbers:
    return np.clip(point, box[:2], box[2:])


def _distance(point: Numbers, box: Box) -> float:
    return float(np.hypot(*(_nearest(point, box) - point)))


def _overlap(a: Box, b: Box) -> float:
    """The area that two boxes share."""
    return float(max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1])))
