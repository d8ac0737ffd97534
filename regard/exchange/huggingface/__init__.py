"""Networks as Hugging Face's `transformers` writes them: `config.json` and tensors by name.

    network = read_network(folder)               # a Family: what was found there, or an error that names what is odd
    config = Config.parse({**network.sections(), …})
    weights = network.imported()                 # by Regard's names
    network.exported(weights)                    # by theirs: the same bits

Nothing in such a folder is run: weights are read from safetensors, or from what torch wrote of tensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface.family import Family
from regard.exchange.huggingface.given import read_json
from regard.models.published import read_published
from regard.registry import did_you_mean

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # each alone, or in parts that an index lists

# The module of each family, by the `model_type` in config.json.
HOMES = {
    "marian": "bart", "bart": "bart", "mbart": "bart", "t5": "t5", "mt5": "t5", "bert": "bert", "roberta": "roberta",
    "xlm-roberta": "roberta", "distilbert": "distilbert", "gpt2": "gpt2", "vit": "vit", "whisper": "whisper",
    "vision-encoder-decoder": "captioner",
}  # fmt: skip


def family_of(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
) -> Family:  # fmt: skip
    """The family of a config.json, with the tensors of its checkpoint, where there is one to read, and the content of
    preprocessor_config.json, which models of pictures and sound have."""
    kind = kind_of(config)
    module = import_module(f"regard.exchange.huggingface.{HOMES[kind]}")
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, Family) and kind in cls.model_types:
            return cls(config, tensors, preprocessor)
    raise AssertionError(f"{module.__name__} has a family for {kind}")


def kind_of(config: Mapping[str, Any]) -> str:
    """Which kind of network a config.json is of, if there is a family for it."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in HOMES:
        raise ConfigError(f"config.json has model_type {kind!r}; {did_you_mean(str(kind), list(HOMES))}")
    return kind


def read_network(folder: Path) -> Family:
    """The network in a folder."""
    if not (folder / CONFIG).exists():
        raise ModelError(f"no {CONFIG} in {folder}; it holds no model of Hugging Face's")
    config = read_json(folder / CONFIG)
    kind_of(config)  # before weights are read, of which there may be many
    return family_of(config, read_weights(folder), read_json(folder / PREPROCESSOR))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, in one file or in several that an index lists."""
    for name in WEIGHTS:
        if (folder / name).exists():
            return read_published(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            try:
                parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
                outside = any(Path(part).name != part for part in parts)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ModelError(f"{index} cannot be read as an index of weights") from None
            if outside:
                raise ModelError(f"{index} lists files outside of {folder}")
            if lacking := [part for part in parts if not (folder / part).is_file()]:
                raise ModelError(f"{index} lists {lacking[0]}, and {folder} has no such file; the folder is not whole")
            return {key: tensor for part in parts for key, tensor in read_published(folder / part).items()}
    raise ModelError(f"no weights in {folder}; there should be {' or '.join(WEIGHTS)}")
