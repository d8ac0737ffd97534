"""Phrases that an output must hold: each is followed through it by itself, and how much is still owed of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regard.data.words import Phrase, WordEdges
from regard.errors import ConfigError
from regard.search.limits import Limits

CLASSES = 4  # of tokens that occur in no phrase: whether they start within a word, and whether they end within one
Constraints = Sequence[Sequence[Phrase | Sequence[int]]]  # phrases of each source; plain token ids know no words


class Automaton:
    """One phrase, followed through an output as Knuth, Morris and Pratt would.

    A state says how much of the phrase the output ends with. A phrase whose first token may go on a word has one more
    before its tokens: the output ends between words (`gap`), without which it cannot begin. One whose last word must
    end waits when it has all its tokens, and is met when the next token goes on no word, or the output is over.
    """

    def __init__(self, phrase: Phrase, edges: WordEdges | None) -> None:
        self.tokens, self.edges = phrase.tokens, edges
        self.waits = phrase.ends and edges is not None
        self.gap = int(edges is not None and bool(edges.starts[phrase.tokens[0]]))
        self.size = self.gap + len(phrase.tokens)
        self.back = self._fallbacks()

    def _fallbacks(self) -> list[int]:
        """For each state that which tells what comes of a token that does not go on the phrase."""
        back, border = list(range(self.gap + 1)), 0  # tokens that the phrase begins with and its part so far ends with
        for done, token in enumerate(self.tokens, 1):
            if done > 1:
                while border and self.tokens[border] != token:
                    border = max(back[self.gap + border] - self.gap, 0)
                begins = border or not self._within(self.tokens[done - 2])  # a border begins between words too
                border += bool(begins and self.tokens[border] == token)
            back.append(self.gap + border if border else self._outside(token))
        return back

    def _within(self, token: int) -> bool:
        """Whether the phrase cannot begin after a token."""
        return bool(self.gap and self.edges is not None and self.edges.ends[token])

    def _outside(self, token: int) -> int:
        """The state after a token that is no part of the phrase."""
        return 0 if self._within(token) else self.gap

    def step(self, state: int, token: int) -> tuple[int, bool]:
        """The state after one more token, and whether the phrase is met with it."""
        if state == self.size:  # all of it is there
            if self.edges is None or not self.edges.starts[token]:
                return self.step(0, token)[0], True
            state = self.back[state]
        while not (state >= self.gap and self.tokens[state - self.gap] == token):
            if state <= self.gap:
                return self._outside(token), False
            state = self.back[state]
        if state + 1 == self.size and not self.waits:
            return self._outside(token), True
        return state + 1, False

    def table(self, known: Sequence[int]) -> tuple[list[list[int]], list[list[bool]]]:
        """For each state what `step` gives for a token of each class and for each known one."""
        edges = self.edges
        kinds = [(bool(kind & 2), bool(kind & 1)) for kind in range(CLASSES)]
        kinds += [(False, False) if edges is None else (bool(edges.starts[x]), bool(edges.ends[x])) for x in known]
        column = {token: CLASSES + i for i, token in enumerate(known)}
        rows, meets = list[list[int]](), list[list[bool]]()
        for state in range(self.size + self.waits):
            if state <= self.gap:
                rows.append([0 if self.gap and ends else self.gap for _, ends in kinds])
            elif state < self.size:
                rows.append(list(rows[self.back[state]]))
            else:
                other = rows[self.back[state]]
                rows.append([other[i] if starts else rows[0][i] for i, (starts, _) in enumerate(kinds)])
            meets.append([False] * len(kinds))
            if state == self.size:
                meets[state] = [not starts for starts, _ in kinds]
            elif state >= self.gap:
                token = self.tokens[state - self.gap]
                rows[state][column[token]], meets[state][column[token]] = self.step(state, token)
        return rows, meets


def count_phrases(phrases: Sequence[Phrase | Sequence[int]]) -> Counter[Phrase]:
    """Phrases with how often each is asked for, without those of no tokens."""
    made = (one if isinstance(one, Phrase) else Phrase(tuple(one)) for one in phrases)
    return Counter(phrase for phrase in made if phrase.tokens)


def owed_after(prefix: Sequence[int], phrases: Counter[Phrase], edges: WordEdges | None = None) -> int:
    """What a hypothesis still owes that is no more than its prefix."""
    owed = waiting = deepest = 0
    for phrase, left in phrases.items():
        one = Automaton(phrase, edges)
        state = one.gap
        for token in prefix:
            state, met = one.step(state, token)
            left -= met
        if left > 0:
            owed += left * one.size
            waiting += one.size if state == one.size else 0
            deepest = max(deepest, state if state < one.size else 0)
    return owed - max(waiting, deepest)


def check(limits: Limits, wanted: list[Counter[Phrase]], edges: WordEdges | None) -> None:
    """Refuse phrases that cannot be in any output."""
    if len(wanted) != len(limits.longest):
        raise ConfigError(f"constraints for {len(wanted)} sources, but there are {len(limits.longest)}")
    prefixes = limits.prefix or [[] for _ in wanted]
    for phrases, prefix, longest in zip(wanted, prefixes, limits.longest.tolist(), strict=True):
        if any(limits.eos in phrase.tokens for phrase in phrases):
            raise ConfigError(f"a constraint holds the closing mark (token {limits.eos}), after which nothing can come")
        owed = owed_after(prefix, phrases, edges)
        if len(prefix) + owed > longest:
            before = f"after a prefix of {len(prefix)} " if prefix else ""
            raise ConfigError(f"phrases of {owed} tokens {before}do not fit into max_length {longest}")
