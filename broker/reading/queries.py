"""MESSAGE_GET, MESSAGE_FIND, MESSAGE_BACKWARDS, OFFSET_AT, READ_AT: messages looked up on the reader pool.

Who looks up sees what who pulls could see: confirmed messages of topics that exist and may be read, from
the first offset on. Messages of system topics are not shown; requests of their own are for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.kernel.lookups import Lookups
from broker.kernel.request_family import RequestFamily
from broker.reading.core.far_reads import NextReads
from broker.reading.pull import TellsReaders
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import BehindError, Code, CorruptRecordError, RemoteError
from holdmq.message import MessageId
from holdmq.mqtt.filters import check_filter, matches
from holdmq.mqtt.reasons import MqttError
from holdmq.names.topics import is_system_topic
from holdmq.record.codec import Record
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import Empty, ReadAtRequest, ReadPosition
from holdmq.wire.query_headers import (
    MessageBackwardsRequest,
    MessageBackwardsResponse,
    MessageFindRequest,
    MessageFindResponse,
    MessageGetRequest,
    OffsetAtRequest,
    OffsetAtResponse,
    QueueOffset,
)
from holdmq.wire.reader_headers import LOOK_UP
from storage.api.index import LATEST_MS, LOG_END, MessagePlace
from storage.api.store import OrderedStore

MESSAGES_MAX: Final = 1_000
"""Messages of one answer, and those that one MESSAGE_BACKWARDS looks at: what a person looks through."""
ANSWER_MAX_BYTES: Final = 4 << 20
"""Messages in one answer, but always one."""


class Queries(RequestFamily):
    """Look-ups of messages at one broker."""

    def __init__(
        self, store: OrderedStore, topics: TopicTable, readers: TellsReaders, next_reads: NextReads
    ) -> None:
        self._next_reads = next_reads
        self.lookups = Lookups(store.reader_pool)
        self._store = store
        self._topics = topics
        self._readers = readers

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.MESSAGE_GET: self.get,
            RequestCode.MESSAGE_FIND: self.find,
            RequestCode.MESSAGE_BACKWARDS: self.backwards,
            RequestCode.OFFSET_AT: self.offset_at,
            RequestCode.READ_AT: self.read_at,
        }

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "message_lookups": self.lookups.running,
            "message_lookups_total": self.lookups.total,
            "message_lookups_refused_total": self.lookups.refused,
        }

    def get(self, request: Request) -> None:
        """Answer MESSAGE_GET with the record of a message id."""
        header = request.header(MessageGetRequest)
        message_id = MessageId.parse(header.message_id)
        self._redirect(header.replica_reads, message_id.physical_offset)

        def look_up() -> memoryview:
            place, record, reason = self._store.index.message(message_id)
            if record is None:
                code = Code.CORRUPT if place is MessagePlace.CORRUPT else Code.MESSAGE_UNKNOWN
                raise RemoteError(code, reason)
            self._check_visible(record, message_id)
            raw = self._raw(record)
            if raw is None:
                raise RemoteError(Code.MESSAGE_UNKNOWN, f"message {message_id}: {MessagePlace.GONE.value}")
            return raw

        self.lookups.run(request, look_up, lambda raw: request.reply(Empty(), [raw], len(raw)))

    def find(self, request: Request) -> None:
        """Answer MESSAGE_FIND with the newest records of a key."""
        header = request.header(MessageFindRequest)
        self._looked_up(request, header.topic)
        self._redirect(header.replica_reads, header.before)
        index = self._store.index
        search = index.by_unique_id if header.by_unique_id else index.by_key
        count = max(1, min(header.max_count, MESSAGES_MAX))
        end_ms = LATEST_MS if header.end_ms is None else header.end_ms
        before = LOG_END if header.before is None else header.before

        def look_up() -> tuple[MessageFindResponse, list[memoryview]]:
            found = search(
                header.topic,
                header.key,
                header.begin_ms,
                end_ms,
                count,
                before=before,
                max_bytes=ANSWER_MAX_BYTES,
            )
            parts = self._raws(filter(self._is_kept, found.records))
            is_complete = found.is_complete or not found.records
            next_before = None if is_complete else found.records[-1].physical_offset
            return MessageFindResponse(len(parts), next_before, found.is_complete), parts

        self.lookups.run(request, look_up, _answer_with(request))

    def backwards(self, request: Request) -> None:
        """Answer MESSAGE_BACKWARDS with records before a log position."""
        header = request.header(MessageBackwardsRequest)
        topic = self._looked_up(request, header.topic)
        if not 0 <= header.queue_id < topic.read_queues:
            raise RemoteError(Code.QUEUE_UNKNOWN, f"{header.topic!r} has {topic.read_queues} queues here")
        passes = _tag_test(header.tag_filter)
        self._redirect(header.replica_reads, header.position)
        first, end = self._store.bounds(header.topic, header.queue_id)
        offset = end if header.offset is None else min(header.offset, end)
        count = max(1, min(header.max_count, MESSAGES_MAX))
        size = max(1, min(header.max_bytes, ANSWER_MAX_BYTES))

        def look_up() -> tuple[MessageBackwardsResponse, list[memoryview]]:
            found = self._store.index.queue_before(header.topic, header.queue_id, offset, count, size)
            parts = self._raws(record for record in found if passes(record))
            # Damaged messages are left out: fewer than asked for is the end only if the bytes allowed more.
            is_cut = len(found) == count or sum(record.total_size for record in found) >= size
            next_offset = found[-1].queue_offset if is_cut and found[-1].queue_offset > first else None
            return MessageBackwardsResponse(len(parts), next_offset), parts

        self.lookups.run(request, look_up, _answer_with(request))

    def offset_at(self, request: Request) -> None:
        """Answer OFFSET_AT with each queue's offset at a moment."""
        header = request.header(OffsetAtRequest)
        topic = self._readable(header.topic)
        store = self._store

        def look_up() -> OffsetAtResponse:
            offsets = [
                QueueOffset(
                    queue_id,
                    store.index.offset_at(topic.name, queue_id, header.store_ms),
                    *store.bounds(topic.name, queue_id),
                )
                for queue_id in range(topic.read_queues)
            ]
            return OffsetAtResponse(offsets, store.epoch)

        self.lookups.run(request, look_up, request.reply)

    def read_at(self, request: Request) -> None:
        """Answer READ_AT with the records at offsets."""
        store_ms = request.header(ReadAtRequest).store_ms
        store = self._store
        if store_ms <= 0:
            request.reply(ReadPosition(store.first_position, store.epoch))
            return

        def look_up() -> ReadPosition:
            return ReadPosition(store.index.position_at(store_ms), store.epoch)

        self.lookups.run(request, look_up, request.reply)

    def _redirect(self, wanted: int, position: int | None) -> None:
        """Raise ASK_REPLICA for a look-up at about this log position that a replica is to answer."""
        if self._next_reads.is_copy:
            return
        replica = self._next_reads.next_at(wanted, 1, position)
        if replica:
            raise RemoteError(Code.ASK_REPLICA, f"{replica} answers that", {"replica": replica})

    # What may be seen

    def _looked_up(self, request: Request, name: str) -> Topic:
        topic = self._readable(name)
        self._readers.asked(request.connection, LOOK_UP, (name,))
        return topic

    def _readable(self, name: str) -> Topic:
        if is_system_topic(name):
            raise RemoteError(Code.TOPIC_INVALID, f"{name!r} is a system topic")
        topic = self._topics.get(name)
        if topic is None or topic.is_leaving:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {name!r} does not exist here")
        if not topic.is_readable:
            raise RemoteError(Code.TOPIC_PERM, f"topic {name!r} may not be read")
        if topic.is_temporary:
            raise RemoteError(
                Code.KIND_UNFIT, f"topic {name!r} is temporary: its messages have no ids and are not indexed"
            )
        return topic

    def _check_visible(self, record: Record, message_id: MessageId) -> None:
        """Raise for a record that is in the log and is no message that may be shown."""
        name = record.topic.decode()
        if is_system_topic(name):
            raise RemoteError(Code.TOPIC_INVALID, f"message {message_id} is of the system topic {name!r}")
        topic = self._topics.get(name)
        if topic is None or topic.is_leaving:
            raise RemoteError(Code.MESSAGE_UNKNOWN, f"message {message_id}: its topic {name!r} was deleted")
        if not topic.is_readable:
            raise RemoteError(Code.TOPIC_PERM, f"topic {name!r} may not be read")
        if not self._is_kept(record):
            raise RemoteError(
                Code.MESSAGE_UNKNOWN, f"message {message_id}: topic {name!r} does not keep it any more"
            )

    def _is_kept(self, record: Record) -> bool:
        """Whether the record is in its queue still: a topic may keep less than the log has."""
        first, end = self._store.bounds(record.topic.decode(), record.queue_id)
        return first <= record.queue_offset < end

    def _raws(self, records: Iterable[Record]) -> list[memoryview]:
        return [raw for record in records if (raw := self._raw(record)) is not None]

    def _raw(self, record: Record) -> memoryview | None:
        """The record's bytes, which the cache has from finding it; None = retention passed it meanwhile."""
        try:
            return self._store.read_log(record.physical_offset, 1)[0].records
        except (BehindError, CorruptRecordError, IndexError):
            return None


def _answer_with(
    request: Request,
) -> Callable[[tuple[MessageFindResponse | MessageBackwardsResponse, list[memoryview]]], None]:
    def answer(found: tuple[MessageFindResponse | MessageBackwardsResponse, list[memoryview]]) -> None:
        header, parts = found
        request.reply(header, parts, sum(map(len, parts)))

    return answer


def _tag_test(tag_filter: str | None) -> Callable[[Record], bool]:
    """What says of a record whether its tag is wanted. RemoteError for what is no filter."""
    if tag_filter is None:
        return lambda _: True
    if tag_filter:
        try:
            check_filter(tag_filter)
        except MqttError as error:
            raise RemoteError(Code.TAG_INVALID, str(error)) from error

    def passes(record: Record) -> bool:
        tag = record.tag
        if tag is None:
            return False
        text = tag.decode(errors="replace")
        return text == tag_filter or (bool(tag_filter) and matches(tag_filter, text))

    return passes
