"""T5 (Raffel et al. 2020), T5 v1.1 and Flan-T5 (Chung et al. 2022), and mT5 (Xue et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from regard.exchange.huggingface.family import ACTIVATIONS, Family, Move


class T5(Family):
    """T5: RMSNorm before each part, no biases, a bias of distances that layers share, scores that are not scaled.

    Of v1.0 the output layer is the embedding, and what it gets is scaled; of v1.1 it is one of its own, and
    feed-forward parts are gated. mT5 never scales, whatever its config says of ties.
    """

    model_types = ("t5", "mt5")
    architectures = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {"is_encoder_decoder": (True,)}
    ignored = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"  # of 2020, never used

    def sections(self) -> dict[str, Any]:
        config = self.config
        part = {
            "kind": "transformer", "layers": config["num_layers"], "heads": config["num_heads"], "d_ff": config["d_ff"],
            "d_head": config["d_kv"], "norm": "pre", "normalize": "rms", "positions": "t5", "biases": False,
            "scale_scores": False, "activation": self.inner, "gated": self.gated,
            "buckets": config.get("relative_attention_num_buckets", 32),
            "bucket_distance": config.get("relative_attention_max_distance", 128),
            "norm_epsilon": config.get("layer_norm_epsilon", 1e-6),
        }  # fmt: skip
        return {
            "source": {"kind": "text"},
            "target": {"kind": "text"},
            "model": {
                "d_model": config["d_model"], "dropout": config.get("dropout_rate", 0.1), "tie_output": self.tied,
                "output_bias": False, "share_embeddings": True, "scale_embeddings": False,
                "max_positions": config.get("n_positions", 512), "encoder": part,
                "decoder": {**part, "layers": self.layers["decoder"], "scale_output": self.scales},
            },
        }  # fmt: skip

    @property
    def layers(self) -> dict[str, int]:
        encoder = self.config["num_layers"]
        return {"encoder": encoder, "decoder": self.config.get("num_decoder_layers") or encoder}

    @property
    def gated(self) -> bool:
        return str(self.config.get("feed_forward_proj", "relu")).startswith("gated-")

    @property
    def inner(self) -> str:
        """The activation; "gated-gelu" has the tanh in it, as it was trained with."""
        kind = str(self.config.get("feed_forward_proj", "relu"))
        known = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu", "gated-relu": "relu", "gelu": "gelu"}
        if kind not in known:
            self.refuse("feed_forward_proj", f"Regard has {', '.join(known)}")
        wanted = {"dense_act_fn": known[kind], "is_gated_act": self.gated}
        for name, said in wanted.items():  # which transformers writes beside it, and obeys
            other = self.config.get(name)
            if other is not None and (ACTIVATIONS.get(other) if isinstance(other, str) else other) != said:
                self.refuse(name, f"feed_forward_proj {kind} says otherwise")
        return known[kind]

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding: as the tensors have it, of which a config may say otherwise."""
        head, shared = self.tensors.get("lm_head.weight"), self.tensors.get("shared.weight")
        if not self.tensors:
            return bool(self.config.get("tie_word_embeddings", True))
        return head is None or (shared is not None and torch.equal(head, shared))

    @property
    def scales(self) -> bool:
        """Whether what the output layer gets is scaled, which checkpoints of T5 say by the option for ties."""
        if self.config.get("model_type") == "mt5":
            return False
        return bool(self.config.get("scale_decoder_outputs", self.config.get("tie_word_embeddings", True) is not False))

    def moves(self) -> Iterator[Move]:
        yield Move("encoder.stem.embedding.table.weight", ("shared.weight",))
        for side, layers in self.layers.items():
            of_table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield Move(f"{side}.blocks.0.self_attention.relative.table.weight", (of_table,))
            parts = [("SelfAttention", "self_attention", "around_attention")]
            if side == "decoder":
                parts = [("SelfAttention", "self_attention", "around_self")]
                parts.append(("EncDecAttention", "cross_attention", "around_cross"))
            for i in range(layers):
                theirs, ours = f"{side}.block.{i}.layer", f"{side}.blocks.{i}"
                for number, (name, here, around) in enumerate(parts):
                    three = tuple(f"{theirs}.{number}.{name}.{part}.weight" for part in "qkv")
                    yield Move(f"{ours}.{here}.inputs.weight", three)
                    yield Move(f"{ours}.{here}.output.weight", (f"{theirs}.{number}.{name}.o.weight",))
                    yield Move(f"{ours}.{around}.norm.weight", (f"{theirs}.{number}.layer_norm.weight",))
                last = f"{theirs}.{len(parts)}"
                inner = [("wi_0", "inner"), ("wi_1", "gate")] if self.gated else [("wi", "inner")]
                for there, here in (*inner, ("wo", "outer")):
                    yield Move(f"{ours}.feed_forward.{here}.weight", (f"{last}.DenseReluDense.{there}.weight",))
                yield Move(f"{ours}.around_feed_forward.norm.weight", (f"{last}.layer_norm.weight",))
            yield Move(f"{side}.final.weight", (f"{side}.final_layer_norm.weight",))
        if not self.tied:
            yield Move("head.linear.weight", ("lm_head.weight",))

    def aliases(self) -> dict[str, str]:
        names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        return dict.fromkeys([*names, *(["lm_head.weight"] if self.tied else [])], "shared.weight")
