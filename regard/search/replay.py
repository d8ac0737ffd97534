"""One function over and over on tensors of the same shapes: on a GPU it is recorded once, and then replayed.

Launched one by one, the hundred small kernels of a step keep a GPU waiting; as a recorded graph they follow each other
at once. What a function is given and what it gives back is a tree: dataclasses, tuples, tensors, and plain values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Tree = TypeVar("Tree")
KEPT = 64  # recordings of one model; the least recently used goes first
SHARE = 4  # and a quarter of the device's memory for what they hold


def tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors of a tree, in a fixed order."""
    match tree:
        case Tensor():
            yield tree
        case tuple():
            for part in tree:
                yield from tensors(part)
        case _ if is_dataclass(tree):
            for field in fields(tree):
                yield from tensors(getattr(tree, field.name))


def plain(tree: Any) -> Hashable:
    """What a tree holds beside tensors, and their shapes: two of the same can share a recording."""
    match tree:
        case Tensor():
            return (tree.shape, tree.dtype, tree.device)
        case tuple():
            return tuple(plain(part) for part in tree)
        case _ if is_dataclass(tree):
            return (type(tree), *(plain(getattr(tree, field.name)) for field in fields(tree)))
        case _:
            return tree


def cloned(tree: Tree, device: torch.device | None = None) -> Tree:
    """The same tree of new tensors, on a device."""
    match tree:
        case Tensor():
            return tree.new_empty(tree.shape, device=device).copy_(tree)  # type: ignore[return-value]
        case tuple():
            return tuple(cloned(part, device) for part in tree)  # type: ignore[return-value]
        case _ if is_dataclass(tree):
            copied = copy.copy(tree)
            for field in fields(tree):
                object.__setattr__(copied, field.name, cloned(getattr(tree, field.name), device))
            for name in vars(copied).keys() - {field.name for field in fields(tree)}:
                del vars(copied)[name]  # what was worked out of the others
            return copied
        case _:
            return tree


def written(own: Any, given: Any) -> None:
    """Write what one tree holds into the tensors of another like it.

    One number that is spread out is room in which nothing stands yet: whatever is there may stay.
    """
    pairs = [
        (x, y)
        for x, y in zip(tensors(own), tensors(given), strict=True)
        if x is not y and (any(y.stride()) or y.numel() == 1)
    ]
    near = [(x, y) for x, y in pairs if x.device == y.device]
    if near:
        torch._foreach_copy_([x for x, _ in near], [y for _, y in near])
    for x, y in pairs:
        if x.device != y.device:
            x.copy_(y)


@cache
def _room(device: torch.device) -> float:
    return torch.cuda.mem_get_info(device)[1] / SHARE if device.type == "cuda" else math.inf


@cache
def _pool(device: torch.device) -> torch.cuda.CUDAGraph:
    """Memory that all recordings share: nothing that is made inside one is needed after it. A graph that is never
    replayed holds it, for what the last recording leaves cannot be entered again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on meanwhile
        torch.zeros(1, device=device)
    return graph


class Recording(Generic[Tree]):
    """A function with a tree of its own, from which each replay reads and to which it may write."""

    def __init__(self, function: Callable[[Tree], Any], tree: Tree, device: torch.device | None = None) -> None:
        self.function: Callable[[Tree], Any] | None = function
        self.tree = cloned(tree, device)
        self.size = sum(x.nbytes for x in tensors(self.tree))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: Any = None
        if next(tensors(self.tree)).is_cuda:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function(cloned(self.tree))  # kernels are built and chosen before the recording
            torch.cuda.current_stream().wait_stream(stream)
            self.graph, pool = torch.cuda.CUDAGraph(), _pool(torch.device("cuda", torch.cuda.current_device())).pool()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.found = function(self.tree)
            self.function = None  # what it holds, such as a model, need not be kept for the recording

    def take(self, tree: Tree) -> None:
        """Go on from this tree."""
        written(self.tree, tree)

    def __call__(self) -> Any:
        """Once more; what the function gives back, as it is until the next time."""
        if self.function is not None:
            self.found = self.function(self.tree)
        elif self.graph is not None:
            self.graph.replay()
        return self.found


def onward(function: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """The function, with what it makes of a tree written back into it."""

    def again(tree: Tree) -> Tree:
        written(tree, function(tree))
        return tree

    return again


class Recorder:
    """The recordings of each model."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, dict[Hashable, Recording[Any]]] = WeakKeyDictionary()

    def __call__(self, model: nn.Module, key: Hashable, function: Callable[[Tree], Any], tree: Tree) -> Recording[Tree]:
        """The recording of `function` for trees like this one, set to go on from it.

        `key` tells apart functions that do different things with the same tree.
        """
        kept = self.of(model)
        first = next(model.parameters())
        whole = (key, plain(tree), first.data_ptr(), first.dtype)
        if whole in kept:
            recording = kept.pop(whole)
            recording.take(tree)
        else:
            recording = Recording(function, tree, first.device)
        kept[whole] = recording
        while len(kept) > KEPT or (len(kept) > 1 and sum(one.size for one in kept.values()) > _room(first.device)):
            del kept[next(iter(kept))]
        return recording

    def of(self, model: nn.Module) -> dict[Hashable, Recording[Any]]:
        """What is kept of one model, by what it is for."""
        return self._kept.setdefault(model, {})


recorded = Recorder()


class Glance:
    """Some numbers on their way from the device, which goes on meanwhile."""

    def __init__(self, *given: Tensor) -> None:
        self.given = [x.detach().to("cpu", non_blocking=True, copy=True) for x in given]
        self.arrived: torch.cuda.Event | None = None
        if given[0].is_cuda:
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def __call__(self) -> list[Tensor]:
        """Waits until they are here."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.given


def records(device: torch.device) -> bool:
    """Whether replaying pays there."""
    return device.type == "cuda"
