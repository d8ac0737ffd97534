"""Contrastive search: likely, but unlike what was said before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.search.limits import Hypothesis, Limits
from regard.search.stepper import Step, started


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
    sources, device = len(limits.longest), limits.longest.device
    results: list[list[Hypothesis]] = [[] for _ in range(sources)]
    if not sources:
        return results

    def finish(number: Tensor, written: Tensor, log_prob: Tensor) -> None:
        for i, tokens, value in zip(number.tolist(), written[:, 0, 1:].tolist(), log_prob.tolist(), strict=True):
            results[i] = [Hypothesis(tokens, value, value)]

    number = torch.arange(sources, device=device)
    written = torch.full((sources, 1, 1), limits.bos, device=device)
    log_prob = torch.zeros(sources, device=device)
    hidden, state = advance(written.flatten(), started(state))
    said = _directions(hidden).unsqueeze(1)  # (sources, length + 1, d_model)
    for length in range(int(limits.longest.max())):
        given = predict(hidden).unsqueeze(1)  # (sources, 1, vocabulary)
        allowed = limits.apply(given.clone(), written).squeeze(1)
        best, token = allowed.topk(min(top_k, allowed.shape[-1]), dim=-1)  # (sources, top_k)
        # Where the limits leave fewer, and be it none, closing stands in: it is never preferred to what is allowed.
        token = token.masked_fill(best == -math.inf, limits.eos)
        token = limits.hold(token, torch.tensor([length], device=device))
        row = torch.arange(len(token), device=device)
        read, state = advance(token.flatten(), state.select(row.repeat_interleave(token.shape[1])))
        alike = (_directions(read).unflatten(0, token.shape) @ said.mT).amax(-1)  # (sources, top_k)
        score = (1 - penalty) * best.exp() - penalty * alike
        pick = score.masked_fill(best == -math.inf, -math.inf).argmax(-1)  # (sources,)
        rows = row * token.shape[1] + pick
        token, hidden = token[row, pick], read[rows]
        log_prob = log_prob + given[row, 0, token]
        done = token == limits.eos
        if done.any():
            finish(number[done], written[done], log_prob[done])
            stay = (~done).nonzero().flatten()
            number, written, log_prob, said = number[stay], written[stay], log_prob[stay], said[stay]
            limits = limits.keep(stay)
            token, hidden, state = token[stay], hidden[stay], state.select(rows[stay], stay)
            if not len(number):
                break
        else:
            state = state.select(rows)
        written = torch.cat((written, token[:, None, None]), dim=-1)
        said = torch.cat((said, _directions(hidden).unsqueeze(1)), dim=1)
    else:  # what is still open is as long as can be and only closes; a model may have no position to read that mark at
        finish(number, written, log_prob + predict(hidden)[:, limits.eos])
    return results


def _directions(hidden: Tensor) -> Tensor:
    """Vectors of length 1 whose products are cosines, in full precision at least."""
    return normalize(hidden.to(torch.promote_types(hidden.dtype, torch.float32)), dim=-1)
