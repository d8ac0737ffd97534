"""Positional encodings: how a model without recurrence knows the order.

`Sinusoidal` and `Learned` are added to the embeddings and say where a token stands. The kinds of `Relative` work inside
self-attention and say how far apart two tokens stand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import DataError


class Sinusoidal(nn.Module):
    """Vaswani et al. 2017, 3.5: `P_{t,2i} = sin(t / 10000^{2i/d})`, `P_{t,2i+1} = cos(t / 10000^{2i/d})`.

    A shift is linear, `P_{t+τ} = M_τ P_t` with `M_τ` a rotation in each pair of dimensions. There is no last position.
    """

    frequencies: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        # Not on the meta device, where arithmetic imports torch's compiler (see `count_parameters`).
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
        self.register_buffer("frequencies", torch.exp(-math.log(10000.0) * exponent).float(), persistent=False)

    def forward(self, position: Tensor, longest: int = 0) -> Tensor:
        """`(…,)` whole numbers to `(…, d_model)`."""
        angle = position.unsqueeze(-1) * self.frequencies
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class SinusoidalHalves(nn.Module):
    """The numbers of `Sinusoidal` in another order: `P_{t,i} = sin(t / 10000^{2i/d})`, `P_{t,d/2+i} = cos(t /
    10000^{2i/d})`, as Tensor2Tensor (Vaswani et al. 2018) and Marian have them."""

    frequencies: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", Sinusoidal(d_model).frequencies, persistent=False)

    def forward(self, position: Tensor, longest: int = 0) -> Tensor:
        """`(…,)` whole numbers to `(…, d_model)`."""
        angle = position.unsqueeze(-1) * self.frequencies
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Learned(nn.Module):
    """Gehring et al. 2017: one free vector a position, up to a longest. Position 0 is the row `first` of the table."""

    def __init__(self, d_model: int, longest: int, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self.table = nn.Embedding(longest + first, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, position: Tensor, longest: int) -> Tensor:
        """Positions below `longest`, an argument so that nothing waits for the device (0: not known here)."""
        if longest > self.table.num_embeddings - self.first:
            raise DataError(
                f"a sequence of {longest} tokens is longer than the {self.table.num_embeddings - self.first} "
                "learned positions; shorten it, or train with positions: sinusoidal or a larger data.max_length"
            )
        # What a search has done with may go on beside what it has not, to positions that there are none for.
        row = position + self.first if self.first else position
        return self.table(row.clamp(max=self.table.num_embeddings - 1))


def distances(targets: int, sources: int, device: torch.device) -> Tensor:
    """`j - i` of key `j` and query `i`, `(target, source)`; the last query stands where the last key does."""
    slot = torch.arange(sources, device=device)
    return slot - slot[sources - targets :, None]


class Relative(nn.Module):
    """Positions inside self-attention, by the distance `j - i` alone, so that a row may start at any slot.

    `e_ij = turn(q_i)ᵀ turn(k_j) / √d_head + scores_ij` and `c_i = Σ_j α_ij (v_j + values_ij)`. A kind either turns
    queries and keys, which any kernel can read, or `adds` something, which the packed kernel cannot.
    """

    adds = True

    def turn(self, q: Tensor, k: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys `(…, length, heads, d_head)` that stand at slots `(length,)`, or each row's at its own,
        `(rows, length)`."""
        return q, k

    def scores(self, q: Tensor, distance: Tensor) -> Tensor:
        """What is added to the scores of `(rows, heads, target, d_head)`: `(rows or 1, heads, target, source)`."""
        return q.new_zeros(())

    def values(self, distance: Tensor) -> Tensor | None:
        """What is added to the values, `(target, source, d_head)`, if anything."""
        return None


class Rotary(Relative):
    """Su et al. 2021, eq. 34: the pair `(x_{2i}, x_{2i+1})` at slot `t` is turned by the angle `t / 10000^{2i/d}`.

    A turned query times a turned key depends on the difference of their slots: `(R_i q)ᵀ (R_j k) = qᵀ R_{j-i} k`.
    """

    adds = False
    frequencies: Tensor

    def __init__(self, d_head: int) -> None:
        super().__init__()
        assert d_head % 2 == 0, f"rotary positions turn pairs, and d_head ({d_head}) is odd"
        self.register_buffer("frequencies", Sinusoidal(d_head).frequencies, persistent=False)

    def turn(self, q: Tensor, k: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        angle = slot[..., None, None] * self.frequencies  # (…, length, 1, d_head / 2), in full precision
        cos, sin = angle.cos(), angle.sin()

        def turned(x: Tensor) -> Tensor:
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)

        return turned(q), turned(k)


class Alibi(Relative):
    """Press et al. 2022: `-m_h |i - j|` is added to the scores of head `h`, with `m_h = 2^{-8h/H}`, `h` from 1 to `H`.

    Where `H` is no power of two, the published code takes the slopes of the next smaller power and then every second
    one of the next larger. The paper looks back alone; looking both ways, the distance counts the same ahead.
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        power = 2 ** (heads.bit_length() - 1)
        steps = [8 * h / power for h in range(1, power + 1)]
        steps += [4 * h / power for h in range(1, 2 * power, 2)]
        slopes = torch.tensor([2.0**-step for step in steps[:heads]])
        self.register_buffer("slopes", slopes, persistent=False)

    def scores(self, q: Tensor, distance: Tensor) -> Tensor:
        return (-self.slopes[:, None, None] * distance.abs()).to(q.dtype).unsqueeze(0)


class T5Bias(Relative):
    """Raffel et al. 2020, 2.1: a learned number for each head and bucket of distances is added to the scores.

    Half of the buckets hold one distance each, the others ever wider ranges up to `distance`, and the last all beyond.
    Looking both ways, keys ahead have buckets of their own. The blocks of a stack share one such module. T5 leaves out
    the `1 / √d_head` of the scores, which its initialisation makes up for; here it stays, unless `scale_scores` is off.
    """

    bucket: Tensor

    def __init__(self, heads: int, buckets: int = 32, distance: int = 128, *, bidirectional: bool) -> None:
        super().__init__()
        self.distance, self.bidirectional = distance, bidirectional
        self.side = buckets // 2 if bidirectional else buckets  # buckets for one direction
        exact = self.side // 2
        assert 0 < exact < distance, f"{buckets} buckets do not fit distances up to {distance}"
        wide = self.side - exact

        def place(n: int) -> int:
            # exact + ⌊log(n / exact) / log(distance / exact) · wide⌋ in whole numbers: logarithms round differently on
            # each device just where a bucket begins
            found = [i for i in range(wide) if distance**i * exact ** (wide - i) <= n**wide]
            return n if n < exact else exact + found[-1]

        self.table = nn.Embedding(buckets, heads)
        nn.init.normal_(self.table.weight, std=0.02)
        self.register_buffer("bucket", torch.tensor([place(n) for n in range(distance + 1)]), persistent=False)

    def buckets(self, distance: Tensor) -> Tensor:
        """The bucket of each distance."""
        if self.bidirectional:
            return self.bucket[distance.abs().clamp(max=self.distance)] + self.side * (distance > 0).long()
        return self.bucket[(-distance).clamp(0, self.distance)]

    def scores(self, q: Tensor, distance: Tensor) -> Tensor:
        return self.table(self.buckets(distance)).permute(2, 0, 1).to(q.dtype).unsqueeze(0)


class Shaw(Relative):
    """Shaw et al. 2018, eq. 3 and 4: `e_ij = q_iᵀ (k_j + a^K_ij) / √d_head`, `c_i = Σ_j α_ij (v_j + a^V_ij)`.

    `a_ij` is a learned vector of the distance `j - i`, clipped to `±clip`. The heads share it; each layer has its own.
    """

    def __init__(self, d_head: int, clip: int = 16) -> None:
        super().__init__()
        self.clip = clip
        self.key_table, self.value_table = (nn.Embedding(2 * clip + 1, d_head) for _ in range(2))
        for table in (self.key_table, self.value_table):
            nn.init.xavier_uniform_(table.weight)

    def scores(self, q: Tensor, distance: Tensor) -> Tensor:
        keys = self.key_table(self._row(distance)).to(q.dtype)  # (target, source, d_head)
        return torch.einsum("rhtd,tsd->rhts", q, keys) / math.sqrt(q.shape[-1])

    def values(self, distance: Tensor) -> Tensor:
        return self.value_table(self._row(distance))

    def _row(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.clip, self.clip) + self.clip


class TransformerXL(Relative):
    """Dai et al. 2019, 3.3: `e_ij = ((q_i + u)ᵀ k_j + (q_i + v)ᵀ W r_{i-j}) / √d_head`, with `r` the sines and
    cosines of a distance, and `u`, `v` learned for each head. Each layer has its own, as in the Conformer (Gulati
    et al. 2020).
    """

    def __init__(self, heads: int, d_head: int) -> None:
        super().__init__()
        self.sines = Sinusoidal(heads * d_head)
        self.from_distance = nn.Linear(heads * d_head, heads * d_head, bias=False)
        self.to_key, self.to_distance = (nn.Parameter(torch.zeros(heads, d_head)) for _ in range(2))  # u and v
        nn.init.xavier_uniform_(self.from_distance.weight)

    def turn(self, q: Tensor, k: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.to_key.to(q.dtype), k

    def scores(self, q: Tensor, distance: Tensor) -> Tensor:
        targets, sources = distance.shape
        first = distance[-1, 0] if sources else 0  # the farthest back; from there on each distance once
        steps = torch.arange(targets + sources - 1 if sources else 0, device=q.device)
        r = self.from_distance(self.sines(-(first + steps)).to(self.from_distance.weight.dtype))
        r = r.unflatten(-1, self.to_key.shape).to(q.dtype)  # (distances, heads, d_head)
        asked = q + (self.to_distance - self.to_key).to(q.dtype)[:, None]
        found = torch.einsum("rhtd,shd->rhts", asked, r)  # (rows, heads, target, distances)
        index = (distance - first).expand(*found.shape[:2], -1, -1)
        return found.gather(-1, index) / math.sqrt(q.shape[-1])
