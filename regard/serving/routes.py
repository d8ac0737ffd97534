"""Routes that say what is wrong in the form of their own protocol."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from regard.serving.guards import refusing
from regard.serving.messages import Refused
from regard.serving.service import Service


def route_class(service: Service, render: Callable[[Refused], dict[str, Any]]) -> type[APIRoute]:
    """A class of routes whose errors are rendered so. What cannot be done is, to other protocols than our own, a bad
    request (400) and not one that is understood and unprocessable (422)."""

    def refusal(refused: Refused) -> Response:
        service.metrics.refused.labels(refused.code).inc()
        return refusing(refused, render(refused), 400 if refused.status == 422 else refused.status)

    class ProtocolRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answered(request: Request) -> Response:
                try:
                    return await handle(request)
                except Refused as refused:
                    return refusal(refused)
                except HTTPException as error:
                    return refusal(Refused(error.status_code, "bad_request", str(error.detail)))

            return answered

    return ProtocolRoute
