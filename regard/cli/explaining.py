"""Commands that show what a model attends to, and where it puts sentences: explain, space."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.checks import check_input, check_model, check_output
from regard.cli.options import Beam, Device, Force, ModelFolder, Settings
from regard.cli.shared import app, say, search_settings, source_settings, warn, writing
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.explain.trace import Explanation
    from regard.system import System


@app.command(short_help="Draw what the model attends to, as a page or a figure.")
def explain(
    model: ModelFolder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Input to explain; separate several sources with a tab."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Explain this output of a single input, instead of the model's own.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="Explain the first examples of this file, with their gold annotations (boxes, word times, alignments)."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of examples to explain.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help=".html, .png, .svg, .pdf or .json.")] = Path(
        "attention.html"
    ),
    source: Annotated[int | None, typer.Option(help="With several sources, show only this one (from 1).")] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="Attention layer of a figure, or rollout through an encoder's; a wrong name lists all."),
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Attention head of a figure, from 0 (default: the mean of all).")
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="A figure of every head of the layer.")] = False,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Also explain by gradient or erasure, and measure how faithful attention is; may be repeated.",
        ),
    ] = None,
    off: Annotated[
        list[str] | None,
        typer.Option("--off", metavar="LAYER:HEAD", help="Switch this attention head off; may be repeated."),
    ] = None,
    beam: Beam = None,
    settings: Settings = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw what the model attends to: a page for any number of inputs, or a figure for one."""
    texts = texts or []
    if bool(texts) == (examples is not None):
        raise ConfigError("give either texts to explain or --examples FILE")
    if target is not None and len(texts) != 1:
        raise ConfigError(f"--target goes with one text, not {len(texts)}")
    check_model(model)
    if examples is not None:
        check_input(examples, folders=True)
    check_output(output, force=force)
    import regard
    from regard.explain.trace import save
    from regard.nn.edits import Edits

    settings, read_as = source_settings(settings)
    system = regard.load(model, device=device, settings=read_as)
    how: dict[str, Any] = {"methods": methods or [], "edits": Edits.off(off or []), **search_settings(settings)}
    how |= {} if beam is None else {"beam": beam}
    form = system.task.sides.judged_form
    explained = [system.explain(form.line(text, f"text {i}"), target, **how) for i, text in enumerate(texts, 1)]
    if examples is not None:
        explained = list(islice(_explained(system, examples, how), count))
        if not explained:
            raise DataError(f"{examples} has no example that can be explained")
    for faithful in (x.faithfulness for x in explained if x.faithfulness):
        ranked = sorted(faithful.items(), key=lambda one: -one[1])
        say("faithfulness: " + ", ".join(f"{name} {value:.2f}" for name, value in ranked))
    if source is not None:
        explained = [x.part(source) for x in explained]
    check_output(output, force=force)  # again: it may be there by now
    with writing(output):
        save(explained, output, layer=layer, head=head, grid=grid)
    say(f"wrote {output}")


def _explained(system: System, file: Path, how: dict[str, Any]) -> Iterator[Explanation]:
    """What is explained of each example of a file; of those that cannot be read, a warning says so."""
    from regard.data.examples import read_files

    written = system.config.target.written  # what is predicted is the model's own
    for example in read_files(str(file), system.task.sides.judged_form, lambda bad: warn(f"{bad}; it is left out")):
        try:
            yield system.explain(example, example.target if written else None, **how)
        except DataError as error:
            warn(f"{example.place}: {error}; it is left out")


@app.command(short_help="Plot sentence embeddings in the plane.")
def space(
    model: ModelFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="One input per line (several sources separated by tabs), optionally with a tab and its group.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help=".png, .svg, .pdf or .json.")] = Path("space.png"),
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Project the encoder's sentence embeddings to the plane and plot them."""
    check_model(model)
    check_input(file)
    check_output(output, force=force)
    import regard
    from regard.data.lines import read_lines
    from regard.explain.space import space_plot

    system = regard.load(model, device=device)
    count = len(system.config.sources)
    cells = [line.split("\t") for _, line in read_lines(file) if line.strip()]
    groups = [row[count] if len(row) > count else "" for row in cells]
    vectors = system.sentence_embeddings([tuple(row[:count]) if count > 1 else row[0] for row in cells])
    texts = [" | ".join(row[:count]) for row in cells]
    check_output(output, force=force)  # again: it may be there by now
    with writing(output):
        space_plot(vectors, texts, groups if any(groups) else None, output)
    say(f"wrote {output}")
