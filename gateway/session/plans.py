"""Plans: how the publishes of one connection to one topic become records, worked out once."""

from __future__ import annotations

from gateway.ground.entries import TopicEntry
from gateway.ground.targets import Target
from gateway.session.received import ReceivedQueues
from holdmq.mqtt import RETAIN
from holdmq.record.codec import SYS_QOS_SHIFT, SYS_RETAIN, RecordTemplate, encode_record


def sys_flag_of(kind: int) -> int:
    """What a record's SysFlag says of a publish of this kind."""
    return kind >> 1 << SYS_QOS_SHIFT | (SYS_RETAIN if kind & RETAIN else 0)


class TopicPlan(RecordTemplate):
    """For publishes of `kind` (QoS and retain bits) to the topic of `entry`, which become records of
    `target`; `packet_type` is their answer's, 0 for none.

    `raw` is the topic name by which `Ingress.publish_like_last` knows the next one, b"" if that needs more.
    `is_delayed`: the log keeps the record until its time. `noting` makes it instead where each is to say what
    it is known by.
    """

    __slots__ = ("entry", "is_delayed", "kind", "noting", "packet_type", "raw", "target")

    def __init__(
        self,
        entry: TopicEntry,
        kind: int,
        packet_type: int,
        target: Target,
        properties: bytes,
        born_host: bytes,
        mark: int,
    ) -> None:
        topic = target.topic.encode()
        super().__init__(topic, target.queue_id, properties, born_host, sys_flag_of(kind), prepared=mark)
        self.entry = entry
        self.kind = kind
        self.packet_type = packet_type
        self.target = target
        self.is_delayed = entry.delay_s is not None
        self.raw = entry.raw if kind in (0, 2) and not self.is_delayed else b""
        self.noting: NotedRecords | None = None


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
        received: ReceivedQueues,
        kind: int,
        target: Target,
        properties: bytes,
        born_host: bytes,
        mark: int,
    ) -> None:
        pairs, separator, mqtt = properties.partition(b"\0")
        self._received = received
        self._topic = target.topic.encode()
        self._queue_id = target.queue_id
        self._pairs = pairs
        self._block = separator + mqtt
        self._born_host = born_host
        self._sys_flag = sys_flag_of(kind)
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
