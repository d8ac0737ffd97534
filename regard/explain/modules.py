"""The page's ES modules as one script, for a page that is a single file.

Each module becomes a function that is called once and returns what it exports, in an order in which every module comes
after those it imports. So names of one module are hidden from the others, as they are in a browser that loads them.
"""

from __future__ import annotations

import re
from importlib.resources import files

from regard.errors import ConfigError

IMPORT = re.compile(r'^import \{([^}]*)\}\s*from "\./([\w-]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) ([\w$]+))", re.MULTILINE)


def text(name: str) -> str:
    """A file of the page."""
    return files("regard.explain").joinpath("web", name).read_text(encoding="utf-8")


def one_script(entry: str) -> str:
    """The module `entry` and all that it needs, as one script."""
    order: list[str] = []
    _visit(entry, (), order)
    return '"use strict";\n' + "".join(_scoped(name) for name in order)


def _visit(name: str, importers: tuple[str, ...], order: list[str]) -> None:
    if name in importers:
        raise ConfigError(f"modules import each other in a circle: {' -> '.join([*importers, name])}")
    if name in order:
        return
    for _, needed in IMPORT.findall(text(f"{name}.js")):
        _visit(needed, (*importers, name), order)
    order.append(name)


def _scoped(name: str) -> str:
    code = text(f"{name}.js")
    code, exported = EXPORT.sub("", code), EXPORT.findall(code)
    code = IMPORT.sub(lambda match: f"const {{{match[1]}}} = {_variable(match[2])};\n", code)
    return f"const {_variable(name)} = (() => {{\n{code}return {{ {', '.join(exported)} }};\n}})();\n"


def _variable(name: str) -> str:
    return f"module_{name.replace('-', '_')}"
