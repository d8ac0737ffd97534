"""What beam search keeps: open hypotheses, and the best closed ones so far, of all beams in tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ragged import round_up
from regard.search.limits import Hypothesis, Limits
from regard.search.transfer import copy_to_host

WIDE = {"written": 2, "last": 2, "closed": 1}  # how many tokens more than the longest output these have room for


@dataclass(frozen=True)
class Board:
    """Open and closed hypotheses of the beams that are still searched. Shapes stay as they are from turn to turn.

    Beams that began together have one `length`; those that joined later have each their own.
    """

    number: Tensor  # (beams,): which beam this is; -1: nobody's
    limits: Limits
    length: Tensor  # (1,) or (beams,): tokens of a hypothesis that closes now, its closing mark counted
    token: Tensor  # (beams, open): the last token of each open hypothesis
    written: Tensor  # (beams, open, most + 2): open hypotheses, from bos on
    log_prob: Tensor  # (beams, open)
    over: Tensor  # (beams,): its search is over
    last: Tensor  # (beams, most + 2): the best open one before the turn that ended the search
    last_length: Tensor  # (beams,): tokens of it
    closed: Tensor  # (beams, width, most + 1): closed hypotheses without marks, padded
    closed_length: Tensor  # (beams, width)
    closed_log_prob: Tensor  # (beams, width)
    closed_score: Tensor  # (beams, width): -inf where there is none

    @staticmethod
    def new(limits: Limits, groups: int, open_: int, width: int, most: int) -> Board:
        """With one hypothesis in each beam, the first of `open_`."""
        beams = torch.arange(len(limits.longest) * groups, device=limits.longest.device)
        limits = limits.keep(beams // groups) if groups > 1 else limits
        over = limits.longest < 0
        written = torch.full((len(beams), open_, most + 2), limits.bos, device=beams.device)
        log_prob, score = (torch.full((len(beams), n), -math.inf, device=beams.device) for n in (open_, width))
        log_prob[:, 0].masked_fill_(~over, 0.0)
        return Board(
            number=beams.masked_fill(over, -1), limits=limits, length=beams.new_ones(1),
            token=written[..., 0].clone(), written=written, log_prob=log_prob, over=over,
            last=written[:, 0].clone(), last_length=torch.zeros_like(beams),
            closed=beams.new_zeros(len(beams), width, most + 1), closed_length=beams.new_zeros(len(beams), width),
            closed_log_prob=score, closed_score=score.clone(),
        )  # fmt: skip

    def keep(self, stay: Tensor) -> Board:
        """Some of the beams, in this order."""
        one = ("length",) if len(self.length) == 1 else ()
        rows = {name: x[stay] for name, x in vars(self).items() if isinstance(x, Tensor) and name not in one}
        return replace(self, limits=self.limits.keep(stay), **rows)

    def joined(self, others: Sequence[Board]) -> Board:
        """With the beams of others behind these, which are as wide. They may have begun at other times."""
        boards = (self, *others)
        limits = self.limits.joined([board.limits for board in others])
        most = max(int(limits.longest.max()), 0)  # of those that are here: a longer one may have left

        def laid(name: str) -> Tensor:
            parts = [getattr(board, name) for board in boards]
            wide = most + WIDE[name] if name in WIDE else None
            return torch.cat(parts if wide is None else [F.pad(x, (0, wide - x.shape[-1])) for x in parts])

        tensors = {name: laid(name) for name, x in vars(self).items() if isinstance(x, Tensor) and name != "length"}
        length = torch.cat([board.length.expand(len(board.number)) for board in boards])
        return replace(self, limits=limits, length=length, **tensors)

    def put(self, places: Tensor, other: Board) -> bool:
        """Write the beams of another, which are as wide, in these places, in place; False: there is no room."""
        most = self.closed.shape[-1] - other.closed.shape[-1]
        if most < 0 or len(self.length) < len(self.number) or not self.limits.put(places, other.limits):
            return False
        for name, own in vars(self).items():
            if isinstance(own, Tensor):
                given = getattr(other, name)
                given = given.expand(len(places)) if name == "length" else given
                own.index_copy_(0, places, F.pad(given, (0, most)) if name in WIDE else given)
        return True

    def fixed(self) -> Board:
        """In one of few shapes, with a length for each beam."""
        most = self.closed.shape[-1] - 1
        wider = {name: F.pad(getattr(self, name), (0, round_up(most, 64) - most)) for name in WIDE}
        length = self.length.expand(len(self.number)).clone()
        return replace(self, limits=self.limits.fixed(), length=length, **wider)

    def idle(self, count: int) -> Board:
        """All but the first `count` beams are over, and nobody's."""
        beyond = torch.arange(len(self.number), device=self.number.device) >= count
        log_prob = self.log_prob.masked_fill(beyond[:, None], -math.inf)
        return replace(self, number=self.number.masked_fill(beyond, -1), over=self.over | beyond, log_prob=log_prob)

    def rows(self, beams: Tensor) -> Tensor:
        """The rows of the model's state that belong to some beams."""
        return torch.arange(self.log_prob.numel(), device=beams.device).view_as(self.log_prob)[beams].flatten()

    def close(self, log_prob: Tensor, parent: Tensor, penalty: Tensor) -> Board:
        """With new closed hypotheses (log p at -inf: none) among the best closed so far, by log p over a penalty `(1,)`
        or `(beams,)`."""
        score = torch.cat((self.closed_score, log_prob / penalty[:, None]), dim=1)
        score, best = score.topk(self.closed_score.shape[1], dim=1)
        new = picked(self.written[..., 1:], parent)
        length = (self.length - 1)[:, None].expand_as(parent)
        return replace(
            self,
            closed=picked(torch.cat((self.closed, new), dim=1), best),
            closed_length=torch.cat((self.closed_length, length), dim=1).gather(1, best),
            closed_log_prob=torch.cat((self.closed_log_prob, log_prob), dim=1).gather(1, best),
            closed_score=score,
        )

    def write(self, parent: Tensor, token: Tensor) -> Tensor:
        """What is written with one more token, `(beams, open)`, behind an open hypothesis each."""
        written = picked(self.written, parent)
        place = self.length.clamp(max=written.shape[2] - 1)  # what is over may go on, and nobody reads it
        if len(place) == 1:
            return written.index_copy_(2, place, token.unsqueeze(-1))
        return written.scatter_(2, place[:, None, None].expand_as(token.unsqueeze(-1)), token.unsqueeze(-1))

    def hypotheses(self, nbest: int, beams: Tensor | None = None) -> Callable[[], list[tuple[int, list[Hypothesis]]]]:
        """Send what was found on its way from the device. What is given back waits for it: the number of some beams, or
        of all, whose search is over, and the best that each has found. One that found none gives the best that was left
        open. Beams that are nobody's are left out."""
        closed, prefix = self.closed[:, :nbest], self.limits.prefixes
        count, wide = closed.shape[1:]
        parts = (self.number[:, None], self.last_length[:, None], self.closed_length[:, :nbest])
        scores = torch.cat((self.closed_log_prob[:, :nbest], self.closed_score[:, :nbest]), dim=1)
        every = torch.cat((*parts, prefix, self.last, closed.flatten(1)), dim=1)  # in one copy: each takes its time
        arriving = copy_to_host(*((every, scores) if beams is None else (every[beams], scores[beams])))

        def wait() -> list[tuple[int, list[Hypothesis]]]:
            (whole, real), found = (x.numpy() for x in arriving()), list[tuple[int, list[Hypothesis]]]()
            first = 2 + count + prefix.shape[1]  # where the best open one begins, and behind it those that closed
            for row, values, (number, end, *lengths) in zip(
                whole, real.tolist(), whole[:, : 2 + count].tolist(), strict=True
            ):
                if number < 0:
                    continue
                tokens = row[first + self.last.shape[1] :].reshape(count, wide)
                best = [
                    Hypothesis(one[:length].tolist(), log_prob, score)
                    for one, length, log_prob, score in zip(tokens, lengths, values, values[count:], strict=False)
                    if score > -math.inf
                ]
                if not best:  # even if it broke off within its prefix, it has all of that
                    begun = [token for token in row[2 + count : first].tolist() if token >= 0]
                    left = row[first + 1 : first + 1 + end].tolist()
                    best = [Hypothesis(begun + left[len(begun) :], -math.inf, -math.inf)]
                found.append((number, best))
            return found

        return wait

    def settled(self, beams: Tensor) -> Callable[[], list[list[int]]]:
        """Send what every hypothesis of these beams begins with that may still win, those that are open and the best
        closed, on its way from the device. What is given back waits for it."""
        leader, most = self.closed[beams, :1], self.closed.shape[-1]
        tokens = torch.cat((leader, self.written[beams, :, 1 : most + 1]), dim=1)
        open_length = (self.length.expand(len(self.number))[beams, None] - 1).expand(-1, self.log_prob.shape[1])
        length = torch.cat((self.closed_length[beams, :1], open_length), dim=1)
        counts = torch.cat((self.closed_score[beams, :1], self.log_prob[beams]), dim=1) > -math.inf
        # Tokens of the first that counts, as far as all that count have them too.
        own = picked(tokens, counts.int().argmax(1)[:, None])
        inside = torch.arange(most, device=tokens.device) < length.unsqueeze(-1)
        same = ((tokens == own) & inside) | ~counts.unsqueeze(-1)
        ends = same.all(1).int().cumprod(1).sum(1).masked_fill(~counts.any(1), 0)
        arriving = copy_to_host(torch.cat((ends[:, None], own.squeeze(1)), dim=1))

        def wait() -> list[list[int]]:
            rows = arriving()[0].numpy()
            return [row[1 : 1 + end].tolist() for row, end in zip(rows, rows[:, 0].tolist(), strict=True)]

        return wait


def picked(x: Tensor, index: Tensor) -> Tensor:
    """`(beams, some, tokens)` of `(beams, all, tokens)`."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
