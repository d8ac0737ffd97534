"""What training costs, counted rather than timed: operations of a target token, and memory of a batch.

Both are counted on the CPU, in the plain kernels that can be counted, so they do not depend on the machine.
"""

from __future__ import annotations

import copy
import math
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from regard.data.batch import Batch
from regard.tasks.task import Task
from regard.training.objectives import Objective, make_objective
from regard.training_settings import Training

BYTES_A_WEIGHT = 16  # a weight, its gradient and AdamW's two moments, in float32


@dataclass(frozen=True)
class Cost:
    """Of one model on one corpus."""

    parameters: int
    flops_per_token: float  # forward and backward: multiplications and additions of all matrix products
    tokens_per_batch: float  # target tokens
    memory: int  # bytes: weights, gradients, moments, and what the largest batch saves for its backward pass


def count_cost(task: Task, batches: Sequence[Batch], settings: Training) -> Cost:
    """Count on some batches."""
    model = copy.deepcopy(task.model).cpu().train()
    smoothing = settings.label_smoothing
    objective = make_objective(model, settings.objective, smoothing, task.first, task.longest, task.target)
    if settings.objective.sampled:  # which tokens are drawn bears little on what they cost
        written = torch.cat([batch.outputs.values for batch in batches])
        objective.use_counts(1 + torch.bincount(written[written >= 0], minlength=task.target.size))
    tokens, flops, saved = 0, 0, 0
    for batch in batches:
        saved = max(saved, _saved_bytes(model, objective, batch))
        # oneDNN's recurrent kernel and fused attention tell the counter nothing; without them it sees their products.
        # That oneDNN is turned off warns of TF32 on GPUs that are not there, when it is and when it is undone.
        with (
            warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False),
            sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter,
        ):  # fmt: skip
            objective(batch, 0.5).backward()
        flops, tokens = flops + counter.get_total_flops(), tokens + batch.tokens
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(parameters, flops / tokens, tokens / len(batches), BYTES_A_WEIGHT * parameters + saved)


def _saved_bytes(model: nn.Module, objective: Objective, batch: Batch) -> int:
    """Bytes that a batch's forward pass saves for its backward pass, weights not counted, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    # Weakly: what the forward pass lets go again is not saved, and the next tensor may come to lie at its address.
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Tensor:
        saved = tensor.detach()
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        loss = objective(batch, 0.5)
    storages = [saved.untyped_storage() for saved in alive]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in weights}
    del loss  # held until here, and with it what its backward pass would need
    return sum(sizes.values())


@register_flop_formula(torch.ops.regard.linear_cross_entropy)
def _of_the_loss(
    x: torch.Size, weight: torch.Size, bias: Any, targets: Any, smoothing: Any, agreement: Any, chunk: Any, dtype: Any,
    for_x: bool, for_weight: bool, for_bias: bool, **rest: Any,
) -> int:  # fmt: skip
    """Operations of the products inside it, into which the counter does not see."""
    return 2 * math.prod(x) * weight[0] * (1 + for_x + for_weight)
