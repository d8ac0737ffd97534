"""Language modelling: text from nothing but how it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

import torch
from torch import Tensor

from regard.data.batches import Batches
from regard.data.examples import Example
from regard.data.layouts import Continued, Layout
from regard.data.side import Field, Item
from regard.data.store import ExampleStore, Store
from regard.data.stream import BlockBatches, RowBatches
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

CHUNK = 256  # tokens of a stream that are read at once
PART = 1024  # tokens whose logits are held at once


@dataclass
class LanguageModeling(TextGeneration):
    """Text from nothing: what a user gives is how it begins."""

    model: DecoderOnly

    begins = "prompt"

    @property
    def first(self) -> tuple[int, ...]:
        """In a stream a text begins after the end of another."""
        return super().first if self.target.block is None else (self.target.marks.end,)

    @property
    def layout(self) -> Layout:
        return super().layout if self.target.block is None else Continued()

    def training_batches(self, store: ExampleStore, budgets: Sequence[int], seed: int) -> Batches:
        if (block := self.target.block) is None:
            return super().training_batches(store, budgets, seed)
        kind = BlockBatches if self.model.decoder.bounded else RowBatches
        return kind(store, self.sides, self.layout, budgets, seed, block=block, lead=1)

    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """Perplexity by token, by word and in bits by character: the last two compare models of different tokens.

        The end of every text counts as a token, a word and a character. A model that was trained on a stream reads the
        texts as one, blank ones too, each after all before it (`stream`); any other reads each by itself."""
        if self.target.block is not None:
            return self._evaluate_stream(examples, search, advance)
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
        return self._evaluation(seen, total, tokens, words, characters)

    def _evaluate_stream(self, examples: Iterable[Example], search: Search, advance: Advance) -> Evaluation:
        seen: list[Example] = []

        def lines() -> Iterator[str]:
            for example in examples:
                seen.append(example)
                yield example.target

        total, tokens, words, characters = 0.0, 0, 0, 0
        for number, found in enumerate(self.stream(lines(), stride=search.stride)):
            text = clean(seen[number].target)
            total, tokens = total - math.fsum(found), tokens + len(found)
            words, characters = words + len(text.split()) + 1, characters + len(text) + 1
            advance(1)
        if not seen:
            raise DataError("there is no text to read")
        how = "state:carried"
        if self.model.decoder.bounded:
            how = f"context:{self.context}|stride:{self._stride(search.stride)}"
        return self._evaluation(seen, total, tokens, words, characters, f"|stream|{how}")

    def _evaluation(
        self, seen: list[Example], total: float, tokens: int, words: int, characters: int, how: str = ""
    ) -> Evaluation:
        """Scores of texts that cost `total`, of so many tokens, words and characters; `how` ends their signatures."""
        by_word = perplexity(total / words)
        bits = total / characters / math.log(2)
        scores = {
            "perplexity": self._perplexity(total / tokens),
            "word_perplexity": Score(
                "word perplexity", by_word, "per:word|words:blanks|end:counted", higher_is_better=False
            ),
            "bits": Score("bits", bits, "per:character|end:counted", higher_is_better=False),
        }
        signed = {name: replace(score, signature=score.signature + how) for name, score in scores.items()}
        return Evaluation(signed, [], seen)

    def last_words(self, examples: Iterable[Example], warn: Warn) -> Evaluation:
        """How often the tokens of a text's last word are each the likeliest after all that stands before, and the
        perplexity of that word; whether the model would end the word there is not asked (Paperno et al. 2016, as
        Radford et al. 2019 measure it)."""
        seen: list[Example] = []
        right, total = 0, 0.0
        most = self.longest if self.model.decoder.bounded else math.inf  # a recurrent network has no positions
        for window in windows(examples, self.window):
            targets = self.target.encode_many([x.target for x in window])
            words = [self.target.words(target) for target in targets]
            usable = []
            for i, (example, target) in enumerate(zip(window, targets, strict=True)):
                if len(target) < most and max(words[i], default=0) > 0:
                    usable.append(i)
                else:
                    what = f"{len(target)} tokens long" if len(target) >= most else "not two words or more"
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
        loss = self.loss(examples) if self.target.block is None else self._stream_loss(examples)
        return {"loss": loss, "perplexity": perplexity(loss)}

    def _stream_loss(self, examples: Encoded) -> float:
        """The mean of `-log p` over the stream in the blocks of training: with the state carried along rows, or of each
        block by itself. `evaluate` gives each token more to go by."""
        training, own = self.config.training, self.config.target.batch_tokens
        budgets = [own or training.batch_tokens]
        assert isinstance(examples.targets, Store), "a stream is read from disk"
        batches = self.training_batches(ExampleStore([examples.targets], None), budgets, training.seed)
        assert isinstance(batches, BlockBatches), "a stream comes in blocks"
        total, tokens, state = 0.0, 0, self.model.decoder.alone(0)
        for batch in (batch.to(self.device) for batch in batches.epoch()):
            with self.inference():
                begin = state if batch.goes_on else self.model.decoder.alone(len(batch.inputs))
                outputs, state = self.model.read(batch.inputs, begin)
                total += self._cost(outputs.values, batch.outputs.values)
            tokens += batch.tokens
        return total / tokens

    def _cost(self, outputs: Tensor, tokens: Tensor) -> float:
        """`-log p` of all these tokens, some at a time: logits of all would be too many to hold."""
        parts = zip(outputs.split(PART), tokens.split(PART), strict=True)
        return -math.fsum(float(self.model.predict(x).gather(1, y[:, None]).sum()) for x, y in parts)

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

    @property
    def context(self) -> int:
        """As many tokens as a Transformer looks back at: the blocks it was trained on, or what it has positions for."""
        return min(self.target.block or self.longest, self.longest)

    def _stride(self, wanted: int | None) -> int:
        return max(1, min(CHUNK, self.context // 2) if wanted is None else min(wanted, self.context - 1))

    def stream(self, lines: Iterable[str], chunk: int = CHUNK, stride: int | None = None) -> Iterator[list[float]]:
        """`log p` of each token of a long text, a list for each line (its end counted), with the state carried on.

        A Transformer looks back as far as its `context`. Before that is full, it reads again as much of the latest as
        leaves room for `stride` tokens (default: half, at most `chunk`): fewer give each token more to look back at,
        and take longer.
        """
        if self.model.decoder.bounded:
            chunk = min(chunk, self._stride(None)) if stride is None else self._stride(stride)
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
        self.task, self.chunk = task, chunk
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
        if model.decoder.bounded and len(self.seen) + len(tokens) > task.context + 1:
            self.seen = self.seen[-(task.context + 1 - self.chunk) :]
            self.state = model.start(Ragged.of([self.seen[:-1]], task.device))
        outputs, self.state = model.read(Ragged.of([[self.seen[-1], *tokens[:-1]]], task.device), self.state)
        self.seen = [*self.seen, *tokens][-task.context - 1 :]
        chosen = torch.tensor(tokens, device=task.device)[:, None]
        return model.predict(outputs.values).gather(1, chosen).squeeze(1).tolist()
