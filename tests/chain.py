"""A probability table in place of a network, and what full enumeration finds in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from regard.search.limits import Limits
from regard.search.stepper import Step

BOS, EOS, A, B, C = range(5)
VOCABULARY = 5


@dataclass(frozen=True)
class Steps:
    """A plain function as a `Stepper`."""

    step: Step
    logits: None = None
    graphs: None = None


@dataclass(frozen=True)
class ChainState:
    """Which source each row belongs to and what it remembers of its tokens; which sources are there."""

    source: Tensor  # (rows,)
    memory: Tensor  # (rows,)
    sources: Tensor  # (sources,)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> ChainState:
        stay = self.sources if sources is None else self.sources[sources]
        state = ChainState(self.source[rows], self.memory[rows], stay)
        if len(stay):  # what the models count on: rows of one source stand together, as many for each
            width = len(rows) // len(stay)
            assert torch.equal(state.source, stay.repeat_interleave(width)), (state.source, stay)
        return state


@dataclass
class Chain:
    """`p(token | memory)` for each source, with `memory = (mix * memory + token) mod memories` after each token.

    `mix=0` is a Markov chain over tokens; with a larger one, every token of the past tells.
    """

    log_probs: Tensor  # (sources, memories, vocabulary)
    mix: int = 0
    rows_seen: list[int] = field(default_factory=list)  # by the step function, at each call

    def start(self) -> ChainState:
        sources = torch.arange(len(self.log_probs))
        return ChainState(sources, torch.zeros_like(sources), sources)

    def step(self, tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        self.rows_seen.append(len(tokens))
        assert tokens.shape == state.memory.shape
        memory = (self.mix * state.memory + tokens) % self.log_probs.shape[1]
        return self.log_probs[state.source, memory], ChainState(state.source, memory, state.sources)

    def rows(self, source: int, tokens: Sequence[int]) -> list[list[float]]:
        """Log-probabilities of each token and of the end, as plain numbers."""
        memory, found = 0, []
        for token in [BOS, *tokens]:
            memory = (self.mix * memory + token) % self.log_probs.shape[1]
            found.append(self.log_probs[source, memory].tolist())
        return found

    def log_prob(self, source: int, tokens: Sequence[int]) -> float:
        """`log p` of the tokens and the end."""
        rows = self.rows(source, tokens)
        return sum(row[token] for row, token in zip(rows, [*tokens, EOS], strict=True))


def random_chain(sources: int, seed: int, sharpness: float = 1.0) -> Chain:
    """A chain in which the whole past tells; sharper ones are surer of what comes next."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(sources, 97, VOCABULARY, generator=generator, dtype=torch.float64)
    return Chain(logits.log_softmax(-1), mix=5)


def markov(*tables: dict[int, dict[int, float]]) -> Chain:
    """A Markov chain for each source, from `{token: {next: probability}}`."""
    log_probs = torch.full((len(tables), VOCABULARY, VOCABULARY), -math.inf, dtype=torch.float64)
    for source, table in enumerate(tables):
        for token, following in table.items():
            for after, p in following.items():
                log_probs[source, token, after] = math.log(p)
    return Chain(log_probs)


def limits(longest: Sequence[int], **rules: Any) -> Limits:
    """The limits of a search; `<s>` is never written."""
    return Limits(torch.tensor(longest), BOS, EOS, **{"forbidden": (BOS,), **rules})


def allowed(rules: Limits, source: int) -> list[list[int]]:
    """Every sequence that the rules let pass, by trying all; within a prefix there is no rule but itself."""
    prefix = tuple(rules.prefix[source]) if rules.prefix else ()
    size, start = rules.no_repeat, len(prefix)
    found = []
    for length in range(rules.shortest, int(rules.longest[source]) + 1):
        for tokens in product((A, B, C), repeat=length):
            grams = [tokens[i : i + size] for i in range(length - size + 1)] if size else []
            repeats = any(gram in grams[:i] for i, gram in enumerate(grams) if i + size > start)
            ended = (*tokens, EOS) if length < int(rules.longest[source]) else tokens  # there the end is forced
            ends = range(start + 1, len(ended) + 1)
            banned = any(ended[max(end - len(one), 0) : end] == one for one in rules.banned for end in ends)
            free = not repeats and not banned and not set(tokens[start:]) & set(rules.forbidden)
            if tokens[:start] == prefix and free:
                found.append(list(tokens))
    return found
