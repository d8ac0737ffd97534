"""The one door for new parts, for the package itself and for a user's module: `register(kind, cls)`.

Each family of parts (kinds of source and target, stems, bodies, scores, objectives, metrics) knows its members by
the name that a config gives them. Built-in members are registered in the same way when their module is first needed,
so that reading a config imports nothing heavy. A model folder never registers anything: it runs no code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from regard.errors import ConfigError, shown


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name: the known one that is most like it, or all of them."""
    close = difflib.get_close_matches(name.strip("'"), known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}"


class Family:
    """Parts of one sort, by kind, with the modules that register built-in ones; users add to those that are open."""

    def __init__(self, name: str, homes: dict[str, str], *, is_open: bool = True) -> None:
        self.name, self.homes, self.is_open = name, homes, is_open
        self._classes: dict[str, type] = {}
        self._settings: dict[str, Any] = {}

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys([*self.homes, *self._classes]))

    def add(self, kind: str, cls: type) -> None:
        """Make `cls` the member of this kind."""
        known = self._classes.get(kind)
        if kind in self.homes and cls.__module__ != self.homes[kind]:
            raise ConfigError(f"a {self.name} of kind '{kind}' is built in; choose another name")
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"there is a {self.name} of kind '{kind}' already ({known.__qualname__}); choose another")
        self._classes[kind] = cls

    def describe(self, kinds: Iterable[str], settings: Any) -> None:
        """Give the settings of built-in members whose classes are heavy to import."""
        self._settings |= dict.fromkeys(kinds, settings)

    def get(self, kind: str) -> Any:
        if kind not in self._classes:
            if kind not in self.homes:
                raise ConfigError(self.unknown(kind))
            import_module(self.homes[kind])
        return self._classes[kind]

    def settings(self, kind: str) -> Any:
        return self._settings[kind] if kind in self._settings else self.get(kind).Settings

    def unknown(self, kind: object) -> str:
        """What to say of a kind that there is not."""
        own = " (--import brings in a module of your own)" if self.is_open else ""
        return f"no {self.name} of kind {shown(kind)}; {did_you_mean(shown(kind), self.kinds)}{own}"


CELLS = ("rnn", "lstm", "gru")
MODALITIES = Family(
    "source", {kind: f"regard.data.modalities.{kind}" for kind in ("text", "none", "image", "audio", "video", "words")}
)
TARGETS = Family(
    "target",
    {
        kind: f"regard.data.targets.{kind}"
        for kind in ("text", "label", "tags", "number", "choice", "span", "contrast", "image")
    },
)
STEMS = Family(
    "stem",
    dict.fromkeys(("tokens", "split", "convolution"), "regard.models.stems")
    | dict.fromkeys(("log_mel", "subsampling", "pyramid", "whisper"), "regard.models.speech")
    | dict.fromkeys(("patches", "resnet", "frames"), "regard.models.vision")
    | {"characters": "regard.models.elmo"},
)
BODIES = Family(
    "encoder",
    dict.fromkeys((*CELLS, "transformer", "stem", "none"), "regard.models.encoders")
    | {"conformer": "regard.models.speech", "elmo": "regard.models.elmo"},
)
DECODERS = Family(
    "decoder", dict.fromkeys((*CELLS, "awd_lstm", "transformer", "none"), "regard.models.build"), is_open=False
)
SCORES = Family(
    "attention score",
    dict.fromkeys(("dot", "bilinear", "additive", "mlp", "scaled_dot", "location"), "regard.nn.scores"),
)
OBJECTIVES = Family(
    "objective",
    dict.fromkeys(
        ("likelihood", "scheduled_sampling", "minimum_risk", "denoising", "span_corruption"),
        "regard.training.objectives",
    ),
)
METRICS = Family(
    "metric",
    dict.fromkeys(("bleu", "chrf", "ter", "exact"), "regard.evaluation.metrics")
    | dict.fromkeys(("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider"), "regard.evaluation.captions")
    | dict.fromkeys(("wer", "cer", "per", "sequence_error"), "regard.evaluation.speech")
    | dict.fromkeys(("vqa", "matthews", "f1"), "regard.evaluation.labels")
    | dict.fromkeys(("squad_em", "squad_f1"), "regard.evaluation.answers")
    | dict.fromkeys((*(f"rouge{n}{how}" for how in ("", "_unstemmed") for n in "12l"),), "regard.evaluation.summaries")
    | dict.fromkeys(("distinct1", "distinct2"), "regard.evaluation.diversity")
    | dict.fromkeys(("parses", "conala_bleu"), "regard.evaluation.programs"),
)


def register(kind: str, cls: type | None = None) -> Any:
    """Make a class known under the name that a config gives it; without `cls`, a decorator.

    What it is (a modality, a target, a stem, an encoder body, an attention score, an objective, a metric) follows from
    its base class. `docs/extending.md` walks through one of each.
    """
    if cls is None:
        return partial(register, kind)
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", kind):
        raise ConfigError(f"cannot register under {kind!r}; a kind is written in small letters, digits, _ and -")
    family = getattr(cls, "family", None)
    if not isinstance(cls, type) or not isinstance(family, Family):
        bases = "Modality, Target, Stem, Body, Score, Objective or Metric"
        raise TypeError(f"register takes a class derived from {bases}, not {cls!r}")
    family.add(kind, cls)
    return cls
