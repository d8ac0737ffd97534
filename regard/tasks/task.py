"""What tasks share: how inputs are grouped, run and scored, and what comes back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, islice, pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.bundle import Source
from regard.data.batch import IGNORED, Batch
from regard.data.batches import Batches, pack
from regard.data.examples import Example
from regard.data.layouts import Layout
from regard.data.lines import BadLine, OnBad, tell
from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.data.sides import Sides
from regard.data.store import ExampleStore
from regard.data.target import Scoring, Target, measure
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import Kind
from regard.models.encoders import Memory
from regard.models.model import Model
from regard.nn.attention import Aligner, Trace, capture
from regard.nn.graphs import exclusive
from regard.registry import METRICS
from regard.search_settings import Search
from regard.settings import Config
from regard.tasks.results import Advance, Encoded, Evaluation, Given, Output, PairScore, Problem, Shown, Tokens, Warn

T = TypeVar("T")
Attention = dict[str, NDArray[np.float32]]  # by module, (heads, queries, keys)
Pack = Callable[[Sequence[Any]], Source]  # items as what reads them wants them
WINDOW = 4096  # examples that are evaluated together
WINDOW_BYTES = 2**27  # that their sources may take


@dataclass
class Task(ABC):
    """Both sides of a config's examples and a model, with everything that can be done with them."""

    sides: Sides
    model: Model
    device: torch.device

    generates: ClassVar[bool] = True  # there is an output to `generate` for an input

    def __post_init__(self) -> None:
        self.config: Config = self.sides.config
        self.source: Modality = self.sides.source
        self.target: Target = self.sides.target

    @property
    def first(self) -> tuple[int, ...]:
        """What the first token of an output is written after."""
        return self.target.marks.first

    @property
    def hidden(self) -> int:
        """How many inputs of a decoder are forced, before those that are shown."""
        return max(len(self.first) - 1, 0)

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How examples are laid out to train on."""

    def training_batches(self, store: ExampleStore, budgets: Sequence[int], seed: int) -> Batches:
        """The batches that training goes through; `budgets` are those of each source and of the target."""
        return Batches(store, self.sides, self.layout, budgets, seed)

    @abstractmethod
    def outputs(
        self, fields: Sequence[Field], search: Search, problem: Problem, advance: Advance = lambda count: None,
        given: Given | None = None,
    ) -> list[list[Output]]:  # fmt: skip
        """The best outputs of each input, best first; none for one that cannot be used, which `problem` hears of."""

    @abstractmethod
    def score_items(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> list[PairScore]:
        """`log p` of each target given its source, the end included."""

    @abstractmethod
    def evaluate(
        self, examples: Iterable[Example], search: Search, warn: Warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None,
    ) -> Evaluation:  # fmt: skip
        """All scores of the examples, which are read and worked on some at a time."""

    @abstractmethod
    def validate(self, examples: Encoded) -> dict[str, float]:
        """The few numbers that training steers by, `loss` among them; what takes a search is taken of `some`."""

    @abstractmethod
    def batch(self, sources: Sequence[Item], targets: Sequence[Tokens]) -> Batch:
        """Examples to run through the model for what it attends to."""

    @abstractmethod
    def shown(self, field: Field, source: Item, target: Tokens) -> Shown:
        """An example in pieces, as its attention is to be labelled; `field` is the input as it was given."""

    def forced(self, field: Field, target: str) -> Tokens:
        """The tokens of a target to be explained in place of the model's own output for `field`."""
        return self.target.encode(target)

    def item(self, field: Field) -> Item:
        """A source as it is explained."""
        found: Item = self.source.encode_many([field])[0]
        return found

    def checked(self, examples: Iterable[Example], on_bad: OnBad | None = None) -> Iterator[Example]:
        """Examples whose sides go together; the first that does not is raised, or with `on_bad` each is handed over."""
        for example in examples:
            if what := self.target.mismatch(self.source, example.source, example.target):
                tell(BadLine(example.place, "malformed", what), on_bad)
            else:
                yield example

    @property
    def window(self) -> int:
        """How many examples are worked on together."""
        return max(1, min(WINDOW, WINDOW_BYTES // max(self.source.most_bytes, 1)))

    @cached_property
    def longest(self) -> int:
        """The most positions the model has room for; see `build`."""
        return longest_sequence(self.sides)

    def positions_needed(self, source: Item) -> int:
        """How many of `longest` positions a source takes; none, where its encoder is not bounded by them."""
        return self.source.positions_needed(source) if reads_bounded(self.config) else 0

    def unfit(self, source: Item, target: Tokens) -> str | None:
        """Why an example, with its marks, is more than the model has positions for; None if it is not."""
        if max(len(target) + 2, self.positions_needed(source)) > self.longest:
            length = max(len(target), self.source.length(source))
            return f"has {length} tokens, more than a model of {self.longest} positions can read"
        return None

    def unfit_pairs(self, sources: Sequence[Field], targets: Sequence[str]) -> list[str | None]:
        """`unfit` of each pair of texts."""
        items, tokens = self.source.encode_many(sources), self.target.encode_many(targets)
        return [self.unfit(item, own) for item, own in zip(items, tokens, strict=True)]

    @property
    def several_references(self) -> bool:
        """Examples of one source are one input with several references, when evaluated."""
        return self.source.several_references

    def reference(self, example: Example) -> str:
        """The target of an example, as what outputs are held against."""
        return example.target

    def lower_is_better(self, metric: str, examples: Sequence[Example] = ()) -> bool:
        """Whether less of what `validate` gives under this name, of such examples, is better."""
        if metric in ("loss", "perplexity"):
            return True
        return metric in METRICS.kinds and not measure(metric, ["a"], ["a"]).higher_is_better

    @property
    def best_layer(self) -> str | None:
        """The attention over the source to show first and to align by; None if there is none. Of many layers the last
        but one, whose heads agree best with alignments (Garg et al. 2019); of three or fewer the last. Without a
        decoder, what CTC names when."""
        modules = dict(self.model.named_modules())
        names = [name for name in modules if name.endswith(("decoder.attention", "cross_attention"))]
        names = names or [name for name, module in modules.items() if isinstance(module, Aligner)]
        if not names:
            return None
        return names[-1] if len(names) <= 3 else names[-2]

    def score(self, sources: Sequence[Field], targets: Sequence[str]) -> list[PairScore]:
        """`log p(target given source)` of each pair, the end of the target included."""
        return self.score_items(self.source.encode_many(sources), self.target.encode_many(targets))

    def sentence_embeddings(self, fields: Sequence[Field]) -> NDArray[np.float32]:
        """One vector for each source, `(sources, d_model)`: what its encoder makes of the whole."""
        found = np.zeros((len(fields), self.config.model.d_model), np.float32)
        for group, memory in self._encoded(fields):
            found[group] = memory.summary.float().cpu().numpy()
        return found

    def token_embeddings(self, fields: Sequence[Field]) -> list[NDArray[np.float32]]:
        """For each source the vector of each of its positions, `(positions, d_model)`."""
        found: list[NDArray[np.float32]] = [np.zeros((0, self.config.model.d_model), np.float32)] * len(fields)
        for group, memory in self._encoded(fields):
            states = memory.states.values.float().cpu().split(memory.states.lengths.tolist())
            for i, rows in zip(group, states, strict=True):
                found[i] = rows.numpy()
        return found

    def _read(self, fields: Sequence[Field], problem: Problem) -> dict[int, Item]:
        """Each source that can be read, by its number; `problem` hears of the others."""
        try:
            return dict(enumerate(self.source.encode_many(fields)))
        except DataError:
            items = {}
            for i, field in enumerate(fields):
                try:
                    items[i] = self.source.encode_many([field])[0]
                except DataError as error:
                    problem(i, f"cannot be used: {error}")
            return items

    def readable(self, fields: Sequence[Field]) -> tuple[Sequence[Item], Pack]:
        """Sources as items, and how some of these are laid out for what reads them."""
        return self.source.encode_many(fields), self.source.pack

    def _encoded(self, fields: Sequence[Field]) -> Iterator[tuple[list[int], Memory]]:
        items, pack = self.readable(fields)
        for group in self.groups(items, self.config.training.batch_tokens):
            with self.inference():
                yield group, self.model.encode(pack([items[i] for i in group]).to(self.device))

    def attention(
        self, sources: Sequence[Item], targets: Sequence[Tokens], layers: Collection[str] | None = None
    ) -> Iterator[tuple[int, Attention]]:
        """`(number, weights)` of each pair, in any order, in every attention of the model or in `layers`."""
        for group, batch in self.batches(sources, targets):
            with self.inference(), capture(self.model, layers) as trace:
                self.model(batch.source, batch.inputs)
            for row, i in enumerate(group):
                found = {}
                for name, weights in _captured(trace, row, len(group)):
                    queries, keys = (self.length(x, sources[i], targets[i]) for x in SIDES[attention_kind(name)])
                    if part := attention_part(name):
                        queries = keys = self.source.parts[part - 1].places(sources[i][part - 1])
                    found[name] = self._shown_weights(name, weights, queries, keys).numpy()
                yield i, found

    def _shown_weights(self, name: str, weights: Tensor, queries: int, keys: int) -> Tensor:
        """Of all weights those between what is shown; where the decoder looks at itself, as shares of these."""
        asked, seen = (self.hidden if side == "target" else 0 for side in SIDES[attention_kind(name)])
        cut = weights[:, asked : asked + queries, seen : seen + keys]
        return cut / cut.sum(-1, keepdim=True).clamp(min=torch.finfo(cut.dtype).tiny) if seen else cut

    @abstractmethod
    def length(self, side: str, source: Item, target: Tokens) -> int:
        """How many positions of the `source` or the `target` side attend or are attended to."""

    def batches(self, sources: Sequence[Item], targets: Sequence[Item]) -> Iterator[tuple[list[int], Batch]]:
        """All pairs in batches of like length, each with the numbers of its pairs."""
        for group in self.groups(sources, self.config.training.batch_tokens, targets):
            yield group, self.batch([sources[i] for i in group], [targets[i] for i in group]).to(self.device)

    def logits(self, sources: Sequence[Item], targets: Sequence[Item]) -> Iterator[tuple[list[int], Batch, Tensor]]:
        """Batches of all pairs, and what the model says of each: `(total, size)`."""
        for group, batch in self.batches(sources, targets):
            with self.inference():
                yield group, batch, self.model(batch.source, batch.inputs).values.float()

    def inference(self) -> AbstractContextManager[None]:
        """As in use: no dropout, no gradients."""
        return inference(self.model)

    def groups(self, sources: Sequence[Item], budget: int, targets: Sequence[Item] | None = None) -> list[list[int]]:
        """Indices in groups of like length within a budget of tokens."""
        if not len(sources):
            return []
        lengths = np.array([self.source.places(x) for x in sources], np.int64) + 1
        others = lengths if targets is None else np.array([len(y) for y in targets], np.int64) + 1
        return [group.tolist() for group in pack([lengths, others], [budget, budget])]


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Some at a time."""
    rest = iter(items)
    while window := list(islice(rest, size)):
        yield window


def tell_unused(used: int, count: int, warn: Warn) -> None:
    """Say how many of so many texts were of no use; that none was of any is an error."""
    if not used:
        raise DataError(f"none of the {count} texts can be used")
    if used < count:
        warn(f"{count - used} texts are empty or too long; left out")


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """A model as in use: no dropout, no gradients; on a GPU, a thread at a time. One not training is left alone, and of
    one that is each module, some of which may not be, gets its mode back."""
    first = next(model.parameters(), None)
    training = [module for module in model.modules() if module.training] if model.training else []
    if training:
        model.eval()
    try:
        with exclusive(first.device) if first is not None and first.is_cuda else nullcontext(), torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def chosen(logits: Tensor, batch: Batch) -> list[list[float]]:
    """`log p` of each of a batch's outputs that count, by row."""
    outputs = batch.outputs.values
    log_probs = logits.float().log_softmax(-1).gather(1, outputs.clamp(min=0)[:, None]).squeeze(1).tolist()
    bounds, counts = batch.outputs.offsets.tolist(), (outputs != IGNORED).tolist()
    return [list(compress(log_probs[start:end], counts[start:end])) for start, end in pairwise(bounds)]


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


def attention_part(name: str) -> int:
    """Which of several sources (from 1) attends to itself in the attention of this name; 0: it is not such a one."""
    match = re.search(r"(?:^|\.)encoder\.encoders\.([0-9]+)\.", name)
    return int(match[1]) + 1 if match else 0


def _captured(trace: Trace, row: int, rows: int) -> Iterator[tuple[str, Tensor]]:
    """What one of so many rows of a batch attended to in each module; a shared encoder's for each of its sources."""
    for name, by_row in trace.found.items():
        for number in range(max(len(by_row) // rows, 1)):
            own = name.replace("encoder.encoders.0.", f"encoder.encoders.{number}.", 1)
            yield own, trace.weights(name, row + number * rows)


def longest_sequence(sides: Sides) -> int:
    """Positions a model has room for: as many as its settings say, or else what training and search need."""
    config = sides.config
    needed = _positions(sides, None)
    given = config.model.max_positions
    if given is None:
        return max(needed, _positions(sides, config.search))
    if given < needed:
        raise ConfigError(
            f"model.max_positions ({given}) is less than max_length of source and target need ({needed}); lower "
            "source.max_length or target.max_length"
        )
    return given


def reads_bounded(config: Config) -> bool:
    """Whether `model.max_positions` bounds what is read; else it is the stem that has room for so much."""
    return any(part.is_bounded for part in config.model.encoders)


def _positions(sides: Sides, search: Search | None) -> int:
    """Positions that training or a search needs; without an encoder both sides are one sequence."""
    config = sides.config
    limits = [part.longest or 0 for part in sides.source.parts]
    source = sides.source.most_places(max(*limits, search.max_source if search else 0))
    if config.model.max_positions is not None and not reads_bounded(config):
        source = 0
    target = max(sides.target.longest or sides.target.block or 0, search.max_length if search else 0)
    if not config.sources[0].given:
        return target + 2
    if not config.target.written:
        return source
    begin = max(len(sides.target.marks.first), 1)
    return source + target + 2 if config.model.decoder_only else max(source, target + begin)
