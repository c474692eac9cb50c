"""Typed headers of connected MQTT clients: found, counted and disconnected, wherever they are.

An operator's tool asks a broker, which sends the same request to each gateway worker connected to it, and
puts the answers together: a worker gives the first rows of its own that fit, so that never the whole list
moves. Behind that broker the tool asks the next one for the workers that the first did not know of.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, NamedTuple

from holdmq.names.tenants import split_mount
from holdmq.wire.header import Header, header

ROWS_MAX: Final = 1_000
"""Clients in one answer."""
FILTERS_MAX: Final = 1_000
"""Subscriptions that are told of one client."""
ANSWER_MAX_BYTES: Final = 1 << 20
"""What a worker tells at a time, but always one client: ids and filters may be long."""


class ClientSelection(NamedTuple):
    """Which clients: those for whom everything that is given holds; "" and 0 = whatever it is.

    `client_id`, `user` and `gateway` are beginnings, or patterns (`holdmq.names.patterns`); `exact_id` is a
    whole client id. `address` is an address or a network (10.0.0.0/8). `version` is that of the protocol:
    3 (3.1), 4 (3.1.1), 5. `connected_from_ms` and `connected_until_ms`: when they connected, since the epoch.
    """

    client_id: str
    exact_id: str = ""
    user: str = ""
    address: str = ""
    gateway: str = ""
    version: int = 0
    connected_from_ms: int = 0
    connected_until_ms: int = 0


class ClientRow(NamedTuple):
    """A connected client as its gateway worker knows it.

    `order` is its place in the list: [what it is sorted by, client id]. `filters` are the first of its
    subscriptions, [filter, QoS] each. `in_flight_in` are publishes that wait for their answer,
    `in_flight_out` messages that the client has not acknowledged. Messages are those of this connection;
    bytes are those of its socket as the kernel counted them, -1 = it does not (UNIX sockets).
    """

    order: list[Any]
    client_id: str
    user: str
    address: str
    port: int
    listener: str
    version: int
    keep_alive_s: int
    is_clean: bool
    expiry_s: int
    connected_ms: int
    gateway: str
    worker: int
    subscriptions: int
    filters: list[Any]
    in_flight_in: int
    in_flight_out: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int

    @property
    def tenant(self) -> str:
        """Whose client it is, as its id says inside HoldMQ; "" = nobody's."""
        return split_mount(self.client_id).tenant


@header
class ClientListRequest(Header):
    """Ask for the first `max_count` clients behind the place `after` ([] = from the first).

    `wanted` is a row of ClientSelection. `filters_max`: subscriptions told of each. `besides`: workers that
    have answered already.
    """

    wanted: list[Any]
    sort: str = "client_id"
    after: list[Any] = field(default_factory=list)
    max_count: int = 100
    filters_max: int = 0
    besides: list[str] = field(default_factory=list)


@header
class ClientListResponse(Header):
    """Rows of ClientRow in their order; `total` clients are wanted, wherever in the list.

    `end`: there are more behind this place; [] = that was all. `workers` are the ids of those that answered,
    `silent` the names of those that did not in time.
    """

    clients: list[Any]
    total: int
    end: list[Any]
    workers: list[str]
    silent: list[str]


@header
class ClientKickRequest(Header):
    """Disconnect the clients of a selection (a row of ClientSelection), at workers that are not `besides`."""

    wanted: list[Any]
    besides: list[str] = field(default_factory=list)


@header
class ClientKickResponse(Header):
    """How many are disconnected, or will be in a moment; workers as in ClientListResponse."""

    kicked: int
    workers: list[str]
    silent: list[str]
