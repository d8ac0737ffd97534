"""What tasks share: how inputs are grouped, run and scored, and what comes back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import Batch, Layout, pack
from regard.data.corpora import BadLine, Example, OnBad, tell
from regard.data.sources import Item, Source
from regard.data.tokens import BOS, Tokenizer
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import Kind
from regard.evaluation.exposure import Exposure
from regard.evaluation.labels import ClassScore
from regard.evaluation.metrics import Score, perplexity
from regard.models.encoders import Memory
from regard.models.model import Model
from regard.nn.attention import capture
from regard.nn.graphs import exclusive
from regard.parts import NoEncoder
from regard.ragged import Ragged
from regard.settings import Config, Search

Tokens = Sequence[int]
Attention = dict[str, NDArray[np.float32]]  # by module, (heads, queries, keys)
Problem = Callable[[int, str], None]  # which input, and what is wrong with it
Warn = Callable[[str], None]
Advance = Callable[[int], None]  # how many more inputs are done
Pack = Callable[[Sequence[Any]], Ragged]  # items as what reads them wants them


@dataclass(frozen=True)
class Output:
    """One output for a source."""

    text: str
    score: float  # what it was ranked by
    log_prob: float
    tokens: list[int]


@dataclass(frozen=True)
class Given:
    """What goes with some inputs: how each output begins, phrases that each must hold, and the number of the first
    input, as which it and those after it draw what is drawn at random."""

    prefixes: Sequence[str] | None = None
    phrases: Sequence[Sequence[str]] | None = None
    first: int = 0


@dataclass(frozen=True)
class PairScore:
    """How probable a target is given its source: `log p` in all, and of each token."""

    log_prob: float
    tokens: list[float]

    @property
    def perplexity(self) -> float:
        """`exp` of the mean of `-log p` over its tokens."""
        return perplexity(-self.log_prob / max(len(self.tokens), 1))  # an empty text has none where blanks are filled


@dataclass(frozen=True)
class Evaluation:
    """Scores, what they are scores of, and what it was held against."""

    scores: dict[str, Score]
    outputs: list[str]
    examples: list[Example]
    exposure: Exposure | None = field(default=None)
    classes: tuple[ClassScore, ...] = ()  # of each label, where labels are told


@dataclass(frozen=True)
class Shown:
    """An example in pieces to show: those of the source and of the target, the words they belong to (-1: none), what
    the decoder reads at each step, and `log p` of each piece of the target. See `Explanation` for the others."""

    source: list[str]
    source_word: list[int]
    target: list[str]
    target_word: list[int]
    inputs: list[str]
    log_probs: list[float]
    tokens: Tokens  # what the model is run on, with the source, to see what it attends to
    given: int = 0
    places: list[int] = field(default_factory=list)
    candidates: list[list[tuple[str, float]]] = field(default_factory=list)


@dataclass
class Task(ABC):
    """A source, a tokenizer and a model, with everything that can be done with them."""

    config: Config
    source: Source
    target: Tokenizer
    model: Model
    device: torch.device

    first = BOS  # what the first token of an output is written after

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How examples are laid out to train on."""

    @abstractmethod
    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """The best outputs of each input, best first; none for one that cannot be used, which `problem` hears of."""

    @abstractmethod
    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """`log p` of each target given its source, the end included."""

    @abstractmethod
    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """All scores of the examples."""

    @abstractmethod
    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        """The few numbers that training steers by, `loss` among them."""

    @abstractmethod
    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        """Examples to run through the model for what it attends to."""

    @abstractmethod
    def shown(self, text: str, source: Item, target: Tokens) -> Shown:
        """An example in pieces, as its attention is to be labelled; `text` is the input as it was given."""

    def forced(self, text: str, target: str) -> Tokens:
        """The tokens of a target to be explained in place of the model's own output for `text`."""
        return self.target.encode(target)

    def mismatch(self, example: Example) -> str | None:
        """Why source and target do not go together, or None."""
        return None

    def checked(self, examples: Iterable[Example], on_bad: OnBad | None = None) -> Iterator[Example]:
        """Examples whose sides go together; the first that does not is raised, or with `on_bad` each is handed over."""
        for example in examples:
            if what := self.mismatch(example):
                tell(BadLine(example.place, "malformed", what), on_bad)
            else:
                yield example

    @cached_property
    def longest(self) -> int:
        """The most positions the model has room for; see `build`."""
        return longest_sequence(self.config)

    def unfit(self, source: Item, target: Tokens) -> str | None:
        """Why an example, with its marks, is more than the model has positions for; None if it is not."""
        length = max(len(target), len(source) if self.source.tokenizer is not None else 0)
        if length + 2 > self.longest:
            return f"has {length} tokens, more than a model of {self.longest} positions can read"
        return None

    @property
    def best_layer(self) -> str | None:
        """The attention over the source to show first and to align by; None if there is none.

        Of many layers the last but one, whose heads agree best with alignments (Garg et al. 2019); of three or fewer
        the last, since the first ones mostly look around.
        """
        modules = (name for name, _ in self.model.named_modules())
        names = [name for name in modules if name.endswith(("decoder.attention", "cross_attention"))]
        if not names:
            return None
        return names[-1] if len(names) <= 3 else names[-2]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """`log p(target given source)` of each pair, the end of the target included."""
        return self.score_items(self.source.encode_many(sources), self.target.encode_many(targets))

    def summaries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector for each source, `(texts, d_model)`: what its encoder makes of the whole."""
        found = np.zeros((len(texts), self.config.model.d_model), np.float32)
        for group, memory in self._encoded(texts):
            found[group] = memory.summary.float().cpu().numpy()
        return found

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """For each source the vector of each of its positions, `(positions, d_model)`."""
        found: list[NDArray[np.float32]] = [np.zeros((0, self.config.model.d_model), np.float32)] * len(texts)
        for group, memory in self._encoded(texts):
            states = memory.states.values.float().cpu().split(memory.states.lengths.tolist())
            for i, rows in zip(group, states, strict=True):
                found[i] = rows.numpy()
        return found

    def _read(self, texts: Sequence[str], problem: Problem) -> dict[int, Item]:
        """Each source that can be read, by its number; `problem` hears of the others."""
        try:
            return dict(enumerate(self.source.encode_many(texts)))
        except DataError:
            items = {}
            for i, text in enumerate(texts):
                try:
                    items[i] = self.source.encode_many([text])[0]
                except DataError as error:
                    problem(i, f"cannot be used: {error}")
            return items

    def readable(self, texts: Sequence[str]) -> tuple[Sequence[Item], Pack]:
        """Texts as items, and how some of these are laid out for what reads them."""
        return self.source.encode_many(texts), self.source.pack

    def _encoded(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Memory]]:
        items, pack = self.readable(texts)
        for group in self.groups(items, self.config.training.batch_tokens):
            with self.inference():
                yield group, self.model.encode(pack([items[i] for i in group]).to(self.device))

    def attention(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[Attention]:
        """What each pair attends to in every attention of the model, cut to its own length."""
        results: list[Attention] = [{} for _ in sources]
        for group in self.groups(sources, self.config.training.batch_tokens, targets):
            batch = self.batch([sources[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self.inference(), capture(self.model) as trace:
                self.model(batch.source, batch.inputs)
            for name in trace.found:
                sides = SIDES[attention_kind(name)]
                for row, i in enumerate(group):
                    queries, keys = (self.length(side, sources[i], targets[i]) for side in sides)
                    results[i][name] = trace.weights(name, row)[:, :queries, :keys].numpy()
        return results

    @abstractmethod
    def length(self, side: str, source: Item, target: Tokens) -> int:
        """How many positions of the `source` or the `target` side attend or are attended to."""

    def loss(self, examples: Sequence[Example]) -> float:
        """The mean of `-log p` over all target tokens."""
        scored = self.score([x.source for x in examples], [x.target for x in examples])
        return -math.fsum(pair.log_prob for pair in scored) / sum(len(pair.tokens) for pair in scored)

    def inference(self) -> AbstractContextManager[None]:
        """As in use: no dropout, no gradients."""
        return inference(self.model)

    @staticmethod
    def groups(sources: Sequence[Item], budget: int, targets: Sequence[Tokens] | None = None) -> list[list[int]]:
        """Indices in groups of like length within a budget of tokens."""
        if not sources:
            return []
        lengths = np.array([len(x) for x in sources])
        others = lengths if targets is None else np.array([len(y) for y in targets])
        return [group.tolist() for group in pack(lengths, others, budget)]


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """A model as in use: no dropout, no gradients; on a GPU, a thread at a time. One not training is left alone."""
    device, training = next(model.parameters()).device, model.training
    if training:
        model.eval()
    try:
        with exclusive(device) if device.type == "cuda" else nullcontext(), torch.inference_mode():
            yield
    finally:
        if training:
            model.train()


def chosen(logits: Tensor, batch: Batch) -> list[list[float]]:
    """`log p` of each of a batch's outputs, by row."""
    log_probs = logits.float().log_softmax(-1).gather(1, batch.outputs.values[:, None]).squeeze(1).tolist()
    bounds = batch.outputs.offsets.tolist()
    return [log_probs[start:end] for start, end in pairwise(bounds)]


SIDES: dict[Kind, tuple[str, str]] = {
    "cross": ("target", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
}


def attention_kind(name: str) -> Kind:
    """What attends to what in the attention of this name; see `SIDES`."""
    if "encoder" in name.split("."):
        return "encoder"
    return "decoder" if name.endswith("self_attention") else "cross"


def longest_sequence(config: Config) -> int:
    """Positions a model has room for: as many as its settings say, or else what training and search need."""
    given, trained = config.model.max_positions, config.data.max_length
    if given is None:
        return _positions(config, max(trained, config.search.max_source), max(trained, config.search.max_length))
    if given < (needed := _positions(config, trained, trained)):
        raise ConfigError(f"model.max_positions ({given}) is less than data.max_length ({trained}) needs ({needed})")
    return given


def _positions(config: Config, source: int, target: int) -> int:
    """With marks; without an encoder, both sides stand in one sequence."""
    if config.data.source == "none":
        return target + 2
    if config.model.head != "text":
        return source + 2
    return source + target + 2 if isinstance(config.model.encoder, NoEncoder) else max(source, target) + 1
