"""A chain over the tags of a sentence: what each tag costs after the one before it, sums over all sequences, and the
best of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.ragged import Ragged

FORBIDDEN = -1e4  # the score of what must not be; finite, so that no gradient is undefined


class Chain(nn.Module):
    """A linear-chain conditional random field (Lafferty et al. 2001) over what a head says of each word, as in Lample
    et al. 2016, eq. 1: `s(x, y) = Σ_t e_t(y_t) + Σ_t A(y_t-1, y_t)`, with `A(<s>, y_1)` and `A(y_n, </s>)` at the ends,
    and `p(y given x) = exp s(x, y) / Σ_y' exp s(x, y')`.

    It makes one table a word of it, `(total, tags, tags)`: the score of each tag (last axis) after each other. At the
    first word of a row all rows of its table are the same; the score of the end is in that of the last word.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(tags, tags))
        self.start, self.end = nn.Parameter(torch.empty(tags)), nn.Parameter(torch.empty(tags))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, emissions: Ragged) -> Ragged:
        """`(total, tags)` to `(total, tags, tags)`, in no less than float32."""
        wide = torch.promote_types(emissions.values.dtype, torch.float32)
        first = (emissions.position == 0)[:, None, None]
        last = (emissions.position == emissions.lengths[emissions.row] - 1)[:, None]
        scores = emissions.values.to(wide) + torch.where(last, self.end.to(wide), 0.0)  # (total, tags)
        before = torch.where(first, self.start.to(wide), self.transitions.to(wide))  # (total, tags, tags)
        return emissions.like(before + scores[:, None])


def log_partition(tables: Ragged) -> Tensor:
    """`log Σ_y exp s(x, y)` of each row, by the forward algorithm, `(rows,)`."""
    padded, mask = tables.padded(), tables.mask  # (rows, words, tags, tags)
    reached = padded[:, 0, 0]  # log of the sum over all beginnings that end in each tag, (rows, tags)
    for word in range(1, padded.shape[1]):
        further = torch.logsumexp(reached[:, :, None] + padded[:, word], dim=1)
        reached = torch.where(mask[:, word, None], further, reached)
    return torch.logsumexp(reached, dim=1)


def path_score(tables: Ragged, tags: Tensor) -> Tensor:
    """`s(x, y)` of each row, of its tags `(total,)`, `(rows,)`."""
    before = tags.roll(1).masked_fill(tables.position == 0, 0)
    each = tables.values[torch.arange(len(tags), device=tags.device), before, tags]
    return each.new_zeros(tables.rows).index_add(0, tables.row, each)


def crf_loss(tables: Ragged, tags: Tensor) -> Tensor:
    """`Σ -log p(y given x)` over rows. A row with a tag that is none, which is below 0, costs nothing."""
    unknown = torch.zeros(tables.rows, dtype=torch.int64, device=tags.device).index_add(
        0, tables.row, (tags < 0).long()
    )
    each = log_partition(tables) - path_score(tables, tags.clamp(min=0))
    return torch.where(unknown > 0, 0.0, each).sum()


def best_paths(table: Tensor, count: int = 1) -> list[tuple[list[int], float]]:
    """The `count` best sequences of one row, `(words, tags, tags)`, with `log p`, best first: Viterbi's algorithm with
    so many ways to each tag."""
    tags = table.shape[-1]
    scores = table[0, 0][:, None]  # (tags, ways)
    back: list[tuple[Tensor, Tensor]] = []
    for step in table[1:]:
        ways = scores.shape[1]
        further = (scores[:, :, None] + step[:, None]).reshape(tags * ways, tags)  # (before and way, tag)
        top = further.topk(min(count, len(further)), dim=0)
        scores = top.values.T
        back.append((top.indices.T // ways, top.indices.T % ways))
    flat = scores.flatten()
    best = flat.topk(min(count, len(flat)))
    total = float(log_partition(Ragged.from_lengths(table, [len(table)])))
    found = []
    for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        tag, way = divmod(place, scores.shape[1])
        path = [tag]
        for befores, ways_before in reversed(back):
            tag, way = int(befores[tag, way]), int(ways_before[tag, way])
            path.append(tag)
        found.append((path[::-1], score - total))
    return found


def tag_log_probs(table: Tensor, tags: list[int]) -> list[float]:
    """`log p(y_t given y_<t, x)` of each tag of one row, which add up to `log p(y given x)`."""
    after = torch.zeros_like(table[0, 0])  # log of the sum over all ways to go on from each tag
    ways = [after]
    for step in table.flip(0)[:-1]:
        after = torch.logsumexp(step + after, dim=1)
        ways.insert(0, after)
    found, before = [], 0
    for step, onward, tag in zip(table, ways, tags, strict=True):
        found.append(float((step[before] + onward).log_softmax(-1)[tag]))
        before = tag
    return found
