"""Marian of Hugging Face transformers, with random weights or with Regard's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.base import Batches, Decode, Job, Load, Peer, Step, need, padded_batches, quiet, smoothed, stepper
from benchmarks.race import UnavailableError
from benchmarks.workload import DROPOUT, LONGEST, Padded, Shape, Tokens, pad
from regard.data.marks import BOS, EOS, PAD
from regard.nn.positions import Sinusoidal
from regard.search.limits import Hypothesis
from regard.tasks.generating import TextGeneration

TRANSLATE = """
import sys, torch
from transformers import MarianMTModel
model = MarianMTModel.from_pretrained(sys.argv[1])
print(model.generate(torch.tensor([[*range(10, 30), 3]]), num_beams=1, max_new_tokens=24))
"""

NAMES = {  # Regard's part of a weight's name, and Marian's
    ".blocks.": ".layers.", "around_attention.norm": "self_attn_layer_norm", "around_self.norm": "self_attn_layer_norm",
    "around_cross.norm": "encoder_attn_layer_norm", "around_feed_forward.norm": "final_layer_norm",
    "self_attention.": "self_attn.", "cross_attention.": "encoder_attn.", ".output.": ".out_proj.",
    "feed_forward.inner": "fc1", "feed_forward.outer": "fc2",
}  # fmt: skip


@dataclass(frozen=True)
class Marian(Peer):
    """`MarianMTModel`: its forward pass under a step of training, and its `generate`."""

    note: str = "MarianMTModel with SDPA"
    compiled: bool = False
    cache: str | None = None  # of `generate`

    def training(self, load: Load) -> tuple[Batches, Step]:
        model = make_marian(load.shape).to(load.device)

        def loss_of(batch: Padded) -> Tensor:
            found = model(
                input_ids=batch.source, attention_mask=batch.source_mask, decoder_input_ids=batch.inputs,
                use_cache=False,
            )  # fmt: skip
            return smoothed(found.logits, batch)

        loss = torch.compile(loss_of, dynamic=True) if self.compiled else loss_of
        return padded_batches(load), stepper(model, loss, load)

    def decoding(self, job: Job) -> tuple[Decode, str]:
        """Outputs of exactly `max_length` tokens: EOS is forbidden until then, and then all but EOS is."""
        assert job.shape is not None, "it takes the weights of a stated shape"
        return self.decoder(with_weights(job.task, job.shape, job.search.precision), job), self.note

    def decoder(self, model: Any, job: Job) -> Decode:
        """What decodes with a model, which others may share."""
        length, device = job.search.max_length, job.task.device
        close = need("transformers").LogitsProcessorList([_Close(length)])

        def decode(sources: Tokens) -> list[Hypothesis]:
            batch = pad(sources, [[] for _ in sources]).each(lambda x: x.to(device))
            with torch.inference_mode():
                found = model.generate(
                    input_ids=batch.source, attention_mask=batch.source_mask, num_beams=job.search.beam,
                    min_new_tokens=length, max_new_tokens=length + 1, do_sample=False, logits_processor=close,
                    cache_implementation=self.cache,
                )  # fmt: skip
            return [Hypothesis(row[1 : 1 + length], math.nan, math.nan) for row in found.tolist()]

        return decode

    def start_up(self, case: str, shape: Shape, folder: Path) -> list[str]:
        need("transformers")
        if case == "import":
            return ["-c", "import transformers"]
        if case == "--help":
            raise UnavailableError("it has no command of its own")
        with quiet():
            make_marian(shape).save_pretrained(folder)
        return ["-c", TRANSLATE, str(folder)]


def make_marian(shape: Shape, dropout: float = DROPOUT) -> Any:
    """A Marian of this shape: post-norm, scaled embeddings shared by both sides and the output, fused attention."""
    if shape.kind != "transformer":
        raise UnavailableError("Marian is a Transformer")
    transformers = need("transformers")
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary, d_model=shape.d_model, encoder_layers=shape.layers, decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads, decoder_attention_heads=shape.heads, encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff, max_position_embeddings=LONGEST + 2, activation_function="relu", dropout=dropout,
        attention_dropout=0.0, activation_dropout=dropout, scale_embedding=True, pad_token_id=PAD, eos_token_id=EOS,
        bos_token_id=BOS, decoder_start_token_id=BOS, forced_eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    with quiet():
        return transformers.MarianMTModel(config)


def with_weights(task: TextGeneration, shape: Shape, precision: str) -> Any:
    """A Marian in use, with the weights of a task of this shape."""
    model = make_marian(shape, dropout=0.0)
    give_weights(task, model, shape)
    return model.to(task.device, getattr(torch, precision)).eval()


class _Close:
    """After `length` tokens only EOS may come, and it keeps its probability, as in Regard's search."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, written: Tensor, scores: Tensor) -> Tensor:
        if written.shape[1] < 1 + self.length:
            return scores
        closed = torch.full_like(scores, -torch.inf)
        closed[:, EOS] = scores[:, EOS]
        return closed


def give_weights(task: TextGeneration, target: Any, shape: Shape) -> None:
    """Write Regard's weights into a Marian, so that both are the same function.

    Marian's table of positions has all sines before all cosines; it is replaced by Regard's, where they alternate.
    """
    ours = task.model.state_dict()
    table = ours["decoder.embedding.table.weight"]
    positions = Sinusoidal(shape.d_model)(torch.arange(LONGEST + 2))
    new = {"model.shared.weight": table, "lm_head.weight": table}
    new["final_logits_bias"] = ours["head.linear.bias"].unsqueeze(0)
    for side in ("encoder", "decoder"):
        new |= {f"model.{side}.embed_tokens.weight": table, f"model.{side}.embed_positions.weight": positions}
    for name, weight in ours.items():
        if ".blocks." in name:
            for mine, theirs in NAMES.items():
                name = name.replace(mine, theirs)
            parts = weight.chunk(3) if ".inputs." in name else [weight]  # queries, keys and values are one matrix here
            for letter, part in zip("qkv", parts, strict=False):
                new["model." + name.replace(".inputs.", f".{letter}_proj.")] = part
    target.load_state_dict({name: weight.clone() for name, weight in new.items()})
