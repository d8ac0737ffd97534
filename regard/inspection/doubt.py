"""How doubtful an output is, by signs that need no reference: to read the doubtful sentences of a document first.

NMTVis (Munz et al. 2021) ranks the sentences of a document by confidence, coverage and the like; those that read
attention are of Rikters et al. 2017. Here four signs make one number, each of which alone can bring it to 1:

    doubt = 1 - c √w (1 - g) (1 - r)

- `c = exp(mean log p)` over the tokens of the output, its end included: the geometric mean of their probabilities;
- `w`, the same of its least probable word;
- `g`, the coverage gap: `1/J Σ_j max(0, 1 - a_j)` over the `J` words of the source, where `a_j` is all attention that
  word `j` received (the layer to align by, the mean of its heads), times `J / I` where the output has fewer words `I`;
  0 of a source that is no text or is not attended to;
- `r`, repetition: the share of the output's word bigrams that stood in it before, less that of the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from regard.data.side import Field
from regard.errors import DataError
from regard.evaluation.alignment import Weights, merge_words
from regard.inspection.inspect import written_by
from regard.inspection.tokens import finite
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Problem, Tokens
from regard.tasks.task import Task

LITTLE = 0.2  # a source word that received less attention than this share of a word's is not attended to


@dataclass(frozen=True)
class Doubt:
    """An output and the signs that something may be wrong with it; see the module."""

    text: str
    mean_log_prob: float  # over its tokens
    least_word: str  # the least probable; "" where there is none
    least_log_prob: float  # the mean over that word's tokens
    gap: float  # in coverage
    unattended: list[int]  # source words that hardly anything was attended to of
    repetition: float

    @property
    def doubt(self) -> float:
        """In [0, 1], of which 1 is most."""
        sure = math.exp(self.mean_log_prob + 0.5 * self.least_log_prob)
        return min(1.0, max(0.0, 1.0 - sure * (1.0 - self.gap) * (1.0 - self.repetition)))

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are infinite are None."""
        numbers = ("doubt", "mean_log_prob", "least_log_prob", "gap", "repetition")
        plain = {name: finite(getattr(self, name)) for name in numbers}
        return {"text": self.text, **plain, "least_word": self.least_word, "unattended": self.unattended}


def doubts(
    task: Task, fields: Sequence[Field], search: Search, problem: Problem, targets: Sequence[str] | None = None
) -> list[Doubt | None]:
    """How doubtful the best output for each source is, or the target that is given for it, in batches; None where there
    is none, of which `problem` hears."""
    writing = written_by(task)
    written: dict[int, Tokens] = {}
    if targets is None:
        outputs = writing.outputs(fields, search.model_copy(update={"nbest": 1}), problem)
        written = {i: some[0].tokens for i, some in enumerate(outputs) if some}
    else:
        if len(targets) != len(fields):
            raise DataError(f"{len(fields)} sources but {len(targets)} targets; each source needs its target")
        for i, (what, tokens) in enumerate(
            zip(writing.unfit_pairs(fields, targets), writing.target.encode_many(targets), strict=True)
        ):
            if what:
                problem(i, what)
            else:
                written[i] = tokens
    return _judged(writing, fields, written)


def _judged(task: TextGeneration, fields: Sequence[Field], written: dict[int, Tokens]) -> list[Doubt | None]:
    numbers = list(written)
    items, tokens = task.source.encode_many([fields[i] for i in numbers]), [written[i] for i in numbers]
    scores, gaps = task.score_items(items, tokens), [(0.0, list[int]())] * len(items)
    text_source = len(task.source.parts) == 1 and task.source.settings.text and task.best_layer is not None
    if text_source:
        assert task.best_layer is not None, "there is attention over the source"
        for k, attended in task.attention(items, tokens, [task.best_layer]):
            weights = attended[task.best_layer].mean(0)
            gaps[k] = coverage_gap(weights, [*task.target.words(tokens[k]), -1], task.source.words(items[k]))
    found: list[Doubt | None] = [None] * len(fields)
    for k, i in enumerate(numbers):
        text = task.text_of(items[k], tokens[k])
        given = len(task.target.encode(task.source.prompt(fields[i])))
        own = scores[k].tokens[given:]
        word, log_prob = _least_word(task, tokens[k][given:], own)
        mean = math.fsum(own) / len(own)
        repeated = max(0.0, repetition(text) - (repetition(str(fields[i])) if text_source else 0.0))
        found[i] = Doubt(text, mean, word, log_prob, *gaps[k], repeated)
    return found


def coverage_gap(weights: Weights, target_word: Sequence[int], source_word: Sequence[int]) -> tuple[float, list[int]]:
    """What part of the source words no attention went to, and which words had hardly any. `weights` are those of target
    pieces to source pieces, the words of which are given (-1: none), as in `merge_words`."""
    return uncovered(merge_words(weights, target_word, source_word))


def uncovered(words: Weights) -> tuple[float, list[int]]:
    """Like `coverage_gap`, of the weights of target words to source words."""
    rows, columns = words.shape
    if not words.size:
        return 0.0, []
    received = words.sum(0, dtype=np.float64) * max(1.0, columns / rows)
    missing = np.flatnonzero(received < LITTLE).tolist()
    return float(np.clip(1.0 - received, 0.0, None).mean()), missing


def repetition(text: str) -> float:
    """The share of a text's word bigrams that stood in it before; words stand between blanks."""
    words = text.split()
    pairs = list(pairwise(words))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _least_word(task: TextGeneration, tokens: Tokens, log_probs: Sequence[float]) -> tuple[str, float]:
    """The least probable word of an output, and the mean `log p` of its tokens."""
    words: dict[int, list[int]] = {}
    for place, word in enumerate(task.target.words(tokens)):
        if word >= 0:
            words.setdefault(word, []).append(place)
    if not words:
        return "", 0.0
    means = {word: math.fsum(log_probs[place] for place in own) / len(own) for word, own in words.items()}
    least = min(means, key=lambda word: means[word])
    return task.target.decode([tokens[place] for place in words[least]]), means[least]
