"""A function of tensors as two recorded graphs of kernels, one forward and one back, for each shape it is given.

A loop over the steps of a sequence is thousands of small kernels, and launched one by one they keep a GPU waiting.
Recorded once and replayed, as `torch.cuda.make_graphed_callables` does it, they follow each other at once. That one
gives every shape memory of its own. Here all recordings of a function share one pool, since what one keeps for its way
back is used up before another begins: if it were not, the function runs as it is instead. So memory grows with the
largest shape, and not with their number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import ref

import torch
from torch import Tensor

Function = Callable[..., Sequence[Tensor]]
KEPT = 256  # recordings; a new one then takes the place of one that has come far more seldom
FIRST = 2  # the time a shape is recorded: one that comes but once is not worth it


class Graphs:
    """The recordings of one training."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _Recording] = {}
        self.seen: Counter[Hashable] = Counter()
        self.memories: dict[str, _Memory] = defaultdict(_Memory)

    def __call__(
        self, name: str, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """`function(*inputs)`, which also reads `parameters` where they lie, and nothing else that changes.

        Functions of different names may wait for their way back at the same time.
        """
        if not any(x.requires_grad for x in (*inputs, *parameters)):
            return function(*inputs)  # all of it is frozen: there is no way back
        memory = self.memories[name]
        device = inputs[0].device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        shapes = tuple((x.shape, x.dtype, x.requires_grad) for x in inputs)
        whole = (name, shapes, precision, *((x.data_ptr(), x.requires_grad) for x in parameters))
        self.seen[whole] += 1
        # A weight that was converted outside of a recording, and kept, would be the same in every replay.
        with torch.autocast(device, precision, enabled=precision is not None, cache_enabled=False):
            if memory.busy() or not self._worth(whole):
                return function(*inputs)
            if whole not in self.kept:
                torch.clear_autocast_cache()  # whose nodes would tie the weights to the stream they were converted on
                self.kept[whole] = _Recording(function, inputs, parameters, memory)
        turn = _Turn(self.kept[whole])
        memory.turn = ref(turn)
        replayed: Sequence[Tensor] = _Replay.apply(turn, *inputs, *parameters)
        return replayed

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
    """What recordings of a function share: a pool for what is made in them, for what goes in and out a buffer each."""

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None
        self.buffers: dict[Hashable, Tensor] = {}
        self.turn: ref[_Turn] | None = None

    def busy(self) -> bool:
        """Whether a replay waits for its way back, in memory that another would overwrite."""
        turn = None if self.turn is None else self.turn()  # None as well where nobody can ask for its gradient
        return turn is not None and not turn.over

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
        self.function, self.found = function, None  # type: Function, Sequence[Tensor] | None
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
                outputs, gradients = self._try()  # which also builds and chooses kernels
            torch.cuda.current_stream().wait_stream(memory.stream)
        else:
            with torch.random.fork_rng([]):
                outputs, gradients = self._try()
        self.outputs, self.given = (
            [memory.room((way, i), x) for i, x in enumerate(outputs)] for way in ("output", "given")
        )
        self.gradients = [None if x is None else memory.room(("gradient", i), x) for i, x in enumerate(gradients)]
        del outputs, gradients
        if inputs[0].is_cuda:
            # Other threads may go on meanwhile: one of them makes batches ready.
            how: dict[str, Any] = {"pool": memory.pool, "stream": memory.stream, "capture_error_mode": "thread_local"}
            self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward_graph, **how):
                self._forward()
            with torch.cuda.graph(self.backward_graph, **how):
                self._backward()

    def _try(self) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
        """Once as it is, to see what comes out of it: outputs and gradients, of which some may be None."""
        outputs = self.function(*self.inputs)
        return [x.detach() for x in outputs], self._grad(outputs, [torch.zeros_like(x) for x in outputs])

    def forward(self) -> None:
        """From `inputs` to `outputs`."""
        if self.forward_graph is None:
            self._forward()
        else:
            self.forward_graph.replay()

    def backward(self) -> None:
        """From `given`, the gradients of `outputs`, to `gradients`."""
        if self.backward_graph is None:
            self._backward()
        else:
            self.backward_graph.replay()

    def _forward(self) -> None:
        with torch.enable_grad():
            self.found = self.function(*self.inputs)
        for own, new in zip(self.outputs, self.found, strict=True):
            own.copy_(new.detach())

    def _backward(self) -> None:
        assert self.found is not None, "there is no way back before the way forward"
        found, self.found = self._grad(self.found, self.given), None
        for own, new in zip(self.gradients, found, strict=True):
            if own is not None and new is not None:
                own.copy_(new)

    def _grad(self, outputs: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor | None]:
        with torch.autocast(outputs[0].device.type, enabled=False):  # which is for the way forward
            return torch.autograd.grad(outputs, self.wanted, given, allow_unused=True)


class _Turn:
    """One replay, forward and back."""

    def __init__(self, recording: _Recording) -> None:
        self.recording, self.over = recording, False


class _Replay(torch.autograd.Function):
    """All that leaves a recording is copied: the next replay overwrites what is its own."""

    @staticmethod
    def forward(ctx: Any, turn: _Turn, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.turn = turn
        ctx.set_materialize_grads(False)
        recording = turn.recording
        for own, given in zip(recording.inputs, tensors, strict=False):
            own.detach().copy_(given)
        recording.forward()
        return tuple(x.clone() for x in recording.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        turn: _Turn = ctx.turn
        assert not turn.over, "a recorded function has one way back: what it kept is overwritten by the next replay"
        recording = turn.recording
        for own, given in zip(recording.given, gradients, strict=True):
            own.zero_() if given is None else own.copy_(given)
        recording.backward()
        turn.over = True
        found = iter(recording.gradients)
        kept = (next(found) if asked else None for asked in recording.asked)
        return None, *(None if x is None else x.clone() for x in kept)


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
