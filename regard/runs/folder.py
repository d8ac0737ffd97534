"""The folder of a run: what it is made from, whose it is, and whether it can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.artifacts import LOCK, file_digest, is_empty, locked, mark, read_mark, write_text
from regard.config import dump
from regard.data.examples import data_content
from regard.data.scan import scan_each
from regard.data.sides import Sides
from regard.data_settings import SPLITS
from regard.encoder_settings import EncoderSettings
from regard.errors import OutputError
from regard.fingerprint import CONTENT, Fingerprint, defaults_of, settings_of
from regard.loading import CONFIG, token_files
from regard.runs.examples import watched_data
from regard.runs.tokens import with_tokens
from regard.settings import Config
from regard.tasks.task import longest_sequence
from regard.training.checkpoint import WEIGHTS, checkpoints
from regard.training.watcher import Watcher

RUN = "run"  # the kind of folder
ENDED = "ended"  # a fact of its mark: it has been trained to its end once
# What may change when a run is resumed: how long it trains, how it is watched, where, and how it searches.
FREE = (
    "training.steps", "training.tokens", "training.seconds", "training.patience", "training.device",
    "training.compile", "training.validate_every", "training.validate_sentences", "training.save_every",
    "training.keep_last", "training.average", "training.log_every", "training.tensorboard", "search.",
)  # fmt: skip


def run_fingerprint(config: Config) -> Fingerprint:
    """All that decides what a run learns: every setting, and the content of the data and of weights to start from."""
    data, start = config.data, config.start
    files = [f"data.{split}" for split in SPLITS]
    files += [f"data.corpora[{i}].{split}" for i in range(len(data.corpora or ())) for split in SPLITS]
    without = ("preset", "run", *files, "data.root", "data.watch.", "start.")
    parts: dict[str, Any] = settings_of(config, without=without)
    sides = Sides.of(config)
    for split in ("train", "valid"):
        contents = [data_content(corpus.files, sides.form_of(split)) for corpus in data.split(split)]
        whole = contents[0] if data.corpora is None else hashlib.sha256("".join(contents).encode()).hexdigest()
        parts[f"{CONTENT}data.{split}"] = whole
    for name in ("model", "encoder", "decoder"):
        if (folder := getattr(start, name)) is not None:
            weights = Path(folder) / WEIGHTS
            parts[f"{CONTENT}start.{name}"] = file_digest(weights) if weights.is_file() else None
    if start.weights is not None:
        given = Path(start.weights)
        parts[f"{CONTENT}start.weights"] = file_digest(given) if given.is_file() else None
    return Fingerprint(parts, defaults_of(config))


@contextmanager
def claim(config: Config, watcher: Watcher) -> Iterator[tuple[Config, Fingerprint]]:
    """Make the run's folder, or see that it is this run's, and keep other processes out of it meanwhile. Gives the
    config with its positions, which are the model's once training has begun, and its fingerprint."""
    folder = Path(config.run)
    # What is wrong with the data is said before anything is written.
    made_from = run_fingerprint(config)
    parts = dict(made_from.parts)
    if _marked(folder).get("tokens") is None:
        for split in ("train", "valid"):
            for report in scan_each(config.data, split, Sides.of(config)):
                report.check(config.data)
        for files in config.data.watch.values():
            for report in scan_each(watched_data(config.data, files), "valid", Sides.of(config)):
                report.check(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, folder):
        known = _marked(folder)
        before: dict[str, Any] = known.get("fingerprint", {})
        kept, model = bool(checkpoints(folder / "checkpoints")), (folder / WEIGHTS).exists()
        trained = kept or model
        parts |= {name: before[name] for name in before if parts.get(name, "") is None}  # to start from, and gone since
        positions = before.get("model.max_positions") if trained and config.model.max_positions is None else None
        parts["model.max_positions"] = positions or longest_sequence(with_tokens(config))
        settled = config.model.model_copy(update={"max_positions": parts["model.max_positions"], **_settled(config)})
        config, now = config.model_copy(update={"model": settled}), replace(made_from, parts=parts)
        clash, changed = now.differences(before, free=FREE), now.differences(before)
        named = ", ".join(clash or changed)
        if before and clash and trained:
            raise OutputError(
                f"{folder} holds a run that differs in {named}; give another run=FOLDER "
                f"(start.model={folder} begins with the weights of this one)"
            )
        if before and clash:
            watcher.message(f"{folder} was begun with other settings and never trained: it begins anew ({named})")
            known = {}
            for name in token_files(folder):  # and nothing else that may lie there
                (folder / name).unlink()
        elif model and not kept and known.get(ENDED):
            raise OutputError(
                f"{folder} holds a model whose training has ended, and no checkpoint to go on from; use it as it is, "
                f"or give another run=FOLDER (start.model={folder} begins with the weights of this one)"
            )
        elif changed and trained:
            watcher.message(f"resuming with {named}")
        ended = {ENDED: True} if known.get(ENDED) else {}
        mark(folder, RUN, fingerprint=dict(now.parts), tokens=known.get("tokens"), **ended)
        write_text(folder / CONFIG, dump(config.model_copy(update={"run": "."})))  # it may be moved
        yield config, now


def mark_ended(folder: Path) -> None:
    """Say that a run has been trained to its end, so that its model is never made anew for lack of checkpoints."""
    known = read_mark(folder)
    if known is not None and not known.get(ENDED):
        mark(folder, **{**known, ENDED: True})


def _settled(config: Config) -> dict[str, Any]:
    """The encoders, with what their stems take from the sources that they are trained on."""

    def one(number: int, encoder: EncoderSettings) -> EncoderSettings:
        if encoder.stem is None:
            return encoder
        return encoder.model_copy(update={"stem": encoder.stem.settled(config.sources[number])})

    given = config.model.encoder
    if isinstance(given, list):
        return {"encoder": [one(number, encoder) for number, encoder in enumerate(given)]}
    return {"encoder": one(0, given)}


def _marked(folder: Path) -> dict[str, Any]:
    """The mark of a run's folder, empty if there is none yet; a folder that is not a run's is refused."""
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file; give another run=FOLDER")
    known = read_mark(folder)
    if known is not None:
        if known["kind"] != RUN:
            raise OutputError(f"{folder} holds a {known['kind']}, not a run; give another run=FOLDER")
        return known
    if (folder / CONFIG).exists() and (folder / WEIGHTS).exists():
        raise OutputError(
            f"{folder} was trained by an earlier Regard and cannot be resumed; its model can be used as it is, and "
            f"start.model={folder} begins with its weights in another run=FOLDER"
        )
    if not is_empty(folder):
        raise OutputError(f"{folder} is not empty and holds no run; give another run=FOLDER")
    return {}
