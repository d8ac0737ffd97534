"""Published weights of ResNets and Vision Transformers, under the names that they have in an encoder of Regard.

Which library wrote a file is seen by its names: torchvision's ResNet and ViT, timm's (of both), Hugging Face's ViT.
What is not part of an encoder, such as the classifier, is left out: its labels are others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError, ModelError
from regard.models.vision import resampled

Names = Sequence[tuple[str, str]]  # patterns of names there, and the names here

RESNET: Names = (
    (r"(conv1|bn1)\.(weight|bias|running_mean|running_var)", r"stem.\1.\2"),
    (r"(layer\d)\.(\d+)\.(.+)", r"stem.\1.\2.\3"),
)
TIMM: Names = (
    (r"cls_token", "stem.class_token"),
    (r"pos_embed", "stem.table.weight"),
    (r"patch_embed\.proj\.(weight|bias)", r"stem.patches.\1"),
    (r"blocks\.(\d+)\.norm1\.(.+)", r"blocks.\1.around_attention.norm.\2"),
    (r"blocks\.(\d+)\.attn\.qkv\.(.+)", r"blocks.\1.self_attention.inputs.\2"),
    (r"blocks\.(\d+)\.attn\.proj\.(.+)", r"blocks.\1.self_attention.output.\2"),
    (r"blocks\.(\d+)\.norm2\.(.+)", r"blocks.\1.around_feed_forward.norm.\2"),
    (r"blocks\.(\d+)\.mlp\.fc1\.(.+)", r"blocks.\1.feed_forward.inner.\2"),
    (r"blocks\.(\d+)\.mlp\.fc2\.(.+)", r"blocks.\1.feed_forward.outer.\2"),
    (r"norm\.(weight|bias)", r"final.\1"),
)
_LAYER = r"encoder\.layers\.encoder_layer_(\d+)"
TORCHVISION: Names = (
    (r"class_token", "stem.class_token"),
    (r"encoder\.pos_embedding", "stem.table.weight"),
    (r"conv_proj\.(weight|bias)", r"stem.patches.\1"),
    (_LAYER + r"\.ln_1\.(.+)", r"blocks.\1.around_attention.norm.\2"),
    (_LAYER + r"\.self_attention\.in_proj_(weight|bias)", r"blocks.\1.self_attention.inputs.\2"),
    (_LAYER + r"\.self_attention\.out_proj\.(.+)", r"blocks.\1.self_attention.output.\2"),
    (_LAYER + r"\.ln_2\.(.+)", r"blocks.\1.around_feed_forward.norm.\2"),
    (_LAYER + r"\.mlp\.(?:0|linear_1)\.(.+)", r"blocks.\1.feed_forward.inner.\2"),
    (_LAYER + r"\.mlp\.(?:3|linear_2)\.(.+)", r"blocks.\1.feed_forward.outer.\2"),
    (r"encoder\.ln\.(.+)", r"final.\1"),
)
_HF = r"(?:vit\.)?encoder\.layer\.(\d+)"
HUGGING_FACE: Names = (
    (r"(?:vit\.)?embeddings\.cls_token", "stem.class_token"),
    (r"(?:vit\.)?embeddings\.position_embeddings", "stem.table.weight"),
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.(weight|bias)", r"stem.patches.\1"),
    (_HF + r"\.layernorm_before\.(.+)", r"blocks.\1.around_attention.norm.\2"),
    (_HF + r"\.attention\.attention\.(query|key|value)\.(.+)", r"blocks.\1.self_attention.inputs.\3/\2"),
    (_HF + r"\.attention\.output\.dense\.(.+)", r"blocks.\1.self_attention.output.\2"),
    (_HF + r"\.layernorm_after\.(.+)", r"blocks.\1.around_feed_forward.norm.\2"),
    (_HF + r"\.intermediate\.dense\.(.+)", r"blocks.\1.feed_forward.inner.\2"),
    (_HF + r"\.output\.dense\.(.+)", r"blocks.\1.feed_forward.outer.\2"),
    (r"(?:vit\.)?layernorm\.(.+)", r"final.\1"),
)
LEFT_OUT = re.compile(r"(fc|head|heads\.head|classifier|(vit\.)?pooler|pre_logits)(\..*)?|.*\.num_batches_tracked")

VIT = {
    "kind": "transformer", "norm": "pre", "normalize": "layer", "activation": "gelu", "gated": False,
    "positions": "none", "stem.kind": "patches", "stem.class_token": True, "stem.positions": "learned",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Weights as a library writes them: how its names are told, and the settings of an encoder that computes alike."""

    name: str
    telling: str  # the ending of a name that no other layout has
    names: Names
    settings: Mapping[str, Any]


LAYOUTS = (
    Layout("torchvision's ViT", "encoder.pos_embedding", TORCHVISION,
           {**VIT, "norm_epsilon": 1e-6, "stem.colours": "imagenet"}),
    Layout("timm's ViT", "blocks.0.attn.qkv.weight", TIMM, {**VIT, "norm_epsilon": 1e-6}),
    Layout("Hugging Face's ViT", "embeddings.patch_embeddings.projection.weight", HUGGING_FACE,
           {**VIT, "norm_epsilon": 1e-12}),
    Layout("torchvision's ResNet", "layer1.0.conv1.weight", RESNET, {"stem.kind": "resnet"}),
)  # fmt: skip


def read_published(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of one that torch wrote, of which nothing but tensors is read."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelError(f"no file of weights {path}; check start.weights") from None
    except Exception as error:  # pickled files fail in every way
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{path} cannot be read as weights ({what}); .safetensors, or what torch.save wrote of tensors, will do"
        ) from None
    for key in ("model", "state_dict"):  # as training scripts wrap them
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise ModelError(f"{path} holds no tensors by name, so it is no file of weights")
    return {str(name): tensor for name, tensor in found.items()}


def layout_of(tensors: Mapping[str, Tensor], where: Path) -> Layout:
    """Which library wrote these."""
    for layout in LAYOUTS:
        if any(name.endswith(layout.telling) for name in tensors):
            return layout
    some = ", ".join(sorted(tensors)[:3])
    raise ModelError(
        f"{where} holds weights that are not known here ({some}, …); there are: {', '.join(x.name for x in LAYOUTS)}"
    )


def encoder_weights(tensors: Mapping[str, Tensor], layout: Layout, where: Path) -> dict[str, Tensor]:
    """Weights under their names in an encoder, in its shapes; what of the file is foreign is named."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if LEFT_OUT.fullmatch(name):
            continue
        for pattern, here in layout.names:
            if match := re.fullmatch(pattern, name):
                found[match.expand(here)] = tensor
                break
        else:
            raise ModelError(f"{where} has {name}, which {layout.name} has not; it is another network")
    for name in [name for name in found if name.endswith("/query")]:
        begin = name.removesuffix("query")
        parts = [found.pop(begin + part, None) for part in ("query", "key", "value")]
        if any(part is None for part in parts):
            raise ModelError(f"{where} lacks queries, keys or values of {begin.removesuffix('/')}")
        found[begin.removesuffix("/")] = torch.cat([part for part in parts if part is not None])
    if "stem.class_token" in found:
        found["stem.class_token"] = found["stem.class_token"].flatten()
    if "stem.table.weight" in found:
        found["stem.table.weight"] = found["stem.table.weight"].flatten(0, -2)
    patches = found.get("stem.patches.weight")
    if patches is not None and patches.dim() == 4:  # a convolution: (d_model, colours, rows, columns) of a patch
        found["stem.patches.weight"] = patches.permute(0, 2, 3, 1).flatten(1)
    return found


def put(found: Mapping[str, Tensor], own: Mapping[str, Tensor], begin: str, stem: str, where: Path) -> set[str]:
    """Put an encoder's weights into a model's `own`, where its names begin like this and its stem is called `stem`;
    those that do not fit are named. Gives the names of what there was."""
    here = {begin + re.sub(r"^stem\.", stem, name): tensor for name, tensor in found.items()}
    unfit = f"start.weights: {where} does not fit this config's [model]"
    for name, tensor in here.items():
        if name not in own:
            raise ConfigError(f"{unfit}, which has no {name}")
        fitting = _fitted(name, tensor, own[name].shape)
        if fitting.shape != own[name].shape:
            raise ConfigError(f"{unfit}: {name} is {tuple(fitting.shape)}, here {tuple(own[name].shape)}")
        own[name].copy_(fitting)
    parts = {name.partition(".")[0] + "." for name in found}
    brought = tuple(begin + (stem if part == "stem." else part) for part in parts)
    new = tuple(begin + stem + part for part in ("project.", "norm."))  # which make vectors of a ResNet's grid
    for name in own:
        if name.startswith(brought) and name not in here and not name.startswith(new):
            raise ConfigError(f"{unfit}: it has no {name}")
    return set(here)


def _fitted(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor for a place of this shape: learned positions of a ViT are interpolated for another grid."""
    if name.endswith("stem.table.weight") and tensor.dim() == 2 and tensor.shape[0] != shape[0]:
        cells = [math.isqrt(count - 1) for count in (tensor.shape[0], shape[0])]
        if [side**2 + 1 for side in cells] == [tensor.shape[0], shape[0]]:
            return torch.cat((tensor[:1], resampled(tensor[1:], cells[1])))
    return tensor


def clash(layout: Layout, encoder: Any) -> str | None:
    """The setting of an encoder that would compute otherwise than the layout's network, and what it should be."""
    for name, wanted in layout.settings.items():
        value = encoder
        for part in name.split("."):
            value = getattr(value, part, None)
        if value != wanted:
            shown = str(wanted).lower() if isinstance(wanted, bool) else wanted
            return f"weights of {layout.name} need model.encoder.{name}: {shown} (here {str(value).lower()})"
    return None
