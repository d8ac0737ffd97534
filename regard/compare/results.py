"""What a comparison measured: runs of models and seeds, their means and spreads, and the table of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from regard.artifacts import write_text
from regard.errors import DataError

FORMAT = "regard comparison 1"
NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "exact": "exact match", "aer": "AER"}
DIGITS = {"aer": 3, "perplexity": 2}  # after the point; one for scores in percent
LOWER_IS_BETTER = {"aer", "perplexity", "ter"}
DASH = "–"
LEVEL = 0.05  # what a difference counts as one at: chance gives as large a one more seldom
MIDPOINTS = (np.arange(4096) + 0.5) / 4096  # of equal parts of the unit interval

Numbers = NDArray[np.float64]
Group = tuple[int, int]  # source words, shortest and longest
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """A model in the middle of its training; `quality` is the metric on validation data."""

    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float | None
    quality: float | None

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_json(cls, raw: Any) -> Point:
        read = _Reader(raw, "a point of a curve")
        return cls(
            read.integer("step"), read.integer("tokens"), read.number("flops"), read.number("seconds"),
            read.maybe("loss"), read.maybe("quality"),
        )  # fmt: skip


@dataclass(frozen=True)
class Length:
    """Scores of the test sentences of so many source words."""

    shortest: int
    longest: int
    sentences: int
    scores: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_json(cls, raw: Any) -> Length:
        read = _Reader(raw, "a length group")
        return cls(
            read.integer("shortest"), read.integer("longest"), read.integer("sentences"), read.by_name("scores", float)
        )


@dataclass(frozen=True)
class Run:
    """One model trained from one seed. `memory` is in bytes, `decode_speed` in output tokens a second."""

    model: str
    seed: int
    parameters: int
    tokens: int
    steps: int
    seconds: float
    flops: float
    memory: int
    decode_speed: float
    scores: dict[str, float]
    lengths: tuple[Length, ...] = ()
    curve: tuple[Point, ...] = ()

    def score(self, metric: str, group: Group | None = None) -> float | None:
        """A score over the whole test set or over one length group; none where there is no such number."""
        if group is None:
            return _finite(self.scores.get(metric))
        for length in self.lengths:
            if (length.shortest, length.longest) == group and length.sentences:
                return _finite(length.scores.get(metric))
        return None

    def to_json(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_json(cls, raw: Any) -> Run:
        read = _Reader(raw, "a run")
        return cls(
            read.text("model"), read.integer("seed"), read.integer("parameters"), read.integer("tokens"),
            read.integer("steps"), read.number("seconds"), read.number("flops"), read.integer("memory"),
            read.number("decode_speed"), read.by_name("scores", float), read.each("lengths", Length.from_json),
            read.each("curve", Point.from_json),
        )  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A mean over seeds and the sample standard deviation, which one seed does not have."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Measure | None:
        """Of those that are numbers; none if none is."""
        known = [x for x in map(_finite, values) if x is not None]
        if not known:
            return None
        return cls(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None, len(known))

    def apart(self, other: Measure) -> bool | None:
        """Whether the two differ by Welch's t-test (p < 0.05); none where one of them has no spread to judge by."""
        if self.spread is None or other.spread is None:
            return None
        mine, theirs = self.spread**2 / self.seeds, other.spread**2 / other.seeds
        if not mine + theirs:
            return self.mean != other.mean
        freedom = (mine + theirs) ** 2 / (mine**2 / (self.seeds - 1) + theirs**2 / (other.seeds - 1))
        return p_value((self.mean - other.mean) / math.sqrt(mine + theirs), freedom) < LEVEL

    def above(self, value: float) -> bool | None:
        """Whether the mean is above a value (False: below it) by a t-test (p < 0.05); none where it cannot be told."""
        if self.spread is None or self.mean == value:
            return None
        error = self.spread / math.sqrt(self.seeds)
        if error and p_value((self.mean - value) / error, self.seeds - 1) >= LEVEL:
            return None
        return self.mean > value


def p_value(t: float, freedom: float) -> float:
    """How often chance alone gives Student's t such a size or more, on both sides together.

    With `t = √ν tan φ` the density of t is that of `cos(φ) ** (ν - 1)`, and its tail an integral over a bounded range.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    tail, whole = (
        (math.pi / 2 - low) * np.mean(np.cos(low + (math.pi / 2 - low) * MIDPOINTS) ** (freedom - 1))
        for low in (angle, 0.0)
    )
    return float(tail / whole)


class Trajectory(NamedTuple):
    """The mean over seeds of a learning curve."""

    x: Numbers
    mean: Numbers
    spread: Numbers | None


@dataclass(frozen=True)
class Results:
    """A comparison: what was compared on what, and all that was measured.

    `trained` is the fewest and the most source words in training, `ideas` a line for each model. Times are told in
    seconds where `gpu` is true, and as ratios elsewhere, for a shared CPU's seconds mean little on another.
    """

    title: str
    budget: str
    data: str
    hardware: str
    versions: str
    command: str
    date: str
    trained: Group | None
    metric: str
    ideas: dict[str, str]
    runs: tuple[Run, ...]
    gpu: bool = False

    @property
    def models(self) -> list[str]:
        """Names in the order in which they first appear."""
        return list(dict.fromkeys(run.model for run in self.runs))

    @property
    def groups(self) -> list[Group]:
        """The length groups in which some model has the metric, shortest first."""
        found = {(length.shortest, length.longest) for run in self.runs for length in run.lengths}
        return sorted(x for x in found if any(run.score(self.metric, x) is not None for run in self.runs))

    @property
    def metrics(self) -> list[str]:
        """What the table shows of quality: the metric, then what else there is of chrF, exact match and alignment."""
        others = [x for x in ("chrf", "exact", "aer", "pointing") if x != self.metric]
        return [self.metric, *(x for x in others if any(run.score(x) is not None for run in self.runs))]

    def of(self, model: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.model == model)

    def measure(self, model: str, metric: str | None = None, group: Group | None = None) -> Measure | None:
        """A model's score over its seeds."""
        return Measure.of(run.score(metric or self.metric, group) for run in self.of(model))

    def change(self, model: str, first: Group, last: Group) -> Measure | None:
        """By how much the metric of the same run differs between two length groups."""
        pairs = [(run.score(self.metric, first), run.score(self.metric, last)) for run in self.of(model)]
        return Measure.of(None if a is None or b is None else b - a for a, b in pairs)

    def mean(self, model: str, field: Literal["parameters", "seconds", "flops", "memory", "decode_speed"]) -> float:
        return float(np.mean([getattr(run, field) for run in self.of(model)]))

    def trajectory(
        self, model: str, over: Literal["tokens", "flops"], of: Literal["loss", "quality"]
    ) -> Trajectory | None:
        """A model's learning curve over its seeds, at the places where its first run was looked at.

        Packed batches differ from seed to seed and so do these places: the other runs are interpolated to them.
        """
        curves = []
        for run in self.of(model):
            known = [
                (x, y) for p in run.curve if (x := getattr(p, over)) > 0 and (y := _finite(getattr(p, of))) is not None
            ]
            if known:
                curves.append(np.array(sorted(known), dtype=np.float64).T)
        if not curves:
            return None
        first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        grid = np.unique(np.clip(curves[0][0], first, max(first, last)))
        values = np.stack([np.interp(grid, x, y) for x, y in curves])
        return Trajectory(grid, values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None)

    def during(self, model: str, tokens: float, *, since: float | None = None) -> Measure | None:
        """Validation quality after so many tokens over a model's seeds, or how it changed `since` so many."""
        curves = [np.array(sorted(known)).T for run in self.of(model) if (known := _followed(run))]
        values = [np.interp([tokens, since or tokens], *curve) for curve in curves]
        return Measure.of(float(now - before) if since is not None else float(now) for now, before in values)

    def reached(self, model: str, quality: float) -> list[float | None]:
        """After how many tokens the validation of each run first has this quality; none where it never has."""
        return [next((x for x, y in sorted(_followed(run)) if y >= quality), None) for run in self.of(model)]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **_plain(self)}

    @classmethod
    def from_json(cls, raw: Any, name: str = "these results") -> Results:
        """`name` is what an error calls them, such as their file."""
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise DataError(f'{name}: not the results of `regard compare`; expected "format": "{FORMAT}"')
        try:
            read = _Reader(raw, "the comparison")
            trained = None if raw.get("trained") is None else read.each("trained", _whole)
            if trained is not None and len(trained) != 2:
                raise DataError(f"trained of the comparison should be two numbers, not {len(trained)}")
            return cls(
                title=read.text("title"), budget=read.text("budget"), data=read.text("data"),
                hardware=read.text("hardware"), versions=read.text("versions"), command=read.text("command"),
                date=read.text("date"), trained=None if trained is None else (trained[0], trained[1]),
                metric=read.text("metric"), ideas=read.by_name("ideas", str), runs=read.each("runs", Run.from_json),
                gpu=read.flag("gpu"),
            )  # fmt: skip
        except DataError as error:
            raise DataError(f"{name}: {error}") from None


def _followed(run: Run) -> list[tuple[float, float]]:
    """Tokens and validation quality, wherever it was looked at."""
    return [(float(p.tokens), y) for p in run.curve if p.tokens > 0 and (y := _finite(p.quality)) is not None]


def ranked(results: Results, metric: str, models: Iterable[str] | None = None) -> list[tuple[str, Measure]]:
    """Those of the models that have the metric, best first."""
    known = [(x, m) for x in (results.models if models is None else models) if (m := results.measure(x, metric))]
    return sorted(known, key=lambda pair: pair[1].mean if metric in LOWER_IS_BETTER else -pair[1].mean)


def beaten_by(results: Results, model: str, *, surely: bool = False) -> str | None:
    """The best of the models that are better than this one by the metric and cost no more FLOPs; none if none is.

    Better is a higher mean, or with `surely` one that a test tells from it. Costs within one percent count as equal:
    two runs under the same budget never end on the very same token.
    """
    own = results.measure(model)
    limit = 1.01 * results.mean(model, "flops")
    for other, measure in ranked(results, results.metric):
        if own is None or measure.mean <= own.mean or not 0 < results.mean(other, "flops") <= limit:
            continue
        if not surely or measure.apart(own):
            return other
    return None


def frontier(results: Results) -> list[str]:
    """The models that no other beats in cost and quality at once, cheapest first."""
    known = [x for x in results.models if results.measure(x) is not None and results.mean(x, "flops") > 0]
    return sorted((x for x in known if beaten_by(results, x) is None), key=lambda x: results.mean(x, "flops"))


def save(results: Results, path: Path) -> None:
    """Write all that was measured as JSON, a whole file or none."""
    write_text(path, json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> Results:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    return Results.from_json(raw, str(path))


# The table: one source of cells, for the terminal and for the page.


def cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each model."""
    header = ["model", *(called(x) for x in results.metrics)]
    header += ["parameters", "training FLOPs", "training time", "decoding speed", "memory"]
    first = results.models[0] if results.runs else ""
    rows = []
    for model in results.models:
        runs = results.of(model)
        seconds, speed = results.mean(model, "seconds"), results.mean(model, "decode_speed")
        if results.gpu:
            times = [duration(seconds), f"{speed:,.0f} tokens/s" if speed else DASH]
        else:
            times = [ratio(seconds, results.mean(first, "seconds")), ratio(speed, results.mean(first, "decode_speed"))]
        scores = [shown(results.measure(model, x), x, runs=len(runs)) for x in results.metrics]
        sizes = [amount(results.mean(model, "parameters")), flops(results.mean(model, "flops"))]
        rows.append([model, *scores, *sizes, *times, memory(max(run.memory for run in runs))])
    return header, rows


def table(results: Results) -> Table:
    """For the terminal."""
    header, rows = cells(results)
    drawn = Table(title=results.title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(header):
        drawn.add_column(name, justify="right" if i else "left", no_wrap=not i, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """For the page."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def called(metric: str) -> str:
    return NAMES.get(metric, metric)


def plain(value: float, metric: str) -> str:
    """A number with as many digits as the metric deserves."""
    text = f"{value:.{DIGITS.get(metric, 1)}f}"
    return text.removeprefix("-") if not float(text) else text.replace("-", "−")


def shown(measure: Measure | None, metric: str, *, runs: int = 0) -> str:
    """`62.1 ± 0.4`; with `runs`, it is said if some of these have no such score."""
    if measure is None:
        return DASH
    spread = "" if measure.spread is None else f" ± {plain(measure.spread, metric)}"
    missing = f" ({measure.seeds} of {runs})" if measure.seeds < runs else ""
    return plain(measure.mean, metric) + spread + missing


def flops(value: float) -> str:
    """`3.1e15`."""
    return f"{value:.1e}".replace("e+", "e").replace("e0", "e") if value else DASH


def ratio(value: float, to: float) -> str:
    if not value or not to:
        return DASH
    return f"{value / to:.2f}x" if value / to < 0.095 else f"{value / to:.1f}x"


def amount(value: float) -> str:
    """`812`, `81.2 k`, `8.1 M`."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def memory(value: float) -> str:
    if not value:
        return DASH
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    if not seconds:
        return DASH
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# JSON


def _finite(value: float | None) -> float | None:
    """The number, or none: a loss that overflowed is no measurement, and JSON cannot hold it."""
    return value if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items() if _plain(x) is not None}
    if isinstance(value, tuple):
        return [_plain(x) for x in value]
    return _finite(value) if isinstance(value, float) else value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(f"expected a whole number, not {value!r}")
    return value


class _Reader:
    """The fields of a dict that should be there and of the right kind; errors name the field and where it stands."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, dict):
            raise DataError(f"{where} should be a table of names and values, not {type(raw).__name__}")
        self.raw: dict[str, Any] = raw
        self.where = where

    def _take(self, key: str, kind: type | tuple[type, ...], expected: str) -> Any:
        if key not in self.raw:
            raise DataError(f"{key} of {self.where} is missing; expected {expected}")
        value = self.raw[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise DataError(f"{key} of {self.where} should be {expected}, not {str(value)[:40]!r}")
        return value

    def text(self, key: str) -> str:
        return str(self._take(key, str, "text"))

    def integer(self, key: str) -> int:
        return int(self._take(key, int, "a whole number"))

    def number(self, key: str) -> float:
        return float(self._take(key, (int, float), "a number"))

    def maybe(self, key: str) -> float | None:
        return None if self.raw.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        return bool(self._take(key, bool, "true or false"))

    def each(self, key: str, read: Callable[[Any], T]) -> tuple[T, ...]:
        return tuple(read(x) for x in self._take(key, (list, tuple), "a list"))

    def by_name(self, key: str, kind: type[T]) -> dict[str, T]:
        inner = _Reader(self._take(key, dict, "a table of names and values"), f"{key} of {self.where}")
        take = inner.number if kind is float else inner.text
        return {name: kind(take(name)) for name in inner.raw}  # type: ignore[call-arg]
