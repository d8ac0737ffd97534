"""What every search shares: the step it drives, the limits it keeps, what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError

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
    """The rules of a search. `longest` gives the most tokens for each source, the closing mark not counted.

    Every output of a source starts with its `prefix`, which counts in the length and in `log p` and which no other
    rule touches; what is written after it has to keep all of them.
    """

    longest: Tensor  # (sources,)
    bos: int
    eos: int
    forbidden: tuple[int, ...] = ()
    shortest: int = 0
    no_repeat: int = 0
    prefix: Sequence[Sequence[int]] | None = None  # tokens for each source; none is no prefix
    _prefix: Tensor = field(init=False, repr=False, compare=False)  # (sources, most of a prefix): -1 beyond its end

    def __post_init__(self) -> None:
        prefix = self.prefix or [[] for _ in range(len(self.longest))]
        if len(prefix) != len(self.longest):
            raise ConfigError(f"{len(prefix)} prefixes for {len(self.longest)} sources; give one for each")
        most = max(map(len, prefix), default=0)
        rows = [[*tokens, *[-1] * (most - len(tokens))] for tokens in prefix]
        # Without a prefix there is nothing to check, and the limits need not be brought from the device.
        for tokens, longest in zip(prefix, self.longest.tolist(), strict=True) if most else ():
            if len(tokens) > longest:
                raise ConfigError(f"a prefix of {len(tokens)} tokens does not fit into max_length {longest}")
            if self.eos in tokens:
                raise ConfigError(f"a prefix holds the closing mark (token {self.eos}), after which nothing can come")
        table = torch.tensor(rows, dtype=torch.long, device=self.longest.device).view(len(prefix), most)
        object.__setattr__(self, "_prefix", table)

    def apply(self, log_probs: Tensor, written: Tensor, number: Tensor) -> Tensor:
        """`(sources, width, vocabulary)` with what may not come next at -inf; `written` starts with `bos`.

        `number` says which sources these are. One that has reached its `longest` may only close; one in its prefix
        may only go on with it.
        """
        length = written.shape[-1] - 1
        given, log_probs = log_probs, log_probs.clone()
        if self.forbidden:
            log_probs[..., list(self.forbidden)] = -math.inf
        if self.no_repeat and length >= self.no_repeat:
            self._ban_repeats(log_probs, written[..., 1:])
        if length < self.shortest:
            log_probs[..., self.eos] = -math.inf
        full = self.longest[number] <= length  # (sources,)
        closing = log_probs[..., self.eos].clone()
        log_probs.masked_fill_(full[:, None, None], -math.inf)
        log_probs[..., self.eos] = closing
        due = self.due(number, length)
        if due is not None:
            index = due.clamp(min=0)[:, None, None].expand(*given.shape[:2], 1)
            only = torch.full_like(given, -math.inf).scatter(-1, index, given.gather(-1, index))
            log_probs = torch.where((due >= 0)[:, None, None], only, log_probs)
        return log_probs

    def due(self, number: Tensor, length: int) -> Tensor | None:
        """`(sources,)`: the token of the prefix after `length` tokens, -1 where it is over; None if all are."""
        return self._prefix[number, length] if length < self._prefix.shape[1] else None

    def hold(self, tokens: Tensor, number: Tensor, length: int) -> Tensor:
        """`(sources, width)` tokens that were chosen, and those of the prefix where it is not over."""
        due = self.due(number, length)
        return tokens if due is None else torch.where((due >= 0)[:, None], due[:, None], tokens)

    def begin(self, tokens: list[int], number: int) -> list[int]:
        """What a search was left with, from the prefix on, even where the search broke off within it."""
        prefix = list(self.prefix[number]) if self.prefix else []
        return prefix + tokens[len(prefix) :]

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
