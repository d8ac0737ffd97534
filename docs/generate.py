"""Pages that are made when the site is built: every setting, from the classes that check it, and every command.

An mkdocs hook. `settings_page`, `server_page` and `commands_page` need neither mkdocs nor torch; `tests/test_docs.py`
reads them too.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import yaml
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from regard.cli import app
from regard.section import Kind, Section
from regard.serving.settings import ServerSettings
from regard.settings import Config

SETTINGS = """# Settings

A config is a YAML file with the sections below. Settings that it leaves out keep their defaults. `regard new` writes a
config with every setting and its meaning.

- On the command line, write a setting with dots: `regard train config.yaml training.steps=500`. A list is
  written as in YAML: `data.train=[a.en,a.de]`. A section in a list is named by its number, from 0:
  `source.1.size=64`.
- If a section has a `kind`, its other settings depend on it. A name alone stands for a section of that kind:
  `encoder: gru` is `encoder: {kind: gru}`.
- `preset` names a published model; its settings apply where the config sets nothing else. `regard models` lists them.
- Paths in a config are relative to the config file, paths on the command line to the working directory.
- Unknown names, values out of their limits and settings that clash are errors, all reported at once.

"""
SERVER = """# Settings of the server

`regard serve --config serve.yaml` reads a YAML file with the settings below ([how](howto/serving.md)). Settings that it
leaves out keep their defaults, and paths in it are relative to it. An unknown name or a value out of its limits is an
error.

"""
COMMANDS = """# Commands

Each command has `-h`. These options work with every command and anywhere on the line: `--import MODULE` imports a
module that [registers your own parts](extending.md), `-q` hides progress, `-v` adds a traceback to errors. `regard
--version` prints the version, `regard --install-completion` sets up shell completion.

| exit code | meaning |
|---|---|
| 0 | done |
| 2 | refused or failed; the last lines on standard error, after `regard:`, say why |
| 129, 130, 143 | stopped by SIGHUP, Ctrl-C or SIGTERM |
| 141 | the reader of standard output has closed the pipe |

"""
NAMES = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`", NoneType: "`null`"}
SIGNS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def settings_page() -> str:
    """The reference of settings, in Markdown."""
    return SETTINGS + "\n".join(_section(Config, "", [], 1, set()))


def server_page() -> str:
    """The reference of the server's settings, in Markdown."""
    return SERVER + "\n".join(_section(ServerSettings, "", [], 1, set()))


def _section(section: type[Section], path: str, kinds: list[str], level: int, known: set[str]) -> Iterator[str]:
    """A table of the settings in a section, then the sections in it. Each setting can be linked to by its name."""
    yield from ("| setting | values | default | meaning |", "|---|---|---|---|")
    inner = []
    for name, field in section.model_fields.items():
        whole, meaning = f"{path}{name}", field.description
        value = field.get_default(call_default_factory=True)
        found = [(some, part) for some, part in _sections(field.annotation, field.metadata) if part is not section]
        kinded = [f"[`{kind}`](#{_anchor(whole, some)})" for some, _ in found for kind in some]
        place_of = f"{whole}-{kinds[0]}" if whole in known and kinds and found and not found[0][0] else whole
        another = place_of != whole and found[0][1].__name__ not in known  # a section of this name, and another one
        if found and (whole not in known or another):
            inner.append((place_of if another else whole, found))
            known.update(part.__name__ for some, part in found if not some)
        if kinded:
            values = f"a section of kind {', '.join(kinded)}"
            default = "`null`" if value is None else f"`{getattr(value, 'kind', 'text')}`"
        elif found:
            values, default = f"[a section](#{place_of if another else whole})", "" if value else "`null`"
            meaning = meaning or found[0][1].__doc__
        else:
            values, default = _values(field.annotation, field.metadata), ""
            if not field.is_required():
                default = f"`{_yaml(value)}`"
            if name == "kind" and kinds:
                values, default = ", ".join(f"`{kind}`" for kind in kinds), ""
        place = "" if whole in known or (found and not kinded) else f'<a id="{whole}"></a>'
        known.add(whole)
        yield f"| {place}`{whole}` | {values} | {default} | {_text(meaning or 'what this section is')} |"
    yield ""
    for whole, found in inner:
        for some, part in found:
            named = f" of kind {', '.join(f'`{kind}`' for kind in some)}" if some else ""
            setting = whole.partition("-")[0]
            yield f"{'#' * (level + 1)} `{setting}`{named} {{ #{_anchor(whole, some)} }}"
            yield from ("", _text(part.__doc__ or ""), "")
            yield from _section(part, f"{setting}.", some, level + 1, known)


def _anchor(path: str, kinds: list[str]) -> str:
    return "-".join([path, *kinds[:1]])


def _sections(annotation: Any, metadata: Any = ()) -> list[tuple[list[str], type[Section]]]:
    """The sections that a setting may be, each with the kinds that it belongs to, if it has kinds."""
    for mark in metadata:
        if isinstance(mark, Kind):
            grouped: dict[type[Section], list[str]] = {}
            for kind in mark.family.kinds:
                grouped.setdefault(mark.family.settings(kind), []).append(kind)
            return [(kinds, part) for part, kinds in grouped.items()]
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _sections(arguments[0], arguments[1:])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [([], annotation)]
    return [part for one in arguments for part in _sections(one)]


def _values(annotation: Any, metadata: Any = ()) -> str:
    """What may be given, with its limits."""
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            return _values(arguments[0], arguments[1:])
        case origin if origin is Literal:
            return ", ".join(f"`{one}`" for one in arguments)
        case origin if origin in (Union, UnionType):
            return " or ".join(_values(one, metadata) for one in arguments)
        case origin if origin is list:
            return f"list of {_values(arguments[0])}"
        case origin if origin is tuple:
            return f"list of {len(arguments)}: {_values(arguments[0])}"
    marks = [inner for mark in metadata for inner in getattr(mark, "metadata", [mark])]  # those of a named type too
    given = [(sign, getattr(mark, name, None)) for mark in marks for name, sign in SIGNS]
    limits = [f"{sign} {_number(limit)}" for sign, limit in given if limit is not None]
    return " ".join([NAMES.get(annotation, ""), ", ".join(limits) if annotation in (int, float) else ""]).strip()


def _number(value: float) -> str:
    power = len(str(value)) - 1
    return f"10<sup>{power}</sup>" if value == 10**power and power > 3 else f"{value:,}"


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True).removesuffix("\n").removesuffix("...").strip()


def _text(text: str) -> str:
    """Plain text as a cell or paragraph of Markdown; what stands in back quotes is code."""
    parts = " ".join(text.split()).split("`")
    for i in range(0, len(parts), 2):
        parts[i] = html.escape(parts[i], quote=False).replace("*", r"\*").replace("_", r"\_").replace("|", r"\|")
    return "`".join(parts)


def commands_page() -> str:
    """The reference of commands, in Markdown."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    shown = [(name, command) for name, command in group.commands.items() if not command.hidden]
    return COMMANDS + "\n".join(line for name, command in shown for line in _command(name, cast(TyperCommand, command)))


def _command(name: str, command: TyperCommand) -> Iterator[str]:
    rows, usage = ["| argument or option | default | meaning |", "|---|---|---|"], [f"regard {name}"]
    for one in cast(list[TyperArgument | TyperOption], command.params):
        kind: Any = one.type_descriptor.annotation
        words = one.metavar or (one.name or "").upper()
        default = "" if one.default in (None, False) else f"`{one.default}`"
        meaning = _text(one.help or "") + (" Needed." if one.required else "")
        if get_origin(kind) is Literal:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in get_args(kind))}."
        if isinstance(one, TyperOption):
            rows.append(f"| `{', '.join(one.opts)}{'' if one.is_flag else f' {words}'}` | {default} | {meaning} |")
        else:
            words += " …" if one.nargs == -1 else ""
            usage.append(words if one.required else f"[{words}]")
            rows.append(f"| `{words}` | {default} | {meaning} |")
    yield from (f"## regard {name} {{ #{name} }}", "", f"`{' '.join(usage)} [OPTIONS]`", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (_text(paragraph), "")
    yield from (*rows, "")


PAGES = {"settings.md": settings_page, "server.md": server_page, "cli.md": commands_page}


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs when it has listed the files of the site."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files
