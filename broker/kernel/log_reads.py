"""Reads of the log for who goes through all of it, or wants what lies at one place. For the reader pool."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from holdmq.errors import BehindError, CorruptRecordError
from storage.api.batches import Batch
from storage.api.log_order import LogOrder

log = structlog.get_logger("holdmq.broker")


class LogRead(NamedTuple):
    """What lies from a log position on, and where the next read begins."""

    batches: list[Batch]
    next_position: int


def read_on(store: LogOrder, position: int, max_bytes: int, who: str) -> LogRead:
    """Blocking: the log from `position` on. Past what is damaged or gone it goes on behind that, and says so.

    Raises StorageError.
    """
    try:
        batches = store.read_log(position, max_bytes)
    except CorruptRecordError as error:
        log.error("the log is damaged; who reads it goes on after it", reader=who, reason=str(error))
        return LogRead([], error.resume_at)
    except BehindError as error:
        log.warning("behind retention; it goes on at the log's start", reader=who, reason=str(error))
        return LogRead([], error.resume_at)
    return LogRead(batches, batches[-1].end if batches else position)


def record_at(store: LogOrder, position: int) -> memoryview | None:
    """Blocking: the record at a log position; None = it is gone, damaged, or none begins there.

    Raises StorageError.
    """
    try:
        batches = store.read_log(position, 1)
    except (BehindError, CorruptRecordError):
        return None
    # Reading begins behind a blank.
    if not batches or batches[0].position != position:
        return None
    return batches[0].records[: int(batches[0].sizes[0])]
