"""Reads of the log from its end: newest first, and what a segment ends with."""

from __future__ import annotations

from typing import Final

from holdmq.errors import CorruptRecordError, StorageError
from holdmq.files.disk import Disk, OpenFile
from holdmq.record.codec import RECORD_BYTES_LIMIT, Record
from storage.log.core.names import blank_size_at
from storage.log.reading.core.backwards import record_before
from storage.log.segments import Segment, Segments

CHUNK_BYTES: Final = 256 << 10
"""One read backwards: a page of small messages in one go."""
_HINT: Final = "the disk or memory damaged it; reading backwards cannot go past it by itself"


class BackwardReader:
    """Whole records before a log offset. Every method blocks and may run on several threads."""

    def __init__(self, disk: Disk, segments: Segments) -> None:
        self._disk = disk
        self._segments = segments

    def before(self, position: int, max_count: int, max_bytes: int) -> list[Record]:
        """Records that end at or before `position` (a record's start, or the log's end), newest first.

        At least one, unless `position` is the log's first. Raises CorruptRecordError when the bytes
        before `position` are no whole record; `resume_at` is then the start of their segment.
        """
        found: list[Record] = []
        while len(found) < max_count and max_bytes > 0:
            segment = self._segments.locate(position - 1)
            if segment is None:
                break
            file = self._open(segment)
            try:
                position, max_bytes = self._in_segment(file, segment, position, found, max_count, max_bytes)
            except CorruptRecordError:
                if found:
                    break
                raise
            except OSError as error:
                raise StorageError(
                    error.strerror or str(error), operation="read", path=str(segment.path), offset=position
                ) from error
            finally:
                file.close()
        return found

    def last_of(self, segment: Segment) -> Record | None:
        """The last record of a completed segment; None when it holds none."""
        file = self._open(segment)
        try:
            found: list[Record] = []
            self._in_segment(file, segment, segment.end, found, 1, 1)
        finally:
            file.close()
        return found[0] if found else None

    def _open(self, segment: Segment) -> OpenFile:
        try:
            return self._disk.open_to_read(segment.path)
        except OSError as error:
            raise StorageError(
                error.strerror or str(error), operation="read", path=str(segment.path)
            ) from error

    def _in_segment(
        self,
        file: OpenFile,
        segment: Segment,
        position: int,
        found: list[Record],
        max_count: int,
        max_bytes: int,
    ) -> tuple[int, int]:
        """Add records until a bound or the segment's start is reached; position and bytes left."""
        view, begin = memoryview(b""), position
        while position > segment.start and len(found) < max_count and max_bytes > 0:
            before = record_before(view[: position - begin], position)
            if before.wanted > position - segment.start:
                before = before._replace(reason=f"its TotalSize is {before.wanted}")
            if before.reason:
                raise self._damaged(segment, position, before.reason)
            if not before.size:
                blank = self._blank(file, segment, position, before.wanted)
                if blank:
                    position -= blank
                    view, begin = memoryview(b""), position
                    continue
                size = min(max(before.wanted, CHUNK_BYTES), position - segment.start)
                if before.wanted > RECORD_BYTES_LIMIT:
                    raise self._damaged(segment, position, f"its TotalSize is {before.wanted}")
                begin = position - size
                view = memoryview(file.read(begin - segment.start, size))
                if len(view) < size:
                    raise self._damaged(segment, position, "the file ends before it")
                continue
            if before.record is not None:
                if found and before.size > max_bytes:
                    return position, 0
                found.append(before.record)
                max_bytes -= before.size
            position -= before.size
        return position, max_bytes

    def _blank(self, file: OpenFile, segment: Segment, position: int, size: int) -> int:
        """`size` when a blank of it ends at `position`: its zeros need no reading."""
        if size < 8:
            return 0
        head = file.read(position - size - segment.start, 8)
        return size if blank_size_at(head, 0) == size else 0

    def _damaged(self, segment: Segment, position: int, reason: str) -> CorruptRecordError:
        error = CorruptRecordError(
            f"before it: {reason}", operation="read", path=str(segment.path), offset=position, hint=_HINT
        )
        error.resume_at = segment.start
        return error
