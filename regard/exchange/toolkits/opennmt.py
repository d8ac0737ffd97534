"""Transformers of OpenNMT-py 3 (Klein et al. 2017): one checkpoint with weights, options and lists of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from regard.data.marks import Frame
from regard.data.tokenizers.published import Published
from regard.errors import ModelError
from regard.exchange.huggingface.family import Move
from regard.exchange.toolkits.toolkit import Names, Toolkit, marks_of, pieces, plain, words

ATTENTION = ("linear_query", "linear_keys", "linear_values", "final_linear")
FEED_FORWARD = ("feed_forward.layer_norm", "feed_forward.w_1", "feed_forward.w_2")
ENCODER = Names("self_attn", "", *ATTENTION, "layer_norm", "", *FEED_FORWARD)
DECODER = Names("self_attn", "context_attn", *ATTENTION, "layer_norm_1", "layer_norm_2", *FEED_FORWARD)
LONGEST = 5000  # positions that it knows sines of
STACKS = {"encoder": ("encoder.transformer", ENCODER), "decoder": ("decoder.transformer_layers", DECODER)}


class OpenNMT(Toolkit):
    """An encoder and a decoder, with norms before their parts; `config` are its options."""

    program, file = "OpenNMT-py", "the checkpoint"
    tables = (
        "encoder.embeddings.make_embedding.emb_luts.0.weight",
        "decoder.embeddings.make_embedding.emb_luts.0.weight",
    )
    architectures = ("Transformer",)
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "encoder_type": ("transformer",), "decoder_type": ("transformer",), "position_encoding": (True,),
        "position_encoding_type": ("SinusoidalInterleaved",), "max_relative_positions": (0,), "num_kv": (0,),
        "parallel_residual": (False,), "layer_norm": ("standard",), "copy_attn": (False,), "lambda_align": (0.0, 0),
        "self_attn_type": ("scaled-dot", "scaled-dot-flash"), "generator_function": ("softmax",), "num_experts": (0,),
        "n_src_feats": (0,), "sliding_window": (0,), "shared_layer_norm": (False,), "model_task": ("seq2seq",),
    }  # fmt: skip
    ignored = r"(encoder|decoder)\.embeddings\.make_embedding\.pe\.pe"

    def sections(self) -> dict[str, Any]:
        config, dropout = self.config, self.config.get("dropout", 0.1)
        return {
            "model": {
                "d_model": config["hidden_size"], "dropout": dropout[0] if isinstance(dropout, list) else dropout,
                "tie_output": self.tied, "share_embeddings": self.shared, "max_positions": LONGEST,
                "encoder": self.part("encoder"), "decoder": self.part("decoder"),
            }
        }  # fmt: skip

    def part(self, side: str) -> dict[str, Any]:
        config = self.config
        return {
            "kind": "transformer", "layers": config["enc_layers" if side == "encoder" else "dec_layers"],
            "heads": config["heads"], "d_ff": config["transformer_ff"], "norm": "pre", "positions": "sinusoidal",
            "activation": self.activation("pos_ffn_activation_fn", "relu"),
            "norm_epsilon": config.get("norm_eps", 1e-6),
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from self.table_moves()
        yield Move("head.linear.bias", ("generator.bias",))
        for side, (theirs, names) in STACKS.items():
            for i in range(self.part(side)["layers"]):
                yield from self.block(f"{theirs}.{i}", f"{side}.blocks.{i}", names, cross=side == "decoder")
            yield from self.product([f"{side}.layer_norm"], f"{side}.final")


def read(checkpoint: Mapping[str, Any], path: Path) -> OpenNMT:
    """The model of a checkpoint that was read; a SentencePiece model that cuts its texts lies beside it."""
    generator = checkpoint.get("generator")
    if not isinstance(generator, dict):
        raise ModelError(
            "the checkpoint has no generator (the output layer), so it holds adapters alone; merge them first"
        )
    tensors = {**checkpoint["model"], **{f"generator.{name}": tensor for name, tensor in generator.items()}}
    lists = plain(checkpoint["vocab"])
    if not all(isinstance(lists.get(side), list) for side in ("src", "tgt")):
        raise ModelError("the checkpoint has no lists of tokens (vocab: src, tgt); one of OpenNMT-py 3 will do")
    options, tokenizers = plain(checkpoint["opt"]), dict[str, Published]()
    for side, there in (("source", "src"), ("target", "tgt")):
        tokens, first = lists[there], lists.get("decoder_start_token", "<s>")
        marks = replace(marks_of(tokens, "<s>", "</s>", "<blank>", "<unk>", first=first), source=Frame())
        model: str = options.get(f"{there}_subword_model") or ""
        cut = bool(model) and "sentencepiece" in (options.get("transforms") or [])
        tokenizers[side] = pieces(tokens, marks, path.parent / Path(model).name) if cut else words(tokens, marks)
    return OpenNMT(options, tensors, tokenizers)
