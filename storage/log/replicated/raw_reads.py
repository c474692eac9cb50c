"""Bytes of the log as other copies get them: whole records, and blanks, from memory or from the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from holdmq.errors import BehindError, CorruptRecordError, StorageError
from holdmq.record.codec import RECORD_BYTES_LIMIT
from storage.api.batches import Batch
from storage.api.replication import Epoch, LogBytes
from storage.core.scan import whole_records
from storage.core.tail import Tail
from storage.log.core.names import blank_size_at
from storage.log.open_files import OpenFiles
from storage.log.segments import Segments

BLANK_HEAD_BYTES: Final = 8
"""What a copy gets of a blank: its size and magic, from which the rest follows."""


def read_memory(
    tail: Tail, pending: Iterable[Batch], written: int, epochs: Sequence[Epoch], position: int, max_bytes: int
) -> LogBytes | None:
    """What follows `position` in the newest batches, confirmed or only written; None = it is not in memory.

    `pending` are the batches behind the tail, in log order; those that end above `written` do not count.
    On the loop.
    """
    if position >= written:
        return LogBytes(position, position, ())
    known = tail.since(position, max_bytes)
    if known is None:
        return None
    end = position
    parts: list[memoryview] = []
    limit = next((epoch.start for epoch in epochs if epoch.start > position), written)
    for batch in chain(known, pending):
        if batch.end <= position or not len(batch.records):
            continue
        if batch.end > written or batch.position >= limit:
            break
        if batch.position > end:
            break  # a blank that closed a segment, or what a start found: the files know
        view = batch.records
        if batch.position < position:
            view = view[position - batch.position :]
        if parts and end - position + len(view) > max_bytes:
            break
        parts.append(view)
        end = batch.end
    return LogBytes(position, end, parts) if parts else None


class RawReader:
    """Reads of the log's files, for copies that lag. Every method blocks, and may run on several threads."""

    def __init__(self, files: OpenFiles, segments: Segments, written: Callable[[], int]) -> None:
        self._files = files
        self._segments = segments
        self._written = written

    def read(self, epochs: Sequence[Epoch], position: int, max_bytes: int) -> LogBytes:
        """What follows `position`, a boundary of records, at most `max_bytes` but at least a record.

        Never across an epoch's start or a segment's end. Raises BehindError when retention has passed the
        position, CorruptRecordError for damage there.
        """
        written = self._written()
        if position >= written:
            return LogBytes(position, position, ())
        first = self._segments.first_position
        segment = self._segments.locate(position)
        if position < first or segment is None:
            raise BehindError(position, first)
        limit = min(
            segment.end, written, next((epoch.start for epoch in epochs if epoch.start > position), written)
        )
        size = min(max_bytes, limit - position)
        while True:
            try:
                view = memoryview(self._files.read(segment.path, position - segment.start, size))
            except FileNotFoundError:
                raise BehindError(position, self._segments.first_position) from None
            except OSError as error:
                raise StorageError(
                    error.strerror or str(error), operation="read", path=str(segment.path), offset=position
                ) from error
            blank = blank_size_at(view, 0)
            if blank and position + blank == segment.end:
                return LogBytes(position, segment.end, (view[:BLANK_HEAD_BYTES],))
            whole = whole_records(view, position)
            if len(whole.sizes):
                end = position + int(whole.sizes.sum())
                return LogBytes(position, end, (view[: end - position],))
            if whole.reason or size >= min(RECORD_BYTES_LIMIT, limit - position):
                raise CorruptRecordError(
                    whole.reason or "no whole record begins here",
                    operation="read",
                    path=str(segment.path),
                    offset=position,
                    hint="the disk or memory damaged it: replace this copy",
                )
            size = min(RECORD_BYTES_LIMIT, limit - position)
