"""The files of the pages, served from memory: a page is two dozen of them, each asked for by itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
"""Not the machine's table of types: under another one browsers run no script."""


class PageFile(NamedTuple):
    """A file's content, its media type, and the tag by which a browser knows that it has it."""

    content: bytes
    media_type: str
    tag: str


class PageFiles:
    """Answers with the files below `directory` as they were when this was made. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self._files = {
            path.relative_to(directory).as_posix(): _read(path)
            for path in directory.rglob("*")
            if path.is_file()
        }

    def answer(self, request: Request, name: str) -> Response:
        """Return a file, or 304 to a browser that has it. Raises HTTPException 404."""
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.tag}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(
        content, MEDIA_TYPES.get(path.suffix, "text/plain"), f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    )
