"""Models written plainly in torch: `nn.Transformer`, and an attentive LSTM that loops over the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.peers.base import Batches, Load, Peer, Step, padded_batches, smoothed, stepper
from benchmarks.race import UnavailableError
from benchmarks.workload import DROPOUT, LONGEST, Padded, Shape
from regard.nn.positions import Sinusoidal


class TorchTransformer(nn.Module):
    """`nn.Transformer` with one embedding for both sides and the output, and sinusoidal positions."""

    positions: Tensor

    def __init__(self, shape: Shape, dropout: float = DROPOUT) -> None:
        super().__init__()
        d = shape.d_model
        self.embedding = nn.Embedding(shape.vocabulary, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.transformer = nn.Transformer(
            d, shape.heads, shape.layers, shape.layers, shape.d_ff, dropout, "relu", batch_first=True
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # post-norm blocks end in a norm already
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # the others have no dropout in attention, and it would cost time
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("positions", Sinusoidal(d)(torch.arange(LONGEST + 2)), persistent=False)

    def forward(self, batch: Padded) -> Tensor:
        """Logits `(rows, target, vocabulary)`."""
        padding = ~batch.source_mask
        length = batch.inputs.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool, device=padding.device).triu(1)
        x = self.transformer(
            self._embed(batch.source), self._embed(batch.inputs), tgt_mask=ahead, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return nn.functional.linear(x, self.embedding.weight, self.bias)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.shape[1]])


class LoopedLSTM(nn.Module):
    """An attentive LSTM with input feeding as it is mostly written: a Python loop over the steps of padded targets."""

    def __init__(self, shape: Shape, dropout: float = DROPOUT) -> None:
        super().__init__()
        d, n = shape.d_model, shape.layers
        self.embedding = nn.Embedding(shape.vocabulary, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        between = dropout if n > 1 else 0.0
        self.encoder = nn.LSTM(d, d // 2, n, batch_first=True, bidirectional=True, dropout=between)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * d if i == 0 else d, d) for i in range(n)])
        self.bridge = nn.Linear(d, 2 * n * d)
        self.score = nn.Linear(d, d, bias=False)
        self.join = nn.Linear(2 * d, d, bias=False)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(d)

    def forward(self, batch: Padded) -> Tensor:
        """Logits `(rows, target, vocabulary)`."""
        lengths = batch.source_mask.sum(1).cpu()
        packed = pack_padded_sequence(self._embed(batch.source), lengths, batch_first=True, enforce_sorted=False)
        states, (last, _) = self.encoder(packed)
        states = self.dropout(pad_packed_sequence(states, batch_first=True)[0])  # (rows, source, d_model)
        keys, padding = self.score(states), ~batch.source_mask
        start = torch.tanh(self.bridge(torch.cat((last[-2], last[-1]), -1))).chunk(2 * len(self.cells), -1)
        hidden, cell = list(start[0::2]), list(start[1::2])
        fed, outputs = torch.zeros_like(hidden[0]), []
        for y in self._embed(batch.inputs).unbind(1):
            x = torch.cat((y, fed), -1)
            for i, layer in enumerate(self.cells):
                hidden[i], cell[i] = layer(self.dropout(x) if i else x, (hidden[i], cell[i]))
                x = hidden[i]
            scores = torch.bmm(keys, x.to(keys.dtype).unsqueeze(-1)).squeeze(-1)  # (rows, source)
            weights = scores.masked_fill(padding, -torch.inf).softmax(-1)
            context = torch.bmm(weights.unsqueeze(1).to(states.dtype), states).squeeze(1)
            fed = self.dropout(torch.tanh(self.join(torch.cat((x, context), -1))))
            outputs.append(fed)
        return nn.functional.linear(torch.stack(outputs, 1), self.embedding.weight, self.bias)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale)


@dataclass(frozen=True)
class Torch(Peer):
    """`nn.Transformer` or the looped LSTM, whichever the shape asks for."""

    note: str = "nn.Transformer; of an LSTM a Python loop over the target"
    compiled: bool = False  # each layer, and the loss

    def training(self, load: Load) -> tuple[Batches, Step]:
        if load.shape.kind == "lstm":
            if self.compiled:
                raise UnavailableError("torch.compile would unroll the loop over the target")
            model: nn.Module = LoopedLSTM(load.shape)
        else:
            model = TorchTransformer(load.shape)
            layers = (*model.transformer.encoder.layers, *model.transformer.decoder.layers)
            for layer in layers if self.compiled else ():
                layer.compile(dynamic=True)  # the layers of a side share what was compiled; all as one takes minutes
        model.to(load.device)
        loss = torch.compile(smoothed, dynamic=True) if self.compiled else smoothed
        return padded_batches(load), stepper(model, lambda batch: loss(model(batch), batch), load)

    def start_up(self, case: str, shape: Shape, folder: Path) -> list[str]:
        return ["-c", "import torch"]
