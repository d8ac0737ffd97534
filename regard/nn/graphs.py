"""CUDA graphs: work on tensors of the same shapes is recorded once, and then replayed.

Three things are recorded: a whole update of the weights, the turns of a search (`Recording`), and the loop of a
recurrent network, forward and backward (`Graphs.loop`). On a CPU a recording runs its function anew each time: that is
how all but the graphs themselves is tested.

What is recorded reads its inputs from tensors of its own and shares memory with other recordings, so one thread at a
time may use it; and while a graph is captured, other threads should leave the GPU alone. `exclusive` sees to both.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from functools import cached_property
from threading import Lock, RLock
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

Tree = TypeVar("Tree")  # dataclasses, tuples, tensors, and plain values
T = TypeVar("T")
Function = Callable[..., Sequence[Tensor]]
SHARE = 4  # a quarter of the device's memory may hold inputs of recordings, of all models
FIRST = 2  # the time that some shape is recorded: one that comes but once is not worth it
SEEN = 2**12  # shapes that are counted, before those that are not recorded are counted anew

_gpu, _cpu = RLock(), RLock()  # one for all GPUs: torch captures one graph at a time


def exclusive(device: torch.device) -> AbstractContextManager[bool]:
    """A context in which this thread alone works with the GPU (or with recordings on a CPU); it can be nested."""
    return _gpu if device.type == "cuda" else _cpu


# Trees of tensors


def _leaves(tree: Any) -> Iterator[Any]:
    """The tensors and plain values of a tree, in a fixed order, those of each part after its kind."""
    if not isinstance(tree, tuple) and not is_dataclass(tree):
        yield tree
        return
    parts = tree if isinstance(tree, tuple) else [getattr(tree, field.name) for field in fields(tree)]
    yield type(tree), len(parts)
    for part in parts:
        yield from _leaves(part)


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in a fixed order."""
    found = list[Tensor]()
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Tensor]) -> None:
    """Like `_leaves`, without what a search asks of each turn but does not need."""
    if isinstance(tree, Tensor):
        found.append(tree)
        return
    parts = tree if isinstance(tree, tuple) else [getattr(tree, x) for x in getattr(tree, "__dataclass_fields__", ())]
    for part in parts:
        _collect(part, found)


def _pair(one: Any, other: Any, found: list[tuple[Tensor, Tensor]]) -> None:
    """The tensors that stand in the same places of two trees and are not the same ones; what both have is passed by."""
    if one is other:
        return
    if isinstance(one, Tensor):
        found.append((one, other))
    elif isinstance(one, tuple):
        for x, y in zip(one, other, strict=True):
            _pair(x, y, found)
    else:
        for name in getattr(one, "__dataclass_fields__", ()):
            _pair(getattr(one, name), getattr(other, name), found)


def signature(tree: Any) -> Hashable:
    """What a tree holds beside tensors, and their shapes: two of the same can share a recording."""
    return tuple((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in _leaves(tree))


def cloned(tree: Tree, device: torch.device | None = None) -> Tree:
    """A tree of new tensors with the same numbers, on a device; without what was worked out of them and cached."""
    if isinstance(tree, Tensor):
        return tree.new_empty(tree.shape, device=device).copy_(tree)  # type: ignore[return-value]
    if isinstance(tree, tuple):
        return tuple(cloned(part, device) for part in tree)  # type: ignore[return-value]
    if not is_dataclass(tree):
        return tree
    made = copy.copy(tree)
    vars(made).clear()
    vars(made).update({field.name: cloned(getattr(tree, field.name), device) for field in fields(tree)})
    return made


def copy_into(own: Any, given: Any) -> None:
    """Write what one tree holds into the tensors of another like it, except one number that is spread out: that is room
    in which nothing stands yet."""
    different = list[tuple[Tensor, Tensor]]()
    _pair(own, given, different)
    pairs = [(x, y) for x, y in different if any(y.stride()) or y.numel() == 1]
    near = [(x, y) for x, y in pairs if x.device == y.device]
    if near:
        torch._foreach_copy_([x for x, _ in near], [y for _, y in near])
    for x, y in pairs:
        if x.device != y.device:
            x.copy_(y, non_blocking=True)


# Recordings


class Recording(Generic[Tree]):
    """A function with inputs of its own, from which each replay reads and to which it may write."""

    def __init__(
        self, function: Callable[[Tree], Any], inputs: Tree, graphs: Graphs, *, warm: bool = True, captured: bool = True
    ) -> None:
        """Unless it is `captured`, the function runs anew each time, on a GPU too."""
        self.inputs = own = cloned(inputs, graphs.device)
        self.size = sum(x.nbytes for x in tensors(own))
        if warm and captured and graphs.on_gpu:
            graphs.warm(lambda: function(cloned(own)))
        self.replay = graphs.capture(lambda: function(own)) if captured else lambda: function(own)

    def take(self, inputs: Tree) -> None:
        """Copy these inputs into its own."""
        copy_into(self.inputs, inputs)

    def __call__(self) -> Any:
        """Replay; returns what the function does, until the next replay overwrites it."""
        return self.replay()


class Graphs:
    """A cache of recordings on a device: `limit` of them, the least recently used going first.

    It is an attribute of the module whose work it records; a copy of the module has none. Recordings share a pool of
    memory, and named buffers. `filled`: sources of a search may be filled up, so that what precedes its first turn is
    recorded too.
    """

    def __init__(self, device: torch.device, limit: int = 64, *, filled: bool = False) -> None:
        self.device, self.limit, self.filled = device, limit, filled
        self.on_gpu = device.type == "cuda"
        self.recordings: dict[Hashable, Any] = {}  # `Recording` or `_Loop`; the least recently used first
        self.seen: Counter[Hashable] = Counter()  # how often each shape came of what is recorded if it comes often
        self.buffers: dict[Hashable, Tensor] = {}
        self.turn: ref[_Turn] | None = None  # the last replay of a loop
        self.captured = 0
        self.refused: set[Hashable] = set()  # what there was no memory to record
        with _counting:
            _every.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a module is of other tensors."""

    def like(self) -> Graphs:
        """Another cache for the same kind of work."""
        return Graphs(self.device, self.limit, filled=self.filled)

    @cached_property
    def room(self) -> float:
        """Bytes that inputs of recordings may take, with those of other caches on the device."""
        return torch.cuda.mem_get_info(self.device)[1] / SHARE if self.on_gpu else math.inf

    @property
    def held(self) -> int:
        """Bytes that inputs of recordings on the device take."""
        with _counting:
            near = [graphs for graphs in _every if graphs.device == self.device]
        return sum(one.size for graphs in near for one in graphs.recordings.values() if isinstance(one, Recording))

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """Where functions are warmed and captured."""
        return torch.cuda.Stream(self.device)

    @cached_property
    def _first(self) -> torch.cuda.CUDAGraph:
        """A pool lives as long as a graph of it: this one is never replayed, and holds it while there is no other."""
        return self._capture(lambda: torch.zeros(1, device=self.device), None)[0]

    def warm(self, function: Callable[[], T]) -> T:
        """Run a function as it will be captured, so that kernels are built and chosen before."""
        if not self.on_gpu:
            return function()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = function()
        torch.cuda.current_stream().wait_stream(self.stream)
        return found

    def capture(self, function: Callable[[], T]) -> Callable[[], T]:
        """The function as a graph to be replayed, which gives the same tensors each time; on a CPU, itself."""
        if not self.on_gpu:
            return function
        graph, found = self._capture(function, self._first.pool())
        self.captured += 1

        def replay() -> T:
            graph.replay()
            return found

        return replay

    def _capture(self, function: Callable[[], T], pool: Any) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # Threads that do not use a model, such as the one that makes batches ready, may go on meanwhile.
        how: dict[str, Any] = {"pool": pool, "stream": self.stream, "capture_error_mode": "thread_local"}
        with exclusive(self.device), torch.cuda.graph(graph, **how):
            found = function()
        return graph, found

    def recording(
        self, key: Hashable, function: Callable[[Tree], Any], inputs: Tree, *, often: bool = False
    ) -> Recording[Tree]:
        """The recording of `function` for inputs like these, set to them. `key` identifies the function. With `often`,
        only for inputs of shapes that come often: for others the function runs as it is, and nothing is kept. That is
        also how it runs if there is no memory to record it."""
        whole, kept = (key, signature(inputs)), self.recordings
        if whole in self.refused or (often and not self._admit(whole)):
            return Recording(function, inputs, self, captured=False)
        found: Recording[Tree] | None = kept.pop(whole, None)
        if found is not None:
            found.take(inputs)
            kept[whole] = found
            return found
        try:
            found = kept[whole] = Recording(function, inputs, self)
        except torch.OutOfMemoryError:
            kept.clear()
            self.refused = {*self.refused, whole} if len(self.refused) < SEEN else {whole}
            return Recording(function, inputs, self, captured=False)
        while len(kept) > self.limit or (len(kept) > 1 and self.held > self.room):
            del kept[next(iter(kept))]
        return found

    def loop(self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """`function(*inputs)`, which also reads `parameters` where they lie, and nothing else that changes.

        Forward and backward are a graph each. All share one pool and the buffers of inputs and outputs, so that memory
        grows with the largest shape alone: while one waits for its backward pass, others run as they are.
        """
        if not any(x.requires_grad for x in (*inputs, *parameters)):
            return function(*inputs)  # all of it is frozen: there is no backward pass
        kind = self.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        shapes = tuple((x.shape, x.dtype, x.requires_grad) for x in inputs)
        key = (shapes, precision, *((x.data_ptr(), x.requires_grad) for x in parameters))
        # A weight that was converted outside of a recording, and kept, would be the same in every replay.
        with torch.autocast(kind, precision, enabled=precision is not None, cache_enabled=False):
            if self.busy() or not self._admit(key):
                return function(*inputs)
            if key not in self.recordings:
                torch.clear_autocast_cache()  # whose nodes would tie the weights to the stream they were converted on
                self.recordings[key] = _Loop(function, inputs, parameters, self)
        turn = _Turn(self.recordings[key])
        self.turn = ref(turn)
        return _Replay.apply(turn, *inputs, *parameters)

    def busy(self) -> bool:
        """Whether the replay of a loop waits for its backward pass, in memory that another would overwrite."""
        turn = None if self.turn is None else self.turn()  # None as well where nobody can ask for its gradient
        return turn is not None and not turn.over

    def buffer(self, name: Hashable, like: Tensor) -> Tensor:
        """A tensor like this one in the buffer of this name; if it has to grow, earlier recordings keep the old one."""
        size = like.numel() * like.element_size()
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = torch.empty(size + size // 4, dtype=torch.uint8, device=like.device)
        return self.buffers[name][:size].view(like.dtype).view(like.shape)

    def _admit(self, key: Hashable) -> bool:
        """Whether something is recorded, or to be: what comes seldom takes nobody's place."""
        self.seen[key] += 1
        if len(self.seen) > SEEN:
            self.seen = Counter({one: n for one, n in self.seen.items() if one in self.recordings or one == key})
        if key in self.recordings:
            self.recordings[key] = self.recordings.pop(key)
            return True
        if self.seen[key] < FIRST:
            return False
        if len(self.recordings) >= self.limit:
            oldest = next(iter(self.recordings))
            if self.seen[key] <= 2 * self.seen[oldest]:
                return False
            del self.recordings[oldest]
        return True


_every: WeakSet[Graphs] = WeakSet()  # the caches there are
_counting = Lock()  # while they are counted


class Looped(nn.Module):
    """A module whose loop over steps is recorded while it has `graphs`, which an update on a GPU gives it."""

    graphs: Graphs | None = None

    @property
    def recorder(self) -> Graphs | None:
        """Where to record the loop, where there is a gradient to come."""
        return self.graphs if torch.is_grad_enabled() else None


# Loops, forward and backward


class _Loop:
    """A function of tensors, and its gradient, as two graphs."""

    def __init__(
        self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor], graphs: Graphs
    ) -> None:
        self.inputs = [graphs.buffer(("input", i), x) for i, x in enumerate(inputs)]
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given.detach()).requires_grad_(given.requires_grad)
        both = (*self.inputs, *parameters)
        self.asked = [x.requires_grad for x in both]  # for a gradient
        wanted = [x for x in both if x.requires_grad]

        def gradients(outputs: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor | None]:
            with torch.autocast(outputs[0].device.type, enabled=False):  # which is for the forward pass
                return torch.autograd.grad(outputs, wanted, given, allow_unused=True)

        def trial() -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
            outputs = function(*self.inputs)
            return [x.detach() for x in outputs], gradients(outputs, [torch.zeros_like(x) for x in outputs])

        with torch.random.fork_rng([graphs.device] if graphs.on_gpu else []):
            outputs, found = graphs.warm(trial)
        self.outputs, self.given = (
            [graphs.buffer((name, i), x) for i, x in enumerate(outputs)] for name in ("output", "given")
        )
        self.gradients = [None if x is None else graphs.buffer(("gradient", i), x) for i, x in enumerate(found)]
        del outputs, found
        made: list[Sequence[Tensor]] = []  # by the last forward pass

        def forward() -> None:
            with torch.enable_grad():
                made[:] = [function(*self.inputs)]
            for own, new in zip(self.outputs, made[0], strict=True):
                own.copy_(new.detach())

        def backward() -> None:
            for own, new in zip(self.gradients, gradients(made.pop(), self.given), strict=True):
                if own is not None and new is not None:
                    own.copy_(new)

        self.forward, self.backward = graphs.capture(forward), graphs.capture(backward)


class _Turn:
    """One replay of a loop, forward and backward."""

    def __init__(self, loop: _Loop) -> None:
        self.loop, self.over = loop, False


class _Replay(torch.autograd.Function):
    """All that leaves a recording is copied: the next replay overwrites what is its own."""

    @staticmethod
    def forward(ctx: Any, turn: _Turn, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.turn = turn
        ctx.set_materialize_grads(False)
        for own, new in zip(turn.loop.inputs, given, strict=False):
            own.detach().copy_(new)
        turn.loop.forward()
        return tuple(x.clone() for x in turn.loop.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        turn: _Turn = ctx.turn
        assert not turn.over, "a recorded loop has one backward pass: what it kept is overwritten by the next replay"
        for own, given in zip(turn.loop.given, gradients, strict=True):
            own.zero_() if given is None else own.copy_(given)
        turn.loop.backward()
        turn.over = True
        found = iter(turn.loop.gradients)
        kept = (next(found) if asked else None for asked in turn.loop.asked)
        return None, *(None if x is None else x.clone() for x in kept)
