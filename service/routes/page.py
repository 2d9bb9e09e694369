"""The web page: the files of one folder, each at its own address."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles

_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src 'self' blob:; connect-src 'self'; font-src 'self'; manifest-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


def make_router(folder: Path) -> APIRouter:
    """Routes for `/` and for every file in the folder; browsers ask each time whether it changed.

    Each file has its own route, so that an unknown path is still a 404 in our error shape and a
    wrong method a 405.
    """
    router = APIRouter(include_in_schema=False)
    if not folder.is_dir():
        return router
    static = StaticFiles(directory=folder)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    async def serve(request: Request) -> Response:
        path = request.scope["path"].lstrip("/") or "index.html"
        response = await static.get_response(path, request.scope)
        response.headers.update(_HEADERS)
        return response

    for address in ["/", *(f"/{name}" for name in names)]:
        router.add_api_route(address, serve, methods=["GET", "HEAD"], response_model=None)
    return router
