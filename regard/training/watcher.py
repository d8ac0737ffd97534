"""Whoever looks on while a model trains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """What a display gets after each update."""

    step: int
    done: float  # the share of training that is behind
    loss: float | None  # a mean per token, every `log_every` updates
    tokens_per_second: float


class Watcher:
    """Hears of updates and messages; this one keeps silent."""

    def update(self, update: Update) -> None:
        """After each update."""

    def message(self, text: str) -> None:
        """Something worth a line."""
