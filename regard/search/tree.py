"""Beam search as a tree: what was kept, what ended and what fell out of the beam, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from regard.models.ctc import IMPOSSIBLE
from regard.search.choice import Choice, Chooser
from regard.search.limits import Limits

State = Literal["open", "pruned", "closed", "best"]


@dataclass(frozen=True)
class Node:
    """A hypothesis that was weighed up: what stands at its parent, and one token more."""

    id: int
    parent: int | None  # None: the root, from which all are written
    step: int  # tokens written; the mark that ends an output is one
    token: int
    log_prob: float
    score: float  # `log_prob`, divided by the length penalty
    state: State  # kept in the beam, fell out of it, ended, or on the way to the best output
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        numbers = {"log_prob": round(self.log_prob, 5), "score": round(self.score, 5)}
        return {**vars(self), **numbers}


@dataclass(frozen=True)
class BeamTree:
    """All hypotheses that a beam search for one source kept or ended, and of those that fell out at each step the best,
    as many as the beam is wide. A parent stands before its children."""

    nodes: list[Node]
    width: int

    @property
    def steps(self) -> int:
        """How many tokens the longest hypothesis has."""
        return max(node.step for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"nodes": [node.to_json() for node in self.nodes], "width": self.width, "steps": self.steps}

    def labelled(self, name: Callable[[int | None, int], str]) -> BeamTree:
        """With the text of each token, which `name` gives for the token before it (None: there is none) and itself."""
        before = [None if not node.parent else self.nodes[node.parent].token for node in self.nodes]
        nodes = zip(self.nodes, before, strict=True)
        return replace(self, nodes=[replace(node, text=name(token, node.token)) for node, token in nodes])

    def marked(self, best: Sequence[int]) -> BeamTree:
        """With the way to the best output, of these tokens with the mark that ends it, as far as it was kept."""
        ways = [[0]]  # beams that are pushed apart may keep the same tokens, each in nodes of its own
        for token in best:
            onward = [node for node in self.nodes if node.token == token and node.state != "pruned"]
            longer = [[*way, node.id] for way in ways for node in onward if node.parent == way[-1]]
            if not longer:
                break
            ways = longer
        nodes = [replace(node, state="best") if node.id in ways[0] else node for node in self.nodes]
        return replace(self, nodes=nodes)


class Observed(Chooser):
    """Chooses as another does, and tells a tree of it."""

    def __init__(self, chooser: Chooser, tree: TreeObserver) -> None:
        super().__init__(chooser.width, chooser.eos)
        self.chooser, self.tree = chooser, tree

    @property
    def greedy(self) -> bool:
        return self.chooser.greedy

    def choose(self, given: Tensor, log_prob: Tensor, written: Tensor, limits: Limits, length: Tensor) -> Choice:
        tokens = int(length.flatten()[0])
        allowed = limits.apply(given.clone(), written[..., : tokens + 1])
        choice = self.chooser.choose(given, log_prob, written, limits, length)
        counted = float(limits.counted(length + 1).flatten()[0])
        self.tree.chose(log_prob.unsqueeze(-1) + allowed, choice, tokens + 1, counted)
        return choice

    def keep(self, stay: Tensor) -> None:
        self.chooser.keep(stay)


class TreeObserver:
    """Grows a tree while a beam search runs for one source, of which it changes nothing. `divisor` is the length
    penalty of so many tokens."""

    def __init__(self, begin: int, end: int, width: int, divisor: Callable[[Tensor], Tensor]) -> None:
        self.end, self.width, self.divisor = end, width, divisor
        self.nodes = [Node(0, None, 0, begin, 0.0, 0.0, "open")]
        self.open: list[list[int]] = []  # of each beam, the node of each open hypothesis

    def watch(self, chooser: Chooser) -> Chooser:
        """What chooses as another does, and tells of it."""
        return Observed(chooser, self)

    def chose(self, total: Tensor, choice: Choice, step: int, counted: float) -> None:
        """A turn, in which hypotheses of `step` tokens were chosen, of which so many are `counted` in the length;
        `total` `(beams, open, vocabulary)` is `log p` of all that there were."""
        self.open = self.open or [[0] for _ in total]
        divisor = float(self.divisor(torch.tensor([counted])))
        for beam, before in enumerate(self.open):
            closing = zip(choice.closing[beam].tolist(), choice.closing_parent[beam].tolist(), strict=True)
            closed = [(log_prob, slot, self.end) for log_prob, slot in closing]
            kept = list(zip(*(x[beam].tolist() for x in (choice.log_prob, choice.parent, choice.token)), strict=True))
            taken = {(slot, token) for log_prob, slot, token in (*closed, *kept) if log_prob > IMPOSSIBLE}
            ranked = total[beam].flatten().topk(min(len(taken) + self.width, total[beam].numel()))
            places = (divmod(place, total.shape[-1]) for place in ranked.indices.tolist())
            every = zip(ranked.values.tolist(), places, strict=True)
            fallen = [(log_prob, *place) for log_prob, place in every if place not in taken][: self.width]

            add = partial(self._add, before, step, divisor)
            self.open[beam] = [add(one, "open") for one in kept]
            for one in closed:
                add(one, "closed")
            for one in fallen:
                add(one, "pruned")

    def _add(
        self, before: Sequence[int], step: int, divisor: float, candidate: tuple[float, int, int], state: State
    ) -> int:
        """The number of a new node for a candidate: `log p`, which open hypothesis it goes on from, and its token."""
        log_prob, slot, token = candidate
        if log_prob < IMPOSSIBLE:  # there is none, and nothing will come of it
            return 0
        self.nodes.append(Node(len(self.nodes), before[slot], step, token, log_prob, log_prob / divisor, state))
        return self.nodes[-1].id

    def tree(self, best: Sequence[int]) -> BeamTree:
        """What has grown, with the way to the best output, of these tokens."""
        return BeamTree(self.nodes, self.width).marked([*best, self.end])
