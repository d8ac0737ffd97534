"""What the numbers of a comparison say, in sentences.

No difference is claimed that the tests do not find significant (`Ranking.differ`), and none at all where there is no
test.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from regard.compare.results import LOWER_IS_BETTER, Group, Measure, Ranking, Results
from regard.compare.tables import DASH, code, listed, markdown, metric_name, number, shown, span

UNTESTED = "with one seed for each model there is no spread to hold differences against"


def quality(results: Results) -> str:
    """Who is best over the whole test set, if that can be told, by how much, and the order of all."""
    ranking = results.ranking()
    return lead(ranking, f"By {metric_name(results.metric)}") + order(ranking)


def landmarks(results: Results) -> tuple[Group | None, Group | None]:
    """The longest group of lengths within training, and the farthest beyond it. Where `trained` is not known, all
    count as within."""
    low, high = results.trained or (0, 10**9)
    within = [x for x in results.groups if low <= x[0] and x[1] <= high]
    beyond = [x for x in results.groups if x[0] > high]
    return within[-1] if within else None, beyond[-1] if beyond else None


def length_table(results: Results) -> str:
    """The metric in each group of lengths, and what share of it is left far beyond the lengths of training."""
    (last, far), rows = landmarks(results), []
    for model in results.models:
        row = [model, *(shown(results.measure(model, group=x), results.metric) for x in results.groups)]
        if last and far:
            scores = [(run.score(results.metric, last), run.score(results.metric, far)) for run in results.of(model)]
            share = Measure.of(b / a for a, b in scores if a and b is not None)
            row.append(f"{share.mean:.0%}" if share else DASH)
        rows.append(row)
    header = [f"{metric_name(results.metric)} by source words", *map(span, results.groups)]
    header += [f"left of {span(last)} at {span(far)}"] if last and far else []
    return markdown(header, rows) if results.groups else ""


def by_length(results: Results) -> str:
    """Who leads beyond the lengths of training."""
    _, far = landmarks(results)
    if far is None:
        return "No group of test sentences is known to be wholly longer than those of training."
    return lead(results.ranking(group=far), f"Among sentences of {span(far)} words, longer than any in training")


def by_cost(results: Results) -> str:
    """Whom no other beats in cost and quality at once, and who is beaten significantly."""
    ranking = results.ranking()
    text = f"By their means these are {listed(map(code, results.frontier()))}."
    if all(ranking.differ(x, y) is None for x, y in combinations(ranking.measures, 2)):
        return text
    beaten: dict[str, list[str]] = {}
    for model in ranking.measures:
        if winner := results.beaten_by(model, significantly=True):
            beaten.setdefault(winner, []).append(model)
    told = "; ".join(f"{listed(map(code, worse))} by {code(winner)}" for winner, worse in beaten.items())
    return f"{text} Beaten significantly at no more cost: {told or 'none'}."


def learning(results: Results) -> str:
    """Who is ahead early and late."""
    paths = {x: [run.path("tokens", "quality") for run in results.of(x)] for x in results.models}
    every = [path for found in paths.values() for path in found if path.size]
    if not every:
        return "Only the loss was followed as training went on, not quality."
    end = min(path[0, -1] for path in every)

    def after(tokens: float, start: str) -> str:
        found = {x: Measure.of(float(np.interp(tokens, *path)) for path in paths[x] if path.size) for x in paths}
        return lead(Ranking.of(results.metric, found), f"{start} ({round(tokens):,} tokens), in validation")

    early = max(path[0, 0] for path in every) <= end / 4
    return (after(end / 4, "After a quarter") if early else "") + after(end, "At the end")


def alignment(results: Results) -> str:
    """The order by alignment error rate, and how far the order by quality follows it."""
    aer, ranking, metric = results.ranking("aer"), results.ranking(), metric_name(results.metric)
    both = combinations([x for x in ranking.measures if x in aer.measures], 2)  # the better one first
    tested = {x: (ranking.differ(*x), aer.differ(*x)) for x in both}
    tested = {x: verdicts for x, verdicts in tested.items() if None not in verdicts}
    clear = [aer.measures[x].mean < aer.measures[y].mean for (x, y), verdicts in tested.items() if all(verdicts)]
    text = f"Pairs of models that differ significantly in both AER and {metric}: {len(clear)} of {len(tested)}; the " \
           f"lower AER goes with the higher {metric} in {sum(clear)} of them."  # fmt: skip
    return lead(aer, "By alignment error rate") + order(aer) + text * bool(tested)


def lead(ranking: Ranking, start: str) -> str:
    """Who comes first, and from whom it differs significantly."""
    metric, measures = ranking.metric, ranking.measures
    if not measures:
        return ""
    best, *others = measures
    text = f"{start}, {code(best)} has {shown(measures[best], metric)}"
    if not others:
        return f"{text}; there is no other to compare it with. "
    if len({number(m.mean, metric) for m in measures.values()}) == 1:
        return f"{start}, all models are level at {number(measures[best].mean, metric)}. "
    if all(ranking.differ(best, x) is None for x in others):
        low, high = (number(x, metric) for x in sorted((measures[best].mean, measures[others[-1]].mean)))
        return f"{start}, models have {low} to {high}, which says nothing of who is better: {UNTESTED}. "
    close = [x for x in others if not ranking.differ(best, x)]
    if close:
        names = listed(f"{code(x)} ({shown(measures[x], metric)})" for x in close)
        rest = "; from the others it does" if len(close) < len(others) else ""
        return f"{text} and comes first, but does not differ significantly from {names}{rest}. "
    # Of the numbers as they are shown, so that a reader who subtracts them finds the same.
    one, other = (float(number(measures[x].mean, metric).replace("−", "-")) for x in (best, others[0]))
    text += f" and is best, {number(abs(one - other), metric)} {'below' if metric in LOWER_IS_BETTER else 'ahead of'} "
    text += f"{code(others[0])} ({shown(measures[others[0]], metric)}"
    if pair := ranking.pair(best, others[0]):
        sign = 1 if pair.difference > 0 else -1
        low, high = (number(x, metric) for x in sorted((sign * pair.low, sign * pair.high)))
        text += f"; 95 % interval of the difference {low} to {high}"
    return f"{text}); it differs significantly from all others. "


def order(ranking: Ranking) -> str:
    """All models by their means, and which neighbours differ significantly; nothing where none do."""
    judged = [ranking.differ(x, y) for x, y in pairwise(ranking.measures)]
    if len(judged) < 2 or True not in judged:
        return ""
    first, *others = ranking.measures
    chain = "".join(f" {'>' if differ else '≈'} {code(x)}" for differ, x in zip(judged, others, strict=True))
    return f"By their means: {code(first)}{chain} (> stands where two neighbours differ significantly, ≈ elsewhere). "
