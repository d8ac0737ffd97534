"""What the numbers of a comparison say, computed from them.

No difference is claimed that Welch's t-test over seeds does not tell from noise (p < 0.05), none at all where there is
one seed, and none among models that did not score. Means are called means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from regard.compare.results import (
    DIGITS,
    LOWER_IS_BETTER,
    Group,
    Measure,
    Results,
    beaten_by,
    called,
    flops,
    frontier,
    markdown,
    plain,
    ranked,
    shown,
)

WIDTH = 120
Ranking = Sequence[tuple[str, Measure]]


def quality(results: Results) -> Iterator[str]:
    """Who is best over the whole test set, if that can be told, by how much, and the order of all."""
    ranking = ranked(results, results.metric)
    yield from lead(ranking, results.metric, f"By {called(results.metric)}")
    yield from order(ranking)
    missing = [x for x in results.models if results.measure(x) is None]
    if missing:
        yield f"{listed(missing)} {'has' if len(missing) == 1 else 'have'} no {called(results.metric)}."


def by_length(results: Results) -> Iterator[str]:
    """Who loses how much as sentences grow, within the lengths of training and beyond."""
    metric = called(results.metric)
    first, last, far = landmarks(results)
    if first is None and last is None:
        yield "No length group lies within the lengths of training."
    elif first is not None and last is not None:
        seen = ", both of lengths seen in training" if results.trained else ""
        yield from _change(results, first, last, f"From {span(first)} to {span(last)} words{seen},")
    elif last is not None and far is None:
        yield f"All test sentences are in one length group, {span(last)} words."
    if far is not None:
        start = f"Among sentences of {span(far)} words, longer than any in training"
        yield from lead(_ranked_in(results, far), results.metric, start)
        if last is not None:
            yield from _change(results, last, far, f"From {span(last)} to {span(far)} words,")
            yield from _collapse(results, last, far)
    elif results.trained is not None:
        yield "No group of test sentences is wholly longer than those of training."
    else:
        yield f"The lengths of training are not known, so nothing is said of {metric} beyond them."


def by_cost(results: Results) -> Iterator[str]:
    """What each model gets for the operations spent, and whom another beats in both."""
    models = [x for x in results.models if results.measure(x) is not None and results.mean(x, "flops") > 0]
    costs = {x: results.mean(x, "flops") for x in models}
    paths = any(results.trajectory(x, "flops", "quality") for x in models)
    way = "; the faint lines are validation quality on the way there" if paths else ""
    yield f"A small mark is a run, a large one the mean of a model{way}."
    if len(models) == 1:
        yield f"{name(models[0])} took {flops(costs[models[0]])} FLOPs."
        return
    cheap, dear = min(models, key=lambda x: costs[x]), max(models, key=lambda x: costs[x])
    if costs[dear] <= 1.01 * costs[cheap]:
        yield f"All models took {flops(costs[cheap])} FLOPs to within one percent, so cost does not tell them apart."
        return
    yield f"Training took from {flops(costs[cheap])} FLOPs ({name(cheap)}) to {flops(costs[dear])} ({name(dear)}), " \
          f"{costs[dear] / costs[cheap]:.1f} times as many."  # fmt: skip
    if none_scored(ranked(results, results.metric), results.metric):
        yield "No model scored, so none got anything for it."
        return
    unit = 10.0 ** np.floor(np.log10(costs[cheap]))
    rates = [(x, m) for x in models if (m := _rate(results, x, unit))]
    yield from extremes(
        rates, results.metric, f"Per {flops(unit).replace('.0e', 'e')} FLOPs, {called(results.metric)} is"
    )
    yield from _dominated(results, models)


def _rate(results: Results, model: str, unit: float) -> Measure | None:
    """The metric for so many FLOPs, run by run."""
    known = [(run.score(results.metric), run.flops) for run in results.of(model) if run.flops > 0]
    return Measure.of(None if score is None else score / cost * unit for score, cost in known)


def _dominated(results: Results, models: Sequence[str]) -> Iterator[str]:
    best = frontier(results)
    if len(best) > 1:
        yield f"The steps in the figure join {listed(best)}, which no other model beats in both by its mean."
    if not any(_judged(results, x, y) for x, y in combinations(models, 2)):
        yield f"Whether one beats another cannot be told: {ALONE}."
        return
    beaten = [(x, other) for x in models if (other := beaten_by(results, x, surely=True))]
    if beaten:
        told = "; ".join(f"{listed(worse)} by {name(x)}" for x, worse in _by_second(beaten))
        yield f"Beaten in both cost and quality, beyond noise: {told}."
    else:
        yield "No model is beaten by another in both cost and quality beyond noise."


def _judged(results: Results, one: str, other: str) -> bool:
    a, b = results.measure(one), results.measure(other)
    return a is not None and b is not None and a.apart(b) is not None


def learning(results: Results) -> Iterator[str]:
    """Who is ahead early and late, when most of it is reached, and what the last quarter changes."""
    paths = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "quality"))}
    if not paths:
        yield "Only the loss was followed as training went on, not quality."
        return
    metric, shown_as = results.metric, f"validation {called(results.metric)}"
    total = min(path.x[-1] for path in paths.values())
    ends = [(x, m) for x in paths if (m := results.during(x, total))]
    if none_scored(ends, metric):
        yield f"No model has any {shown_as} at the end."
        return
    if len(paths) > 1 and all(path.x[0] <= total / 4 for path in paths.values()):
        early = [(x, m) for x in paths if (m := results.during(x, total / 4))]
        yield from lead(_sorted(early), metric, f"After a quarter of the tokens ({round(total / 4):,}), by {shown_as}")
        yield from lead(_sorted(ends), metric, "At the end")
    goal = 0.9 * max(m.mean for _, m in ends)
    if len(paths) > 1:
        reached = [(x, m) for x in paths if None not in (at := results.reached(x, goal)) and (m := Measure.of(at))]
        start = f"The first validation at nine tenths of the highest final mean ({plain(goal, metric)}) comes after"
        if len(reached) > 1:
            yield from extremes(reached, metric, start, show=lambda m: f"{m.mean:,.0f} tokens")
        never = [x for x in paths if x not in dict(reached)]
        if never:
            do = "does" if len(never) == 1 else "do"
            yield f"{listed(never)} {do} not reach {plain(goal, metric)} with every seed."
    late = [x for x in paths if paths[x].x[0] <= 0.75 * total and len(paths[x].x) > 1]
    gains = [(x, m) for x in late if (m := results.during(x, total, since=0.75 * total))]
    if len(gains) > 1:
        start = f"Over the last quarter of the tokens {shown_as} changes by"
        yield from extremes(gains, metric, start, show=lambda m: _signed_measure(m, metric))
    elif gains:
        model, change = gains[0]
        yield f"Over the last quarter of the tokens {name(model)} changes by {_signed_measure(change, metric)}."


def alignment(results: Results) -> Iterator[str]:
    """The order by alignment error rate, and how far the order by quality follows it."""
    ranking = ranked(results, "aer")
    metric = called(results.metric)
    yield from lead(ranking, "aer", "By alignment error rate")
    yield from order(ranking)
    without = [x for x in results.models if results.measure(x, "aer") is None]
    if without:
        yield f"{listed(without)} {'has' if len(without) == 1 else 'have'} no attention that was scored so."
    both = ranked(results, results.metric, [x for x, _ in ranking])
    if len(both) < 2:
        return
    aer = dict(ranking)
    pairs = [(x, a, y, b) for (x, a), (y, b) in combinations(both, 2)]
    if all(a.apart(b) is None or aer[x].apart(aer[y]) is None for x, a, y, b in pairs):
        yield f"Whether {metric} goes with it cannot be told: {ALONE}."
        return
    clear = [aer[x].mean < aer[y].mean for x, a, y, b in pairs if a.apart(b) and aer[x].apart(aer[y])]
    if clear:
        yield f"Of {count(len(pairs), 'pair')} of models {len(clear)} differ beyond noise both in AER and in " \
              f"{metric}; the one with the lower AER has the higher {metric} in {sum(clear) or 'none'}."  # fmt: skip
    else:
        yield f"No two models differ beyond noise both in AER and in {metric}."


# Sentences

ALONE = "with one seed for each model there is no noise to hold differences against"


def none_scored(ranking: Ranking, metric: str) -> bool:
    """Whether all are at 0, which for some metrics is the worst there is."""
    return metric not in LOWER_IS_BETTER and all(plain(m.mean, metric) == plain(0.0, metric) for _, m in ranking)


def lead(ranking: Ranking, metric: str, start: str) -> Iterator[str]:
    """Who is best, if a test tells it from all others; else whom it is not told from."""
    if not ranking:
        return
    (best, first), *others = ranking
    if not others:
        yield f"{start}, {name(best)} has {shown(first, metric)}; there is no other to compare it with."
        return
    if none_scored(ranking, metric):
        yield f"{start}, no model scored: all are at {plain(0.0, metric)}."
        return
    if len({plain(m.mean, metric) for _, m in ranking}) == 1:
        yield f"{start}, all models are level at {plain(first.mean, metric)}."
        return
    if all(first.apart(m) is None for _, m in others):
        low, high = sorted((first.mean, ranking[-1][1].mean))
        yield f"{start}, models have {plain(low, metric)} to {plain(high, metric)}, which says nothing of who is " \
              f"better: {ALONE}."  # fmt: skip
        return
    close = [(x, m) for x, m in others if not first.apart(m)]
    if not close:
        # Of the numbers as they are shown, so that a reader who subtracts them finds the same.
        ahead = _apart_as_shown(first, others[0][1], metric)
        way = "below" if metric in LOWER_IS_BETTER else "ahead of"
        yield f"{start}, {name(best)} is best with {shown(first, metric)}, {ahead} {way} {name(others[0][0])} " \
              f"({shown(others[0][1], metric)}), and is told from all others beyond noise."  # fmt: skip
        return
    extreme = "lowest" if metric in LOWER_IS_BETTER else "highest"
    text = f"{start}, {name(best)} has the {extreme} mean, {shown(first, metric)}, but is not told from "
    text += _join([f"{name(x)} ({shown(m, metric)})" for x, m in close]) + " beyond noise"
    yield text + ("; from the others it is." if len(close) < len(others) else ".")


def extremes(known: Ranking, metric: str, start: str, *, show: Callable[[Measure], str] | None = None) -> Iterator[str]:
    """The smallest and the largest mean, and whether a test tells these two apart."""
    ranking = sorted(known, key=lambda pair: pair[1].mean)
    if not ranking:
        return
    (low, a), (high, b) = ranking[0], ranking[-1]
    show = show or (lambda m: shown(m, metric))
    text = f"{start} {show(a)} ({name(low)})"
    if len(ranking) == 1:
        yield text + "."
        return
    judged = {
        True: "; these two differ beyond noise.",
        False: "; these two do not differ beyond noise.",
        None: ", which says nothing of who is ahead: " + ALONE + ".",
    }
    yield text + f" to {show(b)} ({name(high)})" + judged[a.apart(b)]


def order(ranking: Ranking) -> Iterator[str]:
    """All models by their means, with what a test says of neighbours; nothing where it says nothing."""
    judged = {a.apart(b) for (_, a), (_, b) in pairwise(ranking)}
    if len(ranking) < 3 or True not in judged:
        return
    legend = ["> stands where two neighbours differ beyond noise"]
    if judged != {True}:
        legend += ["≈ where they do not"]
    yield f"By their means: {_chain(ranking)} ({', '.join(legend)})."


def _chain(ranking: Ranking) -> str:
    text = name(ranking[0][0])
    for (_, a), (x, b) in pairwise(ranking):
        text += (" > " if a.apart(b) else " ≈ ") + name(x)
    return text


def _sorted(known: Ranking) -> Ranking:
    return sorted(known, key=lambda pair: -pair[1].mean)


def _by_second(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """(loser, winner) pairs as winners with all their losers."""
    found: dict[str, list[str]] = {}
    for loser, winner in pairs:
        found.setdefault(winner, []).append(loser)
    return list(found.items())


# Lengths


def landmarks(results: Results) -> tuple[Group | None, Group | None, Group | None]:
    """The shortest and the longest group within training, if they are two, and the farthest beyond it.

    With one group within training it is the longest. Where `trained` is not known, all count as within.
    """
    low, high = results.trained or (0, 10**9)
    within = [x for x in results.groups if low <= x[0] and x[1] <= high]
    beyond = [x for x in results.groups if x[0] > high]
    first = within[0] if len(within) > 1 else None
    return first, within[-1] if within else None, beyond[-1] if beyond else None


def length_table(results: Results) -> Iterator[str]:
    first, last, far = landmarks(results)
    columns = [x for x in (first, last, far) if x is not None]
    if not columns:
        return
    header = ["model", *(f"{span(x)} words{', beyond training' * (x == far)}" for x in columns)]
    if len(columns) > 1:
        header += [f"{span(x)} to {span(y)}" for x, y in pairwise(columns)]
    rows = []
    for model in results.models:
        row = [model, *(shown(results.measure(model, group=x), results.metric) for x in columns)]
        changes = [results.change(model, x, y) for x, y in pairwise(columns)]
        rows.append(row + [_signed_measure(x, results.metric) for x in changes])
    yield f"{called(results.metric)} by words of the source, and how much it changes from one group to the other:" \
        if len(columns) > 1 else f"{called(results.metric)} by words of the source:"  # fmt: skip
    yield markdown(header, rows)


def _ranked_in(results: Results, group: Group) -> Ranking:
    return _sorted([(x, m) for x in results.models if (m := results.measure(x, group=group))])


def _change(results: Results, first: Group, last: Group, start: str) -> Iterator[str]:
    """The least and the most that is lost between two groups."""
    metric = results.metric
    known = [(x, m) for x in results.models if (m := results.change(x, first, last))]
    if not known:
        return
    if all(none_scored(_ranked_in(results, group), metric) for group in (first, last)):
        yield f"{start} nothing changes: no model scored in either."
        return
    if len({plain(m.mean, metric) for _, m in known}) == 1:
        yield f"{start} {called(metric)} changes by {_signed(known[0][1].mean, metric)}{' for all' * (len(known) > 1)}."
        return
    yield from extremes(
        known, metric, f"{start} {called(metric)} changes by", show=lambda m: _signed_measure(m, metric)
    )
    before = _ranked_in(results, first)
    least, change = max(known, key=lambda pair: pair[1].mean)
    (_, best), own = before[0], dict(before)[least]
    if change.mean < 0 and own.mean < 0.5 * best.mean and best.apart(own):
        yield f"{name(least)} had little to lose, though: it starts from {plain(own.mean, metric)}, where the " \
              f"highest is {plain(best.mean, metric)}."  # fmt: skip


def _collapse(results: Results, last: Group, far: Group) -> Iterator[str]:
    """Who keeps less than half, where a test tells it."""
    verdicts: dict[bool, list[str]] = {True: [], False: []}
    for model in results.models:
        pairs = [(run.score(results.metric, last), run.score(results.metric, far)) for run in results.of(model)]
        kept = Measure.of(None if a is None or b is None or not a else b / a for a, b in pairs)
        if kept is not None and (verdict := kept.above(0.5)) is not None:
            verdicts[verdict].append(f"{name(model)} ({kept.mean:.0%})")
    if verdicts[False]:
        keep = "keeps less than half of its" if len(verdicts[False]) == 1 else "keep less than half of their"
        yield f"Beyond noise, {_join(verdicts[False])} {keep} {called(results.metric)} there."
    if verdicts[True]:
        keep = "keeps more than half of its" if len(verdicts[True]) == 1 else "keep more than half of their"
        yield f"Beyond noise, {_join(verdicts[True])} {keep} {called(results.metric)} there."


# Words


def name(model: str) -> str:
    return f"`{model}`"


def span(group: Group) -> str:
    return f"{group[0]}–{group[1]}" if group[0] < group[1] else f"{group[0]}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def listed(models: Sequence[str], word: str = "and") -> str:
    return _join([name(x) for x in models], word)


def _join(words: Sequence[str], word: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {word} {words[-1]}"


def sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _apart_as_shown(a: Measure, b: Measure, metric: str) -> str:
    digits = DIGITS.get(metric, 1)
    return plain(abs(round(a.mean, digits) - round(b.mean, digits)), metric)


def _signed(value: float, metric: str) -> str:
    text = plain(value, metric)
    return text if text.startswith("−") or not float(text) else f"+{text}"


def _signed_measure(measure: Measure | None, metric: str) -> str:
    text = shown(measure, metric)
    return text if measure is None or measure.mean < 0 else f"+{text}"


def paragraph(sentences: Iterable[str]) -> str:
    """Sentences as lines of the page, none longer than `WIDTH` and none broken within a name."""
    lines, line = [], ""
    for word in _words(" ".join(sentences)):
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line] if line else lines)


def _words(text: str) -> Iterator[str]:
    whole = ""
    for word in text.split():
        whole = f"{whole} {word}" if whole else word
        if whole.count("`") % 2 == 0:
            yield whole
            whole = ""
    if whole:
        yield whole
