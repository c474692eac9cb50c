"""What a room of the broker is to its server: requests that it answers, and what it is told.

A family is the requests of one room (produce, pull, readers, topics, groups …). The server hands it its
requests, tells it of connections that closed, and asks it to let go of what it holds at the end. What rooms
need of each other is passed to them by `broker.app.compose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdmq.rpc.connection import Connection
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import HelloRequest


class HelloOf(Protocol):
    """What a connection said of itself; None = nothing yet, or it is gone."""

    def __call__(self, connection: Connection, /) -> HelloRequest | None: ...


class RequestFamily:
    """The base of every family: by default it holds nothing and is told nothing."""

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        """Which requests it answers, each code in one family only."""
        return {}

    def closed(self, connection: Connection) -> None:
        """A connection that had said HELLO is gone: forget what it held."""

    def writable(self, connection: Connection) -> None:
        """A connection's peer reads again, after `connection.is_writable` was False."""

    def release_all(self) -> None:
        """The broker is draining: answer what is held."""

    def numbers(self) -> Mapping[str, int | float]:
        """Its gauges and counters (names end in `_total`), without `holdmq_broker_`; read on any thread."""
        return {}
