"""Transformers of eole, which goes on from OpenNMT-py: `config.json`, `vocab.json` and `model.00.safetensors` in one
folder, as its trainer leaves them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.data.marks import Frame
from regard.data.tokenizers.published import Published
from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface.family import Move
from regard.exchange.toolkits.toolkit import ZEROS, Names, Toolkit, marks_of, pieces, words
from regard.models.published import read_published

SHARDS = "model.[0-9]*.safetensors"
ATTENTION = ("linear_query", "linear_keys", "linear_values", "final_linear")
FEED_FORWARD = ("post_attention_layernorm", "mlp.gate_up_proj", "mlp.down_proj")
ENCODER = Names("self_attn", "", *ATTENTION, "input_layernorm", "", *FEED_FORWARD)
DECODER = Names("self_attn", "context_attn", *ATTENTION, "input_layernorm", "precontext_layernorm", *FEED_FORWARD)
SIDES = {"encoder": ENCODER, "decoder": DECODER}
LONGEST = 5000  # positions that it knows sines of
POSITIONS = {"SinusoidalInterleaved": "sinusoidal", "Rotary": "rotary"}
NORMS = {"standard": "layer", "standardFP32": "layer", "rms": "rms"}
ACTIVATIONS = ("relu", "gelu", "silu", "gated-gelu", "gated-silu")
MARKS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<blank>", "unk_token": "<unk>"}
# Options of an encoder, a decoder or the model: what they are where config.json does not say, and what will do.
FIXED: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "layer_norm": ("standard", tuple(NORMS)), "sliding_window": (0, (0,)),
    "relative_positions_buckets": (0, (0,)), "shared_layer_norm": (False, (False,)), "ffn_layernorm": (False, (False,)),
    "query_norm": (False, (False,)), "key_norm": (False, (False,)), "parallel_residual": (False, (False,)),
    "attn_scaling": (None, (None,)), "num_experts": (0, (0,)), "add_estimator": (False, (False,)),
    "generator_function": ("softmax", ("softmax",)), "left_pad": (False, (False,)),
    "max_relative_positions": (0, (0,)),  # as its first releases had relative (> 0) and rotary (-1) positions
}  # fmt: skip
ROTARY: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "rotary_interleave": (True, (True,)), "rotary_theta": (10000, (10000,)), "rotary_dim": (0, (0,)),
    "scaling_type": (None, (None,)), "tmax_index": (0, (0,)),
}  # fmt: skip
BIASES = ("add_qkvbias", "add_final_linear_bias", "add_ffnbias")
ALTERING = ("onmt_tokenize", "huggingface_tokenize", "prefix", "suffix", "normalize", "uppercase")  # a text, in use too


class Eole(Toolkit):
    """An encoder and a decoder, with norms before their parts; `config` is the section `model` of config.json.

    It saves the options that were set. What an encoder or a decoder does not say is as the model has it, and else as
    eole has it by default; an epsilon of norms that is not there is 1e-5, as eole reads it today (its first
    releases took 1e-6).
    """

    program, file = "eole", "config.json"
    tables = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight")
    architectures = ("Transformer",)

    def of(self, side: str, name: str, usual: Any) -> Any:
        """An option of the encoder, the decoder or the embeddings; a size of the model that is not set is -1 there."""
        unset = (None, -1) if isinstance(usual, int) and usual > 0 else (None,)
        for section in (self.config.get(side) or {}, self.config):
            if section.get(name) not in unset:
                return section[name]
        return usual

    def check(self) -> None:
        for side in SIDES:
            if not isinstance(self.config.get(side), dict):
                raise ConfigError(
                    f"{self.file} has model.{side}: {self.config.get(side)!r}; Regard reads encoders with decoders"
                )
            kind = f"{side}_type"
            self._allow(f"{side}.{kind}", self.of(side, kind, "transformer"), ("transformer",))
            for name, (usual, allowed) in FIXED.items():
                self._allow(f"{side}.{name}", self.of(side, name, usual), allowed)
            heads = self.of(side, "heads", 8)
            self._allow(f"{side}.heads_kv", self.of(side, "heads_kv", heads), (heads,))
            if self.rotary:
                for name, (usual, allowed) in ROTARY.items():
                    found = (self.of(side, "rope_config", None) or {}).get(name, usual)
                    self._allow(f"{side}.rope_config.{name}", found, allowed)
            self._allow(f"{side}.mlp_activation_fn", self.inner(side), ACTIVATIONS)
            for name in BIASES if self.gated(side) else ():  # a gated feed-forward part has none here
                self._allow(f"{side}.{name}", self.of(side, name, False), (False,))
        self._allow("embeddings.position_encoding_type", self.positions, tuple(POSITIONS))
        if self.of("encoder", "hidden_size", 512) != self.of("decoder", "hidden_size", 512):
            raise ConfigError(f"{self.file} has another hidden_size for the encoder than for the decoder")

    def _allow(self, name: str, found: Any, allowed: Sequence[Any]) -> None:
        if found not in allowed:
            raise ConfigError(
                f"{self.file} has model.{name}: {found!r}; Regard reads models in which it is "
                f"{' or '.join(map(repr, allowed))}"
            )

    @property
    def positions(self) -> str | None:
        name = "position_encoding_type"
        if (self.config.get("embeddings") or {}).get(name, "") is None:
            return None
        return str(self.of("embeddings", name, "SinusoidalInterleaved"))

    @property
    def rotary(self) -> bool:
        return self.positions == "Rotary"

    @property
    def biased(self) -> bool:
        """Whether products inside blocks have biases: all of them here, of zeros where there are none."""
        return any(self.of(side, name, False) for side in SIDES for name in BIASES)

    def inner(self, side: str) -> str:
        """The activation of its feed-forward parts, under its name of today or the first."""
        return str(self.of(side, "mlp_activation_fn", self.of(side, "pos_ffn_activation_fn", "relu")))

    def gated(self, side: str) -> bool:
        return self.inner(side).startswith("gated-")

    def sections(self) -> dict[str, Any]:
        dropout = self.config.get("dropout", 0.1)
        return {
            "model": {
                "d_model": self.of("encoder", "hidden_size", 512), "tie_output": self.tied,
                "dropout": dropout[0] if isinstance(dropout, list) else dropout, "share_embeddings": self.shared,
                "output_bias": "generator.bias" in self.tensors, "max_positions": LONGEST,
                "scale_embeddings": not self.rotary or bool(self.of("embeddings", "normalize", False)),
                "encoder": self.part("encoder"), "decoder": self.part("decoder"),
            }
        }  # fmt: skip

    def part(self, side: str) -> dict[str, Any]:
        return {
            "kind": "transformer", "layers": self.of(side, "layers", 2), "heads": self.of(side, "heads", 8),
            "d_ff": self.of(side, "transformer_ff", 2048), "d_head": self.of(side, "head_dim", None), "norm": "pre",
            "normalize": NORMS[self.of(side, "layer_norm", "standard")], "positions": POSITIONS[str(self.positions)],
            "activation": self.inner(side).removeprefix("gated-"), "gated": self.gated(side),
            "norm_epsilon": self.of(side, "norm_eps", 1e-5), "biases": self.biased,
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from self.table_moves()
        if "generator.bias" in self.tensors:
            yield Move("head.linear.bias", ("generator.bias",))
        for side, names in SIDES.items():
            for i in range(self.of(side, "layers", 2)):
                theirs, ours = f"{side}.transformer_layers.{i}", f"{side}.blocks.{i}"
                yield from self.block(theirs, ours, names, cross=side == "decoder")
                if self.gated(side):
                    yield Move(f"{ours}.feed_forward.gate.weight", (f"{theirs}.mlp.up_proj.weight",))
            yield from self.product([f"{side}.layer_norm"], f"{side}.final")

    def product(self, theirs: Sequence[str], ours: str) -> Iterator[Move]:
        """Zeros stand for a bias where other products have one; an RMSNorm, whose weight is a vector, has none."""
        weight, bias = super().product(theirs, ours)
        yield weight
        matrix = self.tensors.get(f"{theirs[0]}.weight")
        if bias.form is not ZEROS or (self.biased and matrix is not None and matrix.dim() > 1):
            yield bias


def is_folder(folder: Path) -> bool:
    """Whether a folder looks like a checkpoint of eole; transformers has no weights of such names."""
    return (folder / "vocab.json").exists() and any(folder.glob(SHARDS))


def read(folder: Path) -> Eole:
    """The model in a folder of eole; a SentencePiece model that cuts its texts lies there too."""
    options, lists = (_json(folder / name) for name in ("config.json", "vocab.json"))
    tensors = dict[str, Tensor]()
    for shard in sorted(folder.glob(SHARDS)):
        tensors |= read_published(shard)
    model = options.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{folder / 'config.json'} has no section model, so it is none of eole")
    if not all(isinstance(lists.get(side), list) for side in ("src", "tgt")):
        raise ModelError(f"{folder / 'vocab.json'} has no lists of tokens (src, tgt)")
    dropout = (options.get("training") or {}).get("dropout", 0.1)
    tokenizers = {
        side: _tokens(folder, options, lists, there) for side, there in (("source", "src"), ("target", "tgt"))
    }
    return Eole({"dropout": dropout, **model}, tensors, tokenizers)


def _tokens(folder: Path, options: Mapping[str, Any], lists: Mapping[str, Any], side: str) -> Published:
    """The tokenizer of a side."""
    tokens, special = lists[side], {**MARKS, **lists.get("specials", {})}
    names = (special[name] for name in MARKS)
    begin, end, pad, unknown = names
    first = lists.get("decoder_start_token", begin)
    marks = replace(marks_of(tokens, begin, end, pad, unknown, first=first), source=Frame())
    asked = options.get("transforms") or []
    if altering := [name for name in asked if name in ALTERING]:
        raise ConfigError(
            f"config.json has transforms: {altering[0]!r}, which Regard does not run; change texts by it yourself, and "
            "take it out there"
        )
    if "sentencepiece" not in asked:
        return words(tokens, marks)
    settings = (options.get("transforms_configs") or {}).get("sentencepiece") or {}
    model = settings.get(f"{side}_subword_model") or settings.get("src_subword_model") or ""
    return pieces(tokens, marks, folder / Path(model).name)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"no file {path}; a folder of eole has one") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no options by name")
    return found
