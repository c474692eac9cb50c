"""What a message becomes when its consumer could not handle it, or when it is sent again. Pure.

::

    attempt 1, 2, … retry_max_times    a copy for %RETRY%<group>, due after the delay of its attempt
    the one after                      a copy for %DLQ%<group>, at once
    a dead letter that is sent again   a copy for its real topic (or another), with no attempts

A copy keeps body, tag, keys, users' properties, flags, born time and host, and unique id. It has
REAL_TOPIC, and an ORIGIN that names the message for ever: topic, queue and offset where the group first
read it, and the attempt. A source was moved already when a copy with a higher attempt than its own is
known: so a repeat is one whatever the caller says about attempts. Source: broker.md, Failure of a consumer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

from holdmq.record.codec import COPY_MARK, SYS_ROLLED, Record, encode_record
from holdmq.record.origin import DLQ_PREFIX, RETRY_PREFIX, Origin, dlq_topic, origin_of, retry_topic, value_in
from holdmq.wire.move_headers import DELAY_LEVELS_MS, TO_DEAD_LETTERS

FIRST_RETRY_LEVEL: Final = 3
"""Level of the first retry: a consumer that stumbles over its database gets ten seconds."""
RETRY_MAX_TIMES: Final = 16
KNOWN_MAX: Final = 200_000
"""Moves remembered (about 300 bytes each), so that a repeat makes no second copy."""

_MARKS: Final = (b"PS\x01", b"DUE\x01", b"DEST\x01", b"ORIGIN\x01", b"REAL_TOPIC\x01")

Key = tuple[str, str, int, int]
"""(group, topic, queue id, first offset): a message, for the group that failed with it."""


class RetryPolicy(NamedTuple):
    """What a group's settings say of its retries; `delay_levels_ms` () = the broker's table."""

    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_MAX_TIMES
    delay_levels_ms: tuple[int, ...] = ()


class Copy(NamedTuple):
    """An unstamped record for `topic`; `due_ms` None = at once, and `attempt` its number."""

    record: bytes
    topic: str
    queue_id: int
    key: Key
    attempt: int
    due_ms: int | None

    @property
    def is_dead(self) -> bool:
        """Whether it goes to the dead letters."""
        return self.topic.startswith(DLQ_PREFIX)


def retry_delay_ms(attempts: int, level: int, policy: RetryPolicy) -> int:
    """How long a message waits that was retried `attempts` times; `level` 0 = by attempts.

    The broker's table begins at level 3; a group's own table is of retries, so it begins at its first.
    """
    table = policy.delay_levels_ms or DELAY_LEVELS_MS
    if level <= 0:
        level = attempts + (1 if policy.delay_levels_ms else FIRST_RETRY_LEVEL)
    return table[min(level, len(table)) - 1]


def key_of(record: Record, topic: str, group: str) -> Key:
    """What a record of `topic` is to a group: a retry is what it first was."""
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        origin = origin_of(record.properties)
        if origin is not None:
            return (group, origin.topic, origin.queue_id, origin.offset)
    return (group, topic, record.queue_id, record.queue_offset)


def failed_copy(
    record: Record,
    topic: str,
    group: str,
    attempts: int,
    delay_ms: int | None,
    level: int,
    policy: RetryPolicy,
    now_ms: int,
) -> Copy:
    """The copy of a message that `group` read from `topic` and could not handle.

    `attempts`: retries before this one; the record's own count stands if it is higher. `delay_ms` goes before
    `level` (0 = by attempts, TO_DEAD_LETTERS = not again). Raises RecordError when no record can hold it.
    """
    attempts = max(attempts, record.reconsume_times)
    key = key_of(record, topic, group)
    origin = Origin(*key[1:], attempts + 1)
    real = value_in(record.properties, "REAL_TOPIC") or origin.topic
    if attempts >= policy.retry_max_times or level == TO_DEAD_LETTERS:
        # The count of retries that it had; the ORIGIN's attempt is one past it.
        dead = _encode(record, dlq_topic(group), 0, origin, real, attempts)
        return Copy(dead, dlq_topic(group), 0, key, attempts + 1, None)
    if delay_ms is None:
        delay_ms = retry_delay_ms(attempts, level, policy)
    queue_id = key[2] % max(1, policy.retry_queue_nums)
    copy = _encode(record, retry_topic(group), queue_id, origin, real, attempts + 1)
    return Copy(copy, retry_topic(group), queue_id, key, attempts + 1, now_ms + max(0, delay_ms))


def resent_copy(letter: Record, group: str, topic: str, queue_id: int, now_ms: int) -> Copy:
    """The copy of a dead letter that is sent again to a queue of `topic`, as a new message there."""
    dlq = dlq_topic(group)
    origin = Origin(dlq, letter.queue_id, letter.queue_offset, 1)
    record = _encode(letter, topic, queue_id, origin, None, 0)
    return Copy(record, topic, queue_id, (group, dlq, letter.queue_id, letter.queue_offset), 1, now_ms)


def copied_by(record: Record, topic: str) -> tuple[Key, int] | None:
    """Which move made a record, for the start after a crash; None = none of ours.

    `topic` is where the record is: a retry topic, a dead letters' topic, or the timer's.
    """
    origin = origin_of(record.properties)
    if origin is None:
        return None
    if origin.topic.startswith(DLQ_PREFIX):
        group = origin.topic.removeprefix(DLQ_PREFIX)
    else:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            target = topic
            if not target.startswith(prefix):
                target = (value_in(record.properties, "DEST") or "").rpartition("/")[0]
            if target.startswith(prefix):
                group = target.removeprefix(prefix)
                break
        else:
            return None
    return (group, origin.topic, origin.queue_id, origin.offset), origin.attempt


def may_pull(topic: str, group: str) -> bool:
    """Whether a pull in the name of `group` ("" = nobody) may read a topic: retries are their group's."""
    return not topic.startswith(RETRY_PREFIX) or topic.removeprefix(RETRY_PREFIX) == group


class KnownMoves:
    """The newest moves, by message: the highest attempt that is in the log."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        self.evicted = 0
        self._known: OrderedDict[Key, int] = OrderedDict()
        self._known_max = known_max

    def __len__(self) -> int:
        return len(self._known)

    def note(self, key: Key, attempt: int) -> None:
        """A copy is in the log."""
        self._known[key] = max(attempt, self._known.get(key, 0))
        self._known.move_to_end(key)
        if len(self._known) > self._known_max:
            self._known.popitem(last=False)
            self.evicted += 1

    def attempt_past(self, key: Key, attempts: int) -> int:
        """The attempt of a copy made from a source that had `attempts`, or of a later one; 0 = none known."""
        attempt = self._known.get(key, 0)
        return attempt if attempt > attempts else 0

    def keys_of(self, prefix: str) -> list[Key]:
        """The messages whose topic begins so."""
        return [key for key in self._known if key[1].startswith(prefix)]

    def forget(self, group: str, topics: Collection[str] | None = None) -> int:
        """A group begins anew in these topics (None = all): what it fails with is new. How many went."""
        gone = [
            key
            for key in self._known
            if key[0] == group
            and not key[1].startswith(DLQ_PREFIX)
            and (topics is None or key[1] in topics or retry_topic(group) in topics)
        ]
        for key in gone:
            del self._known[key]
        return len(gone)


def _encode(
    record: Record, topic: str, queue_id: int, origin: Origin, real: str | None, attempts: int
) -> bytes:
    pairs, separator, mqtt = record.properties.partition(b"\0")
    kept = b"".join([pair + b"\x02" for pair in pairs.split(b"\x02")[:-1] if not pair.startswith(_MARKS)])
    if real is not None:
        kept += f"REAL_TOPIC\x01{real}\x02".encode()
    return encode_record(
        topic.encode(),
        queue_id,
        record.body,
        kept + origin.pair() + separator + mqtt,
        record.born_ms,
        record.born_host,
        record.sys_flag & ~SYS_ROLLED,
        record.flag,
        attempts,
        COPY_MARK,
    )
