"""Delayed messages of producers: their due time, and the records that wait in their place. Pure.

A record of a delayed run has the property DUE: ms since the epoch, or `+ms` = from when the broker takes it,
so that a producer's clock need not be right. See holdmq.wire.move_headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.topics.core.table import Topic
from holdmq.errors import Code, RecordError, RemoteError
from holdmq.names.topics import is_temporary
from holdmq.record.codec import Buffer
from holdmq.record.origin import value_in
from storage.api.timer import DUE_LIMIT_MS, waiting_record

UNFIT_KINDS: Final = frozenset({"temporary", "table"})


def due_of(properties: bytes, now_ms: int) -> int | None:
    """When the record with these properties is due, in ms since the epoch; None = it does not say so."""
    due = value_in(properties, "DUE")
    if due is None:
        return None
    digits = due.removeprefix("+")
    # Longer texts are no times, and need not be read as numbers.
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(DUE_LIMIT_MS)):
        return None
    due_ms = int(digits) + (now_ms if due.startswith("+") else 0)
    return due_ms if due_ms < DUE_LIMIT_MS else None


def waiting_records(
    topic: Topic, records: Sequence[Buffer], properties: Sequence[bytes], now_ms: int
) -> list[bytes]:
    """The records that wait in the place of a delayed run's, in its order.

    Raises RemoteError: KIND_UNFIT for topics that cannot delay, DELAY_INVALID that names the record,
    LIMIT_EXCEEDED or RECORD_TOO_LARGE when there is no room for what the timer adds.
    """
    if topic.kind in UNFIT_KINDS or is_temporary(topic.name):
        raise RemoteError(Code.KIND_UNFIT, f"topic {topic.name!r} ({topic.kind}) cannot delay messages")
    waiting: list[bytes] = []
    for index, (record, own) in enumerate(zip(records, properties, strict=True)):
        due_ms = due_of(own, now_ms)
        if due_ms is None:
            raise RemoteError(
                Code.DELAY_INVALID, f"record {index} of a delayed run has no DUE, or none that can be"
            )
        try:
            waiting.append(waiting_record(record, due_ms))
        except RecordError as error:
            raise RemoteError(error.code, f"record {index} of a delayed run: {error}") from error
    return waiting
