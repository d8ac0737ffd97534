"""A model: an encoder, a decoder and an output layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.models.decoders import Decoder, State
from regard.models.encoders import Embedding, Memory
from regard.ragged import Ragged


class Head(nn.Module):
    """The output layer, `(…, d_model)` to `(…, vocabulary)` logits; tied to an embedding if one is given
    (Press and Wolf 2017)."""

    def __init__(self, d_model: int, vocabulary: int, tied: Embedding | None) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, vocabulary)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if tied is not None:
            self.linear.weight = tied.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class EncoderDecoder(nn.Module):
    """`p(y given x) = Π_t softmax(head(decoder(y_<t, encoder(x))))`, over a whole target or a token at a time."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, head

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        """Logits `(total, vocabulary)` for the token after each of `inputs`."""
        states = self.decoder(inputs, self.encode(source))
        return states.like(self.head(states.values))

    def encode(self, source: Ragged) -> Memory:
        memory: Memory = self.encoder(source)
        return memory

    def start(self, source: Ragged) -> State:
        """The state from which `step` writes."""
        decoder: Decoder = self.decoder  # type: ignore[assignment]
        return decoder.start(self.encode(source))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """`(rows,)` tokens to `(rows, vocabulary)` log-probabilities of the next, and the state after them."""
        decoder: Decoder = self.decoder  # type: ignore[assignment]
        output, state = decoder.step(tokens, state)
        return torch.log_softmax(self.head(output).float(), dim=-1), state
