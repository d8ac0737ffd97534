"""Marian of Hugging Face transformers, with random weights or with Regard's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.bench.measure import NotThereError
from regard.bench.peers import Step, need, quiet, smoothed, stepper
from regard.bench.regard_side import Decode, named_weights
from regard.bench.workload import DROPOUT, LONGEST, Padded, Shape, pad
from regard.data.tokens import BOS, EOS, PAD
from regard.nn.positions import Sinusoidal
from regard.tasks.writing import Writing


def make_marian(shape: Shape, dropout: float = DROPOUT) -> Any:
    """A Marian of this shape: post-norm, scaled embeddings shared by both sides and the output, fused attention."""
    if shape.kind != "transformer":
        raise NotThereError("Marian is a Transformer")
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


def marian_step(shape: Shape, device: torch.device, precision: str, *, compiled: bool) -> Step:
    """A step of training."""
    model = make_marian(shape).to(device)

    def loss_of(batch: Padded) -> Tensor:
        found = model(
            input_ids=batch.source, attention_mask=batch.source_mask, decoder_input_ids=batch.inputs, use_cache=False
        )
        return smoothed(found.logits, batch)

    return stepper(model, torch.compile(loss_of, dynamic=True) if compiled else loss_of, device, precision)


def marian_decode(model: Any, device: torch.device, *, beam: int, length: int, cache: str | None = None) -> Decode:
    """Search for outputs of exactly `length` tokens: the end is forbidden until then, and then all but the end is."""
    transformers = need("transformers")
    close = transformers.LogitsProcessorList([_Close(length)])
    model.eval()

    def decode(sources: Sequence[Sequence[int]]) -> list[list[int]]:
        batch = pad(sources, [[] for _ in sources]).to(device)
        with torch.inference_mode():
            found = model.generate(
                input_ids=batch.source, attention_mask=batch.source_mask, num_beams=beam, do_sample=False,
                min_new_tokens=length, max_new_tokens=length + 1, logits_processor=close, cache_implementation=cache,
            )  # fmt: skip
        return [row[1 : 1 + length] for row in found.tolist()]

    return decode


class _Close:
    """After `length` tokens only the end may come, and it keeps its probability, as in Regard's search."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, written: Tensor, scores: Tensor) -> Tensor:
        if written.shape[1] < 1 + self.length:
            return scores
        closed = torch.full_like(scores, -torch.inf)
        closed[:, EOS] = scores[:, EOS]
        return closed


def give_weights(task: Writing, target: Any, shape: Shape) -> None:
    """Write Regard's weights into a Marian, so that both are the same function.

    Marian's table of positions has all sines before all cosines; it is replaced by Regard's, where they alternate.
    """
    ours = named_weights(task)
    new = {theirs: ours[name] for theirs, name in _names(shape.layers)}
    table = Sinusoidal(shape.d_model).to(task.device)(torch.arange(LONGEST + 2, device=task.device))
    new |= {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
    new["final_logits_bias"] = ours["head.linear.bias"].unsqueeze(0)
    target.load_state_dict({name: value.clone() for name, value in new.items()})


def _names(layers: int) -> Iterator[tuple[str, str]]:
    """Marian's name of each weight, and Regard's."""
    table = "decoder.embedding.table.weight"
    yield from ((name, table) for name in ("model.shared.weight", "lm_head.weight"))
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_tokens.weight", table
        parts = [("self_attn", "self_attention", "around_self" if side == "decoder" else "around_attention")]
        parts += [("encoder_attn", "cross_attention", "around_cross")] if side == "decoder" else []
        for i in range(layers):
            theirs, ours = f"model.{side}.layers.{i}", f"{side}.blocks.{i}"
            linears = [("fc1", "feed_forward.inner"), ("fc2", "feed_forward.outer")]
            linears += [("final_layer_norm", "around_feed_forward.norm")]
            for their_part, our_part, around in parts:
                linears += [(f"{their_part}_layer_norm", f"{around}.norm")]
                for letter, word in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    linears += [(f"{their_part}.{letter}_proj", f"{our_part}.{word}")]
            for their_name, our_name in linears:
                for kind in ("weight", "bias"):
                    yield f"{theirs}.{their_name}.{kind}", f"{ours}.{our_name}.{kind}"
