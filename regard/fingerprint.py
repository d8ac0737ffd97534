"""What work was made from, as one digest: every setting that matters, and the content of every file. It alone decides
whether a run or an output can be resumed, and a comparison or a cache be used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from regard.artifacts import file_digest
from regard.section import Section
from regard.upgrade import upgraded_parts

Value = Any  # as JSON has it
SHOWN = 40  # characters of a value in a message
CONTENT = "content of "


@dataclass(frozen=True)
class Fingerprint:
    """The parts that decide, by name: `training.seed` to its value, `content of data.train` to a digest. What a setting
    is by default (`defaults`) is also what it was for an earlier Regard, which did not know it."""

    parts: Mapping[str, Value]
    defaults: Mapping[str, Value] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.parts), sort_keys=True).encode()).hexdigest()

    def differences(self, before: Mapping[str, Value], *, free: Collection[str] = ()) -> list[str]:
        """What is not as in `before`, in words, apart from the `free` parts; `section.` frees a whole section."""
        found, before = [], upgraded_parts(before)
        for name in dict.fromkeys([*before, *self.parts]):
            old, new = before.get(name), self.parts.get(name)
            unknown = name not in before and name in self.defaults and self.defaults[name] == new
            if old != new and not unknown and not _is_free(name, free):
                values = f"{name} ({_show(old)} before, {_show(new)} now)"
                found.append(f"the {name}" if name.startswith(CONTENT) else values)
        return found


def _is_free(name: str, free: Collection[str]) -> bool:
    return any(name == one or (one.endswith(".") and name.startswith(one)) for one in free)


def settings_of(section: Section, *, without: Collection[str] = ()) -> dict[str, Value]:
    """Every setting by its dotted name, as JSON has it."""
    found: dict[str, Value] = {}

    def collect(value: Value, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(inner, f"{name}.{key}" if name else key)
        elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
            for number, inner in enumerate(value):
                collect(inner, f"{name}[{number}]")
        elif not _is_free(name, without):
            found[name] = value

    collect(section.model_dump(mode="json"), "")
    return found


def defaults_of(section: Section) -> dict[str, Value]:
    """What every setting of `settings_of` is by default, in a section of this kind."""
    found: dict[str, Value] = {}

    def collect(section: Section, name: str) -> None:
        for key, setting in type(section).model_fields.items():
            value, full = getattr(section, key), f"{name}.{key}" if name else key
            several = value if isinstance(value, list) else ()
            if isinstance(value, Section):
                collect(value, full)
            elif several and all(isinstance(inner, Section) for inner in several):
                for number, inner in enumerate(several):
                    collect(inner, f"{full}[{number}]")
            elif not setting.is_required():
                found[full] = to_jsonable_python(setting.get_default(call_default_factory=True))

    collect(section, "")
    return found


def content_of(paths: Iterable[str | Path]) -> str:
    """One digest of the content of files, in this order, whatever their names."""
    return hashlib.sha256("".join(file_digest(Path(path)) for path in paths).encode()).hexdigest()


def _show(value: Value) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
