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
    from regard.errors import RegardError as RegardError
    from regard.nn.attention import capture as capture
    from regard.runs import train as train
    from regard.settings import Config as Config
    from regard.system import System as System
    from regard.system import load as load

__version__ = "0.1.0"

_HOMES = {
    "Config": "regard.settings",
    "RegardError": "regard.errors",
    "System": "regard.system",
    "capture": "regard.nn.attention",
    "load": "regard.system",
    "train": "regard.runs",
}
__all__ = ["Config", "RegardError", "System", "__version__", "capture", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
