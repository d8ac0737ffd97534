"""The settings of training: what to begin from, what an update minimises, and how."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from regard.registry import OBJECTIVES
from regard.section import Count, Fraction, Kind, Period, Section, Share, Size, Small, Weight


class Start(Section):
    """Trained weights to start from: model folders, whose tokens are used too, or a file of published weights."""

    model: str | None = Field(None, description="all weights, from a model with the same [model] settings")
    encoder: str | None = Field(
        None,
        description="the encoder's weights, from a model with the same encoder; with several sources, those of the "
        "image or the sound",
    )
    decoder: str | None = Field(
        None, description="the decoder's weights, from a model with the same decoder or from a language model"
    )

    weights: str | None = Field(
        None,
        description="a .safetensors, .pth or .bin file with published encoder weights: a ResNet or ViT from "
        "torchvision or timm, a ViT from Hugging Face",
    )

    @model_validator(mode="after")
    def _one_or_parts(self) -> Start:
        if self.model is not None and (self.encoder or self.decoder):
            raise ValueError("model already brings both parts; leave out encoder and decoder, or model")
        if self.weights is not None and (self.model or self.encoder):
            raise ValueError("weights are the encoder's, which model and encoder bring already; leave them out, or it")
        return self


class ObjectiveSettings(Section):
    """The training loss."""

    corrupts: ClassVar[bool] = False  # the source is made from the target, by noise

    kind: str = Field(
        "likelihood",
        description="likelihood: -log p of the target after true prefixes; scheduled_sampling: after prefixes that "
        "hold some of the model's own tokens (Bengio et al. 2015); minimum_risk: the expected error of sampled "
        "outputs (Shen et al. 2016). On plain text, with encoder and decoder: denoising (Lewis et al. 2020) or "
        "span_corruption (Raffel et al. 2020)",
    )
    own_tokens: Fraction = Field(
        0.25, description="scheduled_sampling: final share of input tokens that are the model's own"
    )
    passes: Small = Field(
        1, description="scheduled_sampling: rounds of mixing; with more, own tokens can follow own tokens"
    )
    samples: int = Field(
        8, ge=2, le=1000, description="minimum_risk: outputs sampled for each source, not counting the reference"
    )
    sharpness: float = Field(0.005, gt=0, le=10**6, description="minimum_risk: exponent of p among the sampled outputs")
    likelihood: Weight = Field(0.0, description="minimum_risk: weight of -log p of the target beside the risk")
    ends: bool = Field(
        True,
        description="learn where outputs end; false leaves the end of each target out of the loss (Newman et al. "
        "2020), and a search has to be told how long its outputs are, by search.min_length and search.max_length",
    )
    agreement: Weight = Field(
        0.0,
        description="R-Drop: weight of the divergence between two passes under different dropout (Liang et al. 2021, "
        "try 5); an update then takes twice as long",
    )
    sampled: int = Field(
        0,
        ge=0,
        le=10**6,
        description="sampled softmax, for large vocabularies: tokens drawn for each batch, over which the softmax of "
        "an update is taken (Jean et al. 2015; 0: full softmax); no label smoothing then. Decoding and scoring use "
        "all tokens",
    )
    proposal: Literal["log_uniform", "unigram"] = Field(
        "log_uniform",
        description="sampled softmax: draw by frequency rank, as in Zipf's law (log_uniform), or by "
        "frequency (unigram)",
    )
    masked: float = Field(0.15, gt=0, lt=1, description="masked language model: share of tokens to predict")
    masking: Literal["tokens", "words", "spans"] = Field(
        "tokens",
        description="masked language model: predict single tokens, whole words, or spans of words (SpanBERT, Joshi et "
        "al. 2020)",
    )
    detection: Weight = Field(
        50.0, description="model.generator: weight of the replaced-token detection loss (Clark et al. 2020), beside "
        "the generator's own loss"
    )  # fmt: skip
    language: Weight = Field(
        0.0,
        description="head over a decoder-only model: weight of the language modelling loss beside the head's (Radford "
        "et al. 2018 take 0.5)",
    )
    ctc: Fraction = Field(
        0.3, description="model.ctc with a decoder: weight of the CTC loss; the decoder's loss has 1 minus this"
    )
    mixup: float = Field(
        0.0, ge=0, le=100, description="image classification: mixup, with shares drawn from Beta(mixup, mixup) (Zhang "
        "et al. 2018; try 0.2)"
    )  # fmt: skip
    cutmix: float = Field(
        0.0, ge=0, le=100, description="image classification: cutmix, with the share of the other image drawn from "
        "Beta(cutmix, cutmix) (Yun et al. 2019; try 1); with mixup, half of the images each"
    )  # fmt: skip
    mixed: Fraction = Field(
        1.0, description="mixup and cutmix: share of training after which images are not mixed any more (Hassani et "
        "al. 2021: 175 of 300 epochs)"
    )  # fmt: skip
    doubly_stochastic: Weight = Field(
        0.0,
        description="soft attention of a recurrent decoder: weight of Σ_i (1 - Σ_t α_ti)², so that all places are "
        "attended to (Xu et al. 2015, eq. 14, who take 1)",
    )
    activation: Weight = Field(
        0.0,
        description="awd_lstm on a stream: activation regularisation (AR), weight of the mean square of what goes to "
        "the output layer (Merity et al. 2018, who take 2)",
    )
    slowness: Weight = Field(
        0.0,
        description="awd_lstm on a stream: temporal activation regularisation (TAR), weight of the mean square change "
        "of states from token to token (Merity et al. 2018, who take 1)",
    )
    reward: Weight = Field(1.0, description="hard attention: weight of the score-function gradient")
    entropy: Weight = Field(0.002, description="hard attention: weight of the entropy of the attention distribution")
    soft: Fraction = Field(
        0.0, description="hard attention: final share of sentences that attend softly (at first: all)"
    )


class DenoisingSettings(ObjectiveSettings):
    """-log p of a text given what noise left of it, for an encoder and a decoder (BART, Lewis et al. 2020)."""

    corrupts = True

    kind: Literal["denoising"] = "denoising"
    noise: Literal["infilling", "masking", "deletion", "none"] = Field(
        "infilling",
        description="infilling: one mask per span; masking: one mask per token; deletion: tokens are left out",
    )
    noised: Share = Field(0.3, description="share of tokens that are removed")
    span: float = Field(3.0, gt=0, le=1000, description="infilling: mean length of a span (drawn from Poisson)")
    permute: bool = Field(False, description="shuffle the sentences; they end with ., ! or ?")


class SpanCorruptionSettings(ObjectiveSettings):
    """-log p of the spans that are missing from a text, for an encoder and a decoder (T5, Raffel et al. 2020)."""

    corrupts = True

    kind: Literal["span_corruption"] = "span_corruption"
    corrupted: float = Field(0.15, gt=0, lt=1, description="share of tokens that are removed")
    span: float = Field(3.0, ge=1, le=1000, description="mean length of a span")


OBJECTIVES.describe(OBJECTIVES.homes, ObjectiveSettings)
OBJECTIVES.describe(["denoising"], DenoisingSettings)
OBJECTIVES.describe(["span_corruption"], SpanCorruptionSettings)


class LoraSettings(Section):
    """Low-rank adapters: `W + (α / r) B A` in place of `W` (Hu et al. 2022)."""

    rank: Small = Field(8, description="r: columns of B and rows of A")
    alpha: float = Field(16.0, gt=0, le=10**6, description="α: what is added to W is scaled by α / r")
    dropout: Share = Field(0.0, description="dropout on the input of A")
    parts: list[str] = Field(
        ["*attention*"],
        description="names of linear layers to adapt, with * as a wildcard: [*attention*, *feed_forward*], "
        "[decoder.*], [*.cross_attention.inputs]",
    )
    also: list[str] = Field(
        default_factory=list,
        description="parts of the model that are trained in full beside the adapters, such as [head]",
    )


class Training(Section):
    """Optimisation, validation and checkpoints."""

    objective: Annotated[SerializeAsAny[ObjectiveSettings], Kind(OBJECTIVES, "likelihood")] = Field(
        default_factory=ObjectiveSettings, description="the training loss"
    )
    steps: Period = Field(20000, description="updates in all")
    tokens: int = Field(0, ge=0, le=10**15, description="stop after this many target tokens (0: no limit)")
    seconds: float = Field(0.0, ge=0, le=10**12, description="stop after this many seconds of training (0: no limit)")
    batch_tokens: int = Field(
        4096,
        ge=1,
        le=10**8,
        description="maximum number of tokens of a batch, on each side; source and target may have their own",
    )
    accumulate: Size = Field(1, description="gradient accumulation: batches per update")
    learning_rate: float = Field(1e-3, gt=0, description="peak learning rate of the schedule")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "inverse_sqrt", description="how the learning rate decays after the warm-up"
    )
    warmup: Count = Field(1000, description="updates over which the learning rate rises from 0")
    weight_decay: Weight = Field(0.01, description="weight decay of AdamW; not on biases, norms and embeddings")
    betas: tuple[Share, Share] = Field((0.9, 0.98), description="β₁ and β₂ of AdamW")
    clip: Weight = Field(1.0, description="gradient clipping: maximum norm of the gradient (0: off)")
    label_smoothing: Share = Field(
        0.1, description="label smoothing: share of the probability that is spread over all tokens"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: mixed precision, with weights in float32"
    )
    compile: bool = Field(True, description="compile for the GPU: a minute at first, then faster (no effect on a CPU)")
    device: str = Field("auto", description="cpu, cuda, or auto: the GPU if there is one")
    seed: Count = Field(1, description="random seed of everything that training draws")
    validate_every: Period = Field(1000, description="updates between validations")
    validate_sentences: Period = Field(500, description="validation sentences to decode for the metric")
    metric: str | None = Field(
        None,
        description="metric that chooses the best checkpoint (default: bleu for text, accuracy for labels and "
        "tags; else loss)",
    )
    lora: LoraSettings | None = Field(
        None,
        description="train low-rank adapters in place of the weights of [start], such as {rank: 8}, and merge them "
        "into the trained model (Hu et al. 2022)",
    )
    freeze: list[str] = Field(
        default_factory=list,
        description="parts of the model to freeze, such as [encoder] or [decoder.embedding, decoder.blocks.0]",
    )
    thaw: Count = Field(0, description="updates after which frozen parts learn too (0: never)")
    unfreeze_every: Count = Field(
        0,
        description="gradual unfreezing: the top layers of encoder and decoder learn from the start, those below them "
        "after this many updates, and so on down to the embeddings (Howard and Ruder 2018; 0: all learn from the "
        "start)",
    )
    rates: dict[str, float] = Field(
        default_factory=dict,
        description="factors of the learning rate by part of the model: {encoder: 0.1, decoder.embedding: 0.3}; if "
        "several names match a weight, the longest counts",
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="layer-wise learning rate decay: factor from each layer to the one below, down "
        "from the top of the encoder or decoder (Howard and Ruder 2018 take 1 / 2.6; 1: off)"
    )  # fmt: skip
    patience: Count = Field(
        0, description="early stopping: validations without improvement before training stops (0: never stop early)"
    )
    save_every: Period = Field(500, description="updates between checkpoints")
    keep_last: Size = Field(3, description="latest checkpoints to keep, beside the best")
    average: Size = Field(
        1,
        description="checkpoint averaging: finish with the mean of this many latest checkpoints if it is better "
        "(1: the best alone)",
    )
    ema: Share = Field(
        0.0,
        description="validate and keep a moving average of the weights in their place: the share that it keeps at "
        "each update (try 0.999; 0: off)",
    )
    log_every: Period = Field(50, description="updates between lines in log.jsonl")
    tensorboard: bool = Field(True, description="also write TensorBoard events, if it is installed")

    @model_validator(mode="after")
    def _enough_kept(self) -> Training:
        if self.average > self.keep_last:
            raise ValueError(f"average ({self.average}) needs keep_last at least as large (now {self.keep_last})")
        if self.average > 1 and self.ema:
            raise ValueError(f"average ({self.average}) and ema ({self.ema:g}) are two ways to one end; leave one out")
        return self

    @model_validator(mode="after")
    def _parts_learn(self) -> Training:
        for part, factor in self.rates.items():
            if not 0 < factor <= 1000:
                advice = f"name {part} in freeze" if factor == 0 else "give a factor above 0, at most 1000"
                raise ValueError(f"rates: {part} is {factor:g}; {advice}")
        return self
