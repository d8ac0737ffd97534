"""Bodies of requests that are forms: fields, and files that come with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from regard.serving.bodies import StrictRequest
from regard.serving.messages import Refused


@dataclass(frozen=True)
class Upload:
    """A file of a form, read."""

    name: str
    content: bytes


async def form_fields(request: Request) -> dict[str, Any]:
    """The fields of a form, each a string, an `Upload`, or a list of them where it comes more than once."""
    fields: dict[str, Any] = {}
    async with request.form() as form:
        for name in form:
            values = [
                Upload(one.filename or "", await one.read()) if isinstance(one, UploadFile) else one
                for one in form.getlist(name)
            ]
            fields[name] = values[0] if len(values) == 1 else values
    return fields


async def json_object(request: Request) -> dict[str, Any]:
    """A body that is a JSON object."""
    content = await StrictRequest(request.scope, request.receive).json()
    if not isinstance(content, dict):
        raise Refused(400, "bad_request", "the body is no JSON object")
    return content
