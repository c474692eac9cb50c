"""Plans: how the publishes of one connection to one topic become records, worked out once."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.producer import Target
from gateway.core.received import Received
from holdmq.record import encode_record


class Plan:
    """`encode(body, born_ms)` makes the record; `packet_type` is its answer's, 0 for none.

    `is_delayed`: the log keeps the record until its time. `noting(body, born_ms, packet_id)` makes it instead
    where each is to say what it is known by.
    """

    __slots__ = ("encode", "is_delayed", "noting", "packet_type", "target")

    def __init__(
        self,
        encode: Callable[[bytes, int], bytes],
        target: Target,
        packet_type: int,
        is_delayed: bool = False,
        noting: Callable[[bytes, int, int], bytes] | None = None,
    ) -> None:
        self.encode = encode
        self.target = target
        self.packet_type = packet_type
        self.is_delayed = is_delayed
        self.noting = noting


class NotedRecords:
    """Makes records of QoS 2 publishes to one topic that say what they are known by."""

    __slots__ = (
        "_block",
        "_born_host",
        "_mark",
        "_pairs",
        "_queue_id",
        "_received",
        "_sys_flag",
        "_topic",
    )

    def __init__(
        self,
        received: Received,
        topic: bytes,
        queue_id: int,
        properties: bytes,
        born_host: bytes,
        sys_flag: int,
        mark: int,
    ) -> None:
        pairs, separator, mqtt = properties.partition(b"\0")
        self._received = received
        self._topic = topic
        self._queue_id = queue_id
        self._pairs = pairs
        self._block = separator + mqtt
        self._born_host = born_host
        self._sys_flag = sys_flag
        self._mark = mark

    def encode(self, body: bytes, born_ms: int, packet_id: int) -> bytes:
        """The record of one publish."""
        properties = b"".join((self._pairs, self._received.note(packet_id), self._block))
        return encode_record(
            self._topic,
            self._queue_id,
            body,
            properties,
            born_ms,
            self._born_host,
            self._sys_flag,
            prepared=self._mark,
        )
