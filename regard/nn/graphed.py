"""A function of tensors as two recorded graphs of kernels, one forward and one back, for each shape it is given.

A loop over the steps of a sequence is thousands of small kernels, and launched one by one they keep a GPU waiting.
Recorded once and replayed, as `torch.cuda.make_graphed_callables` does it, they follow each other at once. That one
gives every shape memory of its own. Here all recordings share one pool, since what one keeps for its way back is used
up before another begins: if it were not, the function runs as it is instead. So memory grows with the largest shape,
and not with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import ref

import torch
from torch import Tensor

Function = Callable[..., Tensor]
KEPT = 256  # recordings; a new one then takes the place of one that has come far more seldom
FIRST = 2  # the time a shape is recorded: one that comes but once is not worth it


class Graphs:
    """The recordings of one training."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _Recording] = {}
        self.seen: Counter[Hashable] = Counter()
        self.memory = _Memory()
        self._turn: ref[_Turn] | None = None

    def __call__(
        self, key: Hashable, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> Tensor:
        """`function(*inputs)`, which also reads `parameters` where they lie, and nothing else that changes.

        `key` tells apart functions that do different things with inputs of the same shapes.
        """
        device = inputs[0].device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        shapes = tuple((x.shape, x.dtype, x.requires_grad) for x in inputs)
        whole = (key, shapes, precision, *((x.data_ptr(), x.requires_grad) for x in parameters))
        self.seen[whole] += 1
        # A weight that was converted outside of a recording, and kept, would be the same in every replay.
        with torch.autocast(device, precision, enabled=precision is not None, cache_enabled=False):
            if self._busy() or not self._worth(whole):
                return function(*inputs)
            if whole not in self.kept:
                self.kept[whole] = _Recording(function, inputs, parameters, self.memory)
        turn = _Turn(self.kept[whole])
        self._turn = ref(turn)
        replayed: Tensor = _Replay.apply(turn, *inputs, *parameters)
        return replayed

    def _busy(self) -> bool:
        """Whether a replay waits for its way back, in memory that another would overwrite."""
        turn = None if self._turn is None else self._turn()  # None as well where nobody can ask for its gradient
        return turn is not None and not turn.over

    def _worth(self, key: Hashable) -> bool:
        if key in self.kept or self.seen[key] < FIRST:
            return key in self.kept
        if len(self.kept) == KEPT:
            least = min(self.kept, key=self.seen.__getitem__)
            if self.seen[key] <= 2 * self.seen[least]:
                return False
            del self.kept[least]
        return True


class _Memory:
    """What recordings share: a pool for what is made inside of them, and for what goes in and out a buffer each."""

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None
        self.buffers: dict[Hashable, Tensor] = {}

    def room(self, name: Hashable, like: Tensor) -> Tensor:
        """A tensor like this one in the buffer of this name, which grows where it has to; recordings made before keep
        the old one."""
        size = like.numel() * like.element_size()
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = torch.empty(size + size // 4, dtype=torch.uint8, device=like.device)
        return self.buffers[name][:size].view(like.dtype).view(like.shape)


class _Recording:
    """A function with tensors of its own, from which each replay reads and to which it writes.

    On a CPU a replay runs the function anew: that is how all but the graphs themselves is tested.
    """

    def __init__(
        self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor], memory: _Memory
    ) -> None:
        self.function, self.found = function, None  # type: Function, Tensor | None
        self.forward_graph: torch.cuda.CUDAGraph | None = None
        self.backward_graph: torch.cuda.CUDAGraph | None = None
        self.inputs = [memory.room(("input", i), x) for i, x in enumerate(inputs)]
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given.detach()).requires_grad_(given.requires_grad)
        both = (*self.inputs, *parameters)
        self.asked = [x.requires_grad for x in both]  # for a gradient
        self.wanted = [x for x in both if x.requires_grad]
        if inputs[0].is_cuda:
            if memory.stream is None:
                memory.pool, memory.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
            memory.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(memory.stream), torch.random.fork_rng([inputs[0].device]):
                output, gradients = self._try()  # which also builds and chooses kernels
            torch.cuda.current_stream().wait_stream(memory.stream)
        else:
            with torch.random.fork_rng([]):
                output, gradients = self._try()
        self.output, self.gradient = memory.room("output", output), memory.room("gradient", output)
        self.gradients = [None if x is None else memory.room(("gradient", i), x) for i, x in enumerate(gradients)]
        del output, gradients
        if inputs[0].is_cuda:
            # Other threads may go on meanwhile: one of them makes batches ready.
            how: dict[str, Any] = {"pool": memory.pool, "stream": memory.stream, "capture_error_mode": "thread_local"}
            self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward_graph, **how):
                self._forward()
            with torch.cuda.graph(self.backward_graph, **how):
                self._backward()

    def _try(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Once as it is, to see what comes out of it: the output and gradients, of which some may be None."""
        output = self.function(*self.inputs)
        return output.detach(), self._grad(output, torch.zeros_like(output))

    def forward(self) -> None:
        """From `inputs` to `output`."""
        if self.forward_graph is None:
            self._forward()
        else:
            self.forward_graph.replay()

    def backward(self) -> None:
        """From `gradient` to `gradients`."""
        if self.backward_graph is None:
            self._backward()
        else:
            self.backward_graph.replay()

    def _forward(self) -> None:
        with torch.enable_grad():
            self.found = self.function(*self.inputs)
        self.output.copy_(self.found.detach())

    def _backward(self) -> None:
        assert self.found is not None, "there is no way back before the way forward"
        found, self.found = self._grad(self.found, self.gradient), None
        for own, new in zip(self.gradients, found, strict=True):
            if own is not None and new is not None:
                own.copy_(new)

    def _grad(self, output: Tensor, gradient: Tensor) -> Sequence[Tensor | None]:
        with torch.autocast(output.device.type, enabled=False):  # which is for the way forward
            return torch.autograd.grad(output, self.wanted, gradient, allow_unused=True)


class _Turn:
    """One replay, forward and back."""

    def __init__(self, recording: _Recording) -> None:
        self.recording, self.over = recording, False


class _Replay(torch.autograd.Function):
    """All that leaves a recording is copied: the next replay overwrites what is its own."""

    @staticmethod
    def forward(ctx: Any, turn: _Turn, *tensors: Tensor) -> Tensor:
        ctx.turn = turn
        recording = turn.recording
        for own, given in zip(recording.inputs, tensors, strict=False):
            own.detach().copy_(given)
        recording.forward()
        return recording.output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        turn: _Turn = ctx.turn
        assert not turn.over, "a recorded function has one way back: what it kept is overwritten by the next replay"
        recording = turn.recording
        recording.gradient.copy_(gradients[0])
        recording.backward()
        turn.over = True
        found = iter(recording.gradients)
        own = (next(found) if asked else None for asked in recording.asked)
        return None, *(None if x is None else x.clone() for x in own)


_graphs: ContextVar[Graphs | None] = ContextVar("graphs", default=None)


@contextmanager
def recording(graphs: Graphs | None) -> Iterator[None]:
    """Inside this, what can be recorded is."""
    token = _graphs.set(graphs)
    try:
        yield
    finally:
        _graphs.reset(token)


def recorder() -> Graphs | None:
    """The recordings that are on, where there is a gradient to come."""
    return _graphs.get() if torch.is_grad_enabled() else None


def upward(number: int, step: int) -> int:
    """The next multiple of `step`: shapes that are alike share a recording."""
    return -(-number // step) * step


def few(number: int, parts: int = 8, least: int = 1) -> int:
    """The next of few numbers, so many (or half as many) of them up to each power of 2, and `least` apart or more.

    By 8 parts they are 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …: at most a quarter more.
    """
    return upward(number, max(least, 2 ** (number - 1).bit_length() // parts))
