"""The command that chooses between candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.checks import check_input, check_model, check_output
from regard.cli.options import Device, Force, Json, ModelFolder
from regard.cli.shared import app, dash, report_json, warn, writing


@app.command(short_help="Choose between candidates by their likelihood.")
def choose(
    model: ModelFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="One question per line: .jsonl (context, candidates, gold), or .tsv (one column each)."
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file (-: standard output).")] = None,
    by: Annotated[
        Literal["sum", "token", "byte", "prior"],
        typer.Option(help="Rank by log p, its mean per token or per byte, or log p less that after --null."),
    ] = "sum",
    null: Annotated[
        str, typer.Option(metavar="TEXT", help="With --by prior: the context without information.")
    ] = "Answer:",
    gold: Annotated[
        bool, typer.Option("--gold", help="In .tsv, the second column is the number of the right candidate, from 0.")
    ] = False,
    shots: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Solved examples for few-shot prompting, in the same form or with an answer each."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Number of solved examples before each question.")] = 0,
    template: Annotated[
        str, typer.Option(metavar="TEXT", help="How context and answer are joined.")
    ] = "{context} {answer}",
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="Text between solved examples (\\n is a new line).")
    ] = "\\n",
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the solved examples.")] = 1,
    as_json: Json = False,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Choose the candidate that is most probable after its context. Each output line has its number, from 0, and its
    text.

    If the file says which candidates are right, the accuracy goes to standard error.
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
    from regard.tasks.results import few_warnings

    questions = list(read_questions(file, gold=gold))
    solved = [] if shots is None else read_solved(shots, gold=gold)
    how = Choosing(by, null, template, solved, count, separator.replace("\\n", "\n"), seed)
    system = regard.load(model, device=device)
    with few_warnings(warn) as tell:
        choices = system.choose(
            questions, on_problem=lambda i, what: tell(f"{questions[i].place} {what}; nothing is chosen"), **vars(how)
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
