"""The HTTP application: the protocols put together behind the guards."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import regard
from regard.serving import libretranslate, openai_api, pages
from regard.serving.bodies import described
from regard.serving.guards import Bodies, Guard, Names, refusal
from regard.serving.messages import Code, Refused
from regard.serving.native import router, status_router
from regard.serving.service import Service

CODES: dict[int, Code] = {
    404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type", 422: "unprocessable",
}  # fmt: skip


def create_app(service: Service) -> Guard:
    """All that a server answers."""
    app = FastAPI(
        title="Regard",
        version=regard.__version__,
        description="Sequence-to-sequence models and language models over HTTP, and what they attend to.",
        docs_url=None,  # this and the next would load scripts from a network
        redoc_url=None,
    )
    # One list of routes: a router that is included is a list in a list, and each request would be matched twice.
    for protocol in (status_router, router, libretranslate.router, openai_api.router):
        app.router.routes += protocol(service).routes
    app.router.routes += pages.router().routes
    _answer_errors(app, service)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=service.settings.cors, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )  # fmt: skip
    return Guard(Names(Bodies(app, service), service.settings), service)


def _answer_errors(app: FastAPI, service: Service) -> None:
    """Whatever goes wrong is said in one form."""

    def told(refused: Refused, request: Request) -> Response:
        service.metrics.refused.labels(refused.code).inc()
        return refusal(refused, request.state.request_id)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return told(error, request)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return told(Refused(422, "unprocessable", described(error.errors())), request)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return told(Refused(500, "internal", "something went wrong here; the log says where"), request)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        response = told(Refused(error.status_code, CODES.get(error.status_code, "bad_request"), error.detail), request)
        response.headers.update(error.headers or {})
        return response
