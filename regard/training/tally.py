"""What is counted from update to update: loss, skipped updates, throughput."""

from __future__ import annotations

import time

import torch

from regard.training.checkpoint import Progress
from regard.training.update import Updated


class Tally:
    """Loss and skipped updates, summed on the device so that no update waits for them."""

    def __init__(self, progress: Progress, device: torch.device) -> None:
        start = (progress.loss, float(progress.in_a_row), float(progress.skipped), 0.0)
        self.loss, self.in_a_row, self.skipped, self.lost = (torch.tensor(value, device=device) for value in start)
        self.tokens = progress.counted

    def add(self, updated: Updated, tokens: int) -> None:
        self.loss = self.loss + updated.loss
        self.in_a_row = (self.in_a_row + 1.0) * updated.skipped
        self.skipped = self.skipped + updated.skipped
        self.lost = self.lost + tokens * updated.skipped
        self.tokens += tokens

    def read(self, progress: Progress) -> None:
        """Ask the device, and write down what a later process needs to count on."""
        progress.loss, progress.counted = float(self.loss), self.tokens - int(self.lost)
        progress.in_a_row, progress.skipped = int(self.in_a_row), int(self.skipped)

    def mean(self) -> float | None:
        """The loss of a token since this was last asked; None if every update was skipped."""
        loss, tokens = float(self.loss), self.tokens - int(self.lost)
        self.loss, self.lost, self.tokens = torch.zeros_like(self.loss), torch.zeros_like(self.lost), 0
        return loss / tokens if tokens else None


class Throughput:
    """Tokens per second, over the last hundred updates."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def add(self, tokens: int) -> float:
        self.marks.append((time.monotonic(), self.marks[-1][1] + tokens))
        self.marks = self.marks[-100:]
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / max(end - start, 1e-9)
