"""Contrastive search: likely, but unlike what was said before."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.search.incremental import IncrementalSearch, drive
from regard.search.limits import Hypothesis, Limits
from regard.search.stepper import Step, started
from regard.search.transfer import copy_to_host


def contrastive_search(
    advance: Step, predict: Callable[[Tensor], Tensor], state: Any, *, limits: Limits, top_k: int = 4,
    penalty: float = 0.6,
) -> list[list[Hypothesis]]:  # fmt: skip
    """One output of each source (Su et al. 2022): of the `top_k` likeliest tokens, at each step that which
    maximises `(1 - penalty) p(v) - penalty max_j cos(h_v, h_j)`.

    `h_v` is the hidden vector after reading `v`, `h_j` those after all tokens before it, `bos` and the prefix included.
    `log_prob` is the model's own. `advance` gives hidden vectors `(rows, d_model)` and the state after each token, and
    `predict` makes log-probabilities `(rows, vocabulary)` of them; `state` may be a `LazyStart`.
    """
    if not len(limits.longest):
        return []
    return drive(advance, started(state), ContrastiveSearch(predict, limits, top_k, penalty))


class ContrastiveSearch(IncrementalSearch):
    """Contrastive search for some sources. It is advanced by hidden vectors, and the model reads all candidates of a
    source, each in a row of its own, before one of them is chosen."""

    def __init__(
        self, predict: Callable[[Tensor], Tensor], limits: Limits, top_k: int, penalty: float, *, rows: int = 1
    ) -> None:
        """The first turn has so many `rows` for each source: one, or as many as there are candidates."""
        self.predict, self.limits, self.top_k, self.penalty = predict, limits, top_k, penalty
        longest = limits.longest
        self.written = torch.full((len(longest), 1, 1), limits.bos, device=longest.device)  # (sources, 1, length + 1)
        self.log_prob = torch.zeros(len(longest), device=longest.device)
        self.ended = torch.full_like(longest, -1)  # (sources,): tokens of an output that is whole; -1: it is not
        self.said: Tensor | None = None  # (sources, length + 1, d_model): directions of the hidden vectors
        self.candidates = self.written[:, 0].expand(-1, rows)  # (sources, rows)
        self.found: Tensor | None = None  # (sources, rows): log p of each; None before the first token
        self.best: Tensor | None = None  # (sources, rows): that again, -inf where the limits leave none

    @property
    def token(self) -> Tensor:
        return self.candidates.flatten()

    @property
    def over(self) -> Tensor:
        return self.ended >= 0

    @property
    def kind(self) -> Hashable:
        return None

    def advance(self, given: Tensor) -> Tensor | None:
        read = given.unflatten(0, self.candidates.shape)  # (sources, rows, d_model)
        directions, row = _directions(read), torch.arange(len(read), device=given.device)
        pick = torch.zeros_like(row) if self.said is None else self._chosen(directions, row)
        own = directions[row, pick].unsqueeze(1)
        self.said = own if self.said is None else torch.cat((self.said, own), dim=1)
        rows = row * read.shape[1] + pick
        self._propose(read[row, pick])
        return rows.repeat_interleave(self.candidates.shape[1])

    def _chosen(self, directions: Tensor, row: Tensor) -> Tensor:
        """The number of the best candidate of each source, which is written."""
        assert self.said is not None
        assert self.found is not None
        assert self.best is not None
        alike = (directions @ self.said.mT).amax(-1)  # (sources, rows)
        score = (1 - self.penalty) * self.best.exp() - self.penalty * alike
        pick = score.masked_fill(self.best == -math.inf, -math.inf).argmax(-1)
        token, before = self.candidates[row, pick], self.over
        self.log_prob = torch.where(before, self.log_prob, self.log_prob + self.found[row, pick])
        self.ended = torch.where(~before & (token == self.limits.eos), self.written.shape[2] - 1, self.ended)
        self.written = torch.cat((self.written, token[:, None, None]), dim=-1)
        return pick

    def _propose(self, hidden: Tensor) -> None:
        """The likeliest next tokens. What is as long as can be only closes, and the model, which may have no position
        left, reads no more of it."""
        given, length = self.predict(hidden).unsqueeze(1), self.written.shape[2] - 1  # (sources, 1, vocabulary)
        full = ~self.over & (self.limits.longest <= length)
        self.log_prob = torch.where(full, self.log_prob + given[:, 0, self.limits.eos], self.log_prob)
        self.ended = torch.where(full, length, self.ended)
        allowed = self.limits.apply(given.clone(), self.written).squeeze(1)
        self.best, token = allowed.topk(min(self.top_k, allowed.shape[-1]), dim=-1)
        # Where the limits leave fewer, and be it none, closing stands in: it is never preferred to what is allowed.
        token = token.masked_fill(self.best == -math.inf, self.limits.eos)
        self.candidates = self.limits.hold(token, torch.tensor([length], device=token.device))
        self.found = given.squeeze(1).gather(1, self.candidates)

    def results(self, sources: Tensor) -> Callable[[], list[list[Hypothesis]]]:
        arriving = copy_to_host(self.written[sources, 0, 1:], self.ended[sources], self.log_prob[sources])

        def wait() -> list[list[Hypothesis]]:
            every = zip(*(x.tolist() for x in arriving()), strict=True)
            return [[Hypothesis(tokens[:end], value, value)] for tokens, end, value in every]

        return wait

    def settled(self, sources: Tensor) -> Callable[[], list[list[int]]]:
        arriving = copy_to_host(self.written[sources, 0, 1:])
        return lambda: arriving()[0].tolist()

    def keep(self, stay: Tensor) -> None:
        self.limits = self.limits.keep(stay)
        for name in ("written", "log_prob", "ended", "said", "candidates", "found", "best"):
            value = getattr(self, name)
            setattr(self, name, value if value is None else value[stay])

    def join(self, others: Sequence[ContrastiveSearch]) -> None:
        raise ValueError("contrastive searches that began at different times are not joined")


def _directions(hidden: Tensor) -> Tensor:
    """Vectors of length 1 whose products are cosines, in full precision at least."""
    return normalize(hidden.to(torch.promote_types(hidden.dtype, torch.float32)), dim=-1)
