"""Beam search, all sources at once; a source whose search is over leaves the batch.

All bookkeeping is in tensors: open hypotheses `(beams, width)`, and the best closed ones so far beside them. A source
has one beam, or as many as there are groups. Greedy search is a beam of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.data.words import WordEdges
from regard.errors import ConfigError
from regard.nn.graphs import Graphs, Recording, copy_into, exclusive
from regard.nn.kernels import usable
from regard.ragged import bucket, round_up
from regard.search.board import Board
from regard.search.choice import Chooser, Constrained, Diverse
from regard.search.incremental import IncrementalSearch, drive
from regard.search.limits import Hypothesis, Limits, length_penalty
from regard.search.phrases import Constraints, count_phrases
from regard.search.stepper import LazyStart, Step, Stepper, scoring, started
from regard.search.transfer import copy_to_host

WINDOW = 32  # slots of the target that a recorded turn has room for at first
WIDEST = 16  # beam that a turn has a kernel for


def beam_search(
    model: Stepper, state: Any, *, limits: Limits, width: int = 5, nbest: int = 1, penalty: str = "none",
    alpha: float = 1.0, stop: str = "heuristic", constraints: Constraints | None = None, edges: WordEdges | None = None,
    groups: int = 1, diversity: float = 0.5, counted: int = 0, observe: Callable[[Chooser], Chooser] | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """The `nbest` highest-scoring outputs of each source, best first.

    A beam is done when it has `width` closed hypotheses (`stop` "early"); when no open one scores better than the worst
    of them now ("heuristic"); or when no open one could ever ("exact": its log-probability cannot rise, so it is held
    against the mildest penalty it may still reach). A source for which the limits left no way to close gives its best
    open hypothesis.

    `constraints` gives phrases for each source that must appear in its output, as words of their own where `edges` of
    the vocabulary say what goes on a word (see `Constrained`). With `groups`, a
    source has so many beams that share `width` and shun each other's tokens (see `Diverse`), each done by itself; with
    `nbest` at or above `groups` the best of each is among the results. `state` is the model's before the first token,
    or a `LazyStart`. So many tokens as are `counted` stand before each output, and count in its length. What `observe`
    makes of what chooses does so in its place (`tree.py`).
    """
    if not len(limits.longest):
        return []
    device = state.device if isinstance(state, LazyStart) else limits.longest.device
    graphs = model.graphs if groups == 1 and not constraints and observe is None else None
    most = int(limits.longest.max())
    limits = limits.to(device) if graphs is None else limits
    chooser = _chooser(limits, width, constraints, edges, groups, diversity)
    chooser = chooser if observe is None else observe(chooser)
    step, normalised = scoring(model)
    turn = _Turn(chooser, penalty, alpha, stop, most, normalised, counted)
    if graphs is not None:
        with exclusive(device):
            return _replay(graphs, turn, step, state, limits, nbest)
    state, search = started(state), BeamSearch(turn, limits, nbest, groups)
    if groups > 1:
        state = state.select(torch.arange(len(search.board.number), device=device) // groups)
    return drive(step, state, search)


def new_beam_search(
    limits: Limits, *, width: int, nbest: int, penalty: str, alpha: float, stop: str, counted: int,
    constraints: Constraints | None = None, edges: WordEdges | None = None, groups: int = 1, diversity: float = 0.5,
    normalised: bool = True, longest: int | None = None,
) -> BeamSearch:  # fmt: skip
    """Like `beam_search`, for who has the model to advance it by logits or, `normalised`, by log-probabilities. All
    turns have as many rows, so that searches can be joined at any of them (but for those with `groups`, which share a
    batch all the same). `longest` is the greatest of the limits, so that the device need not be asked."""
    chooser = _chooser(limits, width, constraints, edges, groups, diversity, open_=width)
    turn = _Turn(chooser, penalty, alpha, stop, None, normalised, counted)
    return BeamSearch(turn, limits, nbest, groups, open_=width // groups, longest=longest)


class BeamSearch(IncrementalSearch):
    """Beam search for some sources, each of which has one beam, or as many as there are groups."""

    def __init__(
        self, turn: _Turn, limits: Limits, nbest: int, groups: int = 1, open_: int = 1, longest: int | None = None
    ) -> None:
        """The first turn has `open_` rows for each beam, of which all but one idle."""
        self.turn, self.nbest, self.groups = turn, nbest, groups
        self.graphs: Graphs | None = None  # where its turns are recorded
        self.recording: Recording[tuple[Board, Tensor]] | None = None  # of the turn, for the beams that there are now
        if longest is None and turn.most is None:
            longest = int(limits.longest.max())
        most = max(longest or 0, 0) if turn.most is None else turn.most
        self.board = Board.new(limits, groups, open_, turn.chooser.width, most)

    @property
    def token(self) -> Tensor:
        return self.board.token.flatten()

    @property
    def over(self) -> Tensor:
        return self.board.over.view(-1, self.groups).all(1)

    @property
    def kind(self) -> Hashable:
        if self.groups > 1:
            return None
        chooser = type(self.turn.chooser)
        return BeamSearch, chooser, self.turn.key, self.nbest, self.board.log_prob.shape[1], self.board.limits.rules

    def advance(self, given: Tensor) -> Tensor | None:
        given = given.unflatten(0, self.board.log_prob.shape)
        if self.graphs is None:
            self.board, rows = self.turn(self.board, given)
        else:
            if self.recording is None:
                key, turn = ("choice", self.kind), partial(_turn_in_place, self.turn)
                self.recording = self.graphs.recording(key, turn, (self.board, given), often=True)
            else:
                self.recording.take((self.board, given))
            self.board, rows = self.recording.inputs[0], self.recording()
        return rows if self.board.log_prob.shape[1] > 1 else None  # greedy rows never change places

    def results(self, sources: Tensor) -> Callable[[], list[list[Hypothesis]]]:
        arriving = self.board.hypotheses(self.nbest, self._beams(sources))

        def wait() -> list[list[Hypothesis]]:
            found = [hypotheses for _, hypotheses in arriving()]
            return [_merge(found[i : i + self.groups], self.nbest) for i in range(0, len(found), self.groups)]

        return wait

    def settled(self, sources: Tensor) -> Callable[[], list[list[int]]]:
        if self.groups > 1:  # any of its beams may win
            return lambda: [[] for _ in range(len(sources))]
        return self.board.settled(sources)

    def keep(self, stay: Tensor) -> None:
        self.board, self.graphs, self.recording = self.board.keep(self._beams(stay)), None, None
        self.turn.chooser.keep(self._beams(stay))

    def fixed(self, sources: Tensor, graphs: Graphs) -> None:
        self.keep(sources)
        if type(self.turn.chooser) is Chooser:  # others have shapes of their own
            self.board, self.graphs = self.board.fixed(), graphs

    def join(self, others: Sequence[BeamSearch]) -> None:
        self.board, self.graphs, self.recording = self.board.joined([x.board for x in others]), None, None
        self.turn.chooser.join([other.turn.chooser for other in others])

    def put(self, places: Tensor, other: BeamSearch) -> bool:
        return type(self.turn.chooser) is Chooser and self.board.put(places, other.board)

    def _beams(self, sources: Tensor) -> Tensor:
        if self.groups == 1:
            return sources
        return (sources[:, None] * self.groups + torch.arange(self.groups, device=sources.device)).flatten()


def _turn_in_place(turn: _Turn, given: tuple[Board, Tensor]) -> Tensor:
    """A turn that writes the board over the one it was given; returns the rows that hypotheses go on from."""
    board, rows = turn(*given)
    copy_into(given[0], board)
    return rows


Recorded = Recording[tuple[Board, Any]]  # a turn, which writes what it gives over what it was given


def _replay(graphs: Graphs, turn: _Turn, step: Step, state: Any, limits: Limits, nbest: int) -> list[list[Hypothesis]]:
    """Like `drive`, with shapes that stay, so that a turn is recorded once and replayed. What is over idles along until
    half is, and beams are brought up to one of few numbers, by some that are over from the start."""
    assert turn.most is not None, "searches that are joined are not recorded"

    def whole(board: Board, state: Any) -> tuple[Board, Any]:
        given, state = step(board.token.flatten(), state)
        board, rows = turn(board, given.unflatten(0, board.log_prob.shape))
        return board, state.select(rows) if board.log_prob.shape[1] > 1 else state  # greedy rows never change places

    def recorded(board: Board, state: Any) -> Recorded:
        return graphs.recording(turn.key, lambda tree: copy_into(tree, whole(*tree)), (board, state))

    size, left, turns, done = bucket(len(limits.longest)), len(limits.longest), turn.most + 1, 0
    found: dict[int, list[Hypothesis]] = {}
    recording, room = _first_turn(graphs, turn, state, limits, size, recorded), WINDOW
    arriving: Callable[[], list[Tensor]] | None = None
    while left and done < turns:  # by then all are as long as can be
        board, state = recording.inputs
        if not room or bucket(left) * 2 <= size:
            left = int((~board.over).sum())
            if not left:
                break
            if bucket(left) * 2 <= size:
                size = bucket(left)
                found |= board.hypotheses(nbest, (board.over & (board.number >= 0)).nonzero().flatten())()
                open_ = (~board.over).nonzero().flatten()
                stay = torch.cat((open_, open_[:1].expand(size - left)))
                board, state = board.keep(stay).idle(left), state.select(board.rows(stay), stay)
            if not room:
                room, state = done, state.fixed(done)
            recording, arriving = recorded(board, state), None
        recording()
        room, done = room - 1, done + 1
        before, arriving = arriving, copy_to_host(recording.inputs[0].over)
        if before is not None:  # what was over a turn ago: so nothing waits for the device, which is a turn behind
            left = int((~before()[0]).sum())
    found |= recording.inputs[0].hypotheses(nbest)()
    return [found[number] for number in range(len(limits.longest))]


def _first_turn(
    graphs: Graphs, turn: _Turn, state: Any, limits: Limits, size: int,
    recorded: Callable[[Board, Any], Recorded],
) -> Recorded:  # fmt: skip
    """The recording of a turn of `size` beams, set to the first, in which all but one hypothesis of a beam idle; what
    comes before it is recorded too, where it can."""
    assert turn.most is not None, "searches that are joined are not recorded"
    count, width, most = len(limits.longest), turn.chooser.width, round_up(turn.most, 32)
    limits = limits.filled(size)

    def begin(state: Any, limits: Limits) -> Recorded:
        rows = torch.arange(size * width, device=graphs.device) // width
        return recorded(Board.new(limits, 1, width, width, most), state.select(rows).fixed(WINDOW))

    if isinstance(state, LazyStart) and graphs.filled:
        given, start, key = (state.filled(size), limits), state.start, ("begin", most, turn.key)
        return graphs.recording(key, lambda given: begin(start(given[0]), given[1]), given)()
    state, sources = started(state), torch.arange(size, device=graphs.device).clamp(max=count - 1)
    return begin(state if count == size else state.select(sources, sources), limits.to(graphs.device))


@dataclass(frozen=True)
class _Turn:
    """One more token for every beam."""

    chooser: Chooser
    penalty: str
    alpha: float
    stop: str
    most: int | None  # tokens of any output; None: as many as those of each source, which may join later
    normalised: bool
    counted: int = 0  # tokens before those that are written that count in the length

    @property
    def key(self) -> Hashable:
        """Identifies it among the turns of a model."""
        most = self.most if self.stop == "exact" else None
        names = (self.penalty, self.alpha, self.stop, most, self.normalised, self.counted)
        return (self.chooser.width, self.chooser.eos, *names)

    def __call__(self, board: Board, given: Tensor) -> tuple[Board, Tensor]:
        """The board after this turn, and the row of the state that each open hypothesis goes on from. `given` are
        logits or, `normalised`, log-probabilities, `(beams, open, vocabulary)`."""
        if not self._has_kernel(board, given):
            return self._choose(board, self._log_probs(board, given))
        from regard.search import triton_beam

        mildest = self._mildest(board) if self.stop == "exact" else 1.0
        rows = triton_beam.turn(given, board, self.penalty, self.alpha, self.stop, mildest)
        board.length.add_(1)
        return board, rows

    def _mildest(self, board: Board) -> float:
        """The penalty of the greatest length that any hypothesis may close with."""
        assert self.most is not None, "the kernel has one bound for all"
        return float(self._divisor(torch.tensor([self.most + (board.limits.at_limit != "cut") * 1.0]).clamp(min=1)))

    def _log_probs(self, board: Board, given: Tensor) -> Tensor:
        """Log-probabilities under the repetition penalty, which is one on logits where the search is greedy and one on
        log-probabilities elsewhere, as `transformers` has it."""
        greedy = self.chooser.greedy
        if greedy:
            given = board.limits.discourage(given, board.written, board.length - 1)
        given = given if self.normalised else given.log_softmax(-1, torch.float32)
        return given if greedy else board.limits.discourage(given, board.written, board.length - 1)

    def _has_kernel(self, board: Board, given: Tensor) -> bool:
        """Whether `triton_beam.turn` does what `_choose` does, which says what that is."""
        return (
            type(self.chooser) is Chooser
            and self.most is not None
            and board.log_prob.shape[1] == self.chooser.width <= WIDEST
            and not board.limits.no_repeat
            and not board.limits.banned
            and board.limits.repetition == 1.0
            and not board.limits.opening
            and board.limits.prefix_scored
            and not self.counted
            and given.shape[-1] > 1
            and usable(given)
        )

    def _choose(self, board: Board, given: Tensor) -> tuple[Board, Tensor]:
        """The board after this turn, and the row of the state that each open hypothesis goes on from."""
        choice = self.chooser.choose(given, board.log_prob, board.written, board.limits, board.length - 1)
        length = board.length.to(given.dtype)
        divisor = self._divisor(board.limits.counted(length))
        board = board.close(choice.closing, choice.closing_parent, divisor)

        # The best open one, before candidates that cannot be take its place.
        before = torch.where(board.over[:, None], board.last, board.written[:, 0])
        before_length = torch.where(board.over, board.last_length, board.length - 1)
        mildest = self._divisor(self._last_length(board, length)) if self.stop == "exact" else divisor
        hope, enough = choice.log_prob, board.closed_score[:, -1:] > -math.inf
        if self.stop == "early":
            if board.limits.at_limit == "cut":  # what is cut off now ends with what closes now, and may be better
                enough = enough & (board.limits.longest != board.length)[:, None]
            hope = hope.masked_fill(enough, -math.inf)
        elif choice.ready is not None and self.stop == "heuristic":
            # Once enough have closed, one that may not close yet does not count: its score lacks what it has to write.
            hope = hope.masked_fill(enough & ~choice.ready, -math.inf)
        over = hope.amax(1) / mildest <= board.closed_score[:, -1]
        over = board.over | over | (board.limits.longest < board.length)
        written = board.write(choice.parent, choice.token)
        rows = choice.parent + torch.arange(len(written), device=written.device)[:, None] * board.written.shape[1]
        log_prob = choice.log_prob.masked_fill(over[:, None], -math.inf)  # nothing more closes in what is over
        board = replace(
            board, length=board.length + 1, token=choice.token, written=written, log_prob=log_prob, over=over,
            last=before, last_length=before_length,
        )  # fmt: skip
        return board, rows.flatten()

    def _last_length(self, board: Board, like: Tensor) -> Tensor:
        """The greatest length that a hypothesis may close with."""
        longest = board.limits.longest.to(like.dtype) if self.most is None else torch.full_like(like, self.most)
        return longest.clamp(min=1) if board.limits.at_limit == "cut" else longest + 1

    def _divisor(self, length: Tensor) -> Tensor:
        return length_penalty(self.penalty, self.alpha, length + self.counted)


def _chooser(
    limits: Limits, width: int, constraints: Constraints | None, edges: WordEdges | None, groups: int = 1,
    diversity: float = 0.0, open_: int = 1,
) -> Chooser:  # fmt: skip
    if width % groups:
        raise ConfigError(f"beam ({width}) is not divisible by groups ({groups}); try {-(-width // groups) * groups}")
    if constraints is not None and any(map(count_phrases, constraints)):
        if groups > 1:
            raise ConfigError(f"constraints cannot be combined with groups ({groups}); set groups to 1")
        return Constrained(width, limits, constraints, open_, edges)
    return Diverse(width // groups, limits.eos, groups, diversity) if groups > 1 else Chooser(width, limits.eos)


def _merge(groups: list[list[Hypothesis]], nbest: int) -> list[Hypothesis]:
    """The `nbest` of all groups, each output once; with room for all, the best of each group goes before the others."""
    if len(groups) == 1:
        return groups[0]
    ranked = sorted((h for group in groups for h in group), key=lambda h: -h.score)
    if nbest >= len(groups):
        firsts = [group[0] for group in groups]
        ranked.sort(key=lambda h: h not in firsts)
    found = {tuple(h.tokens): h for h in reversed(ranked) if h.score > -math.inf} or {(): ranked[0]}
    return sorted(list(found.values())[::-1][:nbest], key=lambda h: -h.score)
