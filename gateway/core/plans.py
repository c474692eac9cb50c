"""Plans: how the publishes of one connection to one topic become records, worked out once."""

from __future__ import annotations

from gateway.core.entries import TopicEntry
from gateway.core.producer import Target
from gateway.core.received import Received
from holdmq.record import RecordTemplate, encode_record


class Plan:
    """For publishes of `kind` (QoS and retain bits) to the topic of `entry`: `template` makes the record;
    `packet_type` is its answer's, 0 for none.

    `topic` is the name by which `Ingress.publish_again` knows the next one, b"" if that has more to look at.
    `is_delayed`: the log keeps the record until its time. `noting` makes it instead where each is to say what
    it is known by.
    """

    __slots__ = ("entry", "is_delayed", "kind", "noting", "packet_type", "target", "template", "topic")

    def __init__(
        self,
        entry: TopicEntry,
        kind: int,
        template: RecordTemplate,
        target: Target,
        packet_type: int,
        is_delayed: bool = False,
        noting: NotedRecords | None = None,
    ) -> None:
        self.entry = entry
        self.kind = kind
        self.template = template
        self.target = target
        self.packet_type = packet_type
        self.topic = entry.raw if kind in (0, 2) and not is_delayed else b""
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
