"""A span of the source: the answer to a question, as it stands in a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from unicodedata import combining

from pydantic import Field as Setting

from regard.data.lines import BLANKS
from regard.data.modalities.text import texts_in
from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.data.target import Answer, HeadTarget, Scoring, measure
from regard.data.tokens import clean
from regard.errors import DataError
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.ragged import Ragged

Places = list[tuple[int, int]]  # characters, from one to before another
LEAST = 8  # tokens of the context that have to fit beside a question


class SpanSettings(TargetSettings):
    """Extractive question answering. The source is a question and a context, two text columns; the target is the
    answer as it stands in the context, optionally with a second column for the character where it begins, from 0
    (default: columns 1, 2 and 3; question, context and answer). A context that does not fit into source.max_length
    is read in windows."""

    joined = True
    of_texts = True
    of_places = True
    keys = (("question", "context"), "answer")
    best = "squad_f1"
    usual = ("squad_em", "squad_f1")
    steering = ("squad_em", "squad_f1")

    stride: int = Setting(
        128,
        ge=1,
        le=10**6,
        description="tokens from the start of one window of a long context to the start of the next",
    )
    max_answer: int = Setting(30, ge=1, le=10**4, description="maximum length of an answer, in tokens")
    no_answer: bool = Setting(
        False, description="a question may have no answer in its context (SQuAD 2.0); its target is then empty"
    )
    threshold: float = Setting(
        0.0, description="no_answer: how much its score must exceed that of the best answer (Devlin et al. 2019)"
    )


@register("span")
class Span(HeadTarget):
    """Devlin et al. 2019, 4.2: a question and a context are read as one text; with `T_i` the vector of token `i`, the
    answer begins there with `p_i = exp(S · T_i) / Σ_j exp(S · T_j)`, and ends by another such vector `E`. Of all spans
    from `i` to `j ≥ i`, no longer than `max_answer`, the one with the greatest `S · T_i + E · T_j` is given.

    Softmaxes are over the tokens of the context and one place for none, which is `<s>` or, under a decoder, `</s>`. It
    is what a window without the answer is taught, and (4.3) what is given where `no_answer` allows it.
    """

    Settings = SpanSettings
    dtype = "uint32"
    located = paired = wrapped = several_references = True

    @property
    def size(self) -> int:
        return 2

    def is_missing(self, field: str) -> bool:
        return not self.settings.no_answer and not field.strip(BLANKS)

    # Texts

    def _texts(self, field: Field) -> tuple[str, str]:
        """The question and the context."""
        texts = texts_in(field)
        if len(texts) != 2 or not all(map(clean, texts)):
            raise DataError(
                f"has {len(texts)} text{'s' * (len(texts) != 1)}, where a question and a context are read, none of "
                "them empty: two columns (source.column), or a tab between"
            )
        return texts[0], texts[1]

    def _place(self, context: str, text: str) -> tuple[int, int] | None:
        """Where in the context an answer stands, from one character to before another; None: there is none."""
        answer, *where = texts_in(text)
        if not answer.strip(BLANKS):
            return None
        if not where:
            start = context.find(answer)
            if start < 0:
                raise DataError(f"has the answer '{_some(answer)}', which its context does not hold")
            return start, start + len(answer)
        if len(where) > 1 or not re.fullmatch(" *[0-9]{1,9} *", where[0]):
            raise DataError(f"has the answer '{_some(answer)}' at '{_some(where[0])}', which is no character's number")
        start = int(where[0])
        if context[start : start + len(answer)] != answer:
            there = _some(context[start : start + len(answer)])
            raise DataError(f"has the answer '{_some(answer)}' at character {start}, where its context has '{there}'")
        return start, start + len(answer)

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        try:
            self._place(self._texts(field)[1], text)
        except DataError as error:
            return str(error)
        return None

    def reference(self, source: Modality, field: Field, text: str) -> str:
        return texts_in(text)[0]

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        raise DataError("where an answer stands depends on its context")

    def decode(self, values: Sequence[int]) -> str:
        return " ".join(map(str, values))

    def text(self, source: Any, field: Field, values: Sequence[int]) -> str:
        """Characters of the context, from those of the first token to those of the last, both counted from 1."""
        if not values[0]:
            return ""
        _, context = self._texts(field)
        places = token_places(source.tokenizer, context)
        return context[places[values[0] - 1][0] : places[values[1] - 1][1]].strip(BLANKS)

    # Windows

    def parts(self, source: Any, field: Field, item: Item) -> list[Item]:
        """Each is the question and a window of the context, after the number of the context's first token in it."""
        question, context = source.tokenizer.encode_many([clean(text) for text in self._texts(field)])
        before = len(source.joined([question, []]))
        room = source.longest - before
        if room < LEAST:
            raise DataError(
                f"has a question of {len(question)} tokens, which leaves no room for its context in "
                f"source.max_length={source.longest}; raise it"
            )
        step = min(self.settings.stride, room)
        starts = range(0, max(len(context) - room, 0) + step, step)
        return [[before, *source.joined([question, context[start : start + room]])] for start in starts]

    def numbers(self, source: Any, field: Field, item: Item, text: str) -> list[tuple[Item, Item]]:
        """Each window, and the first and the last token of the answer in it, counted from 1; zeros where it is not."""
        _, context = self._texts(field)
        place, windows = self._place(context, text), self.parts(source, field, item)
        if place is None:
            return [(window, [0, 0]) for window in windows]
        places = token_places(source.tokenizer, context)
        inside = [i for i, (a, b) in enumerate(places) if a < b and a < place[1] and b > place[0]]
        if not inside:
            raise DataError(f"has the answer '{_some(context[slice(*place)])}', of which no token is made")
        found, step = [], self._step(len(windows[0]) - 1 - int(windows[0][0]))
        for number, window in enumerate(windows):
            length, start = len(window) - 1 - int(window[0]), number * step
            whole = start <= inside[0] and inside[-1] < start + length
            found.append((window, [inside[0] - start + 1, inside[-1] - start + 1] if whole else [0, 0]))
        return found

    def _step(self, room: int) -> int:
        """How far apart windows begin, of which the first has so many tokens."""
        return min(int(self.settings.stride), room)

    def rows(self, item: Item) -> list[Item]:
        return [item[1:]]

    def positions(self, source: Any, item: Item, *, last: bool) -> list[int]:
        row = item[1:]
        none = source.places(row) - 1 if last else 0
        return [none, *range(source.lead + int(item[0]), source.lead + len(row))]

    # What is found

    def pack(self, targets: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        return Ragged.of([[int(y) for y in target] for target in targets])

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        """Of both ends; it is not smoothed, as most places of a text are far from any answer."""
        import torch

        log_p = found.like(found.values.float()).padded(-torch.inf).log_softmax(1)  # (rows, places, 2)
        each = -log_p.gather(1, right.values.view(-1, 1, 2)).sum((1, 2))
        return (each if share is None else share * each).sum()

    def hits(self, found: Ragged, right: Ragged) -> float | None:
        """Of all first and last tokens."""
        import torch

        best = found.like(found.values.float()).padded(-torch.inf).argmax(1)  # (rows, 2)
        return float((best == right.values.view(-1, 2)).sum())

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        return self.answers([()], [found], count)

    def answers(self, parts: Sequence[Item], found: Sequence[Tensor], count: int) -> list[Answer]:
        """Over all windows, whose scores are held against each other; `log p` is of softmaxes over all of them."""
        import torch

        every = torch.cat([window.float() for window in found])
        total, step = float(every.logsumexp(0).sum()), self._step(len(found[0]) - 1)
        best: dict[tuple[int, int], float] = {}
        for number, window in enumerate(found):
            start, end = window[1:].float().unbind(1)
            scores = start[:, None] + end  # (first, last)
            apart = torch.arange(len(end)) - torch.arange(len(start))[:, None]
            scores = scores.masked_fill((apart < 0) | (apart >= self.settings.max_answer), -torch.inf)
            top = scores.flatten().topk(min(count, scores.numel()))
            for score, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                first, last = divmod(place, len(end))
                span = (first + number * step + 1, last + number * step + 1)
                if score > best.get(span, -torch.inf):
                    best[span] = score
        ranked = sorted(best.items(), key=lambda pair: -pair[1])[:count]
        answers = [Answer(list(span), score - total) for span, score in ranked]
        if self.settings.no_answer:
            none = min(float(window[0].float().sum()) for window in found)
            place = sum(none - score <= self.settings.threshold for _, score in ranked)
            answers.insert(place, Answer([0, 0], none - total))
        return answers[:count]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        return self.log_probs_of([found], [target])

    def log_probs_of(self, found: Sequence[Tensor], targets: Sequence[Item]) -> list[float]:
        """Of the first and of the last token, over all windows; where several hold the answer, of the likeliest."""
        import torch

        total = torch.cat([window.float() for window in found]).logsumexp(0)
        pairs = list(zip(found, targets, strict=True))
        pairs = [pair for pair in pairs if pair[1][0]] or pairs
        ends = [[float(window[int(y), i] - total[i]) for i, y in enumerate(target)] for window, target in pairs]
        return max(ends, key=sum)

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        return {name: measure(name, outputs, references, scoring) for name in self.settings.usual}


def token_places(tokenizer: Any, text: str) -> Places:
    """The characters of a text, as it was given, that each of its tokens stands for.

    Tokens are of the clean text, which has the same words in the same order. A word that is composed otherwise there
    counts as a whole.
    """
    begins: list[int] = []
    ends: list[int] = []
    for match in re.finditer(f"[^{BLANKS}]+", text):
        if begins:  # the one blank that a clean text has between words
            begins.append(ends[-1])
            ends.append(match.start())
        word, (start, end) = match[0], match.span()
        composed = clean(word)
        same = composed == word
        begins += [start + i if same else start for i in range(len(composed))]
        ends += [start + i + 1 if same else end for i in range(len(composed))]
    found = []
    for a, b in tokenizer.offsets(clean(text)):
        end = ends[b - 1] if a < b else 0
        while a < b and end < len(text) and combining(text[end]):  # an accent that a vocabulary leaves out
            end += 1
        found.append((begins[a], end) if a < b else (0, 0))
    return found


def _some(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
