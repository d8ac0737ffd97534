"""Modules of the page, run by node: what they compute can be held against Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any

import pytest

from regard.explain.page import web_folder

node = pytest.mark.skipif(which("node") is None, reason="node runs the page's modules, and is not here")


def run_module(needed: Mapping[str, Sequence[str]], program: str, given: Any) -> list[Any]:
    """What a program says (`say(value)`, each a line of JSON) of what it is `given`, with the names it needs of each
    module of the page."""
    script = "".join(
        f"const {{ {', '.join(names)} }} = await import({json.dumps((web_folder() / f'{module}.js').as_uri())});\n"
        for module, names in needed.items()
    )
    script += 'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0));\n'
    script += f"const say = (value) => console.log(JSON.stringify(value));\n{program}"
    command = ["node", "--experimental-detect-module", "--no-warnings", "--input-type=module", "-e", script]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
