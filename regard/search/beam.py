"""Beam search over a step function, all sources at once; a source whose search is over leaves the batch.

All bookkeeping is in tensors: open hypotheses `(beams, width)`, and the best closed ones so far beside them. A source
has one beam, or as many as there are groups. Greedy search is a beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.search.choice import Choice, Chooser, Diverse
from regard.search.constraints import Constrained
from regard.search.limits import Hypothesis, Limits, Step, length_penalty


@dataclass
class _Board:
    """Open and closed hypotheses of the beams that are still searched."""

    number: Tensor  # (beams,): which beam this is
    written: Tensor  # (beams, width, length + 1): open hypotheses, from bos on
    log_prob: Tensor  # (beams, width)
    over: Tensor  # (beams,): waits for other beams of its source
    closed: Tensor  # (beams, width, most + 1): closed hypotheses without marks, padded
    closed_length: Tensor  # (beams, width)
    closed_log_prob: Tensor  # (beams, width)
    closed_score: Tensor  # (beams, width): -inf where there is none

    def keep(self, stay: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[stay])


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
    sources, device = len(limits.longest), limits.longest.device
    chooser = _chooser(limits, width, constraints, groups, diversity)
    width //= groups
    most = int(limits.longest.max()) if sources else 0
    beams = sources * groups
    board = _Board(
        number=torch.arange(beams, device=device),
        written=torch.full((beams, 1, 1), limits.bos, device=device),
        log_prob=torch.zeros(beams, 1, device=device),
        over=torch.zeros(beams, dtype=torch.bool, device=device),
        closed=torch.zeros(beams, width, most + 1, dtype=torch.long, device=device),
        closed_length=torch.zeros(beams, width, dtype=torch.long, device=device),
        closed_log_prob=torch.full((beams, width), -math.inf, device=device),
        closed_score=torch.full((beams, width), -math.inf, device=device),
    )
    if groups > 1:
        state = state.select(board.number // groups)
    results: list[list[Hypothesis]] = [[] for _ in range(beams)]
    for length in range(1, most + 2):  # tokens of a hypothesis that closes now, its closing mark counted
        if not len(board.number):
            break
        source = board.number // groups
        given, state = step(board.written[:, :, -1].flatten(), state)
        given = given.unflatten(0, board.log_prob.shape)  # (beams, open, vocabulary)
        log_probs = chooser.restrict(limits.apply(given, board.written, source), given, length - 1)
        choice = chooser.choose(board.log_prob.unsqueeze(-1) + log_probs)
        _close(board, choice.closing, choice.closing_parent, length_penalty(penalty, alpha, length))

        open_before = board.written[:, 0, 1:]  # the best open one, before candidates that cannot be take its place
        rows = (choice.parent + torch.arange(len(source), device=device)[:, None] * board.written.shape[1]).flatten()
        history = board.written.gather(1, choice.parent.unsqueeze(-1).expand(-1, -1, board.written.shape[-1]))
        board.written = torch.cat((history, choice.token.unsqueeze(-1)), dim=-1)
        board.log_prob = choice.log_prob

        mildest = length_penalty(penalty, alpha, most + 1 if exact else length)
        over = (_hope(board, choice, exact) / mildest <= board.closed_score[:, -1]) | (limits.longest[source] < length)
        ends = over & ~board.over
        if ends.any():
            _collect(board, open_before, ends.nonzero().flatten(), results, limits, nbest)
            board.over = over
            board.log_prob = board.log_prob.masked_fill(over.unsqueeze(-1), -math.inf)  # so that nothing more closes
            stays = (~over).view(-1, groups).any(1)  # (sources,)
            if groups == 1 or not stays.all():
                stay = stays.repeat_interleave(groups).nonzero().flatten()
                board.keep(stay)
                chooser.keep(stay)
                state = state.select(rows.view(len(over), -1)[stay].flatten(), stays.nonzero().flatten())
                continue
        if width > 1:  # greedy rows never change places
            state = state.select(rows)
    return [_merge(results[i : i + groups], nbest) for i in range(0, beams, groups)]


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
    """`log p` of the best open hypothesis, `(beams,)`. Once enough have closed, one that may not close yet counts only
    in an exact search: what it still has to write is not in its score."""
    hope = board.log_prob
    if choice.ready is not None and not exact:
        enough = board.closed_score[:, -1:] > -math.inf
        hope = hope.masked_fill(enough & ~choice.ready, -math.inf)
    return hope.amax(1)


def _close(board: _Board, log_prob: Tensor, parent: Tensor, penalty: float) -> None:
    """Put new closed hypotheses (log p at -inf: none) among the best closed so far."""
    length = board.written.shape[-1] - 1
    new = board.closed.new_zeros(*log_prob.shape, board.closed.shape[-1])
    index = parent.unsqueeze(-1).expand(-1, -1, length)
    new[..., :length] = board.written[..., 1:].gather(1, index)
    score, best = torch.cat((board.closed_score, log_prob / penalty), dim=1).topk(board.closed_score.shape[1], dim=1)
    board.closed_score = score
    board.closed_log_prob = torch.cat((board.closed_log_prob, log_prob), dim=1).gather(1, best)
    board.closed_length = torch.cat((board.closed_length, torch.full_like(parent, length)), dim=1).gather(1, best)
    both = torch.cat((board.closed, new), dim=1)
    board.closed = both.gather(1, best.unsqueeze(-1).expand(-1, -1, both.shape[-1]))


def _collect(
    board: _Board, open_before: Tensor, rows: Tensor, results: list[list[Hypothesis]], limits: Limits, nbest: int
) -> None:
    """Hand in the hypotheses of beams whose search is over."""
    groups = len(results) // len(limits.longest)
    best = (board.closed, board.closed_length, board.closed_log_prob, board.closed_score)
    closed = zip(*(x[rows, :nbest].tolist() for x in best), strict=True)  # all at once: each copy waits for the device
    numbers, last = board.number[rows].tolist(), open_before[rows].tolist()
    for number, tokens, hypotheses in zip(numbers, last, closed, strict=True):
        results[number] = [
            Hypothesis(written[:length], log_prob, score)
            for written, length, log_prob, score in zip(*hypotheses, strict=True)
            if score > -math.inf
        ] or [Hypothesis(limits.begin(tokens, number // groups), -math.inf, -math.inf)]


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
