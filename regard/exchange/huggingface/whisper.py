"""Whisper (Radford et al. 2023), which writes down speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.exchange.huggingface.bart import block_moves, both
from regard.exchange.huggingface.family import Family, Move


class Whisper(Family):
    """Whisper: convolutions over log-mel frames of 30 seconds, pre-norm blocks whose keys have no bias, learned
    positions of the text."""

    model_types = ("whisper",)
    architectures = ("WhisperForConditionalGeneration",)
    base = "model."
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {"use_weighted_layer_sum": (False,)}

    def sections(self) -> dict[str, Any]:
        config = self.config
        for name, wanted in (("sampling_rate", 16000), ("hop_length", 160), ("n_fft", 400)):
            if self.preprocessor.get(name, wanted) != wanted:
                self.refuse_preprocessor(name, f"Regard has Whisper's frames with {wanted}")
        frames = 2 * config.get("max_source_positions", 1500)
        sides = {}
        for side in ("encoder", "decoder"):
            sides[side] = {
                "kind": "transformer", "layers": config[f"{side}_layers"], "heads": config[f"{side}_attention_heads"],
                "d_ff": config[f"{side}_ffn_dim"], "norm": "pre", "norm_epsilon": 1e-5,
                "activation": self.activation("activation_function", "gelu"),
                "positions": "none" if side == "encoder" else "learned",
            }  # fmt: skip
        sides["encoder"]["stem"] = {"kind": "whisper", "mels": config.get("num_mel_bins", 80), "frames": frames}
        return {
            "source": {"kind": "audio", "rate": 16000, "max_length": frames},
            "target": {"kind": "text"},
            "model": {
                "d_model": config["d_model"], "dropout": config.get("dropout", 0.0), "tie_output": True,
                "output_bias": False, "scale_embeddings": False,  # with `scale_embedding`, too, transformers does not
                "max_positions": config.get("max_target_positions", 448), **sides,
            },
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        yield from both("model.encoder.conv1", "encoder.stem.conv1")
        yield from both("model.encoder.conv2", "encoder.stem.conv2")
        yield Move("encoder.stem.table.weight", ("model.encoder.embed_positions.weight",))
        yield Move("decoder.embedding.table.weight", ("model.decoder.embed_tokens.weight",))
        yield Move("decoder.positions.table.weight", ("model.decoder.embed_positions.weight",))
        for side in ("encoder", "decoder"):
            for i in range(self.config[f"{side}_layers"]):
                theirs, ours = f"model.{side}.layers.{i}", f"{side}.blocks.{i}"
                yield from block_moves(theirs, ours, cross=side == "decoder", key_bias=False)
            yield from both(f"model.{side}.layer_norm", f"{side}.final")

    def aliases(self) -> dict[str, str]:
        return {"proj_out.weight": "model.decoder.embed_tokens.weight"}

    def canonical(self, name: str) -> str:
        return name if name == "proj_out.weight" else super().canonical(name)
