"""Which candidates of a step of beam search close, and which stay open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """What a step of a beam chose. `log p` at -inf: there is none."""

    closing: Tensor  # (beams, width): log p of hypotheses that close
    closing_parent: Tensor  # (beams, width): which open hypothesis each of them was
    log_prob: Tensor  # (beams, width): of those that stay open
    parent: Tensor  # (beams, width)
    token: Tensor  # (beams, width)
    ready: Tensor | None = None  # (beams, width): which of the open ones have all they need to close; None: all


class Chooser:
    """The `width` likeliest stay open: plain beam search. Other ways to give out the slots of a beam build on it."""

    def __init__(self, width: int, eos: int) -> None:
        self.width, self.eos = width, eos

    def restrict(self, log_probs: Tensor, given: Tensor, length: int) -> Tensor:
        """Log-probabilities as the limits left them, out of those `given` by the model, for the token after `length`
        tokens, with what may not come at -inf."""
        return log_probs

    def choose(self, total: Tensor) -> Choice:
        """Among candidates `(beams, open, vocabulary)` by their `log p`."""
        return self._first(total, total)

    def keep(self, stay: Tensor) -> None:
        """Only these beams go on."""

    def _first(self, rank: Tensor, total: Tensor) -> Choice:
        """The first by `rank`, with their `log p` from `total`."""
        # Twice the width: even if half of them close, enough stay open.
        ranked, place = rank.flatten(1).topk(min(2 * self.width, rank[0].numel()), dim=1)
        parent, token = place // rank.shape[-1], place % rank.shape[-1]
        log_prob, closes = total.flatten(1).gather(1, place), token == self.eos
        closing = log_prob.masked_fill(~closes, -math.inf)[:, : self.width]
        best = ranked.masked_fill(closes, -math.inf).topk(min(self.width, place.shape[1]), dim=1).indices
        log_prob = log_prob.masked_fill(closes, -math.inf)
        return Choice(closing, parent[:, : self.width], *(x.gather(1, best) for x in (log_prob, parent, token)))


class Diverse(Chooser):
    """Diverse beam search (Vijayakumar et al. 2018, algorithm 1) with Hamming diversity.

    The beams of one source stand together and choose one after the other; each ranks a candidate by
    `log p - diversity * n`, `n` being how often the beams before it went on with that token at this step.
    """

    def __init__(self, width: int, eos: int, groups: int, diversity: float) -> None:
        super().__init__(width, eos)
        self.groups, self.diversity = groups, diversity

    def choose(self, total: Tensor) -> Choice:
        total = total.unflatten(0, (-1, self.groups))  # (sources, groups, open, vocabulary)
        taken = torch.zeros_like(total[:, 0, 0])  # (sources, vocabulary)
        chosen = []
        for mine in total.unbind(1):
            choice = self._first(mine - self.diversity * taken.unsqueeze(1), mine)
            taken.scatter_add_(1, choice.token, (choice.log_prob > -math.inf).to(taken.dtype))
            chosen.append((choice.closing, choice.closing_parent, choice.log_prob, choice.parent, choice.token))
        return Choice(*(torch.stack(parts, 1).flatten(0, 1) for parts in zip(*chosen, strict=True)))
