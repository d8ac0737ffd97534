"""Training what a config says, in its folder: claim it, prepare, begin from trained weights, train, resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.artifacts import LOCK, file_digest, is_empty, locked, mark, read_mark, sync, write_text
from regard.config import dump
from regard.data.batches import Batches
from regard.data.content import data_content
from regard.data.corpora import Example, Files
from regard.data.labels import Labels, cut, learn_labels
from regard.data.scan import Report, scan, usable_examples
from regard.data.store import usable, write_pairs
from regard.data.tokens import Tokenizer, load_tokenizer, train_tokenizer
from regard.errors import ConfigError, DamagedError, OutputError
from regard.fingerprint import CONTENT, Fingerprint, settings_of
from regard.settings import Config
from regard.system import (
    CONFIG,
    System,
    check_tokenizers,
    choose_device,
    load,
    load_tokenizers,
    new_task,
    save_tokenizers,
    token_files,
    vocabulary,
)
from regard.tasks.task import Task, longest_sequence
from regard.training.checkpoint import WEIGHTS, Progress, checkpoints, load_tensors, set_weights
from regard.training.objectives import make_objective
from regard.training.trainer import Trainer, Watcher

RUN = "run"  # the kind of folder
# What may change when a run is resumed: how long it trains, how it is watched, where, and how it searches.
FREE = (
    "training.steps", "training.tokens", "training.seconds", "training.patience", "training.device",
    "training.compile", "training.validate_every", "training.validate_sentences", "training.save_every",
    "training.keep_last", "training.average", "training.log_every", "training.tensorboard", "search.",
)  # fmt: skip


def train(config: Config | str | Path, watcher: Watcher | None = None) -> System:
    """Train what a config, or a file of one, says, in its `run` folder; resumes an earlier run of the same settings."""
    if not isinstance(config, Config):
        if not isinstance(config, str | Path):
            raise TypeError(f"train takes a Config or the path of a config file, not {type(config).__name__}")
        config = Config.load(config)
    watcher = watcher or Watcher()
    with _claimed(config, watcher) as (claimed, made_from):
        return _train(claimed, made_from, watcher)


def _train(config: Config, made_from: Fingerprint, watcher: Watcher) -> System:
    task, batches = _prepared(config, made_from, watcher)
    folder, settings = Path(config.run), config.training
    valid = _usable(task, watcher)
    system = System(task, folder)
    heads = {"text": f"vocabulary of {task.target.size:,}", "number": "a number to tell"}
    watcher.message(
        f"{len(batches.pairs):,} examples to train on, {len(valid):,} to validate; "
        f"{heads.get(config.model.head, f'{task.target.size:,} labels')}; {system.parameters():,} parameters on "
        f"{task.device}"
    )
    objective = make_objective(task.model, settings.objective, settings.label_smoothing, task.first, task.longest)

    def validate() -> dict[str, float]:
        return task.validate(valid, settings.validate_sentences)

    trainer = Trainer(
        task.model, objective, batches, settings, folder, task.device, validate, config.metric, watcher
    )  # fmt: skip
    if not trainer.resume():
        _start_from(task, watcher)
    progress = trainer.run()
    if not progress.finished:
        raise Stopped(progress, trainer.stop)
    set_weights(task.model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return system


def prepare(config: Config, watcher: Watcher | None = None) -> tuple[Task, Batches]:
    """All that training needs, in `config.run`: tokens, a model of fresh weights, and batches of the training data."""
    watcher = watcher or Watcher()
    with _claimed(config, watcher) as (claimed, made_from):
        return _prepared(claimed, made_from, watcher)


def _prepared(config: Config, made_from: Fingerprint, watcher: Watcher) -> tuple[Task, Batches]:
    folder, settings, data = Path(config.run), config.training, config.data
    torch.manual_seed(settings.seed)
    task = new_task(config, _tokenizers(folder, config, watcher), choose_device(settings.device))
    cached = {name: part for name, part in made_from.parts.items() if name.startswith("data.")}
    cached |= {
        name: made_from.parts[name] for name in (CONTENT + "data.train", "model.head", "tokens.sampling")
    } | {"tokens": vocabulary(folder)}  # fmt: skip
    report = Report(_name(data.train))
    examples = task.checked(usable_examples(data, "train", config.model.head, report.add), report.add)
    pairs = write_pairs(
        folder / "cache", examples, task.source, task.target, data=data, report=report,
        text=config.tokens.sampling > 0, made_from=Fingerprint(cached), say=watcher.message,
    )  # fmt: skip
    if pairs.report:
        watcher.message(pairs.report)
    return task, Batches(
        pairs, task.source, task.target, task.layout, settings.batch_tokens, settings.seed, config.tokens.sampling,
        longest=data.max_length,
    )  # fmt: skip


class Stopped(Exception):  # noqa: N818 - not an error: the user asked
    """Training was asked to stop by a signal, and can be resumed from its last checkpoint."""

    def __init__(self, progress: Progress, signal: int | None) -> None:
        super().__init__(f"stopped at update {progress.step}")
        self.progress, self.signal = progress, signal


def run_fingerprint(config: Config) -> Fingerprint:
    """All that decides what a run learns: every setting, and the content of the data and of weights to start from."""
    data, start = config.data, config.start
    parts: dict[str, Any] = settings_of(
        config, without=("preset", "run", "data.train", "data.valid", "data.test", "start.")
    )
    parts[CONTENT + "data.train"] = data_content(data.train, data)
    parts[CONTENT + "data.valid"] = data_content(data.valid, data)
    for name in ("model", "encoder", "decoder"):
        if (folder := getattr(start, name)) is not None:
            weights = Path(folder) / WEIGHTS
            parts[f"{CONTENT}start.{name}"] = file_digest(weights) if weights.is_file() else None
    return Fingerprint(parts)


@contextmanager
def _claimed(config: Config, watcher: Watcher) -> Iterator[tuple[Config, Fingerprint]]:
    """Make the run's folder, or see that it is this run's, and keep other processes out of it meanwhile.

    Gives the config with its positions, which are the model's once training has begun, and its fingerprint.
    """
    folder = Path(config.run)
    # What is wrong with the data is said before anything is written.
    parts = dict(run_fingerprint(config).parts)
    if _marked(folder).get("tokens") is None:
        for split in ("train", "valid"):
            scan(config.data, split, config.model.head).check(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, folder):
        known = _marked(folder)
        before: dict[str, Any] = known.get("fingerprint", {})
        trained = bool(checkpoints(folder / "checkpoints")) or (folder / WEIGHTS).exists()
        parts |= {name: before[name] for name in before if parts.get(name, "") is None}  # to start from, and gone since
        positions = before.get("model.max_positions") if trained and config.model.max_positions is None else None
        parts["model.max_positions"] = positions or longest_sequence(config)
        model = config.model.model_copy(update={"max_positions": parts["model.max_positions"]})
        config, now = config.model_copy(update={"model": model}), Fingerprint(parts)
        clash, changed = now.differences(before, free=FREE), now.differences(before)
        named = ", ".join(map(str, clash or changed))
        if before and clash and trained:
            raise OutputError(
                f"{folder} holds a run that differs in {named}; give another run=FOLDER "
                f"(start.model={folder} begins with the weights of this one)"
            )
        if before and clash:
            watcher.message(f"{folder} was begun with other settings and never trained: it begins anew ({named})")
            known = {}
            _forget(folder)
        elif changed and trained:
            watcher.message(f"resuming with {named}")
        mark(folder, RUN, fingerprint=dict(now.parts), tokens=known.get("tokens"))
        write_text(folder / CONFIG, dump(config.model_copy(update={"run": "."})))  # it may be moved
        yield config, now


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


def _forget(folder: Path) -> None:
    """Remove the tokens that an attempt that never trained left, and nothing else that may lie there."""
    for name in token_files(folder):
        (folder / name).unlink()


def _tokenizers(folder: Path, config: Config, watcher: Watcher) -> tuple[Tokenizer | None, Tokenizer]:
    """The run's tokenizers: learnt from the training data the first time, or taken from the model it starts from."""
    known = read_mark(folder) or {}
    if known.get("tokens"):
        try:
            check_tokenizers(folder, known["tokens"])
            return load_tokenizers(folder, config)
        except DamagedError as error:
            watcher.message(f"{error}; it is made anew")
    made = _new_tokenizers(config, watcher)
    save_tokenizers(folder, *made)
    files = token_files(folder)
    if known.get("tokens", files) not in (None, files):
        raise DamagedError(f"the tokens of {folder} cannot be made again as they were; give another run=FOLDER")
    for name in files:
        sync(folder / name)
    mark(folder, RUN, fingerprint=known["fingerprint"], tokens=files)
    return made


def _new_tokenizers(config: Config, watcher: Watcher) -> tuple[Tokenizer | None, Tokenizer]:
    settings = config.tokens
    if config.model.head != "text":
        return _reading(config, watcher)
    if begun := [place for place in (config.start.model, config.start.encoder, config.start.decoder) if place]:
        watcher.message(f"tokens are those of {begun[0]}")
        return _given_tokenizers(begun, config)
    watcher.message(f"learning tokens ({settings.kind}) from {_name(config.data.train)}")

    def texts(sides: str) -> Iterator[str]:
        for example in _examples(config):
            if "s" in sides:
                yield example.source
            if "t" in sides:
                yield example.target

    if config.data.source != "text":
        return None, train_tokenizer(texts("t"), settings.kind, settings.size)
    if settings.shared:
        both = train_tokenizer(texts("st"), settings.kind, settings.size)
        return both, both
    source, target = (train_tokenizer(texts(side), settings.kind, settings.size) for side in "st")
    return source, target


def _examples(config: Config) -> Iterator[Example]:
    """The training examples that can be used; what cannot was told when the data were scanned."""
    return usable_examples(config.data, "train", config.model.head, lambda bad: None)


def _reading(config: Config, watcher: Watcher) -> tuple[Tokenizer | None, Tokenizer]:
    """Tokens to read and labels to tell: of the model that all weights come from, or else labels of the training data
    and tokens of the body, if that was trained before."""
    start = config.start
    if start.model is not None:
        return load_tokenizers(Path(start.model), config)
    watcher.message(f"collecting labels from {_name(config.data.train)}")
    found = learn_labels(_examples(config), config.model.head)
    if config.data.source != "text":
        return None, found
    if body := start.encoder or start.decoder:
        task = load(body, device="cpu").task
        watcher.message(f"tokens are those of {body}")
        written = start.encoder is None and task.config.model.head == "text"  # what a decoder reads is what it wrote
        return (task.target if written or task.source.tokenizer is None else task.source.tokenizer), found
    watcher.message(f"learning tokens ({config.tokens.kind}) from {_name(config.data.train)}")
    texts = (x.source for x in _examples(config))
    return train_tokenizer(texts, config.tokens.kind, config.tokens.size), found


def _given_tokenizers(folders: list[str], config: Config) -> tuple[Tokenizer | None, Tokenizer]:
    """The tokens of the models that a run starts from, which have to be the same."""
    first, *others = [Path(folder) for folder in folders]
    for other in others:
        if vocabulary(first) != vocabulary(other):
            raise ConfigError(
                f"start: {first} and {other} have different vocabularies; train one with start from the other"
            )
    loaded = load(first, device="cpu").config
    if (loaded.data.source == "text" and not loaded.tokens.shared) != (
        config.data.source == "text" and not config.tokens.shared
    ):
        raise ConfigError(f"start: {first} has tokens.shared {str(loaded.tokens.shared).lower()}; set the same here")
    if config.data.source == "text" and loaded.data.source != "text":
        tokenizer = load_tokenizer(first, "tokens")
        return tokenizer, tokenizer
    return load_tokenizers(first, config)


def _usable(task: Task, watcher: Watcher) -> list[Example]:
    """Validation examples that can be used; what cannot is told."""
    config, data = task.config, task.config.data
    report = Report(_name(data.valid))
    examples = list(task.checked(usable_examples(data, "valid", config.model.head, report.add), report.add))
    kept = [x for x, _, _ in usable(examples, task.source, task.target, data.max_length, report.add)]
    report.lines = len(kept) + report.bad
    report.check(data)
    if told := report.describe():
        watcher.message(told)
    if isinstance(task.target, Labels):
        labels, each = task.target.ids, task.target.each
        new = sorted({label for x in kept for label in cut(x.target, each=each)} - labels.keys())
        if new:
            some = ", ".join(new[:5]) + ("…" if len(new) > 5 else "")
            watcher.message(f"{_name(config.data.valid)} has {len(new)} labels that training never saw: {some}")
    return kept


def _start_from(task: Task, watcher: Watcher) -> None:
    """Put weights that were trained before into a new model, as the config's `start` says."""
    own = _every_name(task.model)
    for part in ("model", "encoder", "decoder"):
        folder: str | None = getattr(task.config.start, part)
        if folder is None:
            continue
        found = _every_name(load(folder, device="cpu").task.model)
        begins = "" if part == "model" else f"{part}."
        shared = {name: tensor for name, tensor in found.items() if name.startswith(begins)}
        fitting = [name for name, tensor in shared.items() if name in own and _fits(name, own[name], tensor)]
        odd = [name for name in shared if name in own and name not in fitting]
        new = [name for name in own if name.startswith(begins) and name not in shared]
        if odd or not fitting or (new and part != "decoder"):  # a decoder may have learnt without a source
            what = f"it has no {new[0]}" if new else "no part of it does"
            if odd:
                what = f"{odd[0]} is {tuple(shared[odd[0]].shape)}, here {tuple(own[odd[0]].shape)}"
            raise ConfigError(f"start.{part}: {folder} does not fit this config's [model]: {what}")
        for name in fitting:
            own[name][: len(shared[name])].copy_(shared[name][: len(own[name])])
        watcher.message(f"start.{part}: {len(fitting)} tensors from {folder}; {len(new)} begin anew")


def _fits(name: str, here: Tensor, there: Tensor) -> bool:
    """Of learned positions there may be more or fewer: models are made for the longest text that they will meet."""
    positions = name.endswith("positions.table.weight")
    return here.shape[positions:] == there.shape[positions:]


def _every_name(model: nn.Module) -> dict[str, Tensor]:
    """All weights. One that several parts share has a name in each, so that no part is without it."""
    return {name: parameter.data for name, parameter in model.named_parameters(remove_duplicate=False)}


def _name(files: Files) -> str:
    return files if isinstance(files, str) else " + ".join(files)
