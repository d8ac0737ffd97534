"""Beam search over a step function, all sources at once; a source whose search is over leaves the batch.

All bookkeeping is in tensors: open hypotheses `(sources, width)`, and the best closed ones so far beside them.
Greedy search is a beam of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.search.limits import Hypothesis, Limits, Step, length_penalty


@dataclass
class _Board:
    """Open and closed hypotheses of the sources that are still searched."""

    number: Tensor  # (sources,): which source this is
    longest: Tensor  # (sources,)
    written: Tensor  # (sources, width, length + 1): open hypotheses, from bos on
    log_prob: Tensor  # (sources, width)
    closed: Tensor  # (sources, width, most + 1): closed hypotheses without marks, padded
    closed_length: Tensor  # (sources, width)
    closed_log_prob: Tensor  # (sources, width)
    closed_score: Tensor  # (sources, width): -inf where there is none

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
) -> list[list[Hypothesis]]:
    """The `nbest` highest-scoring outputs of each source, best first.

    A source is done when it has `width` closed hypotheses and no open one scores better than the worst of them now;
    with `exact`, when no open one could ever (its log-probability cannot rise, so it is held against the mildest
    penalty it may still reach). A source with nothing closed, because the limits left no way on, gives its best open
    hypothesis.
    """
    sources, device = len(limits.longest), limits.longest.device
    most = int(limits.longest.max()) if sources else 0
    board = _Board(
        number=torch.arange(sources, device=device),
        longest=limits.longest,
        written=torch.full((sources, 1, 1), limits.bos, device=device),
        log_prob=torch.zeros(sources, 1, device=device),
        closed=torch.zeros(sources, width, most + 1, dtype=torch.long, device=device),
        closed_length=torch.zeros(sources, width, dtype=torch.long, device=device),
        closed_log_prob=torch.full((sources, width), -math.inf, device=device),
        closed_score=torch.full((sources, width), -math.inf, device=device),
    )
    results: list[list[Hypothesis]] = [[] for _ in range(sources)]
    for length in range(1, most + 2):  # tokens of a hypothesis that closes now, its closing mark counted
        if not len(board.number):
            break
        log_probs, state = step(board.written[:, :, -1].flatten(), state)
        log_probs = log_probs.unflatten(0, board.log_prob.shape)  # (sources, open, vocabulary)
        log_probs = limits.apply(log_probs, board.written, board.longest)
        total = (board.log_prob.unsqueeze(-1) + log_probs).flatten(1)
        # Twice the width: even if half of them close, enough stay open.
        log_prob, place = total.topk(min(2 * width, total.shape[1]), dim=1)
        parent, token = place // log_probs.shape[-1], place % log_probs.shape[-1]
        closes = token == limits.eos
        _close(board, log_prob.masked_fill(~closes, -math.inf)[:, :width], parent[:, :width],
               length_penalty(penalty, alpha, length))  # fmt: skip

        open_before = board.written[:, 0, 1:]  # the best open one, before candidates that cannot be take its place
        board.log_prob, best = log_prob.masked_fill(closes, -math.inf).topk(min(width, place.shape[1]), dim=1)
        parent, token = parent.gather(1, best), token.gather(1, best)
        rows = (parent + torch.arange(len(parent), device=device)[:, None] * board.written.shape[1]).flatten()
        history = board.written.gather(1, parent.unsqueeze(-1).expand(-1, -1, board.written.shape[-1]))
        board.written = torch.cat((history, token.unsqueeze(-1)), dim=-1)

        mildest = length_penalty(penalty, alpha, most + 1 if exact else length)
        hope = board.log_prob[:, 0] / mildest
        done = (hope <= board.closed_score[:, -1]) | (board.longest < length)
        if done.any():
            stay = (~done).nonzero().flatten()
            _collect(board, open_before, done.nonzero().flatten().tolist(), results, nbest)
            rows = rows.view(len(done), -1)[stay].flatten()
            board.keep(stay)
            state = state.select(rows, stay)
        elif width > 1:  # greedy rows never change places
            state = state.select(rows)
    return results


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


def _collect(board: _Board, open_before: Tensor, rows: list[int], results: list[list[Hypothesis]], nbest: int) -> None:
    """Hand in the hypotheses of sources whose search is over."""
    numbers = board.number.tolist()
    for row in rows:
        scores = board.closed_score[row].tolist()
        lengths, log_probs = board.closed_length[row].tolist(), board.closed_log_prob[row].tolist()
        hypotheses = [
            Hypothesis(board.closed[row, i, : lengths[i]].tolist(), log_probs[i], scores[i])
            for i in range(min(nbest, len(scores)))
            if scores[i] > -math.inf
        ]
        if not hypotheses:
            hypotheses = [Hypothesis(open_before[row].tolist(), -math.inf, -math.inf)]
        results[numbers[row]] = hypotheses
