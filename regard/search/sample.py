"""Sampling, all sources at once; a source whose samples have all ended leaves the batch.

What is drawn for a source depends on its key alone, not on what is drawn beside it or before it: token `t` of sample
`k` comes from a number in [0, 1) that is computed from (key, k, t) (counter-based, Salmon et al. 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.search.limits import Hypothesis, Limits
from regard.search.stepper import Stepper, started

GOLDEN = -0x61C8864680B583EB  # 2**64 divided by the golden ratio, as a signed number


def sample(
    model: Stepper, state: Any, *, limits: Limits, keys: Tensor, count: int = 1, temperature: float = 1.0,
    epsilon: float = 0.0, top_k: int = 0, top_p: float = 1.0,
) -> list[list[Hypothesis]]:  # fmt: skip
    """`count` outputs of each source, drawn token by token; `log_prob` is the model's own, before the limits.

    `state` is the model's before the first token, or a `LazyStart`. `keys` `(sources,)` are whole numbers of 64 bits,
    from which all draws of a source follow (see `line_keys`). The limits are applied first, then the `temperature`,
    `epsilon`, `top_k` and `top_p`, in this order.
    """
    sources, device, state = len(limits.longest), limits.longest.device, started(state)
    keys, each = keys.to(device), torch.arange(count, device=device)
    number = torch.arange(sources, device=device)
    written = torch.full((sources, 1, 1), limits.bos, device=device)
    log_prob = torch.zeros(sources, 1, device=device)
    ended = torch.zeros(sources, 1, dtype=torch.bool, device=device)
    results: list[list[Hypothesis]] = [[] for _ in range(sources)]
    while len(number):
        log_probs, state = model.step(written[:, :, -1].flatten(), state)
        log_probs = log_probs.unflatten(0, written.shape[:2])
        if written.shape[1] < count:  # all samples of a source share the first step
            spread = torch.arange(len(number), device=device).repeat_interleave(count)
            state = state.select(spread)
            log_probs, written, log_prob, ended = (
                x.expand(-1, count, *x.shape[2:]) for x in (log_probs, written, log_prob, ended)
            )
        odds = limits.apply(log_probs.clone(), written) / temperature
        odds = filter_top(filter_epsilon(odds, epsilon), top_k, top_p)
        nowhere = (odds == -math.inf).all(-1)  # the limits left no way on: close
        odds = odds.masked_fill(nowhere.unsqueeze(-1), 0.0)
        token = choose(odds.softmax(-1, torch.float64), uniforms(keys[:, None], each, written.shape[-1] - 1))
        token = limits.hold(token.masked_fill(ended | nowhere, limits.eos), written.shape[-1] - 1)
        log_prob = log_prob + log_probs.gather(-1, token.unsqueeze(-1)).squeeze(-1).masked_fill(ended, 0.0)
        written = torch.cat((written, token.unsqueeze(-1)), dim=-1)
        ended = ended | (token == limits.eos)
        done = ended.all(1)
        if done.any():
            for row in done.nonzero().flatten().tolist():
                results[int(number[row])] = _hypotheses(written[row, :, 1:], log_prob[row], limits.eos)
            stay = (~done).nonzero().flatten()
            rows = torch.arange(done.numel() * count, device=device).view(-1, count)[stay].flatten()
            number, keys, written, log_prob, ended = (x[stay] for x in (number, keys, written, log_prob, ended))
            limits = limits.keep(stay)
            state = state.select(rows, stay)
    return results


def line_keys(seed: int, numbers: Sequence[int]) -> Tensor:
    """A key for each line of these numbers: another one under another seed."""
    return _mix(_mix(torch.tensor([_signed(seed)])) + torch.tensor([*map(_signed, numbers)], dtype=torch.long) * GOLDEN)


def uniforms(keys: Tensor, sample: Tensor, step: int) -> Tensor:
    """A number in [0, 1), in float64, for each key and number of a sample at a step; the same on every device."""
    bits = _mix(_mix(keys + (sample + 1) * GOLDEN) + _signed((step + 1) * GOLDEN))
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
    if top_p < 1.0:
        ranked, order = log_probs.sort(dim=-1, descending=True)
        probs = ranked.softmax(-1)
        beyond = probs.cumsum(-1) - probs >= top_p  # the share above a token already holds top_p
        log_probs = log_probs.masked_fill(beyond.gather(-1, order.argsort(-1)), -math.inf)
    return log_probs


def _hypotheses(written: Tensor, log_prob: Tensor, eos: int) -> list[Hypothesis]:
    every = zip(written.tolist(), log_prob.tolist(), strict=True)
    found = [Hypothesis(tokens[: tokens.index(eos)], value, value) for tokens, value in every]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
