"""Work that is not a search and has an end: scores, embeddings, explanations. A worker does it between two turns of its
engine, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from regard.errors import DataError
from regard.explain.page import plain
from regard.inspection.inspect import inspect
from regard.nn.edits import Edits
from regard.serving.details import scored
from regard.serving.messages import Source
from regard.serving.uploads import Uploads, remove
from regard.serving.wire import Ask, Embed, Explain, Generate, Inspect, Score

if TYPE_CHECKING:
    from regard.data.side import Field
    from regard.search_settings import Search
    from regard.system import System

SLICE = 16  # pairs or sources that are taken on at once
Job = Generator[None, None, Any]  # stops after each slice; what it returns is the answer


class Jobs:
    """What a model is asked besides outputs; `search` makes settings of the changes that a request has."""

    def __init__(self, system: System, uploads: Uploads, search: Callable[[dict[str, Any]], Search]) -> None:
        self.system, self.uploads, self.search = system, uploads, search

    def job(self, ask: Ask) -> Job:
        """The work on a request."""
        match ask:
            case Score():
                return self._score(ask)
            case Embed():
                return self._embed(ask)
            case Explain():
                return self._explain(ask)
            case Inspect():
                return self._inspect(ask)
            case Generate():
                raise DataError("outputs are searched for by the engine")

    @contextmanager
    def _fields(self, sources: Sequence[Source], first: int = 0) -> Generator[list[Field], None, None]:
        """Sources as they are read, the first of which has this number; their files are removed after that."""
        found, files = [], []
        try:
            for number, source in enumerate(sources, first):
                given, own = self.uploads.field(source)
                files += own
                found.append(given)
                if what := self._problem(given):
                    raise DataError(f"input {number} {what}")
            yield found
        finally:
            remove(files)

    def _problem(self, given: Field) -> str | None:
        """Why a source cannot be read, or None."""
        task = self.system.task
        (item,), prompt = task.source.encode_many([given]), task.source.prompt(given)
        begins = task.target.encode(prompt) if prompt else []
        return task.source.problem(item, task.longest) or task.unfit(item, begins)

    def _score(self, ask: Score) -> Job:
        task, found = self.system.task, list[Any]()
        for start in range(0, len(ask.sources), SLICE):
            targets = ask.targets[start : start + SLICE]
            for target in targets:
                task.target.check_output(target)
            with self._fields(ask.sources[start : start + SLICE], start) as fields:
                for number, what in enumerate(task.unfit_pairs(fields, targets), start):
                    if what:
                        raise DataError(f"pair {number} {what}")
                scores = self.system.score(fields, targets)
            pairs = zip(targets, scores, strict=True)
            found += [scored(task, target, score).model_dump(mode="json") for target, score in pairs]
            yield
        return found

    def _embed(self, ask: Embed) -> Job:
        found = list[list[float]]()
        for start in range(0, len(ask.sources), SLICE):
            with self._fields(ask.sources[start : start + SLICE], start) as fields:
                vectors = self.system.sentence_embeddings(fields)
            found += vectors.astype(float).round(6).tolist()
            yield
        return found

    def _explain(self, ask: Explain) -> Job:
        most = self.uploads.limits.max_length  # memory grows with the square of the target
        if ask.target is not None:
            self.system.task.target.check_output(ask.target)
            if (count := len(self.system.task.target.encode(ask.target))) > most:
                raise DataError(f"the target has {count:,} tokens, more than {most:,}, the limit here")
        search = self.search(ask.search)
        with self._fields([ask.source]) as (given,):
            if ask.edits and ask.method != "attention" and ask.target is None:
                raise DataError(f"{ask.method} of an edited model needs a target")
            target = ask.target if ask.method == "attention" else self._attributable(given, ask.target, search)
            found = self.explained(given, target, search, ask.method, Edits.from_json(ask.edits or {}))
        yield
        return found

    def _attributable(self, given: Field, target: str | None, search: Search) -> str:
        """The target, or the model's own output, if it and its source are short enough: what each token depends on
        takes a pass for each of them, in which the worker does nothing else."""
        task, most = self.system.task, self.uploads.limits.attributed
        target = self.system.generate([given], **search.model_dump())[0] if target is None else target
        lengths = {"source": task.source.places(task.item(given)), "target": len(task.target.encode(target))}
        for name, count in lengths.items():
            if count > most:
                raise DataError(f"the {name} has {count:,} tokens; gradient and erasure take at most {most} here")
        return target

    def explained(
        self, given: Field, target: str | None, search: Search, method: str = "attention", edits: Edits | None = None
    ) -> dict[str, Any]:
        """What was attended to, or depended on, as a browser takes it."""
        methods: Any = () if method == "attention" else (method,)  # of which the system knows those there are
        return plain(self.system.explain(given, target, methods=methods, edits=edits, **search.model_dump()))

    def _inspect(self, ask: Inspect) -> Job:
        with self._fields([ask.source]) as (given,):
            found = inspect(
                self.system.task, given, self.search(ask.search), forced=tuple(ask.forced),
                alternatives=ask.alternatives, tree=ask.tree, edits=Edits.from_json(ask.edits or {}),
            )  # fmt: skip
        yield
        return found.to_json()
