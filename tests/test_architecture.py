"""One way through the house: a module imports only from rooms that stand before its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from tests.conftest import whole

PACKAGE = Path(regard.__file__).parent
ROOMS = [
    "errors", "languages", "memory", "artifacts", "registry", "section", "stem_settings", "transformer_settings",
    "encoder_settings", "decoder_settings", "model_settings", "training_settings", "search_settings",
    "data_settings", "settings", "presets", "upgrade", "config", "fingerprint", "ragged", "bundle", "evaluation",
    "data", "nn", "models", "search", "training", "tasks", "explain", "inspection", "loading", "system",
    "runs", "exchange", "output", "display", "generation", "compare", "serving", "demo", "cli", "__main__",
]  # fmt: skip
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
# `Config.load` and `Config.parse` are where users look for what stands in config.py; what alters a source while a model
# trains is a network's part, and its modality says which.
EXCEPTIONS = {("settings", "config"), ("data", "nn")}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The rooms a file imports from, and whether it does so when it is itself imported.

    `import regard` alone counts as the last room behind it, `runs`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    later = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write imports in full"
            names = [
                f"{node.module}.{alias.name}" if node.module == "regard" else node.module or "" for alias in node.names
            ]
        for name in names:
            if name == "regard" or name.startswith("regard."):
                yield (name.split(".")[1] if "." in name else "runs"), id(node) not in later


def test_every_room_is_there() -> None:
    assert {room(path) for path in MODULES} == set(ROOMS)


def test_a_module_imports_only_from_rooms_before_its_own() -> None:
    wrong = []
    for path in MODULES:
        here = room(path)
        before = ROOMS[
            : ROOMS.index("tasks" if here == "explain" else here)
        ]  # what is shown is apart from what is done
        for other, at_once in imports(path):
            if (here, other) in EXCEPTIONS:
                if at_once:
                    wrong.append(f"{path} should import {other} only when it is needed")
            elif other != here and other not in before:
                wrong.append(f"{path} imports regard.{other}, which stands after it")
    assert not wrong, "\n".join(wrong)


@whole
def test_listing_models_is_light() -> None:
    """Models are counted on torch's meta device, where much of what makes one imports torch's compiler."""
    code = "import sys; from regard.cli import app; app(['models'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "torch" in imported
    assert not {"torch._dynamo", "sympy"} & set(imported)


@pytest.mark.parametrize("heavy", ["torch", "matplotlib", "sacrebleu"])
def test_importing_regard_and_reading_a_config_is_light(heavy: str) -> None:
    read = "[regard.Config.parse({'preset': name}) for name in regard.presets.PRESETS]"
    code = f"import regard, regard.config, sys; {read}; print('{heavy}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
