"""Explanations as plain data, for files and for the page: pixels as PNG, sound as WAV, each in an address of its own
that a browser can show or play."""

from __future__ import annotations

import base64
import binascii
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.modality import Canvas
from regard.errors import DataError, require
from regard.explain.trace import Explanation, Layer, Part

FORMAT = "regard-explanation-1"
PNG, WAV = "data:image/png;base64,", "data:audio/wav;base64,"
SAME = ("source", "target", "source_word", "target_word", "log_probs", "best", "inputs", "given", "places")


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Plain data; `from_json` reads it back."""
    x = explanation
    layers = [
        {"name": layer.name, "kind": layer.kind, "weights": np.round(layer.weights.astype(np.float64), 5).tolist(),
         **_some(part=layer.part)}
        for layer in x.layers
    ]  # fmt: skip
    parts = [
        {"name": part.name, "start": part.start, "end": part.end, **_some(canvas=_canvas(part.canvas))}
        for part in x.parts
    ]
    candidates = [[[piece, round(share, 5)] for piece, share in row] for row in x.candidates]
    return {
        "format": FORMAT, "source": x.source, "target": x.target, "source_word": x.source_word,
        "target_word": x.target_word, "inputs": x.inputs, "best": x.best,
        "log_probs": [round(log_prob, 5) for log_prob in x.log_probs], "layers": layers,
        **_some(given=x.given, places=x.places, candidates=candidates, parts=parts, canvas=_canvas(x.canvas),
                drawn=None if x.drawn is None else _address(PNG, png(x.drawn)),
                gold=[list(link) for link in x.gold],
                faithfulness={name: round(value, 5) for name, value in x.faithfulness.items()}),
    }  # fmt: skip


def from_json(data: dict[str, Any]) -> Explanation:
    """The inverse of `to_json`."""
    if data.get("format") != FORMAT:
        raise DataError(f"this is not a saved explanation (its format is {data.get('format')!r}, not '{FORMAT}')")
    return Explanation(
        layers=[
            Layer(x["name"], x["kind"], np.array(x["weights"], dtype=np.float32), x.get("part", 0))
            for x in data["layers"]
        ],
        canvas=_read_canvas(data, len(data["source"])),
        drawn=_from_png(data["drawn"]) if "drawn" in data else None,
        candidates=[[(str(piece), float(share)) for piece, share in row] for row in data.get("candidates", [])],
        parts=[
            Part(x["name"], x["start"], x["end"], _read_canvas(x, x["end"] - x["start"])) for x in data.get("parts", [])
        ],
        gold=[(int(source), int(target)) for source, target in data.get("gold", [])],
        faithfulness={str(name): float(value) for name, value in data.get("faithfulness", {}).items()},
        **{name: data[name] for name in SAME if name in data},
    )


def _some(**values: Any) -> dict[str, Any]:
    """Those values that there are."""
    return {name: value for name, value in values.items() if value}


def _canvas(canvas: Canvas | None) -> dict[str, Any] | None:
    if canvas is None:
        return None
    sound = canvas.sound and _address(WAV, canvas.sound)
    return {
        "pixels": _address(PNG, png(canvas.pixels)), "rows": canvas.rows, "columns": canvas.columns,
        "kind": canvas.kind, **_some(seconds=canvas.seconds, frames=canvas.frames, sound=sound),
    }  # fmt: skip


def _read_canvas(data: dict[str, Any], pieces: int) -> Canvas | None:
    """Of an explanation or a part; files of an earlier Regard have a `picture` there, with a square grid over it."""
    if "picture" in data:
        side = math.isqrt(pieces)
        return Canvas(_from_png(data["picture"]), side, side)
    if "canvas" not in data:
        return None
    saved = data["canvas"]
    return Canvas(
        _from_png(saved["pixels"]), saved["rows"], saved["columns"], saved["kind"], saved.get("seconds", 0.0),
        _from_address(saved["sound"], WAV, "sound") if "sound" in saved else None, saved.get("frames", 0),
    )  # fmt: skip


def _address(kind: str, content: bytes) -> str:
    return kind + base64.b64encode(content).decode("ascii")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A picture `(height, width, 3)` as a PNG file."""
    require("PIL")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _from_png(address: str) -> NDArray[np.uint8]:
    require("PIL")
    from PIL import Image

    try:
        with Image.open(io.BytesIO(_from_address(address, PNG, "picture")), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise _unreadable("picture", error, PNG) from None


def _from_address(address: str, kind: str, what: str) -> bytes:
    try:
        return base64.b64decode(address.removeprefix(kind), validate=True)
    except binascii.Error as error:
        raise _unreadable(what, error, kind) from None


def _unreadable(what: str, error: Exception, kind: str) -> DataError:
    return DataError(f"the {what} of a saved explanation cannot be read ({error}); it should be {kind}…")
