"""Numbers on their way between the host and a device, which goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def to_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers, sent to the device: nobody waits until they are there."""
    return torch.tensor(numbers, dtype=torch.long).to(device, non_blocking=True)


def copy_to_host(*given: Tensor) -> Callable[[], list[Tensor]]:
    """Send tensors on their way from the device; what is given back waits for them."""
    sent = [x.detach().to("cpu", non_blocking=True, copy=True) for x in given]
    event = torch.cuda.Event() if given[0].is_cuda else None
    if event is not None:
        event.record()

    def wait() -> list[Tensor]:
        if event is not None:
            event.synchronize()
        return sent

    return wait
