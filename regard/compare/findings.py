"""What the numbers of a comparison say, computed from them. What differs by less than seeds do is called so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """Who is best over the whole test set, by how much, and the order of all."""
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
        yield from _change(results, first, last, f"From {span(first)} to {span(last)} words{seen}")
    elif last is not None and far is None:
        yield f"All test sentences are in one length group, {span(last)} words."
    if far is not None:
        start = f"Among sentences of {span(far)} words, longer than any in training"
        yield from lead(_ranked_in(results, far), results.metric, start)
        if last is not None:
            yield from _change(results, last, far, f"From {span(last)} to {span(far)} words")
            yield from _collapse(results, last, far)
    elif results.trained is not None:
        yield "No group of test sentences is wholly longer than those of training."
    else:
        yield f"The lengths of training are not known, so nothing is said of {metric} beyond them."


def by_cost(results: Results) -> Iterator[str]:
    """Who gets most for the operations spent, and whom another beats in both."""
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
    rates = {x: m.mean / costs[x] for x in models if (m := results.measure(x))}
    most, least = max(rates, key=lambda x: rates[x]), min(rates, key=lambda x: rates[x])
    unit = 10.0 ** np.floor(np.log10(costs[cheap]))
    yield f"Per {flops(unit).replace('.0e', 'e')} FLOPs, {name(most)} has most {called(results.metric)} " \
          f"({plain(rates[most] * unit, results.metric)}) and {name(least)} least " \
          f"({plain(rates[least] * unit, results.metric)})."  # fmt: skip
    yield from _dominated(results, models)


def _dominated(results: Results, models: Sequence[str]) -> Iterator[str]:
    best = frontier(results)
    if len(best) == len(models):
        yield "By the means, no model is beaten by another in both cost and quality."
        return
    if len(best) == 1:
        yield f"By the means, {name(best[0])} is both cheaper and better than every other, or as cheap and better."
    else:
        yield f"By the means, no model beats {listed(best, 'or')} in both cost and quality."
    sure: list[tuple[str, str]] = []
    unsure: list[tuple[str, str]] = []
    for model in models:
        other = beaten_by(results, model)
        if other is not None:
            mine, theirs = results.measure(model), results.measure(other)
            assert mine
            assert theirs
            (sure if mine.apart(theirs) is not False else unsure).append((model, other))
    if len(best) > 1 and sure:
        yield "Beaten in both: " + "; ".join(f"{listed(worse)} by {name(x)}" for x, worse in _by_second(sure)) + "."
    for other, worse in _by_second(unsure):
        yield f"The difference in quality between {name(other)} and {listed(worse)} is within the spread, though."


def learning(results: Results) -> Iterator[str]:
    """Who is ahead early and late, who gets there first, and who was still improving."""
    paths = {x: path for x in results.models if (path := results.trajectory(x, "tokens", "quality"))}
    if not paths:
        yield "Only the loss was followed as training went on, not quality."
        return
    metric = f"validation {called(results.metric)}"
    total = min(path.x[-1] for path in paths.values())

    def at(model: str, share: float) -> float:
        return float(np.interp(share * total, paths[model].x, paths[model].mean))

    early = [x for x in paths if paths[x].x[0] <= total / 4]
    if len(early) == len(paths) > 1:
        then, now = (max(paths, key=lambda x: at(x, share)) for share in (0.25, 1.0))
        yield f"After a quarter of the tokens ({round(total / 4):,}) {name(then)} has the highest {metric}, " \
              f"{plain(at(then, 0.25), results.metric)}; at the end " \
              f"{'it still has' if then == now else f'{name(now)} has'} it, " \
              f"{plain(at(now, 1.0), results.metric)}."  # fmt: skip
    goal = 0.9 * max(at(x, 1.0) for x in paths)
    reached = {x: float(path.x[np.argmax(path.mean >= goal)]) for x, path in paths.items() if (path.mean >= goal).any()}
    if len(paths) > 1 and goal > 0:
        quick, slow = min(reached, key=lambda x: reached[x]), max(reached, key=lambda x: reached[x])
        text = f"The first validation at nine tenths of the highest final value ({plain(goal, results.metric)}) comes "
        text += f"after {reached[quick]:,.0f} tokens for {name(quick)}"
        text += f" and after {reached[slow]:,.0f} for {name(slow)}" if reached[slow] > reached[quick] else ""
        never = [x for x in paths if x not in reached]
        yield text + (f"; {listed(never)} {'does' if len(never) == 1 else 'do'} not reach it." if never else ".")
    late = [x for x in paths if paths[x].x[0] <= 0.75 * total and len(paths[x].x) > 1]
    gains = {x: at(x, 1.0) - at(x, 0.75) for x in late}
    if gains:
        most, least = max(gains, key=lambda x: gains[x]), min(gains, key=lambda x: gains[x])
        text = f"Over the last quarter of the tokens {name(most)} changes by {_signed(gains[most], results.metric)}"
        other = f" and {name(least)} by {_signed(gains[least], results.metric)}"
        yield text + ((", the most," + other + ", the least.") if len(gains) > 1 else ".")


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
    yield f"By {metric} the same models stand in this order: {_chain(both)}."
    aer = dict(ranking)
    agree = [aer[x].mean < aer[y].mean for (x, a), (y, b) in combinations(both, 2) if a.mean > b.mean]
    yield f"Of {count(len(agree), 'pair')} of them, the model with the lower AER has the higher {metric} in " \
          f"{sum(agree) or 'none'}."  # fmt: skip
    clear = [
        aer[x].mean < aer[y].mean for (x, a), (y, b) in combinations(both, 2) if a.apart(b) and aer[x].apart(aer[y])
    ]
    if clear:
        yield f"In {count(len(clear), 'pair')} both differences exceed the spread; the two agree in " \
              f"{sum(clear) or 'none'}."  # fmt: skip
    elif any(measure.spread is not None for _, measure in both):
        yield "In no pair do both differences exceed the spread."


# Sentences


def lead(ranking: Ranking, metric: str, start: str) -> Iterator[str]:
    """Who is first, how far ahead of the second, and who else is within the spread of the first."""
    if not ranking:
        return
    (best, first), *others = ranking
    level = [x for x, m in others if plain(m.mean, metric) == plain(first.mean, metric)]
    behind = [(x, m) for x, m in others if x not in level]
    if not others:
        yield f"{start}, {name(best)} has {shown(first, metric)}; there is no other to compare it with."
        return
    if level:
        yield f"{start}, {listed([best, *level])} are level at {plain(first.mean, metric)}."
        if not behind:
            return
        x, second = behind[0]
        text = f"The next is {name(x)} with {shown(second, metric)}"
    else:
        x, second = behind[0]
        # Of the numbers as they are shown, so that a reader who subtracts them finds the same.
        ahead = _apart_as_shown(first, second, metric)
        way = "below" if metric in LOWER_IS_BETTER else "ahead of"
        text = f"{start}, {name(best)} is best with {shown(first, metric)}, "
        text += f"{ahead} {way} {name(x)} ({shown(second, metric)})"
    match first.apart(second):
        case True:
            yield text + ("; the difference exceeds the spread over seeds." if level else
                          ", which exceeds the spread over seeds.")  # fmt: skip
        case False:
            yield text + "; the difference is within the spread over seeds."
        case None:
            yield text + "; there is no spread to judge the difference by."
    close = [y for y, m in behind[1:] if first.apart(m) is False]
    if close:
        yield f"{listed(close)} {'is' if len(close) == 1 else 'are'} within the spread of {name(best)} too."


def order(ranking: Ranking) -> Iterator[str]:
    """All models from the best to the worst, with what the spread says of neighbours."""
    if len(ranking) < 3:
        return
    judged = {a.apart(b) for (_, a), (_, b) in pairwise(ranking)}
    legend = []
    if True in judged:
        legend += ["> stands where two neighbours differ by more than the spread"]
    if False in judged:
        legend += [
            "≈ where they do not" if legend else "≈ stands where two neighbours differ by no more than the spread"
        ]
    yield f"From best to worst: {_chain(ranking)}" + (f" ({', '.join(legend)})." if legend else ".")


def _chain(ranking: Ranking) -> str:
    signs = {True: " > ", False: " ≈ ", None: ", "}
    text = name(ranking[0][0])
    for (_, a), (x, b) in pairwise(ranking):
        text += signs[a.apart(b)] + name(x)
    return text


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
    known = [(x, m) for x in results.models if (m := results.measure(x, group=group))]
    return sorted(known, key=lambda pair: -pair[1].mean)


def _change(results: Results, first: Group, last: Group, start: str) -> Iterator[str]:
    """Who loses least and who most between two groups."""
    known = [(x, m) for x in results.models if (m := results.change(x, first, last))]
    known.sort(key=lambda pair: -pair[1].mean)
    if not known:
        return
    metric = results.metric
    (least, a), (most, b) = known[0], known[-1]
    if len(known) == 1:
        yield f"{start}, {name(least)} {'loses' if a.mean < 0 else 'gains'} {_size(a, metric)}."
        return
    if plain(a.mean, metric) == plain(b.mean, metric):
        yield f"{start}, all models {'lose' if a.mean < 0 else 'gain'} {plain(abs(a.mean), metric)}."
        return
    text = f"{start}, {name(least)} " + ("loses least" if a.mean < 0 else "gains most") + f" ({_size(a, metric)}) and "
    text += f"{name(most)} " + ("loses most" if b.mean < 0 else "gains least") + f" ({_size(b, metric)})"
    judged = {
        True: "; the two differ by more than the spread.",
        False: "; the two differ within the spread.",
        None: ".",
    }
    yield text + judged[a.apart(b)]
    start_of = {x: m.mean for x, m in _ranked_in(results, first)}
    if a.mean < 0 and start_of[least] < 0.5 * max(start_of.values()):
        yield f"{name(least)} had little to lose, though: it starts from {plain(start_of[least], metric)}, where the " \
              f"best has {plain(max(start_of.values()), metric)}."  # fmt: skip


def _collapse(results: Results, last: Group, far: Group) -> Iterator[str]:
    """Who keeps less than half."""
    pairs = [(x, results.measure(x, group=last), results.measure(x, group=far)) for x in results.models]
    known = [(x, a.mean, b.mean) for x, a, b in pairs if a is not None and b is not None]
    fallen = [x for x in known if x[2] < 0.5 * x[1]]
    if not fallen:
        yield f"{'Each model keeps' if len(known) > 1 else 'It keeps'} at least half of its quality there."
        return
    if len(fallen) == len(known) > 1:
        kept = sorted(b / a for _, a, b in known)
        yield f"No model keeps half of its quality there: what is left is {kept[0]:.0%} to {kept[-1]:.0%} of it."
        return
    told = [f"{name(x)} (from {plain(a, results.metric)} to {plain(b, results.metric)})" for x, a, b in fallen]
    keep = "keeps less than half of its" if len(fallen) == 1 else "keep less than half of their"
    yield f"{_join(told)} {keep} quality there" + (
        "; no other does." if len(fallen) < len(known) and len(known) > 1 else "."
    )


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


def _size(measure: Measure, metric: str) -> str:
    return shown(Measure(abs(measure.mean), measure.spread, measure.seeds), metric)


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
