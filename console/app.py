"""The web application: the page and its files, the API, and the paths of a probe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from console.api import accounts, analysis, live
from console.api.document import with_document
from console.api.endpoint import Endpoint
from console.api.http import Guard, error_response
from console.api.page_files import PageFiles
from console.api.serving import EndpointServer
from console.identity.audit import AuditLog
from console.identity.identity import KnowsCallers, SignedInCallers
from console.live.feed import SharedFeed
from console.management import (
    bans,
    configurations,
    connected,
    dead_letters,
    groups,
    lost_brokers,
    messages,
    overview,
    quotas,
    replicas,
    sessions,
    stored,
    tenants,
    topics,
)
from console.management.one_cluster import OneCluster
from console.sql.analysis import Analysis
from holdmq.config.analytics import ConsoleSection
from holdmq.rpc.security import Security
from holdmq.service import telemetry
from holdmq.service.admin import ReadyCheck
from holdmq.service.host_rule import AllowedHosts

STATIC: Final = Path(__file__).parent / "static"
ANALYSIS_PAGE: Final = "/analysis"


def cluster_endpoints(
    feed: SharedFeed,
    one: OneCluster,
    callers: KnowsCallers,
    registries: Sequence[str],
    security: Security | None,
) -> list[Endpoint]:
    """Return what is asked of the brokers of one cluster, or of all: each may be asked with `cluster`.

    `registries` are those that know them, and `security` what they are asked with.
    """
    cluster, clients = one.cluster, one.clients
    found = [
        *overview.endpoints(cluster, clients),
        *live.endpoints(feed, cluster, callers),
        *topics.endpoints(cluster, clients),
        *groups.endpoints(clients),
        *messages.endpoints(clients),
        *dead_letters.endpoints(clients),
        *replicas.endpoints(cluster, one.shards),
        *lost_brokers.endpoints(cluster, registries, security),
        *connected.endpoints(clients),
        *configurations.endpoints(clients, registries, security),
        *bans.endpoints(clients),
        *quotas.endpoints(clients),
        *tenants.endpoints(clients),
        *sessions.endpoints(cluster, clients),
        *stored.endpoints(clients),
    ]
    return [replace(endpoint, is_of_cluster=True) for endpoint in found]


def endpoint_table(
    feed: SharedFeed,
    whole: OneCluster,
    analyses: Analysis,
    callers: KnowsCallers,
    audit: AuditLog,
    registries: Sequence[str],
    security: Security | None,
) -> list[Endpoint]:
    """Return every endpoint of the API, the one that describes them included.

    `whole` is asked by whoever names no cluster; the rest as for `cluster_endpoints`.
    """
    is_open = not isinstance(callers, SignedInCallers)
    return with_document(
        [
            *(accounts.open_endpoints(callers) if is_open else ()),
            *(accounts.endpoints(callers, audit) if isinstance(callers, SignedInCallers) else ()),
            *live.endpoints_of_all(feed, whole.cluster),
            *cluster_endpoints(feed, whole, callers, registries, security),
            *analysis.endpoints(analyses),
        ]
    )


def build(
    endpoints: Sequence[Endpoint],
    server: EndpointServer,
    analyses: Analysis,
    ready: ReadyCheck,
    alive: ReadyCheck,
    section: ConsoleSection,
    hosts: AllowedHosts,
) -> ASGIApp:
    """Return the application that answers these endpoints; `ready` and `alive` answer the probes.

    Requests for others than `hosts` are refused.
    """

    files = PageFiles(STATIC)

    async def page(request: Request) -> Response:
        # One document for every address of a page: which page it is, the browser reads from the address.
        path = request.url.path
        if path.startswith("/api/") or "." in path.rpartition("/")[2]:
            raise HTTPException(404)
        if path == ANALYSIS_PAGE and await server.caller_of(request) is not None:
            # It asks as soon as it is loaded, and its process takes as long to start.
            analyses.get_ready()
        return files.answer(request, "index.html")

    async def file(request: Request) -> Response:
        return files.answer(request, request.path_params["name"])

    def probe(check: ReadyCheck) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_request: Request) -> Response:
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
            # First, as most requests are for these: the API has dozens of paths to compare.
            Route("/static/{name:path}", file, methods=["GET"]),
            *server.routes(endpoints),
            Route("/healthz", probe(alive), methods=["GET"]),
            Route("/readyz", probe(ready), methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/{path:path}", page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: refuse, Exception: fail},
    )
    return Guard(app, section.requests_max, section.origins, hosts)
