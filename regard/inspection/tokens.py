"""The tokens of outputs one by one: how probable each was, and what else might have stood there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from regard.data.batch import IGNORED
from regard.data.side import Item
from regard.models.ctc import IMPOSSIBLE
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Tokens


@dataclass(frozen=True)
class Candidate:
    """A token that might stand in a place."""

    text: str
    id: int
    log_prob: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"text": self.text, "id": self.id, "log_prob": finite(self.log_prob)}


@dataclass(frozen=True)
class WrittenToken:
    """A token of an output, its `log p` after all before it, and the likeliest tokens there, itself among them if it is
    one; marks that no output holds are left out."""

    text: str
    id: int
    log_prob: float
    alternatives: tuple[Candidate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        others = [one.to_json() for one in self.alternatives]
        return {"text": self.text, "id": self.id, "log_prob": finite(self.log_prob), "alternatives": others}


def finite(number: float, digits: int = 5) -> float | None:
    """A number as JSON has it: rounded, and None for what is infinite."""
    return round(number, digits) if math.isfinite(number) else None


def written_tokens(
    task: TextGeneration, items: Sequence[Item], targets: Sequence[Tokens], alternatives: int = 0
) -> list[list[WrittenToken]]:
    """The tokens of each target for its source, the mark that ends it included, teacher forced in batches."""
    marks = task.target.marks
    hidden = sorted(marks.framing - {marks.end})
    found: list[list[WrittenToken]] = [[] for _ in items]
    for group, batch, logits in task.logits(items, targets):
        log_probs = logits.log_softmax(-1)
        outputs = batch.outputs.values
        own = log_probs.gather(1, outputs.clamp(min=0)[:, None]).squeeze(1).tolist()
        log_probs[:, [mark for mark in hidden if mark < log_probs.shape[1]]] = -math.inf
        best, ids = (x.tolist() for x in log_probs.topk(min(alternatives, log_probs.shape[1]), dim=-1))
        counted = (outputs != IGNORED).tolist()
        for i, (start, end) in zip(group, pairwise(batch.outputs.offsets.tolist()), strict=True):
            places = [place for place in range(start, end) if counted[place]]
            tokens = [*targets[i], marks.end]
            pieces = shown_pieces(task, tokens)
            for at, place in enumerate(places):
                every = zip(ids[place], best[place], strict=True)
                others = [(token, log_prob) for token, log_prob in every if log_prob > IMPOSSIBLE]
                names = [piece_after(task, int(tokens[at - 1]) if at else None, token) for token, _ in others]
                ranked = (Candidate(text, *one) for text, one in zip(names, others, strict=True))
                log_prob = own[place] if own[place] > IMPOSSIBLE else -math.inf
                found[i].append(WrittenToken(pieces[at], int(tokens[at]), log_prob, tuple(ranked)))
    return found


def shown_pieces(task: TextGeneration, tokens: Tokens) -> list[str]:
    """Each token of an output with the mark at its end, as it should be shown."""
    return [*task.target.pieces(tokens[:-1]), task.target.marks.names[task.target.marks.end]]


def piece_after(task: TextGeneration, before: int | None, token: int) -> str:
    """A token as it should be shown after the one before it, if there is one."""
    names = task.target.marks.names
    return names[token] if token in names else task.target.candidate(token, before)
