"""Which candidates of a step of beam search close, and which stay open: in plain search, in diverse search, and where
outputs must contain given phrases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.words import WordEdges
from regard.search.limits import Limits
from regard.search.phrases import CLASSES, Automaton, Constraints, check, count_phrases


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

    @property
    def greedy(self) -> bool:
        """Whether a source has one hypothesis."""
        return self.width == 1

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        """Among the continuations of open hypotheses `written` `(beams, open, …)`, of `log_prob` `(beams, open)` and of
        `length` tokens, `(1,)` or `(beams,)`. `given` `(beams, open, vocabulary)` are the model's log-probabilities,
        which may be written into."""
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

    def join(self, others: Sequence[Self]) -> None:
        """Take in the beams of others of its kind and width, behind its own."""

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
        return log_probs.topk(count, dim=-1)
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
    `log p - diversity * n`, `n` being how often the beams before it chose that token at this step.
    """

    def __init__(self, width: int, eos: int, groups: int, diversity: float) -> None:
        super().__init__(width, eos)
        self.groups, self.diversity = groups, diversity

    @property
    def greedy(self) -> bool:
        return self.groups == self.width == 1

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        total = log_prob.unsqueeze(-1) + limits.apply(given, written[..., : int(length) + 1])
        total = total.unflatten(0, (-1, self.groups))  # (sources, groups, open, vocabulary)
        taken = torch.zeros_like(total[:, 0, 0])  # (sources, vocabulary)
        chosen = []
        for mine in total.unbind(1):
            ranked = (mine - self.diversity * taken.unsqueeze(1)).flatten(1)
            ranked, place = ranked.topk(min(2 * self.width, ranked.shape[1]), dim=1)
            at = (place // mine.shape[-1], place % mine.shape[-1])
            choice = self._settle(ranked, mine.flatten(1).gather(1, place), *at)
            taken.scatter_add_(1, choice.token, (choice.log_prob > -math.inf).to(taken.dtype))
            chosen.append((choice.closing, choice.closing_parent, choice.log_prob, choice.parent, choice.token))
        return Choice(*(torch.stack(parts, 1).flatten(0, 1) for parts in zip(*chosen, strict=True)))


@dataclass(frozen=True)
class _Ahead:
    """Where each open hypothesis would stand after a token of each class and after each that occurs in a phrase."""

    left: Tensor  # (sources, open, phrases, classes + known): copies still to come
    depth: Tensor  # (sources, open, phrases, classes + known): how much there is of the next copy
    owed: Tensor  # (sources, open, classes + known)
    helps: Tensor  # (sources, open, known): whether it owes less than now


class Constrained(Chooser):
    """Lexically constrained decoding (Hokamp and Liu 2017) by dynamic beam allocation (Post and Vilar 2018).

    Each phrase is followed through the output by itself (see `Automaton`), so what one phrase shares with another
    counts for both; a phrase that is asked for n times must appear n times without overlap. With `edges`, phrases are
    words: none begins within a word, nor is its last word gone on, if it says so (`Phrase.ends`). A hypothesis owes the
    tokens of all phrases it has not met, with a blank before each that needs one, less what it has of the phrase it is
    deepest in, or of all those that are there but for the end of their last word. Banks gather the
    hypotheses of one source by how much of that they have met, and share the slots of the beam evenly; slots that a
    bank cannot fill go to the nearest that can. A hypothesis closes when it owes nothing, and never owes more than it
    has room for. What lowers its debt is a candidate whatever its rank, and no other rule but the prefix forbids it.
    """

    def __init__(
        self, width: int, limits: Limits, constraints: Constraints, open_: int = 1, edges: WordEdges | None = None
    ) -> None:
        """The first turn has so many hypotheses `open_` for each source."""
        super().__init__(width, limits.eos)
        device = limits.longest.device
        wanted = [count_phrases(phrases) for phrases in constraints]
        check(limits, wanted, edges)
        known = [sorted({token for phrase in phrases for token in phrase.tokens}) for phrases in wanted]
        if edges is not None:
            known = [sorted({*row, edges.separator}) if row else [] for row in known]
        followed = [[Automaton(phrase, edges) for phrase in phrases] for phrases in wanted]
        most, tokens = max(map(len, wanted)), max(map(len, known))
        states = max(sum(one.size + one.waits for one in row) for row in followed)
        after = torch.zeros(len(wanted), states, CLASSES + tokens, dtype=torch.long)
        meets = torch.zeros(after.shape, dtype=torch.bool)
        size, copies, begin, first = torch.zeros(4, len(wanted), most, dtype=torch.long)
        for source, phrases in enumerate(wanted):
            done = 0
            for i, (one, count) in enumerate(zip(followed[source], phrases.values(), strict=True)):
                size[source, i], copies[source, i], begin[source, i] = one.size, count, one.gap
                rows, met = one.table(known[source])
                place = (source, slice(done, done + len(rows)), slice(len(rows[0])))
                after[place], meets[place] = torch.tensor(rows), torch.tensor(met)
                first[source, i], done = done, done + len(rows)
        # The class of each token, by which those that occur in no phrase are told apart; None: by nothing.
        self.kinds = None
        if edges is not None:
            self.kinds = torch.from_numpy(2 * edges.starts.astype("int64") + edges.ends).to(device)  # (vocabulary,)
        self.size = size.to(device)  # (sources, phrases): states up to where all of a phrase is there
        # Tokens that occur in phrases, padded with the closing mark, which occurs in none.
        padded = [[*row, *[self.eos] * (tokens - len(row))] for row in known]
        self.known = torch.tensor(padded, dtype=torch.long, device=device)  # (sources, known)
        # How deep a phrase is entered from each depth with a token of each class and with each known one, and whether
        # it is met with that; the rows of all phrases of a source stand one after the other, each from its first on.
        self.after = after.to(device)  # (sources, depths of all phrases, classes + known)
        self.meets = meets.to(device)
        self.first = first.to(device)  # (sources, phrases)
        self.total = (self.size * copies.to(device)).sum(1)  # (sources,)
        self.banks = int((size * copies).sum(1).max()) + 1
        self.left = copies.to(device).unsqueeze(1).repeat(1, open_, 1)  # (sources, open, phrases): copies still to come
        self.depth = begin.to(device).unsqueeze(1).repeat(1, open_, 1)  # (sources, open, phrases): of the next copy
        self.ahead = self._look_ahead()

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        """The likeliest candidates of each bank. Candidates are the likeliest of all, the likeliest token of each
        hypothesis, and every token that lowers what a hypothesis owes."""
        log_probs = limits.apply(given.clone(), written, length)
        total = log_prob.unsqueeze(-1) + self._restricted(log_probs, given, limits, length)
        log_prob, place = self._candidates(total)
        parent, token = place // total.shape[-1], place % total.shape[-1]
        at = torch.arange(len(place), device=place.device).unsqueeze(1)
        same = token.unsqueeze(-1) == self.known.unsqueeze(1)  # (sources, candidates, known)
        other = torch.zeros_like(token) if self.kinds is None else self.kinds[token]
        is_known = same.any(-1) & (token != self.eos)
        local = torch.where(is_known, same.int().argmax(-1) + CLASSES, other)
        bank = self.total.unsqueeze(1) - self.ahead.owed[at, parent, local]
        closes = token == self.eos
        closing = log_prob.masked_fill(~closes | ~self._within(log_prob, bank), -math.inf)
        closing, first = closing.topk(min(self.width, closing.shape[1]), dim=1)
        closing_parent = parent.gather(1, first)

        log_prob = log_prob.masked_fill(closes, -math.inf)
        log_prob = log_prob.masked_fill(~self._within(log_prob, bank), -math.inf)
        log_prob, best = log_prob.topk(min(self.width, log_prob.shape[1]), dim=1)
        parent, token, local = (x.gather(1, best) for x in (parent, token, local))
        self.left, self.depth = (x[at, parent, :, local] for x in (self.ahead.left, self.ahead.depth))
        ready = bank.gather(1, best) == self.total.unsqueeze(1)
        return Choice(closing, closing_parent, log_prob, parent, token, ready)

    def _restricted(self, log_probs: Tensor, given: Tensor, limits: Limits, length: Tensor) -> Tensor:
        """Log-probabilities as the limits left them, out of those `given`, under what the phrases ask for."""
        self.ahead = ahead = self._look_ahead()
        room = limits.longest - length - 1  # after this token
        fits = ahead.owed <= room[:, None, None]
        column = self.known.unsqueeze(1).expand_as(ahead.helps)
        others = fits[..., :1].expand_as(given) if self.kinds is None else fits[..., self.kinds]
        allowed = others.scatter(-1, column, fits[..., CLASSES:])
        lifted = torch.zeros_like(allowed).scatter(-1, column, ahead.helps)
        free = torch.where(lifted, given, log_probs).masked_fill(~allowed, -math.inf)
        closing = log_probs[..., self.eos]
        free[..., self.eos] = closing.masked_fill(self._owed(self.left, self.depth) > 0, -math.inf)
        within = torch.full_like(limits.longest, -1)[:, None]
        return torch.where((limits.hold(within, length) >= 0).unsqueeze(-1), log_probs, free)

    def keep(self, stay: Tensor) -> None:
        for name in ("size", "known", "after", "meets", "first", "total", "left", "depth"):
            setattr(self, name, getattr(self, name)[stay])

    def join(self, others: Sequence[Constrained]) -> None:
        """Tables are padded as those of sources that began together: with phrases of no tokens, and known tokens that
        are the closing mark."""
        every = (self, *others)
        phrases, depths, known = (
            max(getattr(each, name).shape[axis] for each in every)
            for name, axis in (("size", 1), ("after", 1), ("known", 1))
        )
        tables = {name: list[Tensor]() for name in ("size", "known", "after", "meets", "first", "left", "depth")}
        for each in every:
            more, tokens = phrases - each.size.shape[1], known - each.known.shape[1]
            tables["size"].append(F.pad(each.size, (0, more)))
            tables["known"].append(F.pad(each.known, (0, tokens), value=self.eos))
            deeper = depths - each.after.shape[1]
            tables["after"].append(F.pad(each.after, (0, tokens, 0, deeper)))
            tables["meets"].append(F.pad(each.meets, (0, tokens, 0, deeper)))
            tables["first"].append(F.pad(each.first, (0, more)))
            tables["left"].append(F.pad(each.left, (0, more)))
            tables["depth"].append(F.pad(each.depth, (0, more)))
        for name, parts in tables.items():
            setattr(self, name, torch.cat(parts))
        self.total = torch.cat([each.total for each in every])
        self.banks = max(each.banks for each in every)
        self.ahead = self._look_ahead()

    def _look_ahead(self) -> _Ahead:
        at = torch.arange(len(self.left), device=self.left.device)[:, None, None]
        row = self.first.unsqueeze(1) + self.depth  # (sources, open, phrases)
        left = (self.left.unsqueeze(-1) - self.meets[at, row].long()).clamp(min=0)
        depth = self.after[at, row].masked_fill(left == 0, 0)
        owed = self._owed(left.mT, depth.mT)
        return _Ahead(left, depth, owed, owed[..., CLASSES:] < self._owed(self.left, self.depth).unsqueeze(-1))

    def _owed(self, left: Tensor, depth: Tensor) -> Tensor:
        """Tokens that surely meet all phrases, `(sources, open, …)` of `(sources, open, …, phrases)`."""
        size = self.size.view(len(self.size), *[1] * (left.dim() - 2), -1)
        waits = depth == size
        there = (depth * waits).sum(-1)
        return (left * size).sum(-1) - torch.maximum(there, depth.masked_fill(waits, 0).amax(-1))

    def _candidates(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """`log p` and place of each candidate once, the likeliest first."""
        vocabulary = total.shape[-1]
        own = total.argmax(-1, keepdim=True)  # (sources, open, 1)
        tokens = torch.cat((own, torch.where(self.ahead.helps, self.known.unsqueeze(1), own)), dim=-1)
        first = torch.arange(total.shape[1], device=total.device)[:, None] * vocabulary
        total = total.flatten(1)
        overall = total.topk(min(2 * self.width, total.shape[1]), dim=1).indices
        place = torch.cat((overall, (tokens + first).flatten(1)), dim=1).sort(dim=1).values
        again = torch.zeros_like(place, dtype=torch.bool)
        again[:, 1:] = place[:, 1:] == place[:, :-1]
        log_prob, order = total.gather(1, place).masked_fill(again, -math.inf).sort(dim=1, descending=True)
        return log_prob, place.gather(1, order)

    def _within(self, log_prob: Tensor, bank: Tensor) -> Tensor:
        """Which candidates, the likeliest first, get one of the slots of their bank."""
        banks = torch.arange(self.banks, device=bank.device)
        member = (bank.unsqueeze(-1) == banks) & (log_prob > -math.inf).unsqueeze(-1)  # (sources, candidates, banks)
        rank = member.long().cumsum(1).gather(-1, bank.unsqueeze(-1)).squeeze(-1)
        return rank <= self._slots(member.sum(1)).gather(1, bank)

    def _slots(self, members: Tensor) -> Tensor:
        """The slots of each bank, `(sources, banks)`, of which it can fill `members`. They are shared out evenly, and
        what a bank cannot fill goes to the nearest that can, of two as near to the one that has met more."""
        banks = self.total.unsqueeze(1) + 1  # (sources, 1)
        upto = torch.arange(self.banks + 1, device=members.device).minimum(banks)
        slots = (upto * self.width // banks).diff(dim=1)
        spare, want = (slots - members).clamp(min=0), (members - slots).clamp(min=0)
        slots = slots - spare
        for distance in range(1, self.banks):
            for gives, takes in (
                (slice(None, -distance), slice(distance, None)),
                (slice(distance, None), slice(None, -distance)),
            ):
                moved = torch.minimum(spare[:, gives], want[:, takes])
                spare[:, gives] -= moved
                want[:, takes] -= moved
                slots[:, takes] += moved
        return slots
