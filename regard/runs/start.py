"""Weights that a run starts from: of trained models, of published networks, and under adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.encoders import Body
from regard.models.published import clash, encoder_weights, layout_of, put, read_published
from regard.nn.statistics import statistics
from regard.runs.tokens import reads_text
from regard.settings import Config
from regard.system import load
from regard.tasks.task import Task
from regard.training.lora import Adapters
from regard.training.watcher import Watcher

# Settings of a part by which the same weights compute something else, in tensors of the same shapes.
COMPUTED = (
    "heads", "norm", "normalize", "positions", "activation", "norm_epsilon", "first_position", "scale_scores",
    "bucket_distance",
)  # fmt: skip


def start_from(task: Task, watcher: Watcher) -> set[str]:
    """Put weights that were trained before into a new model, as the config's `start` says; their names."""
    own, taken = _every_name(task.model), set[str]()
    for part in ("model", "encoder", "decoder"):
        folder: str | None = getattr(task.config.start, part)
        if folder is None:
            continue
        trained = load(folder, device="cpu").task
        found = _every_name(trained.model)
        begins = "" if part == "model" else f"{part}."
        shared = {name: tensor for name, tensor in found.items() if name.startswith(begins)}
        if part == "encoder" and len(task.config.sources) > 1 and not reads_text(Path(folder)):
            begins = _one_of_several(own, shared, len(task.config.sources), folder)
            shared = {begins + name.removeprefix("encoder."): tensor for name, tensor in shared.items()}
        fitting = [name for name, tensor in shared.items() if name in own and _fits(name, own[name], tensor)]
        odd = [name for name in shared if name in own and name not in fitting]
        new = [name for name in own if name.startswith(begins) and name not in shared]
        lacking = [name for name in new if name.removeprefix(begins).startswith(_begun(task.model, part))]
        # A decoder may have learnt with a source or without; but of another kind it would bring its embedding alone.
        lacks = part != "decoder" or all(name.startswith(f"{begins}embedding.") for name in fitting)
        if odd or not fitting or (lacking and lacks):
            what = f"it has no {lacking[0]}" if lacking else "no part of it does"
            if odd:
                what = f"{odd[0]} is {tuple(shared[odd[0]].shape)}, here {tuple(own[odd[0]].shape)}"
            raise ConfigError(f"start.{part}: {folder} does not fit this config's [model]: {what}")
        if unlike := _unlike(task.config, trained.config, part, text=part != "encoder" or reads_text(Path(folder))):
            raise ConfigError(f"start.{part}: {folder} does not fit this config's [model]: {unlike}")
        for name in fitting:
            own[name][: len(shared[name])].copy_(shared[name][: len(own[name])])
        taken.update(fitting)
        watcher.message(f"start.{part}: {len(fitting)} tensors from {folder}; {len(new)} begin anew")
    if task.config.start.weights is not None:
        taken |= _put_published(task, Path(task.config.start.weights), own, watcher)
    return taken


def make_adapters(task: Task, watcher: Watcher) -> Adapters | None:
    """The adapters of `training.lora`, over the weights that the config's `start` names: no checkpoint holds those, so
    they are put in here, when a run is resumed too."""
    settings = task.config.training.lora
    if settings is None:
        return None
    taken = start_from(task, watcher)
    adapters = Adapters(task.model, settings)
    names = {id(weight): name for name, weight in task.model.named_parameters(remove_duplicate=False) if name in taken}
    if new := [name for name, weight in adapters.base.items() if id(weight) not in names]:
        parts = dict.fromkeys([*settings.also, *(name.partition(".")[0] for name in new)])
        raise ConfigError(
            f"training.lora: {new[0]} begins anew, for [start] has none, and would never learn; name its part in "
            f"training.lora.also: [{', '.join(parts)}]"
        )
    watcher.message(
        f"LoRA of rank {settings.rank} in {len(adapters.layers)} layers; {len(adapters.base)} tensors stay as they are"
    )
    return adapters


def _unlike(here: Config, there: Config, part: str, *, text: bool) -> str | None:
    """A setting of the parts that are taken over by which their weights would compute something else. A part that
    reads `text` scales its embeddings or does not."""
    ours, theirs = here.model, there.model
    pairs: list[tuple[str, Any, Any]] = [("decoder", ours.decoder, theirs.decoder)] if part != "encoder" else []
    if part != "decoder" and len(here.sources) == len(there.sources):
        pairs += [("encoder", *both) for both in zip(ours.encoders, theirs.encoders, strict=False)]
    found = [
        (f"{name}.{setting}", getattr(one, setting, None), getattr(other, setting, None))
        for name, one, other in pairs
        for setting in COMPUTED
    ]
    found += [("scale_embeddings", ours.scale_embeddings, theirs.scale_embeddings)] if text else []
    return next((f"{name} is {there}, here {here}" for name, here, there in found if here != there), None)


def _begun(model: nn.Module, part: str) -> tuple[str, ...]:
    """How the names begin of what a trained encoder has to bring along."""
    body = getattr(model, part, None)
    return body.begun if part == "encoder" and isinstance(body, Body) else ("",)


def _one_of_several(own: dict[str, Tensor], found: dict[str, Tensor], sources: int, folder: str) -> str:
    """How the names begin of the first of several encoders that the encoder of one source fits."""
    for number in range(sources):
        begins = f"encoder.encoders.{number}."
        here = {name.removeprefix(begins): tensor for name, tensor in own.items() if name.startswith(begins)}
        there = {name.removeprefix("encoder."): tensor for name, tensor in found.items()}
        if here.keys() == there.keys() and all(_fits(name, here[name], there[name]) for name in here):
            return begins
    raise ConfigError(f"start.encoder: {folder} fits none of the {sources} encoders of this config's [model]")


def _put_published(task: Task, path: Path, own: dict[str, Tensor], watcher: Watcher) -> set[str]:
    """Put the weights of a published network into each encoder that has such a part; their names."""
    tensors = read_published(path)
    layout = layout_of(tensors, path)
    found, config = encoder_weights(tensors, layout, path), task.config
    several, clashes, taken = len(config.sources) > 1, list[str](), set[str]()
    for number in range(1 if config.model.share_encoder else len(config.sources)):
        begin = f"encoder.encoders.{number}." if several else "encoder."
        inner = getattr(config.stem(number), "picture", None)  # of frames: a stem inside a stem
        encoder = config.model.encoder_of(number)
        if what := clash(layout, encoder if inner is None else encoder.model_copy(update={"stem": inner})):
            clashes.append(what)
            continue
        taken |= put(found, own, begin, "stem." if inner is None else "stem.picture.", path)
    if not taken:
        raise ConfigError(f"start.weights: {path}: {clashes[0]}")
    watcher.message(
        f"start.weights: {len(taken)} tensors of {layout.name} from {path}; {len(own) - len(taken)} begin anew"
    )
    return taken


def _fits(name: str, here: Tensor, there: Tensor) -> bool:
    """Of learned positions there may be more or fewer: models are made for the longest text that they will meet."""
    positions = name.endswith("positions.table.weight")
    return here.shape[positions:] == there.shape[positions:]


def _every_name(model: nn.Module) -> dict[str, Tensor]:
    """All weights. One that several parts share has a name in each, so that no part is without it."""
    named = (*model.named_parameters(remove_duplicate=False), *statistics(model, every_name=True))
    return {name: tensor.detach() for name, tensor in named}
