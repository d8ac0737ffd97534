"""Vision Transformers (Dosovitskiy et al. 2021) that classify pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.exchange.huggingface.bart import BOTH, both
from regard.exchange.huggingface.family import PATCHES, ROW, VECTOR, Family, Move
from regard.models.vision import DEVIATIONS, MEANS

FILTERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3}  # as Pillow numbers them
# Names since 2026, and those that checkpoints have.
RENAMED = (
    (r"\blayers\.(\d+)\.attention\.([qkv])_proj\.", r"encoder.layer.\1.attention.attention.\2."),
    (r"\blayers\.(\d+)\.attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
    (r"\blayers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"\blayers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"\blayers\.(\d+)\.layernorm", r"encoder.layer.\1.layernorm"),
    (r"\.attention\.attention\.q\.", ".attention.attention.query."),
    (r"\.attention\.attention\.k\.", ".attention.attention.key."),
    (r"\.attention\.attention\.v\.", ".attention.attention.value."),
)


def renamed(name: str) -> str:
    """A tensor's name as checkpoints have it."""
    for there, here in RENAMED:
        name = re.sub(there, here, name)
    return name


def encoder_moves(config: Mapping[str, Any], begin: str) -> Iterator[Move]:
    """An encoder of patches, whose names there begin like this."""
    yield Move("encoder.stem.class_token", (f"{begin}embeddings.cls_token",), VECTOR)
    yield Move("encoder.stem.table.weight", (f"{begin}embeddings.position_embeddings",), ROW)
    patches = f"{begin}embeddings.patch_embeddings.projection"
    yield Move("encoder.stem.patches.weight", (f"{patches}.weight",), PATCHES)
    yield Move("encoder.stem.patches.bias", (f"{patches}.bias",))
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"{begin}encoder.layer.{i}", f"encoder.blocks.{i}"
        for kind in BOTH:
            parts = tuple(f"{theirs}.attention.attention.{part}.{kind}" for part in ("query", "key", "value"))
            yield Move(f"{ours}.self_attention.inputs.{kind}", parts)
        yield from both(f"{theirs}.attention.output.dense", f"{ours}.self_attention.output")
        yield from both(f"{theirs}.layernorm_before", f"{ours}.around_attention.norm")
        yield from both(f"{theirs}.layernorm_after", f"{ours}.around_feed_forward.norm")
        yield from both(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.inner")
        yield from both(f"{theirs}.output.dense", f"{ours}.feed_forward.outer")
    yield from both(f"{begin}layernorm", "encoder.final")


class ViT(Family):
    """ViT: pre-norm blocks over patches with a class token, from which a head classifies."""

    model_types: ClassVar[tuple[str, ...]] = ("vit",)
    architectures: ClassVar[tuple[str, ...]] = ("ViTForImageClassification",)
    base = "vit."
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "qkv_bias": (True,),
        "num_channels": (3,),
        "problem_type": (None, "single_label_classification"),
    }
    ignored = r"vit\.pooler\..*"

    def sections(self) -> dict[str, Any]:
        config = self.config
        return {
            "source": {"kind": "image", "size": self.size, "resample": self.resample},
            "target": {"kind": "label"},
            "model": {
                "d_model": config["hidden_size"], "dropout": config.get("hidden_dropout_prob", 0.0),
                "max_positions": (self.size // self.patch) ** 2 + 1, "encoder": self.encoder(),
                "decoder": {"kind": "none"},
            },
        }  # fmt: skip

    def encoder(self) -> dict[str, Any]:
        """The settings of the encoder."""
        config = self.config
        return {
            "kind": "transformer", "layers": config["num_hidden_layers"], "heads": config["num_attention_heads"],
            "d_ff": config["intermediate_size"], "norm": "pre", "positions": "none",
            "activation": self.activation("hidden_act", "gelu"), "norm_epsilon": config.get("layer_norm_eps", 1e-12),
            "stem": {
                "kind": "patches", "size": self.patch, "grid": self.size // self.patch, "colours": self.colours,
            },
        }  # fmt: skip

    @property
    def size(self) -> int:
        """Pixels a side of a picture."""
        return self._square("image_size", 224)

    @property
    def patch(self) -> int:
        """Pixels a side of a patch."""
        return self._square("patch_size", 16)

    def _square(self, name: str, usual: int) -> int:
        value = self.config.get(name, usual)
        sides = value if isinstance(value, list | tuple) else [value]
        if not sides or any(type(side) is not int or side < 1 for side in sides):
            self.refuse(name, "it should be a number of pixels")
        if len(set(sides)) > 1:
            self.refuse(name, "Regard reads square pictures in square patches")
        return int(sides[0])

    @property
    def resample(self) -> str:
        """The filter by which pictures of another size are brought to this one."""
        number = self.preprocessor.get("resample", 2)
        if number not in FILTERS.values():
            self.refuse_preprocessor("resample", f"Regard has {', '.join(f'{i} ({x})' for x, i in FILTERS.items())}")
        return next(name for name, i in FILTERS.items() if i == number)

    @property
    def colours(self) -> str:
        """How pixels become numbers, as preprocessor_config.json says."""
        kinds = {((0.5,) * 3, (0.5,) * 3): "centred", (MEANS, DEVIATIONS): "imagenet"}
        for name, wanted in (("do_rescale", True), ("rescale_factor", 1 / 255)):
            if self.preprocessor.get(name, wanted) != wanted:
                self.refuse_preprocessor(name, f"Regard has it only as {wanted}")
        self.check_size()
        given = [self.preprocessor.get(name) or (0.5,) * 3 for name in ("image_mean", "image_std")]
        found = tuple(tuple(x if isinstance(x, list | tuple) else [x] * 3) for x in given)
        if self.preprocessor.get("do_normalize", True) and found in kinds:
            return kinds[found]
        self.refuse_preprocessor("image_mean", "Regard centres colours (0.5) or takes ImageNet's")
        raise AssertionError("which was refused")

    def check_size(self) -> None:
        """Refuse what is done to pictures beside bringing each side to the size of the network."""
        say, kind = self.preprocessor.get, "image_processor_type"
        if not say("do_resize", True):
            self.refuse_preprocessor("do_resize", "Regard resizes pictures")
        for name in ("size", "crop_size") if say("do_center_crop") else ("size",):
            found = say(name, self.size)
            sides = found if isinstance(found, dict) else {"height": found, "width": found}
            if sides.keys() != {"height", "width"}:
                self.refuse_preprocessor(name, "Regard brings height and width to a size and cuts nothing off")
            if set(sides.values()) != {self.size}:
                self.refuse_preprocessor(name, f"config.json has image_size {self.size}")
        said = isinstance(say("size"), dict) and "do_center_crop" in self.preprocessor
        if not str(say(kind, "ViT")).startswith("ViT") and not said:
            self.refuse_preprocessor(kind, "it may cut pictures off, and size and do_center_crop do not say whether")

    @property
    def labels(self) -> list[str]:
        return self.several_labels()

    def canonical(self, name: str) -> str:
        return renamed(name if name.startswith("classifier.") else super().canonical(name))

    def moves(self) -> Iterator[Move]:
        yield from encoder_moves(self.config, "vit.")
        yield from both("classifier", "head.linear")
