"""Captioners: a Vision Transformer and a GPT-2 that attends to it, as `VisionEncoderDecoderModel` joins them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.errors import ConfigError
from regard.exchange.huggingface import gpt2, vit
from regard.exchange.huggingface.bart import both
from regard.exchange.huggingface.family import Family, Move


class Encoder(vit.ViT):
    """The ViT of a captioner, without a head."""

    model_types = ()
    architectures = ("ViTModel", *vit.ViT.architectures)


class Decoder(gpt2.GPT2):
    """The GPT-2 of a captioner, which attends to pictures."""

    model_types = ()
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {**gpt2.GPT2.fixed, "add_cross_attention": (True,)}


class Captioner(Family):
    """ViT and GPT-2, with a dense layer between them where their widths differ."""

    model_types = ("vision-encoder-decoder",)
    architectures = ("VisionEncoderDecoderModel",)
    ignored = r"encoder\.pooler\..*|decoder\.transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)"

    def check(self) -> None:
        super().check()
        for side, kind in (("encoder", "vit"), ("decoder", "gpt2")):
            part = self.config.get(side)
            found = part.get("model_type") if isinstance(part, dict) else None
            if found != kind:
                raise ConfigError(f"config.json has {side}.model_type {found!r}; Regard reads captioners with {kind}")
        self.reads = Encoder({**self.config["encoder"], "architectures": None}, {}, self.preprocessor)
        self.writes = Decoder({**self.config["decoder"], "architectures": None})
        if self.writes.config.get("cross_attention_hidden_size") not in (None, self.writes.config["n_embd"]):
            self.writes.refuse("cross_attention_hidden_size", "Regard projects an encoder's vectors before the decoder")

    @property
    def vocabulary(self) -> int:
        return 0

    @property
    def outputs(self) -> int:
        return self.writes.vocabulary

    @property
    def projected(self) -> bool:
        return bool(self.reads.config["hidden_size"] != self.writes.config["n_embd"])

    def sections(self) -> dict[str, Any]:
        encoder = self.reads.encoder()
        if self.projected:
            encoder["width"] = self.reads.config["hidden_size"]
        return {
            "source": {"kind": "image", "size": self.reads.size, "resample": self.reads.resample},
            "target": {"kind": "text"},
            "model": {**self.writes.network(), "encoder": encoder},
        }

    def canonical(self, name: str) -> str:
        return vit.renamed(name) if name.startswith("encoder.") else name

    def moves(self) -> Iterator[Move]:
        yield from vit.encoder_moves(self.reads.config, "encoder.")
        if self.projected:
            yield from both("enc_to_dec_proj", "encoder.project")
        yield from gpt2.decoder_moves(self.writes.config, "decoder.transformer.", cross=True)

    def aliases(self) -> dict[str, str]:
        return {"decoder.lm_head.weight": "decoder.transformer.wte.weight"}
