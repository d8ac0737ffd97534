"""Weights and training state on disk: safetensors and JSON, no pickle; whole or not there at all.

A file is written beside its place and moved in; a checkpoint is a folder that is moved in. A kill at any moment leaves
the last whole one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.artifacts import write_text
from regard.errors import ModelError

WEIGHTS = "model.safetensors"


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> None:
    """Write a whole safetensors file or none."""
    from safetensors.torch import save_file

    temporary = path.with_name(path.name + ".tmp")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, facts)
    temporary.chmod(0o644)  # safetensors makes files that only their owner may read
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise ModelError(
            f"no {path.name} in {path.parent}; the folder is not whole, or training has not saved yet"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}); it is cut off or not a safetensors file") from None


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, by name: tied ones share a name."""
    return {name: parameter.data for name, parameter in model.named_parameters()}


def set_weights(model: nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Put weights into a model that was built to fit."""
    own = dict(model.named_parameters())
    missing, foreign = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or foreign:
        first = f"lacks {missing[0]}" if missing else f"has {foreign[0]}, which the model does not"
        raise ModelError(
            f"{where} does not fit its config: it {first} ({len(missing)} missing, {len(foreign)} foreign)"
        )
    for name, tensor in own.items():
        here, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        if here != wanted:
            raise ModelError(f"{where} does not fit its config: {name} is {here}, expected {wanted}")
        with torch.no_grad():  # and not through `data`, which would hide from others that weights have changed
            tensor.copy_(tensors[name])


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files, summed in double precision."""
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    count = 0
    for path in paths:
        tensors = load_tensors(path)
        if total and {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in total.items()}:
            raise ModelError(f"{path} has other weights than the files before it; average checkpoints of one model")
        for name, tensor in tensors.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
            kinds[name] = tensor.dtype
        count += 1
    return {name: (tensor / count).to(kinds[name]) for name, tensor in total.items()}


@dataclass
class Progress:
    """Where training stands: all that is not a tensor."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    window: int = 0
    batch: int = 0
    best: float | None = None
    best_step: int = 0
    worse: int = 0  # validations since the best
    early: bool = False  # stopped because validation got no better
    finished: bool = False
    scores: dict[str, float] = field(default_factory=dict)  # of the best
    memory: dict[str, float] = field(default_factory=dict)  # what the objective keeps from batch to batch


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, *, keep: int
) -> Path:
    """Write `folder/STEP`, then drop all but the latest `keep`."""
    place = folder / f"{progress.step:08d}"
    temporary = folder / ".tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_tensors(temporary / WEIGHTS, weights(model))
    save_tensors(temporary / "optimizer.safetensors", _optimizer_tensors(model, optimizer))
    save_tensors(temporary / "random.safetensors", _random_state())
    write_text(temporary / "progress.json", json.dumps(asdict(progress), indent=1))
    shutil.rmtree(place, ignore_errors=True)
    temporary.replace(place)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return place


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def load_checkpoint(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put model, optimiser and random state back to where `place` left them."""
    set_weights(model, load_tensors(place / WEIGHTS), place / WEIGHTS)
    saved = load_tensors(place / "optimizer.safetensors")
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if f"{names[parameter]}/step" not in saved:
                continue  # it was frozen
            state = {key: saved[f"{names[parameter]}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {key: tensor.to(parameter.device) for key, tensor in state.items()}
    random = load_tensors(place / "random.safetensors")
    torch.set_rng_state(random["cpu"])
    if torch.cuda.is_available() and "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"])
    try:
        return Progress(**json.loads((place / "progress.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{place / 'progress.json'} cannot be read ({error}); remove {place} to go on from before it"
        ) from None


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"{name}/{key}"] = tensor
    return tensors


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state
