"""Delayed messages as records: how one waits in the timer's topic, and the copy that leaves it.

A waiting record is the message under `%TIMER`, queue 0, with these pairs behind its own::

    … | DUE 0x01 ms since the epoch 0x02 | DEST 0x01 topic/queue 0x02 | ORIGIN 0x01 … 0x02, when rolled |

The copy has the message's topic and queue again, keeps DUE, has no DEST and no PS (its producer's
window is of the waiting record), and ends in `ORIGIN %TIMER/0/first offset/attempt`: the queue offset
that the message first had in `%TIMER`, which rolling never changes, names the timer for ever.
An ORIGIN that the message had before (a retry's) stays, in front. Source: storage.md, Moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from holdmq.errors import Code, RecordError
from holdmq.record.batch import (
    Ints,
    decode_columns,
)
from holdmq.record.codec import (
    COPY_MARK,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_LIMIT,
    SYS_ROLLED,
    VERIFY_ALL,
    Buffer,
    Record,
    decode_record,
    encode_record,
)
from storage.api.store import Batch

TIMER_TOPIC: Final = "%TIMER"
"""Where delayed messages wait: one queue, as only their due times order them."""
TIMER_QUEUE: Final = 0
DUE_LIMIT_MS: Final = 1 << 62
"""Due times are below: far past any horizon, and sums of two fit 64 bits."""
ORIGIN_ROOM: Final = 64
"""Bytes of a record kept free for the copy's ORIGIN."""

_TOPIC: Final = TIMER_TOPIC.encode()
_ORIGIN: Final = b"ORIGIN\x01%TIMER/0/"
_COPY_MARK: Final = b"\x02" + _ORIGIN


class Entry(NamedTuple):
    """One line of the timer: `first` names it for ever; size 0 = released, by the record at `position`."""

    due_ms: int
    first: int
    position: int
    size: int


class Released(NamedTuple):
    """The copy of a due message: unstamped, for queue `queue_id` of `topic`."""

    record: bytes
    topic: str
    queue_id: int


def value_of(properties: bytes, key: bytes) -> bytes | None:
    """The value of a key's last pair, as written (escaped); None = there is none."""
    pairs = properties.partition(b"\0")[0]
    at = pairs.rfind(b"\x02" + key + b"\x01")
    if at < 0:
        if not pairs.startswith(key + b"\x01"):
            return None
        at = -1
    begin = at + len(key) + 2
    return pairs[begin : pairs.find(b"\x02", begin)]


def _without(pairs: bytes, *starts: bytes) -> bytes:
    """The pairs but for those that begin so."""
    if not any(start in pairs for start in starts):
        return pairs
    kept = [pair for pair in pairs.split(b"\x02")[:-1] if not pair.startswith(starts)]
    return b"".join([pair + b"\x02" for pair in kept])


def waiting_record(record: Buffer, due_ms: int, check_topic: Callable[[bytes], None] | None = None) -> bytes:
    """The record that lets a message wait until `due_ms`.

    `record` is the message as its topic and queue would get it, unstamped. Raises RecordError for
    a due time that is none, and for what has no room for the timer's properties, and what `check_topic`
    raises for the message's topic.
    """
    if not 0 <= due_ms < DUE_LIMIT_MS:
        raise RecordError(f"a due time of {due_ms} ms: 0 to {DUE_LIMIT_MS - 1} are allowed")
    message = decode_record(record)
    if check_topic is not None:
        check_topic(message.topic)
    pairs, separator, mqtt = message.properties.partition(b"\0")
    # Marks of an earlier wait: the message is new to this one.
    pairs = _without(pairs, b"DUE\x01", b"DEST\x01", _ORIGIN)
    own = b"DUE\x01%d\x02DEST\x01%b/%d\x02" % (due_ms, message.topic, message.queue_id)
    properties = pairs + own + separator + mqtt
    size = len(record) - len(message.topic) + len(_TOPIC) + len(properties) - len(message.properties)
    if len(properties) > PROPERTIES_BYTES_MAX - ORIGIN_ROOM:
        raise RecordError(
            f"properties of {len(properties)} bytes: a delayed message may have "
            f"{PROPERTIES_BYTES_MAX - ORIGIN_ROOM}",
            Code.LIMIT_EXCEEDED,
        )
    if size > RECORD_BYTES_LIMIT - ORIGIN_ROOM:
        raise RecordError(
            f"a delayed record of {size} bytes: {RECORD_BYTES_LIMIT - ORIGIN_ROOM} are allowed",
            Code.RECORD_TOO_LARGE,
        )
    return _encode(message, _TOPIC, TIMER_QUEUE, properties, message.sys_flag)


def _encode(message: Record, topic: bytes, queue_id: int, properties: bytes, sys_flag: int) -> bytes:
    return encode_record(
        topic,
        queue_id,
        message.body,
        properties,
        message.born_ms,
        message.born_host,
        sys_flag,
        message.flag,
        message.reconsume_times,
        COPY_MARK,
    )


def _read_waiting(raw: Buffer, entry: Entry) -> Record:
    """The waiting record of an entry; RecordError when the bytes are not its."""
    record = decode_record(raw, 0, VERIFY_ALL)
    if record.topic != _TOPIC or record.physical_offset != entry.position:
        raise RecordError(f"the record at {entry.position} is no delayed message")
    found = entry_of(record.properties, record.queue_offset, entry.position, entry.size)
    if found != entry:
        raise RecordError(f"the record at {entry.position} is another delayed message")
    return record


def released_copy(raw: Buffer, entry: Entry) -> Released:
    """The copy that leaves the timer; `raw` are the stamped bytes at the entry's position.

    Raises RecordError when they are damaged or of another message.
    """
    record = _read_waiting(raw, entry)
    target = value_of(record.properties, b"DEST") or b""
    topic, _, queue = target.rpartition(b"/")
    if not topic or not queue.isdigit():
        raise RecordError(f"the delayed message at {entry.position} says no topic and queue")
    pairs, separator, mqtt = record.properties.partition(b"\0")
    pairs = _without(pairs, b"DEST\x01", b"PS\x01", _ORIGIN)
    origin = _ORIGIN + b"%d/%d\x02" % (entry.first, record.reconsume_times)
    queue_id = int(queue)
    copy = _encode(record, topic, queue_id, pairs + origin + separator + mqtt, record.sys_flag & ~SYS_ROLLED)
    return Released(copy, topic.decode(), queue_id)


def rolled_record(raw: Buffer, entry: Entry) -> bytes:
    """The waiting record of a message whose segment goes: origin, due and born time are kept.

    Raises RecordError as `released_copy` does.
    """
    record = _read_waiting(raw, entry)
    pairs, separator, mqtt = record.properties.partition(b"\0")
    origin = _ORIGIN + b"%d/%d\x02" % (entry.first, record.reconsume_times)
    properties = _without(pairs, _ORIGIN) + origin + separator + mqtt
    return _encode(record, _TOPIC, TIMER_QUEUE, properties, record.sys_flag | SYS_ROLLED)


def entry_of(properties: bytes, queue_offset: int, position: int, size: int) -> Entry | None:
    """The entry of a record in the timer's topic; None = nothing there says when it is due."""
    due = value_of(properties, b"DUE")
    if due is None or not due.isdigit() or int(due) >= DUE_LIMIT_MS:
        return None
    first = first_of(properties)
    return Entry(int(due), queue_offset if first is None else first, position, size)


def first_of(properties: bytes) -> int | None:
    """The `%TIMER` offset that a copy or rolled record names as its first; None = it names none."""
    origin = value_of(properties, b"ORIGIN")
    if origin is None or not origin.startswith(b"%TIMER/0/"):
        return None
    first = origin.split(b"/")[2]
    return int(first) if first.isdigit() else None


def has_waiting(batch: Batch) -> bool:
    """Whether a batch has records of the timer's topic."""
    return any(run.topic == TIMER_TOPIC for run in batch.runs)


def entries_in(batch: Batch, with_copies: bool) -> list[Entry]:
    """The timer's entries that a stamped batch makes, in its order.

    `with_copies`: also look for copies in all other records (size 0), as a replay must.
    """
    if not with_copies and not has_waiting(batch):
        return []
    data = bytes(batch.records)
    wanted: list[int] = []
    first = 0
    for run in batch.runs:
        if run.topic == TIMER_TOPIC:
            wanted.extend(range(first, first + run.count))
        first += run.count
    waiting = set(wanted)
    if with_copies:
        # The mark may stand in a body, too: what is found is read before it counts.
        ends = batch.starts + batch.sizes
        at = data.find(_COPY_MARK)
        while at >= 0:
            index = int(np.searchsorted(ends, at, "right"))
            if index not in waiting:
                wanted.append(index)
            at = data.find(_COPY_MARK, int(ends[index]))
        wanted.sort()
    if not wanted:
        return []
    return _read_entries(batch, data, np.array(wanted, np.int64), waiting)


def _read_entries(batch: Batch, data: bytes, wanted: Ints, waiting: set[int]) -> list[Entry]:
    starts, sizes = batch.starts[wanted], batch.sizes[wanted]
    columns = decode_columns(data, starts, sizes)
    found: list[Entry] = []
    for index, size, begin, length, offset, position in zip(
        wanted.tolist(),
        sizes.tolist(),
        columns.properties_start.tolist(),
        columns.properties_size.tolist(),
        columns.queue_offset.tolist(),
        columns.physical_offset.tolist(),
        strict=True,
    ):
        properties = data[begin : begin + length]
        is_waiting = index in waiting
        if not is_waiting and first_of(properties) is None:
            continue
        entry = entry_of(properties, offset, position, size if is_waiting else 0)
        if entry is not None:
            found.append(entry)
    return found


def sizes_of(records: list[bytes]) -> Ints:
    """The sizes of records, for a batch of them."""
    return np.fromiter(map(len, records), np.int64, len(records))
