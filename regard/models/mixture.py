"""An output layer of several softmaxes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.models.model import Head
from regard.models.stems import Embedding
from regard.nn.dropout import Dropout


class MixtureHead(Head):
    """A mixture of softmaxes (Yang et al. 2018, eq. 3): `p = Σ_k π_k softmax(W h_k + b)`, `π = softmax(V h)` and
    `h_k = tanh(U_k h)`. As logits it gives `log p`, of which a softmax is `p`. `dropout` is of the vectors `h_k`."""

    def __init__(self, d_model: int, vocabulary: int, tied: Embedding | None, softmaxes: int, dropout: float) -> None:
        super().__init__(d_model, vocabulary, tied)
        self.count, self.dropout = softmaxes, Dropout(dropout)
        self.latent = nn.Linear(d_model, softmaxes * d_model)
        self.prior = nn.Linear(d_model, softmaxes, bias=False)
        for layer in (self.latent, self.prior):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.latent.bias)

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        latent = torch.tanh(self.latent(x)).unflatten(-1, (self.count, -1))
        full = torch.promote_types(x.dtype, torch.float32)
        return self.dropout(latent), torch.log_softmax(self.prior(x), -1, dtype=full)

    def forward(self, x: Tensor) -> Tensor:
        latent, prior = self.mixed(x)
        found: Tensor | None = None
        for h, share in zip(latent.unbind(-2), prior.unbind(-1), strict=True):
            part = torch.log_softmax(self.linear(h), -1, dtype=share.dtype) + share.unsqueeze(-1)
            found = part if found is None else torch.logaddexp(found, part)
        assert found is not None, "there are several"
        return found
