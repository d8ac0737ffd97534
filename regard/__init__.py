"""Regard: encoder-decoders from the recurrent network to the Transformer, and what they attend to.

    model = regard.load("runs/demo")
    model.generate(["forty-two apples"], beam=5)
    model.explain("forty-two apples").save("attention.html")

Names are imported when first used, so that `import regard` and `regard --help` stay quick.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Read by GNU's OpenMP when torch is first imported. Its threads spin while they wait for each other, by default so long
# that a second busy process on the same cores slows both to a crawl. Ten thousand turns cost a process alone nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from regard.data.modality import Modality as Modality
    from regard.data.target import HeadTarget as HeadTarget
    from regard.data.target import Target as Target
    from regard.data.tokens import Tokenizer as Tokenizer
    from regard.encoder_settings import EncoderSettings as EncoderSettings
    from regard.errors import RegardError as RegardError
    from regard.evaluation.metrics import Metric as Metric
    from regard.evaluation.metrics import Score as Score
    from regard.exchange import export as export
    from regard.exchange import import_model as import_model
    from regard.models.encoders import Body as Body
    from regard.models.stems import Stem as Stem
    from regard.nn.attention import capture as capture
    from regard.nn.edits import Edits as Edits
    from regard.nn.edits import RowEdit as RowEdit
    from regard.nn.scores import AttentionScore as AttentionScore
    from regard.registry import register as register
    from regard.runs import train as train
    from regard.section import SideSettings as SideSettings
    from regard.section import TargetSettings as TargetSettings
    from regard.settings import Config as Config
    from regard.stem_settings import StemSettings as StemSettings
    from regard.system import System as System
    from regard.system import load as load
    from regard.training.objectives import Objective as Objective
    from regard.training.watcher import Watcher as Watcher
    from regard.training_settings import ObjectiveSettings as ObjectiveSettings

__version__ = "0.1.0"

_HOMES = {
    "AttentionScore": "regard.nn.scores",
    "Body": "regard.models.encoders",
    "Config": "regard.settings",
    "Edits": "regard.nn.edits",
    "EncoderSettings": "regard.encoder_settings",
    "HeadTarget": "regard.data.target",
    "Metric": "regard.evaluation.metrics",
    "Modality": "regard.data.modality",
    "Objective": "regard.training.objectives",
    "ObjectiveSettings": "regard.training_settings",
    "RegardError": "regard.errors",
    "RowEdit": "regard.nn.edits",
    "Score": "regard.evaluation.metrics",
    "SideSettings": "regard.section",
    "Stem": "regard.models.stems",
    "StemSettings": "regard.stem_settings",
    "System": "regard.system",
    "Target": "regard.data.target",
    "TargetSettings": "regard.section",
    "Tokenizer": "regard.data.tokens",
    "Watcher": "regard.training.watcher",
    "capture": "regard.nn.attention",
    "export": "regard.exchange",
    "import_model": "regard.exchange",
    "load": "regard.system",
    "register": "regard.registry",
    "train": "regard.runs",
}
__all__ = [*_HOMES, "__version__"]


if not TYPE_CHECKING:  # a type checker, which would take any name then, has all of them above

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'regard' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
