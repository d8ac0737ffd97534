"""GPT-2 (Radford et al. 2019) and DistilGPT-2, a decoder alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.exchange.huggingface.bart import both
from regard.exchange.huggingface.family import SAME, TRANSPOSED, Family, Move


def block_moves(theirs: str, ours: str, *, cross: bool) -> Iterator[Move]:
    """A block of GPT-2, whose products are stored the other way round; with `cross`, one that attends to a source."""
    pairs = [("attn.c_attn", "self_attention.inputs"), ("attn.c_proj", "self_attention.output")]
    pairs += [("mlp.c_fc", "feed_forward.inner"), ("mlp.c_proj", "feed_forward.outer")]
    if cross:
        pairs.append(("crossattention.c_proj", "cross_attention.output"))
        for kind, form in (("weight", TRANSPOSED), ("bias", SAME)):
            parts = (f"{theirs}.crossattention.q_attn.{kind}", f"{theirs}.crossattention.c_attn.{kind}")
            yield Move(f"{ours}.cross_attention.inputs.{kind}", parts, form, shares=(1, 2))
        yield from both(f"{theirs}.ln_cross_attn", f"{ours}.around_cross.norm")
    for there, here in pairs:
        yield Move(f"{ours}.{here}.weight", (f"{theirs}.{there}.weight",), TRANSPOSED)
        yield Move(f"{ours}.{here}.bias", (f"{theirs}.{there}.bias",))
    yield from both(f"{theirs}.ln_1", f"{ours}.around_self.norm")
    yield from both(f"{theirs}.ln_2", f"{ours}.around_feed_forward.norm")


def decoder_moves(config: Mapping[str, Any], begin: str, *, cross: bool) -> Iterator[Move]:
    """A decoder, whose names there begin like this."""
    yield Move("decoder.embedding.table.weight", (f"{begin}wte.weight",))
    yield Move("decoder.positions.table.weight", (f"{begin}wpe.weight",))
    for i in range(config["n_layer"]):
        yield from block_moves(f"{begin}h.{i}", f"decoder.blocks.{i}", cross=cross)
    yield from both(f"{begin}ln_f", "decoder.final")


class GPT2(Family):
    """GPT-2: pre-norm, learned positions, an output layer that is the embedding and has no bias; or under a head that
    classifies from the last vector."""

    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    architectures: ClassVar[tuple[str, ...]] = ("GPT2LMHeadModel", "GPT2ForSequenceClassification")
    base = "transformer."
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
        "problem_type": (None, "single_label_classification"),
    }  # fmt: skip
    ignored = r".*\.attn\.(bias|masked_bias)"  # who sees whom, as older checkpoints hold it

    @property
    def classifies(self) -> bool:
        return self.architecture == "GPT2ForSequenceClassification"

    @property
    def labels(self) -> list[str]:
        return self.several_labels() if self.classifies else []

    def sections(self) -> dict[str, Any]:
        return {
            "source": {"kind": "text" if self.classifies else "none"},
            "target": {"kind": "label" if self.classifies else "text"},
            "model": {**self.network(), "encoder": {"kind": "none"}},
        }

    def network(self) -> dict[str, Any]:
        """The settings of the decoder, and what goes with it."""
        config = self.config
        return {
            "d_model": config["n_embd"], "dropout": config.get("resid_pdrop", 0.1), "tie_output": True,
            "output_bias": False, "scale_embeddings": False, "max_positions": config.get("n_positions", 1024),
            "decoder": {
                "kind": "transformer", "layers": config["n_layer"], "heads": config["n_head"],
                "d_ff": config.get("n_inner") or 4 * config["n_embd"], "norm": "pre", "positions": "learned",
                "activation": self.activation("activation_function", "gelu_new"),
                "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
            },
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from decoder_moves(self.config, self.base, cross=False)
        if self.classifies:
            yield Move("head.linear.weight", ("score.weight",))

    def aliases(self) -> dict[str, str]:
        return {"lm_head.weight": "transformer.wte.weight"}

    def canonical(self, name: str) -> str:
        return name if name in ("lm_head.weight", "score.weight") else super().canonical(name)
