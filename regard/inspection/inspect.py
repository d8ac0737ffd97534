"""One input and what a model writes for it, laid open: every token with what else might have stood there, the beam as a
tree, the attention of all layers; from tokens that are forced, and with attention that is edited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.data.side import Field, Item
from regard.errors import ConfigError, DataError
from regard.explain.page import plain
from regard.explain.trace import Explanation
from regard.inspection.explaining import explained
from regard.inspection.tokens import WrittenToken, finite, piece_after, written_tokens
from regard.nn.edits import Edits, edited, shifted
from regard.search.limits import length_penalty
from regard.search.tree import BeamTree, TreeObserver
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Given, Output, Tokens
from regard.tasks.task import SIDES, Task, attention_kind, attention_part

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class WrittenOutput:
    """An output with its tokens; those of a prompt, which a language model is given, are not among them."""

    text: str
    score: float  # what it was ranked by
    log_prob: float
    tokens: list[WrittenToken]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "text": self.text, "score": finite(self.score), "log_prob": finite(self.log_prob),
            "tokens": [token.to_json() for token in self.tokens],
        }  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """What a model wrote for an input, and how it came about."""

    outputs: list[WrittenOutput]  # best first
    forced: int  # how many of their first tokens were forced
    explanation: Explanation  # of the best
    edited: bool  # whether attention was other than the model's own
    tree: BeamTree | None = None  # of beam search, where it was asked for

    def to_json(self) -> dict[str, Any]:
        """Plain data for a browser: numbers are rounded, and None where they are infinite."""
        return {
            "source": self.explanation.source, "source_word": self.explanation.source_word,
            "outputs": [output.to_json() for output in self.outputs], "forced": self.forced,
            "tree": None if self.tree is None else self.tree.to_json(), "explanation": plain(self.explanation),
            "edited": self.edited,
        }  # fmt: skip


def inspect(
    task: Task, field: Field, search: Search, *, forced: Sequence[int] = (), alternatives: int = 8,
    tree: bool = False, edits: Edits | None = None,
) -> Inspection:  # fmt: skip
    """Write outputs for an input, which begin with the `forced` tokens, by attention as `edits` has it, and look at all
    of it; with `tree`, at the beam too, if it is beam search. The mark that ends an output may be forced, as the last
    token: then there was no search."""
    if alternatives < 0:
        raise DataError(f"{alternatives} alternatives of a token cannot be shown; give 0 or more")
    writing = written_by(task)
    item = writing.item(field)
    if edits:
        writing = with_edits(writing, item, edits)
    observer = None
    if tree and not (search.sample or search.mbr or search.contrastive):
        divisor = partial(_length_penalty, writing, search)
        observer = TreeObserver(writing.first[-1], writing.target.marks.end, search.beam, divisor)
    outputs = forced_outputs(writing, field, forced, search, observer)
    targets = [output.tokens for output in outputs]
    tokens = written_tokens(writing, [item] * len(targets), targets, alternatives)
    given = len(writing.target.encode(writing.source.prompt(field)))
    grown = None if observer is None else observer.tree(targets[0])
    return Inspection(
        [WrittenOutput(x.text, x.score, x.log_prob, own[given:]) for x, own in zip(outputs, tokens, strict=True)],
        len(forced), explained(writing, field, item, targets[0]), bool(edits),
        None if grown is None else grown.labelled(partial(piece_after, writing)),
    )  # fmt: skip


def forced_outputs(
    task: TextGeneration, field: Field, forced: Tokens, search: Search, observer: TreeObserver | None = None
) -> list[Output]:
    """The best outputs for one input, best first, which begin with the `forced` tokens; a prompt comes before them. The
    mark that ends an output may be the last of them: then there is nothing to search for."""
    prompt, end = task.source.prompt(field), task.target.marks.end
    prefix = [*task.target.encode(prompt), *forced]
    ended = bool(forced) and prefix[-1] == end
    tokens = prefix[:-1] if ended else prefix
    if unknown := [token for token in tokens if not 0 <= token < task.target.size]:
        raise DataError(f"there is no token {unknown[0]}; there are {task.target.size}, counted from 0")
    # What a language model is given is all in the tokens.
    asked = task.requests(["" if prompt else field], search, _refuse, Given(prefix_tokens=[tokens]))[0]
    if ended:
        (pair,) = task.score_items([asked.item], [tokens])
        score = pair.log_prob / float(_length_penalty(task, search, torch.tensor([float(len(prefix))])))
        return [Output(task.text_of(asked.item, tokens), score, pair.log_prob, tokens)]
    (found,) = task.search([asked.item], search, prefixes=[tokens], observer=observer)
    return task.written(asked.item, found, search)


def _length_penalty(task: TextGeneration, search: Search, length: Tensor) -> Tensor:
    """What `log p` of outputs of so many tokens, the mark at the end counted, is divided by."""
    return length_penalty(search.length_penalty, search.alpha, length + task.target.marks.counted)


def _refuse(index: int, what: str) -> None:
    raise DataError(f"the source {what}")


def written_by(task: Task, otherwise: str = "there is no search to inspect") -> TextGeneration:
    """The task, if it writes an output token by token; an error says what follows otherwise."""
    if not isinstance(task, TextGeneration):
        raise ConfigError(f"this model predicts and does not write token by token, so {otherwise}")
    return task


def with_edits(task: T, item: Item, edits: Edits) -> T:
    """The task with attention edited, of which positions and weights are those that an explanation of `item` shows."""
    pieces = len(task.source.pieces(item))
    for row in edits.rows:
        if (kind := attention_kind(row.layer)) != "decoder":
            part = attention_part(row.layer)
            count = task.source.parts[part - 1].places(item[part - 1]) if part else pieces
            if len(row.weights) != count:
                raise ConfigError(f"{len(row.weights)} weights for {row.layer}, which looks at {count} source pieces")
            if kind == "encoder" and row.position >= count:
                raise ConfigError(f"no position {row.position} in {row.layer}; there are {count}, counted from 0")
    hidden = {"target": task.hidden, "source": 0}
    moves = {name: SIDES[attention_kind(name)] for name in edits.layers}
    ahead = {name: (hidden[queries], hidden[keys]) for name, (queries, keys) in moves.items()}
    return replace(task, model=edited(task.model, shifted(edits, ahead)))
