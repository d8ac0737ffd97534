"""Models: an encoder and a decoder, a decoder alone, an encoder alone; and what a decoder is to them.

A decoder runs over a whole target at once (`forward`, teacher forced) or a token at a time (`start`, `step`); both give
the same numbers. What is carried between steps is a frozen state. In a search several rows belong to one source, so a
state keeps what is a row's (`select` reorders it) apart from what is a source's, which is never copied for a beam:
rows of one source stand together, as many for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.bundle import Source
from regard.models.encoders import Memory
from regard.models.stems import Embedding
from regard.nn.adaptive import Softmax
from regard.nn.crf import Chain
from regard.nn.dropout import Dropout
from regard.nn.graphs import Graphs
from regard.nn.rows import Grouping
from regard.ragged import Ragged


class State(Protocol):
    """What a decoder carries between steps. A step may write into the state it is given, which is then used up."""

    @property
    def static_shapes(self) -> bool:
        """Whether states that are joined with `room` have few shapes, and a step leaves them, so that it can be
        recorded."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> Self:
        """The state of these rows, in this order. `sources`: which sources stay, where some have left."""

    def fixed(self, tokens: int) -> Self:
        """With room for so many more tokens, so that no shape changes from step to step. Room in which nothing stands
        yet may be one number spread out, and is there when the state has been cloned."""

    def grouped(self, grouping: Grouping | None) -> Self:
        """With rows so shared out among the sources. Whoever selects or joins rows so that sources have different
        numbers of them, or no longer have, says so."""

    def join(self, others: Sequence[Self], rows: Tensor, sources: Tensor, room: int = 0) -> Self:
        """Laid together with states of other searches, which may have other sources and have read more or fewer tokens:
        these `rows` and `sources` of all of them, counted through, in this order; any of them may come several times.
        With `room` for so many more tokens what comes of it is `fixed`, where it has `static_shapes`."""

    def put(self, other: Self, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        """Write another state over `rows` and `sources` of this one, in place, if it fits; only over a state that was
        joined with room, of which there is now so much left. Row `rows[i]` becomes what row `whose[i]` of the other is.
        False: these rows and sources hold nothing any more."""


class Decoder(Protocol):
    """Any decoder. `bounded` is True where it looks back at what it has read, and so only so far; `packed` where only
    attention relates positions to each other, and nothing waits for the device."""

    bounded: bool
    packed: bool

    def __call__(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        """All steps at once: `(total,)` tokens to `(total, d_model)`."""

    def start(self, memory: Memory) -> State:
        """The state before the first token."""

    def alone(self, rows: int) -> State:
        """The state before the first token, where there is nothing to look at."""

    def read(self, tokens: Ragged, state: State) -> tuple[Ragged, State]:
        """Some more tokens at once, where there is nothing to look at; `(total, d_model)` and the state after them."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row, `(rows,)`, to `(rows, d_model)` and the state after it."""


class Head(nn.Module):
    """The output layer, `(…, d_model)` to `(…, vocabulary)` logits; tied to an embedding if one is given
    (Press and Wolf 2017)."""

    def __init__(self, d_model: int, vocabulary: int, tied: Embedding | None, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, vocabulary, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)
        if tied is not None:
            self.linear.weight = tied.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def softmaxes(self, x: Tensor, targets: Tensor) -> Iterator[Softmax]:
        """The softmaxes whose `-log p` add up to that of the targets: here one."""
        yield Softmax(x, self.linear.weight, self.linear.bias, targets)

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of a mixture of softmaxes, the vector of each, `(…, softmaxes, d_model)`, which goes through `linear`, and
        the logarithm of its share, `(…, softmaxes)`; None: there is one, of `x` itself."""
        return None


class AutoregressiveModel(nn.Module, ABC):
    """A decoder and an output layer, which write a token at a time."""

    decoder: Decoder
    head: Head  # or an `AdaptiveHead`, of which models ask the same
    graphs: Graphs | None = None  # where a search records its turns; none: it records nothing
    reads_source_first = False  # whether source and target are one sequence to the decoder

    @property
    def packed(self) -> bool:
        """Whether only attention relates positions to each other in `states`, and nothing waits for the device."""
        return False

    def forward(self, source: Source, inputs: Ragged) -> Ragged:
        """Logits `(total, vocabulary)` for the token after each of `inputs`."""
        return inputs.like(self.head(self.states(source, inputs).values))

    @abstractmethod
    def states(self, source: Source, inputs: Ragged) -> Ragged:
        """Vectors `(total, d_model)` from which the output layer predicts the token after each of `inputs`."""

    @abstractmethod
    def start(self, source: Source) -> State:
        """The state from which `step` writes."""

    @abstractmethod
    def encode(self, source: Source) -> Memory:
        """What is made of the source."""

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """`(rows,)` tokens to `(rows, d_model)`, the input of `predict`, and the state after them."""
        return self.decoder.step(tokens, state)

    def predict(self, output: Tensor) -> Tensor:
        """`(rows, vocabulary)` log-probabilities."""
        return torch.log_softmax(self.head(output), dim=-1, dtype=torch.float32)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """`(rows,)` tokens to `(rows, vocabulary)` log-probabilities of the next, and the state after them."""
        output, state = self.advance(tokens, state)
        return self.predict(output), state

    def logits(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Like `step`, but returns logits."""
        output, state = self.advance(tokens, state)
        return self.head(output), state


class EncoderDecoder(AutoregressiveModel):
    """`p(y given x) = Π_t softmax(head(decoder(y_<t, encoder(x))))`, over a whole target or a token at a time."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, head: Head, ctc: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, head  # type: ignore[assignment]
        self.ctc: Any = ctc  # an output layer over the encoder's states (`CTCHead`), if there is one

    @property
    def packed(self) -> bool:
        return self.decoder.packed and bool(self.encoder.packed)

    def states(self, source: Source, inputs: Ragged) -> Ragged:
        memory = self.encode(source)
        found = self.decoder(inputs, memory)
        if self.ctc is not None:
            self.ctc.align(memory.states, inputs)
        return found

    def encode(self, source: Source) -> Memory:
        return self.encoder(source)

    def start(self, source: Source) -> State:
        return self.decoder.start(self.encode(source))


class DecoderOnly(AutoregressiveModel):
    """A decoder alone. Without a source, a language model, `p(y) = Π_t p(y_t given y_<t)`; with one, that of source,
    `<sep>` and target as one text, of which the target is predicted: the state at `<sep>` is the encoding."""

    reads_source_first = True

    def __init__(self, decoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.decoder, self.head = decoder, head  # type: ignore[assignment]

    @property
    def packed(self) -> bool:
        return self.decoder.packed

    def states(self, source: Source, inputs: Ragged) -> Ragged:
        if not source.longest and not (source.spare and source.values.shape[0]):  # else it might be another time
            return self.decoder(inputs, None)
        both, place = source.joined(inputs)
        return inputs.like(self.decoder(both, None).values.index_select(0, place))

    def start(self, source: Source) -> State:
        return self.read(source, self.decoder.alone(source.rows))[1]

    def encode(self, source: Source) -> Memory:
        states = self.decoder(source, None)
        return Memory(states, states.last())

    def read(self, tokens: Ragged, state: State) -> tuple[Ragged, State]:
        """Some more text at once: its outputs, and the state after it."""
        return self.decoder.read(tokens, state)


def placed(source: Ragged, inputs: Ragged) -> Tensor:
    """Where among the values of `source` those stand that `inputs` names by their positions in each sequence; for one
    that belongs to no sequence, right behind the last."""
    return source.offsets.long()[inputs.row] + inputs.values


class MaskedLanguageModel(nn.Module):
    """An encoder alone, which says what stood at chosen places (BERT, Devlin et al. 2019):
    `p(x_t given the rest) = softmax(head(norm(gelu(W h_t))))`."""

    def __init__(
        self, encoder: nn.Module, d_model: int, head: Head, epsilon: float = 1e-5, width: int | None = None
    ) -> None:
        """With `width`, the encoder's vectors are of that width, and not of the output layer's."""
        super().__init__()
        self.encoder, self.head = encoder, head
        self.transform, self.norm = nn.Linear(width or d_model, d_model), nn.LayerNorm(d_model, eps=epsilon)

    @property
    def packed(self) -> bool:
        """Whether only attention relates positions to each other, and nothing waits for the device."""
        return bool(self.encoder.packed)

    def forward(self, source: Source, inputs: Ragged) -> Ragged:
        """Logits `(total, vocabulary)` for the token at each of the positions `inputs` of the source."""
        return inputs.like(self.head(self.states(source, inputs).values))

    def states(self, source: Source, inputs: Ragged) -> Ragged:
        """Vectors `(total, d_model)` from which the output layer predicts the token at each of these positions."""
        states = self.encode(source).states.values
        # What fills `inputs` up has a place too; where nothing fills the source up, that is one after the last.
        place = placed(source, inputs).clamp(max=states.shape[0] - 1)
        return inputs.like(self.norm(F.gelu(self.transform(states.index_select(0, place)))))

    def encode(self, source: Source) -> Memory:
        return self.encoder(source)


class EncoderWithHead(nn.Module):
    """A body under a classification or regression head, which predicts something of the whole source or of its words.

    For the whole it predicts from one vector: the first of a Transformer's encoder, by way of `tanh(W h)` (BERT, Devlin
    et al. 2019) or `relu(W h)` (DistilBERT, Sanh et al. 2019), that of a class token (ViT, Dosovitskiy et al. 2021),
    the last of a decoder (GPT, Radford et al. 2018), the encoder's summary, or a mean by learnt weights, `softmax(w x +
    b)` over its vectors `x` (SeqPool, Hassani et al. 2021). For a word, from the vector at one of its pieces. The body
    has the name that it has in other models, so that it can be pretrained.

    With a `chain` (`regard/nn/crf.py`) what is said of a word depends on what is said of the one before. Without
    `outputs` there is no head: what is found is the vector itself, in use without the dense layer unless `projected`.
    """

    def __init__(
        self, body: nn.Module, d_model: int, outputs: int, dropout: float, pool: Pool, *, causal: bool,
        pooler: Literal["tanh", "relu"] = "tanh", bias: bool = True, chain: Chain | None = None, projected: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder: nn.Module | None = None if causal else body
        self.decoder: nn.Module | None = body if causal else None
        self.pool, self.packed = pool, False
        self.transform = nn.Linear(d_model, d_model) if pool == "first" else None
        self.activation = torch.tanh if pooler == "tanh" else torch.relu
        self.score = nn.Linear(d_model, 1) if pool == "attention" else None
        self.dropout, self.predicts = Dropout(dropout), outputs > 0
        if self.predicts:
            self.head = Head(d_model, outputs, None, bias=bias)
        self.chain, self.projected = chain, projected

    def forward(self, source: Source, inputs: Ragged) -> Ragged:
        """`(total, outputs)`: of each source, or of the position in its source that each of `inputs` names."""
        return self.predict_at(source, inputs, self.encode(source))

    def predict_at(self, source: Source, inputs: Ragged, memory: Memory) -> Ragged:
        """Like `forward`, from what the body has made of the source."""
        x = memory.states.values[placed(source, inputs)] if self.pool == "each" else self.whole(memory)
        if self.transform is not None and (self.projected or self.training):
            x = self.activation(self.transform(x))
        found = inputs.like(self.head(self.dropout(x)) if self.predicts else x)
        return found if self.chain is None else self.chain(found)

    def whole(self, memory: Memory) -> Tensor:
        """The vector that stands for each source, `(rows, d_model)`."""
        match self.pool:
            case "first" | "class":
                return memory.states.values[memory.states.offsets[:-1].long()]
            case "mean":
                return memory.states.mean()
            case "attention":
                assert self.score is not None, "it was made for this"
                return memory.states.weighted(self.score(memory.states.values).squeeze(-1))
            case _:
                return memory.summary

    def encode(self, source: Source) -> Memory:
        if self.encoder is not None:
            return self.encoder(source)
        assert self.decoder is not None, "a head stands on a body"
        states: Ragged = self.decoder(source, None)
        return Memory(states, states.last())

    @property
    def causal(self) -> bool:
        """Whether a decoder reads, which sees no further than it has read."""
        return self.decoder is not None


Pool = Literal["first", "class", "last", "summary", "mean", "attention", "each"]
Model = AutoregressiveModel | MaskedLanguageModel | EncoderWithHead
