"""What would have been written for another source, and how probable what was written would have been."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.side import Field, Item
from regard.errors import ConfigError
from regard.inspection.inspect import written_by
from regard.inspection.tokens import finite
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Tokens
from regard.tasks.task import Task


@dataclass(frozen=True)
class Counterfactual:
    """A variant of a source: what the model writes for it, and `log p` of what it wrote for the source itself."""

    field: Field
    text: str
    score: float
    log_prob_of_original: float
    change: float  # how much more probable the original output is with the variant than with the source, as a logarithm
    problem: str | None = None  # why nothing is written for it

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are infinite are None."""
        numbers = {name: finite(getattr(self, name)) for name in ("score", "log_prob_of_original", "change")}
        field = self.field if isinstance(self.field, str) else list(self.field)
        return {"field": field, "text": self.text, **numbers, "problem": self.problem}


def counterfactual(task: Task, field: Field, variants: Sequence[Field], search: Search) -> list[Counterfactual]:
    """Each variant of a source held against it, all in batches. A prompt counts as the source of a language model."""
    writing, problems = written_by(task, "there is no text whose probability could change"), dict[int, str]()
    outputs = writing.outputs([field, *variants], search, problems.__setitem__)
    if not outputs[0]:
        raise ConfigError(f"the source {problems.get(0, 'has no output')}")
    prompts = [writing.target.encode(writing.source.prompt(one)) for one in (field, *variants)]
    written = outputs[0][0].tokens[len(prompts[0]) :]
    targets = [[*prompt, *written] for prompt in prompts]
    usable = [i for i, found in enumerate(outputs) if found]
    items = dict(zip(usable, writing.source.encode_many([(field, *variants)[i] for i in usable]), strict=True))
    for i, item in items.items():
        if what := writing.unfit(item, targets[i]):
            problems[i] = what
    log_probs = _continued(writing, items, targets, [len(prompt) for prompt in prompts], problems)
    found = []
    for i, variant in enumerate(variants, 1):
        best = outputs[i][0] if outputs[i] else None
        text, score = ("", -math.inf) if best is None else (best.text, best.score)
        change = log_probs[i] - log_probs[0]
        found.append(Counterfactual(variant, text, score, log_probs[i], change, problems.get(i)))
    return found


def _continued(
    task: TextGeneration, items: dict[int, Item], targets: Sequence[Tokens], prompts: Sequence[int],
    problems: dict[int, str],
) -> list[float]:  # fmt: skip
    """`log p` of each target after its prompt, of so many tokens; -inf where there is a problem."""
    found = [-math.inf] * len(targets)
    some = [i for i in items if i not in problems]
    for i, pair in zip(some, task.score_items([items[i] for i in some], [targets[i] for i in some]), strict=True):
        found[i] = math.fsum(pair.tokens[prompts[i] :])
    return found


def without_each_word(text: str) -> list[str]:
    """The text without its first word, without its second, and so on; words stand between blanks."""
    words = text.split()
    return [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
