"""Which candidates of a step of beam search close, and which stay open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.search.limits import Limits


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

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        """Among all that open hypotheses `written` `(beams, open, …)`, of `log_prob` `(beams, open)` and of `length`
        `(1,)` tokens, may go on with: `given` `(beams, open, vocabulary)` are the model's log-probabilities, which may
        be written into.

        The likeliest of all are among the likeliest of each hypothesis, and a way on that is forced takes their place.
        """
        token, value = limits.restrict(given, written, length)
        best, found = likeliest(given, 2 * self.width)  # (beams, open, candidates)
        forced, first = (token >= 0)[:, None, None], torch.arange(best.shape[-1], device=best.device) == 0
        best = torch.where(forced, value.unsqueeze(-1).masked_fill(~first, -math.inf), best)
        found = torch.where(forced, token[:, None, None], found)
        total = (log_prob.unsqueeze(-1) + best).flatten(1)
        ranked, place = total.topk(min(2 * self.width, total.shape[1]), dim=1)
        return self._settle(ranked, ranked, place // best.shape[-1], found.flatten(1).gather(1, place))

    def keep(self, stay: Tensor) -> None:
        """Only these beams go on."""

    def _settle(self, rank: Tensor, log_prob: Tensor, parent: Tensor, token: Tensor) -> Choice:
        """Of candidates `(beams, candidates)`, the first by `rank` first, those that close and those that stay open."""
        # Candidates are twice the width: even if half of them close, enough stay open.
        closes = token == self.eos
        closing = log_prob.masked_fill(~closes, -math.inf)[:, : self.width]
        best = rank.masked_fill(closes, -math.inf).topk(min(self.width, rank.shape[1]), dim=1).indices
        log_prob = log_prob.masked_fill(closes, -math.inf)
        return Choice(closing, parent[:, : self.width], *(x.gather(1, best) for x in (log_prob, parent, token)))


def likeliest(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest of the last axis, and where they stand."""
    count = min(count, log_probs.shape[-1])
    if not log_probs.is_cuda:
        best, place = log_probs.topk(count, dim=-1)
        return best, place
    return likeliest_by_parts(log_probs, count)


def likeliest_by_parts(log_probs: Tensor, count: int, size: int = 128) -> tuple[Tensor, Tensor]:
    """Like `likeliest`, in two small steps, which a GPU does sooner than one over the whole: the greatest lie in those
    parts of the axis whose own greatest are the greatest."""
    whole = log_probs.shape[-1] // size * size
    parts = log_probs[..., :whole].unflatten(-1, (-1, size)).amax(-1)  # (…, parts)
    if whole < log_probs.shape[-1]:
        parts = torch.cat((parts, log_probs[..., whole:].amax(-1, keepdim=True)), dim=-1)
    part = parts.topk(min(count, parts.shape[-1]), dim=-1).indices
    place = (part.unsqueeze(-1) * size + torch.arange(size, device=part.device)).flatten(-2)
    beyond = place >= log_probs.shape[-1]
    place = place.masked_fill(beyond, 0)
    values = log_probs.gather(-1, place).masked_fill(beyond, -math.inf)
    best, found = values.topk(count, dim=-1)
    return best, place.gather(-1, found)


class Diverse(Chooser):
    """Diverse beam search (Vijayakumar et al. 2018, algorithm 1) with Hamming diversity.

    The beams of one source stand together and choose one after the other; each ranks a candidate by
    `log p - diversity * n`, `n` being how often the beams before it went on with that token at this step.
    """

    def __init__(self, width: int, eos: int, groups: int, diversity: float) -> None:
        super().__init__(width, eos)
        self.groups, self.diversity = groups, diversity

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        total = log_prob.unsqueeze(-1) + limits.apply(given, written[..., : int(length) + 1])
        total = total.unflatten(0, (-1, self.groups))  # (sources, groups, open, vocabulary)
        taken = torch.zeros_like(total[:, 0, 0])  # (sources, vocabulary)
        chosen = []
        for mine in total.unbind(1):
            choice = self._first(mine - self.diversity * taken.unsqueeze(1), mine)
            taken.scatter_add_(1, choice.token, (choice.log_prob > -math.inf).to(taken.dtype))
            chosen.append((choice.closing, choice.closing_parent, choice.log_prob, choice.parent, choice.token))
        return Choice(*(torch.stack(parts, 1).flatten(0, 1) for parts in zip(*chosen, strict=True)))

    def _first(self, rank: Tensor, total: Tensor) -> Choice:
        """The first by `rank`, with their `log p` from `total`."""
        ranked, place = rank.flatten(1).topk(min(2 * self.width, rank[0].numel()), dim=1)
        log_prob = total.flatten(1).gather(1, place)
        return self._settle(ranked, log_prob, place // rank.shape[-1], place % rank.shape[-1])
