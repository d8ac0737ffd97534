"""Language modelling: text from nothing but how it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import torch

from regard.data.examples import Example
from regard.data.side import Field, Item
from regard.data.target import Scoring
from regard.data.tokens import clean
from regard.errors import DataError
from regard.evaluation.metrics import Score, perplexity
from regard.models.model import DecoderOnly
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Advance, Encoded, Evaluation, Shown, Tokens, Warn
from regard.tasks.task import Pack, windows


@dataclass
class LanguageModeling(TextGeneration):
    """Text from nothing: what a user gives is how it begins."""

    model: DecoderOnly

    begins = "prompt"

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """Perplexity by token, by word and in bits by character: the last two compare models of different tokens."""
        seen: list[Example] = []
        total, tokens, words, characters, count = 0.0, 0, 0, 0, 0
        for window in windows(examples, self.window):
            usable = []
            for example, target in zip(window, self.target.encode_many([x.target for x in window]), strict=True):
                if 0 < len(target) < self.longest:
                    usable.append(example)
                else:
                    what = "empty" if not target else f"{len(target)} tokens long"
                    warn(f"{example.place} is {what}; left out")
            texts = [clean(x.target) for x in usable]
            for pair in self.score([""] * len(texts), [x.target for x in usable]):
                total, tokens = total - pair.log_prob, tokens + len(pair.tokens)
            words += sum(len(text.split()) + 1 for text in texts)
            characters += sum(len(text) + 1 for text in texts)
            seen, count = seen + usable, count + len(window)
            advance(len(texts))
        if not seen:
            raise DataError(f"none of the {count} texts can be used")
        by_word = perplexity(total / words)
        bits = total / characters / math.log(2)
        scores = {
            "perplexity": self._perplexity(total / tokens),
            "word_perplexity": Score(
                "word perplexity", by_word, "per:word|words:blanks|end:counted", higher_is_better=False
            ),
            "bits": Score("bits", bits, "per:character|end:counted", higher_is_better=False),
        }
        return Evaluation(scores, [], seen)

    def last_words(self, examples: Iterable[Example], warn: Warn) -> Evaluation:
        """How often the tokens of a text's last word are each the likeliest after all that stands before, and the
        perplexity of that word; whether the model would end the word there is not asked (Paperno et al. 2016, as
        Radford et al. 2019 measure it)."""
        seen: list[Example] = []
        right, total = 0, 0.0
        for window in windows(examples, self.window):
            targets = self.target.encode_many([x.target for x in window])
            words = [self.target.words(target) for target in targets]
            usable = []
            for i, (example, target) in enumerate(zip(window, targets, strict=True)):
                if len(target) < self.longest and max(words[i], default=0) > 0:
                    usable.append(i)
                else:
                    what = f"{len(target)} tokens long" if len(target) >= self.longest else "not two words or more"
                    warn(f"{example.place} is {what}; left out")
            items = [targets[i] for i in usable]
            for group, batch, logits in self.logits(self.source.encode_many([""] * len(items)), items):
                odds, wanted = logits.log_softmax(-1), batch.outputs.values
                best = batch.outputs.like(logits.argmax(-1) == wanted).tolist()
                own = batch.outputs.like(odds.gather(1, wanted[:, None]).squeeze(1)).tolist()
                for row, k in enumerate(group):
                    numbers = words[usable[k]]
                    last = [place for place, word in enumerate(numbers) if word == max(numbers)]
                    right += all(best[row][place] for place in last)
                    total -= math.fsum(own[row][place] for place in last)
            seen += [window[i] for i in usable]
        if not seen:
            raise DataError("no text of two words or more can be used")
        how = f"n:{len(seen)}|words:blanks|greedy tokens|end:not counted"
        scores = {
            "last_word": Score("last-word accuracy", 100.0 * right / len(seen), f"percent|{how}"),
            "last_word_perplexity": Score(
                "last-word perplexity", perplexity(total / len(seen)), f"per:word|{how}", higher_is_better=False
            ),
        }
        return Evaluation(scores, [], seen)

    def validate(self, examples: Encoded) -> dict[str, float]:
        loss = self.loss(examples)
        return {"loss": loss, "perplexity": perplexity(loss)}

    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        """The source is the prompt, and the target what was written after it."""
        prompt = self.target.encode(field)
        same = (a == b for a, b in zip(prompt, target, strict=False))
        count = sum(takewhile(bool, same))  # a given target may be cut differently where the prompt ends
        names, end = self.target.marks.names, self.target.marks.end
        pieces = [*self.target.pieces([self.first[-1], *target]), names[end]]
        return Shown(
            source=pieces[: count + 1],
            source_word=[-1, *self.target.words(target[:count])],
            target=pieces[count + 1 :],
            target_word=[*self.target.words(target[count:]), -1],
            inputs=pieces[:-1],
            log_probs=self.score_items([source], [target])[0].tokens[count:],
            tokens=target,
            given=count + 1,
        )

    def forced(self, field: Field, target: str) -> Tokens:
        if not clean(target).startswith(clean(field)):
            raise DataError(f"the target should begin with the prompt '{clean(field)}', as what is generated does")
        return self.target.encode(target)

    def readable(self, fields: Sequence[Field]) -> tuple[Sequence[Item], Pack]:
        return self.target.encode_many(fields), lambda items: self.batch(items, items).inputs

    def stream(self, lines: Iterable[str], chunk: int = 256) -> Iterator[list[float]]:
        """`log p` of each token of a long text, a list for each line (its end counted), with the state carried on.

        A Transformer looks back as far as it has positions: before they run out, it reads its latest half again.
        """
        if self.model.decoder.bounded:
            chunk = min(chunk, self.longest // 2)  # the half that is read again and what is new have to fit
        reader = _Reader(self, chunk)
        waiting: list[list[int]] = []
        for line in lines:
            waiting.append([*self.target.encode(line), self.target.marks.end])
            if sum(map(len, waiting)) >= chunk:
                yield from reader.read(waiting)
                waiting = []
        yield from reader.read(waiting)


class _Reader:
    """A language model in the middle of a long text."""

    def __init__(self, task: LanguageModeling, chunk: int) -> None:
        self.task, self.chunk = task, min(chunk, task.longest // 2)
        self.state = task.model.decoder.alone(1)
        self.seen = [task.first[-1]]  # the latest tokens, of which the last has not been read yet

    def read(self, lines: Sequence[Tokens]) -> list[list[float]]:
        """`log p` of each token of some more lines."""
        tokens = [token for line in lines for token in line]
        found: list[float] = []
        with self.task.inference():
            for start in range(0, len(tokens), self.chunk):
                found += self._read(tokens[start : start + self.chunk])
        rest = iter(found)
        return [list(islice(rest, len(line))) for line in lines]

    def _read(self, tokens: Tokens) -> list[float]:
        task, model = self.task, self.task.model
        if model.decoder.bounded and len(self.seen) + len(tokens) > task.longest:
            self.seen = self.seen[-(task.longest // 2) :]
            self.state = model.start(Ragged.of([self.seen[:-1]], task.device))
        outputs, self.state = model.read(Ragged.of([[self.seen[-1], *tokens[:-1]]], task.device), self.state)
        self.seen = [*self.seen, *tokens][-task.longest :]
        chosen = torch.tensor(tokens, device=task.device)[:, None]
        return model.predict(outputs.values).gather(1, chosen).squeeze(1).tolist()
