"""Files to settings and back: read, override, merge with a preset, and say all that is wrong at once.

A config file is YAML with the sections of `settings.py`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from regard.data_settings import SPLITS
from regard.errors import ConfigError, shown
from regard.presets import PRESETS
from regard.registry import CELLS, did_you_mean
from regard.section import Kind, Section
from regard.settings import Config
from regard.upgrade import upgraded

S = TypeVar("S", bound=Section)
LARGEST = 2**20  # bytes of a config file
NODES, TOO_MANY = 5000, "more than 5,000 values"
DEPTH, TOO_DEEP = 50, "values nested more than 50 deep"
DIGITS = 100  # of a number, and of what is shown of odd text


def parse(settings: dict[str, Any], where: str = "the settings") -> Config:
    """Check plain settings and make a `Config` of them; all that is wrong is said at once."""
    name = settings.get("preset")
    if name is not None:
        if not isinstance(name, str) or name not in PRESETS:
            hint = did_you_mean(shown(name), list(PRESETS))
            raise ConfigError(f"unknown preset {shown(name)} in {where}; {hint}")
        settings = merge(PRESETS[name].settings, settings)
    return checked(Config, upgraded(settings), where)


def checked(section: type[S], settings: dict[str, Any], where: str) -> S:
    """Plain settings as a section of this class; all that is wrong is said at once."""
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        lines = [_explain(problem, settings, section) for problem in error.errors()]
        raise ConfigError("\n".join([f"{where}: {line}" for line in lines])) from None


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a config file, with paths relative to it, and apply `a.b=c` overrides, with paths relative to the working
    directory."""
    path = Path(path)
    read, given = read_yaml(path), override_settings(overrides or [])
    settings = merge(read, _located(given, Path.cwd()))
    config = parse(settings, str(path))
    before = {**settings, "preset": read.get("preset")}
    changed = given.get("preset") not in (None, read.get("preset"))
    if config.preset is not None and changed and _is_hidden(config.preset, before, config):
        raise ConfigError(
            f"preset={config.preset} would change nothing: {path} sets all that a preset does; "
            f"`regard new DIR --preset {config.preset}` writes a config for it"
        )
    return resolve_paths(config, path.parent)


def _is_hidden(name: str, without: dict[str, Any], config: Config) -> bool:
    """Whether settings of a preset are nowhere in a config, because its file sets them all to something else."""
    try:
        if parse(without).model_copy(update={"preset": name}) != config:
            return False
    except ConfigError:  # without this preset the rest is no config
        return False
    try:
        return parse(merge(config.model_dump(mode="json"), PRESETS[name].settings)) != config
    except ConfigError:
        return True


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds settings."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is a folder; give the config file in it, such as {path / 'config.yaml'}")
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path} is a pipe or a device; a config is a file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{path} is larger than {LARGEST // 2**20} MiB; is it a config file?")
        settings = yaml.load(content.decode("utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"no config file {path}; `regard new DIR` writes one to start from") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); is it a config file?") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {_problem(error)}") from None
    except OSError as error:
        raise ConfigError(f"the config file {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"the config file {str(path)!r} cannot be read: {error}") from None
    if settings is None:
        raise ConfigError(f"{path} is empty; `regard new DIR` writes a config to start from")
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} should hold settings as 'name: value', not a {type(settings).__name__}")
    return settings


class _Loader(yaml.SafeLoader):
    """YAML as far as settings need it: texts, numbers, truth values, lists and sections, and not too many of them."""

    nodes = depth = 0

    def fetch_flow_collection_start(self, kind: Any) -> None:
        if self.flow_level >= DEPTH:  # before the scanner looks ahead for where all of them end
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.get_mark())
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        if self.nodes > NODES or self.depth > DEPTH:
            problem = TOO_MANY if self.nodes > NODES else TOO_DEEP
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_document(self, node: Any) -> Any:
        self._measure(node, {}, set())
        return super().construct_document(node)

    def _measure(self, node: Any, known: dict[int, tuple[int, int]], inside: set[int]) -> tuple[int, int]:
        """How many values a node stands for, and how deep they are nested, if what `*name` repeats were written out."""
        if id(node) in inside:
            raise yaml.MarkedYAMLError(problem="a value that holds itself", problem_mark=node.start_mark)
        if id(node) not in known:
            inside.add(id(node))
            parts = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
            sizes = [self._measure(part, known, inside) for part in parts]
            known[id(node)] = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
            inside.remove(id(node))
        size, depth = known[id(node)]
        if size > NODES or depth > DEPTH:
            problem = TOO_MANY if size > NODES else TOO_DEEP
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return size, depth

    def construct_number(self, node: Any) -> int | float:
        make = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        try:
            if len(node.value) > DIGITS:
                raise ValueError
            return make(node)
        except (ValueError, LookupError, OverflowError):
            problem = f"'{node.value[:DIGITS]}' is no number that can be read"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag not in NAMES:
                raise yaml.MarkedYAMLError(problem="the name of a setting should be text", problem_mark=key.start_mark)
            if key.value in names and key.tag != MERGE:
                raise yaml.MarkedYAMLError(
                    problem=f"'{key.value[:DIGITS]}' is set a second time", problem_mark=key.start_mark
                )
            names.add(key.value)
        return super().construct_mapping(node, deep)


MERGE = "tag:yaml.org,2002:merge"  # `<<`
NAMES = ("tag:yaml.org,2002:str", MERGE)
KINDS = ("null", "bool", "str", "seq", "map")
_Loader.yaml_constructors = {
    None: yaml.SafeLoader.construct_undefined,
    **{f"tag:yaml.org,2002:{kind}": getattr(yaml.SafeLoader, f"construct_yaml_{kind}") for kind in KINDS},
    **{f"tag:yaml.org,2002:{kind}": _Loader.construct_number for kind in ("int", "float")},
}
_Loader.yaml_implicit_resolvers = {  # what looks like a date is text
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def override_settings(overrides: list[str]) -> dict[str, Any]:
    """`["training.steps=100"]` as nested settings."""
    settings: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", name):
            raise ConfigError(
                f"cannot read '{override[:DIGITS]}'; write it as section.setting=value, e.g. training.steps=500"
            )
        try:
            value = yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"cannot read the value in '{override[:DIGITS]}' ({_problem(error)}); quote it if it holds YAML signs"
            ) from None
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = merge(settings, value)
    return settings


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section. A section of another `kind` replaces the one below it; a name alone
    stands for a section of that kind; sections of a list are named by their number, from 0."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, str) and isinstance(value, dict):
            old = {"kind": old}
        elif isinstance(value, str) and isinstance(old, dict) and "kind" in old:
            value = {"kind": value}
        if isinstance(old, list) and isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            numbered = {str(i): one for i, one in enumerate(old)}
            if beyond := [str(number)[:DIGITS] for number in value if number not in numbered]:
                raise ConfigError(f"there is no {name}.{beyond[0]}: {name} lists {len(old)}, numbered from 0")
            merged[name] = list(merge(numbered, value).values())
        elif isinstance(old, dict) and isinstance(value, dict):
            kinds = [section["kind"] for section in (old, value) if "kind" in section]
            alike = kinds[:1] == kinds[1:] or all(kind in CELLS for kind in kinds)
            merged[name] = merge(old, value) if len(kinds) < 2 or alike else value
        else:
            merged[name] = value
    return merged


PATHS = {"data": ("train", "valid", "test", "root", "watch"), "start": ("model", "encoder", "decoder", "weights")}


def _located(settings: dict[str, Any], base: Path) -> dict[str, Any]:
    """Plain settings with paths relative to `base`, or to a home (`~`), made absolute."""

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(one) for one in value]
        if isinstance(value, dict):
            return {name: absolute(one) for name, one in value.items()}
        if not isinstance(value, str):
            return value
        try:
            if b"\0" in os.fsencode(value):
                raise ValueError
        except ValueError:
            raise ConfigError(f"{shown(value)} holds what no path can hold") from None
        path = (base / (Path(value).expanduser() if value.startswith("~/") else value)).absolute()
        direct = os.path.normpath(path)  # without `..`, unless a link makes that another file
        return direct if os.path.realpath(direct) == os.path.realpath(path) else str(path)

    found = {name: absolute(value) if name == "run" else value for name, value in settings.items()}

    def inside(section: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return {name: absolute(value) if name in names else value for name, value in section.items()}

    for section, names in PATHS.items():
        if isinstance(inner := found.get(section), dict):
            found[section] = inside(inner, names)
    if isinstance(data := found.get("data"), dict) and isinstance(corpora := data.get("corpora"), list):
        located = [inside(corpus, SPLITS) if isinstance(corpus, dict) else corpus for corpus in corpora]
        found["data"] = {**data, "corpora": located}
    return found


def resolve_paths(config: Config, base: Path) -> Config:
    """The config with paths relative to `base` made absolute."""
    found = _located(config.model_dump(include={"run", *PATHS}), base)
    located = zip(config.data.corpora or (), found["data"]["corpora"] or (), strict=True)
    corpora = [corpus.model_copy(update=paths) for corpus, paths in located]
    found["data"]["corpora"] = corpora or None
    sections = {name: getattr(config, name).model_copy(update=found[name]) for name in PATHS}
    return config.model_copy(update={"run": found["run"], **sections})


def missing_files(config: Config) -> list[str]:
    """What to say of files and folders that the settings name and that are not there; one line for each."""
    lines = []
    named = {f"{part}.{name}": getattr(getattr(config, part), name) for part in PATHS for name in PATHS[part]}
    named |= {f"data.watch.{name}": files for name, files in named.pop("data.watch").items()}
    for number, corpus in enumerate(config.data.corpora or ()):
        named |= {f"data.corpora[{number}].{split}": getattr(corpus, split) for split in SPLITS}
    for name, files in named.items():
        for path in [files] if isinstance(files, str) else files or []:
            try:
                Path(path).stat()
            except (FileNotFoundError, NotADirectoryError):
                is_file = name.startswith("data") or name == "start.weights"
                lines.append(
                    f"no {'file' if is_file else 'model folder'} {path}; check {name} (paths in a "
                    "config are relative to it, paths on the command line to the working directory)"
                )
            except OSError as error:
                lines.append(f"{name}: {path} cannot be read: {error.strerror}")
    return lines


def dump(config: Config) -> str:
    """All settings as YAML, in the order in which they are documented."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def commented(settings: dict[str, Any]) -> str:
    """A config file with every setting, its default or the value in `settings`, and what it means."""
    config = parse(settings)
    lines = ["# A Regard config. Every setting is here; what you delete keeps its default.", ""]
    _comment_section(config, lines, 0)
    return "\n".join(lines) + "\n"


def _comment_section(section: Section, lines: list[str], depth: int, bullet: str = "") -> None:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        start, bullet = (indent[:-2] + bullet if bullet else indent), ""
        value = getattr(section, name)
        sections = value if isinstance(value, list) and value and isinstance(value[0], Section) else [value]
        if isinstance(sections[0], Section):
            lines += [""] * (depth == 0)
            title = field.description or (type(sections[0]).__doc__ or "").strip().splitlines()[0]
            lines.append(f"{start}{name}:  # {title}")
            for inner in sections:
                _comment_section(inner, lines, depth + 1 + (len(sections) > 1), "- " if len(sections) > 1 else "")
            continue
        text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True, width=10**6)
        setting = f"{start}{name}: {text.removesuffix(chr(10)).removesuffix('...').strip()}"
        lines.append(f"{setting}  # {field.description}" if field.description else setting)


def _explain(problem: Any, settings: dict[str, Any], outermost: type[Section]) -> str:
    """One line for one of pydantic's findings."""
    place, message = [str(part) for part in problem["loc"]], str(problem["msg"]).removeprefix("Value error, ")
    path, section, kind = _section_at(place, settings, outermost)
    if problem["type"] == "extra_forbidden":
        last = place[-1][:DIGITS]
        hint = did_you_mean(last, list(section.model_fields))
        inner = [".".join([*path, name, last]) for name in section.model_fields if _holds(section, name, last)]
        if inner:
            hint = f"did you mean {' or '.join(inner)}?"
        if kind and (having := kind.kinds_with(last)):
            hint = f"add kind: {having[0]}, which has it (without a kind it is {kind.default})"
        return f"unknown setting '{last}' in {_named(path)}; {hint}"
    if problem["type"] in ("value_error", "unknown_kind"):
        return f"{_named(path)} {message}" if path else message
    *outside, name = path or place[-1:]
    return f"'{name}' in {_named(outside)} is {shown(problem['input'])}: {message[0].lower() + message[1:]}"


def _holds(section: type[Section], name: str, setting: str) -> bool:
    """Whether the section of this name, of some kind, has a setting."""
    inner, kind = _section(section, name, {})
    return (inner is not section and setting in inner.model_fields) or bool(kind and kind.kinds_with(setting))


def _named(path: list[str]) -> str:
    return f"[{'.'.join(path)}]" if path else "the top level"


def _section_at(
    place: list[str], settings: dict[str, Any], outermost: type[Section]
) -> tuple[list[str], type[Section], Kind | None]:
    """Where pydantic's location is, without the tags of unions; the section there, or around the setting there; and
    what other kinds that section could be of, if its kind is not given."""
    outside, section, kind = outermost, outermost, None
    path: list[str] = []
    node: Any = settings
    for part in place:
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
            section, kind = _section(outside, path[-1], node)
            path[-1] += f"[{part}]"
        elif part in section.model_fields:
            path.append(part)
            node = node.get(part, {}) if isinstance(node, dict) else {}
            outside, (section, kind) = section, _section(section, part, node)
    return path, section, None if isinstance(node, dict) and "kind" in node else kind


def _section(inside: type[Section], name: str, node: Any) -> tuple[type[Section], Kind | None]:
    """The section of this name; which one it is may depend on its kind."""
    field = inside.model_fields[name.partition("[")[0]]
    for chosen in (*field.metadata, *_inside(field.annotation)):
        if isinstance(chosen, Kind):
            return chosen.section(node) or inside, chosen
        if isinstance(chosen, type) and issubclass(chosen, Section):
            return chosen, None
    return inside, None


def _inside(annotation: Any) -> list[Any]:
    """All that an annotation is made of: the members of a union, what is annotated, and with what."""
    parts = [part for inner in get_args(annotation) for part in _inside(inner)] if get_origin(annotation) else []
    return [*getattr(annotation, "__metadata__", ()), annotation, *parts]
