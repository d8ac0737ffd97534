"""Choosing again among finished hypotheses, by more than their probability."""

from __future__ import annotations

import torch
from torch import Tensor


def coverage_penalty(weights: Tensor, beta: float) -> float:
    """Wu et al. 2016, eq. 14: `β Σ_j log(min(Σ_i α_ij, 1))` for attention `(target, source)`; 0 if all was covered."""
    covered = weights.sum(0).clamp(max=1.0, min=torch.finfo(weights.dtype).tiny)
    return float(beta * covered.log().sum())
