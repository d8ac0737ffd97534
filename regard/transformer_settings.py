"""What the settings of Transformer encoders and decoders share, and which widths attention can have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from regard.section import Section, Share, Small

Positions = Literal["sinusoidal", "sinusoidal_halves", "learned", "shaw", "t5", "rotary", "alibi", "xl", "none"]


class TransformerSettings(Section):
    """What Transformer encoders and decoders share."""

    kind: Literal["transformer"] = "transformer"
    layers: Small = Field(3, description="number of blocks")
    heads: int = Field(4, ge=1, le=4096, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, le=2**20, description="width of the feed-forward layers")
    norm: Literal["pre", "post"] = Field("pre", description="pre-norm, or post-norm as first published")
    normalize: Literal["layer", "rms"] = Field("layer", description="layer norm, or RMSNorm (Zhang and Sennrich 2019)")
    positions: Positions = Field(
        "sinusoidal",
        description="position encoding: sinusoidal (or sinusoidal_halves: all sines, then all cosines, as in Marian) "
        "or learned vectors, added to the tokens; or inside attention: shaw (Shaw et al. 2018), t5 (Raffel et al. "
        "2020), rotary (Su et al. 2021), alibi (Press et al. 2022), xl (Dai et al. 2019); or none, if the stem has "
        "positions",
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = Field(
        "relu",
        description="activation in the feed-forward layers; gelu_tanh is the tanh approximation of GELU, as in GPT-2",
    )
    gated: bool = Field(False, description="gated feed-forward layers (Shazeer 2020)")
    norm_epsilon: float = Field(
        1e-5, gt=0, le=0.1, description="added to the variance in norms; published ViT weights need 1e-6 or 1e-12"
    )
    embedding_norm: bool = Field(
        False, description="a norm over the sum of token and position embeddings, before the first block (BERT, BART)"
    )
    first_position: int = Field(
        0, ge=0, le=1000, description="row of the learned position table for the first token (BART, RoBERTa: 2)"
    )
    biases: bool = Field(True, description="biases in attention and feed-forward layers (T5 has none)")
    d_head: int | None = Field(None, ge=1, le=4096, description="width of an attention head (default: d_model / heads)")
    stochastic_depth: Share = Field(
        0.0,
        description="share of sequences that skip the layers of the last block in training, fewer in lower blocks "
        "(Huang et al. 2016; Vision Transformers: 0.1)",
    )
    scale_scores: bool = Field(True, description="divide attention scores by √d_head (T5 does not)")
    buckets: int = Field(32, ge=4, le=4096, description="positions t5: number of distance buckets")
    bucket_distance: int = Field(
        128, ge=2, le=2**16, description="positions t5: all distances from here on share a bucket"
    )

    def check(self, d_model: int) -> str | None:
        if self.first_position and self.positions != "learned":
            return (
                f"first_position is {self.first_position}, for learned positions; with '{self.positions}' leave it out"
            )
        if self.positions == "t5" and self.bucket_distance <= self.buckets // 2:
            return f"bucket_distance ({self.bucket_distance}) should be more than half of buckets ({self.buckets})"
        return attention_clash(d_model, self.heads, self.positions, self.d_head)


def attention_clash(d_model: int, heads: int, positions: str, d_head: int | None = None) -> str | None:
    """Why self-attention cannot have this width, or None."""
    if d_model % heads and d_head is None:
        return indivisible(d_model, heads)
    if positions in ("sinusoidal", "sinusoidal_halves") and d_model % 2:
        return f"sinusoidal positions need an even d_model, not {d_model}"
    if positions == "xl" and (heads * d_head if d_head else d_model) % 2:
        return (
            f"positions 'xl' need an even d_model, not {d_model}"
            if d_head is None
            else (f"positions 'xl' need an even width of all heads; heads ({heads}) times d_head ({d_head}) is odd")
        )
    if positions == "rotary" and d_head is not None and d_head % 2:
        return f"positions 'rotary' turns pairs of numbers, so d_head must be even, not {d_head}"
    if positions == "rotary" and d_head is None and d_model // heads % 2:
        return (
            f"positions 'rotary' turns pairs of numbers, so a head must be of even width; d_model ({d_model}) / "
            f"heads ({heads}) is {d_model // heads}"
        )
    return None


def indivisible(d_model: int, heads: int) -> str:
    """What to say of heads that do not divide a width."""
    fitting = [h for h in (1, 2, 4, 8, 16, 32) if d_model % h == 0]
    nearest = min(fitting, key=lambda other: abs(other - heads))
    return f"d_model ({d_model}) is not divisible by heads ({heads}); try {nearest}"
