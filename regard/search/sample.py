"""Sampling over a step function, all sources at once; a source whose samples have all ended leaves the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.search.limits import Hypothesis, Limits, Step


def sample(
    step: Step,
    state: Any,
    *,
    limits: Limits,
    generator: torch.Generator,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[list[Hypothesis]]:
    """`count` outputs of each source, drawn token by token; `log_prob` is the model's own, before the limits."""
    sources, device = len(limits.longest), limits.longest.device
    number = torch.arange(sources, device=device)
    written = torch.full((sources, 1, 1), limits.bos, device=device)
    log_prob = torch.zeros(sources, 1, device=device)
    ended = torch.zeros(sources, 1, dtype=torch.bool, device=device)
    results: list[list[Hypothesis]] = [[] for _ in range(sources)]
    while len(number):
        log_probs, state = step(written[:, :, -1].flatten(), state)
        log_probs = log_probs.unflatten(0, written.shape[:2])
        if written.shape[1] < count:  # all samples of a source share the first step
            spread = torch.arange(len(number), device=device).repeat_interleave(count)
            state = state.select(spread)
            log_probs, written, log_prob, ended = (
                x.expand(-1, count, *x.shape[2:]) for x in (log_probs, written, log_prob, ended)
            )
        odds = filter_top(limits.apply(log_probs.clone(), written) / temperature, top_k, top_p)
        nowhere = (odds == -math.inf).all(-1)  # the limits left no way on: close
        odds = odds.masked_fill(nowhere.unsqueeze(-1), 0.0)
        token = torch.multinomial(odds.softmax(-1).flatten(0, 1), 1, generator=generator).view(odds.shape[:2])
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
            number, written, log_prob, ended = number[stay], written[stay], log_prob[stay], ended[stay]
            limits = limits.keep(stay)
            state = state.select(rows, stay)
    return results


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
    found = []
    for tokens, value in zip(written.tolist(), log_prob.tolist(), strict=True):
        cut = tokens[: tokens.index(eos)]
        found.append(Hypothesis(cut, value, value))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)
