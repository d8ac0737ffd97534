"""Train one recipe in many ways, and lay out their scores as a table: languages, tasks or splits across, models down.

    python recipes/grid.py recipes/grids/scan.yaml runs/scan
    python recipes/grid.py recipes/grids/scan.yaml runs/scan --jobs 8 training.steps=2000

The first argument is a file with

    config: ../scan.yaml     # what every run starts from; the path is relative to this file
    seeds: [1, 2, 3]         # training.seed of each run of a cell
    score: exact             # what a cell shows, of the scores on test data; or one for each column: {SST-2: accuracy}
    together: true           # also the score of all seeds of a cell as an ensemble (of models that write); with "all",
                             # that of all rows of a column too
    given_length: true       # also exact match where a model is told how long each output is (see given_length.py)
    first:                   # trained once each, before the others, and not tested
      masked: {config: ../wikitext2-body.yaml, set: [training.steps=100]}
    columns: {simple: [data.train=scan/simple-train.tsv], …}
    rows: {lstm: [model.encoder.kind=lstm], rotary: […], masked: ["start.encoder={masked}"], …}

where lists are settings as `regard train` takes them, those of a row after those of a column, with paths relative to
the recipe; `{masked}` stands for the folder of what was trained first. Settings at the end of the command apply to all
runs. A run is a folder, ROW/COLUMN/SEED, of the one that the second argument names: the same command resumes there, and
what is finished is not trained again. With `--jobs`, so many runs go at once. Writes table.md and table.json each time
one more run is finished. Correlations are shown times 100, as is usual.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from regard.artifacts import write_text

NEEDED = {"config", "columns", "rows", "score"}
FURTHER = {"seeds", "together", "given_length", "first"}
UNTESTED = "data.test=null"  # what is trained first: its own scores are not asked for
CORRELATIONS = ("matthews", "pearson", "spearman")
ENSEMBLES, TOLD = "together.json", "given_length.json"  # scores beside those of the runs


@dataclass
class Grid:
    """What a file says, and where its runs go."""

    file: Path
    folder: Path
    more: Sequence[str] = ()  # settings of all runs
    given: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.given = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            sys.exit(f"cannot read {self.file} ({error})")
        if not isinstance(self.given, dict) or not NEEDED <= set(self.given) <= NEEDED | FURTHER:
            sys.exit(
                f"{self.file} should have config, columns, rows and score, and may have seeds, together, given_length "
                "and first"
            )

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Every row in every column."""
        return [(row, column) for row in self.given["rows"] for column in self.given["columns"]]

    @property
    def seeds(self) -> list[int]:
        return list(self.given.get("seeds", [1]))

    def score(self, column: str) -> str:
        """What is shown in a column."""
        wanted = self.given["score"]
        return str(wanted if isinstance(wanted, str) else wanted[column])

    def run(self, row: str, column: str, seed: int) -> Path:
        return (self.folder / row / column / str(seed)).resolve()

    def firsts(self) -> dict[str, Path]:
        return {name: (self.folder / "first" / name).resolve() for name in self.given.get("first", {})}

    def commands(self) -> tuple[list[list[str]], list[list[str]]]:
        """What `regard train` is called with: for what comes first, and for every run of every cell."""
        place = self.file.parent.resolve()
        before = [
            [
                str((place / what["config"]).resolve()),
                *what.get("set", []),
                *self.more,
                UNTESTED,
                f"run={self.firsts()[name]}",
            ]
            for name, what in self.given.get("first", {}).items()
        ]
        config, runs = str((place / self.given["config"]).resolve()), []
        for row, column in self.cells:
            own = [*self.given["columns"][column], *self.given["rows"][row]]
            for name, folder in self.firsts().items():
                own = [setting.replace(f"{{{name}}}", str(folder)) for setting in own]
            for seed in self.seeds:
                run = self.run(row, column, seed)
                runs.append([config, *own, *self.more, f"training.seed={seed}", f"run={run}"])
        return before, runs

    def found(self, row: str, column: str) -> dict[int, float]:
        """The scores there are of a cell, by seed."""
        name, scores = self.score(column), {seed: tested(self.run(row, column, seed)) for seed in self.seeds}
        scale = 100 if name in CORRELATIONS else 1
        return {seed: scale * one[name]["score"] for seed, one in scores.items() if one is not None}

    def write(self) -> None:
        """The table so far: the mean of each cell, and how far seeds are apart."""
        ensembles, told = (known(self.folder / name) for name in (ENSEMBLES, TOLD))
        columns, table = list(self.given["columns"]), []
        head = [f"{column} ({self.score(column)})" for column in columns]
        lines = ["| | " + " | ".join([*head, *["mean"] * (len(columns) > 1)]) + " |", "|---" * (len(head) + 2) + "|"]
        if len(columns) == 1:
            lines[1] = "|---|---|"
        for row in self.given["rows"]:
            found = {column: self.found(row, column) for column in columns}
            lines.append(_line(row, [list(scores.values()) for scores in found.values()]))
            whole = {column: ensembles.get(f"{row}/{column}") for column in columns}
            if any(value is not None for value in whole.values()):
                lines.append(_line(f"{row}, ensemble", [[] if value is None else [value] for value in whole.values()]))
            lengths = {
                column: {seed: told[name] for seed in self.seeds if (name := f"{row}/{column}/{seed}") in told}
                for column in columns
            }
            if any(lengths.values()):
                lines.append(_line(f"{row}, lengths given", [list(scores.values()) for scores in lengths.values()]))
            table.append({"row": row, "scores": found, "ensemble": whole, "given_length": lengths})
        if any(column in ensembles for column in columns):
            lines.append(_line("all, ensemble", [[ensembles[one]] if one in ensembles else [] for one in columns]))
            table.append({"row": "all", "ensemble": {column: ensembles.get(column) for column in columns}})
        write_text(self.folder / "table.md", "\n".join(lines) + "\n")
        content = {"grid": self.file.name, "settings": list(self.more), "table": table}
        write_text(self.folder / "table.json", json.dumps(content, indent=1) + "\n")

    def join(self) -> None:
        """Evaluate the seeds of each cell as one, and those of each column if it is asked for, where that has not been
        done."""
        import regard

        path, rows = self.folder / ENSEMBLES, list(self.given["rows"])
        done = known(path)
        wanted = {f"{row}/{column}": ([row], column) for row, column in self.cells}
        if self.given["together"] == "all" and len(rows) > 1:
            wanted |= {column: (rows, column) for column in self.given["columns"]}
        for name, (some, column) in wanted.items():
            runs = [self.run(row, column, seed) for row in some for seed in self.seeds]
            if name not in done and len(runs) > 1 and all(tested(run) is not None for run in runs):
                scores = regard.load(*runs).evaluate().scores
                done[name] = scores[self.score(column)].value
                write_text(path, json.dumps(done, indent=1))

    def tell(self) -> None:
        """Score each run where it is told how long outputs are, where that has not been done."""
        from given_length import counts, exact

        path = self.folder / TOLD
        done = known(path)
        for row, column in self.cells:
            for seed in self.found(row, column):
                if (name := f"{row}/{column}/{seed}") not in done:
                    done[name] = exact(counts(str(self.run(row, column, seed))))
                    write_text(path, json.dumps(done, indent=1))


def _line(name: str, cells: Sequence[Sequence[float]]) -> str:
    shown = ["" if not one else f"{mean(one):.2f}" + (f" ± {stdev(one):.2f}" if len(one) > 1 else "") for one in cells]
    if len(cells) > 1:
        shown.append(f"{mean(mean(one) for one in cells):.2f}" if all(cells) else "")
    return f"| {name} | " + " | ".join(shown) + " |"


def known(path: Path) -> dict[str, float]:
    """The scores in a file; none, if it is not there yet."""
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def tested(run: Path) -> Any:
    """The scores of a run on its test data; None, if it is not finished."""
    path = run / "scores.json"
    return json.loads(path.read_text(encoding="utf-8")).get("test") if path.exists() else None


def ended(run: Path) -> bool:
    """Whether a run has been trained to its end; scores on validation data it has long before."""
    path = run / "regard.json"
    return path.exists() and bool(json.loads(path.read_text(encoding="utf-8")).get("ended"))


def train(settings: Iterable[str]) -> str | None:
    """What went wrong, if anything did; a run that is finished is left alone."""
    config, *changes = settings
    run = Path(changes[-1].removeprefix("run="))
    if tested(run) is not None or (UNTESTED in changes and ended(run)):
        return None
    run.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "regard", "-q", "train", config, *changes]
    done = subprocess.run(command, cwd=Path(config).parent, capture_output=True, text=True, check=False)
    return f"{run}: {done.stderr.strip() or done.stdout.strip()}" if done.returncode else None


def main(arguments: list[str]) -> None:
    jobs = 1
    if "--jobs" in arguments:
        place = arguments.index("--jobs")
        jobs = int(arguments[place + 1])
        del arguments[place : place + 2]
    if len(arguments) < 2 or any("=" not in setting for setting in arguments[2:]):
        sys.exit(__doc__)
    grid = Grid(Path(arguments[0]), Path(arguments[1]), arguments[2:])
    grid.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for commands in grid.commands():
        if failed:
            break  # what was trained first is not whole, and others would start from it
        with ThreadPoolExecutor(jobs) as pool:
            for problem in pool.map(train, commands):
                if problem is not None:
                    failed += 1
                    print(problem, file=sys.stderr)
                grid.write()
    if grid.given.get("together"):
        grid.join()
    if grid.given.get("given_length"):
        grid.tell()
    grid.write()
    print((grid.folder / "table.md").read_text(encoding="utf-8"), end="")
    if failed:
        sys.exit(f"{failed} of the runs failed; the same command tries them again")


if __name__ == "__main__":
    main(sys.argv[1:])
