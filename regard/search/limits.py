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

LISTS = ("forbidden", "opening", "before", "banned")  # of ids, which stand on the device too


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without marks, `log p` (of the end too), and the score it was ranked by. What beam search
    adds up is `log p` under the `repetition` penalty, without an end that was forced or cut off."""

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
    opening: tuple[int, ...] = ()  # what may not come first, or first after a prefix
    at_limit: str = "scored"  # the end after `longest` tokens: "scored" as any, "forced" at log p 0, or "cut" off
    prefix_scored: bool = True  # whether `log p` and length of what beam search finds count it
    repetition: float = 1.0  # what the scores of tokens that were written are divided by (see `discourage`)
    before: tuple[int, ...] = ()  # what the model read before `bos`, which counts as written there
    banned: tuple[tuple[int, ...], ...] = ()  # sequences of two or more tokens that no output holds
    _prefix: Tensor = field(init=False, repr=False, compare=False)  # (sources, most of a prefix): -1 beyond its end
    _forbidden: Tensor = field(init=False, repr=False, compare=False)  # on the device, where it is needed
    _opening: Tensor = field(init=False, repr=False, compare=False)
    _before: Tensor = field(init=False, repr=False, compare=False)
    _banned: Tensor = field(init=False, repr=False, compare=False)  # (sequences, longest of them): -1 before them
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
        widest = max(map(len, self.banned), default=0)
        lists: dict[str, Sequence[Sequence[int] | int]] = {name: getattr(self, name) for name in LISTS}
        lists["banned"] = [[-1] * (widest - len(tokens)) + list(tokens) for tokens in self.banned]
        for name, given in lists.items():
            object.__setattr__(self, f"_{name}", torch.tensor(given, dtype=torch.long, device=device))

    def keep(self, sources: Tensor) -> Limits:
        """For some of the sources, in this order."""
        return self._with(lambda table: table[sources])

    def to(self, device: torch.device) -> Limits:
        """On a device, which they are sent to: nobody waits until they are there."""
        moved = self._with(lambda table: table.to(device, non_blocking=True), self.prefix)
        vars(moved).update({f"_{name}": getattr(self, f"_{name}").to(device, non_blocking=True) for name in LISTS})
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
        more = self.opening, self.at_limit, self.prefix_scored, self.repetition, self.before, self.banned
        return self.bos, self.eos, self.forbidden, self.no_repeat, *more

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

    def put(self, places: Tensor, other: Limits) -> bool:
        """Write those of other sources, under the same rules, in these places, in place; False: there is no room."""
        most, theirs = self._prefix.shape[1], other._prefix.shape[1]
        same = other._shortest is None and other.shortest == self.shortest
        if theirs > most or (self._shortest is None and not same):
            return False
        self.longest.index_copy_(0, places, other.longest)
        if most:
            self._prefix.index_copy_(0, places, F.pad(other._prefix, (0, most - theirs), value=-1))
        if self._shortest is not None:
            self._shortest.index_copy_(0, places, other._least())
        return True

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
        if forced.is_cuda or forced.any():  # to ask a GPU takes longer
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
            self._ban_repeats(log_probs, written, length + 1)
        if self.banned:
            self._ban_sequences(log_probs, written, length)
        if self.shortest:
            least = self.shortest if self._shortest is None else self._shortest
            log_probs[..., self.eos].masked_fill_((length < least)[:, None], -math.inf)
        if self.opening:
            first = (length == self._begins)[:, None, None]
            barred = log_probs.index_select(-1, self._opening).masked_fill(first, -math.inf)
            log_probs.index_copy_(-1, self._opening, barred)
        closes = (token == self.eos)[:, None, None]  # which no prefix holds
        ending = log_probs.gather(-1, index)
        if self.at_limit != "scored":
            ending = ending.masked_fill(ending > -math.inf, 0.0)
        if not self.prefix_scored:
            given = given.masked_fill(given > -math.inf, 0.0)
        return token, torch.where(closes, ending, given).squeeze(-1)

    @property
    def prefixes(self) -> Tensor:
        """How the outputs of each source begin, `(sources, most tokens of any)`; -1: behind that."""
        return self._prefix

    @property
    def _begins(self) -> Tensor:
        """`(sources,)`: the length of each prefix."""
        return (self._prefix >= 0).sum(1)

    def discourage(self, scores: Tensor, written: Tensor, length: Tensor) -> Tensor:
        """The repetition penalty (Keskar et al. 2019, CTRL, section 4.1), in place: scores `(sources, width,
        vocabulary)` of tokens that were written are divided by θ where positive, and multiplied where negative, so
        that logits and log-probabilities both fall. `written` starts with `bos`, of which `length` tokens count; all
        that the model has read counts, prefixes too. What a prefix forces keeps its score."""
        if self.repetition == 1.0:
            return scores
        inside = torch.arange(written.shape[-1], device=written.device) <= length[:, None, None]
        read = torch.where(inside, written, self.bos)  # (sources, width, tokens)
        if self.before:
            read = torch.cat((read, self._before.expand(*read.shape[:2], -1)), dim=-1)
        found = scores.gather(-1, read)
        lower = torch.where(found < 0, found * self.repetition, found / self.repetition)
        due = self._due(length)
        return scores.scatter_(-1, read, lower if due is None else torch.where((due >= 0)[:, None, None], found, lower))

    def counted(self, length: Tensor) -> Tensor:
        """How much of a hypothesis of `length` tokens, its end among them, `(1,)` or `(sources,)`, counts in its
        length: where it is cut off there is no end."""
        length = length.minimum(self.longest.clamp(min=1)) if self.at_limit == "cut" else length
        return length if self.prefix_scored else (length - self._begins).clamp(min=1)

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

    def _ban_sequences(self, log_probs: Tensor, written: Tensor, length: Tensor) -> None:
        """Every token that would complete one of the `banned` sequences at -inf, in place."""
        begun, last = self._banned[:, :-1], self._banned[:, -1]
        back = torch.arange(begun.shape[1] - 1, -1, -1, device=written.device)
        place = (length[:, None, None] - back).expand(*written.shape[:2], -1)
        # What is over may go on behind the last place, and nobody reads it; -2: before the first token.
        tail = written.gather(-1, place.clamp(0, written.shape[-1] - 1)).masked_fill(place < 0, -2)
        complete = ((tail.unsqueeze(-2) == begun) | (begun < 0)).all(-1)  # (sources, width, sequences)
        barred = torch.where(complete, -math.inf, math.inf).to(log_probs.dtype)
        log_probs.scatter_reduce_(-1, last.expand_as(complete), barred, "amin")


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
