"""A comparison as a page: what was compared, the table, the figures, and what the numbers say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from regard.artifacts import write_text
from regard.compare import plots
from regard.compare.findings import (
    alignment,
    by_cost,
    by_length,
    count,
    learning,
    length_table,
    name,
    paragraph,
    quality,
    sentence,
)
from regard.compare.results import Results, amount, called, cells, frontier, load, markdown, ranked, save
from regard.errors import ConfigError, DataError, OutputError


def write_page(results: Results, path: Path) -> None:
    """Write the page, and in a folder beside it that has its name the figures and `results.json`."""
    check_place(path)
    if not results.runs:
        raise DataError(f"{results.title}: there are no runs to write about")
    folder = path.parent / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    save(results, folder / "results.json")

    def figure(name: str, draw: Callable[[Results, Path], None], what: str) -> str:
        draw(results, folder / name)
        return f"![{what}]({quote(folder.name)}/{name})"

    metric = called(results.metric)
    parts = [f"# {results.title}", *_setting(results), "## Results", markdown(*cells(results)), _note(results)]
    parts += [paragraph(quality(results))]
    if results.groups:
        parts += ["## Quality by length"]
        parts += [figure("by-length.svg", plots.quality_by_length, f"{metric} against the words of the source")]
        parts += [*length_table(results), paragraph(by_length(results))]
    if frontier(results):
        parts += ["## Quality by cost"]
        parts += [figure("by-cost.svg", plots.quality_by_cost, f"{metric} against the FLOPs of training")]
        parts += [paragraph(by_cost(results))]
    if any(run.curve for run in results.runs):
        parts += ["## Learning"]
        parts += [figure("learning.svg", plots.learning_curves, f"validation {metric} against the tokens seen")]
        parts += [paragraph(learning(results))]
    if ranked(results, "aer"):
        parts += ["## Attention as alignment", paragraph(alignment(results))]
    parts += ["## What this does not show", paragraph(caveats(results))]
    write_text(path, "\n\n".join(part for part in parts if part) + "\n")


def check_place(path: Path) -> None:
    """See that a page can be written here: where nothing is yet, or where its results lie beside an earlier one."""
    if path.suffix != ".md":
        raise ConfigError(f"{path}: the page is Markdown and its name should end in .md")
    folder = path.parent / path.stem
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, and figures should go to a folder of that name; give another --page")
    files = [x for x in folder.iterdir() if not x.name.startswith(".")] if folder.exists() else []
    if not files and not path.exists():
        return
    try:
        load(folder / "results.json")
    except DataError:
        found = path if path.exists() else folder
        raise OutputError(
            f"{found} exists and was not made by `regard compare` (there are no results of one in {folder}); give "
            "another --page"
        ) from None


# What was done


def _setting(results: Results) -> Iterator[str]:
    models = results.models
    each = [len(results.of(x)) for x in models]
    seeds = count(each[0], "seed") if len(set(each)) == 1 else f"{min(each)} to {max(each)} seeds"
    opening = (
        f"{count(len(models), 'model')} {'was' if len(models) == 1 else 'were'} trained on the same data under the "
    )
    yield paragraph([f"{opening} same budget, {results.budget}, from {seeds}{' each' * (len(models) > 1)}:"])
    yield "\n".join(f"- {name(x)}: {idea}" if (idea := results.ideas.get(x)) else f"- {name(x)}" for x in models)
    yield paragraph([sentence(results.data)])
    yield paragraph([sentence(f"Measured on {results.date} on {results.hardware}, with {results.versions}"),
                      "To make this page again:"])  # fmt: skip
    yield f"```\n{results.command}\n```"


def _note(results: Results) -> str:
    said = []
    if max(len(results.of(x)) for x in results.models) > 1:
        said += ["Scores are means over seeds ± one standard deviation.",
                 "Below, two models differ beyond noise where Welch's t-test over their seeds gives p < 0.05, each "
                 "pair by itself: of twenty pairs that do not differ, one may seem to."]  # fmt: skip
    else:
        said += ["There is one seed for each model, so no difference between models is claimed below."]
    if not results.gpu:
        said += [f"Training time and decoding speed are ratios to those of {name(results.models[0])}."]
    if ranked(results, "aer"):
        said += ["AER is the alignment error rate of the attention weights, and lower is better."]
    return paragraph(said)


def caveats(results: Results) -> Iterator[str]:
    """What nobody should conclude from these numbers."""
    each = {len(results.of(x)) for x in results.models}
    sizes = sorted(results.mean(x, "parameters") for x in results.models)
    low, high = amount(sizes[0]), amount(sizes[-1])
    corpus = "one synthetic corpus" if "synthetic" in results.data.lower() else "one corpus"
    yield f"This is {corpus} and one budget ({results.budget})."
    yield f"The models have {low if low == high else f'{low} to {high}'} parameters; larger ones may stand otherwise."
    if max(each) == 1:
        yield "With one seed (n = 1) a difference between two models cannot be told from chance."
    else:
        n = f"n = {max(each)}" if len(each) == 1 else f"n = {min(each)} to {max(each)}"
        yield f"A standard deviation of so few seeds ({n}) is itself uncertain."
    yield "Whether another setting, such as another learning rate, suits some of the models better was not tried."
    if not ranked(results, "aer"):
        yield "No alignment error rate was measured."
