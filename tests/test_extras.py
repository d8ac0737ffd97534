"""Optional libraries: imported only where they are needed, and named with their install command where they are not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from regard.errors import EXTRAS, MissingExtraError, RegardError, require
from tests.toy import toy_settings, write_corpus

PACKAGE = Path(regard.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOT = PACKAGE.parent


def imported_at_once(path: Path) -> Iterator[str]:
    """The libraries that a file imports when it is itself imported; what is for the type checker alone is not."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield (node.module or "").partition(".")[0]
            elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING") and not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            ):
                waiting.append(node)


def test_no_module_imports_an_optional_library_by_itself() -> None:
    found = {(str(path.relative_to(PACKAGE)), name) for path in MODULES for name in imported_at_once(path)}
    assert ("data/modalities/pixels.py", "numpy") in found  # so that this test can fail
    # FastAPI reads the types of routes when a module is imported, so `regard serve` asks for these libraries before it
    # imports the modules of the server.
    served = {
        (path, name) for path, name in found if path.startswith("serving/") and EXTRAS.get(name, ("", ""))[1] == "serve"
    }
    assert ("serving/app.py", "fastapi") in served
    assert not [(path, name) for path, name in found - served if name in EXTRAS]


def test_every_extra_is_one_that_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = project["optional-dependencies"]
    for module, (needs, extra) in EXTRAS.items():
        package = needs.split()[-1]
        assert any(one.startswith(f"{package}>=") for one in offered[extra]), module
        assert extra in offered["all"][0]
        assert not any(one.startswith(f"{package}>=") for one in project["dependencies"]), module
    assert offered["dev"][0] == "regard[all]"


def test_what_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require("json", "PIL") is sys.modules["json"]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"^pictures need pillow; pip install 'regard\[pictures\]'$"):
        require("PIL")
    for module in ("matplotlib", "babel", "num2words"):
        monkeypatch.setitem(sys.modules, module, None)
    message = (
        r"^figures need matplotlib, the corpora need Babel, the corpora need num2words; "
        r"pip install 'regard\[plots,corpora\]'$"
    )
    with pytest.raises(RegardError, match=message):
        require("matplotlib", "json", "babel", "num2words")


def test_an_optional_library_that_is_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxscript.py").write_text("import gone_and_forgotten\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxscript", raising=False)
    with pytest.raises(ModuleNotFoundError, match="gone_and_forgotten"):
        require("onnxscript")


COMMANDS = {
    "new made --corpus phrasebook": "the corpora need Babel; pip install 'regard[corpora]'",
    "new made --corpus scenes": "pictures need pillow; pip install 'regard[pictures]'",
    "demo --run made": "figures need matplotlib, the corpora need Babel, the corpora need num2words; "
    "pip install 'regard[plots,corpora]'",
    "demo --captions --run made": "figures need matplotlib, pictures need pillow; pip install 'regard[plots,pictures]'",
    "compare --lecture --folder made": "figures need matplotlib; pip install 'regard[plots]'",
}


def test_a_command_says_so_before_it_makes_anything(tmp_path: Path) -> None:
    """One after the other, in a process that finds no optional library."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(EXTRAS)}))\n"
        "from regard.__main__ import main\n"
        f"for command in {list(COMMANDS)}:\n"
        "    sys.argv[1:] = command.split()\n"
        "    try: main()\n"
        "    except SystemExit as left: print(left.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines() == [f"regard: {said}" for said in COMMANDS.values()]
    assert done.stdout.split() == ["2"] * len(COMMANDS)
    assert not list(tmp_path.iterdir())


def test_models_of_own_data_are_compared_without_what_makes_corpora(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (tmp_path / "own.yaml").write_text(json.dumps(toy_settings()))  # JSON is YAML
    code = (
        "import sys; sys.modules.update(babel=None, num2words=None)\n"
        "from regard.__main__ import main\n"
        "sys.argv[1:] = ['compare', 'own.yaml']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "regard: give one budget: --tokens, --seconds or --flops\n"
