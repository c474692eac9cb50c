"""The HTTP API, ``/api/v1``: read-only, JSON, described by ``/api/v1/openapi.json``.

An error is ``{"error": {"code": …, "message": …}}``: 400 for a parameter that is wrong, 503 when the
cluster cannot be asked. An empty or absent table is not an error: the answer is empty and has a `notice`.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from console import parameters
from console.cluster import Cluster
from console.core.window import WINDOW_S
from console.feed import SharedFeed
from console.http import EventStream, error_response
from console.openapi import document
from holdmq.errors import HoldMQError, UsageError

PREFIX = "/api/v1"
SECONDS_DEFAULT = 60
TOP_MAX = 1000


def routes(feed: SharedFeed, cluster: Cluster) -> list[BaseRoute]:
    """Return the routes of the API over these two."""

    async def tps(request: Request) -> Response:
        try:
            seconds = parameters.number(request, "seconds", SECONDS_DEFAULT, WINDOW_S)
            top = parameters.number(request, "top", None, TOP_MAX)
        except UsageError as error:
            return error_response(400, "INVALID_ARGUMENT", str(error))
        return Response(await feed.tps(seconds, top), media_type="application/json")

    def listing(name: str) -> Any:
        async def answer(_request: Request) -> Response:
            try:
                return JSONResponse(await cluster.listing(name))
            except HoldMQError as error:
                return error_response(503, error.code.name, f"the cluster cannot be asked: {error}")

        return answer

    async def openapi(_request: Request) -> Response:
        return JSONResponse(document())

    async def stream(_request: Request) -> Any:
        return EventStream(feed)

    return [
        Route(f"{PREFIX}/tps", tps, methods=["GET"]),
        Route(f"{PREFIX}/topics", listing("topics"), methods=["GET"]),
        Route(f"{PREFIX}/brokers", listing("brokers"), methods=["GET"]),
        Route(f"{PREFIX}/gateways", listing("gateways"), methods=["GET"]),
        Route(f"{PREFIX}/connections", listing("connections"), methods=["GET"]),
        Route(f"{PREFIX}/stream", stream, methods=["GET"]),
        Route(f"{PREFIX}/openapi.json", openapi, methods=["GET"]),
    ]
