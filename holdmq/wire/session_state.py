"""What a gateway writes into the rows of a session: its state, and the options of its filters.

Both are msgpack arrays that begin with a format number; later fields may follow. A *place* is (log epoch,
log position) at a broker.

::

    state    [1, {broker: place}, [planned, …], next packet id]
    planned  [packet id, broker, position, flags, [subscription ids], is_released]
    options  [1, qos, no_local, retain_as_published, retain_handling, subscription id, {broker: place}]

Below its place at a broker everything is settled, or planned: sent with a packet id, and not acknowledged
to the end. Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from holdmq.errors import WireError

FORMAT: Final = 1


class Place(NamedTuple):
    """A log position and the epoch in which it was learnt."""

    log_epoch: int
    position: int


class PlannedRow(NamedTuple):
    """A delivery under way: `flags` as in its PUBLISH (QoS << 1 | retain); `is_released`: PUBREC came."""

    packet_id: int
    broker: str
    position: int
    flags: int
    identifiers: list[int]
    is_released: bool


class SessionState(NamedTuple):
    """Where a session stands, what it waits for in the order of sending, and the packet id to try next."""

    places: dict[str, Place]
    planned: list[PlannedRow]
    next_id: int

    def encode(self) -> bytes:
        """As a row has it."""
        packed: bytes = msgpack.packb((FORMAT, self.places, self.planned, self.next_id))
        return packed


class FilterOptions(NamedTuple):
    """A subscription as granted. `starts`: what lies before was published before it was made."""

    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int | None
    starts: dict[str, Place]

    def encode(self) -> bytes:
        """As a row has it."""
        packed: bytes = msgpack.packb((FORMAT, *self))
        return packed


def decode_state(value: bytes) -> SessionState:
    """The state of a row; WireError if it is none that this version knows. b"" is that of a new session."""
    if not value:
        return SessionState({}, [], 1)
    fields = _fields(value, 4, "state")
    planned = []
    for row in fields[2] if isinstance(fields[2], list) else [None]:
        if not isinstance(row, list) or len(row) < 6 or not isinstance(row[1], str):
            raise WireError("a planned delivery of a session is malformed")
        numbers = (row[0], row[2], row[3], *row[4])
        if not all(isinstance(number, int) for number in numbers) or not 0 < row[0] <= 0xFFFF:
            raise WireError("a planned delivery of a session is malformed")
        planned.append(PlannedRow(row[0], row[1], row[2], row[3], row[4], bool(row[5])))
    if not isinstance(fields[3], int) or not 0 < fields[3] <= 0xFFFF:
        raise WireError("a session's next packet id is none")
    return SessionState(_places(fields[1]), planned, fields[3])


def decode_options(value: bytes) -> FilterOptions:
    """The options of a filter's row; WireError if they are none that this version knows."""
    fields = _fields(value, 7, "filter")
    qos, no_local, as_published, handling, identifier = fields[1:6]
    if qos not in (0, 1, 2) or not isinstance(handling, int) or not isinstance(identifier, int | None):
        raise WireError("the options of a session's filter are malformed")
    return FilterOptions(qos, bool(no_local), bool(as_published), handling, identifier, _places(fields[6]))


def _fields(value: bytes, count: int, what: str) -> list[Any]:
    try:
        fields: Any = msgpack.unpackb(value)
    except ValueError as error:
        raise WireError(f"the {what} of a session is no msgpack: {error}") from None
    if not isinstance(fields, list) or len(fields) < count or fields[0] != FORMAT:
        raise WireError(f"the {what} of a session has a format that this version does not know")
    return fields


def _places(found: Any) -> dict[str, Place]:
    if not isinstance(found, dict):
        raise WireError("the places of a session are malformed")
    places: dict[str, Place] = {}
    for broker, place in found.items():
        if not isinstance(broker, str) or not isinstance(place, list) or len(place) < 2:
            raise WireError("the places of a session are malformed")
        if not all(isinstance(number, int) for number in place):
            raise WireError("the places of a session are malformed")
        places[broker] = Place(place[0], place[1])
    return places
