"""Output layers over large vocabularies that compute a part of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Softmax(NamedTuple):
    """A softmax of `x Wᵀ + b` and what it should say, -100 where nothing counts."""

    x: Tensor  # (some, d_model)
    weight: Tensor  # (outputs, d_model)
    bias: Tensor | None
    targets: Tensor  # (some,)


class Cluster(nn.Module):
    """The output layer of some rare tokens, by way of narrower vectors."""

    def __init__(self, d_model: int, width: int, tokens: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(d_model, width, bias=False), nn.Linear(width, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x))


class AdaptiveHead(nn.Module):
    """Adaptive softmax (Grave et al. 2017, 4): frequent tokens are predicted at once, rare ones in two steps.

    Tokens are ranked by how often the training data hold them and cut into a short list and clusters. A first softmax
    is over the short list and one output for each cluster; cluster `i` has a softmax of its own over vectors that are
    `reduction^i` times narrower: `p(y) = p(cluster of y) p(y in its cluster)`. Only the clusters that a batch's tokens
    are of are computed in training. In use all are, and what is given is `log p` of every token.
    """

    order: Tensor  # which token is of each rank; saved with the weights, which is why these are real numbers

    def __init__(self, d_model: int, vocabulary: int, cutoffs: Sequence[int], reduction: float) -> None:
        super().__init__()
        self.bounds = [*cutoffs, vocabulary]
        self.first = nn.Linear(d_model, cutoffs[0] + len(cutoffs), bias=False)
        self.tails: Sequence[Cluster] = nn.ModuleList(  # type: ignore[assignment]
            Cluster(d_model, max(1, int(d_model / reduction**number)), end - start)
            for number, (start, end) in enumerate(pairwise(self.bounds), 1)
        )
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter)
        # Not on the meta device, where this imports torch's compiler (see `count_parameters`).
        self.register_buffer("order", torch.arange(vocabulary, dtype=torch.float32, device="cpu"))

    @torch.no_grad()
    def rank(self, counts: Tensor) -> None:
        """Order tokens by how often they come, `(vocabulary,)`; of equals the first comes first."""
        self.order.copy_(counts.argsort(descending=True, stable=True))

    @property
    def ranks(self) -> Tensor:
        """The rank of each token, `(vocabulary,)`."""
        order = self.order.round().long()
        return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))

    def forward(self, x: Tensor) -> Tensor:
        """`(…, d_model)` to `(…, vocabulary)` log-probabilities."""
        short, kind = self.bounds[0], torch.promote_types(x.dtype, torch.float32)
        first = self.first(x).log_softmax(-1, dtype=kind)
        parts = [first[..., :short]]
        for number, cluster in enumerate(self.tails):
            parts.append(cluster(x).log_softmax(-1, dtype=kind) + first[..., short + number, None])
        return torch.cat(parts, -1).index_select(-1, self.ranks)

    def mixed(self, x: Tensor) -> None:
        """It is no mixture."""

    def softmaxes(self, x: Tensor, targets: Tensor) -> Iterator[Softmax]:
        """The softmaxes whose `-log p` add up to that of the targets; where these are all of the short list, there is
        one. Which tokens are of a cluster, the device has to say."""
        short, known = self.bounds[0], targets >= 0
        rank = torch.where(known, self.ranks[targets.clamp(min=0)], targets)
        first = rank
        for number, start in enumerate(self.bounds[:-1]):
            first = torch.where(rank >= start, short + number, first)
        yield Softmax(x, self.first.weight, None, first)
        for (start, end), cluster in zip(pairwise(self.bounds), self.tails, strict=True):
            some = ((rank >= start) & (rank < end)).nonzero().squeeze(1)
            if len(some):
                yield Softmax(cluster.narrow(x[some]), cluster.wide.weight, None, rank[some] - start)


def sampled_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, log_q: Tensor, drawn: Tensor
) -> Tensor:
    """Sampled softmax (Jean et al. 2015, eq. 9; Bengio and Senécal 2008), summed over tokens:
    `-log exp(s_y - log Q(y)) / (exp(s_y - log Q(y)) + Σ_k exp(s_k - log Q(k)))` with `s = x Wᵀ + b`, over the tokens
    `k` that were `drawn` for all of `x` together, `(samples,)`, each once; `y` itself is left out of them. `Q` is how
    probable a token is to be among them: where all are, this is the softmax over all.

    `x` is `(tokens, d_model)`, `log_q` `(vocabulary,)`, and a target of -100 does not count.
    """
    counts, right, wide = targets >= 0, targets.clamp(min=0), torch.promote_types(x.dtype, torch.float32)
    others = torch.nn.functional.linear(x, weight[drawn], None if bias is None else bias[drawn]).to(wide)
    others = (others - log_q[drawn]).masked_fill(drawn == right[:, None], -torch.inf)  # (tokens, samples)
    own = (x * weight[right]).sum(-1, dtype=others.dtype) + (0.0 if bias is None else bias[right])
    own = own - log_q[right]
    each = torch.logsumexp(torch.cat((own[:, None], others), 1), 1) - own
    return torch.where(counts, each, 0.0).sum()


def log_included(log_q: Tensor, draws: int) -> Tensor:
    """`log` of how probable each token is to be among so many draws, `1 - (1 - Q)^draws`."""
    return (-torch.expm1(draws * torch.log1p(-log_q.double().exp().clamp(max=1 - 1e-12)))).log().to(log_q.dtype)


def log_uniform(counts: Tensor) -> Tensor:
    """`log Q` of each token, where `Q` falls with its rank `r` from 0 by how often it comes: `Q = log((r + 2) / (r +
    1)) / log(vocabulary + 1)`, which is near Zipf's law."""
    rank = torch.empty(len(counts), dtype=torch.float64)
    rank[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts), dtype=torch.float64)
    return (torch.log1p(1.0 / (rank + 1.0)) / torch.log(torch.tensor(len(counts) + 1.0))).log().float()


def unigram(counts: Tensor) -> Tensor:
    """`log Q` of each token, as often as it comes, and one time more, so that none is impossible."""
    more = counts.double() + 1.0
    return (more / more.sum()).log().float()


PROPOSALS = {"log_uniform": log_uniform, "unigram": unigram}
