"""Beam search over a step function, all sources at once; a source whose search is over leaves the batch.

All bookkeeping is in tensors: open hypotheses `(beams, width)`, and the best closed ones so far beside them. A source
has one beam, or as many as there are groups. Greedy search is a beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.search.choice import Choice, Chooser, Diverse
from regard.search.constraints import Constrained
from regard.search.limits import Hypothesis, Limits, Step, length_penalty
from regard.search.replay import few, recorded, records, upward

WINDOW = 32  # slots of the target that a recorded turn has room for, and by which it grows
LOOK = 4  # turns between looks at what is over, where a look waits for the device


@dataclass(frozen=True)
class _Board:
    """Open and closed hypotheses of the beams that are still searched. Shapes stay as they are from turn to turn."""

    number: Tensor  # (beams,): which beam this is
    limits: Limits
    length: Tensor  # (1,): tokens of a hypothesis that closes now, its closing mark counted
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
    def new(limits: Limits, groups: int, width: int, most: int) -> _Board:
        device = limits.longest.device
        beams = torch.arange(len(limits.longest) * groups, device=device)
        count = len(beams)
        written = torch.full((count, 1, most + 2), limits.bos, device=device)
        nothing = torch.full((count, width), -math.inf, device=device)
        return _Board(
            number=beams,
            limits=limits.keep(beams // groups),
            length=torch.ones(1, dtype=torch.long, device=device),
            written=written,
            log_prob=torch.zeros(count, 1, device=device),
            over=torch.zeros(count, dtype=torch.bool, device=device),
            last=written[:, 0],
            last_length=torch.zeros_like(beams),
            closed=written.new_zeros(count, width, most + 1),
            closed_length=written.new_zeros(count, width),
            closed_log_prob=nothing,
            closed_score=nothing.clone(),
        )

    def keep(self, stay: Tensor) -> _Board:
        rows = {name: x[stay] for name, x in vars(self).items() if isinstance(x, Tensor) and name != "length"}
        return replace(self, limits=self.limits.keep(stay), **rows)

    def idle(self, count: int) -> _Board:
        """All but the first `count` beams are over, and nobody's."""
        beyond = torch.arange(len(self.number), device=self.number.device) >= count
        log_prob = self.log_prob.masked_fill(beyond[:, None], -math.inf)
        return replace(self, number=self.number.masked_fill(beyond, -1), over=self.over | beyond, log_prob=log_prob)

    def close(self, log_prob: Tensor, parent: Tensor, penalty: Tensor) -> _Board:
        """With new closed hypotheses (log p at -inf: none) among the best closed so far."""
        score = torch.cat((self.closed_score, log_prob / penalty), dim=1)
        score, best = score.topk(self.closed_score.shape[1], dim=1)
        new = self.written[..., 1:].gather(1, parent.unsqueeze(-1).expand(-1, -1, self.closed.shape[-1]))
        length = (self.length - 1).expand_as(parent)
        return replace(
            self,
            closed=torch.cat((self.closed, new), dim=1).gather(1, best.unsqueeze(-1).expand(-1, -1, new.shape[-1])),
            closed_length=torch.cat((self.closed_length, length), dim=1).gather(1, best),
            closed_log_prob=torch.cat((self.closed_log_prob, log_prob), dim=1).gather(1, best),
            closed_score=score,
        )


def beam_search(
    step: Step,
    state: Any,
    *,
    limits: Limits,
    width: int = 5,
    nbest: int = 1,
    penalty: str = "none",
    alpha: float = 1.0,
    exact: bool = False,
    constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    groups: int = 1,
    diversity: float = 0.5,
) -> list[list[Hypothesis]]:
    """The `nbest` highest-scoring outputs of each source, best first.

    A beam is done when it has `width` closed hypotheses and no open one scores better than the worst of them now;
    with `exact`, when no open one could ever (its log-probability cannot rise, so it is held against the mildest
    penalty it may still reach). A source with nothing closed, because the limits left no way on, gives its best open
    hypothesis.

    `constraints` gives phrases for each source that must appear in its output (see `Constrained`). With `groups`, a
    source has so many beams that share `width` and shun each other's tokens (see `Diverse`), each done by itself; with
    `nbest` at or above `groups` the best of each is among the results.
    """
    if not len(limits.longest):
        return []
    chooser = _chooser(limits, width, constraints, groups, diversity)
    most = int(limits.longest.max())
    model = getattr(step, "__self__", None)
    fixed = type(chooser) is Chooser and isinstance(model, nn.Module) and records(limits.longest.device)
    turn = _Turn(step, chooser, penalty, alpha, exact, most)
    board = _Board.new(limits, groups, width // groups, upward(most + LOOK, 32) if fixed else most)
    state = state.select(board.number // groups) if groups > 1 else state
    results: list[list[Hypothesis]] = [[] for _ in board.number]
    board, state = turn(board, state)  # the first has but one open hypothesis
    if isinstance(model, nn.Module) and fixed:
        _replay(model, turn, board, state, results, limits, nbest)
    else:
        _search(turn, board, state, results, limits, nbest)
    return [_merge(results[i : i + groups], nbest) for i in range(0, len(results), groups)]


def _search(
    turn: _Turn, board: _Board, state: Any, results: list[list[Hypothesis]], limits: Limits, nbest: int
) -> None:
    """Turn after turn; a source leaves as soon as its search is over."""
    groups = len(results) // len(limits.longest)
    while True:
        left = (~board.over).view(-1, groups).any(1)  # (sources,)
        if not left.all():
            _collect(board, (~left).repeat_interleave(groups).nonzero().flatten(), results, limits, nbest)
            stay = left.repeat_interleave(groups).nonzero().flatten()
            if not len(stay):
                return
            board, state = board.keep(stay), state.select(_rows(board, stay), left.nonzero().flatten())
            turn.chooser.keep(stay)
        board, state = turn(board, state)


def _replay(
    model: nn.Module, turn: _Turn, board: _Board, state: Any, results: list[list[Hypothesis]], limits: Limits,
    nbest: int,
) -> None:  # fmt: skip
    """The same with shapes that stay: a turn is recorded once and replayed. What is over idles along until half is, and
    beams are brought up to one of few numbers, by some that are over from the start."""
    room = WINDOW - 1
    state = state.fixed(room)
    left = len(board.number)
    while left:
        size = few(left)
        if size != len(board.number):
            _collect(board, (board.over & (board.number >= 0)).nonzero().flatten(), results, limits, nbest)
            open_ = (~board.over).nonzero().flatten()
            stay = torch.cat((open_, open_[:1].expand(size - left)))
            board, state = board.keep(stay).idle(left), state.select(_rows(board, stay), stay)
        recording = recorded(model, turn.key, lambda tree: turn(*tree), (board, state))
        while room and left and few(left) * 2 > size:
            for _ in range(min(room, LOOK)):
                board, state = recording()
            room -= min(room, LOOK)
            left = int((~board.over).sum())  # waits for the device, so not at every turn
        if not room:
            room, state = WINDOW, state.fixed(WINDOW)
    _collect(board, (board.number >= 0).nonzero().flatten(), results, limits, nbest)


def _rows(board: _Board, beams: Tensor) -> Tensor:
    """The rows of the state that belong to some beams."""
    return torch.arange(board.log_prob.numel(), device=beams.device).view_as(board.log_prob)[beams].flatten()


@dataclass(frozen=True)
class _Turn:
    """One more token for every beam."""

    step: Step
    chooser: Chooser
    penalty: str
    alpha: float
    exact: bool
    most: int

    @property
    def key(self) -> Hashable:
        """What tells it from other turns of the same model."""
        return (self.chooser.width, self.chooser.eos, self.penalty, self.alpha, self.exact and self.most)

    def __call__(self, board: _Board, state: Any) -> tuple[_Board, Any]:
        last = board.written.index_select(2, board.length - 1).flatten()
        given, state = self.step(last, state)
        given = given.unflatten(0, board.log_prob.shape)  # (beams, open, vocabulary)
        choice = self.chooser.choose(given, board.log_prob, board.written, board.limits, board.length - 1)
        length = board.length.to(given.dtype)
        board = board.close(choice.closing, choice.closing_parent, length_penalty(self.penalty, self.alpha, length))

        # The best open one, before candidates that cannot be take its place.
        before = torch.where(board.over[:, None], board.last, board.written[:, 0])
        before_length = torch.where(board.over, board.last_length, board.length - 1)
        mildest = torch.full_like(length, self.most + 1) if self.exact else length
        mildest = length_penalty(self.penalty, self.alpha, mildest)
        over = _hope(board, choice, self.exact) / mildest <= board.closed_score[:, -1]
        over = board.over | over | (board.limits.longest < board.length)
        written = board.written.gather(1, choice.parent.unsqueeze(-1).expand(-1, -1, board.written.shape[-1]))
        written.index_copy_(2, board.length, choice.token.unsqueeze(-1))
        rows = choice.parent + torch.arange(len(written), device=written.device)[:, None] * board.written.shape[1]
        if rows.shape[1] > 1:  # greedy rows never change places
            state = state.select(rows.flatten())
        board = replace(
            board,
            length=board.length + 1,
            written=written,
            log_prob=choice.log_prob.masked_fill(over[:, None], -math.inf),  # nothing more closes in what is over
            over=over,
            last=before,
            last_length=before_length,
        )
        return board, state


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


def _hope(board: _Board, choice: Choice, exact: bool) -> Tensor:
    """`log p` of the best that stays open, `(beams,)`. Once enough have closed, one that may not close yet counts only
    in an exact search: what it still has to write is not in its score."""
    hope = choice.log_prob
    if choice.ready is not None and not exact:
        enough = board.closed_score[:, -1:] > -math.inf
        hope = hope.masked_fill(enough & ~choice.ready, -math.inf)
    return hope.amax(1)


def _collect(board: _Board, beams: Tensor, results: list[list[Hypothesis]], limits: Limits, nbest: int) -> None:
    """Hand in the hypotheses of beams whose search is over."""
    groups = len(results) // len(limits.longest)
    best = (board.closed, board.closed_length, board.closed_log_prob, board.closed_score)
    closed = zip(*(x[beams, :nbest].tolist() for x in best), strict=True)  # all at once: each copy waits for the device
    numbers, last, lengths = (x[beams].tolist() for x in (board.number, board.last, board.last_length))
    for number, tokens, end, hypotheses in zip(numbers, last, lengths, closed, strict=True):
        results[number] = [
            Hypothesis(written[:length], log_prob, score)
            for written, length, log_prob, score in zip(*hypotheses, strict=True)
            if score > -math.inf
        ] or [Hypothesis(limits.begin(tokens[1 : end + 1], number // groups), -math.inf, -math.inf)]


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
