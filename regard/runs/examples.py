"""The examples of a run, as numbers on disk: those to train on, to validate on, and to watch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.examples import Example
from regard.data.lines import BadLine
from regard.data.scan import Report, file_names, split_names, usable_examples
from regard.data.store import ExampleStore, HeldStore, usable, write_examples
from regard.data_settings import Data
from regard.errors import DataError
from regard.evaluation.metrics import perplexity
from regard.fingerprint import CONTENT, Fingerprint
from regard.loading import vocabulary
from regard.tasks.results import Encoded
from regard.tasks.task import Task
from regard.training.watcher import Watcher

CACHE = "cache"
COUNTED = 4096  # targets whose tokens are counted at once


def store_examples(task: Task, split: str, made_from: Fingerprint, watcher: Watcher) -> ExampleStore:
    """The examples of a split as numbers on disk, which are used again if they were made from the same."""
    data, run = task.config.data, Path(task.config.run)
    report = Report(split_names(data, split))
    examples = task.checked(usable_examples(data, split, task.sides, report.add), report.add)
    sections = ("data.", "source", "target.", "tokens.")
    parts = {name: part for name, part in made_from.parts.items() if name.startswith(sections)}
    parts |= {"data": made_from.parts[f"{CONTENT}data.{split}"], "tokens": vocabulary(run)}
    store = write_examples(
        run / CACHE if split == "train" else run / CACHE / split, examples, task.sides, data=data, report=report,
        drawn=split == "train", made_from=Fingerprint(parts), say=watcher.message,
    )  # fmt: skip
    if store.report:
        watcher.message(store.report)
    return store


def token_counts(task: Task, store: ExampleStore) -> Tensor:
    """How often each token is written in the training data, the end of each target included, `(vocabulary,)`."""
    target, targets = task.target, store.stores[-1]
    counts = np.zeros(target.size, np.int64)
    for start in range(0, len(targets), COUNTED):
        some: Sequence[Any] = [targets[i] for i in range(start, min(start + COUNTED, len(targets)))]
        if target.sampled:  # stored as it is written
            some = target.encode_many([text.tobytes().decode() for text in some])
        counts += np.bincount(np.concatenate([np.asarray(x, np.int64) for x in some]), minlength=target.size)
    counts[target.marks.end] += len(targets)
    return torch.from_numpy(counts)


def validate_each(task: Task, names: Sequence[str], valid: Sequence[Encoded]) -> dict[str, float]:
    """What training steers by. Of several corpora, the mean over them of each metric and, over all of their target
    tokens, of the loss; then both of each, as `bleu/NAME`."""
    if len(valid) == 1:
        return task.validate(valid[0])
    found = [task.validate(one) for one in valid]
    ends = task.config.target.written and task.config.training.objective.ends  # which are learnt as tokens are
    tokens = [sum(len(target) + ends for target in one.targets) for one in valid]
    scores = {name: math.fsum(one[name] for one in found) / len(found) for name in found[0]}
    scores["loss"] = math.fsum(n * one["loss"] for n, one in zip(tokens, found, strict=True)) / sum(tokens)
    if "perplexity" in scores:
        scores["perplexity"] = perplexity(scores["loss"])
    each = {f"{name}/{corpus}": one[name] for corpus, one in zip(names, found, strict=True) for name in one}
    return {**scores, **each}


def validation_examples(task: Task, made_from: Fingerprint, watcher: Watcher) -> list[Encoded]:
    """Validation examples of each corpus that can be used, on disk; messages say what cannot."""
    config, data = task.config, task.config.data

    def examples() -> Iterator[Example]:
        return task.checked(usable_examples(data, "valid", task.sides, already_reported), already_reported)

    store = store_examples(task, "valid", made_from, watcher)
    targets = (x.target for x in examples())
    if not config.target.written and (new := task.target.describe_unseen(targets, split_names(data, "valid"))):
        what, everything = new
        if everything:  # nothing to steer by
            raise DataError(what)
        watcher.message(what)
    corpora = data.split("valid")
    count = -(-config.training.validate_sentences // len(corpora))
    some: dict[int, list[Example]] = {corpus.number: [] for corpus in corpora}
    for example, _, _ in usable(examples(), task.sides, already_reported):
        if len(some[example.corpus]) < count:
            some[example.corpus].append(example)
        elif len(corpora) == 1:
            break
    if len(corpora) == 1:
        return [Encoded.stored(store, some[corpora[0].number])]
    ends = np.cumsum(store.sizes)
    if empty := [corpus for corpus in corpora if not store.sizes[corpus.number]]:
        raise DataError(f"{file_names(empty[0].files)} has no line that can be used to validate on")
    return [
        Encoded.stored(store, some[i], range(ends[i] - store.sizes[i], ends[i])) for i in (x.number for x in corpora)
    ]


def watched_examples(task: Task, watcher: Watcher) -> dict[str, Encoded]:
    """The examples of `data.watch` that can be used; messages say what cannot."""
    config, found = task.config, dict[str, Encoded]()
    for name, files in config.data.watch.items():
        data, report = watched_data(config.data, files), Report(file_names(files))
        examples = task.checked(usable_examples(data, "valid", task.sides, report.add), report.add)
        rows = list(usable(examples, task.sides, report.add))
        report.lines = len(rows) + report.bad
        report.check(data)
        if what := report.describe():
            watcher.message(what)
        some = [example for example, _, _ in rows[: config.training.validate_sentences]]
        targets: Sequence[Any] = [target for *_, target in rows]
        if task.target.block is not None:
            targets = HeldStore(targets)
        found[name] = Encoded([source for _, source, _ in rows], targets, some)
    return found


def validate_watched(task: Task, watched: dict[str, Encoded]) -> dict[str, float]:
    """Scores of what is watched beside the validation data, as `bleu/NAME`."""
    found = {name: task.validate(examples) for name, examples in watched.items()}
    return {f"{score}/{name}": value for name, scores in found.items() for score, value in scores.items()}


def watched_data(data: Data, files: str | list[str]) -> Data:
    """The data with these files to validate on."""
    return data.model_copy(update={"valid": files, "corpora": None})


def already_reported(bad: BadLine) -> None:
    """Bad lines were reported when the data were scanned."""
