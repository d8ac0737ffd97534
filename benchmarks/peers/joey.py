"""JoeyNMT, driven as its own trainer drives it: `Batch`, `Model(return_type="loss")`, its loss with smoothing.

Its 2.3.0 pins libraries that are years old, but runs beside a new torch once those pins are set aside. Nothing in it is
patched. What is left out is its own loop around the step, which also moves each loss to Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.peers.base import Batches, Load, Peer, Step, need, quiet, stepper
from benchmarks.workload import DROPOUT, SMOOTHING, Shape, Tokens, pad
from regard.data.marks import BOS, EOS

UNKNOWN, FILL = 0, 1  # JoeyNMT's own; <s> and </s> have Regard's ids in it
SPECIAL = ("<unk>", "<pad>", "<s>", "</s>")


@dataclass(frozen=True)
class Joey(Peer):
    """Its Transformer and its attentive LSTM."""

    note: str = (
        "Model(return_type='loss') with its own loss and batch, unpatched; AdamW and clipping are torch's; its "
        "trainer's loop around the step is left out"
    )

    def training(self, load: Load) -> tuple[Batches, Step]:
        model = make_joey(load.shape).to(load.device)

        def batch(sources: Tokens, targets: Tokens) -> Any:
            """Its own batch, sorted by source length as its trainer sorts it."""
            rows = pad(sources, targets, FILL)
            whole = torch.cat((rows.inputs[:, :1], rows.outputs), dim=1)
            made = need("joeynmt.batch").Batch(
                src=rows.source, src_length=rows.source_mask.sum(1), src_prompt_mask=None, trg=whole, pad_index=FILL,
                trg_prompt_mask=None, indices=torch.arange(len(whole)), device=load.device, eos_index=EOS,
            )  # fmt: skip
            made.sort_by_src_length()
            return made

        def loss_of(batch: Any) -> Tensor:
            return batch.normalize(model(return_type="loss", **vars(batch))[0], "tokens")

        return batch, stepper(model, loss_of, load)

    def start_up(self, case: str, shape: Shape, folder: Path) -> list[str]:
        need("joeynmt.prediction")
        if case == "import":
            return ["-c", "import joeynmt.model"]
        if case == "--help":
            return ["-m", "joeynmt", "--help"]
        save(shape, folder)
        return ["-m", "joeynmt", "translate", str(folder / "config.yaml")]


def make_joey(shape: Shape, dropout: float = DROPOUT) -> Any:
    """One of its two kinds of model, built from a config of this shape."""
    build, words = need("joeynmt.model").build_model, vocabulary(shape.vocabulary)
    with quiet():
        model = build(settings(shape, dropout), words, words)
    model.loss_function = ("crossentropy", SMOOTHING)
    for module in model.modules():
        if type(module).__name__ == "MultiHeadedAttention":
            module.dropout.p = 0.0  # the others have no dropout in attention, and it would cost time
    return model


def vocabulary(size: int) -> Any:
    """Its vocabulary, of words that are called by their numbers."""
    special = SimpleNamespace(
        unk_token=SPECIAL[UNKNOWN], pad_token=SPECIAL[FILL], bos_token=SPECIAL[BOS], eos_token=SPECIAL[EOS],
        sep_token=None, unk_id=UNKNOWN, pad_id=FILL, bos_id=BOS, eos_id=EOS, sep_id=None, lang_tags=[],
    )  # fmt: skip
    made = need("joeynmt.vocabulary").Vocabulary([], special)
    words = [f"w{i}" for i in range(len(SPECIAL), size)]
    # Its `add_tokens` looks through the whole list for each word, which takes many seconds for 32,000.
    made._itos.extend(words)
    made._stoi.update({word: i for i, word in enumerate(words, len(SPECIAL))})
    return made


def settings(shape: Shape, dropout: float = DROPOUT) -> dict[str, Any]:
    """Its [model] section."""
    d, embeddings = shape.d_model, {"embedding_dim": shape.d_model, "scale": True, "dropout": dropout}
    both: dict[str, Any] = {"num_layers": shape.layers, "dropout": dropout, "embeddings": embeddings}
    if shape.kind == "lstm":
        lstm = {"type": "recurrent", "rnn_type": "lstm", **both}
        encoder = {**lstm, "hidden_size": d // 2, "bidirectional": True}
        decoder = {**lstm, "hidden_size": d, "attention": "luong", "input_feeding": True, "init_hidden": "bridge",
                   "hidden_dropout": dropout}  # fmt: skip
    else:
        part = {"type": "transformer", "num_heads": shape.heads, "hidden_size": d, "ff_size": shape.d_ff, **both}
        encoder = decoder = {**part, "layer_norm": "post"}
    return {"encoder": encoder, "decoder": decoder, "tied_embeddings": True, "tied_softmax": True}


def save(shape: Shape, folder: Path) -> None:
    """Write a model folder as its trainer leaves one."""
    folder.mkdir()
    torch.save({"model_state": make_joey(shape).state_dict()}, folder / "best.ckpt")
    vocabulary(shape.vocabulary).to_file(folder / "words.txt")
    side = {"level": "word", "voc_file": str(folder / "words.txt"), "max_length": 256}
    config = {
        "name": "small", "model_dir": str(folder), "use_cuda": False,
        "data": {"dataset_type": "plain", "test": "none", "src": {"lang": "a", **side}, "trg": {"lang": "b", **side}},
        "testing": {"load_model": str(folder / "best.ckpt"), "beam_size": 1, "max_output_length": 24},
        "training": {"batch_size": 1},
        "model": settings(shape),
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
