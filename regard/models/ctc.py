"""Connectionist temporal classification (Graves et al. 2006): a token or a blank at each of the encoder's vectors.

A path names one of them at each time; tokens that stand side by side and are alike are one, and blanks are left out.
`p(y given x)` is the sum over all paths that read `y`. The same sums, over paths that go no further than some time,
give `p(next token given those before)` (Graves 2008; Watanabe et al. 2017, eq. 12): a model of this kind is stepped
like any other, and search knows nothing of paths. Of all paths that read a text, those that name one of its tokens at
some time say when it was heard (`occupancy`): to `capture` that is an attention of one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.marks import NATIVE, Marks
from regard.errors import ConfigError
from regard.models.encoders import Memory
from regard.models.model import AutoregressiveModel, EncoderDecoder, State
from regard.nn.attention import Aligner
from regard.nn.ctc_loss import ctc_loss, takes
from regard.nn.graphs import Graphs
from regard.nn.rows import Grouping, Part, Together
from regard.ragged import Ragged

_LEAST = -1e30  # log p of what cannot be, where a difference of two of them must be a number
IMPOSSIBLE = -1e20  # below it, whatever was added to it


@dataclass(frozen=True)
class PrefixState:
    """Sums over paths that read what is written so far, by the time up to which they go, from 0; in double precision,
    for they go over long sums of logarithms."""

    log_probs: Tensor  # (sources, time, vocabulary)
    sums: Tensor  # (sources, time + 1, vocabulary): of `log_probs` over time
    ends: Tensor  # (sources,): times of each source
    token: Tensor  # (rows, time + 1): log p of paths that end with the last token
    blank: Tensor  # (rows, time + 1): of those that end with a blank
    last: Tensor  # (rows,): the last token; -1: none
    prefix: Tensor  # (rows,): log p of all that begins so
    grouping: Grouping | None = None  # of rows by sources; None: as many for each

    @property
    def static_shapes(self) -> bool:
        return False  # as long as the longest source

    def select(self, rows: Tensor, sources: Tensor | None = None) -> PrefixState:
        mine = {name: getattr(self, name)[rows] for name in ("token", "blank", "last", "prefix")}
        names = () if sources is None else ("log_probs", "sums", "ends")
        theirs = {name: getattr(self, name)[sources] for name in names}
        return replace(self, **mine, **theirs)

    def fixed(self, tokens: int) -> PrefixState:
        return self

    def grouped(self, grouping: Grouping | None) -> PrefixState:
        return replace(self, grouping=grouping)

    def join(self, others: Sequence[PrefixState], rows: Tensor, sources: Tensor, room: int = 0) -> PrefixState:
        states = (self, *others)
        ends = torch.cat([state.ends for state in states])[sources]
        most = int(ends.max())

        def laid(name: str, which: Tensor, slots: int) -> Tensor:
            parts = [getattr(state, name) for state in states]
            return Together([Part(*x.shape[:2]) for x in parts], which, slots)(parts)

        last, prefix = (torch.cat([getattr(state, name) for state in states])[rows] for name in ("last", "prefix"))
        return PrefixState(
            laid("log_probs", sources, most), laid("sums", sources, most + 1), ends, laid("token", rows, most + 1),
            laid("blank", rows, most + 1), last, prefix,
        )  # fmt: skip

    def put(self, other: PrefixState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        return False

    @property
    def owner(self) -> Tensor:
        """The source of each row, `(rows,)`."""
        if self.grouping is not None:
            return self.grouping.source
        each = len(self.last) // max(len(self.ends), 1)
        return torch.arange(len(self.ends), device=self.ends.device).repeat_interleave(each)


class CTCHead(Aligner):
    """The output layer over the encoder's states: a token or a blank at each of them."""

    unseen: Tensor

    def __init__(self, d_model: int, vocabulary: int, marks: Marks = NATIVE) -> None:
        super().__init__()
        if marks.pad is None or len(marks.first) != 1 or marks.first[0] == marks.end:
            raise ConfigError(
                "model.ctc needs a vocabulary with a padding mark, which is its blank, and outputs that begin with one "
                "mark and end with another; set it to false"
            )
        self.blank, self.begin, self.end = marks.pad, marks.first[0], marks.end
        self.linear = nn.Linear(d_model, vocabulary)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        unseen = torch.zeros(vocabulary, dtype=torch.bool)
        unseen[[mark for mark in marks.framing - {self.blank} if mark < vocabulary]] = True
        self.register_buffer("unseen", unseen, persistent=False)

    def forward(self, states: Ragged) -> Ragged:
        """`log p` `(total, vocabulary)` of what is named at each time."""
        logits = self.linear(states.values).float()
        return states.like(logits.masked_fill(self.unseen, _LEAST).log_softmax(-1))

    def loss(self, states: Ragged, outputs: Ragged) -> Tensor:
        """`-log p` of all targets, which end with `</s>`. One that is too long for its source costs nothing, and on a
        GPU nor do states and targets that belong to no row."""
        longest = max(outputs.longest - 1, 0)
        if takes(states.values, longest):
            bias = self.linear.bias.masked_fill(self.unseen, _LEAST)  # so that no copy of the logits hides the marks
            logits = F.linear(states.values, self.linear.weight, bias)
            return ctc_loss(logits, states.offsets, outputs.values, outputs.offsets, longest, self.blank)
        found = self(states).padded().transpose(0, 1)  # (time, rows, vocabulary)
        if not len(states):
            return found.sum()
        targets = outputs.padded(self.end)[:, :-1].contiguous()
        ends = (states.known, outputs.known - 1)  # on the CPU, where torch wants them: it would wait for the device
        return F.ctc_loss(found, targets, *ends, self.blank, reduction="sum", zero_infinity=True)

    def align(self, states: Ragged, inputs: Ragged) -> None:
        """Under `capture`, record when each token after `<s>` was heard, by its `occupancy` as shares of 1; the end of
        a text, which no path names, has none."""
        self.record(lambda: self._aligned(states, inputs))

    def _aligned(self, states: Ragged, inputs: Ragged) -> Tensor:
        tokens = inputs.padded(self.blank)[:, 1:]
        found = occupancy(self(states).padded().double(), states.lengths, tokens, inputs.lengths - 1, self.blank)
        shares = found / found.sum(2, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
        return F.pad(shares, (0, 0, 0, 1)).unsqueeze(1)  # (rows, 1, target, time)

    def start(self, states: Ragged) -> PrefixState:
        """Before the first token: all paths so far are blanks."""
        log_probs = self(states).padded().double()
        sums = F.pad(log_probs.cumsum(1), (0, 0, 1, 0))
        token = torch.full_like(sums[:, :, 0], _LEAST)
        last = torch.full((len(states),), -1, device=token.device)
        return PrefixState(
            log_probs, sums, states.lengths, token, sums[:, :, self.blank].clone(), last, torch.zeros_like(token[:, 0])
        )

    def step(self, tokens: Tensor, state: PrefixState) -> tuple[Tensor, PrefixState]:
        """`(rows,)` tokens, at first `<s>`, to `log p` `(rows, vocabulary)` of the next, and the state after them."""
        state = _extended(tokens, state, self.begin, self.blank)
        sources, times = state.log_probs.shape[:2]
        owner = state.owner
        inside = torch.arange(times, device=tokens.device) < state.ends[:, None]  # (sources, time)
        hidden = torch.where(inside, 0.0, _LEAST)[owner]
        either = torch.logaddexp(state.token, state.blank)[:, :-1] + hidden  # (rows, time)
        if state.grouping is None:
            log_probs = state.log_probs.unsqueeze(1)  # (sources, 1, time, vocabulary)
            begins = (either.view(sources, -1, times, 1) + log_probs).logsumexp(2).flatten(0, 1)  # (rows, vocabulary)
        else:
            begins = (either.unsqueeze(-1) + state.log_probs[owner]).logsumexp(1)
        # The last token again is only read as another where a blank stands between.
        again = state.last.clamp(min=0)
        blanks = state.blank[:, :-1] + hidden + _of(state.log_probs, owner, again)
        wanted = torch.where(state.last >= 0, blanks.logsumexp(1), begins.gather(1, again[:, None]).squeeze(1))
        begins = begins.scatter(1, again[:, None], wanted[:, None])
        ends = state.ends[owner][:, None]
        whole = torch.logaddexp(state.token, state.blank).gather(1, ends)
        begins[:, self.blank], begins[:, self.end] = _LEAST, whole.squeeze(1)
        found = (begins - state.prefix[:, None]).clamp(min=_LEAST)
        # What no path reads has nothing after it but its end.
        ended = torch.full_like(found[:1], _LEAST)
        ended[:, self.end] = 0.0
        return torch.where((state.prefix < IMPOSSIBLE)[:, None], ended, found).float(), state


def occupancy(log_probs: Tensor, ends: Tensor, tokens: Tensor, counts: Tensor, blank: int) -> Tensor:
    """How probable it is that each token of a text is what is named at each time, given that the text is read: `(rows,
    tokens, time)`, zeros where no path reads it. Graves et al. 2006, 4.1: `α_t(s) β_t(s) / p(y given x)`, over the text
    with a blank before, between and behind its tokens.

    `log_probs` are `(rows, time, vocabulary)`, of which the first `ends` count, and `tokens` `(rows, tokens)`, of which
    the first `counts` do.
    """
    rows, times = log_probs.shape[:2]
    if not times or not tokens.shape[1]:
        return log_probs.new_zeros(rows, tokens.shape[1], times)
    labels = tokens.new_full((rows, 2 * tokens.shape[1] + 1), blank)
    labels[:, 1::2] = tokens
    named = log_probs.gather(2, labels[:, None].expand(-1, times, -1))  # (rows, time, labels)
    place = torch.arange(labels.shape[1], device=labels.device)
    # A blank may be left out between two tokens that differ.
    skips = F.pad((labels[:, 2:] != labels[:, :-2]) & (place[2:] % 2 == 1), (2, 0), value=False)
    last = 2 * counts[:, None]

    before = [_log(place <= 1) + named[:, 0]]  # α
    for t in range(1, times):
        from_two = F.pad(before[-1], (2, 0), value=_LEAST)[:, :-2] + _log(skips)
        reached = torch.stack((before[-1], F.pad(before[-1], (1, 0), value=_LEAST)[:, :-1], from_two)).logsumexp(0)
        before.append((reached + named[:, t]).clamp(min=_LEAST))

    final = _log((place == last) | (place == last - 1)).to(named.dtype)
    after = [torch.where((ends == times)[:, None], final, _LEAST)]  # β, from the last time
    for t in range(times - 2, -1, -1):
        onward = (after[-1] + named[:, t + 1]).clamp(min=_LEAST)
        by_two = F.pad(onward + _log(skips), (0, 2), value=_LEAST)[:, 2:]
        leads = torch.stack((onward, F.pad(onward, (0, 1), value=_LEAST)[:, 1:], by_two)).logsumexp(0)
        after.append(torch.where((ends == t + 1)[:, None], final, leads.clamp(min=_LEAST)))

    both = torch.stack(before, 1) + torch.stack(after[::-1], 1)  # (rows, time, labels)
    whole = both[:, 0].logsumexp(1)[:, None, None]
    found = torch.where(whole > IMPOSSIBLE, (both - whole).exp(), 0.0)
    return found[:, :, 1::2].mT


def _log(where: Tensor) -> Tensor:
    """0 where something can be, and elsewhere what cannot."""
    return torch.where(where, 0.0, _LEAST)


def _of(by_token: Tensor, owner: Tensor, tokens: Tensor) -> Tensor:
    """`(rows, time)` of `(sources, time, vocabulary)`: that of one token for each row, which is of some source."""
    return by_token[owner, :, tokens]


def _extended(tokens: Tensor, state: PrefixState, begin: int, silence: int) -> PrefixState:
    """The state with one more token, `g` becomes `gc`: `r_t(gc) = (r_{t-1}(gc) + φ_{t-1}) y_t(c)`, where `φ` are the
    paths that read `g`, and may go on with `c`. Such a recurrence is a cumulative sum of what is divided by products of
    `y` up to each time, and multiplied by them again."""
    new, owner = tokens != begin, state.owner
    either = torch.logaddexp(state.token, state.blank)
    before = torch.where((tokens == state.last)[:, None], state.blank, either)[:, :-1]
    token = _accumulated(before, _of(state.sums, owner, tokens))
    blank = _accumulated(token[:, :-1], state.sums[:, :, silence][owner])
    times = torch.arange(before.shape[1], device=tokens.device)
    inside = times < state.ends[owner][:, None]
    prefix = (before + _of(state.log_probs, owner, tokens) + torch.where(inside, 0.0, _LEAST)).logsumexp(1)
    return replace(
        state,
        token=torch.where(new[:, None], token, state.token),
        blank=torch.where(new[:, None], blank, state.blank),
        last=torch.where(new, tokens, state.last),
        prefix=torch.where(new, prefix, state.prefix),
    )


def _accumulated(before: Tensor, sums: Tensor) -> Tensor:
    """`r_t = (r_{t-1} + before_{t-1}) y_t` from `r_0 = 0`, in logarithms; `sums` are those of `log y`."""
    found = (before - sums[:, :-1]).logcumsumexp(1) + sums[:, 1:]
    return F.pad(found, (1, 0), value=_LEAST).clamp(min=_LEAST)


class CTCModel(AutoregressiveModel):
    """An encoder under a CTC output layer, and no decoder."""

    def __init__(self, encoder: nn.Module, ctc: CTCHead) -> None:
        super().__init__()
        self.encoder, self.ctc = encoder, ctc

    @property
    def packed(self) -> bool:
        return bool(self.encoder.packed)

    def forward(self, source: Any, inputs: Ragged) -> Ragged:
        """`log p` `(total, vocabulary)` of the token after each of `inputs`."""
        states = self.encode(source).states
        self.ctc.align(states, inputs)
        state, found = self.ctc.start(states), []
        padded = inputs.padded(self.ctc.blank)
        for tokens in padded.unbind(1):
            log_probs, state = self.step(tokens, state)
            found.append(log_probs)
        log_probs = torch.stack(found, 1) if found else self.ctc.linear.weight.new_zeros((0, 1, 0))
        return inputs.unpadded(log_probs)

    def encode(self, source: Any) -> Memory:
        return self.encoder(source)

    def states(self, source: Any, inputs: Ragged) -> Ragged:
        raise ConfigError("a CTC model reads no targets; it has states of the source alone")

    def start(self, source: Any) -> PrefixState:
        return self.ctc.start(self.encode(source).states)

    def step(self, tokens: Tensor, state: PrefixState) -> tuple[Tensor, PrefixState]:  # type: ignore[override]
        return self.ctc.step(tokens, state)

    def logits(self, tokens: Tensor, state: PrefixState) -> tuple[Tensor, PrefixState]:  # type: ignore[override]
        return self.step(tokens, state)  # what is normalised already stays as it is

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise ConfigError("contrastive search compares states of the target, and a CTC model has none")


@dataclass(frozen=True)
class JointState:
    """The state of a decoder, and that of the CTC layer beside it."""

    decoder: State
    ctc: PrefixState

    @property
    def static_shapes(self) -> bool:
        return self.decoder.static_shapes and self.ctc.static_shapes

    def select(self, rows: Tensor, sources: Tensor | None = None) -> JointState:
        return JointState(self.decoder.select(rows, sources), self.ctc.select(rows, sources))

    def fixed(self, tokens: int) -> JointState:
        return JointState(self.decoder.fixed(tokens), self.ctc)

    def grouped(self, grouping: Grouping | None) -> JointState:
        return JointState(self.decoder.grouped(grouping), self.ctc.grouped(grouping))

    def join(self, others: Sequence[JointState], rows: Tensor, sources: Tensor, room: int = 0) -> JointState:
        decoder = self.decoder.join([other.decoder for other in others], rows, sources, room)
        return JointState(decoder, self.ctc.join([other.ctc for other in others], rows, sources, room))

    def put(self, other: JointState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        return self.decoder.put(other.decoder, rows, whose, sources, room) and self.ctc.put(
            other.ctc, rows, whose, sources, room
        )


class JointStepper:
    """Joint decoding in one pass (Watanabe et al. 2017, eq. 14): `(1 - λ) log p_decoder + λ log p_ctc` of each next
    token, where what CTC cannot read is out of the question whatever the decoder says."""

    graphs: Graphs | None = None
    logits = None

    def __init__(self, model: EncoderDecoder, weight: float) -> None:
        assert model.ctc is not None, "joint decoding needs a CTC output layer"
        self.model, self.ctc, self.weight = model, model.ctc, weight

    def start(self, source: Any) -> JointState:
        """The state before the first token."""
        memory = self.model.encode(source)
        return JointState(self.model.decoder.start(memory), self.ctc.start(memory.states))

    def step(self, tokens: Tensor, state: JointState) -> tuple[Tensor, JointState]:
        decoded, decoder = self.model.step(tokens, state.decoder)
        named, ctc = self.ctc.step(tokens, state.ctc)
        return (1.0 - self.weight) * decoded + self.weight * named, JointState(decoder, ctc)
