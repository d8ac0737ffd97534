"""Hypotheses of CTranslate2, and which of them Regard's search would have found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from regard.data.marks import NATIVE
from regard.search.limits import Hypothesis, length_penalty
from regard.search_settings import Search


@dataclass
class Written:
    """A hypothesis as CTranslate2 left it."""

    tokens: list[int]
    log_prob: float
    end: int | None  # the mark that ended it; None: it was cut off
    by_token: list[float] | None = None  # `log p` of each token and of the end, where it was scored once more

    @property
    def step(self) -> int:
        """When it ended."""
        return len(self.tokens) + 1

    def so_far(self, step: int) -> float:
        """`log p` of its first tokens; where that is not known, of all, which is less."""
        return self.log_prob if self.by_token is None else math.fsum(self.by_token[:step])

    def score(self, search: Search) -> float:
        """What it is ranked by."""
        return self.log_prob / _penalty(search.length_penalty, search.alpha, self.step)


@lru_cache(4096)
def _penalty(kind: str, alpha: float, length: int) -> float:
    return float(length_penalty(kind, alpha, torch.tensor(length, dtype=torch.float64)))


class Verdict(NamedTuple):
    """What had closed when Regard's search stopped; what has to be scored to tell; whether to search anew."""

    closed: list[Written]
    unclear: Sequence[Written] = ()
    again: bool = False


def judge(
    found: Sequence[Written], limit: int, search: Search, *, last: bool = False, end: int = NATIVE.end
) -> Verdict:
    """What of `found` Regard's beam search would have closed; see `beam_search` for when it stops.

    Where that cannot be told, the search is to be made anew: if it went on beyond the line's own limit, if it does not
    show all that was open there, or if none ended late enough to see it stop. Even the `last` is, if too few ended.
    """

    def ends(h: Written) -> bool:
        return h.end == end and search.min_length <= len(h.tokens) <= limit

    closed, beam = [h for h in found if ends(h)], search.beam
    beyond = [h for h in found if not ends(h) and (h.end is None or len(h.tokens) >= limit)]  # open at the limit
    if beam == 1 and (closed or not beyond):
        return Verdict(closed, again=not closed)
    enough = len(closed) >= beam
    for step in range(sorted(h.step for h in closed)[beam - 1] if enough else limit + 1, limit + 1):
        inside, later = [h for h in closed if h.step <= step], [h for h in closed if h.step > step] + beyond
        if not later:
            return Verdict(inside, again=not last)
        scores = sorted((h.score(search) for h in inside), reverse=True)
        best_open = max(h.so_far(step) for h in later) / _penalty(search.length_penalty, search.alpha, step)
        if best_open <= scores[beam - 1]:
            matters = beyond or any(h.score(search) > scores[search.nbest - 1] for h in later)
            return Verdict(inside, _unscored(later, step) if matters else [])
    # What ends in the last step stands in the place of something that is open then.
    hidden = any(h.step >= limit if h.end is not None else h.step > limit + 1 for h in found)
    if beam > 1 and ((hidden and not last) or not (enough or beyond)):
        return Verdict(closed, again=True)
    known, cut = {tuple(h.tokens) for h in closed}, dict[tuple[int, ...], Written]()
    for h in beyond:  # some may have gone on, and Regard closes them at the limit
        first = tuple(h.tokens[:limit])
        if first not in known and first not in cut:
            cut[first] = h
            if len(h.tokens) > limit or h.end is not None:
                h.tokens, h.end, h.by_token = list(first), None, None
    unclear = [h for h in cut.values() if h.by_token is None]
    for h in () if unclear else cut.values():
        h.log_prob = math.fsum(h.by_token or [])
    return Verdict([*closed, *cut.values()], unclear)


def _unscored(later: Sequence[Written], step: int) -> list[Written]:
    """One hypothesis for each that was open at a step and whose `log p` there is not known."""
    opened: dict[tuple[int, ...], Written] = {}
    for h in later:
        first = tuple(h.tokens[:step])
        if first not in opened or h.by_token is not None:
            opened[first] = h
    return [h for h in opened.values() if h.by_token is None]


def best(found: Sequence[Written], limit: int, search: Search) -> list[Hypothesis]:
    """The outputs, best first. One that may neither end nor go on has no probability."""
    if found and limit < search.min_length:
        top = max(found, key=lambda h: h.so_far(limit))
        return [Hypothesis(top.tokens, -math.inf, -math.inf)]
    ranked = sorted(found, key=lambda h: h.score(search), reverse=True)[: search.nbest]
    return [Hypothesis(h.tokens, h.log_prob, h.score(search)) for h in ranked]
