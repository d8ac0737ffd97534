"""Named configs: each published model as settings, with its paper and its idea in a line (`presets.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Preset:
    """Settings under a name."""

    paper: str
    idea: str
    settings: dict[str, Any]


_READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, where PyYAML has it
_FILE = Path(__file__).with_suffix(".yaml")
PRESETS = {name: Preset(**preset) for name, preset in yaml.load(_FILE.read_text("utf-8"), _READER).items()}
