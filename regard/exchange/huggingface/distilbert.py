"""DistilBERT (Sanh et al. 2019), under the head that a checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.exchange.huggingface.bart import BOTH, both
from regard.exchange.huggingface.bert import HEADS, EncoderAlone
from regard.exchange.huggingface.family import Move


class DistilBert(EncoderAlone):
    """DistilBERT: BERT without segments, and with a ReLU in its pooler."""

    model_types = ("distilbert",)
    architectures = tuple(f"DistilBert{ending}" for ending in HEADS if ending != "ForPreTraining")
    base = "distilbert."
    ignored = r".*\.position_ids"

    def network(self) -> dict[str, Any]:
        config = self.config
        if self.head == "masked" and self.activation("activation", "gelu") != "gelu":
            self.refuse("activation", "the head of a masked language model has gelu in Regard")
        return {
            "d_model": config["dim"], "dropout": config.get("dropout", 0.1), "pooler": "relu",
            "max_positions": config.get("max_position_embeddings", 512),
            "encoder": {
                "kind": "transformer", "layers": config["n_layers"], "heads": config["n_heads"],
                "d_ff": config["hidden_dim"], "norm": "post", "positions": "learned", "embedding_norm": True,
                "activation": self.activation("activation", "gelu"), "norm_epsilon": 1e-12,
            },
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        embeddings = "distilbert.embeddings"
        yield Move("encoder.stem.embedding.table.weight", (f"{embeddings}.word_embeddings.weight",))
        yield Move("encoder.positions.table.weight", (f"{embeddings}.position_embeddings.weight",))
        yield from both(f"{embeddings}.LayerNorm", "encoder.embedding_norm")
        for i in range(self.config["n_layers"]):
            theirs, ours = f"distilbert.transformer.layer.{i}", f"encoder.blocks.{i}"
            for kind in BOTH:
                parts = tuple(f"{theirs}.attention.{part}_lin.{kind}" for part in "qkv")
                yield Move(f"{ours}.self_attention.inputs.{kind}", parts)
            yield from both(f"{theirs}.attention.out_lin", f"{ours}.self_attention.output")
            yield from both(f"{theirs}.sa_layer_norm", f"{ours}.around_attention.norm")
            yield from both(f"{theirs}.ffn.lin1", f"{ours}.feed_forward.inner")
            yield from both(f"{theirs}.ffn.lin2", f"{ours}.feed_forward.outer")
            yield from both(f"{theirs}.output_layer_norm", f"{ours}.around_feed_forward.norm")
        if self.head == "masked":
            yield from both("vocab_transform", "transform")
            yield from both("vocab_layer_norm", "norm")
            yield Move("head.linear.bias", ("vocab_projector.bias",))
            return
        if self.pooled:
            yield from both("pre_classifier", "transform")
        yield from both("qa_outputs" if self.head == "span" else "classifier", "head.linear")

    def aliases(self) -> dict[str, str]:
        return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
