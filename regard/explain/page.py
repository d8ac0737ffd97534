"""Attention as one HTML page that needs no network: choose a sentence, a layer and a head, and look around.

The page itself is `page.html`, `page.js` and, for what can be drawn on, `canvas.js`, beside this file.
"""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from regard.explain.trace import Explanation

MOST = 2_000_000  # weights of encoder layers that one explanation may bring, of 7 bytes each
DECIMALS = 4  # finer than any screen shows, and the weights are nearly all of the page's size


def page(explanations: list[Explanation], title: str = "What the model attends to") -> str:
    """One self-contained document that shows the explanations; `Explanation.from_json` reads its data back. One of
    several sources that can be drawn on, such as a picture, is shown again by itself."""
    shown = [x for whole in explanations for x in (whole, *(whole.part(i) for i, part in enumerate(whole.parts, 1)
             if part.canvas is not None))]  # fmt: skip
    data = json.dumps([plain(x) for x in shown], allow_nan=False, separators=(",", ":"))
    # Within a script element only "<" could end it or open a comment; as an escape it reads the same to JSON.
    filling = {"title": html.escape(title), "data": data.replace("<", r"\u003c"), "script": _script()}
    # In one pass, so that a token that looks like a placeholder stays a token.
    return re.sub(r"\{\{(title|data|script)\}\}", lambda match: filling[match[1]], _text("page.html"))


def _script() -> str:
    return _text("canvas.js") + _text("page.js")


def _text(name: str) -> str:
    return files("regard.explain").joinpath(name).read_text(encoding="utf-8")


def plain(explanation: Explanation) -> dict[str, Any]:
    """`to_json` for a browser: fewer decimals, and no infinity, which JSON does not have; and of encoder layers over
    many pieces, as a spectrogram or a large picture has, the mean of all heads."""
    averaged = sum(layer.weights.size for layer in explanation.encoder_layers) > MOST
    layers = [
        replace(x, weights=x.weights.mean(0, keepdims=True)) if averaged and x.kind == "encoder" else x
        for x in explanation.layers
    ]
    found = replace(explanation, layers=layers).to_json()
    if averaged:
        found["averaged"] = True
    for layer, data in zip(layers, found["layers"], strict=True):
        data["weights"] = np.nan_to_num(layer.weights.astype(np.float64)).round(DECIMALS).tolist()
    found["log_probs"] = [round(x, DECIMALS) if math.isfinite(x) else None for x in explanation.log_probs]
    return found
