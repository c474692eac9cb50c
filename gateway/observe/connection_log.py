"""Clients that connect and leave, as structured log lines: so many a second, and how many were left out."""

from __future__ import annotations

from typing import Any, Final, Protocol

from gateway.ground.counters import Counters
from gateway.ground.peer import Peer, shown
from gateway.observe.traffic import UNKNOWN, CountedSocket, traffic_of
from gateway.session.events import Closed
from gateway.session.session import Session
from holdmq.record.codec import NO_HOST, decode_host
from holdmq.service import telemetry

LINES_PER_S: Final = 20
"""Lines of each kind: a storm, or a scan, must not fill a disk."""

_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}

log = telemetry.get_logger()


class LoggedListener(Protocol):
    """A listener by its `name`."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""


class LoggedConnection(Protocol):
    """A connection that lines are written about."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    @property
    def listener(self) -> LoggedListener:
        """Where it came in."""

    @property
    def transport(self) -> CountedSocket | None:
        """Its socket; None = that is gone."""

    @property
    def peer(self) -> Peer:
        """The client's side, without an address when the socket is gone."""


class ConnectionLog:
    """Counts and writes the lines of one worker. Without `is_on` only refusals are logged."""

    def __init__(self, is_on: bool, worker: int, counters: Counters) -> None:
        self.is_on = is_on
        self._worker = worker
        self._counters = counters
        self._connects = self._leaves = self._refusals = 0
        self._traffic = UNKNOWN

    def connected(self, connection: LoggedConnection) -> None:
        """A client was admitted."""
        if not self.is_on:
            return
        self._connects += 1
        if self._connects > LINES_PER_S:
            return
        session = connection.session
        log.info(
            "client connected",
            client=session.client_id,
            mqtt=_VERSIONS.get(session.version, ""),
            keep_alive_s=int(session.keep_alive_s),
            expiry_s=session.expiry_s,
            worker=self._worker,
            **({"user": session.principal} if session.principal else {}),
            **connection.peer.log_fields(),
        )

    def losing(self, connection: LoggedConnection) -> None:
        """The socket of a client is about to go: what it carried cannot be asked for later."""
        self._traffic = (
            traffic_of(connection.transport) if self._leaves < LINES_PER_S and self.is_on else UNKNOWN
        )

    def ended(self, connection: LoggedConnection, event: Closed, now: float) -> None:
        """A session is over."""
        session = connection.session
        was_connected = session.began_at > 0
        if event.reason and event.reason != "draining":
            self._refusals += 1
            if self._refusals <= LINES_PER_S:
                fields = self._of(connection, now) if was_connected else {}
                log.info(
                    "connection closed by the gateway",
                    reason=event.reason,
                    why=event.sentence,
                    client=session.client_id,
                    **fields,
                    **_peer(connection),
                )
        elif was_connected and self.is_on:
            self._leaves += 1
            if self._leaves <= LINES_PER_S:
                log.info(
                    "client disconnected",
                    client=session.client_id,
                    why=event.sentence,
                    **self._of(connection, now),
                    **_peer(connection),
                )
        self._traffic = UNKNOWN

    def each_second(self, _now: float) -> None:
        """Begin a new second; say what was left out of the last one."""
        left_out = {
            "connected": self._connects - LINES_PER_S,
            "disconnected": self._leaves - LINES_PER_S,
            "closed_by_the_gateway": self._refusals - LINES_PER_S,
        }
        left_out = {name: count for name, count in left_out.items() if count > 0}
        self._connects = self._leaves = self._refusals = 0
        if left_out:
            self._counters.connections_not_logged_total += sum(left_out.values())
            log.info("connections that were not logged", worker=self._worker, **left_out)

    def _of(self, connection: LoggedConnection, now: float) -> dict[str, Any]:
        """What a connection was: how long, and the bytes of its socket, TLS and all."""
        fields: dict[str, Any] = {
            "duration_s": round(now - connection.session.began_at, 1),
            "worker": self._worker,
        }
        traffic = self._traffic if self._traffic != UNKNOWN else traffic_of(connection.transport)
        if traffic != UNKNOWN:
            fields["bytes_out"], fields["bytes_in"] = traffic
        return fields


def _peer(connection: LoggedConnection) -> dict[str, str]:
    """Who it was: without its socket only the address is known."""
    if connection.transport is not None:
        return connection.peer.log_fields()
    fields = {"listener": connection.listener.name}
    if connection.session.born_host != NO_HOST:
        fields["peer"] = shown(*decode_host(connection.session.born_host))
    return fields
