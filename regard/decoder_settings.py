"""The settings of decoders."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from regard.encoder_settings import Cell
from regard.registry import CELLS, DECODERS, SCORES
from regard.section import Section, Share, Small
from regard.transformer_settings import TransformerSettings, indivisible

Place = Literal["recurrence", "output", "feeding"]


class RecurrentDecoderSettings(Section):
    """A recurrent decoder that uses the source in one of three ways."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: Small = Field(1, description="number of stacked layers")
    context: Literal["last", "every", "attention"] | None = Field(
        None,
        description="last: the encoding only initialises the state; every: it enters at every step; attention: a "
        "context vector of encoder states at every step (default attention, if there is an encoder)",
    )
    score: str | None = Field(
        None,
        description="attention score: dot, bilinear, additive, mlp, scaled_dot, or location, which also sees the "
        "previous attention weights (Chorowski et al. 2015) (default additive)",
    )
    place: Place | None = Field(
        None,
        description="where the context vector goes: recurrence (into the state), output (before the output layer) or "
        "feeding (input feeding: before the output layer, and into the next step) (default feeding)",
    )
    heads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="multi-head attention: project queries, keys and values, with this many "
        "heads (default: no projection)",
    )
    hard: bool = Field(
        False,
        description="hard attention: attend to one place, sampled in training (Xu et al. 2015), the likeliest "
        "in inference",
    )
    gate: bool = Field(
        False, description="scale the context vector by a gate computed from the state (Xu et al. 2015, 4.2.1)"
    )
    bridge: Literal["dense", "copy"] = Field(
        "dense", description="how the state is initialised: by a dense layer over the encoding, or as a copy of it"
    )

    @field_validator("score")
    @classmethod
    def _score_known(cls, score: str | None) -> str | None:
        if score is not None and score not in SCORES.kinds:
            raise ValueError(SCORES.unknown(score))
        return score

    @model_validator(mode="after")
    def _attention_settings_need_attention(self) -> RecurrentDecoderSettings:
        for name in ("score", "place", "heads", "hard", "gate"):
            if self.context not in ("attention", None) and getattr(self, name):
                raise ValueError(f"'{name}' needs context: attention; here context is '{self.context}'")
        return self

    def check(self, d_model: int) -> str | None:
        return indivisible(d_model, self.heads) if self.heads and d_model % self.heads else None


class TransformerDecoderSettings(TransformerSettings):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017)."""

    scale_output: bool = Field(
        False, description="divide the input of the output layer by √d_model, as T5 does if that layer is tied"
    )


class AwdLstmSettings(Section):
    """A decoder for language models alone: LSTMs with the dropout of Merity et al. 2018 (AWD-LSTM), also as a
    Mogrifier (Melis et al. 2020). The dropout settings here replace model.dropout."""

    kind: Literal["awd_lstm"] = "awd_lstm"
    layers: Small = Field(3, description="number of stacked layers")
    hidden: int | None = Field(
        None, ge=1, le=2**16, description="width of the layers; the last one is d_model wide (default: d_model)"
    )
    project: bool = Field(
        False, description="the last layer is as wide as the others, followed by a linear layer to d_model"
    )
    rounds: int = Field(
        0,
        ge=0,
        le=100,
        description="Mogrifier: how often input and state gate each other before a step (0: never; try 5)",
    )
    rank: int = Field(
        0, ge=0, le=2**16, description="Mogrifier: rank of the gate matrices, as products of two (0: full)"
    )
    weight_dropout: Share = Field(0.5, description="share of the recurrent weights (state to state) that are set to 0")
    input_dropout: Share = Field(
        0.65, description="dropout of embeddings, with one mask for all positions, as in all below"
    )
    layer_dropout: Share = Field(0.2, description="dropout between layers")
    output_dropout: Share = Field(0.4, description="dropout before the output layer")
    word_dropout: Share = Field(0.1, description="share of the words whose embedding is set to 0 in a batch")

    def check(self, d_model: int) -> str | None:
        if self.rank and not self.rounds:
            return f"decoder.rank ({self.rank}) is of the gates that decoder.rounds asks for; set both, or neither"
        return None


class NoDecoderSettings(Section):
    """No decoder: an encoder-only model, as a masked language model (Devlin et al. 2019), or under another head."""

    kind: Literal["none"] = "none"

    def check(self, d_model: int) -> str | None:
        return None


DECODERS.describe(CELLS, RecurrentDecoderSettings)
DECODERS.describe(["transformer"], TransformerDecoderSettings)
DECODERS.describe(["awd_lstm"], AwdLstmSettings)
DECODERS.describe(["none"], NoDecoderSettings)
