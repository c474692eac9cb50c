"""``holdmq console``: wires the feed, the application and the HTTP server together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from console.api.openapi import document
from console.api.serving import EndpointServer
from console.app import build, cluster_endpoints, endpoint_table
from console.identity.accounts import AccountFile, first_password
from console.identity.audit import AuditLog
from console.identity.identity import Everybody, KnowsCallers, SignedInCallers
from console.identity.sessions import SignedInTable
from console.live.feed import SharedFeed
from console.management.clusters_apart import ClustersApart
from console.management.one_cluster import OneCluster
from console.sql.analysis import Analysis
from console.sql.saved import FILE
from holdmq.config.analytics import ConsoleSection, StatsSection
from holdmq.config.changes import CONSOLE, Adjustment
from holdmq.config.model import Config
from holdmq.errors import StartupError
from holdmq.files.private_directory import close_to_others
from holdmq.rpc.security import Security
from holdmq.service.build import running_build
from holdmq.service.host_rule import AllowedHosts
from holdmq.service.process import Service, listen_error
from holdmq.service.reloading import PATH, Reloading

DRAIN_S: Final = 5
"""Time for requests in hand to be answered after the signal: streams end at once, the others take ms."""

TABLES: Final = "tables"
"""Where the statistics job writes below stats.data_dir (docs/spark.md)."""


class _Server(uvicorn.Server):
    """uvicorn under our signals: the process decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def main(config: Config, service: Service) -> None:
    """Serve the console until the process is told to stop.

    Raises ConfigError when it would be open to others without an explicit choice, StartupError when the
    port cannot be bound.
    """
    section = config.console
    _check(config)
    listener = _bind(section.bind, section.port)
    port: int = listener.getsockname()[1]
    security = Security.of(config)
    registries = config.registries()
    whole = OneCluster(registries, security, config.client.cluster)
    tables = Path(config.stats.data_dir) / TABLES
    directory = Path(section.data_dir)
    await asyncio.to_thread(close_to_others, directory, FILE)
    feed = SharedFeed(tables / "tps_1s", section.streams_max)
    analysis = Analysis(tables, section, config.stats)
    audit = AuditLog(directory)
    sessions = SignedInTable(section.session_idle_s, section.session_max_s)
    callers = await _callers(section, directory, service, sessions)
    reloading = Reloading(CONSOLE, config, _adjustments(sessions, analysis), _check)
    service.controls[PATH] = reloading.control
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.soon)
    endpoints = endpoint_table(feed, whole, analysis, callers, audit, registries, security)
    apart = ClustersApart(
        whole,
        partial(OneCluster, registries, security),
        lambda one: cluster_endpoints(feed, one, callers, registries, security),
    )
    answering = EndpointServer(callers, audit, apart)
    hosts = AllowedHosts(config.host_names())
    app = build(endpoints, answering, analysis, service.readiness, service.liveness, section, hosts)
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(section.trusted_proxies),
            forwarded_allow_ips=section.trusted_proxies,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )
    await whole.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed.run())
            serving = tasks.create_task(server.serve([listener]))
            service.ready(lambda: (server.started, "the HTTP server has not started yet"))
            service.log.info(
                "console serves",
                url=f"http://{_shown(section.bind)}:{port}/",
                port=port,
                build=running_build(),
            )
            stopping = tasks.create_task(service.stopping.wait())
            await asyncio.wait([stopping, serving], return_when=asyncio.FIRST_COMPLETED)
            if not service.stopping.is_set():
                stopping.cancel()
                await feed.close()
                raise StartupError("the HTTP server ended by itself; the log has the cause")
            server.should_exit = True
            await feed.close()
    finally:
        await apart.close()
        await whole.close()
        await analysis.close()
        if isinstance(callers, SignedInCallers):
            callers.release()
        audit.release()
        feed.release()
        listener.close()


async def described_api() -> dict[str, Any]:
    """Return the OpenAPI document of a console with accounts, which asks nobody for anything."""
    section = ConsoleSection()
    whole = OneCluster(["127.0.0.1:1"], None)
    directory = Path(section.data_dir)
    feed = SharedFeed(Path(TABLES), 1)
    audit = AuditLog(directory)
    callers = SignedInCallers(AccountFile(directory), SignedInTable(1, 1))
    analysis = Analysis(Path(TABLES), section, StatsSection())
    endpoints = endpoint_table(feed, whole, analysis, callers, audit, [], None)
    return document(endpoints)


def _check(config: Config) -> None:
    """Refuse what a console does not start with. Raises ConfigError."""
    config.console.check_exposure()


def _adjustments(sessions: SignedInTable, analysis: Analysis) -> list[Adjustment]:
    return [
        Adjustment.of(
            "console",
            "session_idle_s session_max_s",
            lambda new: sessions.reconfigure(new.console.session_idle_s, new.console.session_max_s),
        ),
        Adjustment.of(
            "console",
            "sql_seconds_max sql_rows_max sql_result_max_bytes",
            lambda new: analysis.reconfigure(new.console),
        ),
    ]


async def _callers(
    section: ConsoleSection, directory: Path, service: Service, sessions: SignedInTable
) -> KnowsCallers:
    """Return who is known, after a first admin is made where there is none yet. Raises StartupError."""
    if section.auth == "none":
        return Everybody()
    password = await asyncio.to_thread(first_password, directory)
    if password is not None:
        # The one time that it is shown anywhere: what is kept of it is a hash.
        service.log.warning(
            "the console has its first account; this password is shown once, change it after signing in",
            account="admin",
            password=password,
        )
    return SignedInCallers(AccountFile(directory), sessions)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise listen_error(error, "console.port", host, port) from error
    listener.setblocking(False)
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
