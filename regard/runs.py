"""Training what a config says, in its folder: prepare, begin from trained weights, train, go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.artifacts import write_text
from regard.config import dump, parse, read_yaml, resolve_paths
from regard.data.batches import Batches
from regard.data.corpora import Example, Files, read_examples
from regard.data.labels import NAME, learn_labels
from regard.data.store import find_problem, write_pairs
from regard.data.tokens import Tokenizer, load_tokenizer, train_tokenizer
from regard.errors import ConfigError, DataError, OutputError
from regard.settings import Config
from regard.system import (
    CONFIG,
    System,
    choose_device,
    load,
    load_tokenizers,
    new_task,
    save_tokenizers,
    vocabulary,
)
from regard.tasks.task import Task
from regard.training.checkpoint import WEIGHTS, Progress, checkpoints, load_tensors, set_weights
from regard.training.objectives import make_objective
from regard.training.trainer import Trainer, Watcher


def train(config: Config, watcher: Watcher | None = None) -> System:
    """Train what the config says, in `config.run`; goes on where an earlier run with the same settings was cut off."""
    watcher = watcher or Watcher()
    task, batches = prepare(config, watcher)
    folder, settings = Path(config.run), config.training
    valid = _usable(task, watcher)
    if not checkpoints(folder / "checkpoints"):
        _start_from(task, watcher)
    system = System(task, folder)
    heads = {"text": f"vocabulary of {task.target.size:,}", "number": "a number to tell"}
    watcher.message(
        f"{len(batches.pairs):,} examples to train on, {len(valid):,} to validate; "
        f"{heads.get(config.model.head, f'{task.target.size:,} labels')}; {system.parameters():,} parameters on "
        f"{task.device}"
    )
    objective = make_objective(task.model, settings.objective, settings.label_smoothing, task.first)

    def validate() -> dict[str, float]:
        return task.validate(valid, settings.validate_sentences)

    trainer = Trainer(
        task.model, objective, batches, settings, folder, task.device, validate, config.metric, watcher
    )  # fmt: skip
    progress = trainer.run()
    if not progress.finished:
        raise Stopped(progress)
    set_weights(task.model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return system


def prepare(config: Config, watcher: Watcher | None = None) -> tuple[Task, Batches]:
    """All that training needs, in `config.run`: tokens, a model of fresh weights, and batches of the training data."""
    watcher = watcher or Watcher()
    folder, settings = Path(config.run), config.training
    _claim(folder, config)
    torch.manual_seed(settings.seed)
    task = new_task(config, _tokenizers(folder, config, watcher), choose_device(settings.device))
    pairs = write_pairs(
        folder / "cache", task.checked(read_examples(config.data, "train")), task.source, task.target,
        max_length=config.data.max_length, bad_lines=config.data.bad_lines, text=config.tokens.sampling > 0,
        made_from={"files": _fingerprint(config.data.train), "columns": config.data.columns,
                   "source": config.data.source, "picture": config.data.picture,
                   "tokens": vocabulary(folder)},
    )  # fmt: skip
    if pairs.report:
        watcher.message(f"{_name(config.data.train)}: {pairs.report}")
    return task, Batches(
        pairs, task.source, task.target, task.layout, settings.batch_tokens, settings.seed, config.tokens.sampling
    )


class Stopped(Exception):  # noqa: N818 - not an error: the user asked
    """Training was asked to stop, and can go on from its last checkpoint."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"stopped at update {progress.step}")
        self.progress = progress


def _claim(folder: Path, config: Config) -> None:
    """Make the run's folder, or see that it is this run's."""
    known = folder / CONFIG
    if known.exists():
        before = resolve_paths(parse(read_yaml(known), str(known)), folder)
        differing = [
            f"{section}.{name}"
            for section in ("data", "tokens", "model")
            for name in type(getattr(config, section)).model_fields
            if name != "test" and getattr(getattr(before, section), name) != getattr(getattr(config, section), name)
        ]
        if differing and not checkpoints(folder / "checkpoints"):
            shutil.rmtree(folder)  # an attempt that never trained: nothing is lost
        elif differing:
            raise OutputError(
                f"{folder} holds a run with other settings ({', '.join(differing)}); "
                "give another run=FOLDER, or remove it"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty and holds no run; give another run=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(known, dump(config))


def _tokenizers(folder: Path, config: Config, watcher: Watcher) -> tuple[Tokenizer | None, Tokenizer]:
    """The run's tokenizers: those of the model it starts from, or learnt from the training data the first time."""
    labels = config.model.head != "text"
    if (folder / NAME).exists() if labels else any(folder.glob("tokens.*")) or any(folder.glob("target.*")):
        return load_tokenizers(folder, config)
    settings = config.tokens
    made: tuple[Tokenizer | None, Tokenizer]
    if labels:
        made = _reading(config, watcher)
        save_tokenizers(folder, *made)
        return made
    if begun := [place for place in (config.start.model, config.start.encoder, config.start.decoder) if place]:
        made = _given_tokenizers(begun, config)
        watcher.message(f"tokens are those of {begun[0]}")
        save_tokenizers(folder, *made)
        return made
    watcher.message(f"learning tokens ({settings.kind}) from {_name(config.data.train)}")

    def texts(sides: str) -> Iterator[str]:
        for example in read_examples(config.data, "train"):
            if "s" in sides:
                yield example.source
            if "t" in sides:
                yield example.target

    if config.data.source != "text":
        made = None, train_tokenizer(texts("t"), settings.kind, settings.size)
    elif settings.shared:
        both = train_tokenizer(texts("st"), settings.kind, settings.size)
        made = both, both
    else:
        source, target = (train_tokenizer(texts(side), settings.kind, settings.size) for side in "st")
        made = source, target
    save_tokenizers(folder, *made)
    return made


def _reading(config: Config, watcher: Watcher) -> tuple[Tokenizer | None, Tokenizer]:
    """Tokens to read and labels to tell: of the model that all weights come from, or else labels of the training data
    and tokens of the body, if that was trained before."""
    start = config.start
    if start.model is not None:
        return load_tokenizers(Path(start.model), config)
    watcher.message(f"collecting labels from {_name(config.data.train)}")
    found = learn_labels(read_examples(config.data, "train"), config.model.head)
    if config.data.source != "text":
        return None, found
    if body := start.encoder or start.decoder:
        task = load(body, device="cpu").task
        watcher.message(f"tokens are those of {body}")
        written = start.encoder is None and task.config.model.head == "text"  # what a decoder reads is what it wrote
        return (task.target if written or task.source.tokenizer is None else task.source.tokenizer), found
    watcher.message(f"learning tokens ({config.tokens.kind}) from {_name(config.data.train)}")
    texts = (x.source for x in read_examples(config.data, "train"))
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
    """Validation examples that are neither empty nor too long; those that are get named."""
    kept, config = [], task.config
    for example in task.checked(read_examples(config.data, "valid")):
        item, target = task.source.encode_many([example.source])[0], task.target.encode(example.target)
        problem = find_problem(task.source, item, target, config.data.max_length)
        if problem is None:
            kept.append(example)
        elif config.data.bad_lines == "error":
            raise DataError(f"{example.place} {problem}; mend or remove it, or set data.bad_lines=skip")
        else:
            watcher.message(f"{example.place} {problem}: left out")
    if not kept:
        raise DataError(f"no usable examples in {_name(config.data.valid)} to validate on")
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


def _fingerprint(files: Files) -> list[list[str | int]]:
    paths = [Path(files)] if isinstance(files, str) else [Path(file) for file in files]
    for path in paths:
        if not path.exists():
            raise DataError(f"no file {path}; check data.train in the config (paths are relative to the config file)")
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def _name(files: Files) -> str:
    return files if isinstance(files, str) else " + ".join(files)
