"""Hard attention: to look at one place. Training draws the place, and learns where to look by score functions.

Xu et al. 2015, 4.1: `s_t ~ α_t`, `c_t = h_{s_t}`. What is drawn has no gradient, so that of the expected `log p(y)` is
estimated by `(log p(y given s) - b) ∇ log α_s`, with a baseline `b`; `objectives.py` does that with what is found here.
In use the likeliest place is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.nn.attention import Attention
from regard.ragged import Ragged


@dataclass
class Choices:
    """The places that were drawn inside `choices`: `log α_s` and the entropy of `α`, summed over heads."""

    soft: Tensor  # (rows,): True where a sentence attends softly
    drawn: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # rows, `log α_s`, entropies (rows, steps)

    def laid_out(self, like: Ragged) -> tuple[Tensor, Tensor]:
        """`log α_s` and entropies of every step, `(total,)`, in the order of the targets `like`."""
        log_probs, entropies = (self.drawn[0][1].new_zeros(len(like), like.longest) for _ in range(2))
        step = 0
        for rows, log_prob, entropy in self.drawn:
            place = (rows[:, None], torch.arange(step, step + log_prob.shape[1], device=rows.device))
            log_probs, entropies = log_probs.index_put(place, log_prob), entropies.index_put(place, entropy)
            step += log_prob.shape[1]
        return like.unpadded(log_probs).values, like.unpadded(entropies).values


@contextmanager
def choices(model: nn.Module, rows: int, soft: float, device: torch.device) -> Iterator[Choices]:
    """Inside this, hard attention that trains leaves what it drew; a share of rows attends softly instead."""
    made = Choices(torch.rand(rows, device=device) < soft)
    hard = [module for module in model.modules() if isinstance(module, HardAttention)]
    for module in hard:
        module.choices = made
    try:
        yield made
    finally:
        for module in hard:
            module.choices = None


class HardAttention(Attention):
    """All of the weight on one place."""

    draws = True
    choices: Choices | None = None  # where to leave what is drawn

    def choose(self, weights: Tensor, rows: Tensor) -> Tensor:
        somewhere = weights.sum(-1, keepdim=True) > 0  # a query that may look nowhere looks nowhere
        if self.training:
            odds = torch.where(somewhere, weights.detach(), 1.0).flatten(0, -2)
            place = torch.multinomial(odds, 1).view(*weights.shape[:-1], 1)
        else:
            place = weights.argmax(-1, keepdim=True)
        one = torch.zeros_like(weights).scatter(-1, place, 1.0) * somewhere
        if not self.training or self.choices is None:
            return one
        logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        soft = self.choices.soft[rows][:, None, None, None]
        log_prob = (logs.gather(-1, place) * (somewhere & ~soft)).squeeze(-1).sum(1)
        self.choices.drawn.append((rows, log_prob, -(weights * logs).sum(-1).sum(1)))
        return torch.where(soft, weights, one)
