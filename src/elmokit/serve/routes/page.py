"""The explorer page at /, and the reference of all endpoints at /docs.

Input: the files of the folder `page`, and the OpenAPI description.  Output: HTML, CSS and JavaScript that load nothing
from other servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from elmokit.serve.reference import reference_page

PAGE = Path(__file__).parent.parent / "page"
PAGE_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
# fixed here: the system's table may differ, and browsers run a module only if its type is text/javascript
PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_pages(app: FastAPI, *, needs_key: bool) -> list[str]:
    """Serve each file of the explorer page at its own path, index.html at /, and the reference at /docs.

    Args:
        app: The application.
        needs_key: Whether requests need an API key.

    Returns:
        The paths of the explorer page.
    """
    files = {f"/{path.relative_to(PAGE).as_posix()}": path for path in PAGE.rglob("*") if path.is_file()}
    if "/index.html" in files:
        files["/"] = files.pop("/index.html")
    for path, file in files.items():
        app.add_api_route(path, _serving(file), response_class=FileResponse, include_in_schema=False)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs(request: Request) -> Response:
        address = str(request.base_url).rstrip("/")
        page = reference_page(app.openapi(), address=address, needs_key=needs_key)
        etag = f'"{hashlib.sha256(page.encode()).hexdigest()[:32]}"'
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY, "etag": etag})

    return list(files)


def _serving(file: Path) -> Callable[[], Coroutine[Any, Any, Response]]:
    """An endpoint that sends one file."""
    headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}

    async def serve() -> Response:
        return FileResponse(file, media_type=PAGE_TYPES.get(file.suffix), headers=headers)

    return serve
