"""JoeyNMT, driven as its own trainer drives it: `Batch`, `Model(return_type="loss")`, its loss with smoothing.

Its 2.3.0 pins libraries that are years old, but runs beside a new torch once those pins are set aside. Nothing in it is
patched. What is left out is its own loop around the step, which also moves each loss to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from regard.bench.peers import Step, need, quiet, stepper
from regard.bench.workload import DROPOUT, SMOOTHING, Padded, Shape, pad
from regard.data.tokens import BOS, EOS

# JoeyNMT's own order of marks; the last two are Regard's too.
UNKNOWN, FILL = 0, 1
MARKS = ("<unk>", "<pad>", "<s>", "</s>")


def make_joey(shape: Shape, dropout: float = DROPOUT) -> Any:
    """One of its two kinds of model, built from a config of this shape."""
    build = need("joeynmt.model").build_model
    words = vocabulary(shape.vocabulary)
    with quiet():
        model = build(settings(shape, dropout), words, words)
    model.loss_function = ("crossentropy", SMOOTHING)
    for module in model.modules():
        if type(module).__name__ == "MultiHeadedAttention":
            module.dropout.p = 0.0  # the others drop nothing out of attention, and it would cost time
    return model


def vocabulary(size: int) -> Any:
    """Its vocabulary, of words that are called by their numbers."""
    marks = SimpleNamespace(
        unk_token=MARKS[UNKNOWN], pad_token=MARKS[FILL], bos_token=MARKS[BOS], eos_token=MARKS[EOS], sep_token=None,
        unk_id=UNKNOWN, pad_id=FILL, bos_id=BOS, eos_id=EOS, sep_id=None, lang_tags=[],
    )  # fmt: skip
    made = need("joeynmt.vocabulary").Vocabulary([], marks)
    words = [f"w{i}" for i in range(len(MARKS), size)]
    # Its `add_tokens` looks through the whole list for each word, which takes many seconds for 32,000.
    made._itos.extend(words)
    made._stoi.update({word: i for i, word in enumerate(words, len(MARKS))})
    return made


def settings(shape: Shape, dropout: float = DROPOUT) -> dict[str, Any]:
    """Its [model] section."""
    d, tied = shape.d_model, {"tied_embeddings": True, "tied_softmax": True}
    embeddings = {"embedding_dim": d, "scale": True, "dropout": dropout}
    both: dict[str, Any] = {"num_layers": shape.layers, "dropout": dropout, "embeddings": embeddings}
    if shape.kind == "lstm":
        lstm = {"type": "recurrent", "rnn_type": "lstm", **both}
        decoder = {"attention": "luong", "input_feeding": True, "init_hidden": "bridge", "hidden_dropout": dropout}
        return {
            "encoder": {**lstm, "hidden_size": d // 2, "bidirectional": True},
            "decoder": {**lstm, "hidden_size": d, **decoder},
            **tied,
        }
    part = {"type": "transformer", "num_heads": shape.heads, "hidden_size": d, "ff_size": shape.d_ff, **both}
    return {"encoder": {**part, "layer_norm": "post"}, "decoder": {**part, "layer_norm": "post"}, **tied}


def joey_step(shape: Shape, device: torch.device, precision: str) -> Step:
    """A step of training, over batches of `joey_batch`."""
    model = make_joey(shape).to(device)
    assert isinstance(model, nn.Module), "a model of JoeyNMT is a module"

    def loss_of(batch: Any) -> Tensor:
        loss = model(return_type="loss", **vars(batch))[0]
        return batch.normalize(loss, "tokens")

    return stepper(model, loss_of, device, precision)


def joey_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: torch.device) -> Any:
    """Its own batch, sorted by source length as its trainer sorts it."""
    rows: Padded = pad(sources, targets, FILL)
    whole = torch.cat((rows.inputs[:, :1], rows.outputs), dim=1)
    batch = need("joeynmt.batch").Batch(
        src=rows.source, src_length=rows.source_mask.sum(1), src_prompt_mask=None, trg=whole, trg_prompt_mask=None,
        indices=torch.arange(len(whole)), device=device, pad_index=FILL, eos_index=EOS,
    )  # fmt: skip
    batch.sort_by_src_length()
    return batch
