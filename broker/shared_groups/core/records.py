"""What `%SHARED%` and its snapshot say of shared groups, and how a start puts it together again.

The body of a `%SHARED%` record is msgpack, an array of entries::

    [group, topic, queue id, floor, [first, count, …] acknowledged, [first, count, attempts, …]]

An entry may be applied twice: floors and attempts only rise, and acknowledged stays acknowledged. One with
floor -1 takes back what came before it: the group is gone from this queue; queue id -1 = from all queues of
the topic, topic "" = from all topics. The snapshot holds the same entries as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from reprlib import repr as shown
from typing import Any, Final

import msgpack

from broker.shared_groups.core.acknowledged import Acknowledged, bits, ranges_of
from broker.shared_groups.core.queue import QueueKey, SharedQueue
from holdmq.errors import RecordError, WireError
from holdmq.wire.untrusted import unpack

SHARED_TOPIC: Final = "%SHARED%"
ENTRY_NUMBERS_MAX: Final = 20_000
"""Numbers in one record's ranges, about: records stay well below the smallest record_max_bytes."""

Entry = tuple[str, str, int, int, list[int], list[int]]


class QueueNews:
    """What happened in one queue since the last record."""

    __slots__ = ("acknowledged", "attempts", "queue")

    def __init__(self, queue: SharedQueue) -> None:
        self.queue = queue
        self.acknowledged: list[int] = []
        self.attempts: list[int] = []

    def entry(self) -> Entry:
        """As a record has it."""
        key = self.queue.key
        return (key.group, key.topic, key.queue_id, self.queue.floor, self.acknowledged, self.attempts)


class ProgressNews:
    """What is to be written down, by queue."""

    __slots__ = ("_forgotten", "_queues", "numbers")

    def __init__(self) -> None:
        self.numbers = 0
        self._queues: dict[QueueKey, QueueNews] = {}
        self._forgotten: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self._queues or self._forgotten)

    def acknowledged(self, queue: SharedQueue, first: int, mask: int) -> None:
        """Messages are done: the bits of `mask`, bit 0 being offset `first`."""
        ranges = self._of(queue).acknowledged
        for begin, count in ranges_of(mask, first):
            ranges += (begin, count)
            self.numbers += 2

    def attempted(self, queue: SharedQueue, first: int, mask: int, attempts: int) -> None:
        """Messages failed: they now have so many attempts."""
        ranges = self._of(queue).attempts
        for begin, count in ranges_of(mask, first):
            ranges += (begin, count, attempts)
            self.numbers += 3

    def began(self, queue: SharedQueue) -> None:
        """A group consumes a queue from its floor on."""
        self._of(queue)

    def forgot(self, group: str) -> None:
        """A group is gone."""
        for key in [key for key in self._queues if key.group == group]:
            del self._queues[key]
        self._forgotten.append((group, "", -1, -1, [], []))

    def reset(self, queue: SharedQueue) -> None:
        """A group begins anew in a queue, at its floor."""
        key = queue.key
        self._queues.pop(key, None)
        self._forgotten.append((key.group, key.topic, key.queue_id, -1, [], []))
        self._of(queue)

    def bodies(self) -> Iterator[bytes]:
        """The bodies of the records that say all of it."""
        entries: list[Entry] = list(self._forgotten)
        numbers = 6 * len(entries)
        for news in self._queues.values():
            for entry in _split(news.entry()):
                size = 6 + len(entry[4]) + len(entry[5])
                if entries and numbers + size > ENTRY_NUMBERS_MAX:
                    yield msgpack.packb(entries)
                    entries, numbers = [], 0
                entries.append(entry)
                numbers += size
        if entries:
            yield msgpack.packb(entries)

    def _of(self, queue: SharedQueue) -> QueueNews:
        news = self._queues.get(queue.key)
        if news is None:
            news = self._queues[queue.key] = QueueNews(queue)
            self.numbers += 6
        return news


def _split(entry: Entry) -> Iterator[Entry]:
    """The entry in parts that each fit a record."""
    group, topic, queue_id, floor, acknowledged, attempts = entry
    step = ENTRY_NUMBERS_MAX // 12 * 6
    for at in range(0, max(1, len(acknowledged), len(attempts)), step):
        yield (group, topic, queue_id, floor, acknowledged[at : at + step], attempts[at : at + step])


class RestoredShared:
    """The groups' progress as the snapshot and the log say it."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, tuple[Acknowledged, dict[int, int]]] = {}

    def apply_body(self, body: bytes) -> None:
        """Take a record's body; RecordError if it is none."""
        try:
            entries = unpack(body, f"a record of {SHARED_TOPIC}")
        except WireError as error:
            raise RecordError(str(error)) from None
        self.apply(entries)

    def apply(self, entries: Any) -> None:
        """Take entries; RecordError if they are none."""
        if not isinstance(entries, list):
            raise RecordError(f"a record of {SHARED_TOPIC} holds no array")
        for entry in entries:
            if not _is_entry(entry):
                raise RecordError(f"an entry of {SHARED_TOPIC} is malformed: {shown(entry)}")
            group, topic, queue_id, floor, done, tried = entry
            if floor < 0:
                self._forget(group, topic, queue_id)
                continue
            key = QueueKey(group, topic, queue_id)
            known = self._queues.get(key)
            if known is None:
                known = self._queues[key] = (Acknowledged(floor), {})
            acknowledged, attempts = known
            acknowledged.raise_floor(floor)
            for first, count in zip(done[::2], done[1::2], strict=True):
                acknowledged.add(first, bits(count))
            for first, count, times in zip(tried[::3], tried[1::3], tried[2::3], strict=True):
                for offset in range(max(first, acknowledged.floor), first + count):
                    attempts[offset] = max(times, attempts.get(offset, 0))

    def queues(self, window: int) -> list[SharedQueue]:
        """Every queue as it goes on."""
        found = []
        for key, (acknowledged, attempts) in self._queues.items():
            queue = SharedQueue(key, acknowledged.floor, window)
            queue.acknowledged = acknowledged
            queue.restore({o: times for o, times in attempts.items() if o not in acknowledged})
            found.append(queue)
        return found

    def _forget(self, group: str, topic: str, queue_id: int) -> None:
        for key in [k for k in self._queues if k.group == group]:
            if topic in ("", key.topic) and queue_id in (-1, key.queue_id):
                del self._queues[key]


def snapshot_entry(queue: SharedQueue, tried: Iterable[tuple[int, int, int]]) -> Entry:
    """A queue as the snapshot has it; `tried` are (first offset, bits, attempts) above 0."""
    key = queue.key
    done = [number for pair in queue.acknowledged.ranges() for number in pair]
    attempts: list[int] = []
    for first, mask, times in tried:
        for begin, count in ranges_of(mask, first):
            attempts += (begin, count, times)
    return (key.group, key.topic, key.queue_id, queue.floor, done, attempts)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, (list, tuple)) or len(entry) < 6:
        return False
    group, topic, queue_id, floor, done, tried = entry[:6]
    return (
        isinstance(group, str)
        and isinstance(topic, str)
        and isinstance(queue_id, int)
        and isinstance(floor, int)
        and isinstance(done, list)
        and isinstance(tried, list)
        and len(done) % 2 == 0
        and len(tried) % 3 == 0
        and all(isinstance(number, int) and number >= 0 for number in (*done, *tried))
    )
