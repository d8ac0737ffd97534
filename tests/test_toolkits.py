"""Checkpoints of JoeyNMT, fairseq, OpenNMT-py and eole, written here as their trainers do, and computed as they do.

The forward passes are written out once more as the toolkits define them: names of tensors, places of norms, sines.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import save_file
from torch import Tensor

import regard
from regard.errors import ConfigError, ModelError
from tests.conftest import FULL

pytest.importorskip("tokenizers")

D, HEADS, LAYERS, INNER, WORDS = 8, 2, 2, 12, [f"w{i}" for i in range(12)]
SOURCE, TARGET = [6, 7, 8, 9], [10, 11, 12]  # ids of words in all of them


@dataclass
class Toy:
    """A network by its tensors, and how its toolkit runs it."""

    tensors: dict[str, Tensor]
    embeddings: tuple[str, str]
    output: tuple[str, str | None]
    stacks: tuple[str, str]
    attention: tuple[str, str, str, str]  # queries, keys, values, output
    attentions: tuple[str, str, str]  # of the encoder; of the decoder, to itself and to the source
    norms: tuple[tuple[str, str], tuple[str, str, str]]
    feed_forward: tuple[str, str]
    pre: bool
    epsilon: float
    sines: str = "interleaved"  # or fairseq, or none: then queries and keys are turned
    gate: str | None = None  # of the feed-forward part, whose activation is then SiLU; and norms are RMSNorms

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def normed(self, x: Tensor, name: str) -> Tensor:
        if self.gate is not None:
            return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.tensors[f"{name}.weight"]
        return F.layer_norm(x, (D,), self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], self.epsilon)

    def turned(self, x: Tensor) -> Tensor:
        """Pairs of numbers as complex ones, times `e^{i t / 10000^{2j/d}}`."""
        rates = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.double) / x.shape[-1])
        angle = torch.arange(x.shape[1], dtype=torch.double)[:, None] * rates
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def embedded(self, ids: list[int], table: str) -> Tensor:
        if self.sines == "none":
            return self.tensors[table][ids]
        first, half = (2, D // 2) if self.sines == "fairseq" else (0, D // 2)
        position = torch.arange(first, first + len(ids), dtype=torch.double)[:, None]
        span = half - 1 if self.sines == "fairseq" else half
        angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.double) / span)
        both = (angle.sin(), angle.cos())
        table_of = torch.cat(both, 1) if self.sines == "fairseq" else torch.stack(both, 2).flatten(1)
        return self.tensors[table][ids] * math.sqrt(D) + table_of

    def attend(self, x: Tensor, memory: Tensor, name: str, *, causal: bool = False) -> Tensor:
        query, key, value, output = (f"{name}.{part}" for part in self.attention)
        q, k, v = (
            self.linear(y, part).unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for y, part in ((x, query), (memory, key), (memory, value))
        )
        if self.sines == "none" and x is memory:
            q, k = self.turned(q), self.turned(k)
        scores = q @ k.mT / math.sqrt(D / HEADS)
        if causal:
            scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        return self.linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), output)

    def around(self, x: Tensor, norm: str, f: Any) -> Tensor:
        return x + f(self.normed(x, norm)) if self.pre else self.normed(x + f(x), norm)

    def block(self, x: Tensor, memory: Tensor | None, name: str) -> Tensor:
        encoder, own, cross = (f"{name}.{part}" for part in self.attentions)
        inner, outer = (f"{name}.{part}" for part in self.feed_forward)
        norms = [f"{name}.{part}" for part in self.norms[memory is not None]]
        if memory is None:
            x = self.around(x, norms[0], lambda y: self.attend(y, y, encoder))
        else:
            x = self.around(x, norms[0], lambda y: self.attend(y, y, own, causal=True))
            x = self.around(x, norms[1], lambda y: self.attend(y, memory, cross))
        if self.gate is not None:
            gate = f"{name}.{self.gate}"
            return self.around(
                x, norms[-1], lambda y: self.linear(F.silu(self.linear(y, inner)) * self.linear(y, gate), outer)
            )
        return self.around(x, norms[-1], lambda y: self.linear(self.linear(y, inner).relu(), outer))

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        x, y = self.embedded(source, self.embeddings[0]), self.embedded(target, self.embeddings[1])
        for i in range(LAYERS):
            x = self.block(x, None, f"{self.stacks[0]}.{i}")
        x = self.normed(x, "encoder.layer_norm") if self.pre else x
        for i in range(LAYERS):
            y = self.block(y, x, f"{self.stacks[1]}.{i}")
        y = self.normed(y, "decoder.layer_norm") if self.pre else y
        bias = None if self.output[1] is None else self.tensors[self.output[1]]
        return F.linear(y, self.tensors[self.output[0]], bias)

    def fill(self, *, biased: bool = True) -> None:
        """Draw all tensors."""
        draw = torch.Generator().manual_seed(1)

        def product(name: str, rows: int, columns: int) -> None:
            self.tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=draw) / math.sqrt(columns)
            if biased:
                self.tensors[f"{name}.bias"] = torch.randn(rows, generator=draw) / 4

        def norm(name: str) -> None:
            self.tensors[f"{name}.weight"] = 1 + torch.randn(D, generator=draw) / 4
            if self.gate is None:
                self.tensors[f"{name}.bias"] = torch.randn(D, generator=draw) / 4

        for number, stack in enumerate(self.stacks):
            for i in range(LAYERS):
                for part in self.attentions[:1] if number == 0 else self.attentions[1:]:
                    for one in self.attention:
                        product(f"{stack}.{i}.{part}.{one}", D, D)
                for part in self.norms[number]:
                    norm(f"{stack}.{i}.{part}")
                product(f"{stack}.{i}.{self.feed_forward[0]}", INNER, D)
                product(f"{stack}.{i}.{self.feed_forward[1]}", D, INNER)
                if self.gate is not None:
                    product(f"{stack}.{i}.{self.gate}", INNER, D)
        for side in ("encoder", "decoder") if self.pre else ():
            norm(f"{side}.layer_norm")
        for name in dict.fromkeys((*self.embeddings, self.output[0])):
            self.tensors[name] = torch.randn(len(WORDS) + 4, D, generator=draw)
        if self.output[1] is not None:
            self.tensors[self.output[1]] = torch.randn(len(WORDS) + 4, generator=draw)


def joeynmt(folder: Path, **changes: Any) -> tuple[Toy, Path]:
    pre, tied = changes.pop("pre", False), changes.pop("tied", False)
    tables = ("src_embed.lut.weight", "src_embed.lut.weight" if tied else "trg_embed.lut.weight")
    toy = Toy(
        {}, tables, (tables[1] if tied else "decoder.output_layer.weight", None), ("encoder.layers", "decoder.layers"),
        ("q_layer", "k_layer", "v_layer", "output_layer"), ("src_src_att", "trg_trg_att", "src_trg_att"),
        (("layer_norm", "feed_forward.layer_norm"), ("x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm")),
        ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3"), pre, 1e-6,
    )  # fmt: skip
    toy.fill()
    state = {**toy.tensors, "encoder.pe.pe": torch.zeros(1, 5000, D), "decoder.pe.pe": torch.zeros(1, 5000, D)}
    if tied:
        state |= dict.fromkeys(("trg_embed.lut.weight", "decoder.output_layer.weight"), state[tables[0]])
    torch.save({"model_state": state, "optimizer_state": {}, "stats_state": {"steps": 1}}, folder / "best.ckpt")
    part = {
        "type": "transformer", "num_layers": LAYERS, "num_heads": HEADS, "hidden_size": D, "ff_size": INNER,
        "layer_norm": "pre" if pre else "post", "embeddings": {"embedding_dim": D, "scale": True}, **changes,
    }  # fmt: skip
    sides = {side: {"level": "word", "lowercase": False} for side in ("src", "trg")}
    config = {"data": sides, "model": {"encoder": part, "decoder": part, "tied_embeddings": tied, "tied_softmax": tied}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for side in sides:
        (folder / f"{side}_vocab.txt").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *WORDS]) + "\n")
    return toy, folder


def fairseq(folder: Path, **changes: Any) -> tuple[Toy, Path]:
    pre, tied, old = changes.pop("pre", False), changes.pop("tied", False), changes.pop("old", False)
    tables = ("encoder.embed_tokens.weight", f"{'encoder' if tied else 'decoder'}.embed_tokens.weight")
    toy = Toy(
        {}, tables, (tables[1] if tied else "decoder.output_projection.weight", None),
        ("encoder.layers", "decoder.layers"), ("q_proj", "k_proj", "v_proj", "out_proj"),
        ("self_attn", "self_attn", "encoder_attn"),
        (("self_attn_layer_norm", "final_layer_norm"),
         ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")),
        ("fc1", "fc2"), pre, 1e-5, "fairseq",
    )  # fmt: skip
    toy.fill()
    state = {**toy.tensors, "encoder.version": torch.ones(1), "encoder.embed_positions._float_tensor": torch.ones(1)}
    if tied:
        state |= {f"decoder.{name}.weight": state[tables[0]] for name in ("embed_tokens", "output_projection")}
    options = {
        "arch": "transformer_iwslt_de_en", "source_lang": "en", "target_lang": "de", "encoder_embed_dim": D,
        "max_source_positions": 32, "max_target_positions": 32, "share_all_embeddings": tied, "dropout": 0.3,
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        sizes = {"layers": LAYERS, "attention_heads": HEADS, "ffn_embed_dim": INNER, "normalize_before": pre}
        options |= {f"{side}_{name}": value for name, value in sizes.items()}
    args = argparse.Namespace(**options, **changes)
    task = {"source_lang": "en", "target_lang": "de"}
    facts = {"args": args} if old else {"args": None, "cfg": {"model": args, "task": task}}
    torch.save({**facts, "model": state, "extra_state": {"metrics": {}}}, folder / "checkpoint_best.pt")
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} {9}\n" for word in WORDS))
    return toy, folder / "checkpoint_best.pt"


def opennmt(folder: Path, **changes: Any) -> tuple[Toy, Path]:
    tied, biased = changes.pop("tied", False), changes.pop("biased", False)
    table = "{}.embeddings.make_embedding.emb_luts.0.weight"
    tables = (table.format("encoder"), table.format("encoder" if tied else "decoder"))
    toy = Toy(
        {}, tables, (tables[1] if tied else "generator.weight", "generator.bias"),
        ("encoder.transformer", "decoder.transformer_layers"),
        ("linear_query", "linear_keys", "linear_values", "final_linear"), ("self_attn", "self_attn", "context_attn"),
        (("layer_norm", "feed_forward.layer_norm"), ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm")),
        ("feed_forward.w_1", "feed_forward.w_2"), True, 1e-6,
    )  # fmt: skip
    toy.fill(biased=biased)
    state = {name: tensor for name, tensor in toy.tensors.items() if not name.startswith("generator.")}
    state |= {"encoder.embeddings.make_embedding.pe.pe": torch.zeros(5000, 1, D)}
    if tied:
        state[table.format("decoder")] = state[tables[0]]
    generator = {"weight": toy.tensors[toy.output[0]], "bias": toy.tensors["generator.bias"]}
    options = {
        "encoder_type": "transformer", "decoder_type": "transformer", "position_encoding": True, "hidden_size": D,
        "enc_layers": LAYERS, "dec_layers": LAYERS, "heads": HEADS, "transformer_ff": INNER, "dropout": [0.1],
        "max_relative_positions": 0, "share_embeddings": tied, "share_decoder_embeddings": tied, "norm_eps": 1e-6,
        **changes,
    }  # fmt: skip
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *WORDS]
    vocab = {"src": tokens, "tgt": tokens, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    facts = {"vocab": vocab, "opt": argparse.Namespace(**options), "optim": {}}
    torch.save({"model": state, "generator": generator, **facts}, folder / "model_step_1.pt")
    return toy, folder / "model_step_1.pt"


def eole(folder: Path, **changes: Any) -> tuple[Toy, Path]:
    tied, biased, modern = (changes.pop(name, False) for name in ("tied", "biased", "modern"))
    tables = ("src_emb.embeddings.weight", f"{'src' if tied else 'tgt'}_emb.embeddings.weight")
    toy = Toy(
        {}, tables, (tables[1] if tied else "generator.weight", "generator.bias"),
        ("encoder.transformer_layers", "decoder.transformer_layers"),
        ("linear_query", "linear_keys", "linear_values", "final_linear"), ("self_attn", "self_attn", "context_attn"),
        (("input_layernorm", "post_attention_layernorm"),
         ("input_layernorm", "precontext_layernorm", "post_attention_layernorm")),
        ("mlp.gate_up_proj", "mlp.down_proj"), True, 1e-5, *(("none", "mlp.up_proj") if modern else ()),
    )  # fmt: skip
    toy.fill(biased=biased)
    names = sorted(toy.tensors)
    for number, shard in enumerate((names[::2], names[1::2])):
        save_file({name: toy.tensors[name] for name in shard}, folder / f"model.{number:02}.safetensors")
    model = {
        "architecture": "transformer", "hidden_size": D, "layers": LAYERS, "heads": HEADS, "transformer_ff": INNER,
        "share_embeddings": tied, "share_decoder_embeddings": tied, "encoder": {"encoder_type": "transformer"},
        "decoder": {"decoder_type": "transformer", "tgt_word_vec_size": D}, "embeddings": {"word_vec_size": D},
        **({"add_qkvbias": True, "add_ffnbias": True} if biased else {}),
    }  # fmt: skip
    if modern:
        model |= {"mlp_activation_fn": "gated-silu", "layer_norm": "rms"}
        model["embeddings"] = {"word_vec_size": D, "position_encoding_type": "Rotary"}
    options = {"model": {**model, **changes.pop("model", {})}, "training": {"dropout": [0.3]}, **changes}
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *WORDS]
    specials = {"bos_token": "<s>", "pad_token": "<blank>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocab = {"src": tokens, "tgt": tokens, "decoder_start_token": "<s>", "specials": specials}
    (folder / "config.json").write_text(json.dumps(options))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    return toy, folder


# Each with the marks around a source and before a target.
CASES = [
    (joeynmt, {}, [3], [2]), (joeynmt, {"pre": True, "tied": True}, [3], [2]), (fairseq, {"old": True}, [2], [2]),
    (fairseq, {"pre": True, "tied": True}, [2], [2]), (opennmt, {}, [], [2]),
    (opennmt, {"tied": True, "biased": True}, [], [2]), (eole, {}, [], [2]), (eole, {"modern": True}, [], [2]),
    (eole, {"tied": True, "biased": True}, [], [2]),
]  # fmt: skip


SOME = CASES if FULL else [CASES[i] for i in (1, 2, 4, 7, 8)]


@pytest.mark.parametrize(("make", "changes", "after", "first"), SOME, ids=[case[0].__name__ for case in SOME])
def test_a_checkpoint_is_imported_and_computed_as_by_its_toolkit(
    tmp_path: Path, make: Any, changes: dict[str, Any], after: list[int], first: list[int]
) -> None:
    toy, place = make(tmp_path, **dict(changes))
    system = regard.import_model(place, tmp_path / "imported")
    words = " ".join(WORDS[i - 4] for i in SOURCE)
    items = system.task.source.encode_many([words])
    assert items == [SOURCE]
    assert system.task.source.pack(items).values.tolist() == [*SOURCE, *after]
    batch = system.task.batch(items, [TARGET])
    assert batch.inputs.values.tolist() == [*first, *TARGET]
    toy.tensors = {name: tensor.double() for name, tensor in toy.tensors.items()}
    with torch.no_grad():
        found = system.model.double().eval()(batch.source, batch.inputs).values
    torch.testing.assert_close(found, toy.logits([*SOURCE, *after], [*first, *TARGET]), rtol=1e-5, atol=1e-5)
    assert system.task.target.decode(TARGET) == " ".join(WORDS[i - 4] for i in TARGET)
    assert len(regard.load(tmp_path / "imported", device="cpu").generate([words])) == 1


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (joeynmt, {"type": "recurrent"}, r"model.encoder.type: 'recurrent'; Regard reads models in which it is"),
        (joeynmt, {"alpha": 0.5}, r"model.encoder.alpha: 0.5"),
        (fairseq, {"adaptive_softmax_cutoff": "10"}, r"adaptive_softmax_cutoff: '10'; Regard has no such"),
        (fairseq, {"activation_fn": "tanh"}, r"activation_fn: 'tanh'; Regard has it only as relu or gelu"),
        (opennmt, {"max_relative_positions": 20}, r"max_relative_positions: 20; Regard has it only as 0"),
        (eole, {"model": {"encoder": None}}, r"model.encoder: None; Regard reads encoders with decoders"),
        (eole, {"model": {"heads_kv": 1}}, r"model.encoder.heads_kv: 1; Regard reads models in which it is 2"),
        (eole, {"model": {"decoder": {"decoder_type": "rnn"}}}, r"model.decoder.decoder_type: 'rnn'"),
        (eole, {"model": {"embeddings": {"position_encoding_type": "Alibi"}}}, r"position_encoding_type: 'Alibi'"),
        (eole, {"model": {"embeddings": {"position_encoding_type": None}}}, r"position_encoding_type: None; Regard"),
        (eole, {"model": {"max_relative_positions": -1}}, r"max_relative_positions: -1; Regard"),
        (eole, {"model": {"pos_ffn_activation_fn": "tanh"}}, r"model.encoder.mlp_activation_fn: 'tanh'"),
        (eole, {"modern": True, "model": {"rope_config": {"rotary_interleave": False}}}, r"rotary_interleave: False"),
        (eole, {"modern": True, "biased": True}, r"add_qkvbias: True; Regard reads models in which it is False"),
        (eole, {"transforms": ["onmt_tokenize"]}, r"transforms: 'onmt_tokenize', which Regard does not run"),
    ],
)  # fmt: skip
def test_what_would_be_computed_otherwise_is_refused(
    tmp_path: Path, make: Any, changes: dict[str, Any], message: str
) -> None:
    _, place = make(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        regard.import_model(place, tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


class Runs:
    """What would write a file, were it unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    torch.save({"model": {}, "cfg": Runs(str(tmp_path / "ran"))}, tmp_path / "bad.pt")
    with pytest.raises(ModelError, match="cannot be read without running what is in it") as error:
        regard.import_model(tmp_path / "bad.pt", tmp_path / "imported")
    assert "torch.save its weights and options alone" in str(error.value)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Runs(str(tmp_path / "ran"))))
    with pytest.raises(ModelError, match="cannot be read"):
        regard.import_model(tmp_path / "plain.pt", tmp_path / "imported")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_checkpoint_or_not_whole_is_said(tmp_path: Path) -> None:
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(ModelError, match=r"a checkpoint of no toolkit known here.* this one has weights"):
        regard.import_model(tmp_path / "other.pt", tmp_path / "imported")
    _, place = fairseq(tmp_path)
    (tmp_path / "dict.de.txt").unlink()
    with pytest.raises(ModelError, match=r"no list of tokens .*dict.de.txt; put it there"):
        regard.import_model(place, tmp_path / "imported")
    (tmp_path / "dict.de.txt").write_text("wo@@ 3\nrd 2\nwo@@ 1\n")
    with pytest.raises(ModelError, match="has 'wo@@' twice"):
        regard.import_model(place, tmp_path / "imported")


def test_pieces_of_words_are_joined_again(tmp_path: Path) -> None:
    _, place = fairseq(tmp_path)
    pieces = ["wo@@", "rd", *WORDS[2:]]
    (tmp_path / "dict.de.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    system = regard.import_model(place, tmp_path / "imported")
    assert system.task.target.decode([4, 5, 6]) == "word w2"


def test_a_file_out_of_a_folder_and_one_that_is_cut_off_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config.json is one file of a model; give the folder"):
        regard.import_model(tmp_path / "config.json", tmp_path / "here")
    (tmp_path / "a.pt").write_bytes(b"{")
    with pytest.raises(ModelError) as told:
        regard.import_model(tmp_path / "a.pt", tmp_path / "here")
    assert "weights_only" not in str(told.value), "nobody is told to run it"
