"""Attention as one HTML page that needs no network: choose a sentence, a layer and a head, and look around.

The page itself is `page.html` and `page.js`, beside this file.
"""

from __future__ import annotations

import html
import json
import math
import re
from importlib.resources import files
from typing import Any

import numpy as np

from regard.explain.trace import Explanation

DECIMALS = 4  # finer than any screen shows, and the weights are nearly all of the page's size


def page(explanations: list[Explanation], title: str = "What the model attends to") -> str:
    """One self-contained document that shows the explanations; `Explanation.from_json` reads its data back."""
    data = json.dumps([_plain(x) for x in explanations], allow_nan=False, separators=(",", ":"))
    # Within a script element only "<" could end it or open a comment; as an escape it reads the same to JSON.
    filling = {"title": html.escape(title), "data": data.replace("<", r"\u003c"), "script": _text("page.js")}
    # In one pass, so that a token that looks like a placeholder stays a token.
    return re.sub(r"\{\{(title|data|script)\}\}", lambda match: filling[match[1]], _text("page.html"))


def _text(name: str) -> str:
    return files("regard.explain").joinpath(name).read_text(encoding="utf-8")


def _plain(explanation: Explanation) -> dict[str, Any]:
    """`to_json` for a browser: fewer decimals, and no infinity, which JSON does not have."""
    plain = explanation.to_json()
    for layer, data in zip(explanation.layers, plain["layers"], strict=True):
        data["weights"] = np.nan_to_num(layer.weights.astype(np.float64)).round(DECIMALS).tolist()
    plain["log_probs"] = [round(x, DECIMALS) if math.isfinite(x) else None for x in explanation.log_probs]
    return plain
