"""The web application: the page, its files, the API, and the paths of a probe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from console import analysis_api, api
from console.analysis import Analysis
from console.cluster import Cluster
from console.feed import SharedFeed
from console.http import Guard, error_response
from holdmq.config.analytics import ConsoleSection
from holdmq.service import telemetry
from holdmq.service.admin import ReadyCheck
from holdmq.service.host_rule import AllowedHosts

STATIC: Final = Path(__file__).parent / "static"


def build(
    feed: SharedFeed,
    cluster: Cluster,
    analysis: Analysis,
    ready: ReadyCheck,
    alive: ReadyCheck,
    section: ConsoleSection,
    hosts: AllowedHosts,
) -> ASGIApp:
    """Return the application over `feed`, `cluster` and `analysis`; `ready` and `alive` answer the probes.

    Requests for others than `hosts` are refused.
    """

    def page(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_request: Request) -> Response:
            return FileResponse(STATIC / name)

        return answer

    def probe(check: ReadyCheck) -> Callable[[Request], Response]:
        def answer(_request: Request) -> Response:
            holds, reason = check()
            return PlainTextResponse(f"{reason}\n", 200 if holds else 503)

        return answer

    def metrics(_request: Request) -> Response:
        return Response(generate_latest(telemetry.METRICS), media_type=CONTENT_TYPE_LATEST)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        name = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REFUSED")
        response = error_response(
            error.status_code, name, f"{request.method} {request.url.path}: {error.detail}"
        )
        response.headers.update(error.headers or {})
        return response

    async def fail(_request: Request, _error: Exception) -> Response:
        return error_response(500, "SYSTEM_ERROR", "the console failed; its log has the cause")

    app = Starlette(
        routes=[
            Route("/", page("index.html"), methods=["GET"]),
            Route("/analysis", page("index.html"), methods=["GET"]),
            *api.routes(feed, cluster),
            *analysis_api.routes(analysis),
            Route("/healthz", probe(alive), methods=["GET"]),
            Route("/readyz", probe(ready), methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={HTTPException: refuse, Exception: fail},
    )
    return Guard(app, section.requests_max, section.origins, hosts)
