"""The docs are true: links lead somewhere, commands, configs and code are sound, the reference leaves nothing out."""

from __future__ import annotations

import ast
import html
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

import regard
from regard.cli import app
from regard.cli.shared import brought_forward
from regard.config import checked, parse
from regard.presets import PRESETS
from regard.section import Kind, Section
from regard.serving.settings import ServerSettings
from tests.conftest import whole
from tests.test_cli import good

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE = {DOCS / name: make() for name, make in load_generator().PAGES.items()}
WRITTEN = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
TEXTS: dict[Path, str] = {**WRITTEN, **MADE}
PAGES = pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
GROUP = cast(TyperGroup, get_command(app))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(TEXTS[page]) if language in languages]


def prose(page: Path) -> str:
    return FENCE.sub("", TEXTS[page])


# Links


def links(page: Path) -> list[str]:
    return re.findall(r"(?<!\\)\]\(([^)\s]+)\)", CODE.sub("code", prose(page)))


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: headings, what has an id, and what mkdocstrings documents."""
    text = prose(page)
    found = {*re.findall(r'<a id="([^"]+)">', text), *re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        given = re.search(r"\{ #(\S+) \}$", heading)
        found.add(given[1] if given else slug(heading))
    return found


def slug(heading: str) -> str:
    """A heading's anchor, as Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", heading.replace("`", "")).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@PAGES
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists() or place in MADE, link
        assert not anchor or anchor in anchors(place), link


def test_there_are_links_to_check() -> None:
    assert "settings.md" in links(DOCS / "index.md")
    assert "export.md#what-to-install" in links(DOCS / "index.md")
    assert {"what-to-install", "onnx"} <= anchors(DOCS / "export.md")
    assert {"training.steps", "source-text", "tokens"} <= anchors(DOCS / "settings.md")


def test_every_page_is_in_the_navigation_and_needs_no_network() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def pages(part: Any) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from pages(inner)

    assert sorted(pages(site["nav"])) == sorted(str(page.relative_to(DOCS)) for page in TEXTS if DOCS in page.parents)
    assert site["theme"]["font"] is False
    assert "offline" not in site["plugins"], "it loads a script from the network"


@PAGES
def test_lists_are_rendered_as_lists(page: Path) -> None:
    """Python-Markdown wants a blank line, or a heading, before the first item."""
    lines = prose(page).splitlines()
    for before, line in pairwise(lines):
        if re.match(r"(- |\d+\. |\|)", line):
            assert re.match(r"(\s*$|- |\d+\. |\||#|  )", before), line


# Commands


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `regard …` in the blocks of a page, without what a shell does for them."""
    for block in blocks(page, "sh", ""):
        for line in block.replace("\\\n", " ").splitlines():
            found = shlex.shlex(re.sub(r'"\$\(.*?\)"', "TEXT", line), posix=True, punctuation_chars=True)
            words, rest = list(found), list[str]()
            for word in [*words, ";"]:
                if set(word) <= set("|;&<>()"):
                    if rest[:1] == ["regard"]:
                        yield rest[1:]
                    rest = []
                else:
                    rest.append(word)


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """A command and what it is given; what it does not take is an error."""
    rest = brought_forward(arguments)
    while rest[0].startswith("-"):
        assert rest[0] in {option for one in GROUP.params for option in one.opts}, rest[0]
        rest = rest[2:] if rest[0] == "--import" else rest[1:]
    return rest[0], GROUP.commands[rest[0]].make_context(rest[0], rest[1:]).params


@PAGES
def test_commands_are_taken(page: Path) -> None:
    known = anchors(DOCS / "settings.md")
    for arguments in commands(page):
        name, given = parsed(arguments)
        for override in [*(given.get("overrides") or []), *(given.get("settings") or [])]:
            setting = override.partition("=")[0]
            short = name not in ("train", "compare", "demo")
            assert (f"search.{setting.removeprefix('search.')}" if short else setting) in known, override


@PAGES
def test_commands_in_the_text_exist(page: Path) -> None:
    for code in CODE.findall(html.unescape(prose(page))):
        words = code.split()
        if words[0] != "regard" or len(words) == 1:
            continue
        own = {option for one in GROUP.params for option in one.opts} | {"-h", "--help"}
        if not words[1].startswith("-"):
            own |= {option for one in GROUP.commands[words[1]].params for option in one.opts}
        for word in words[1:]:
            assert not word.startswith("-") or word == "-" or word.partition("=")[0] in own, code


def test_there_are_commands_to_check() -> None:
    assert len(list(commands(DOCS / "tutorial.md"))) >= 9
    assert ["generate", "mlm/run"] in list(commands(DOCS / "howto/masked-language-models.md"))
    for wrong in (["translate", "a", "--beem", "2"], ["trian", "a"], ["export", "a", "--to", "paper", "-o", "b"]):
        with pytest.raises(Exception, match=r"beem|trian|paper"):
            parsed(wrong)


@PAGES
def test_settings_in_the_text_exist(page: Path) -> None:
    known = anchors(DOCS / "settings.md")
    sections = "data|training|search|start|tokens|model|source|target"
    for code in CODE.findall(prose(page)):
        found = re.match(rf"(?:{sections})(?:\.[a-z_]+)+", code)
        if found and not found[0].endswith((".py", ".safetensors")):
            assert found[0] in known, code


# Configs and code


@PAGES
def test_configs_are_sound(page: Path) -> None:
    for block in blocks(page, "yaml"):
        if "models:" in block:
            checked(ServerSettings, yaml.safe_load(block), str(page))
        elif "kind: signal" not in block:  # its parts are made in that page, and tests/test_extension.py runs it
            parse(yaml.safe_load(block), str(page))
    for block in blocks(page, "json"):
        assert isinstance(json.loads(block), dict)


@PAGES
def test_python_is_sound(page: Path) -> None:
    """It compiles, and what it takes from Regard is there."""
    for code in blocks(page, "python"):
        tree = ast.parse(code)
        compile(tree, str(page), "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "regard":
                assert hasattr(regard, node.attr), node.attr
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with few examples and updates; exporting is run from the README."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "tutorial.md"
    data, use = blocks(page, "python")
    exec(compile(data.replace("8000", "200").replace("300", "20"), "make_dates.py", "exec"), {})
    assert [len(Path(f"{name}.tsv").read_text().splitlines()) for name in ("train", "valid", "test")] == [200, 20, 20]
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("printf"):
                subprocess.run(line, shell=True, check=True)
            elif line.startswith("regard train"):
                quick = {"d_model=128": "d_model=16", "steps=300": "steps=6", "every=100": "every=3"}
                for old, new in quick.items():
                    assert old in line
                    line = line.replace(old, new)
                good(*shlex.split(line)[1:])
            elif line.startswith("regard") and not line.startswith("regard export"):
                good(*shlex.split(line)[1:])
    assert len(Path("output.txt").read_text().splitlines()) == 3
    assert Path("attention.html").read_text().startswith("<!")
    assert json.loads(Path("scores.json").read_text())["scores"]["bleu"]["interval"]
    exec(compile(use, str(page), "exec"), {})
    assert Path("page.html").exists()


# The reference


def all_sections(base: type[Section] = Section) -> Iterator[type[Section]]:
    for section in base.__subclasses__():
        if section.__module__.startswith("regard."):  # not what a test has made
            yield section
            yield from all_sections(section)


def test_the_settings_page_names_every_setting() -> None:
    page = MADE[DOCS / "settings.md"] + MADE[DOCS / "server.md"]
    rows = re.findall(r"^\| (?:<a id=\"[^\"]+\"></a>)?`([a-z_.]+)` \|", page, re.MULTILINE)
    last = {row.rpartition(".")[2] for row in rows}
    text = html.unescape(page).replace("\\", "")
    sections = set(all_sections())
    assert len(sections) > 20
    for section in sections:
        for name, field in section.model_fields.items():
            assert name in last, f"{section.__name__}.{name}"
            assert " ".join((field.description or "").split()) in text, f"{section.__name__}.{name}"
            assert field.description or not any(isinstance(mark, Kind) for mark in field.metadata), name

    def names(value: Any, path: str = "") -> Iterator[str]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from (f"{path}{name}", *names(inner, f"{path}{name}."))

    for preset in PRESETS:
        assert set(names(parse({"preset": preset}).model_dump())) <= set(rows), preset


def test_the_settings_page_has_defaults_limits_and_kinds() -> None:
    rows = MADE[DOCS / "settings.md"].splitlines()

    def row(name: str) -> str:
        return next(line for line in rows if f'<a id="{name}">' in line)

    assert "| whole number ≥ 1, ≤ 10<sup>12</sup> | `20000` | updates in all |" in row("training.steps")
    assert "| number ≥ 0, < 1 | `0.1` |" in row("model.dropout")
    assert "| list of 2: number ≥ 0, < 1 | `[0.9, 0.98]` |" in row("training.betas")
    assert "| `pre`, `post` | `pre` |" in next(line for line in rows if "`model.encoder.norm`" in line)
    assert "[`image`](#source-image)" in row("source")
    assert "` | `null` |" in row("training.metric")
    assert "&lt;unk&gt;" in row("search.unknown")


def test_the_commands_page_names_every_option() -> None:
    page = MADE[DOCS / "cli.md"]
    for name, command in GROUP.commands.items():
        if command.hidden:
            continue
        section = page.partition(f"## regard {name} {{")[2].partition("\n## ")[0]
        assert section, name
        for one in command.params:
            named = one.metavar if one.opts == [one.name] else one.opts[0]
            assert f"\n| `{named}" in section, one


def test_the_python_page_names_what_is_public() -> None:
    documented = re.findall(r"^::: (\S+)", TEXTS[DOCS / "api.md"], re.MULTILINE)
    assert {f"regard.{name}" for name in regard.__all__ if name != "__version__"} <= set(documented)
    for name in documented:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


def test_messages_in_troubleshooting_are_what_is_said() -> None:
    """Each part of a quoted message, between the places where it differs, stands in one message of the code."""
    said = []
    for path in sorted(Path(regard.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                said.append("".join(str(x.value) if isinstance(x, ast.Constant) else "…" for x in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.append(node.value)
    headings = re.findall(r"^### (.*)$", TEXTS[DOCS / "troubleshooting.md"], re.MULTILINE)
    quoted = [code for heading in headings for code in CODE.findall(heading)]
    assert len(quoted) > 25
    for message in quoted:
        parts = [part for part in message.split("…") if part.strip(" ;,:.'")]
        assert any(all(part in text for part in parts) for text in said), message


@whole
@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="the extra `docs` is not installed")
def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path], cwd=ROOT, check=True
    )
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "settings.html", "cli.html", "api.html"} <= {page.name for page in pages}
    assert 'id="training.steps"' in (tmp_path / "settings.html").read_text()
    assert 'id="regard.System.generate"' in (tmp_path / "api.html").read_text()
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert not loaded, page
