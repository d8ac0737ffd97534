"""What every search shares: the limits it keeps, what it returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError
from regard.ragged import round_up


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without marks, `log p` (of the end too), and the score it was ranked by."""

    tokens: list[int]
    log_prob: float
    score: float


@dataclass(frozen=True)
class Limits:
    """The rules of a search. Every output of a source starts with its `prefix`, which counts in the length and in
    `log p` and which no other rule touches; what is written after it has to keep all of them."""

    longest: Tensor  # (sources,): most tokens, the closing mark not counted; below 0 there is no source
    bos: int
    eos: int
    forbidden: tuple[int, ...] = ()
    shortest: int = 0
    no_repeat: int = 0
    prefix: Sequence[Sequence[int]] | None = None  # tokens for each source; none is no prefix
    _prefix: Tensor = field(init=False, repr=False, compare=False)  # (sources, most of a prefix): -1 beyond its end
    _forbidden: Tensor = field(init=False, repr=False, compare=False)  # on the device, where it is needed
    _shortest: Tensor | None = field(
        default=None, init=False, repr=False, compare=False
    )  # (sources,): where they differ

    def __post_init__(self) -> None:
        device = self.longest.device
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
        table = torch.tensor(rows, dtype=torch.long, device=device).view(len(prefix), most)
        object.__setattr__(self, "_prefix", table)
        object.__setattr__(self, "_forbidden", torch.tensor(self.forbidden, dtype=torch.long, device=device))

    def keep(self, sources: Tensor) -> Limits:
        """For some of the sources, in this order."""
        return self._with(lambda table: table[sources])

    def to(self, device: torch.device) -> Limits:
        """On another device."""
        moved = self._with(lambda table: table.to(device), self.prefix)
        object.__setattr__(moved, "_forbidden", self._forbidden.to(device))
        return moved

    def filled(self, sources: int) -> Limits:
        """For so many sources, of which nothing may be written to those that are added."""
        more = sources - len(self.longest)
        return self._with(lambda table: torch.cat((table, table.new_full((more, *table.shape[1:]), -1))))

    def fixed(self) -> Limits:
        """In tables of few shapes, which hold all that may differ between searches under the same rules."""
        made, most = self._with(lambda table: table), self._prefix.shape[1]
        vars(made).update(_prefix=F.pad(self._prefix, (0, round_up(most, 16) - most), value=-1))
        if self.shortest:
            vars(made).update(shortest=1, _shortest=self._least())
        return made

    def at_least(self, shortest: Sequence[int]) -> Limits:
        """With the fewest tokens for each source."""
        made = self._with(lambda table: table, self.prefix)
        least = torch.tensor(shortest, device=self.longest.device)
        vars(made).update(shortest=max(shortest), _shortest=least if len(set(shortest)) > 1 else None)
        return made

    @property
    def rules(self) -> Hashable:
        """What is the same for all sources."""
        return self.bos, self.eos, self.forbidden, self.no_repeat

    def joined(self, others: Sequence[Limits]) -> Limits:
        """With sources of others behind these, under rules that are the same for all."""
        most = max(each._prefix.shape[1] for each in (self, *others))
        made = copy.copy(self)
        tables = [F.pad(each._prefix, (0, most - each._prefix.shape[1]), value=-1) for each in (self, *others)]
        longest = torch.cat([each.longest for each in (self, *others)])
        vars(made).update(longest=longest, _prefix=torch.cat(tables), prefix=None)
        if any(each._shortest is not None or each.shortest != self.shortest for each in (self, *others)):
            least = torch.cat([each._least() for each in (self, *others)])
            vars(made).update(shortest=max(each.shortest for each in (self, *others)), _shortest=least)
        return made

    def _least(self) -> Tensor:
        """The fewest tokens of each source, `(sources,)`."""
        return torch.full_like(self.longest, self.shortest) if self._shortest is None else self._shortest

    def _with(self, change: Callable[[Tensor], Tensor], prefix: Sequence[Sequence[int]] | None = None) -> Limits:
        """With other tables; `prefix` is only that of the sources a search began with."""
        made = copy.copy(self)
        vars(made).update(longest=change(self.longest), _prefix=change(self._prefix), prefix=prefix)
        if self._shortest is not None:
            vars(made).update(_shortest=change(self._shortest))
        return made

    def apply(self, log_probs: Tensor, written: Tensor, length: Tensor | None = None) -> Tensor:
        """`(sources, width, vocabulary)` with what may not come next at -inf, in place; `written` starts with `bos`, of
        which `length` tokens count (see `restrict`), or all. At its `longest` a source may only close; within its
        prefix it may only go on with that."""
        if length is None:
            length = torch.tensor([written.shape[-1] - 1], device=written.device)
        token, value = self.restrict(log_probs, written, length)
        forced = (token >= 0)[:, None, None]
        if forced.any():
            index = token.clamp(min=0)[:, None, None].expand(*log_probs.shape[:2], 1)
            value = torch.where(forced, value.unsqueeze(-1), log_probs.gather(-1, index))
            log_probs.masked_fill_(forced, -math.inf).scatter_(-1, index, value)
        return log_probs

    def restrict(self, log_probs: Tensor, written: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """The rules for single tokens, in place, after the first `length` tokens of `written`, a number for all `(1,)`
        or for each `(sources,)`; and the token that is forced, `(sources,)`, -1 where none is, with its `log p`,
        `(sources, width)`."""
        token = self.forced(length)
        index = token.clamp(min=0)[:, None, None].expand(*log_probs.shape[:2], 1)
        given = log_probs.gather(-1, index)
        if self.forbidden:
            log_probs.index_fill_(-1, self._forbidden, -math.inf)
        if self.no_repeat:
            self._ban_repeats(log_probs, written[..., 1:], length)
        if self.shortest:
            least = self.shortest if self._shortest is None else self._shortest
            log_probs[..., self.eos].masked_fill_((length < least)[:, None], -math.inf)
        closes = (token == self.eos)[:, None, None]  # which no prefix holds
        return token, torch.where(closes, log_probs.gather(-1, index), given).squeeze(-1)

    def forced(self, length: Tensor) -> Tensor:
        """`(sources,)`: the only token that may come after `length` tokens, `(1,)` or `(sources,)`; -1: there is a
        choice."""
        full = torch.where(self.longest <= length, self.eos, -1)
        due = self._due(length)
        return full if due is None else torch.where(due >= 0, due, full)

    def hold(self, tokens: Tensor, length: Tensor) -> Tensor:
        """`(sources, width)` tokens that were chosen, and those of the prefix where it is not over."""
        due = self._due(length)
        return tokens if due is None else torch.where(due[:, None] >= 0, due[:, None], tokens)

    def _due(self, length: Tensor) -> Tensor | None:
        """`(sources,)`: what the prefix goes on with after `length` tokens; -1: it is over. None: there is none."""
        most = self._prefix.shape[1]
        if not most:
            return None
        place = length.clamp(max=most - 1)
        if len(place) == 1:
            due = self._prefix.index_select(1, place).squeeze(1)
        else:
            due = self._prefix.gather(1, place[:, None]).squeeze(1)
        return due.masked_fill(length >= most, -1)

    def begin(self, tokens: list[list[int]], sources: Tensor) -> list[list[int]]:
        """What searches for some sources were left with, from the prefix on, even where one broke off within it."""
        prefixes = [[token for token in row if token >= 0] for row in self._prefix[sources].tolist()]
        return [prefix + rest[len(prefix) :] for prefix, rest in zip(prefixes, tokens, strict=True)]

    def _ban_repeats(self, log_probs: Tensor, written: Tensor, length: Tensor) -> None:
        size, places = self.no_repeat, written.shape[-1] - self.no_repeat + 1
        if places < 1:
            return
        grams = written.unfold(-1, size, 1)  # (sources, width, places, size)
        begin = torch.arange(places, device=written.device)
        tail = (length - size + 1)[:, None, None] + torch.arange(size - 1, device=written.device)
        tail = tail.clamp(0, written.shape[-1] - 1).expand(*written.shape[:2], -1)
        now = written.gather(-1, tail).unsqueeze(-2)  # which a gram would go on from
        seen = (grams[..., :-1] == now).all(-1) & (begin + size <= length[:, None, None])
        banned = torch.where(seen, -math.inf, math.inf).to(log_probs.dtype)
        closing = log_probs[..., self.eos].clone()
        log_probs.scatter_reduce_(-1, grams[..., -1].clamp(min=0), banned, "amin")
        log_probs[..., self.eos] = closing


def length_penalty(kind: str, alpha: float, length: Tensor) -> Tensor:
    """What `log p` of `length` tokens (the closing mark counted) is divided by. `gnmt` is Wu et al. 2016, eq. 14:
    `((5 + length) / 6) ** alpha`; `average` is `length ** alpha`."""
    match kind:
        case "gnmt":
            return ((5.0 + length) / 6.0) ** alpha
        case "average":
            return length**alpha
        case _:
            return torch.ones_like(length)
