"""Settings and weights of an earlier Regard, brought to today's form: what was trained before still loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
STEM = ("halvings", "channels", "coordinates")


def upgraded(settings: dict[str, Any]) -> dict[str, Any]:
    """Plain settings, with what stood in `data`, `tokens.shared`, `model.head` and `search.exact` where it is now."""
    found = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    found |= {side: {"kind": found[side]} for side in ("source", "target") if isinstance(found.get(side), str)}
    data, tokens, model = (_section(found, name) for name in ("data", "tokens", "model"))
    if all(isinstance(found.get(side, {}), dict) for side in ("source", "target")):
        _upgrade_sides(found, data, tokens, model)
    search = _section(found, "search")
    if isinstance(search.get("exact"), bool):
        if search.pop("exact"):
            search["stop"] = "exact"
        elif search.get("stop") == "exact":
            search["stop"] = "heuristic"
    encoder = model.get("encoder")
    kind = encoder.get("kind") if isinstance(encoder, dict) else None
    if isinstance(encoder, dict) and (kind == "convolution" or (kind == "stem" and any(x in encoder for x in STEM))):
        stem = {name: encoder[name] for name in STEM if name in encoder}
        rest = {name: value for name, value in encoder.items() if name not in STEM}
        before = rest.get("stem") if isinstance(rest.get("stem"), dict) else {}
        model["encoder"] = {**rest, "kind": "stem", "stem": {"kind": "convolution", **(before or {}), **stem}}
    objective = _section(found, "training").get("objective")
    if isinstance(objective, dict) and "blanks" in objective:
        objective = dict(objective)
        found["training"]["objective"] = {"masked": objective.pop("blanks"), **objective}
    return {name: value for name, value in found.items() if value != {} or settings.get(name) == {}}


def upgraded_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names, with what stood in `search.exact`, or in `exact` where they are those of a search
    alone, where it is now."""
    found = dict(parts)
    for section in ("search.", ""):
        if f"{section}beam" in found and isinstance(found.get(f"{section}exact"), bool):
            found[f"{section}stop"] = "exact" if found.pop(f"{section}exact") else "heuristic"
    return found


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    value = settings.setdefault(name, {})
    return value if isinstance(value, dict) else {}


def _upgrade_sides(found: dict[str, Any], data: dict[str, Any], tokens: dict[str, Any], model: dict[str, Any]) -> None:
    source, target = _section(found, "source"), _section(found, "target")
    if "source" in data:
        kind = data.pop("source")
        source["kind"] = "image" if kind == "picture" else kind
    if "head" in model:
        target["kind"] = model.pop("head")
    reads_text, writes_text = source.get("kind", "text") == "text", target.get("kind", "text") == "text"
    if "picture" in data:
        size = data.pop("picture")
        if source.get("kind") == "image":
            source["size"] = size
    if "columns" in data:
        columns = data.pop("columns")
        if isinstance(columns, list) and columns:
            single = source.get("kind") == "none"
            (target if single else source)["column"] = columns[0]
            if not single and len(columns) > 1:
                target["column"] = columns[1]
                data["alignment"] = columns[2] if len(columns) > 2 else False
    if "max_length" in data:
        longest = data.pop("max_length")
        for side, is_text in ((source, reads_text), (target, writes_text)):
            if is_text:
                side["max_length"] = longest
    if tokens.pop("shared", True) is False and reads_text and writes_text:
        source["tokens"] = dict(tokens) | source.get("tokens", {})
        target["tokens"] = dict(tokens) | target.get("tokens", {})


NAMES = (
    (re.compile(r"^encoder\.embedding\."), "encoder.stem.embedding."),
    (re.compile(r"^encoder\.(layers|norm)\.(?=\d|weight|bias)"), r"encoder.stem.\1."),
)


def upgraded_names(tensors: Mapping[str, T]) -> dict[str, T]:
    """Weights by the names that they have today."""
    found = {}
    for name, tensor in tensors.items():
        for old, new in NAMES:
            name = old.sub(new, name)
        found[name] = tensor
    return found
