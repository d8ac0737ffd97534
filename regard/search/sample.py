"""Sampling, all sources at once; a source whose samples have all ended leaves the batch.

What is drawn for a source depends on its key alone, not on what is drawn beside it or before it: token `t` of sample
`k` comes from a number in [0, 1) that is computed from (key, k, t) (counter-based, Salmon et al. 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.graphs import Graphs
from regard.search.incremental import IncrementalSearch, drive
from regard.search.limits import Hypothesis, Limits
from regard.search.stepper import Stepper, scoring, started
from regard.search.transfer import copy_to_host

GOLDEN = -0x61C8864680B583EB  # 2**64 divided by the golden ratio, as a signed number


def sample(
    model: Stepper, state: Any, *, limits: Limits, keys: Tensor, count: int = 1, temperature: float = 1.0,
    epsilon: float = 0.0, top_k: int = 0, top_p: float = 1.0, typical_p: float = 1.0,
) -> list[list[Hypothesis]]:  # fmt: skip
    """`count` outputs of each source, drawn token by token; `log_prob` is the model's own, before the limits.

    `state` is the model's before the first token, or a `LazyStart`. `keys` `(sources,)` are whole numbers of 64 bits,
    from which all draws of a source follow (see `line_keys`). The limits are applied first, the repetition penalty
    before all others, then the `temperature`, `top_k`, `top_p`, `typical_p` and `epsilon`, in this order.
    """
    if not len(limits.longest):
        return []
    step, normalised = scoring(model)
    search = Sampling(
        limits, keys, count, temperature=temperature, epsilon=epsilon, top_k=top_k, top_p=top_p, typical_p=typical_p,
        normalised=normalised,
    )  # fmt: skip
    return drive(step, started(state), search)


class Sampling(IncrementalSearch):
    """Samples of some sources; see `sample`."""

    def __init__(
        self, limits: Limits, keys: Tensor, count: int = 1, *, temperature: float = 1.0, epsilon: float = 0.0,
        top_k: int = 0, top_p: float = 1.0, typical_p: float = 1.0, rows: int = 1, normalised: bool = True,
    ) -> None:  # fmt: skip
        """The first turn has so many `rows` for each source: one, or as many as there are samples. It is advanced by
        logits or, `normalised`, by log-probabilities."""
        self.limits, self.count, self.normalised = limits, count, normalised
        self.temperature, self.epsilon, self.top_k, self.top_p = temperature, epsilon, top_k, top_p
        self.typical_p = typical_p
        sources, device = len(limits.longest), limits.longest.device
        self.keys = keys.to(device, non_blocking=True)
        self.length = torch.zeros(1, dtype=torch.long, device=device)  # (1,) or (sources,): tokens of each sample
        self.longest = 0  # none is longer, as far as is known without asking the device
        self.written = torch.full((sources, rows, 1), limits.bos, device=device)  # (sources, samples, tokens + 1)
        self.log_prob = torch.zeros(sources, rows, device=device)
        self.ended = torch.zeros(sources, rows, dtype=torch.bool, device=device)

    @property
    def token(self) -> Tensor:
        place = self.length[:, None, None].expand(*self.written.shape[:2], 1)
        return self.written.gather(2, place).flatten()

    @property
    def over(self) -> Tensor:
        return self.ended.all(1)

    @property
    def kind(self) -> Hashable:
        how = (self.temperature, self.epsilon, self.top_k, self.top_p, self.typical_p)
        return Sampling, self.count, how, self.normalised, self.written.shape[1], self.limits.rules

    def advance(self, given: Tensor) -> Tensor | None:
        limits, rows = self.limits, None
        scores = given.unflatten(0, self.written.shape[:2])
        if scores.shape[1] < self.count:  # all samples of a source share the first step
            rows = torch.arange(len(given), device=given.device).repeat_interleave(self.count)
            scores, self.written, self.log_prob, self.ended = (
                x.repeat_interleave(self.count, 1) for x in (scores, self.written, self.log_prob, self.ended)
            )
        log_probs = self._normal(scores)
        odds = log_probs.clone()
        if limits.repetition != 1.0:
            odds = self._normal(limits.discourage(scores.clone(), self.written, self.length))
        odds = limits.apply(odds, self.written, self.length) / self.temperature
        odds = filter_typical(filter_top(odds, self.top_k, self.top_p), self.typical_p)
        odds = filter_epsilon(odds, self.epsilon)
        nowhere = (odds == -math.inf).all(-1)  # the limits left no way on: close
        odds = odds.masked_fill(nowhere.unsqueeze(-1), 0.0)
        each = torch.arange(self.count, device=given.device)
        drawn = uniforms(self.keys[:, None], each, self.length[:, None])
        token = choose(odds.softmax(-1, torch.float64), drawn)
        token = limits.hold(token.masked_fill(self.ended | nowhere, limits.eos), self.length)
        found = log_probs.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        self.log_prob = self.log_prob + found.masked_fill(self.ended, 0.0)
        self.length, self.longest = self.length + 1, self.longest + 1
        if self.longest >= self.written.shape[2]:
            self.written = F.pad(self.written, (0, 16), value=limits.eos)
        place = self.length[:, None, None].expand(*token.shape, 1)
        self.written.scatter_(2, place, token.unsqueeze(-1))
        self.ended = self.ended | (token == limits.eos)
        return rows

    def _normal(self, scores: Tensor) -> Tensor:
        return scores if self.normalised else scores.log_softmax(-1, torch.float32)

    def results(self, sources: Tensor) -> Callable[[], list[list[Hypothesis]]]:
        arriving, eos = copy_to_host(self.written[sources, :, 1:], self.log_prob[sources]), self.limits.eos
        return lambda: [_hypotheses(written, log_prob, eos) for written, log_prob in zip(*arriving(), strict=True)]

    def settled(self, sources: Tensor) -> Callable[[], list[list[int]]]:
        tokens, length = self.written[sources, :, 1:], self.length.expand(len(self.keys))[sources]
        place = torch.arange(tokens.shape[-1], device=tokens.device) < length[:, None]
        same = (tokens == tokens[:, :1]).all(1) & (tokens[:, 0] != self.limits.eos) & place
        arriving = copy_to_host(tokens[:, 0], same.int().cumprod(1).sum(1))
        return lambda: [row[:end] for row, end in zip(*(x.tolist() for x in arriving()), strict=True)]

    def keep(self, stay: Tensor) -> None:
        self.limits = self.limits.keep(stay)
        self.length = self.length if len(self.length) == 1 else self.length[stay]
        self.keys, self.written, self.log_prob, self.ended = (
            x[stay] for x in (self.keys, self.written, self.log_prob, self.ended)
        )

    def fixed(self, sources: Tensor, graphs: Graphs) -> None:
        """With no more room than the samples that go on need: those that are put in place do not lengthen it."""
        self.keep(sources)
        self.longest = int(self.length.max())
        self.written = F.pad(self.written, (0, self.longest + 16 - self.written.shape[2]), value=self.limits.eos)

    def put(self, places: Tensor, other: Sampling) -> bool:
        wider = self.written.shape[2] - other.written.shape[2]
        if wider < 0 or not self.limits.put(places, other.limits):
            return False
        if len(self.length) < len(self.keys):
            self.length = self.length.expand(len(self.keys)).clone()
        self.written.index_copy_(0, places, F.pad(other.written, (0, wider), value=self.limits.eos))
        self.length.index_copy_(0, places, other.length.expand(len(places)))
        for name in ("keys", "log_prob", "ended"):
            getattr(self, name).index_copy_(0, places, getattr(other, name))
        return True

    def join(self, others: Sequence[Sampling]) -> None:
        every = (self, *others)
        self.limits = self.limits.joined([other.limits for other in others])
        self.length = torch.cat([each.length.expand(len(each.keys)) for each in every])
        self.longest = int(self.length.max())
        wide = self.longest + 16
        self.written = torch.cat([
            F.pad(each.written, (0, wide - each.written.shape[2]), value=self.limits.eos) for each in every
        ])  # fmt: skip
        self.keys, self.log_prob, self.ended = (
            torch.cat([getattr(each, name) for each in every]) for name in ("keys", "log_prob", "ended")
        )


def line_keys(seed: int, numbers: Sequence[int]) -> Tensor:
    """A key for each line of these numbers: another one under another seed."""
    return _mix(_mix(torch.tensor([_signed(seed)])) + torch.tensor([*map(_signed, numbers)], dtype=torch.long) * GOLDEN)


def uniforms(keys: Tensor, sample: Tensor, step: int | Tensor) -> Tensor:
    """A number in [0, 1), in float64, for each key and number of a sample at a step; the same on every device."""
    turned = (step + 1) * GOLDEN
    bits = _mix(_mix(keys + (sample + 1) * GOLDEN) + (_signed(turned) if isinstance(turned, int) else turned))
    return _shifted(bits, 11).double() * 2.0**-53


def choose(probs: Tensor, uniform: Tensor) -> Tensor:
    """For each row of `(…, vocabulary)` the first token with which the probabilities add up to more than `uniform`
    `(…,)` of all of them."""
    # Sums that run in parallel need not rise with each token, and one of probability 0 is never chosen.
    reached = torch.where(probs > 0, probs.cumsum(-1), 0.0)
    return (reached > uniform.unsqueeze(-1) * reached.amax(-1, keepdim=True)).to(torch.int8).argmax(-1)


def _mix(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al. 2014), on int64, which wraps around as uint64 does."""
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros moving in, where int64 has its sign moving in."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _signed(x: int) -> int:
    """The number of 64 bits that `x` is, were it to wrap around."""
    return (x + 2**63) % 2**64 - 2**63


def filter_epsilon(log_probs: Tensor, epsilon: float) -> Tensor:
    """Epsilon sampling (Hewitt et al. 2022): keep tokens at least as probable as `epsilon`, and the likeliest."""
    if not epsilon:
        return log_probs
    probs = log_probs.softmax(-1)
    return log_probs.masked_fill((probs < epsilon) & (probs < probs.amax(-1, keepdim=True)), -math.inf)


def filter_top(log_probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` likeliest tokens, and of these the likeliest that hold `top_p` (Holtzman et al. 2020)."""
    if top_k and top_k < log_probs.shape[-1]:
        least = log_probs.topk(top_k, dim=-1).values[..., -1:]
        log_probs = log_probs.masked_fill(log_probs < least, -math.inf)
    return _keep_first(log_probs, log_probs.argsort(dim=-1, descending=True), top_p) if top_p < 1.0 else log_probs


def filter_typical(log_probs: Tensor, typical_p: float) -> Tensor:
    """Locally typical sampling (Meister et al. 2023): of the tokens by `|-log p - H|`, H being the entropy, the first
    that hold `typical_p`."""
    if typical_p == 1.0:
        return log_probs
    normal = log_probs.log_softmax(-1)
    entropy = torch.special.entr(normal.exp()).sum(-1, keepdim=True)
    return _keep_first(log_probs, (-normal - entropy).abs().argsort(dim=-1), typical_p)


def _keep_first(log_probs: Tensor, order: Tensor, share: float) -> Tensor:
    """Keep the first tokens in this order that hold this share of the probability."""
    probs = log_probs.gather(-1, order).softmax(-1)
    least = max(share, torch.finfo(probs.dtype).tiny)  # that of the first token is kept by any share
    beyond = probs.cumsum(-1) - probs >= least  # those before a token already hold it
    return log_probs.masked_fill(beyond.gather(-1, order.argsort(-1)), -math.inf)


def _hypotheses(written: Tensor, log_prob: Tensor, eos: int) -> list[Hypothesis]:
    every = zip(written.tolist(), log_prob.tolist(), strict=True)
    found = [Hypothesis(tokens[: tokens.index(eos)], value, value) for tokens, value in every]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
