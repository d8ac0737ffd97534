"""A comparison as a Markdown page, from the template `page.md`: what was compared, tables, figures, findings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from urllib.parse import quote

from regard.artifacts import write_text
from regard.compare import findings, plots
from regard.compare.results import Results, load, save
from regard.compare.tables import COUNTS, cells, code, escaped, markdown, metric_name, scaled
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
        "results": markdown(*cells(results)),
        "spread": count if several else "",
        "reference": "" if results.gpu else code(models[0]),
        "aer": "AER" if aligned else "",
        "resamples": f"{results.resamples:,}" if tested else "",
        "tests": ("", "the test gives", "both tests give")[several + tested],
        "one_seed": "one seed" if tested and not several else "",
        "untested": "one seed" if not tested and not several else "",
        "metric": escaped(metric_name(results.metric)),
        "quality": findings.quality(results),
        "length_table": findings.length_table(results),
        "by_length": findings.by_length(results) if results.groups else "",
        "by_cost": findings.by_cost(results) if results.frontier() else "",
        "learning": findings.learning(results) if any(run.curve for run in results.runs) else "",
        "alignment": findings.alignment(results) if aligned else "",
        "corpus": "one synthetic corpus" if "synthetic" in results.data.lower() else "one corpus",
        "sizes": " to ".join(dict.fromkeys(scaled(x, COUNTS) for x in (sizes[0], sizes[-1]))),
    }
