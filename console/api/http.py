"""Pure ASGI parts around the application: security headers, the bound on requests, the event stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from prometheus_client import Counter, Gauge
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.api import origin
from console.live.cluster import Cluster
from console.live.feed import SharedFeed, StreamsFullError
from holdmq.service import telemetry
from holdmq.service.host_rule import AllowedHosts, split_target

STREAM_STALL_S: Final = 30.0
"""A page that takes nothing for so long is gone, whatever its connection says."""

SECURITY_HEADERS: Final = {
    # Scripts, styles and data from here alone; no frames around the page, so nobody can lay one over it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

REQUESTS: Final = Gauge("holdmq_console_requests", "HTTP requests in hand.", registry=telemetry.METRICS)
REQUESTS_REFUSED: Final = Counter(
    "holdmq_console_requests_refused_total",
    "HTTP requests refused because console.requests_max were in hand.",
    registry=telemetry.METRICS,
)
FOREIGN_REFUSED: Final = Counter(
    "holdmq_console_foreign_requests_refused_total",
    "Requests with an effect that another site's page made, refused.",
    registry=telemetry.METRICS,
)

MISDIRECTED: Final = Counter(
    "holdmq_console_misdirected_requests_total",
    "Requests refused because their Host is no name of this installation (security.hosts).",
    registry=telemetry.METRICS,
)

T = TypeVar("T")


def error_response(status: int, code: str, message: str, field: str | None = None) -> JSONResponse:
    """Return an error as every part of the API does: ``{"error": {"code": …, "message": …}}``.

    `field` names the input that is wrong, if it is one.
    """
    error = {"code": code, "message": message, **({} if field is None else {"field": field})}
    return JSONResponse({"error": error}, status)


class Guard:
    """Adds the security headers to every answer; refuses requests for others than `hosts` with 421, those
    above `requests_max` with 503, and with 403 those with an effect that a page of another origin made
    (`console.api.origin`).
    """

    def __init__(
        self, app: ASGIApp, requests_max: int, origins: Collection[str], hosts: AllowedHosts
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._requests_max = requests_max
        self._origins = origins
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        headers = Headers(scope=scope)
        # The target as it came, of which the query says nothing here.
        target = scope["raw_path"].decode("latin-1")
        is_http_1_0 = scope["http_version"] == "1.0"
        misdirected = self._hosts.refusal(target, headers.getlist("host"), is_http_1_0=is_http_1_0)
        if misdirected is not None:
            MISDIRECTED.inc()
            code = "MISDIRECTED" if misdirected.status == HTTPStatus.MISDIRECTED_REQUEST else "BAD_REQUEST"
            refused = error_response(misdirected.status, code, misdirected.sentence)
            await refused(scope, receive, guarded)
            return
        if not target.startswith("/"):
            scope = {**scope, "path": unquote(split_target(target)[1])}
        if self._requests >= self._requests_max:
            REQUESTS_REFUSED.inc()
            busy = error_response(503, "BUSY", f"{self._requests_max} requests are in hand; try again")
            busy.headers["Retry-After"] = "1"
            await busy(scope, receive, guarded)
            return
        foreign = origin.refusal(scope["method"], headers, self._origins)
        if foreign is not None:
            FOREIGN_REFUSED.inc()
            await error_response(403, "FOREIGN_ORIGIN", foreign)(scope, receive, guarded)
            return
        self._requests += 1
        REQUESTS.inc()
        try:
            await self._app(scope, receive, guarded)
        finally:
            self._requests -= 1
            REQUESTS.dec()


class EventStream:
    """The response that holds a stream of `feed` and `cluster` until the page leaves or the feed closes.

    Before each frame it asks `may_go_on`, and ends when whoever began it may not look any more.
    """

    def __init__(self, feed: SharedFeed, cluster: Cluster, may_go_on: Callable[[], Awaitable[bool]]) -> None:
        self._feed = feed
        self._cluster = cluster
        self._may_go_on = may_go_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A page that stalls (TimeoutError is an OSError) or vanishes is an ordinary end.
            with self._feed.stream(self._cluster) as frames, contextlib.suppress(OSError):
                await while_there(receive, _send_frames(frames, self._may_go_on, send))
        except StreamsFullError as error:
            await error_response(503, "STREAMS_FULL", str(error))(scope, receive, send)


async def _send_frames(
    frames: AsyncIterator[bytes], may_go_on: Callable[[], Awaitable[bool]], send: Send
) -> None:
    start: MutableMapping[str, Any] = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")],
    }
    await send(start)
    async for frame in frames:
        if not await may_go_on():
            break
        async with asyncio.timeout(STREAM_STALL_S):
            await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_there(receive: Receive, work: Awaitable[T]) -> T | None:
    """Return what `work` comes to; None, and it is cancelled, when who asked leaves before."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
