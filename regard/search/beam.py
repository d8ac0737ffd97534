"""Beam search, all sources at once; a source whose search is over leaves the batch.

All bookkeeping is in tensors: open hypotheses `(beams, width)`, and the best closed ones so far beside them. A source
has one beam, or as many as there are groups. Greedy search is a beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn.graphs import Graphs, Recording, copy_into, exclusive
from regard.nn.kernels import usable
from regard.ragged import bucket, round_up
from regard.search.choice import Chooser, Constrained, Diverse
from regard.search.limits import Hypothesis, Limits, length_penalty
from regard.search.stepper import LazyStart, Step, Stepper, started

WINDOW = 32  # slots of the target that a recorded turn has room for at first
WIDEST = 16  # beam that a turn has a kernel for


@dataclass(frozen=True)
class _Board:
    """Open and closed hypotheses of the beams that are still searched. Shapes stay as they are from turn to turn."""

    number: Tensor  # (beams,): which beam this is
    limits: Limits
    length: Tensor  # (1,): tokens of a hypothesis that closes now, its closing mark counted
    token: Tensor  # (beams, open): the last token of each open hypothesis
    written: Tensor  # (beams, open, most + 2): open hypotheses, from bos on
    log_prob: Tensor  # (beams, open)
    over: Tensor  # (beams,): its search is over
    last: Tensor  # (beams, most + 2): the best open one before the turn that ended the search
    last_length: Tensor  # (beams,): tokens of it
    closed: Tensor  # (beams, width, most + 1): closed hypotheses without marks, padded
    closed_length: Tensor  # (beams, width)
    closed_log_prob: Tensor  # (beams, width)
    closed_score: Tensor  # (beams, width): -inf where there is none

    @staticmethod
    def new(limits: Limits, groups: int, open_: int, width: int, most: int) -> _Board:
        """With one hypothesis in each beam, the first of `open_`."""
        beams = torch.arange(len(limits.longest) * groups, device=limits.longest.device)
        limits = limits.keep(beams // groups) if groups > 1 else limits
        over = limits.longest < 0
        written = torch.full((len(beams), open_, most + 2), limits.bos, device=beams.device)
        log_prob, score = (torch.full((len(beams), n), -math.inf, device=beams.device) for n in (open_, width))
        log_prob[:, 0].masked_fill_(~over, 0.0)
        return _Board(
            number=beams, limits=limits, length=beams.new_ones(1), token=written[..., 0].clone(), written=written,
            log_prob=log_prob, over=over, last=written[:, 0].clone(), last_length=torch.zeros_like(beams),
            closed=beams.new_zeros(len(beams), width, most + 1), closed_length=beams.new_zeros(len(beams), width),
            closed_log_prob=score, closed_score=score.clone(),
        )  # fmt: skip

    def keep(self, stay: Tensor) -> _Board:
        """Some of the beams, in this order."""
        rows = {name: x[stay] for name, x in vars(self).items() if isinstance(x, Tensor) and name != "length"}
        return replace(self, limits=self.limits.keep(stay), **rows)

    def idle(self, count: int) -> _Board:
        """All but the first `count` beams are over, and nobody's."""
        beyond = torch.arange(len(self.number), device=self.number.device) >= count
        log_prob = self.log_prob.masked_fill(beyond[:, None], -math.inf)
        return replace(self, number=self.number.masked_fill(beyond, -1), over=self.over | beyond, log_prob=log_prob)

    def rows(self, beams: Tensor) -> Tensor:
        """The rows of the model's state that belong to some beams."""
        return torch.arange(self.log_prob.numel(), device=beams.device).view_as(self.log_prob)[beams].flatten()

    def close(self, log_prob: Tensor, parent: Tensor, penalty: Tensor) -> _Board:
        """With new closed hypotheses (log p at -inf: none) among the best closed so far."""
        score = torch.cat((self.closed_score, log_prob / penalty), dim=1)
        score, best = score.topk(self.closed_score.shape[1], dim=1)
        new = _picked(self.written[..., 1:], parent)
        length = (self.length - 1).expand_as(parent)
        return replace(
            self,
            closed=_picked(torch.cat((self.closed, new), dim=1), best),
            closed_length=torch.cat((self.closed_length, length), dim=1).gather(1, best),
            closed_log_prob=torch.cat((self.closed_log_prob, log_prob), dim=1).gather(1, best),
            closed_score=score,
        )


def _picked(x: Tensor, index: Tensor) -> Tensor:
    """`(beams, some, tokens)` of `(beams, all, tokens)`."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class _Results:
    """What each beam has found, under the limits that were asked for."""

    limits: Limits
    groups: int
    nbest: int
    found: list[list[Hypothesis]]

    def collect(self, board: _Board, beams: Tensor | None = None) -> None:
        """Take in the hypotheses of some beams, or of all, whose search is over."""
        best = (board.closed, board.closed_length, board.closed_log_prob, board.closed_score)
        parts = (board.number, *(x[:, : self.nbest] for x in best))
        here = _arriving(*(parts if beams is None else (x[beams] for x in parts)))()  # at once: each waits for a device
        lost = []
        for i, (number, *closed) in enumerate(zip(*(x.tolist() for x in here), strict=True)):
            if 0 <= number < len(self.found):
                every = zip(*closed, strict=True)
                self.found[number] = [Hypothesis(x[:n], p, score) for x, n, p, score in every if score > -math.inf]
                if not self.found[number]:
                    lost.append(i)
        if lost:
            rows = torch.tensor(lost, device=board.last.device)
            rows = rows if beams is None else beams[rows]
            left = (x[rows].tolist() for x in (board.number, board.last, board.last_length))
            for number, tokens, end in zip(*left, strict=True):
                tokens = self.limits.begin(tokens[1 : end + 1], number // self.groups)
                self.found[number] = [Hypothesis(tokens, -math.inf, -math.inf)]


def beam_search(
    model: Stepper, state: Any, *, limits: Limits, width: int = 5, nbest: int = 1, penalty: str = "none",
    alpha: float = 1.0, exact: bool = False, constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    groups: int = 1, diversity: float = 0.5, counted: int = 0, observe: Callable[[Chooser], Chooser] | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """The `nbest` highest-scoring outputs of each source, best first.

    A beam is done when it has `width` closed hypotheses and no open one scores better than the worst of them now;
    with `exact`, when no open one could ever (its log-probability cannot rise, so it is held against the mildest
    penalty it may still reach). A source for which the limits left no way to close gives its best open hypothesis.

    `constraints` gives phrases for each source that must appear in its output (see `Constrained`). With `groups`, a
    source has so many beams that share `width` and shun each other's tokens (see `Diverse`), each done by itself; with
    `nbest` at or above `groups` the best of each is among the results. `state` is the model's before the first token,
    or a `LazyStart`. So many tokens as are `counted` stand before each output, and count in its length. What `observe`
    makes of what chooses does so in its place (`tree.py`).
    """
    if not len(limits.longest):
        return []
    device = state.device if isinstance(state, LazyStart) else limits.longest.device
    graphs = model.graphs if groups == 1 and not constraints and observe is None else None
    most = int(limits.longest.max())
    limits = limits.to(device) if graphs is None else limits
    chooser = _chooser(limits, width, constraints, groups, diversity)
    chooser = chooser if observe is None else observe(chooser)
    normalised = model.logits is None
    turn = _Turn(model.logits or model.step, chooser, penalty, alpha, exact, most, normalised, counted)
    results = _Results(limits, groups, nbest, [[] for _ in range(len(limits.longest) * groups)])
    if graphs is not None:
        with exclusive(device):
            _replay(graphs, turn, state, results)
        return results.found
    state = started(state)
    board = _Board.new(limits, groups, 1, width // groups, most)
    state = state.select(board.number // groups) if groups > 1 else state
    _search(turn, *turn(board, state), results)  # the first turn has but one open hypothesis
    return [_merge(results.found[i : i + groups], nbest) for i in range(0, len(results.found), groups)]


def _search(turn: _Turn, board: _Board, state: Any, results: _Results) -> None:
    """Turn after turn; a source leaves as soon as its search is over."""
    groups = results.groups
    while True:
        left = (~board.over).view(-1, groups).any(1)  # (sources,)
        if not left.all():
            results.collect(board, (~left).repeat_interleave(groups).nonzero().flatten())
            stay = left.repeat_interleave(groups).nonzero().flatten()
            if not len(stay):
                return
            board, state = board.keep(stay), state.select(board.rows(stay), left.nonzero().flatten())
            turn.chooser.keep(stay)
        board, state = turn(board, state)


Recorded = Recording[tuple[_Board, Any]]  # a turn, which writes what it gives over what it was given


def _replay(graphs: Graphs, turn: _Turn, state: Any, results: _Results) -> None:
    """Like `_search`, with shapes that stay, so that a turn is recorded once and replayed. What is over idles along
    until half is, and beams are brought up to one of few numbers, by some that are over from the start."""

    def recorded(board: _Board, state: Any) -> Recorded:
        return graphs.recording(turn.key, lambda tree: copy_into(tree, turn(*tree)), (board, state))

    size, left, turns, done = bucket(len(results.found)), len(results.found), turn.most + 1, 0
    recording, room = _first_turn(graphs, turn, state, results.limits, size, recorded), WINDOW
    arriving: Callable[[], list[Tensor]] | None = None
    while left and done < turns:  # by then all are as long as can be
        board, state = recording.inputs
        if not room or bucket(left) * 2 <= size:
            left = int((~board.over).sum())
            if not left:
                break
            if bucket(left) * 2 <= size:
                size = bucket(left)
                results.collect(board, (board.over & (board.number >= 0)).nonzero().flatten())
                open_ = (~board.over).nonzero().flatten()
                stay = torch.cat((open_, open_[:1].expand(size - left)))
                board, state = board.keep(stay).idle(left), state.select(board.rows(stay), stay)
            if not room:
                room, state = done, state.fixed(done)
            recording, arriving = recorded(board, state), None
        recording()
        room, done = room - 1, done + 1
        before, arriving = arriving, _arriving(recording.inputs[0].over)
        if before is not None:  # what was over a turn ago: so nothing waits for the device, which is a turn behind
            left = int((~before()[0]).sum())
    results.collect(recording.inputs[0])


def _first_turn(
    graphs: Graphs, turn: _Turn, state: Any, limits: Limits, size: int,
    recorded: Callable[[_Board, Any], Recorded],
) -> Recorded:  # fmt: skip
    """The recording of a turn of `size` beams, set to the first, in which all but one hypothesis of a beam idle; what
    comes before it is recorded too, where it can."""
    count, width, most = len(limits.longest), turn.chooser.width, round_up(turn.most, 32)
    limits = limits.filled(size)

    def begin(state: Any, limits: Limits) -> Recorded:
        rows = torch.arange(size * width, device=graphs.device) // width
        return recorded(_Board.new(limits, 1, width, width, most), state.select(rows).fixed(WINDOW))

    if isinstance(state, LazyStart) and graphs.filled:
        given, start, key = (state.filled(size), limits), state.start, ("begin", most, turn.key)
        return graphs.recording(key, lambda given: begin(start(given[0]), given[1]), given)()
    state, sources = started(state), torch.arange(size, device=graphs.device).clamp(max=count - 1)
    return begin(state if count == size else state.select(sources, sources), limits.to(graphs.device))


def _arriving(*given: Tensor) -> Callable[[], list[Tensor]]:
    """Send tensors on their way from the device, which goes on meanwhile; what is given back waits for them."""
    sent = [x.detach().to("cpu", non_blocking=True, copy=True) for x in given]
    event = torch.cuda.Event() if given[0].is_cuda else None
    if event is not None:
        event.record()

    def wait() -> list[Tensor]:
        if event is not None:
            event.synchronize()
        return sent

    return wait


@dataclass(frozen=True)
class _Turn:
    """One more token for every beam."""

    step: Step
    chooser: Chooser
    penalty: str
    alpha: float
    exact: bool
    most: int
    normalised: bool
    counted: int = 0  # tokens before those that are written that count in the length

    @property
    def key(self) -> Hashable:
        """Identifies it among the turns of a model."""
        names = (self.penalty, self.alpha, self.exact and self.most, self.normalised, self.counted)
        return (self.chooser.width, self.chooser.eos, *names)

    def __call__(self, board: _Board, state: Any) -> tuple[_Board, Any]:
        given, state = self.step(board.token.flatten(), state)
        given = given.unflatten(0, board.log_prob.shape)  # (beams, open, vocabulary)
        if self._has_kernel(board, given):
            from regard.search import triton_beam

            mildest = float(self._divisor(torch.tensor([self.most + 1.0]))) if self.exact else None
            rows = triton_beam.turn(given, board, self.penalty, self.alpha, mildest)
            board.length.add_(1)
        else:
            board, rows = self._choose(board, given if self.normalised else given.log_softmax(-1, torch.float32))
        if board.log_prob.shape[1] > 1:  # greedy rows never change places
            state = state.select(rows)
        return board, state

    def _has_kernel(self, board: _Board, given: Tensor) -> bool:
        """Whether `triton_beam.turn` does what `_choose` does, which says what that is."""
        return (
            type(self.chooser) is Chooser
            and board.log_prob.shape[1] == self.chooser.width <= WIDEST
            and not board.limits.no_repeat
            and not self.counted
            and given.shape[-1] > 1
            and usable(given)
        )

    def _choose(self, board: _Board, given: Tensor) -> tuple[_Board, Tensor]:
        """The board after this turn, and the row of the state that each open hypothesis goes on from."""
        choice = self.chooser.choose(given, board.log_prob, board.written, board.limits, board.length - 1)
        length = board.length.to(given.dtype)
        board = board.close(choice.closing, choice.closing_parent, self._divisor(length))

        # The best open one, before candidates that cannot be take its place.
        before = torch.where(board.over[:, None], board.last, board.written[:, 0])
        before_length = torch.where(board.over, board.last_length, board.length - 1)
        mildest = self._divisor(torch.full_like(length, self.most + 1) if self.exact else length)
        hope = choice.log_prob
        if choice.ready is not None and not self.exact:
            # Once enough have closed, one that may not close yet does not count: its score lacks what it has to write.
            hope = hope.masked_fill((board.closed_score[:, -1:] > -math.inf) & ~choice.ready, -math.inf)
        over = hope.amax(1) / mildest <= board.closed_score[:, -1]
        over = board.over | over | (board.limits.longest < board.length)
        written = _picked(board.written, choice.parent)
        written.index_copy_(2, board.length, choice.token.unsqueeze(-1))
        rows = choice.parent + torch.arange(len(written), device=written.device)[:, None] * board.written.shape[1]
        log_prob = choice.log_prob.masked_fill(over[:, None], -math.inf)  # nothing more closes in what is over
        board = replace(
            board, length=board.length + 1, token=choice.token, written=written, log_prob=log_prob, over=over,
            last=before, last_length=before_length,
        )  # fmt: skip
        return board, rows.flatten()

    def _divisor(self, length: Tensor) -> Tensor:
        return length_penalty(self.penalty, self.alpha, length + self.counted)


def _chooser(
    limits: Limits, width: int, constraints: Sequence[Sequence[Sequence[int]]] | None, groups: int, diversity: float
) -> Chooser:
    if width % groups:
        raise ConfigError(f"beam ({width}) is not divisible by groups ({groups}); try {-(-width // groups) * groups}")
    if constraints is not None and any(phrase for phrases in constraints for phrase in phrases):
        if groups > 1:
            raise ConfigError(f"constraints cannot be combined with groups ({groups}); set groups to 1")
        return Constrained(width, limits, constraints)
    return Diverse(width // groups, limits.eos, groups, diversity) if groups > 1 else Chooser(width, limits.eos)


def _merge(groups: list[list[Hypothesis]], nbest: int) -> list[Hypothesis]:
    """The `nbest` of all groups, each output once; with room for all, the best of each group goes before the others."""
    if len(groups) == 1:
        return groups[0]
    ranked = sorted((h for group in groups for h in group), key=lambda h: -h.score)
    if nbest >= len(groups):
        firsts = [group[0] for group in groups]
        ranked.sort(key=lambda h: h not in firsts)
    found = {tuple(h.tokens): h for h in reversed(ranked) if h.score > -math.inf} or {(): ranked[0]}
    return sorted(list(found.values())[::-1][:nbest], key=lambda h: -h.score)
