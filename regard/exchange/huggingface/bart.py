"""Encoders with decoders that are laid out as fairseq's: BART (Lewis et al. 2020), mBART (Liu et al. 2020), and Marian
(Junczys-Dowmunt et al. 2018), as which the OPUS-MT models are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from regard.exchange.huggingface.family import ROW, Family, Move

ENCODER, DECODER = "encoder", "decoder"
BOTH = ("weight", "bias")


def block_moves(theirs: str, ours: str, *, cross: bool, key_bias: bool = True) -> Iterator[Move]:
    """A block of fairseq's layout."""
    yield from attention_moves(f"{theirs}.self_attn", f"{ours}.self_attention", key_bias=key_bias)
    norms = [("self_attn_layer_norm", "around_self" if cross else "around_attention")]
    if cross:
        yield from attention_moves(f"{theirs}.encoder_attn", f"{ours}.cross_attention", key_bias=key_bias)
        norms.append(("encoder_attn_layer_norm", "around_cross"))
    norms.append(("final_layer_norm", "around_feed_forward"))
    pairs = [(there, f"{here}.norm") for there, here in norms]
    pairs += [("fc1", "feed_forward.inner"), ("fc2", "feed_forward.outer")]
    for there, here in pairs:
        yield from both(f"{theirs}.{there}", f"{ours}.{here}")


def attention_moves(theirs: str, ours: str, *, key_bias: bool = True) -> Iterator[Move]:
    for kind in BOTH:
        keys = f"{theirs}.k_proj.{kind}" if key_bias or kind == "weight" else None
        yield Move(f"{ours}.inputs.{kind}", (f"{theirs}.q_proj.{kind}", keys, f"{theirs}.v_proj.{kind}"))
    yield from both(f"{theirs}.out_proj", f"{ours}.output")


def both(theirs: str, ours: str) -> Iterator[Move]:
    """A product's or a norm's weight and bias."""
    for kind in BOTH:
        yield Move(f"{ours}.{kind}", (f"{theirs}.{kind}",))


class Bart(Family):
    """BART: post-norm, learned positions that begin at row 2 of their table, a norm over the embeddings."""

    model_types = ("bart",)
    architectures = ("BartForConditionalGeneration", "BartModel")
    base = "model."
    norm: ClassVar[str] = "post"
    static: ClassVar[bool] = False  # positions are sines, and no weights
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "normalize_before": (False,), "normalize_embedding": (True,), "add_final_layer_norm": (False,),
        "static_position_embeddings": (False,),
    }  # fmt: skip

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.tensors:  # a checkpoint without an output layer has no bias of it, which is that of nothing
            self.tensors.setdefault("final_logits_bias", torch.zeros(1, self.outputs))

    def sections(self) -> dict[str, Any]:
        config = self.config
        return {
            "source": {"kind": "text"},
            "target": {"kind": "text"},
            "model": {
                "d_model": config["d_model"], "dropout": config.get("dropout", 0.1), "tie_output": True,
                "share_embeddings": self.shared, "scale_embeddings": bool(config.get("scale_embedding", False)),
                "max_positions": config.get("max_position_embeddings", 1024),
                "encoder": self.part(ENCODER), "decoder": self.part(DECODER),
            },
        }  # fmt: skip

    def part(self, side: str) -> dict[str, Any]:
        """The settings of the encoder or of the decoder."""
        config = self.config
        return {
            "kind": "transformer", "layers": config[f"{side}_layers"], "heads": config[f"{side}_attention_heads"],
            "d_ff": config[f"{side}_ffn_dim"], "norm": self.norm, "embedding_norm": not self.static,
            "activation": self.activation("activation_function", "gelu"), "norm_epsilon": 1e-5,
            "positions": "sinusoidal_halves" if self.static else "learned", "first_position": 0 if self.static else 2,
        }  # fmt: skip

    @property
    def shared(self) -> bool:
        """Whether encoder and decoder read with one embedding."""
        return True

    def moves(self) -> Iterator[Move]:
        embedding = "decoder.embedding.table.weight"
        if self.shared:
            yield Move("encoder.stem.embedding.table.weight", ("model.shared.weight",))
        else:
            yield Move("encoder.stem.embedding.table.weight", ("model.encoder.embed_tokens.weight",))
            yield Move(embedding, ("model.decoder.embed_tokens.weight",))
        for side in (ENCODER, DECODER):
            if not self.static:
                yield Move(f"{side}.positions.table.weight", (f"model.{side}.embed_positions.weight",))
                yield from both(f"model.{side}.layernorm_embedding", f"{side}.embedding_norm")
            for i in range(self.config[f"{side}_layers"]):
                yield from block_moves(f"model.{side}.layers.{i}", f"{side}.blocks.{i}", cross=side == DECODER)
            if self.norm == "pre":
                yield from both(f"model.{side}.layer_norm", f"{side}.final")
        yield Move("head.linear.bias", ("final_logits_bias",), ROW)

    def aliases(self) -> dict[str, str]:
        if not self.shared:
            return {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        names = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
        return dict.fromkeys(names, "model.shared.weight")

    def canonical(self, name: str) -> str:
        return name if name in ("final_logits_bias", "lm_head.weight") else super().canonical(name)


class MBart(Bart):
    """mBART: pre-norm, with a norm after the last block too."""

    model_types = ("mbart",)
    architectures = ("MBartForConditionalGeneration", "MBartModel")
    norm = "pre"
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "normalize_before": (True,), "normalize_embedding": (True,), "add_final_layer_norm": (True,),
        "static_position_embeddings": (False,),
    }  # fmt: skip


class Marian(Bart):
    """Marian: post-norm, sines as positions, no norm over the embeddings."""

    model_types = ("marian",)
    architectures = ("MarianMTModel", "MarianModel")
    static = True
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "normalize_before": (False,), "normalize_embedding": (False,), "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,), "extra_pos_embeddings": (0, 2),
    }  # fmt: skip
    ignored = r"model\.(encoder|decoder)\.embed_positions\.weight"  # the sines

    @property
    def shared(self) -> bool:
        return bool(self.config.get("share_encoder_decoder_embeddings", True))

    @property
    def outputs(self) -> int:
        return int(self.config.get("decoder_vocab_size") or self.vocabulary)
