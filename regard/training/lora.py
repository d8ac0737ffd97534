"""Fine-tuning by low-rank adapters: which layers have one, what of the model then learns, and what is saved of it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from regard.errors import ConfigError, ModelError
from regard.models.ctc import CTCHead
from regard.models.model import Head
from regard.nn.lora import Adapted, merge_adapters, replace_layers
from regard.training.checkpoint import load_tensors, read_facts, save_tensors, set_weights, weights
from regard.training.parts import weights_of
from regard.training_settings import LoraSettings

ADAPTER = "adapter.safetensors"
SHOWN = 6  # names in a message


class Adapters:
    """LoRA (Hu et al. 2022) in the linear layers of a model that `settings.parts` name. They and `settings.also` learn;
    all other weights, the `base`, stay as they are to the bit."""

    def __init__(self, model: nn.Module, settings: LoraSettings) -> None:
        self.model, self.settings = model, settings
        layers = adaptable(model)
        chosen = {
            layer: name for name, layer in layers.items() if any(fnmatchcase(name, part) for part in settings.parts)
        }
        if not chosen:
            raise ConfigError(
                f"training.lora.parts ({', '.join(settings.parts)}) fits no linear layer of this model; there are: "
                f"{_some(layers)}"
            )
        also = set(weights_of(model, settings.also, "training.lora.also"))
        if both := next((name for layer, name in chosen.items() if layer.weight in also), None):
            raise ConfigError(f"training.lora: {both} has an adapter and learns in full (also); leave one out")
        for parameter in model.parameters():
            parameter.requires_grad_(parameter in also)
        self.layers: dict[nn.Module, Adapted] = {
            layer: Adapted(layer, settings.rank, settings.alpha, settings.dropout).to(layer.weight.device)
            for layer in chosen
        }
        replace_layers(model, self.layers)
        # Of what several parts share, one name alone.
        self.base = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}

    def digest(self) -> str:
        """Tells the base from any other."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.base.items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()

    def merged(self) -> dict[str, Tensor]:
        """All weights as those of a model without adapters."""
        found = weights(self.model)
        for name, module in self.model.named_modules():
            if isinstance(module, Adapted):
                del found[f"{name}.down"], found[f"{name}.up"]
                found[f"{name}.weight"] = module.merged()
        return found

    def save(self, path: Path) -> None:
        """Write the adapters, and what else learnt, with what says which model they belong to."""
        facts = {"base": self.digest(), "lora": self.settings.model_dump(mode="json")}
        save_tensors(path, weights(self.model, without=self.base), facts)

    def merge(self) -> None:
        """Put the adapters into the weights: the model is then as it would be without them."""
        merge_adapters(self.model)
        self.model.requires_grad_(True)


def adaptable(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers that can have an adapter, by name: not output layers, whose product is part of the loss, nor
    those whose matrix is also something else's."""
    outputs = {module.linear for module in model.modules() if isinstance(module, Head | CTCHead)}
    owners = Counter[Tensor](parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: layer for name, layer in layers.items() if layer not in outputs and owners[layer.weight] == 1}


def put_adapter(model: nn.Module, path: Path) -> None:
    """Merge saved adapters into the model that they were trained on."""
    adapters = _adapters_for(model, path)
    set_weights(model, load_tensors(path), path, without=adapters.base)
    adapters.merge()


def _adapters_for(model: nn.Module, path: Path) -> Adapters:
    """New adapters of a model, as those in a file are; the file has to belong to this very model."""
    facts = read_facts(path)
    if not {"base", "lora"} <= facts.keys():
        raise ModelError(f"{path} holds no adapter; a run with training.lora writes {ADAPTER}")
    try:
        settings = LoraSettings.model_validate(facts["lora"])
        adapters = Adapters(model, settings)
    except (ValidationError, ConfigError) as error:
        raise ModelError(f"{path} does not fit this model: {error}") from None
    if adapters.digest() != facts["base"]:
        raise ModelError(
            f"{path} belongs to another model: the weights it was trained on are not these; give the model that its "
            "run began from (start.model)"
        )
    return adapters


def _some(names: Iterable[str]) -> str:
    """Names in a few letters: layers of a stack that differ in their number alone are named once."""
    alike = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
    return ", ".join(alike[:SHOWN]) + (", …" if len(alike) > SHOWN else "")
