"""What a comparison measured: runs of models and seeds, means and spreads over seeds, and tests of differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from regard.artifacts import read_json, write_json
from regard.errors import DamagedError, DataError
from regard.evaluation.bootstrap import resampled
from regard.evaluation.metrics import Numbers

KIND = "comparison"  # what results.json says it is
LOWER_IS_BETTER = {"aer", "perplexity", "ter", "wer", "cer"}
LEVEL = 0.05  # significance level of every test
MIDPOINTS = (np.arange(4096) + 0.5) / 4096  # of equal parts of the unit interval

Group = tuple[int, int]  # source words, shortest and longest
Over = Literal["tokens", "flops"]  # what a learning curve is over
Of = Literal["loss", "quality"]  # and what of


def _finite(value: float | None) -> float | None:
    """The number, or None: a loss that overflowed is no measurement, and JSON cannot hold it."""
    return value if value is not None and math.isfinite(value) else None


Finite = Annotated[float | None, AfterValidator(_finite)]
Scores = Annotated[dict[str, float], AfterValidator(lambda x: {k: v for k, v in x.items() if math.isfinite(v)})]


class Record(BaseModel):
    """A measurement as it is kept on disk; a field it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Point(Record):
    """A model in the middle of its training; `quality` is the metric on validation data."""

    step: int
    tokens: int
    flops: float
    seconds: float
    loss: Finite
    quality: Finite


class Length(Record):
    """Scores of the test sentences of `shortest` to `longest` source words."""

    shortest: int
    longest: int
    sentences: int
    scores: Scores


class Run(Record):
    """One model trained from one seed. `memory` is in bytes, `decode_speed` in output tokens per second."""

    model: str
    seed: int
    parameters: int
    tokens: int
    steps: int
    seconds: float
    flops: float
    memory: int
    decode_speed: float
    scores: Scores
    lengths: tuple[Length, ...] = ()
    curve: tuple[Point, ...] = ()

    def score(self, metric: str, group: Group | None = None) -> float | None:
        """A score over the whole test set or over one length group; None where there is no such number."""
        if group is None:
            return self.scores.get(metric)
        found = (x.scores.get(metric) for x in self.lengths if (x.shortest, x.longest) == group and x.sentences)
        return next(found, None)

    def path(self, over: Over, of: Of) -> Numbers:
        """The learning curve, `(2, points)`: what training took so far, and the loss or quality there."""
        known = [(x, y) for p in self.curve if (x := getattr(p, over)) > 0 and (y := getattr(p, of)) is not None]
        return np.array(sorted(known), dtype=np.float64).reshape(-1, 2).T


class Pair(Record):
    """A paired bootstrap test of two models on the same test sentences: the difference of the metric (`one` minus
    `other`), its 95 % interval, and how often resampling alone gives one as large."""

    one: str
    other: str
    group: Group | None
    difference: float
    low: float
    high: float
    p: float


def paired_tests(metric: str, found: Mapping[str, Sequence[Numbers]], group: Group | None) -> Iterator[Pair]:
    """Paired bootstrap resampling (Koehn 2004), two-sided, of each pair of models, from the statistics of each of a
    model's seeds on one test set: would a difference hold on other test sentences?

    On each resample a model's seeds are scored one by one and averaged, so this is about sentences alone; what seeds
    change is another test (`Measure.differs`). As in sacrebleu the resampled differences, centred, stand for what
    chance gives where there is no difference.
    """
    scores = resampled(metric, [rows for seeds in found.values() for rows in seeds])
    ends = np.cumsum([len(seeds) for seeds in found.values()])[:-1]
    means = dict(zip(found, (part.mean(1) for part in np.split(scores, ends, axis=1)), strict=True))
    for one, other in combinations(found, 2):
        (real, *_), drawn = (difference := means[one] - means[other]), difference[1:]
        beyond = np.abs(drawn - drawn.mean()) >= abs(real)
        low, high = np.percentile(drawn, (2.5, 97.5))
        yield Pair(one=one, other=other, group=group, difference=float(real), low=float(low), high=float(high),
                   p=float((beyond.sum() + 1) / (len(drawn) + 1)))  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A mean over seeds and the sample standard deviation, which one seed does not have."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Measure | None:
        """Of those values that are numbers; None if none is."""
        known = [x for x in map(_finite, values) if x is not None]
        if not known:
            return None
        return cls(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None, len(known))

    def differs(self, other: Measure) -> bool | None:
        """Whether two means differ by Welch's t-test over seeds; None where one of them has no spread to judge by."""
        if self.spread is None or other.spread is None:
            return None
        mine, theirs = self.spread**2 / self.seeds, other.spread**2 / other.seeds
        if not mine + theirs:
            return self.mean != other.mean
        freedom = (mine + theirs) ** 2 / (mine**2 / (self.seeds - 1) + theirs**2 / (other.seeds - 1))
        return p_value((self.mean - other.mean) / math.sqrt(mine + theirs), freedom) < LEVEL


def p_value(t: float, freedom: float) -> float:
    """The two-sided p-value of Student's t.

    With `t = √ν tan φ` the density of t is that of `cos(φ) ** (ν - 1)`, and its tail an integral over a bounded range.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    tail, whole = (
        (math.pi / 2 - low) * np.mean(np.cos(low + (math.pi / 2 - low) * MIDPOINTS) ** (freedom - 1))
        for low in (angle, 0.0)
    )
    return float(tail / whole)


@dataclass(frozen=True)
class Ranking:
    """Models by a metric, best first, and the paired tests of them where there are any."""

    metric: str
    measures: Mapping[str, Measure]
    pairs: Mapping[frozenset[str], Pair] = field(default_factory=dict)

    @classmethod
    def of(cls, metric: str, found: Mapping[str, Measure | None], pairs: Iterable[Pair] = ()) -> Ranking:
        known = [(x, m) for x, m in found.items() if m is not None]
        known.sort(key=lambda item: item[1].mean if metric in LOWER_IS_BETTER else -item[1].mean)
        return cls(metric, dict(known), {frozenset((x.one, x.other)): x for x in pairs})

    def pair(self, one: str, other: str) -> Pair | None:
        return self.pairs.get(frozenset((one, other)))

    def differ(self, one: str, other: str) -> bool | None:
        """Whether two models differ significantly by every test there is: paired bootstrap over sentences, Welch's over
        seeds. None where there is none."""
        pair = self.pair(one, other)
        found = [None if pair is None else pair.p < LEVEL, self.measures[one].differs(self.measures[other])]
        verdicts = [x for x in found if x is not None]
        return all(verdicts) if verdicts else None


class Trajectory(NamedTuple):
    """The mean over seeds of a learning curve."""

    x: Numbers
    mean: Numbers
    spread: Numbers | None


class Results(Record):
    """A comparison: what was compared on what, and all that was measured.

    `trained` is the fewest and the most source words in training, `ideas` a line for each model, `pairs` the paired
    tests by the metric. Times are given in seconds where `gpu` is true, and as ratios elsewhere, for a shared CPU's
    seconds mean little on another.
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
    pairs: tuple[Pair, ...] = ()
    resamples: int = 0  # of each paired test
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

    def of(self, model: str) -> list[Run]:
        return [run for run in self.runs if run.model == model]

    def measure(self, model: str, metric: str | None = None, group: Group | None = None) -> Measure | None:
        """A model's score over its seeds."""
        return Measure.of(run.score(metric or self.metric, group) for run in self.of(model))

    def mean(self, model: str, name: Literal["parameters", "seconds", "flops", "memory", "decode_speed"]) -> float:
        return float(np.mean([getattr(run, name) for run in self.of(model)]))

    def ranking(self, metric: str | None = None, group: Group | None = None) -> Ranking:
        """Those of the models that have the metric, best first, with the tests of them."""
        metric = metric or self.metric
        pairs = [x for x in self.pairs if x.group == group] if metric == self.metric else []
        return Ranking.of(metric, {x: self.measure(x, metric, group) for x in self.models}, pairs)

    def trajectory(self, model: str, over: Over, of: Of) -> Trajectory | None:
        """A model's learning curve over its seeds, at the places where its first run was validated.

        Packed batches differ from seed to seed and so do these places: the other runs are interpolated to them.
        """
        curves = [path for run in self.of(model) if (path := run.path(over, of)).size]
        if not curves:
            return None
        first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        grid = np.unique(np.clip(curves[0][0], first, max(first, last)))
        values = np.stack([np.interp(grid, x, y) for x, y in curves])
        return Trajectory(grid, values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None)

    def beaten_by(self, model: str, *, significantly: bool = False) -> str | None:
        """The best of the models that are better than this one by the metric and cost no more FLOPs; None if none is.

        Costs within one percent count as equal: two runs under the same budget never end on the very same token.
        """
        ranking, limit = self.ranking(), 1.01 * self.mean(model, "flops")
        for other, measure in ranking.measures.items():
            if other == model or measure.mean <= ranking.measures[model].mean:
                return None
            if 0 < self.mean(other, "flops") <= limit and (not significantly or ranking.differ(other, model)):
                return other
        return None

    def frontier(self) -> list[str]:
        """The models that no other beats in cost and quality at once, cheapest first."""
        known = [x for x in self.ranking().measures if self.mean(x, "flops") > 0 and self.beaten_by(x) is None]
        return sorted(known, key=lambda x: self.mean(x, "flops"))


def save(results: Results, path: Path) -> None:
    """Write all that was measured as JSON, a whole file or none."""
    write_json(path, {"kind": KIND, **results.model_dump(mode="json")})


def load(path: Path) -> Results:
    """Read what `save` wrote."""
    try:
        content = read_json(path)
        if content.pop("kind", None) != KIND:
            raise DataError(f"{path}: not the results of `regard compare`")
        return Results.model_validate(content)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except DamagedError as error:
        raise DataError(f"{path}: not the results of `regard compare` ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
