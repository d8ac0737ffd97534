"""What training makes small."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """`Σ -log p(y_t)` over packed tokens, `(total, vocabulary)` and `(total,)`.

    With label smoothing (Szegedy et al. 2016) the target keeps `1 - smoothing` and the rest is spread over all tokens.
    """
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="sum")
