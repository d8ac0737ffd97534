"""What training minimises, summed over a batch: `-log p` after true or mixed prefixes, risk, the loss of a head."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.batch import IGNORED, Batch, make_batch
from regard.data.marks import NATIVE, Marks
from regard.data.target import HeadTarget, Target
from regard.models.ctc import CTCModel
from regard.models.electra import ReplacedTokenModel, draw_tokens
from regard.models.model import DecoderOnly, EncoderWithHead
from regard.nn.adaptive import PROPOSALS, log_included, sampled_loss
from regard.nn.augment import Mixing
from regard.nn.coverage import looking
from regard.nn.hard import HardAttention, choices
from regard.ragged import Ragged
from regard.registry import OBJECTIVES, Family, register
from regard.search.limits import Limits
from regard.search.sample import sample
from regard.search.stepper import begun
from regard.training.losses import cross_entropy, linear_cross_entropy, output_loss
from regard.training_settings import ObjectiveSettings as Settings

BASELINE = 0.9  # how much of the moving baseline stays at each update (Xu et al. 2015, 4.1)


class Objective(ABC):
    """What a batch costs. `memory` is what it keeps from batch to batch, and is saved with the run. A target has the
    `marks` of its vocabulary, its first token is written after `first` (that of the marks), and no sequence may be
    longer than `longest` (None: any)."""

    family: ClassVar[Family] = OBJECTIVES
    Settings = Settings

    def __init__(
        self, model: Any, settings: Any, smoothing: float = 0.0, *, first: Sequence[int] | None = None,
        longest: int | None = None, marks: Marks = NATIVE,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.smoothing, self.longest, self.marks = model, settings, smoothing, longest, marks
        self.first = marks.first if first is None else first
        self.memory: dict[str, float] = {}
        self.carried: dict[str, Tensor] = {}  # tensors that it keeps from batch to batch, which are saved with the run
        self.log_q = torch.zeros(0)  # of each token, where some are drawn

    def use_counts(self, counts: Tensor) -> None:
        """Hear how often the training data hold each token of the target, `(vocabulary,)`."""
        if self.settings.sampled:
            self.log_q = PROPOSALS[self.settings.proposal](counts)

    def at(self, done: float) -> None:  # noqa: B027 - most have nothing to do
        """Told before each update which share of training is behind: what a recorded one reads on the device."""

    @abstractmethod
    def __call__(self, batch: Batch, done: float) -> Tensor:
        """The loss, summed over the batch's target tokens; `done` is the share of training that is behind."""


@register("likelihood")
@register("denoising")
@register("span_corruption")
class Likelihood(Objective):
    """`Σ_t -log p(y_t given y_<t, x)`, with label smoothing; and, where it is asked for, the penalty that makes soft
    attention look at all places, `λ Σ_i (1 - Σ_t α_ti)²` of each target (Xu et al. 2015, eq. 14). In denoising
    (Lewis et al. 2020; Raffel et al. 2020) `x` is what noise left of a text, and `y` the text, or what is missing."""

    @cached_property
    def hard(self) -> bool:
        """Whether the model attends to places that are drawn."""
        return any(isinstance(module, HardAttention) for module in self.model.modules())

    def __call__(self, batch: Batch, done: float) -> Tensor:
        if self.hard:
            return self._hard(batch, done)
        if getattr(self.model, "ctc", None) is not None:
            return self._with_ctc(batch)
        if self.settings.agreement:
            return self._agreeing(batch)
        if self.settings.doubly_stochastic:
            with looking(self.model) as looked:
                loss = self._plain(batch)
            return loss + self.settings.doubly_stochastic * looked.penalty(batch.inputs)
        return self._plain(batch)

    def _plain(self, batch: Batch) -> Tensor:
        states = self.model.states(batch.source, batch.inputs).values
        if self.settings.sampled:
            return self._sampled(states, batch.outputs.values)
        return output_loss(self.model.head, states, batch.outputs.values, self.smoothing)

    def _sampled(self, states: Tensor, targets: Tensor) -> Tensor:
        """Jean et al. 2015: over the right tokens, and others that are drawn for the batch."""
        if self.log_q.device != states.device:
            self.log_q = self.log_q.to(states.device)
        draws, output = self.settings.sampled, self.model.head.linear
        drawn = torch.multinomial(self.log_q.exp(), draws, replacement=True).unique()
        return sampled_loss(states, output.weight, output.bias, targets, log_included(self.log_q, draws), drawn)

    def _with_ctc(self, batch: Batch) -> Tensor:
        """`(1 - λ) Σ_t -log p(y_t given y_<t, x) - λ log p_ctc(y given x)` (Watanabe et al. 2017, eq. 11); without a
        decoder the latter alone."""
        model, memory = self.model, self.model.encode(batch.source)
        ctc: Tensor = model.ctc.loss(memory.states, batch.outputs)
        if isinstance(model, CTCModel):
            return ctc
        states, weight = model.decoder(batch.inputs, memory).values, self.settings.ctc
        loss = output_loss(model.head, states, batch.outputs.values, self.smoothing)
        return (1.0 - weight) * loss + weight * ctc

    def _agreeing(self, batch: Batch) -> Tensor:
        """R-Drop (Liang et al. 2021, eq. 4, the mean over both passes): what two passes say under different dropout
        should be right, and the same: `½ Σ_i -log p_i(y) + α/4 (KL(p_1, p_2) + KL(p_2, p_1))`."""
        both = self.model.states(batch.source.twice(), batch.inputs.twice()).values
        states, agreement = both.unflatten(0, (2, -1)), self.settings.agreement
        return output_loss(self.model.head, states, batch.outputs.values, self.smoothing, agreement)

    def _hard(self, batch: Batch, done: float) -> Tensor:
        """Xu et al. 2015, 4.1: the places drawn are credited with `log p` of the tokens they bear on.

        Where the context goes to the output alone, that is the one token written from it; the gradient is then exact
        with far less variance than with the whole sentence's `log p`. Elsewhere it is all tokens from there on. The
        baseline is the moving mean of what is credited, and so is its spread, by which the credit is divided.

        A draw teaches little before there is anything to see at the places drawn. So a share of the sentences attends
        softly, at first all of them, at the end `soft`, and teaches by its exact gradient (theirs was half throughout).
        """
        share = 1.0 - (1.0 - self.settings.soft) * done
        with choices(self.model, len(batch.inputs), share, batch.inputs.values.device) as made:
            logits = self.model(batch.source, batch.inputs).values
        loss = cross_entropy(logits, batch.outputs.values, self.smoothing)
        log_alpha, entropy = made.laid_out(batch.outputs)
        with torch.no_grad():
            reward = -torch.nn.functional.cross_entropy(logits.float(), batch.outputs.values, reduction="none")
            if self.model.decoder.loops:
                reward = _from_here_on(batch.outputs, reward)
            credit = self._centred(reward)
        return loss - self.settings.reward * (credit * log_alpha).sum() - self.settings.entropy * entropy.sum()

    def _centred(self, reward: Tensor) -> Tensor:
        mean, spread = float(reward.mean()), float(reward.std()) if len(reward) > 1 else 1.0
        if math.isfinite(mean) and math.isfinite(spread):  # else the update is skipped, and leaves no trace here either
            for name, value in (("baseline", mean), ("spread", spread)):
                self.memory[name] = BASELINE * self.memory.get(name, value) + (1.0 - BASELINE) * value
        return (reward - self.memory.get("baseline", mean)) / max(self.memory.get("spread", spread), 1.0)


class TruncatedLikelihood(Likelihood):
    """Truncated backpropagation through time (Williams and Peng 1990): `Σ_t -log p(y_t given y_<t)` of rows that go on
    from batch to batch, each from the state in which the batch before left it, and with no gradient beyond.

    And, where they are asked for, the penalties of Merity et al. 2018, 4.6, as means beside a mean: `α mean(m ∘ h_t)²`
    of what goes to the output layer, dropout counted (activation regularisation), and `β mean(h_t - h_{t+1})²` of the
    states of the top layer (temporal activation regularisation).
    """

    def __call__(self, batch: Batch, done: float) -> Tensor:
        decoder, settings = self.model.decoder, self.settings
        state = decoder.alone(len(batch.inputs))
        if batch.goes_on and "carry" in self.carried:
            state = replace(state, carry=self.carried["carry"])
        if settings.activation or settings.slowness:
            read = decoder.run(batch.inputs, state)
            outputs, after = read.outputs.values, read.state
        else:
            found, after = self.model.read(batch.inputs, state)
            outputs = found.values
        # What is not finite would stay so, and the update that it belongs to is skipped.
        self.carried["carry"] = after.carry.detach().nan_to_num(0.0, 0.0, 0.0)
        loss = output_loss(self.model.head, outputs, batch.outputs.values, self.smoothing)
        if settings.activation:
            loss = loss + settings.activation * batch.tokens * _mean_square(outputs)
        if settings.slowness and batch.inputs.longest > 1:
            steps = read.states.padded().diff(dim=1)  # (rows, steps - 1, width)
            loss = loss + settings.slowness * batch.tokens * _mean_square(steps)
        return loss


def _mean_square(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).square().mean()


def _from_here_on(like: Ragged, values: Tensor) -> Tensor:
    """For each position the mean of its value and all after it in its row."""
    padded = like.like(values).padded()
    after = padded.flip(1).cumsum(1).flip(1)
    left = like.lengths[:, None] - torch.arange(padded.shape[1], device=padded.device)
    return like.unpadded(after / left.clamp(min=1)).values


@register("scheduled_sampling")
class ScheduledSampling(Likelihood):
    """Bengio et al. 2015, with the two passes of Mihaylova and Martins 2019, which fit any decoder.

    A first pass tells what the model itself would write at each place; a share of the inputs, rising from 0 to
    `own_tokens` over the training, is replaced by draws from that; the second pass learns from the mixture. With more
    `passes` the replaced tokens are themselves drawn after mixed prefixes.
    """

    def __call__(self, batch: Batch, done: float) -> Tensor:
        share = self.settings.own_tokens * done
        inputs = batch.inputs
        for _ in range(self.settings.passes):
            with torch.no_grad():
                logits = self.model(batch.source, inputs).values.float()
                drawn = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
            after = torch.roll(drawn, 1)  # what was written at a place is read at the next one
            written = torch.roll(batch.outputs.values != IGNORED, 1)  # and not forced
            mixed = (torch.rand(len(after), device=after.device) < share) & (inputs.position > 0) & written
            inputs = batch.inputs.like(torch.where(mixed, after, batch.inputs.values))
        return super().__call__(Batch(batch.source, inputs, batch.outputs), done)


@register("minimum_risk")
class MinimumRisk(Likelihood):
    """Shen et al. 2016: `Σ_y Q(y) Δ(y, y*)` over outputs drawn from the model, and the reference among them,
    `Q(y) ∝ p(y given x)^sharpness`. `Δ` is `1 - BLEU` of the sentence, smoothed, on tokens."""

    def __call__(self, batch: Batch, done: float) -> Tensor:
        forced = len(self.first) - 1
        targets = [row[forced:-1] for row in batch.outputs.tolist()]
        drawn = zip(targets, self._draw(batch, targets), strict=True)
        groups = [[*map(list, dict.fromkeys(map(tuple, [target, *samples])))] for target, samples in drawn]
        rows = torch.tensor([i for i, group in enumerate(groups) for _ in group], device=batch.inputs.values.device)
        outputs = [y for group in groups for y in group]
        tried = make_batch(batch.source.select(rows), outputs, self.marks, self.first).to(rows.device)
        logits = self.model(tried.source, tried.inputs).values.float()
        log_probs = -torch.nn.functional.nll_loss(logits.log_softmax(-1), tried.outputs.values, reduction="none")
        each = log_probs.new_zeros(len(rows)).index_add(0, tried.outputs.row, log_probs)  # log p of each output
        risk = torch.tensor(
            [1.0 - sentence_bleu(y, target) for target, group in zip(targets, groups, strict=True) for y in group],
            device=each.device,
        )
        bounds = torch.tensor([len(group) for group in groups])
        together = Ragged.from_lengths(each * self.settings.sharpness, bounds.tolist())
        q = together.unpadded(together.padded(-math.inf).softmax(-1)).values
        weight = batch.outputs.lengths[rows] - forced  # the trainer divides by tokens
        loss = (q * risk * weight).sum()
        if self.settings.likelihood:
            loss = loss + self.settings.likelihood * super().__call__(batch, done)
        return loss

    def _draw(self, batch: Batch, targets: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                marks, room = self.marks, self._room(batch, targets)
                limits = Limits(room, self.first[-1], marks.end, forbidden=marks.forbidden(unknown=False))
                keys = torch.randint(2**62, (len(targets),))  # from torch's generator, which is saved with the run
                found = sample(
                    self.model, begun(self.model, self.first)(batch.source), limits=limits, keys=keys,
                    count=self.settings.samples,
                )  # fmt: skip
        finally:
            self.model.train(training)
        return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]

    def _room(self, batch: Batch, targets: Sequence[Sequence[int]]) -> Tensor:
        """The most tokens to draw for each source: some more than its target has, if there are positions for them."""
        room = torch.tensor([2 * len(target) + 5 for target in targets], device=batch.inputs.values.device)
        if self.longest is None:
            return room
        most = torch.full_like(room, self.longest - len(self.first))
        return room.minimum(most - batch.source.lengths if self.model.reads_source_first else most)


def sentence_bleu(output: Sequence[int], reference: Sequence[int]) -> float:
    """BLEU of one sentence, from 0 to 1, n-grams above single tokens counted from 1 (Lin and Och 2004)."""
    total = 0.0
    for size in range(1, 5):
        ours, theirs = _grams(output, size), _grams(reference, size)
        right, all_ = sum((ours & theirs).values()), sum(ours.values())
        extra = size > 1
        if right + extra == 0:
            return 0.0
        total += math.log((right + extra) / (all_ + extra)) / 4
    short = 1.0 - (len(reference) + 1) / (len(output) + 1)  # the ends counted
    return math.exp(total + min(0.0, short))


def _grams(tokens: Sequence[int], size: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


class HeadLoss(Objective):
    """What a head predicts, held against what is right: the loss is the target's.

    With `mixup` or `cutmix` two pictures are one, and so are their losses: `λ L(y_i) + (1 - λ) L(y_j)` (Zhang et al.
    2018; Yun et al. 2019).

    Over a decoder alone, the loss of the language model can go along, as a mean beside a mean: `L + λ L_lm` (Radford et
    al. 2018, eq. 5). Its output layer is its embedding.
    """

    def __init__(self, model: EncoderWithHead, settings: Any, smoothing: float, target: HeadTarget) -> None:
        super().__init__(model, settings, smoothing)
        self.target = target
        self.mixing: Mixing | None = None
        if settings.mixup or settings.cutmix:
            stem: Any = model.get_submodule("encoder.stem")
            self.mixing = Mixing(stem.take_augmentation(), settings.mixup, settings.cutmix)

    def at(self, done: float) -> None:
        if self.mixing is not None:
            self.mixing.to(next(self.model.parameters()).device).on.fill_(done < self.settings.mixed)

    def _mixed(self, batch: Batch, mixing: Mixing) -> Tensor:
        source, share = mixing(batch.source)
        found, right = self.model(source, batch.inputs), batch.outputs
        other = right.like(right.values.roll(1))
        own = self.target.loss(found, right, self.smoothing, share)
        return own + self.target.loss(found, other, self.smoothing, 1.0 - share)

    def __call__(self, batch: Batch, done: float) -> Tensor:
        if self.mixing is not None:
            return self._mixed(batch, self.mixing)
        memory = self.model.encode(batch.source)
        found = self.model.predict_at(batch.source, batch.inputs, memory)
        loss = self.target.loss(found, batch.outputs, self.smoothing)
        if not self.settings.language:
            return loss
        texts = batch.source
        assert isinstance(texts, Ragged), "a decoder alone reads one text"
        following = texts.values.roll(-1).index_fill(0, texts.offsets[1:].long() - 1, IGNORED)  # nothing after an end
        table: Tensor = self.model.decoder.embedding.table.weight
        counted = max(len(texts.values) - len(texts), 1)
        mean = linear_cross_entropy(memory.states.values, table, None, following) / counted
        return loss + self.settings.language * mean * batch.tokens


class ReplacedTokens(Objective):
    """Clark et al. 2020, 2: `L_MLM + λ L_Disc`, both as means: of `-log p_G(x_t)` over the masked tokens, and of
    `-log D(x', t)`, or `-log (1 - D(x', t))` where the token is the text's own, over all. `x'` has tokens that are
    drawn from the generator, through which no gradient goes; one that it guesses right is the text's own."""

    model: ReplacedTokenModel

    def __call__(self, batch: Batch, done: float) -> Tensor:
        model, right = self.model, batch.outputs.values
        source = batch.source
        assert isinstance(source, Ragged), "a generator reads one text"
        states = model.states(source, batch.inputs).values
        loss = output_loss(model.head, states, right, self.smoothing)
        with torch.no_grad():
            drawn = draw_tokens(model.head(states))
        text = model.replaced(source, batch.inputs, drawn)
        other = model.replaced(source.like(torch.zeros_like(source.values)), batch.inputs, (drawn != right).long())
        found = model.detect(text)
        own = (source.row < source.rows).to(found.dtype)  # what fills up is of no text
        said = other.values.to(found.dtype)
        mean = F.binary_cross_entropy_with_logits(found, said, own, reduction="sum") / own.sum()
        return loss + self.settings.detection * mean * (right != IGNORED).sum()


def make_objective(
    model: Any, settings: Settings, smoothing: float, first: Sequence[int] | None, longest: int | None = None,
    target: Target | None = None,
) -> Objective:  # fmt: skip
    """The objective that the settings name, for a model of `longest` positions (None: any), or the loss of a head."""
    marks = NATIVE if target is None else target.marks
    streams = target is not None and target.block is not None and isinstance(model, DecoderOnly)
    if streams and not model.decoder.bounded:
        return TruncatedLikelihood(model, settings, smoothing, first=first, longest=longest, marks=marks)
    if isinstance(model, EncoderWithHead):
        assert isinstance(target, HeadTarget), "what a head predicts is a HeadTarget"
        return HeadLoss(model, settings, smoothing, target)
    if isinstance(model, ReplacedTokenModel):
        return ReplacedTokens(model, settings, smoothing)
    cls: type[Objective] = OBJECTIVES.get(settings.kind)
    return cls(model, settings, smoothing, first=first, longest=longest, marks=marks)
