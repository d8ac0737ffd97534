"""The explorer: a page at `/`, and the modules and style sheets that it is made of under `/web/`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException

from regard.explain.page import POLICY, WEB, served_page, web_folder

TYPES = {".js": "text/javascript", ".css": "text/css"}


def router() -> APIRouter:
    """What a browser gets. Nothing here needs a key: what the page asks for does."""
    routes = APIRouter(include_in_schema=False)
    document, folder = served_page(), web_folder()
    files = {path.name: path for path in folder.iterdir() if path.suffix in TYPES}
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}

    @routes.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(document, headers=headers)

    @routes.get(f"/{WEB}/{{name}}")
    async def part(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(404, f"no {name[:100]} here")
        return FileResponse(files[name], media_type=TYPES[files[name].suffix], headers=headers)

    return routes
