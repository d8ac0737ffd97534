"""The explorer: one front end (`web/`: ES modules and a style sheet, without a build step) as two pages. `page` is a
single file that needs no network, with explanations inside; `served_page` is what `regard serve` answers with, whose
modules ask the server."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from regard.evaluation.alignment import Kind
from regard.explain.modules import one_script, text
from regard.explain.trace import Explanation, Layer

MOST = 2_000_000  # weights of layers of one kind that an explanation may bring, of 7 bytes each
DECIMALS = 4  # finer than any screen shows, and the weights are nearly all of the page's size
KINDS: tuple[Kind, ...] = ("cross", "encoder", "decoder")
STYLE, SERVED_STYLE = "style.css", "explorer.css"  # of both pages, and of what only a server's page has
WEB = "web"  # the folder of modules, here and, as it is served, in the page's addresses
# Nothing may be fetched: the page works offline, and no token can make it call out.
OFFLINE = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# For the server's header: all comes from it, and nothing is written into the page itself.
POLICY = "default-src 'self'; img-src 'self' data:; media-src 'self' data: blob:; base-uri 'none'; form-action 'none'"


def page(explanations: list[Explanation], title: str = "What the model attends to") -> str:
    """One self-contained document that shows the explanations; `Explanation.from_json` reads its data back."""
    data = json.dumps([plain(x) for x in explanations], allow_nan=False, separators=(",", ":"))
    # Within a script element only "<" could end it or open a comment; as an escape it reads the same to JSON.
    data = data.replace("<", r"\u003c")
    return _filled(
        title,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{OFFLINE}">',
        style=f"<style>\n{text(STYLE)}</style>",
        data=f'<script type="application/json" id="data">{data}</script>',
        script=f'<script type="module">\n{one_script("page")}</script>',
    )


def served_page(title: str = "Regard") -> str:
    """The document of a server, which has the files of `web_folder` under `web/` beside it, the native API under `v1/`
    and `POLICY` as its Content-Security-Policy."""
    styles = "\n".join(f'<link rel="stylesheet" href="{WEB}/{name}">' for name in (STYLE, SERVED_STYLE))
    icon = '<link rel="icon" href="data:,">'  # none, so that none is asked for
    script = f'<script type="module" src="{WEB}/explorer.js"></script>'
    return _filled(title, policy=icon, style=styles, data="", script=script)


def web_folder() -> Path:
    """Where the modules and style sheets lie."""
    return Path(str(files("regard.explain").joinpath(WEB)))


def plain(explanation: Explanation) -> dict[str, Any]:
    """`to_json` for a browser: fewer decimals, no infinity, which JSON does not have, and no more weights than it can
    hold (`_thinned`): `averaged` tells of heads, `left_out` how many layers it lacks. Those of several sources that can
    be drawn on, such as a picture, are there again by themselves (`by_source`)."""
    thinned = {layer.name: layer for kind in KINDS for layer in _thinned(explanation, kind)}
    shown = [layer for layer in explanation.layers if layer.name in thinned]
    layers = [thinned[layer.name] for layer in shown]
    found = replace(explanation, layers=layers).to_json()
    if any(len(kept.weights) < len(layer.weights) for kept, layer in zip(layers, shown, strict=True)):
        found["averaged"] = True
    if len(layers) < len(explanation.layers):
        found["left_out"] = len(explanation.layers) - len(layers)
    for layer, data in zip(layers, found["layers"], strict=True):
        data["weights"] = np.nan_to_num(layer.weights.astype(np.float64)).round(DECIMALS).tolist()
    found["log_probs"] = [round(x, DECIMALS) if math.isfinite(x) else None for x in explanation.log_probs]
    drawn = [(i, part.name) for i, part in enumerate(explanation.parts, 1) if part.canvas is not None]
    if drawn:
        found["by_source"] = [{"name": name, **plain(explanation.part(i))} for i, name in drawn]
    return found


def _thinned(explanation: Explanation, kind: Kind) -> list[Layer]:
    """The layers of a kind. Over many pieces, as a spectrogram, a large picture or a long text has, the mean of their
    heads; where those are still too many, only the layer to align by or the last."""
    layers = [layer for layer in explanation.layers if layer.kind == kind]
    if sum(layer.weights.size for layer in layers) <= MOST:
        return layers
    means = [replace(layer, weights=layer.weights.mean(0, keepdims=True)) for layer in layers]
    if sum(layer.weights.size for layer in means) <= 2 * MOST:
        return means
    return [layer for layer in means if layer.name == explanation.best] or means[-1:]


def _filled(title: str, **parts: str) -> str:
    """The template, filled in one pass, so that a token that looks like a placeholder stays a token."""
    filling = {"title": html.escape(title), **parts}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filling[match[1]], text("index.html"))
