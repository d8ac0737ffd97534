"""Transformers of fairseq (Ott et al. 2019): a checkpoint with its options, and `dict.LANGUAGE.txt` beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizers.published import Published
from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface.bart import block_moves, both
from regard.exchange.huggingface.family import Move
from regard.exchange.toolkits.toolkit import Toolkit, marks_of, pieces, plain, read_lines, words

MARKS = ["<s>", "<pad>", "</s>", "<unk>"]  # before what a dict.txt lists
PAD = MARKS.index("<pad>")
SINES = "embed_positions.sines"
SIDES = ("encoder", "decoder")


class Fairseq(Toolkit):
    """An encoder and a decoder; `config` are the options of the model.

    Its sines have other wavelengths than those of Vaswani et al. 2017 and begin at position 2. So they become a table
    of learned positions, which `training.freeze: [encoder.positions, decoder.positions]` keeps as they are.
    """

    program, file = "fairseq", "the checkpoint"
    tables = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    output = "decoder.output_projection.weight"
    ties = ("share_all_embeddings", "share_decoder_input_output_embed")
    architectures = ("Transformer",)
    ignored = r"(encoder|decoder)\.(version|embed_positions\._float_tensor)"

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizers: Mapping[str, Published]
    ) -> None:
        tensors = dict(tensors)
        for side, most in zip(SIDES, ("max_source_positions", "max_target_positions"), strict=True):
            if f"{side}.embed_positions.weight" not in tensors:
                width = tensors[f"{side}.embed_tokens.weight"].shape[1]
                tensors[f"{side}.{SINES}"] = sines(int(config.get(most) or 1024) + PAD + 1, width)
        super().__init__(config, tensors, tokenizers)

    def check(self) -> None:
        config = self.config
        name = str(config.get("arch") or config.get("_name"))
        if not name.startswith("transformer") or name.startswith("transformer_lm"):
            raise ConfigError(f"the checkpoint is of the architecture {name}; of fairseq Regard reads transformer…")
        for option in (
            "no_token_positional_embeddings", "adaptive_softmax_cutoff", "adaptive_input", "no_cross_attention",
            "cross_self_attention", "no_decoder_final_norm", "encoder_layers_to_keep", "decoder_layers_to_keep",
        ):  # fmt: skip
            if config.get(option):
                self.refuse(option, "Regard has no such Transformer")
        if bool(config.get("encoder_normalize_before")) != bool(config.get("decoder_normalize_before")):
            self.refuse("encoder_normalize_before", "and decoder_normalize_before should be the same")

    @property
    def tied(self) -> bool:
        return self.shared or super().tied

    def positions(self, side: str) -> str:
        """The name of a side's table of positions."""
        learned = f"{side}.embed_positions.weight"
        return learned if learned in self.tensors else f"{side}.{SINES}"

    def sections(self) -> dict[str, Any]:
        config = self.config
        rows = {len(self.tensors[self.positions(side)]) - PAD - 1 for side in SIDES}
        if len(rows) > 1:
            self.refuse("max_source_positions", f"and max_target_positions should be the same, not {sorted(rows)}")
        return {
            "model": {
                "d_model": config["encoder_embed_dim"], "dropout": config.get("dropout", 0.1), "tie_output": self.tied,
                "output_bias": False, "share_embeddings": self.shared, "max_positions": rows.pop(),
                "scale_embeddings": not config.get("no_scale_embedding", False),
                "encoder": self.part("encoder"), "decoder": self.part("decoder"),
            }
        }  # fmt: skip

    def part(self, side: str) -> dict[str, Any]:
        config = self.config
        return {
            "kind": "transformer", "layers": config[f"{side}_layers"], "heads": config[f"{side}_attention_heads"],
            "d_ff": config[f"{side}_ffn_embed_dim"],
            "norm": "pre" if config.get(f"{side}_normalize_before") else "post",
            "activation": self.activation("activation_fn", "relu"), "norm_epsilon": 1e-5, "positions": "learned",
            "first_position": PAD + 1, "embedding_norm": bool(config.get("layernorm_embedding", False)),
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from self.table_moves()
        for side in SIDES:
            yield Move(f"{side}.positions.table.weight", (self.positions(side),))
            if self.config.get("layernorm_embedding", False):
                yield from both(f"{side}.layernorm_embedding", f"{side}.embedding_norm")
            for i in range(self.config[f"{side}_layers"]):
                yield from block_moves(f"{side}.layers.{i}", f"{side}.blocks.{i}", cross=side == "decoder")
            if self.config.get(f"{side}_normalize_before"):
                yield from both(f"{side}.layer_norm", f"{side}.final")

    def aliases(self) -> dict[str, str]:
        older = {} if self.tied else {"decoder.embed_out": self.output}  # its name before 2020
        return {**super().aliases(), **older}


def sines(rows: int, width: int) -> Tensor:
    """Sines, then cosines, of wavelengths from 2π to 20,000π with both ends, as in tensor2tensor; none of padding."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(rows, dtype=torch.float)[:, None] * rates
    table = torch.cat((angles.sin(), angles.cos()), dim=1)
    table = torch.nn.functional.pad(table, (0, width - 2 * half))
    table[PAD] = 0.0
    return table


def read(checkpoint: Mapping[str, Any], path: Path) -> Fairseq:
    """The model of a checkpoint that was read; the lists of its tokens lie beside it."""
    options = checkpoint.get("cfg") or {}
    model = plain(options.get("model") if options else checkpoint.get("args"))
    task = plain(options.get("task")) if options else model
    languages = [task.get("source_lang"), task.get("target_lang")]
    if None in languages:
        raise ModelError(f"{path} does not say from which language it translates into which (task.source_lang)")
    sides = zip(("source", "target"), languages, strict=True)
    tokenizers = {side: _tokens(path.parent / f"dict.{language}.txt") for side, language in sides}
    return Fairseq(model, checkpoint["model"], tokenizers)


def _tokens(file: Path) -> Published:
    """The tokens of a dict.txt, each with its count behind it; with a SentencePiece model beside it, its pieces."""
    rows = [line.rpartition(" ")[0].removesuffix(" #fairseq:overwrite") for line in read_lines(file)]
    tokens = [*MARKS, *rows]
    marks = marks_of(tokens, "<s>", "</s>", "<pad>", "<unk>", first="</s>")
    for name in ("sentencepiece.bpe.model", "spm.model"):
        if (file.parent / name).exists():
            return pieces(tokens, marks, file.parent / name)
    return words(tokens, marks)
