"""What a family of networks published by others is to Regard: its config.json as settings here, and which of its
weights is which of ours.

A family is read from a checkpoint (`config.json` and tensors by name) and gives sections of a Regard config; `moves`
says where each tensor goes. Moves are invertible, so that what was imported can be exported again, to the same bits.
What Regard would compute otherwise is refused, by the name that the option has in config.json.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import ConfigError, ModelError

Tensors = Mapping[str, Tensor]
Map = Callable[[Tensor], Tensor]

# What others call an activation, and its name here.
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip


# Options that are whole numbers wherever they are.
WHOLE = re.compile(
    r"vocab_size|\w+_vocab_size|n_(embd|layer|head|positions|inner)|d_(model|ff|kv)|dim|hidden_dim|\w+_ffn_dim|n_layers|"
    r"n_heads|(hidden|intermediate)_size|(num|encoder|decoder)_\w*(layers|heads)|num_(mel_bins|channels)|"
    r"relative_attention_\w+|max_\w*position\w*|\w+_token_id"
)


class Options(dict[str, Any]):
    """What config.json says; an option that has to be there and is not is refused by name, and so is a null where a
    number usually is."""

    def __getitem__(self, name: str) -> Any:
        if (value := self.get(name)) is None:
            raise ConfigError(f"config.json does not say {name}, so this model cannot be imported")
        return value

    def get(self, name: str, usual: Any = None) -> Any:
        value = super().get(name, usual)
        if value is None and type(usual) in (int, float):
            raise ConfigError(
                f"config.json has {name}: null, and should have a number there, such as {usual}, so this model cannot "
                "be imported"
            )
        return value


@dataclass(frozen=True)
class Form:
    """One tensor in two layouts: theirs to ours, and back."""

    here: Map
    there: Map


def _patches(weight: Tensor) -> Tensor:
    """A convolution, `(d_model, colours, rows, columns)`, as a product with a patch laid out as one vector."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def _convolution(weight: Tensor) -> Tensor:
    side = isqrt(weight.shape[1] // 3)
    return weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)


SAME = Form(lambda x: x, lambda x: x)
TRANSPOSED = Form(lambda x: x.mT, lambda x: x.mT)  # as GPT-2 stores its products
ROW = Form(lambda x: x.squeeze(0), lambda x: x.unsqueeze(0))  # (1, …) to (…)
VECTOR = Form(lambda x: x.flatten(), lambda x: x.view(1, 1, -1))  # (1, 1, d_model) to (d_model,)
PATCHES = Form(_patches, _convolution)


@dataclass(frozen=True)
class Move:
    """A tensor of ours, and those of theirs that it is made of, laid one above the other.

    None stands for zeros: the bias of keys, which adds the same to all scores of a query and so changes no attention.
    """

    ours: str
    theirs: tuple[str | None, ...]
    form: Form = SAME
    shares: tuple[int, ...] = ()  # how many of equal shares each of theirs has (default: one each)

    def here(self, tensors: Tensors) -> Tensor:
        named = [tensors[name] for name in self.theirs if name is not None]
        parts = [self.form.here(torch.zeros_like(named[0]) if x is None else tensors[x]) for x in self.theirs]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def there(self, weight: Tensor) -> dict[str, Tensor]:
        shares = self.shares or (1,) * len(self.theirs)
        sizes = [len(weight) * share // sum(shares) for share in shares]
        parts = weight.split(sizes) if len(shares) > 1 else [weight]
        return {
            name: self.form.there(part).contiguous()
            for name, part in zip(self.theirs, parts, strict=True)
            if name is not None
        }


class Family(ABC):
    """The networks of some `model_type`s, made as `Family(config, tensors, preprocessor)` from a checkpoint.

    `tensors` are those of the checkpoint (their shapes are asked for, and which of them are there); to export, those
    that `exported` is to write need not be known. `preprocessor` is what preprocessor_config.json says, of pictures
    and sound.
    """

    model_types: ClassVar[tuple[str, ...]] = ()  # as config.json names them
    architectures: ClassVar[tuple[str, ...]] = ()  # the classes whose weights it reads, the usual one first
    base: ClassVar[str] = ""  # what the names of a network begin with under a head, and may lack without one
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {}  # options of config.json that have to have one of these values
    ignored: ClassVar[str] = r".*\.position_ids"  # tensors that no output depends on

    def __init__(
        self, config: Mapping[str, Any], tensors: Tensors | None = None, preprocessor: Mapping[str, Any] | None = None
    ) -> None:
        self.config, self.tensors, self.preprocessor = Options(config), dict(tensors or {}), preprocessor or {}
        named = config.get("architectures") or self.architectures[:1]
        self.architecture = str(named[0] if isinstance(named, list | tuple) else named)
        self.tensors = {self.canonical(name): tensor for name, tensor in self.tensors.items()}
        self.check()

    # What a family says

    @abstractmethod
    def sections(self) -> dict[str, Any]:
        """Sections of a Regard config that computes alike: `model`, `source` and `target`."""

    @abstractmethod
    def moves(self) -> Iterator[Move]:
        """Where each tensor goes; each of ours once, under its first name (`named_parameters`)."""

    def aliases(self) -> dict[str, str]:
        """Names under which a checkpoint may hold a tied tensor again, or instead, and that which `moves` gives it."""
        return {}

    @property
    def vocabulary(self) -> int:
        """How many tokens the network reads; 0 where it reads none."""
        return int(self.config.get("vocab_size") or 0)

    @property
    def outputs(self) -> int:
        """How many tokens or classes the network predicts."""
        return len(self.labels) or self.vocabulary

    @property
    def labels(self) -> list[str]:
        """The classes of a classification head, by number; empty where tokens are predicted."""
        return []

    # What all share

    def check(self) -> None:
        """Refuse what would be computed otherwise here."""
        if self.architecture not in self.architectures:
            raise ConfigError(
                f"config.json names the architecture {self.architecture}; of {self.config.get('model_type')} Regard "
                f"reads {', '.join(self.architectures)}"
            )
        for name, allowed in self.fixed.items():
            if name in self.config and self.config.get(name) not in allowed:
                self.refuse(name, f"Regard has it only as {' or '.join(map(repr, allowed))}")
        for name, value in self.config.items():
            if WHOLE.fullmatch(name) and type(value) not in (int, type(None)) and not isinstance(value, list):
                self.refuse(name, "it should be a whole number")
        if self.config.get("pruned_heads"):
            self.refuse("pruned_heads", "Regard has all heads of a layer")
        if self.config.get("quantization_config"):
            self.refuse("quantization_config", "Regard reads weights that are not quantized")

    def refuse(self, name: str, why: str) -> None:
        raise ConfigError(f"config.json has {name}: {self.config.get(name)!r}; {why}, so this model cannot be imported")

    def refuse_preprocessor(self, name: str, why: str) -> None:
        value = self.preprocessor.get(name)
        raise ConfigError(f"preprocessor_config.json has {name}: {value!r}; {why}, so this model cannot be imported")

    def label_names(self) -> list[str]:
        """The classes that config.json names; two that have no names, where it names none."""
        named = self.config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        numbered = dict(named) if isinstance(named, dict) else {}
        labels = [str(numbered.get(str(i), numbered.get(i, ""))) for i in range(len(numbered))]
        counts = Counter(labels)  # ImageNet has a crane that is a bird, and one that lifts
        labels = [f"{label} ({i})" if label and counts[label] > 1 else label for i, label in enumerate(labels)]
        if not all(labels) or len(set(labels)) < len(labels) or not labels:
            self.refuse("id2label", "it should number labels from 0 on, each another")
        if any(character in label for label in labels for character in "\t\r\n"):
            self.refuse("id2label", "labels are written in a line each")
        return labels

    def several_labels(self) -> list[str]:
        """The classes of a head that has more than one."""
        if len(labels := self.label_names()) < 2:
            self.refuse("id2label", "Regard imports heads that choose one of several labels")
        return labels

    def activation(self, name: str, usual: str) -> str:
        """An activation's name here."""
        found = self.config.get(name, usual)
        if not isinstance(found, str) or found not in ACTIVATIONS:
            self.refuse(name, f"Regard has {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[found]

    def canonical(self, name: str) -> str:
        """A tensor's name as it is in a checkpoint of today, under a head."""
        name = re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", name))  # of norms, before 2019
        begins = any(other.startswith(self.base) for other in self.tensors)
        return name if not self.base or begins else self.base + name

    def imported(self, left_out: list[str] | None = None) -> dict[str, Tensor]:
        """All weights under their names here. Tensors that no output depends on are named in `left_out`."""
        tensors, found = dict(self.tensors), dict[str, Tensor]()
        for alias, name in self.aliases().items():
            if alias in tensors:
                other = tensors.pop(alias)
                if name in tensors and not torch.equal(tensors[name], other):
                    raise ModelError(f"the checkpoint has {alias} and {name}, which are tied here, with other numbers")
                tensors.setdefault(name, other)
        used = set()
        for move in self.moves():
            wanted = [name for name in move.theirs if name is not None]
            if lacking := [name for name in wanted if name not in tensors]:
                raise ModelError(f"the checkpoint lacks {lacking[0]}, which {self.architecture} has")
            try:
                found[move.ours] = move.here(tensors)
            except (RuntimeError, IndexError):
                shape = tuple(tensors[wanted[0]].shape)
                raise ModelError(f"{wanted[0]} is {shape}, which is no shape that {self.architecture} has") from None
            used.update(wanted)
        for name in tensors.keys() - used:
            if not re.fullmatch(self.ignored, name):
                raise ModelError(f"the checkpoint has {name}, which {self.architecture} has not; it is another network")
            if left_out is not None:
                left_out.append(name)
        return found

    def neutral(self, weights: Tensors) -> dict[str, Tensor]:
        """Weights of the same outputs, with zeros where there is no such tensor there."""
        found = dict(weights)
        for move in self.moves():
            if None in move.theirs and move.ours in found:
                parts = found[move.ours].chunk(len(move.theirs))
                found[move.ours] = torch.cat(
                    [torch.zeros_like(x) if name is None else x for name, x in zip(move.theirs, parts, strict=True)]
                )
        return found

    def exported(self, weights: Tensors) -> dict[str, Tensor]:
        """All weights under their names there, from those that `imported` gave, or of the same names."""
        found: dict[str, Tensor] = {}
        for move in self.moves():
            if move.ours not in weights:
                raise ModelError(f"the model lacks {move.ours}, so it is no {self.architecture}")
            found |= move.there(weights[move.ours])
        return found
