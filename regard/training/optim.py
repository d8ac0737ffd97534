"""AdamW, and how its rate rises and falls."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.settings import Training


def make_optimizer(model: nn.Module, settings: Training, device: torch.device) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); weight decay pulls on matrices, not on biases, norms and embeddings."""
    gpu = device.type == "cuda"  # where a step may be recorded, so that its rate has to be a tensor
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in model.parameters() if p.dim() > 1 and p not in embeddings]
    others = [p for p in model.parameters() if p.dim() <= 1 or p in embeddings]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    rate = torch.tensor(settings.learning_rate, device=device) if gpu else settings.learning_rate
    return torch.optim.AdamW(groups, lr=rate, betas=settings.betas, eps=1e-9, fused=True, capturable=gpu)


def learning_rate(step: int, settings: Training, done: float = 0.0) -> float:
    """The rate of update `step`, from 1: a straight rise over the warm-up, then the schedule's fall. `done` is the
    share of training that is behind, where tokens or seconds limit it."""
    peak, warmup, steps = settings.learning_rate, settings.warmup, settings.steps
    if step <= warmup:
        return peak * step / warmup
    past = min(max((step - warmup) / max(steps - warmup, 1), done if settings.tokens or settings.seconds else 0.0), 1.0)
    match settings.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1.0 - past)
        case "cosine":
            return peak * 0.5 * (1.0 + math.cos(math.pi * past))
        case "inverse_sqrt":
            return peak * math.sqrt(max(warmup, 1) / step)
