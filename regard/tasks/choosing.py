"""Choosing between candidates by how probable a model finds them after a context, few-shot prompting included.

Brown et al. 2020 (arXiv 2005.14165), 2.4: K solved examples stand before the question, each candidate is scored by its
likelihood, by token where candidates differ in length or, on some data, relative to what it is by itself,
`p(candidate | context) / p(candidate | "Answer:")`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np

from regard.data.candidates import Question
from regard.data.tokens import clean
from regard.errors import ConfigError, shown
from regard.evaluation.metrics import Score
from regard.registry import did_you_mean
from regard.tasks.generating import TextGeneration
from regard.tasks.language_model import LanguageModeling
from regard.tasks.results import Problem, Tokens
from regard.tasks.task import Task

By = Literal["sum", "token", "byte", "prior"]


@dataclass(frozen=True)
class Choosing:
    """How candidates are scored, and what stands before them.

    `by` is what decides: log p (`sum`), its mean over tokens (`token`) or over bytes of UTF-8 (`byte`), or log p less
    that after `null` (`prior`). `template` says how a context and its answer stand together.
    """

    by: By = "sum"
    null: str = "Answer:"
    template: str = "{context} {answer}"
    shots: Sequence[tuple[str, str]] = ()  # solved examples: contexts and answers
    count: int = 0  # so many of them before each question
    separator: str = "\n"  # between them
    seed: int = 1  # of which they are

    def __post_init__(self) -> None:
        if self.by not in (known := get_args(By)):
            raise ConfigError(f"candidates are not scored by {shown(self.by)}; {did_you_mean(str(self.by), known)}")
        if self.template.count("{context}") != 1 or self.template.count("{answer}") != 1:
            raise ConfigError(f"the template {self.template!r} should hold {{context}} and {{answer}} once each")
        if self.template.index("{context}") > self.template.index("{answer}"):
            raise ConfigError(f"the template {self.template!r} should have {{context}} before {{answer}}")
        if not 0 <= self.count <= len(self.shots):
            raise ConfigError(
                f"{self.count} examples are to stand before each question, and there are {len(self.shots)}"
            )

    def prompt(self, question: Question, number: int) -> str:
        """All that stands before a candidate; which examples are drawn follows from the seed and the question's number,
        and none has its context."""
        filled = [self._filled(context, answer) for context, answer in self._drawn(question, number)]
        return self.separator.join([*filled, self._filled(question.context, None)])

    def _drawn(self, question: Question, number: int) -> list[tuple[str, str]]:
        if not self.count:
            return []
        order = np.random.default_rng((self.seed, number)).permutation(len(self.shots)).tolist()
        others = (self.shots[i] for i in order if self.shots[i][0] != question.context)
        return list(islice(others, self.count))

    def _filled(self, context: str, answer: str | None) -> str:
        """The template with a context, up to the answer or with it."""
        before, _, after = self.template.partition("{answer}")
        asked = before.replace("{context}", context)
        return asked if answer is None else f"{asked}{answer}{after}"

    @property
    def signature(self) -> str:
        """How it was chosen, for scores."""
        null = f"|null:{self.null}" if self.by == "prior" else ""
        return f"by:{self.by}{null}|shots:{self.count}|seed:{self.seed}|template:{self.template}"


@dataclass(frozen=True)
class Choice:
    """What was chosen: its number and text, and of each candidate the score and log p."""

    index: int
    text: str
    scores: list[float]
    log_probs: list[float]


def choose(task: Task, questions: Sequence[Question], how: Choosing, problem: Problem) -> list[Choice | None]:
    """The best candidate of each question, the first of those that are alike; None for a question that cannot be read,
    which `problem` hears of."""
    if not isinstance(task, TextGeneration) or not task.config.target.text or any(
        side.given and not side.text for side in task.config.sources
    ):  # fmt: skip
        raise ConfigError("choosing needs a model that writes text after text, such as a language model")
    pairs, usable = list[tuple[str, str]](), list[int]()
    for i, question in enumerate(questions):
        own = [(how.prompt(question, i), candidate) for candidate in question.candidates]
        if what := next(filter(None, (_unfit(task, *pair) for pair in own)), None):
            problem(i, what)
            continue
        usable.append(i)
        pairs += own
    found = candidate_log_probs(task, pairs)
    null = candidate_log_probs(task, [(how.null, text) for _, text in pairs]) if how.by == "prior" else found
    rest = iter(zip(pairs, found, null, strict=True))
    results: list[Choice | None] = [None] * len(questions)
    for i in usable:
        rows = list(islice(rest, len(questions[i].candidates)))
        sums = [math.fsum(own) for _, own, _ in rows]
        scores = [_normalized(how.by, *row) for row in rows]
        best = max(range(len(rows)), key=scores.__getitem__)
        results[i] = Choice(best, questions[i].candidates[best], scores, sums)
    return results


def _normalized(by: By, pair: tuple[str, str], found: list[float], null: list[float]) -> float:
    total = math.fsum(found)
    match by:
        case "token":
            return total / max(len(found), 1)
        case "byte":
            return total / max(len(clean(pair[1]).encode()), 1)
        case "prior":
            return total - math.fsum(null)
        case _:
            return total


def candidate_log_probs(task: TextGeneration, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """`log p` of each token of each candidate after its context. To a language model both are one text, whose end does
    not count; of other models the context is the source, and the end of the candidate counts."""
    if not isinstance(task, LanguageModeling):
        return [found.tokens for found in task.score([x for x, _ in pairs], [y for _, y in pairs])]
    split = [_continued(task, *pair) for pair in pairs]
    scored = task.score_items(task.source.encode_many([""] * len(split)), [[*before, *own] for before, own in split])
    return [
        found.tokens[len(before) : len(before) + len(own)]
        for found, (before, own) in zip(scored, split, strict=True)
    ]  # fmt: skip


def _continued(task: TextGeneration, context: str, candidate: str) -> tuple[Tokens, Tokens]:
    """The tokens of a context, and those of a candidate that goes on with it."""
    before = task.target.encode(context)
    blank = "" if not context or context[-1].isspace() else " "
    whole = task.target.encode(f"{context}{blank}{candidate}")
    if list(whole[: len(before)]) == list(before) and len(whole) > len(before):
        return before, whole[len(before) :]
    return before, task.target.encode(candidate)  # where the two are cut differently side by side


def _unfit(task: TextGeneration, context: str, candidate: str) -> str | None:
    if not isinstance(task, LanguageModeling):
        return task.unfit(task.source.encode_many([context])[0], task.target.encode(candidate))
    before, own = _continued(task, context, candidate)
    if len(before) + len(own) < task.longest:
        return None
    return f"has {len(before) + len(own)} tokens, more than a model of {task.longest} positions can read"


def choice_accuracy(choices: Sequence[Choice | None], questions: Sequence[Question], how: Choosing) -> Score | None:
    """Percent of questions whose right candidate was chosen, of those that say which it is; None if none does."""
    known = [(x, q.gold) for x, q in zip(choices, questions, strict=True) if q.gold is not None]
    if not known:
        return None
    right = sum(x is not None and x.index == gold for x, gold in known)
    return Score("accuracy", 100.0 * right / len(known), f"percent|n:{len(known)}|{how.signature}")
