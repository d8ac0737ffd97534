"""The settings of training: what to begin from, what an update minimises, and how."""

from __future__ import annotations

from typing import Annotated, Literal

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

    kind: str = Field(
        "likelihood",
        description="-log p of the target after true prefixes; after prefixes that hold some of the model's own "
        "tokens (Bengio et al. 2015); or the expected error of what the model writes (Shen et al. 2016)",
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
    masked: float = Field(0.15, gt=0, lt=1, description="masked language model: share of tokens to predict")
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


OBJECTIVES.describe(OBJECTIVES.homes, ObjectiveSettings)


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
    freeze: list[str] = Field(
        default_factory=list,
        description="parts of the model that do not learn, such as [encoder] or [decoder.embedding, decoder.blocks.0]",
    )
    thaw: Count = Field(0, description="updates after which what is frozen learns too (0: never)")
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
