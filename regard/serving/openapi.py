"""What OpenAPI says of routes that read their requests themselves, since their protocols take them in several forms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
WHY = {
    400: "malformed, or nothing that can be done", 401: "no such key", 404: "not there", 408: "too slow",
    413: "too large", 415: "compressed, or of another type", 421: "not our name",
    429: "too many requests; Retry-After says when to come again", 503: "going down, or being loaded",
    504: "took too long",
}  # fmt: skip


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a request, complete in itself."""
    schema = model.model_json_schema()
    known = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(name := value.get("$ref"), str):
                return inlined(known[name.rpartition("/")[2]])
            return {key: inlined(one) for key, one in value.items()}
        return [inlined(one) for one in value] if isinstance(value, list) else value

    found: dict[str, Any] = inlined(schema)
    return found


def with_file(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a form that a file comes with."""
    properties = {"file": {"type": "string", "format": "binary"}, **schema.get("properties", {})}
    return {**schema, "properties": properties, "required": ["file", *schema.get("required", [])]}


def takes(schema: Mapping[str, Any], *media_types: str) -> dict[str, Any]:
    """What a route says of the body it takes."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in media_types}}}


def answers(
    *texts: str, error: type[BaseModel], also: Mapping[int, str] = MappingProxyType({})
) -> dict[int | str, dict[str, Any]]:
    """What a route says of its answers: errors, which `also` adds to, and beside JSON texts of these media types."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": error, "description": what} for status, what in sorted({**WHY, **also}.items())
    }
    content = {kind: {"schema": {"type": "string"}} for kind in texts}
    return {**found, **({200: {"content": content}} if texts else {})}
