"""What CTranslate2 finds, made into what Regard's search finds.

Its beam search chooses as Regard's does, and differs in three things. It stops as soon as `beam` hypotheses have ended,
where Regard goes on while an open one scores better than the worst of them. It shares out the probability of tokens
that may not come among the others, where Regard leaves them out. It breaks off at the limit, where Regard adds the end.
So it is let go on for more hypotheses, and here those are left out that ended after Regard's search had stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from regard.data.tokens import BOS, EOS, MASK, PAD, SEP, UNK
from regard.errors import ConfigError
from regard.search.limits import Hypothesis, length_penalty
from regard.settings import Search

_NOT_THERE = {
    "sample": "does not draw the same again from a seed",
    "mbr": "does not draw the same again from a seed",
    "contrastive": "has no contrastive search",
    "coverage": "does not tell what Regard's coverage penalty is made of",
    "exact": "does not search on until nothing better can come",
}


def refuse(search: Search, phrases: object = None) -> None:
    """Say so if a search is asked for that CTranslate2 does not have."""
    for name, why in _NOT_THERE.items():
        if value := getattr(search, name):
            raise ConfigError(f"search.{name} is {value}, and the engine ctranslate2 {why}; leave out --engine")
    if search.groups > 1:
        raise ConfigError(f"search.groups is {search.groups}, and the engine ctranslate2 has one; leave out --engine")
    if phrases is not None:
        raise ConfigError("the engine ctranslate2 cannot hold outputs to phrases; leave out --engine")


@dataclass(frozen=True)
class Line:
    """A source to write for, in the names of its tokens."""

    source: list[str]
    prefix: list[int]
    limit: int  # most tokens, the end not counted


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


@dataclass(frozen=True)
class Rules:
    """What a search has to keep to."""

    settings: Search
    penalties: list[float]  # by length, the end counted

    @staticmethod
    def of(settings: Search, most: int) -> Rules:
        lengths = torch.arange(most + 3, dtype=torch.float64).clamp(min=1)
        return Rules(settings, length_penalty(settings.length_penalty, settings.alpha, lengths).tolist())

    @property
    def forbidden(self) -> list[int]:
        return [PAD, BOS, SEP, MASK] if self.settings.unknown else [PAD, UNK, BOS, SEP, MASK]

    @property
    def flat(self) -> bool:
        """Length does not count."""
        return self.settings.length_penalty == "none" or not self.settings.alpha

    @property
    def quick(self) -> bool:
        """The first to end that is likelier than all that are open is the output."""
        return self.flat and self.settings.nbest == 1

    def score(self, h: Written) -> float:
        return h.log_prob / self.penalties[h.step]


@dataclass(frozen=True)
class Verdict:
    """What had closed when Regard's search stopped; what has to be scored to tell; whether to search anew."""

    kept: list[Written]
    unclear: list[Written] = field(default_factory=list)
    again: bool = False


def judge(found: Sequence[Written], line: Line, rules: Rules, attempt: int = 0, *, quick: bool = False) -> Verdict:
    """What of `found` Regard's search would have closed; see `beam_search` for when it stops.

    Where that cannot be told, the search is to be made anew: at first if it went on beyond the line's own limit, if it
    does not show all that was open there, or if none ended late enough to see it stop; then if too few ended because of
    some that may not be. `quick`: only the best was asked for.
    """
    settings, limit = rules.settings, line.limit
    closed: list[Written] = []
    beyond: list[Written] = []  # open at the limit
    for h in found:
        if h.end == EOS and settings.min_length <= len(h.tokens) <= limit:
            closed.append(h)
        elif h.end is None or len(h.tokens) >= limit:
            beyond.append(h)
    if quick or (settings.beam == 1 and (closed or not beyond)):
        return Verdict(closed, again=not closed and attempt < 2)
    enough = len(closed) >= settings.beam
    step = sorted(h.step for h in closed)[settings.beam - 1] if enough else limit + 1
    while step <= limit:
        inside, later = [h for h in closed if h.step <= step], [h for h in closed if h.step > step] + beyond
        if not later:
            return Verdict(inside, again=attempt == 0)
        scores = sorted(map(rules.score, inside), reverse=True)
        if max(h.so_far(step) for h in later) / rules.penalties[step] <= scores[settings.beam - 1]:
            matters = beyond or any(rules.score(h) > scores[settings.nbest - 1] for h in later)
            return Verdict(inside, _unknown(later, step) if matters else [])
        step += 1
    # What ends in the last step stands in the place of something that is open then.
    hidden = any(h.step >= limit if h.end is not None else h.step > limit + 1 for h in found)
    if settings.beam > 1 and ((attempt == 0 and hidden) or (attempt < 2 and not enough and not beyond)):
        return Verdict(closed, again=True)
    return _closed_at_limit(closed, beyond, limit)


def _unknown(later: Sequence[Written], step: int) -> list[Written]:
    """One hypothesis for each that was open at a step and whose `log p` there is not known."""
    opened: dict[tuple[int, ...], Written] = {}
    for h in later:
        first = tuple(h.tokens[:step])
        if first not in opened or h.by_token is not None:
            opened[first] = h
    return [h for h in opened.values() if h.by_token is None]


def _closed_at_limit(closed: list[Written], beyond: list[Written], limit: int) -> Verdict:
    """With what was open at the limit, of which some may have gone on, and which Regard closes there."""
    known = {tuple(h.tokens) for h in closed}
    opened: dict[tuple[int, ...], Written] = {}
    for h in beyond:
        first = tuple(h.tokens[:limit])
        if first not in known and first not in opened:
            opened[first] = h
            if len(h.tokens) > limit or h.end is not None:
                h.tokens, h.end, h.by_token = list(first), None, None
    unclear = [h for h in opened.values() if h.by_token is None]
    for h in () if unclear else opened.values():
        h.log_prob = math.fsum(h.by_token or [])
    return Verdict([*closed, *opened.values()], unclear)


def plain(found: Sequence[Written], line: Line) -> list[Written]:
    """What ended within the limit, or else all of it, cut."""
    ended = [h for h in found if h.end == EOS and len(h.tokens) <= line.limit]
    cut = {tuple(h.tokens[: line.limit]): h.log_prob for h in reversed(found)}
    return ended or [Written(list(tokens), log_prob, None) for tokens, log_prob in cut.items()]


def best(found: Sequence[Written], line: Line, rules: Rules) -> list[Hypothesis]:
    """The outputs, best first. One that may neither end nor go on has no probability."""
    if found and line.limit < rules.settings.min_length:
        top = max(found, key=lambda h: h.so_far(line.limit))
        return [Hypothesis(top.tokens, -math.inf, -math.inf)]
    ranked = sorted(found, key=rules.score, reverse=True)[: rules.settings.nbest]
    return [Hypothesis(h.tokens, h.log_prob, rules.score(h)) for h in ranked]
