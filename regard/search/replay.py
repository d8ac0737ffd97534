"""One function over and over on tensors of the same shapes: on a GPU it is recorded once, and then replayed.

Launched one by one, the hundred small kernels of a step keep a GPU waiting; as a recorded graph they follow each other
at once. What a function is given and what it gives back is a tree: dataclasses, tuples, tensors, and plain values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Tree = TypeVar("Tree")
KEPT = 64  # recordings of one model; the least recently used goes first


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


def cloned(tree: Tree) -> Tree:
    """The same tree of new tensors."""
    match tree:
        case Tensor():
            return tree.clone(memory_format=torch.contiguous_format)  # type: ignore[return-value]
        case tuple():
            return tuple(cloned(part) for part in tree)  # type: ignore[return-value]
        case _ if is_dataclass(tree):
            copied = copy.copy(tree)
            for field in fields(tree):
                object.__setattr__(copied, field.name, cloned(getattr(tree, field.name)))
            return copied
        case _:
            return tree


@cache
def _pool() -> Any:
    """Memory that all recordings share: nothing that is made inside one is needed after it."""
    return torch.cuda.graph_pool_handle()


class Recording(Generic[Tree]):
    """A function with its own tensors, from which each replay reads and to which it writes."""

    def __init__(self, function: Callable[[Tree], Tree], tree: Tree) -> None:
        self.function, self.tree = function, cloned(tree)
        self.graph: torch.cuda.CUDAGraph | None = None
        if next(tensors(tree)).is_cuda:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function(cloned(tree))  # kernels are built and chosen before the recording
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=_pool()):
                self._run()

    def take(self, tree: Tree) -> None:
        """Go on from this tree."""
        for own, given in zip(tensors(self.tree), tensors(tree), strict=True):
            own.copy_(given)

    def __call__(self) -> Tree:
        """Once more; the tree as it is now, until the next time."""
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()
        return self.tree

    def _run(self) -> None:
        after = self.function(self.tree)
        for own, new in zip(tensors(self.tree), tensors(after), strict=True):
            if own is not new:  # else it was written in place
                own.copy_(new)


class Recorder:
    """The recordings of each model."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, dict[Hashable, Recording[Any]]] = WeakKeyDictionary()

    def __call__(
        self, model: nn.Module, key: Hashable, function: Callable[[Tree], Tree], tree: Tree
    ) -> Recording[Tree]:
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
            recording = Recording(function, tree)
        kept[whole] = recording
        while len(kept) > KEPT:
            del kept[next(iter(kept))]
        return recording

    def of(self, model: nn.Module) -> dict[Hashable, Recording[Any]]:
        """What is kept of one model, by what it is for."""
        return self._kept.setdefault(model, {})


recorded = Recorder()


def records(device: torch.device) -> bool:
    """Whether replaying pays there."""
    return device.type == "cuda"


def upward(number: int, step: int) -> int:
    """The next multiple of `step`: shapes that are alike share a recording."""
    return -(-number // step) * step


def few(number: int) -> int:
    """The next of few numbers, at most a quarter more: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …"""
    return upward(number, max(1, 2 ** (number - 1).bit_length() // 8))
