"""More of an output than its text: how sure the model was of each token and word, what it attended to, what looks odd.

All of it comes from one teacher-forced pass over what was written, for many outputs at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

import numpy as np

from regard.data.batch import IGNORED
from regard.data.modality import Picture
from regard.data.side import Field, Item
from regard.data.tokens import clean
from regard.evaluation.alignment import Weights, links
from regard.explain.saved import png
from regard.inspection.doubt import Doubt, repetition, uncovered
from regard.inspection.tokens import piece_after
from regard.search_settings import Search
from regard.serving.messages import Alternative, DoubtSigns, Flag, Generation, Scored, TokenInfo, Word, Written
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Output, PairScore
from regard.tasks.task import Task

FARTHEST = 1e9  # what stands for infinity where a number is wanted
UNSEEN = 0.1  # a source word that has less attention in all was hardly read
COPIED = 4  # words of a source in a row, which an output holds as they are
REPEATED = 3  # times that something stands one after the other


@dataclass(frozen=True)
class Finding:
    """What was found for an input, and what of it was asked for."""

    field: Field
    item: Item
    search: Search
    request: Generation
    outputs: list[Output]


@dataclass
class _Pair:
    """An output and its source, and what a pass over them gives."""

    finding: Finding
    output: Output
    tokens: list[TokenInfo] | None = None
    words: list[Word] | None = None
    attention: Weights | None = None  # (target words, source words)


def describe(task: Task, findings: Sequence[Finding]) -> list[list[Written]]:
    """The outputs of each finding, with what was asked for."""
    pairs = [[_Pair(finding, output) for output in finding.outputs] for finding in findings]
    flat = [pair for row in pairs for pair in row]
    if isinstance(task, TextGeneration):  # what a head predicts has no tokens
        for wanted, add in (("tokens", _add_tokens), ("alignment", _add_attention)):
            if asking := [pair for pair in flat if getattr(pair.finding.request, wanted)]:
                add(task, asking)
    pictures: Iterator[Picture | None] = iter(
        task.target.pictures([pair.output.text for pair in flat]) if task.target.pixels else [None] * len(flat)
    )
    return [[_written(task, pair, next(pictures)) for pair in row] for row in pairs]


def _add_tokens(task: TextGeneration, pairs: Sequence[_Pair]) -> None:
    plain = [pair for pair in pairs if not pair.finding.request.alternatives]
    scores = task.score_items([pair.finding.item for pair in plain], [pair.output.tokens for pair in plain])
    for pair, score in zip(plain, scores, strict=True):
        pair.tokens = token_infos(task, pair.output.tokens, score)
    ranked = [pair for pair in pairs if pair.finding.request.alternatives]
    for i, infos in _ranked(task, ranked):
        ranked[i].tokens = infos
    for pair in pairs:
        pair.words = _words(task, pair.output.tokens, pair.tokens or [])


def token_infos(task: Task, tokens: Sequence[int], score: PairScore) -> list[TokenInfo]:
    """Each token, the one that ends them included, with its log p."""
    texts, ids = _pieces(task, tokens)
    return [
        TokenInfo(text=text, id=i, log_prob=log_prob(x))
        for text, i, x in zip(texts, ids, score.tokens, strict=False)
    ]  # fmt: skip


def scored(task: Task, target: str, score: PairScore) -> Scored:
    """How probable a target is."""
    perplexity = score.perplexity
    return Scored(
        log_prob=log_prob(score.log_prob), perplexity=perplexity if math.isfinite(perplexity) else None,
        tokens=token_infos(task, task.target.encode(target), score),
    )  # fmt: skip


def _pieces(task: Task, tokens: Sequence[int]) -> tuple[list[str], list[int]]:
    marks = task.target.marks
    return [*task.target.pieces(tokens), marks.names[marks.end]], [*map(int, tokens), marks.end]


def _ranked(task: TextGeneration, pairs: Sequence[_Pair]) -> Iterator[tuple[int, list[TokenInfo]]]:
    """The tokens of each pair, in any order of pairs, with the likeliest ones in their places."""
    sources, targets = [pair.finding.item for pair in pairs], [pair.output.tokens for pair in pairs]
    for group, batch, logits in task.logits(sources, targets):
        log_probs = logits.log_softmax(-1)
        bounds, outputs = batch.outputs.offsets.tolist(), batch.outputs.values
        for row, i in enumerate(group):
            count = min(pairs[i].finding.request.alternatives, log_probs.shape[1])
            places = slice(bounds[row], bounds[row + 1])
            kept = outputs[places] != IGNORED
            mine, ids = log_probs[places][kept], outputs[places][kept]
            own = mine.gather(1, ids[:, None]).squeeze(1).tolist()
            best, which = mine.topk(count, dim=-1)
            yield i, [
                TokenInfo(text=text, id=token, log_prob=log_prob(x), alternatives=[
                    Alternative(text=piece_after(task, before, other), id=other, log_prob=log_prob(value))
                    for other, value in zip(others, values, strict=True)
                ])
                for before, text, token, x, others, values in zip(
                    [None, *targets[i]], *_pieces(task, targets[i]), own, which.tolist(), best.tolist(), strict=True
                )
            ]  # fmt: skip


def _words(task: Task, tokens: Sequence[int], infos: Sequence[TokenInfo]) -> list[Word]:
    """Words as the tokens make them, each with how sure the model was of it."""
    numbers, found = task.target.words(tokens), dict[int, list[int]]()
    for place, number in enumerate(numbers):
        if number >= 0:
            found.setdefault(number, []).append(place)
    words = []
    for places in found.values():
        values = [infos[place].log_prob for place in places if place < len(infos)]
        mean = sum(-FARTHEST if x is None else x for x in values) / max(len(values), 1)
        text = task.target.decode([tokens[place] for place in places])
        words.append(Word(text=clean(text), confidence=math.exp(mean)))
    return words


def _add_attention(task: TextGeneration, pairs: Sequence[_Pair]) -> None:
    if task.best_layer is None:
        return
    items, tokens = [pair.finding.item for pair in pairs], [pair.output.tokens for pair in pairs]
    for i, attention in task.attended_words(items, tokens):
        pairs[i].attention = attention


def _written(task: Task, pair: _Pair, picture: Picture | None) -> Written:
    output, attention = pair.output, pair.attention
    drawn = None if picture is None else png(picture)
    coverage = None if attention is None else np.nan_to_num(attention).sum(0, dtype=np.float64).round(4).tolist()
    return Written(
        text=output.text, picture=drawn, score=finite(output.score), log_prob=finite(output.log_prob),
        tokens=pair.tokens, words=pair.words, alignment=None if attention is None else links(attention),
        coverage=coverage, doubt=_doubt(task, pair), flags=list(_flags(task, pair, coverage)),
        source_tokens=task.source.length(pair.finding.item), output_tokens=len(output.tokens),
    )  # fmt: skip


def _doubt(task: Task, pair: _Pair) -> DoubtSigns | None:
    """How doubtful an output is, of which both tokens and attention were asked for."""
    if pair.tokens is None or not pair.finding.request.alignment:
        return None
    is_text = task.source.media == "text" and isinstance(pair.finding.field, str)
    gap = uncovered(pair.attention) if is_text and pair.attention is not None else (0.0, list[int]())
    repeated = repetition(pair.output.text) - (repetition(str(pair.finding.field)) if is_text else 0.0)
    logs = [-math.inf if one.log_prob is None else one.log_prob for one in pair.tokens]
    least = min((word.confidence for word in pair.words or ()), default=1.0)
    least_log = math.log(least) if least > 0 else -math.inf
    found = Doubt(pair.output.text, sum(logs) / max(len(logs), 1), "", least_log, *gap, max(0.0, repeated))
    return DoubtSigns(value=found.doubt, unattended=len(found.unattended), repetition=found.repetition)


def _flags(task: Task, pair: _Pair, coverage: Sequence[float] | None) -> Iterator[Flag]:
    """What a reader should look at."""
    source = pair.finding.field if isinstance(pair.finding.field, str) and task.source.media == "text" else ""
    ours, theirs = _units(clean(pair.output.text)), _units(clean(source))
    if (times := _repeats(ours)) >= REPEATED and times > _repeats(theirs):
        yield "repetition"
    if task.config.sources[0].given and _copied(theirs, ours):
        yield "untranslated"
    if isinstance(task, TextGeneration) and task.target.fixed_length is None:
        (room,) = task.room([pair.finding.item], pair.finding.search)
        if len(pair.output.tokens) >= room:
            yield "truncated"
    if coverage is not None and task.source.media == "text" and any(share < UNSEEN for share in coverage):
        yield "unused_input"


def _units(text: str) -> list[str]:
    """The words of a text or, of writing without blanks, its characters."""
    return text.split() if " " in text else list(text)


def _repeats(units: Sequence[str]) -> int:
    """How often at most one to four words stand one after the other."""
    most = 1
    if len(units) - len(set(units)) < REPEATED - 1:  # none stands there as often as would be told
        return most
    for size in range(1, 5):
        same = bytes(map(eq, units, units[size:]))
        most = max(most, max(map(len, same.split(b"\0"))) // size + 1)
    return most


def _copied(source: Sequence[str], output: Sequence[str]) -> bool:
    """Whether words of the source, in a row, stand in the output as they are; numbers and signs may."""
    theirs, ours = (set(zip(*(units[i:] for i in range(COPIED)), strict=False)) for units in (source, output))
    return any(any(any(map(str.isalpha, unit)) for unit in gram) for gram in theirs & ours)


def log_prob(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> float:
    """A number that JSON can hold, where one is wanted."""
    number = float(value)
    if math.isnan(number):
        return 0.0
    return max(-FARTHEST, min(FARTHEST, number))
