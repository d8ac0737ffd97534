"""Which weights learn, how fast, and from which update on: freezing, rates by part and by layer, gradual unfreezing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from regard.errors import ConfigError
from regard.training_settings import Training


@runtime_checkable
class Layered(Protocol):
    """An encoder or a decoder, whose modules stand on one another."""

    @property
    def levels(self) -> Sequence[Sequence[nn.Module]]:
        """What it is made of, from the bottom up; what is not among it counts as of the top level."""


@dataclass(frozen=True)
class Pace:
    """How a weight learns."""

    factor: float = 1.0  # of the learning rate
    since: float = 0  # updates before the first in which it learns; infinite: it never does


def paces(model: nn.Module, settings: Training) -> dict[nn.Parameter, Pace]:
    """How each weight that can learn does. Discriminative fine-tuning, Howard and Ruder 2018, 3.2: the rate of layer
    `l` of `L` is `η factor^(L - l)`; gradual unfreezing, 3.3: it learns after `(L - l) unfreeze_every` updates."""
    own = {parameter: Pace() for parameter in model.parameters() if parameter.requires_grad}
    below, factors = depths(model), _factors(model, settings.rates)
    frozen = set(weights_of(model, settings.freeze, "training.freeze"))
    for parameter in own:
        depth = below.get(parameter, 0)
        factor = factors.get(parameter, 1.0) * settings.layer_decay**depth
        since = max(depth * settings.unfreeze_every, (settings.thaw or math.inf) if parameter in frozen else 0)
        own[parameter] = Pace(factor, since)
    if (first := min((pace.since for pace in own.values()), default=math.inf)) > 0:
        when = "" if math.isinf(first) else f" in the first {first:,} updates"
        raise ConfigError(f"training.freeze names every part, so nothing would learn{when}; leave one out")
    return own


def depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """How many layers stand above the one that a weight is in, in its encoder or decoder; one that is in several, such
    as a tied embedding, counts where it is deepest."""
    found: dict[nn.Parameter, int] = {}
    for module in model.modules():
        if isinstance(module, Layered):
            for depth, level in enumerate(reversed(module.levels)):
                for parameter in (weight for part in level for weight in part.parameters()):
                    found[parameter] = max(depth, found.get(parameter, 0))
    return found


def _factors(model: nn.Module, rates: dict[str, float]) -> dict[nn.Parameter, float]:
    """The factor of each weight that is named; of several names that fit, the longest counts."""
    return {
        parameter: rates[part]
        for part in sorted(rates, key=len)
        for parameter in weights_of(model, [part], "training.rates")
    }


def weights_of(model: nn.Module, parts: Iterable[str], setting: str) -> list[nn.Parameter]:
    """The weights of some parts of a model; a name that fits none is refused."""
    own = dict(model.named_parameters(remove_duplicate=False))
    found: list[nn.Parameter] = []
    for part in parts:
        weights = [parameter for name, parameter in own.items() if name == part or name.startswith(f"{part}.")]
        if not weights:
            raise ConfigError(
                f"{setting}: this model has no part '{part}'; there are: "
                f"{', '.join(dict.fromkeys(name.partition('.')[0] for name in own))} and what is in them"
            )
        found += weights
    return found
