"""A model's folder as a task: settings, tokens and weights, read and checked; and a task of fresh weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.artifacts import file_digest, read_mark
from regard.config import merge, parse, read_yaml, resolve_paths
from regard.data.marks import Marks
from regard.data.modality import Modality
from regard.data.sides import FILES, Sides
from regard.errors import ConfigError, DamagedError, ModelError
from regard.models.build import build, count_parameters
from regard.models.electra import ReplacedTokenModel
from regard.models.elmo import BidirectionalLanguageModel
from regard.models.model import (
    AutoregressiveModel,
    DecoderOnly,
    EncoderDecoder,
    EncoderWithHead,
    MaskedLanguageModel,
)
from regard.models.stems import Elements
from regard.search.ensemble import Ensemble
from regard.settings import Config
from regard.tasks.both_ways import BidirectionalLanguageModeling
from regard.tasks.denoising import Denoising
from regard.tasks.generating import TextGeneration
from regard.tasks.language_model import LanguageModeling
from regard.tasks.masked import MaskedLanguageModeling
from regard.tasks.predicting import HeadPrediction
from regard.tasks.replaced import ReplacedTokenDetection
from regard.tasks.task import Task, longest_sequence
from regard.training.checkpoint import WEIGHTS, load_tensors, set_weights

CONFIG = "config.yaml"


def load_task(
    folder: Path, *, weights: Path | None = None, device: str = "auto", settings: Mapping[str, Any] | None = None
) -> Task:
    """The task of a trained model's folder, its model in evaluation mode; `weights` and `settings` as in `regard.load`.

    The caller's random state stays as it was, though weights are drawn before those of the file take their place.
    """
    sides = load_sides(folder, settings)
    with torch.random.fork_rng(devices=()):
        task = new_task(sides, choose_device(device))
    file = folder / WEIGHTS if weights is None else weights
    set_weights(task.model, load_tensors(file), file)
    task.model.eval()
    return task


def load_sides(folder: Path, settings: Mapping[str, Any] | None = None) -> Sides:
    """Both sides of a trained model, with its tokens and labels; `settings` as in `load`."""
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}; `regard train` makes one, and `regard demo` makes runs/demo")
    if not (folder / CONFIG).exists():
        raise ModelError(f"{folder} is not a Regard model: it has no {CONFIG}")
    config = resolve_paths(parse(read_yaml(folder / CONFIG), str(folder / CONFIG)), folder)
    elsewhere = os.path.realpath(config.run) != os.path.realpath(folder)
    if elsewhere and not (folder / WEIGHTS).exists() and not token_files(folder):
        raise ModelError(
            f"{folder} holds a config and no model; its model is the folder that `run` names, {config.run}"
        )
    config = _read_otherwise(config, settings) if settings else config
    check_tokenizers(folder, (read_mark(folder) or {}).get("tokens"))
    sides = Sides.of(config)
    sides.load(folder)
    return sides


def _read_otherwise(config: Config, settings: Mapping[str, Any]) -> Config:
    """A trained model's settings, with changes to its source; the model then has room for as much as that takes."""
    if other := [name for name in settings if name != "source"]:
        raise ConfigError(f"[{other[0]}] is set in training; of a trained model [source] alone may be read otherwise")
    changed = parse(merge(config.model_dump(mode="json"), dict(settings)), "the settings")
    needed = Sides.of(changed).source.most_places(0)
    room = max(changed.model.max_positions or 0, needed) or None
    return changed.model_copy(update={"model": changed.model.model_copy(update={"max_positions": room})})


def together(tasks: Sequence[Task]) -> Task:
    """One task that writes with all models at once."""
    first = tasks[0]
    if len(tasks) == 1:
        return first
    models: list[AutoregressiveModel] = []
    for task in tasks:
        if not isinstance(task, TextGeneration) or task.first != first.first or _kinds(task) != _kinds(first):
            raise ConfigError("an ensemble needs models that read the same and write; these differ in kind")
        models.append(task.model)
    return replace(first, model=Ensemble(models).eval())


def _kinds(task: Task) -> list[str]:
    return [side.kind for side in task.config.sources]


def new_task(sides: Sides, device: torch.device) -> Task:
    """A task with a model of fresh weights."""
    config = sides.config
    parts = elements(sides)
    sides.target.to(device)
    _check_size(config, max(*(part.vocabulary for part in parts), sides.target.size), parts)
    marks, longest = sides.target.marks, longest_sequence(sides)
    model = build(config.model, parts, sides.target.size, longest, config.target, marks).to(device)
    match model:
        case ReplacedTokenModel():
            return ReplacedTokenDetection(sides, model, device)
        case BidirectionalLanguageModel():
            return BidirectionalLanguageModeling(sides, model, device)
        case EncoderDecoder() if config.denoises:
            return Denoising(sides, model, device)
        case MaskedLanguageModel():
            return MaskedLanguageModeling(sides, model, device)
        case EncoderWithHead():
            return HeadPrediction(sides, model, device)
        case DecoderOnly() if not config.sources[0].given:
            return LanguageModeling(sides, model, device)
        case _:
            return TextGeneration(sides, model, device)


def elements(sides: Sides, vocabulary: int | None = None) -> list[Elements]:
    """What the sources are made of; a text of tokens that are yet to be learnt has this `vocabulary`."""
    return [
        Elements(
            part.vocabulary if vocabulary is None else vocabulary if part.has_tokens else 0, part.shape,
            sides.config.stem(i), own_tokens=part.settings.own_tokens is not None, augmentation=part.augmentation(),
            separator=_marks(sides, part).separator,
        )
        for i, part in enumerate(sides.source.parts)
    ]  # fmt: skip


def _marks(sides: Sides, part: Modality) -> Marks:
    """Those of a source; where there is none, the text is the target."""
    return sides.target.marks if part.tokenizer is None else part.tokenizer.marks


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        what = f"device '{name}' cannot be used here; try auto or cpu (training.device, or --device)"
        raise ConfigError(what) from None
    return device


def _check_size(config: Config, vocabulary: int, sources: Sequence[Elements]) -> None:
    """See that a model fits into memory before any is taken."""
    width, parts = config.model.d_model, (*config.model.encoders, config.model.decoder)
    rough = width * (
        vocabulary + sum(getattr(part, "layers", 1) * max(width, getattr(part, "d_ff", 0)) for part in parts)
    )
    if rough < 2**28:
        return
    needed = 4 * count_parameters(config.model, max(vocabulary, 1), config.target, sources)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > room:
        raise ConfigError(
            f"[model] is too large for this machine: its weights alone take {needed / 2**30:,.0f} GiB, and there are "
            f"{room / 2**30:,.0f} GiB; lower d_model ({width}) or layers"
        )


def token_files(folder: Path) -> dict[str, str]:
    """The files of a folder's tokenizers, and a digest of each."""
    return {path.name: file_digest(path) for name in FILES for path in sorted(folder.glob(f"{name}.*"))}


def check_tokenizers(folder: Path, known: dict[str, str] | None) -> None:
    """See that tokenizers are what was written; a folder of an earlier Regard says nothing of them."""
    for name, digest in (known or {}).items():
        if not (folder / name).is_file():
            raise DamagedError(f"{folder} has no {name}; the folder is not whole")
        if file_digest(folder / name) != digest:
            raise DamagedError(f"{folder / name} is damaged: it is not what was written")


def vocabulary(folder: Path) -> str:
    """A digest of a model's tokenizers, by which two models write with the same tokens."""
    return hashlib.sha256("".join(token_files(folder).values()).encode()).hexdigest()
