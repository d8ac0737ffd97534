"""Named configs: each published model as settings, with its paper and its idea in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings under a name."""

    paper: str
    idea: str
    settings: dict[str, Any]


def _recurrent(cell: str, encoder: dict[str, Any], decoder: dict[str, Any], **model: Any) -> dict[str, Any]:
    return {"model": {**model, "encoder": {"kind": cell, **encoder}, "decoder": {"kind": cell, **decoder}}}


def _transformer(layers: int, heads: int, d_ff: int, *, norm: str, **model: Any) -> dict[str, Any]:
    part = {"kind": "transformer", "layers": layers, "heads": heads, "d_ff": d_ff, "norm": norm}
    return {"model": {**model, "share_embeddings": True, "encoder": dict(part), "decoder": dict(part)}}


PRESETS: dict[str, Preset] = {
    "sutskever2014": Preset(
        "Sutskever, Vinyals, Le 2014: Sequence to Sequence Learning with Neural Networks",
        "deep LSTMs; the reversed source's last state is all the decoder gets",
        _recurrent(
            "lstm",
            {"layers": 4, "bidirectional": False, "reverse": True},
            {"layers": 4, "context": "last", "bridge": "copy"},
            d_model=1000,
            tie_output=False,
        ),
    ),
    "cho2014": Preset(
        "Cho et al. 2014: Learning Phrase Representations using RNN Encoder-Decoder",
        "gated units; the encoding enters the decoder at every step",
        _recurrent("gru", {"bidirectional": False}, {"context": "every"}, d_model=1000, tie_output=False),
    ),
    "bahdanau2015": Preset(
        "Bahdanau, Cho, Bengio 2015: Neural Machine Translation by Jointly Learning to Align and Translate",
        "additive attention over a bidirectional encoder, into the recurrence",
        _recurrent("gru", {}, {"score": "additive", "place": "recurrence"}, d_model=1000, tie_output=False),
    ),
    "luong2015": Preset(
        "Luong, Pham, Manning 2015: Effective Approaches to Attention-based Neural Machine Translation",
        "bilinear attention from the new state, joined to it before the output, and fed back in",
        _recurrent(
            "lstm",
            {"layers": 4, "bidirectional": False},
            {"layers": 4, "score": "bilinear", "place": "feeding", "bridge": "copy"},
            d_model=1000,
            tie_output=False,
            dropout=0.2,
        ),
    ),
    "attentive-small": Preset(
        "Luong, Pham, Manning 2015, small, with a bidirectional encoder",
        "the recurrent model for small corpora and small machines",
        _recurrent("lstm", {}, {"score": "bilinear", "place": "feeding"}, d_model=256, dropout=0.2),
    ),
    "transformer-mini": Preset(
        "Vaswani et al. 2017, as small as will do: the model of `regard demo`",
        "two narrow blocks a side; minutes on a CPU",
        _transformer(2, 4, 512, norm="pre", d_model=128),
    ),
    "transformer-tiny": Preset(
        "Vaswani et al. 2017, at the size of Wu et al. 2021 for small corpora",
        "four narrow blocks a side; strong on tens of thousands of pairs",
        _transformer(4, 4, 256, norm="pre", d_model=128, dropout=0.3),
    ),
    "transformer-base": Preset(
        "Vaswani et al. 2017: Attention Is All You Need",
        "attention alone, six blocks a side",
        _transformer(6, 8, 2048, norm="post", d_model=512),
    ),
    "transformer-big": Preset(
        "Vaswani et al. 2017: Attention Is All You Need",
        "the base model, twice as wide",
        _transformer(6, 16, 4096, norm="post", d_model=1024, dropout=0.3),
    ),
}
