"""What every search shares: the step it drives, the limits it keeps, what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Token ids and a state to log-probabilities of the next token, (rows, vocabulary), and the state after. The state is
# opaque but for `select(rows, sources)`.
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without marks, `log p` (of the end too), and the score it was ranked by."""

    tokens: list[int]
    log_prob: float
    score: float


@dataclass(frozen=True)
class Limits:
    """The rules of a search. `longest` gives the most tokens for each source, the closing mark not counted."""

    longest: Tensor  # (sources,)
    bos: int
    eos: int
    forbidden: tuple[int, ...] = ()
    shortest: int = 0
    no_repeat: int = 0

    def apply(self, log_probs: Tensor, written: Tensor, longest: Tensor) -> Tensor:
        """`(sources, width, vocabulary)` with what may not come next at -inf; `written` starts with `bos`.

        A source that has reached its `longest` may only close.
        """
        length = written.shape[-1] - 1
        log_probs = log_probs.clone()
        if self.forbidden:
            log_probs[..., list(self.forbidden)] = -math.inf
        if self.no_repeat and length >= self.no_repeat:
            self._ban_repeats(log_probs, written[..., 1:])
        if length < self.shortest:
            log_probs[..., self.eos] = -math.inf
        full = longest <= length  # (sources,)
        closing = log_probs[..., self.eos].clone()
        log_probs.masked_fill_(full[:, None, None], -math.inf)
        log_probs[..., self.eos] = closing
        return log_probs

    def _ban_repeats(self, log_probs: Tensor, written: Tensor) -> None:
        grams = written.unfold(-1, self.no_repeat, 1)  # (sources, width, places, size)
        tail = written[..., written.shape[-1] - self.no_repeat + 1 :].unsqueeze(-2)
        seen = (grams[..., :-1] == tail).all(-1)
        bans = torch.zeros_like(log_probs, dtype=torch.int32).scatter_add_(-1, grams[..., -1], seen.int())
        closing = log_probs[..., self.eos].clone()
        log_probs.masked_fill_(bans > 0, -math.inf)
        log_probs[..., self.eos] = closing


def length_penalty(kind: str, alpha: float, length: int) -> float:
    """What `log p` of `length` tokens (the closing mark counted) is divided by.

    `gnmt` is Wu et al. 2016, eq. 14: `((5 + length) / 6) ** alpha`; `average` is `length ** alpha`.
    """
    match kind:
        case "gnmt":
            return ((5.0 + length) / 6.0) ** alpha
        case "average":
            return float(length) ** alpha
        case _:
            return 1.0
