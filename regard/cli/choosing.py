"""The command that chooses between candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.checks import check_input, check_model, check_output
from regard.cli.options import Device, Force, Json, ModelFolder
from regard.cli.shared import app, dash, report_json, warn, writing


@app.command(short_help="Choose between candidates by how probable the model finds them.")
def choose(
    model: ModelFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A question a line: .jsonl (context, candidates, gold), or .tsv (one column each)."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the choices here (-: standard output).")
    ] = None,
    by: Annotated[
        Literal["sum", "token", "byte", "prior"],
        typer.Option(help="What decides: log p, its mean by token or by byte, or log p less that after --null."),
    ] = "sum",
    null: Annotated[
        str, typer.Option(metavar="TEXT", help="Of --by prior: the context that says nothing.")
    ] = "Answer:",
    gold: Annotated[
        bool, typer.Option("--gold", help="In .tsv, the second column is the number of the right candidate, from 0.")
    ] = False,
    shots: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Solved examples, in the same form or with an answer each.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Put so many of them before each question.")] = 0,
    template: Annotated[
        str, typer.Option(metavar="TEXT", help="How a context and its answer stand together.")
    ] = "{context} {answer}",
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="Between solved examples (\\n is a new line).")
    ] = "\\n",
    seed: Annotated[int, typer.Option(min=0, help="Of which examples are drawn.")] = 1,
    as_json: Json = False,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Choose the candidate that is most probable after its context, a line each: its number, from 0, and its text.

    Where a file says which candidates are right, standard error tells how many were chosen.
    """
    output = dash(output)
    check_model(model)
    check_input(file, *([] if shots is None else [shots]))
    if output is not None:
        check_output(output, force=force, read=(file, shots))
    import regard
    from regard.artifacts import write_text
    from regard.data.candidates import read_questions, read_solved
    from regard.tasks.choosing import Choosing, choice_accuracy

    questions = list(read_questions(file, gold=gold))
    solved = [] if shots is None else read_solved(shots, gold=gold)
    how = Choosing(by, null, template, solved, count, separator.replace("\\n", "\n"), seed)
    system = regard.load(model, device=device)
    choices = system.choose(
        questions, on_problem=lambda i, what: warn(f"{questions[i].place} {what}; nothing is chosen"), **vars(how)
    )
    score = choice_accuracy(choices, questions, how)
    if as_json:
        rows = [
            {"gold": question.gold, **({"choice": None} if x is None else {"choice": x.index, **vars(x)})}
            for x, question in zip(choices, questions, strict=True)
        ]
        report_json({"model": str(model), "accuracy": score and score.to_json(), "choices": rows})
        return
    lines = "".join("\n" if x is None else f"{x.index}\t{x.text}\n" for x in choices)
    if output is None:
        typer.echo(lines, nl=False)
    else:
        with writing(output):
            write_text(output, lines)
    if score is not None:
        warn(f"{score.name} {score.value:.1f} % ({score.signature})")
