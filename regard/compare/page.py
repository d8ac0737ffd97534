"""A comparison as a Markdown page, from the template `page.md`: what was compared, tables, figures, findings.

No difference is claimed that the tests do not find significant (`Ranking.differ`), and none at all where there is no
test.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from itertools import combinations, pairwise
from pathlib import Path
from string import Template
from urllib.parse import quote

import numpy as np

from regard.artifacts import write_text
from regard.compare import plots, tables
from regard.compare.results import LOWER_IS_BETTER, Group, Measure, Ranking, Results, load, save
from regard.compare.tables import DASH, code, escaped, listed, markdown, metric_name, number, shown, span
from regard.errors import ConfigError, DataError, OutputError


def write_page(results: Results, path: str | Path) -> None:
    """Write the page, and in a folder beside it that has its name the figures and `results.json`."""
    path = Path(path)
    check_place(path)
    if not results.runs:
        raise DataError(f"{results.title}: there are no runs to write about")
    folder = path.parent / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    save(results, folder / "results.json")
    known = values(results)
    for name, file, draw, text in (
        ("length_figure", "by-length.svg", plots.length_figure, "by_length"),
        ("cost_figure", "by-cost.svg", plots.cost_figure, "by_cost"),
        ("learning_figure", "learning.svg", plots.learning_figure, "learning"),
    ):
        known[name] = f"{quote(folder.name)}/{file}" if known[text] else ""
        if known[text]:
            plots.write_figure(draw, results, folder / file)
    write_text(path, render(files("regard.compare").joinpath("page.md").read_text(encoding="utf-8"), known))


def check_place(path: Path) -> None:
    """See that a page can be written here: where nothing is yet, or where its results lie beside an earlier one."""
    if path.suffix != ".md":
        raise ConfigError(f"{path}: the page is Markdown and its name should end in .md")
    folder = path.parent / path.stem
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, and figures should go to a folder of that name; give another --page")
    if not path.exists() and (not folder.exists() or all(x.name.startswith(".") for x in folder.iterdir())):
        return
    try:
        load(folder / "results.json")
    except DataError:
        found = path if path.exists() else folder
        raise OutputError(
            f"{found} exists and was not made by `regard compare` (there are no results of one in {folder}); give "
            "another --page"
        ) from None


def render(template: str, values: Mapping[str, str]) -> str:
    """Fill in a template. A block, which is what stands between blank lines, is left out where one of its values is
    empty, and so is a heading with nothing under it."""
    blocks = [Template(block) for block in template.strip().split("\n\n")]
    filled = [x.substitute(values).rstrip() for x in blocks if all(values[name] for name in x.get_identifiers())]
    ends = [*(x.startswith("## ") for x in filled[1:]), True]
    return "\n\n".join(x for x, end in zip(filled, ends, strict=True) if not (end and x.startswith("## "))) + "\n"


def values(results: Results) -> dict[str, str]:
    """What the template is filled with apart from figures, as Markdown; empty where there is nothing to say."""
    models = results.models
    counts = sorted({len(results.of(x)) for x in models})
    count = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several, tested = counts[-1] > 1, bool(results.pairs)
    sizes = sorted(results.mean(x, "parameters") for x in models)
    ideas = {x: escaped(results.ideas.get(x, "")) for x in models}
    aligned = bool(results.ranking("aer").measures)
    plain = ("title", "budget", "data", "date", "hardware", "versions")
    return {name: escaped(getattr(results, name)) for name in plain} | {
        "models": f"{len(models)} models were" if models[1:] else "1 model was",
        "seeds": f"{count} seed{'s' * several}{' each' * bool(models[1:])}",
        "ideas": "\n".join(f"- {code(x)}: {idea}" if idea else f"- {code(x)}" for x, idea in ideas.items()),
        "command": "\n".join(f"    {line}" for line in results.command.splitlines()),
        "results": markdown(*tables.cells(results)),
        "spread": count if several else "",
        "reference": "" if results.gpu else code(models[0]),
        "aer": "AER" if aligned else "",
        "resamples": f"{results.resamples:,}" if tested else "",
        "tests": ("", "the test gives", "both tests give")[several + tested],
        "one_seed": "one seed" if tested and not several else "",
        "untested": "one seed" if not tested and not several else "",
        "metric": escaped(metric_name(results.metric)),
        "quality": quality(results),
        "length_table": length_table(results),
        "by_length": by_length(results) if results.groups else "",
        "by_cost": by_cost(results) if results.frontier() else "",
        "learning": learning(results) if any(run.curve for run in results.runs) else "",
        "alignment": alignment(results) if aligned else "",
        "corpus": "one synthetic corpus" if "synthetic" in results.data.lower() else "one corpus",
        "sizes": " to ".join(dict.fromkeys(tables.scaled(x, tables.COUNTS) for x in (sizes[0], sizes[-1]))),
    }


def quality(results: Results) -> str:
    """Who is best over the whole test set, if one is, by how much, and the order of all."""
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
    beats = "; ".join(f"{listed(map(code, worse))} by {code(winner)}" for winner, worse in beaten.items())
    return f"{text} Beaten significantly at no more cost: {beats or 'none'}."


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
        unclear = "with one seed for each model there is no spread to hold differences against"
        return f"{start}, models have {low} to {high}, which says nothing of who is better: {unclear}. "
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
