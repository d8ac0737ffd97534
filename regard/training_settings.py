"""The settings of training: what to begin from, what an update minimises, and how."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from regard.registry import OBJECTIVES
from regard.section import Count, Fraction, Kind, Period, Section, Share, Size, Small, Weight


class Start(Section):
    """Trained models to begin from, each a folder whose tokens come along; or a file of published weights."""

    model: str | None = Field(None, description="all weights, of a model with these very settings of [model]")
    encoder: str | None = Field(
        None,
        description="the encoder's weights, of a model with such an encoder; of several sources, those of a picture's "
        "or a sound's",
    )
    decoder: str | None = Field(None, description="the decoder's weights, of such a decoder or of a language model")

    weights: str | None = Field(
        None,
        description="a .safetensors, .pth or .bin file with published weights of the encoder: a ResNet or a ViT as "
        "torchvision or timm write them, a ViT of Hugging Face",
    )

    @model_validator(mode="after")
    def _one_or_parts(self) -> Start:
        if self.model is not None and (self.encoder or self.decoder):
            raise ValueError("model already brings both parts; leave out encoder and decoder, or model")
        if self.weights is not None and (self.model or self.encoder):
            raise ValueError("weights are the encoder's, which model and encoder bring already; leave them out, or it")
        return self


class ObjectiveSettings(Section):
    """What training makes small."""

    corrupts: ClassVar[bool] = False  # the source is made from the target, by noise

    kind: str = Field(
        "likelihood",
        description="-log p of the target after true prefixes; after prefixes that hold some of the model's own "
        "tokens (Bengio et al. 2015); or the expected error of what the model writes (Shen et al. 2016). Of plain "
        "text, for an encoder and a decoder: denoising (Lewis et al. 2020) or span_corruption (Raffel et al. 2020)",
    )
    own_tokens: Fraction = Field(
        0.25, description="scheduled_sampling: share of input tokens that are the model's own, at the end"
    )
    passes: Small = Field(1, description="scheduled_sampling: rounds of mixing; more let own tokens follow own tokens")
    samples: int = Field(
        8, ge=2, le=1000, description="minimum_risk: outputs drawn for each source, the reference not counted"
    )
    sharpness: float = Field(0.005, gt=0, le=10**6, description="minimum_risk: exponent of p among the outputs drawn")
    likelihood: Weight = Field(0.0, description="minimum_risk: weight of -log p of the target beside the risk")
    agreement: Weight = Field(
        0.0,
        description="weight of the divergence between two passes under different dropout (R-Drop, Liang et al. 2021, "
        "try 5); an update then takes twice as long",
    )
    sampled: int = Field(
        0,
        ge=0,
        le=10**6,
        description="likelihood over a large vocabulary: tokens drawn for each batch, over which alone the softmax of "
        "an update is taken (Jean et al. 2015); 0: over all; without label smoothing, and in use over all tokens",
    )
    proposal: Literal["log_uniform", "unigram"] = Field(
        "log_uniform", description="sampled: drawn by rank in frequency, as Zipf's law has it, or by frequency"
    )
    masked: float = Field(0.15, gt=0, lt=1, description="masked language model: share of tokens to predict")
    masking: Literal["tokens", "words", "spans"] = Field(
        "tokens",
        description="masked language model: what is drawn to be predicted: single tokens, whole words, or spans of "
        "words (SpanBERT, Joshi et al. 2020)",
    )
    detection: Weight = Field(
        50.0, description="model.generator: weight of telling replaced tokens apart (Clark et al. 2020), beside the "
        "generator's own loss"
    )  # fmt: skip
    language: Weight = Field(
        0.0,
        description="a head over a decoder alone: weight of the language model's own loss beside the head's "
        "(Radford et al. 2018 take 0.5)",
    )
    ctc: Fraction = Field(
        0.3, description="model.ctc beside a decoder: weight of the CTC loss, 1 less it that of the decoder's"
    )
    mixup: float = Field(
        0.0, ge=0, le=100, description="label of a picture: mix pictures and labels, by shares drawn from Beta(mixup, "
        "mixup) (Zhang et al. 2018; try 0.2)"
    )  # fmt: skip
    cutmix: float = Field(
        0.0, ge=0, le=100, description="label of a picture: put a part of another picture in, whose share is drawn "
        "from Beta(cutmix, cutmix) (Yun et al. 2019; try 1); with mixup, half of the pictures each"
    )  # fmt: skip
    doubly_stochastic: Weight = Field(
        0.0,
        description="soft attention of a recurrent decoder: weight of Σ_i (1 - Σ_t α_ti)², so that all places are "
        "looked at (Xu et al. 2015, eq. 14, who take 1)",
    )
    activation: Weight = Field(
        0.0,
        description="decoder.kind awd_lstm on a stream: weight of the mean square of what goes to the output layer "
        "(Merity et al. 2018, who take 2)",
    )
    slowness: Weight = Field(
        0.0,
        description="decoder.kind awd_lstm on a stream: weight of the mean square by which states change from token to "
        "token (temporal activation regularisation, Merity et al. 2018, who take 1)",
    )
    reward: Weight = Field(1.0, description="hard attention: weight of the score-function gradient")
    entropy: Weight = Field(0.002, description="hard attention: weight of the entropy of where to look")
    soft: Fraction = Field(
        0.0, description="hard attention: share of sentences that attend softly at the end (at first: all)"
    )


class DenoisingSettings(ObjectiveSettings):
    """-log p of a text given what noise left of it, for an encoder and a decoder (BART, Lewis et al. 2020)."""

    corrupts = True

    kind: Literal["denoising"] = "denoising"
    noise: Literal["infilling", "masking", "deletion", "none"] = Field(
        "infilling",
        description="one mask in place of each of some spans, one in place of each of some tokens, or tokens left out",
    )
    noised: Share = Field(0.3, description="share of tokens that are taken out")
    span: float = Field(3.0, gt=0, le=1000, description="infilling: mean length of a span (drawn from Poisson)")
    permute: bool = Field(False, description="put sentences into any order; they end with ., ! or ?")


class SpanCorruptionSettings(ObjectiveSettings):
    """-log p of the spans that are missing from a text, for an encoder and a decoder (T5, Raffel et al. 2020)."""

    corrupts = True

    kind: Literal["span_corruption"] = "span_corruption"
    corrupted: float = Field(0.15, gt=0, lt=1, description="share of tokens that are taken out")
    span: float = Field(3.0, ge=1, le=1000, description="mean length of a span")


OBJECTIVES.describe(OBJECTIVES.homes, ObjectiveSettings)
OBJECTIVES.describe(["denoising"], DenoisingSettings)
OBJECTIVES.describe(["span_corruption"], SpanCorruptionSettings)


class LoraSettings(Section):
    """Low-rank adapters: `W + (α / r) B A` in place of `W` (Hu et al. 2022)."""

    rank: Small = Field(8, description="r: columns of B and rows of A")
    alpha: float = Field(16.0, gt=0, le=10**6, description="α; what is added to W is scaled by α / r")
    dropout: Share = Field(0.0, description="dropout of what A reads")
    parts: list[str] = Field(
        ["*attention*"],
        description="names of linear layers to adapt, where * stands for anything: [*attention*, *feed_forward*], "
        "[decoder.*], [*.cross_attention.inputs]",
    )
    also: list[str] = Field(
        default_factory=list,
        description="parts of the model that learn in full beside the adapters, such as [head]",
    )


class Training(Section):
    """How to learn."""

    objective: Annotated[SerializeAsAny[ObjectiveSettings], Kind(OBJECTIVES, "likelihood")] = Field(
        default_factory=ObjectiveSettings, description="what an update minimises"
    )
    steps: Period = Field(20000, description="updates in all")
    tokens: int = Field(0, ge=0, le=10**15, description="stop after so many target tokens (0: no limit)")
    seconds: float = Field(0.0, ge=0, le=10**12, description="stop after so many seconds of training (0: no limit)")
    batch_tokens: int = Field(
        4096, ge=1, le=10**8, description="most tokens of a batch on each side; source and target may have their own"
    )
    accumulate: Size = Field(1, description="batches to an update")
    learning_rate: float = Field(1e-3, gt=0, description="at the top of the schedule")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "inverse_sqrt", description="how the rate falls after the warm-up"
    )
    warmup: Count = Field(1000, description="updates over which the rate rises from 0")
    weight_decay: Weight = Field(0.01, description="of AdamW; not on biases, norms and embeddings")
    betas: tuple[Share, Share] = Field((0.9, 0.98), description="of AdamW")
    clip: Weight = Field(1.0, description="largest norm of the gradient (0: no limit)")
    label_smoothing: Share = Field(0.1, description="share of the probability spread over all tokens")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16 computes in half precision, weights stay in float32"
    )
    compile: bool = Field(True, description="compile for the GPU: a minute at first, then faster (no effect on a CPU)")
    device: str = Field("auto", description="cpu, cuda, or auto: the GPU if there is one")
    seed: Count = Field(1, description="of everything drawn at random")
    validate_every: Period = Field(1000, description="updates between validations")
    validate_sentences: Period = Field(500, description="how many validation sentences to decode for the metric")
    metric: str | None = Field(
        None, description="what 'best' means (default: bleu of text, accuracy of labels and tags; else loss)"
    )
    lora: LoraSettings | None = Field(
        None,
        description="fine-tune low-rank adapters in place of the weights of [start], such as {rank: 8}, and merge them "
        "into the trained model (Hu et al. 2022)",
    )
    freeze: list[str] = Field(
        default_factory=list,
        description="parts of the model that do not learn, such as [encoder] or [decoder.embedding, decoder.blocks.0]",
    )
    thaw: Count = Field(0, description="updates after which what is frozen learns too (0: never)")
    unfreeze_every: Count = Field(
        0,
        description="gradual unfreezing: the top layers of encoder and decoder learn from the start, those below them "
        "after so many updates, and so on down to the embeddings (Howard and Ruder 2018; 0: all learn from the start)",
    )
    rates: dict[str, float] = Field(
        default_factory=dict,
        description="factors of the learning rate by part of the model: {encoder: 0.1, decoder.embedding: 0.3}; of "
        "several names that fit a weight, the longest counts",
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="factor of the learning rate from each layer to that below it, down from the top "
        "of the encoder or decoder (Howard and Ruder 2018 take 1 / 2.6; 1: all learn alike)"
    )  # fmt: skip
    patience: Count = Field(0, description="validations without a better one before stopping (0: never stop early)")
    save_every: Period = Field(500, description="updates between checkpoints")
    keep_last: Size = Field(3, description="how many latest checkpoints to keep, beside the best")
    average: Size = Field(
        1, description="finish with the mean of this many latest checkpoints if it is better (1: the best alone)"
    )
    ema: Share = Field(
        0.0,
        description="validate and keep a moving mean of the weights in their place, of which this share stays at each "
        "update (try 0.999; 0: the weights themselves)",
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
