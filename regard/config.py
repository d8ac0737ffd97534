"""Files to settings and back: read, override, merge with a preset, and say all that is wrong at once.

A config file is YAML with the sections of `settings.py`. `load` reads it, applies `a.b=c` overrides, resolves its
preset and paths. `commented` writes the file that `regard new` leaves.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from regard.errors import ConfigError
from regard.parts import DECODERS, ENCODERS, Cell, Model, Section
from regard.presets import PRESETS
from regard.settings import Config


def parse(settings: dict[str, Any], where: str = "the settings") -> Config:
    """Check plain settings and make a `Config` of them; all that is wrong is said at once."""
    name = settings.get("preset")
    if name is not None:
        if name not in PRESETS:
            raise ConfigError(f"unknown preset '{name}' in {where}{_did_you_mean(str(name), list(PRESETS))}")
        settings = merge(PRESETS[name].settings, settings)
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        lines = [_explain(problem, settings) for problem in error.errors()]
        raise ConfigError("\n".join([f"{where}: {line}" for line in lines])) from None


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a config file, apply `a.b=c` overrides, and make its paths absolute (they are relative to the file)."""
    path = Path(path)
    settings = merge(read_yaml(path), override_settings(overrides or []))
    return resolve_paths(parse(settings, str(path)), path.parent)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds settings."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file {path}; `regard new DIR` writes one to start from") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give the config file in it, such as {path / 'config.yaml'}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); is it a config file?") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if settings is None:
        raise ConfigError(f"{path} is empty; `regard new DIR` writes a config to start from")
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} should hold settings as 'name: value', not a {type(settings).__name__}")
    return settings


def override_settings(overrides: list[str]) -> dict[str, Any]:
    """`["training.steps=100"]` as nested settings."""
    settings: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ConfigError(f"cannot read '{override}'; write it as section.setting=value, e.g. training.steps=500")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"cannot read the value in '{override}'; quote it if it holds YAML signs") from None
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = merge(settings, value)
    return settings


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section. A section of another `kind` replaces the one below it."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            another = "kind" in value and "kind" in old and not _same_family(value["kind"], old["kind"])
            merged[name] = value if another else merge(old, value)
        else:
            merged[name] = value
    return merged


def _same_family(a: object, b: object) -> bool:
    cells = get_args(Cell)
    return a == b or (a in cells and b in cells)


def resolve_paths(config: Config, base: Path) -> Config:
    """The config with paths relative to `base` made absolute."""

    def absolute(files: str | list[str] | None) -> str | list[str] | None:
        if files is None:
            return None
        return (
            [str((base / f).absolute()) for f in files] if isinstance(files, list) else str((base / files).absolute())
        )

    data = config.data.model_copy(
        update={name: absolute(getattr(config.data, name)) for name in ("train", "valid", "test")}
    )
    start = config.start.model_copy(
        update={name: absolute(getattr(config.start, name)) for name in type(config.start).model_fields}
    )
    return config.model_copy(update={"data": data, "start": start, "run": str((base / config.run).absolute())})


def dump(config: Config) -> str:
    """All settings as YAML, in the order in which they are documented."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def commented(settings: dict[str, Any]) -> str:
    """A config file with every setting, its default or the value in `settings`, and what it means."""
    config = parse(settings)
    lines = ["# A Regard config. Every setting is here; what you delete keeps its default.", ""]
    _comment_section(config, lines, 0)
    return "\n".join(lines) + "\n"


def _comment_section(section: Section, lines: list[str], depth: int) -> None:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            title = (type(value).__doc__ or "").strip().splitlines()[0]
            lines += ["", f"{indent}{name}:  # {title}"] if depth == 0 else [f"{indent}{name}:  # {title}"]
            _comment_section(value, lines, depth + 1)
            continue
        text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True, width=10**6)
        setting = f"{indent}{name}: {text.removesuffix(chr(10)).removesuffix('...').strip()}"
        lines.append(f"{setting}  # {field.description}" if field.description else setting)


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(known)}"


def _explain(problem: Any, settings: dict[str, Any]) -> str:
    """One line for one of pydantic's findings."""
    place = [str(part) for part in problem["loc"]]
    section, known = _section_at(place[:-1], settings)
    where = f"[{'.'.join(section)}]" if section else "the top level"
    if problem["type"] == "extra_forbidden":
        return f"unknown setting '{place[-1]}' in {where}{_did_you_mean(place[-1], known)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = ", ".join(ENCODERS if place[-1] == "encoder" else DECODERS)
        return f"[{'.'.join(place)}] needs a kind; there are: {kinds}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        section, _ = _section_at(place, settings)
        return f"[{'.'.join(section)}] {message}" if section else message
    return f"'{place[-1]}' in {where} is {problem['input']!r}: {message[0].lower() + message[1:]}"


def _section_at(place: list[str], settings: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The section that pydantic's location names, without the tags of unions, and the settings known there."""
    section: type[Section] = Config
    path: list[str] = []
    node: Any = settings
    for part in place:
        if part not in section.model_fields:
            continue
        path.append(part)
        node = node.get(part, {}) if isinstance(node, dict) else {}
        section = _section(section, part, node)
    return path, list(section.model_fields)


def _section(inside: type[Section], name: str, node: Any) -> type[Section]:
    """The section of this name; which one it is may depend on its kind."""
    if inside is Model and name in ("encoder", "decoder"):
        kind = node.get("kind", "lstm") if isinstance(node, dict) else "lstm"
        return (ENCODERS if name == "encoder" else DECODERS).get(kind, inside)
    kind = inside.model_fields[name].annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else inside
