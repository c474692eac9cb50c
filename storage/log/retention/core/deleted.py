"""Queues that were given up, as records of the log, so that every copy of it gives them up.

::

    body   | queue id 4 | next offset 8 | topic, UTF-8 |        of `%DELETED%`, one record for each queue

All that the queue holds below `next offset` is gone; it goes on there if it is written again.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from holdmq.errors import RecordError
from holdmq.record.codec import decode_record, encode_record
from storage.api.batches import Batch, BatchRun, sizes_of

DELETED_TOPIC: Final = "%DELETED%"
DELETED_KEY: Final = (DELETED_TOPIC, 0)
_BODY: Final = Struct(">IQ")


class DeletedQueue(NamedTuple):
    """What one record says; `position` is its own place in the log."""

    topic: str
    queue_id: int
    next_offset: int
    position: int = -1


def deletions_batch(queues: list[DeletedQueue], now_ms: int) -> Batch:
    """The batch that says that these queues, at least one, are given up."""
    records = [
        encode_record(
            DELETED_TOPIC.encode(),
            0,
            _BODY.pack(queue.queue_id, queue.next_offset) + queue.topic.encode(),
            b"",
            now_ms,
        )
        for queue in queues
    ]
    run = BatchRun(DELETED_TOPIC, 0, len(records))
    return Batch(memoryview(bytearray().join(records)), sizes_of(records), [run])


def deletions_in(batch: Batch) -> list[DeletedQueue]:
    """What a batch says of queues that are given up; RecordError for a record that is none."""
    found: list[DeletedQueue] = []
    first = 0
    for run in batch.runs:
        if run.topic == DELETED_TOPIC:
            for start in batch.starts[first : first + run.count].tolist():
                record = decode_record(batch.records, start)
                body = bytes(record.body)
                if len(body) <= _BODY.size:
                    raise RecordError(f"a record of {DELETED_TOPIC} is cut")
                queue_id, next_offset = _BODY.unpack_from(body)
                topic = body[_BODY.size :].decode("utf-8", "surrogateescape")
                found.append(DeletedQueue(topic, queue_id, next_offset, record.physical_offset))
        first += run.count
    return found
