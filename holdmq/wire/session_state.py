"""What a gateway writes into the rows of a session: its state, and the options of its filters.

Both are msgpack arrays that begin with a format number; later fields may follow. A *place* is (log epoch,
log position) at a broker.

::

    state    [1, {broker: place}, [planned, …], next packet id, received, retained]
    planned  [packet id, broker, position, flags, [subscription ids], is_released, MQTT topic]
    received [generation, [[generation, ids], …], ids that the log has, {log topic: [broker, queue id]}]
    retained [number, [[topic filter, {broker: [before, after]}], …]]
    options  [1, qos, no_local, retain_as_published, retain_handling, subscription id, starts, number]
    starts   {broker: place}

Below its place at a broker everything is settled, or planned: sent with a packet id, and not acknowledged
to the end. `received` is there once the session published with QoS 2; generations are those of
`holdmq.record.once`, of all packet ids but for those of the list, and ids are ranges: first, last, first, ….
Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgpack

from holdmq.errors import WireError
from holdmq.record.once import Generation
from holdmq.wire.untrusted import unpack

FORMAT: Final = 1


class LogPlace(NamedTuple):
    """A log position and the epoch in which it was learnt."""

    log_epoch: int
    position: int


class PlannedRow(NamedTuple):
    """A delivery under way: `flags` as in its PUBLISH (QoS << 1 | retain); `is_released`: PUBREC came.

    `topic` is the MQTT topic of one that was sent as its retained message, else "".
    """

    packet_id: int
    broker: str
    position: int
    flags: int
    identifiers: list[int]
    is_released: bool
    topic: str = ""


class RetainedPlace(NamedTuple):
    """Where the answer of a subscription stands at a broker (`holdmq.wire.retained_headers`): messages below
    log position `before` (LOG_END: it has not begun), behind the topic `after`, are still to be sent.
    """

    before: int
    after: str


class RetainedRest(NamedTuple):
    """What is left of the answer of a subscription, by broker; no broker = all of it."""

    topic_filter: str
    places: dict[str, RetainedPlace]


class RetainedState(NamedTuple):
    """What a session is owed of retained messages. Subscriptions with a higher `number` are owed everything,
    those with a lower one what `rests` says.
    """

    number: int
    rests: list[RetainedRest]


class ReceivedRow(NamedTuple):
    """What a session's QoS 2 publishes are known by.

    `base` is the generation of all packet ids but for those in `generations`, as (generation, ranges);
    `recorded` are ranges of unreleased ids that the log has; `queues` are (broker, queue id) by log topic, of
    what may be unreleased.
    """

    base: Generation
    generations: list[tuple[Generation, list[int]]]
    recorded: list[int]
    queues: dict[str, tuple[str, int]]


class SessionState(NamedTuple):
    """Where a session stands, what it waits for in the order of sending, the packet id to try next, and what
    its publishes are known by (None = it published none with QoS 2).
    """

    places: dict[str, LogPlace]
    planned: list[PlannedRow]
    next_id: int
    received: ReceivedRow | None = None
    retained: RetainedState | None = None

    def encode(self) -> bytes:
        """As a row has it."""
        fields: tuple[Any, ...] = (FORMAT, self.places, self.planned, self.next_id)
        if self.received is not None or self.retained is not None:
            fields = (*fields, self.received)
        if self.retained is not None:
            fields = (*fields, self.retained)
        packed: bytes = msgpack.packb(fields)
        return packed


class FilterOptions(NamedTuple):
    """A subscription as granted. `starts`: what lies before was published before it was made.

    `number` of what it is owed of retained messages; 0 = nothing.
    """

    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int | None
    starts: dict[str, LogPlace]
    number: int = 0

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
        if (
            not isinstance(row, list)
            or len(row) < 6
            or not isinstance(row[1], str)
            or not isinstance(row[4], list)
        ):
            raise WireError("a planned delivery of a session is malformed")
        numbers = (row[0], row[2], row[3], *row[4])
        topic = row[6] if len(row) > 6 else ""
        if not all(isinstance(number, int) for number in numbers) or not 0 < row[0] <= 0xFFFF:
            raise WireError("a planned delivery of a session is malformed")
        if not isinstance(topic, str):
            raise WireError("a planned delivery of a session is malformed")
        planned.append(PlannedRow(row[0], row[1], row[2], row[3], row[4], bool(row[5]), topic))
    if not isinstance(fields[3], int) or not 0 < fields[3] <= 0xFFFF:
        raise WireError("a session's next packet id is none")
    received = fields[4] if len(fields) > 4 else None
    retained = fields[5] if len(fields) > 5 else None
    return SessionState(
        _places(fields[1]),
        planned,
        fields[3],
        None if received is None else _received(received),
        None if retained is None else _retained(retained),
    )


def decode_options(value: bytes) -> FilterOptions:
    """The options of a filter's row; WireError if they are none that this version knows."""
    fields = _fields(value, 7, "filter")
    qos, no_local, as_published, handling, identifier = fields[1:6]
    if qos not in (0, 1, 2) or not isinstance(handling, int) or not isinstance(identifier, int | None):
        raise WireError("the options of a session's filter are malformed")
    number = fields[7] if len(fields) > 7 else 0
    if not isinstance(number, int):
        raise WireError("the options of a session's filter are malformed")
    places = _places(fields[6])
    return FilterOptions(qos, bool(no_local), bool(as_published), handling, identifier, places, number)


def _fields(value: bytes, count: int, what: str) -> list[Any]:
    fields = unpack(value, f"the {what} of a session")
    if not isinstance(fields, list) or len(fields) < count or fields[0] != FORMAT:
        raise WireError(f"the {what} of a session has a format that this version does not know")
    return fields


def ranges_of(ids: Iterable[int]) -> list[int]:
    """Numbers as ranges, both ends included: first, last, first, last, …"""
    ranges: list[int] = []
    for number in sorted(ids):
        if ranges and number == ranges[-1] + 1:
            ranges[-1] = number
        else:
            ranges += (number, number)
    return ranges


def ids_of(ranges: list[int]) -> list[int]:
    """The numbers of ranges."""
    return [
        number
        for first, last in zip(ranges[::2], ranges[1::2], strict=True)
        for number in range(first, last + 1)
    ]


def _received(found: Any) -> ReceivedRow:
    try:
        base, generations, recorded, queues = found[:4]
        row = ReceivedRow(
            _generation(base),
            [(_generation(generation), _ranges(ranges)) for generation, ranges in generations],
            _ranges(recorded),
            {str(topic): (str(broker), int(queue_id)) for topic, (broker, queue_id) in queues.items()},
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"what a session says of its publishes is malformed: {error}") from None
    return row


def _retained(found: Any) -> RetainedState:
    try:
        number, rests = found[:2]
        return RetainedState(
            int(number),
            [
                RetainedRest(
                    str(name),
                    {
                        str(broker): RetainedPlace(int(before), str(after))
                        for broker, (before, after) in places.items()
                    },
                )
                for name, places in rests
            ],
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"what a session is owed of retained messages is malformed: {error}") from None


def _generation(found: Any) -> Generation:
    begun, count = found
    return int(begun), int(count)


def _ranges(found: Any) -> list[int]:
    ranges = [int(number) for number in found]
    if len(ranges) % 2 or any(not 0 < number <= 0xFFFF for number in ranges):
        raise ValueError("packet ids are no ranges")
    return ranges


def _places(found: Any) -> dict[str, LogPlace]:
    if not isinstance(found, dict):
        raise WireError("the places of a session are malformed")
    places: dict[str, LogPlace] = {}
    for broker, place in found.items():
        if not isinstance(broker, str) or not isinstance(place, list) or len(place) < 2:
            raise WireError("the places of a session are malformed")
        if not all(isinstance(number, int) for number in place):
            raise WireError("the places of a session are malformed")
        places[broker] = LogPlace(place[0], place[1])
    return places
