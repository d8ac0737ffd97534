"""Weights and training state on disk: safetensors and JSON, with checksums, no pickle. A checkpoint is a folder that is
moved in: a kill leaves the last whole one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.artifacts import FORMAT, beside, checksum, read_json, replacing, sync, write_json
from regard.errors import DamagedError, ModelError, OutputError
from regard.nn.statistics import statistics
from regard.upgrade import upgraded_names

WEIGHTS = "model.safetensors"
HEADER = "regard"  # the entry of a safetensors header that says what Regard has to say
OPTIMIZER, RANDOM, PROGRESS = "optimizer.safetensors", "random.safetensors", "progress.json"
CARRIED = "carried.safetensors"  # what is kept from update to update beside all that, where there is such a thing
NONE = checksum([])  # of nothing
NEW, OLD = ".new", ".old"  # a checkpoint that is being written, and one that is being removed


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write a whole safetensors file or none; its header holds a checksum of all tensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {**(facts or {}), "format": FORMAT, "checksum": _checksum(plain)}
    with replacing(path) as temporary:
        try:
            save_file(plain, temporary, {HEADER: json.dumps(header)})  # under one name: several come in any order
        except SafetensorError as error:
            raise OutputError(f"{path} cannot be written ({error})") from None
        temporary.chmod(0o644)  # safetensors makes files that only their owner may read


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; one that carries a checksum has to agree with it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise ModelError(
            f"no {path.name} in {path.parent}; the folder is not whole, or training has not saved yet"
        ) from None
    except (SafetensorError, OSError, ValueError, RuntimeError, UnicodeError, MemoryError) as error:
        raise DamagedError(f"{path} cannot be read ({error}); it is cut off or not a safetensors file") from None
    if "checksum" in header and header["checksum"] != _checksum(tensors):
        raise DamagedError(f"{path} is damaged: its checksum differs")
    return tensors


def read_facts(path: Path) -> dict[str, Any]:
    """What the header of a safetensors file that Regard wrote says beside its tensors; of another's, nothing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = json.loads((file.metadata() or {}).get(HEADER, "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read ({error}); it is cut off or not a safetensors file") from None
    return found if isinstance(found, dict) else {}


def _checksum(tensors: dict[str, Tensor]) -> str:
    """Over names, types, shapes and numbers."""
    value = "0"
    for name, tensor in sorted(tensors.items()):
        value = checksum([f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()], value)
        if tensor.numel():
            value = checksum([tensor.flatten().view(torch.uint8).numpy().data], value)
    return value


def weights(model: nn.Module, without: Collection[str] = ()) -> dict[str, Tensor]:
    """Each parameter once, by name (tied ones share a name), and the statistics that norms have gathered; but not those
    that `without` names."""
    named = (*model.named_parameters(), *statistics(model))
    return {name: tensor.detach() for name, tensor in named if name not in without}


def set_weights(model: nn.Module, tensors: dict[str, Tensor], where: Path, without: Collection[str] = ()) -> None:
    """Put weights into a model that was built to fit; those that `without` names are not among them, and stay."""
    named: tuple[tuple[str, Tensor], ...] = (*model.named_parameters(), *statistics(model))
    own = {name: tensor for name, tensor in named if name not in without}
    tensors = upgraded_names(tensors)
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
        if not tensors[name].is_floating_point():
            raise ModelError(f"{where} does not fit its config: {name} holds {tensors[name].dtype}, not real numbers")
        if tensors[name].dtype.itemsize < 2:
            raise ModelError(
                f"{where} holds {name} as {tensors[name].dtype}, and Regard computes with no 8-bit numbers; weights in "
                "float32, bfloat16 or float16 will do"
            )
        if not tensors[name].isfinite().all():
            raise ModelError(
                f"{where} holds numbers in {name} that are not finite (NaN or infinite), so it is of no use"
            )
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
    between: bool = False  # saved because training was asked to stop, and not because a checkpoint was due
    loss: float = 0.0  # summed since the last line of the log,
    counted: int = 0  # over so many tokens
    log: tuple[int, str] = (0, NONE)  # size and checksum of log.jsonl
    skipped: int = 0  # updates whose loss or gradient was not finite
    in_a_row: int = 0  # of them, the latest
    returns: int = 0  # to an earlier checkpoint, because there were too many in a row
    scores: dict[str, float] = field(default_factory=dict)  # of the best
    memory: dict[str, float] = field(default_factory=dict)  # what the objective keeps from batch to batch
    before: dict[str, float] = field(default_factory=dict)  # scores of the weights that training began from


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, *, keep: int,
    carried: Mapping[str, Tensor] = MappingProxyType({}), without: Collection[str] = (),
) -> Path:  # fmt: skip
    """Write `folder/STEP`, with tensors that are `carried` from update to update, then drop all but the latest `keep`.
    `without` names weights that never change."""
    place, new = folder / f"{progress.step:08d}", folder / NEW
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    save_tensors(new / WEIGHTS, weights(model, without))
    states = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    saved = {f"{name}/{key}": tensor for name, state in states.items() for key, tensor in state.items()}
    save_tensors(new / OPTIMIZER, saved)
    random = {"cpu": torch.get_rng_state()}
    save_tensors(new / RANDOM, random | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}))
    if carried:
        save_tensors(new / CARRIED, dict(carried))
    save_progress(new, progress)
    _remove(place)  # one that was found damaged, else there is none: an update is saved once
    new.replace(place)
    sync(folder)
    prune(folder, keep, progress.step)
    return place


def save_progress(place: Path, progress: Progress) -> None:
    """Say anew how far training is, in a checkpoint whose tensors stay as they are."""
    write_json(place / PROGRESS, asdict(progress))


def prune(folder: Path, keep: int, step: int) -> None:
    """Drop all checkpoints up to a step but the latest `keep`, and what a kill left half written or half removed. One
    that was saved in between goes once there is a later one, so that the others are those of a run that was never
    stopped."""
    places = checkpoints(folder, step)
    between = {place for place in places[:-1] if _is_between(place)}
    due = [place for place in places if place not in between]
    for old in (*between, *due[:-keep]):
        _remove(old)
    for name in (NEW, OLD):
        shutil.rmtree(folder / name, ignore_errors=True)


def _is_between(place: Path) -> bool:
    try:
        return read_progress(place).between
    except DamagedError:
        return False


def _remove(place: Path) -> None:
    """Remove a checkpoint under another name, so that a kill leaves no half of it to be found. One in which someone
    else has put something is only moved out of the way."""
    if not place.exists():
        return
    own = {WEIGHTS, OPTIMIZER, RANDOM, PROGRESS, CARRIED, beside(place / PROGRESS).name}
    if {path.name for path in place.iterdir()} - own:
        place.replace(place.with_name(f"kept-{place.name}"))
    else:
        shutil.rmtree(place.with_name(OLD), ignore_errors=True)
        place.replace(place.with_name(OLD))
        shutil.rmtree(place.with_name(OLD))


def checkpoints(folder: Path, step: float = math.inf) -> list[Path]:
    """All checkpoints, oldest first; up to a step, beyond which there may be damaged ones that a run had to go back
    from. A copy of one under a name that is no number belongs to whoever made it."""
    found = (path for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())
    return sorted((path for path in found if int(path.name) <= step), key=lambda path: int(path.name))


def read_progress(place: Path) -> Progress:
    """How far training was at a checkpoint."""
    try:
        return Progress(**read_json(place / PROGRESS))
    except (OSError, TypeError) as error:
        raise DamagedError(f"{place / PROGRESS} cannot be read ({error})") from None


def load_carried(place: Path, device: torch.device) -> dict[str, Tensor]:
    """The tensors that were carried from update to update at a checkpoint."""
    path = place / CARRIED
    found = load_tensors(path) if path.exists() else {}
    # In memory of their own: where a tensor lies in a file decides how products with it are rounded.
    return {name: tensor.clone().to(device) for name, tensor in found.items()}


def load_checkpoint(
    place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, without: Collection[str] = ()
) -> Progress:
    """Put model, optimiser and random state back to where `place` left them; nothing is touched if it is damaged."""
    progress = read_progress(place)
    try:
        found, saved, random = (load_tensors(place / name) for name in (WEIGHTS, OPTIMIZER, RANDOM))
    except ModelError as error:  # damaged, or not there
        raise DamagedError(str(error)) from None
    set_weights(model, found, place / WEIGHTS, without)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if f"{names[parameter]}/step" not in saved:
                optimizer.state.pop(parameter, None)  # it was frozen
                continue
            state = {key: saved[f"{names[parameter]}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {key: tensor.to(parameter.device) for key, tensor in state.items()}
    torch.set_rng_state(random["cpu"])
    if torch.cuda.is_available() and "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"])
    return progress
