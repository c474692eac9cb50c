"""All records of one small queue, in order, read by its index: what a start must know of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog

from holdmq.errors import StorageError
from holdmq.record.batch import split_records
from storage.api.batches import Batch, BatchRun
from storage.api.queues import ReadStatus
from storage.core.queues import Queue
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.reading.reader import ColdReader

READ_BYTES: Final = 1 << 20
READ_RECORDS: Final = 4096

log = structlog.get_logger("holdmq.storage")


def queue_batches(
    reader: ColdReader, queues: ConsumeQueues, key: Key, bounds: tuple[int, int], position: int, end: int
) -> Iterator[Batch]:
    """The queue's records that lie at the log position or behind it, below `end`. Blocking.

    `bounds` are its first and next offset at `end`, and its index is complete between them. Damaged records
    are logged and passed over. Raises StorageError when the disk fails.
    """
    topic, queue_id = key
    first, following = bounds
    low = max(first, queues.first_offset(key))
    if low >= following:
        return
    try:
        offset = queues.first_at_or_after(key, low, following, position)
    except OSError as error:
        raise StorageError(
            error.strerror or str(error), operation="read", path=str(queues.directory / topic)
        ) from error
    queue = Queue(topic, queue_id, low, following)
    while offset < following:
        read = reader.read_queue(queue, offset, READ_BYTES, READ_RECORDS, None, end)
        if read.status is ReadStatus.CORRUPT:
            log.error("a record of the store's own is damaged: what it says is missing", reason=read.reason)
        for part in read.parts:
            sizes = split_records(part)
            yield Batch(part, sizes, [BatchRun(topic, queue_id, len(sizes))])
        if read.next_offset <= offset:
            return
        offset = read.next_offset
