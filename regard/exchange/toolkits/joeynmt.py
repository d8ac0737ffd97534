"""Transformers of JoeyNMT (Kreutzer et al. 2019): `config.yaml`, a `.ckpt` and lists of tokens in one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.config import read_yaml
from regard.data.tokenizers.published import Published
from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface.family import Move
from regard.exchange.toolkits.toolkit import Names, Toolkit, marks_of, pieces, read_lines, read_torch, words

ENCODER = Names(
    "src_src_att", "", "q_layer", "k_layer", "v_layer", "output_layer", "layer_norm", "", "feed_forward.layer_norm",
    "feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3",
)  # fmt: skip
DECODER = Names(
    "trg_trg_att", "src_trg_att", "q_layer", "k_layer", "v_layer", "output_layer", "x_layer_norm", "dec_layer_norm",
    "feed_forward.layer_norm", "feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3",
)  # fmt: skip
LONGEST = 5000  # positions that it knows sines of


class JoeyNMT(Toolkit):
    """An encoder and a decoder; `config` is the section `model` of its config.yaml."""

    program, file = "JoeyNMT", "config.yaml"
    tables, output = ("src_embed.lut.weight", "trg_embed.lut.weight"), "decoder.output_layer.weight"
    ties = ("tied_embeddings", "tied_softmax")
    architectures = ("Transformer",)
    ignored = r"(encoder|decoder)\.pe\.pe"

    def check(self) -> None:
        for side in ("encoder", "decoder"):
            part = self.config.get(side, {})
            for name, usual, allowed in (
                ("type", "recurrent" if side == "encoder" else "transformer", ("transformer",)),
                ("layer_norm", None, ("pre", "post")), ("alpha", 1.0, (1.0,)), ("activation", "relu", ("relu", "gelu")),
            ):  # fmt: skip
                if part.get(name, usual) not in allowed:
                    raise ConfigError(
                        f"{self.file} has model.{side}.{name}: {part.get(name, usual)!r}; Regard reads models in which "
                        f"it is {' or '.join(map(repr, allowed))}"
                    )
        widths = {self.config[side]["hidden_size"] for side in ("encoder", "decoder")}
        scales = {bool(self.config[side]["embeddings"].get("scale", False)) for side in ("encoder", "decoder")}
        if len(widths) > 1 or len(scales) > 1:
            raise ConfigError(
                f"{self.file} has another hidden_size or embeddings.scale for the encoder than the decoder"
            )

    def sections(self) -> dict[str, Any]:
        encoder = self.config["encoder"]
        return {
            "model": {
                "d_model": encoder["hidden_size"], "dropout": encoder.get("dropout", 0.1), "tie_output": self.tied,
                "output_bias": False, "share_embeddings": self.shared, "max_positions": LONGEST,
                "scale_embeddings": bool(encoder["embeddings"].get("scale", False)),
                "encoder": self.part("encoder"), "decoder": self.part("decoder"),
            }
        }  # fmt: skip

    def part(self, side: str) -> dict[str, Any]:
        part = self.config[side]
        return {
            "kind": "transformer", "layers": part["num_layers"], "heads": part["num_heads"], "d_ff": part["ff_size"],
            "norm": part["layer_norm"], "activation": part.get("activation", "relu"), "norm_epsilon": 1e-6,
            "positions": "sinusoidal",
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from self.table_moves()
        for side, names in (("encoder", ENCODER), ("decoder", DECODER)):
            for i in range(self.config[side]["num_layers"]):
                yield from self.block(f"{side}.layers.{i}", f"{side}.blocks.{i}", names, cross=side == "decoder")
            if self.config[side]["layer_norm"] == "pre":
                yield from self.product([f"{side}.layer_norm"], f"{side}.final")


def read(folder: Path) -> JoeyNMT:
    """The model in a folder of JoeyNMT: the best checkpoint, or the only one."""
    found = read_yaml(folder / "config.yaml")
    checkpoints = sorted(folder.glob("*.ckpt"))
    if not checkpoints:
        raise ModelError(f"no checkpoint in {folder}; there should be a best.ckpt beside config.yaml")
    best = folder / "best.ckpt"
    state = read_torch(best if best.exists() else checkpoints[-1], "JoeyNMT").get("model_state")
    if not isinstance(state, dict):
        raise ModelError(f"{checkpoints[-1]} holds no model_state, so it is no checkpoint of JoeyNMT")
    data = found.get("data", {})
    tokenizers = {side: _tokens(folder, data, there) for side, there in (("source", "src"), ("target", "trg"))}
    return JoeyNMT(found.get("model", {}), state, tokenizers)


def _tokens(folder: Path, data: Mapping[str, Any], side: str) -> Published:
    """The tokenizer of a side."""
    own, special = data.get(side, {}), data.get("special_symbols", {})
    settings, level = own.get("tokenizer_cfg", {}), own.get("level", "word")
    named = [folder / f"{side}_vocab.txt", *([folder / Path(own["voc_file"]).name] if own.get("voc_file") else [])]
    tokens = read_lines(next((path for path in named if path.exists()), named[0]))
    names = (special.get(f"{role}_token", usual) for role, usual in
             (("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>"), ("unk", "<unk>")))  # fmt: skip
    begin, end, pad, unknown = names
    marks = marks_of(tokens, begin, end, pad, unknown, first=begin)
    if settings.get("pretokenizer", "none") != "none":
        raise ConfigError(
            f"config.yaml has data.{side}.tokenizer_cfg.pretokenizer: {settings['pretokenizer']!r}, which Regard does "
            "not run; cut texts by it yourself, and take it out there"
        )
    kind = own.get("tokenizer_type", "sentencepiece")
    if level == "bpe" and kind == "sentencepiece" and not own.get("lowercase", False):
        return pieces(tokens, marks, folder / Path(settings.get("model_file", "sp.model")).name)
    if level == "word":
        return words(tokens, marks, lowercase=bool(own.get("lowercase", False)))
    raise ConfigError(
        f"config.yaml has data.{side} with level {level!r}, tokenizer_type {kind!r} and lowercase "
        f"{bool(own.get('lowercase', False))}; Regard reads words, and bpe of sentencepiece in its own case"
    )
