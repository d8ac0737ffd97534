"""Hard attention: to look at one place. Training draws the place, and learns where to look by score functions.

Xu et al. 2015, 4.1: `s_t ~ α_t`, `c_t = h_{s_t}`. What is drawn has no gradient, so that of the expected `log p(y)` is
estimated by `(log p(y given s) - b) ∇ log α_s`, with a baseline `b`; `objectives.py` does that with what is found here.
In use the likeliest place is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.nn.attention import Attention
from regard.ragged import Ragged


@dataclass
class Choices:
    """The places that were drawn while `choices` was on: `log α_s` and the entropy of `α`, summed over heads."""

    soft: Tensor  # (rows,): True where a sentence attends softly
    log_probs: list[Tensor] = field(default_factory=list)  # each (rows, some steps)
    entropies: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def record(self, rows: Tensor, log_prob: Tensor, entropy: Tensor) -> None:
        """What comes later for a row is further along its target."""
        self.rows.append(rows)
        self.log_probs.append(log_prob)
        self.entropies.append(entropy)

    def laid_out(self, like: Ragged) -> tuple[Tensor, Tensor]:
        """`log α_s` and entropies of every step, `(total,)`, in the order of the targets `like`."""
        return self._lay_out(self.log_probs, like), self._lay_out(self.entropies, like)

    def _lay_out(self, found: list[Tensor], like: Ragged) -> Tensor:
        padded = found[0].new_zeros(len(like), like.longest)
        step = 0
        for rows, part in zip(self.rows, found, strict=True):
            steps = torch.arange(step, step + part.shape[1], device=rows.device)
            padded = padded.index_put((rows[:, None], steps), part)
            step += part.shape[1]
        return like.unpadded(padded).values


_choices: ContextVar[Choices | None] = ContextVar("choices", default=None)


@contextmanager
def choices(rows: int, soft: float, device: torch.device) -> Iterator[Choices]:
    """Inside this, hard attention that is in training leaves what it drew; a share of rows attends softly instead."""
    made = Choices(torch.rand(rows, device=device) < soft)
    token = _choices.set(made)
    try:
        yield made
    finally:
        _choices.reset(token)


class HardAttention(Attention):
    """All of the weight on one place."""

    draws = True

    def choose(self, weights: Tensor, rows: Tensor) -> Tensor:
        somewhere = weights.sum(-1, keepdim=True) > 0  # a query that may look nowhere looks nowhere
        if not self.training:
            one = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), 1.0)
            return one * somewhere
        odds = torch.where(somewhere, weights.detach(), 1.0).flatten(0, -2)
        place = torch.multinomial(odds, 1).view(*weights.shape[:-1], 1)
        one = torch.zeros_like(weights).scatter(-1, place, 1.0) * somewhere
        made = _choices.get()
        if made is None:
            return one
        tiny = torch.finfo(weights.dtype).tiny
        logs = weights.clamp(min=tiny).log()
        soft = made.soft[rows][:, None, None, None]
        made.record(
            rows,
            (logs.gather(-1, place) * (somewhere & ~soft)).squeeze(-1).sum(1),
            -(weights * logs).sum(-1).sum(1),
        )
        return torch.where(soft, weights, one)
