"""The log read backwards: TotalSize stands at a record's end, too (storage.md, The record, field 22)."""

from __future__ import annotations

from typing import NamedTuple

from holdmq.errors import RecordError
from holdmq.record.codec import BLANK_MAGIC, BLANK_SIZE_MIN, FIXED_SIZE, VERIFY_ALL, Record, decode_record


class Before(NamedTuple):
    """What ends where a buffer ends: `size` bytes; `record` None = it is a blank.

    `size` 0 = the buffer does not hold all of it (`wanted` bytes do); `reason` is set when it is damaged.
    """

    size: int
    record: Record | None = None
    wanted: int = 0
    reason: str = ""


def record_before(view: memoryview, end_position: int) -> Before:
    """The record, or blank, that ends where the buffer ends; `end_position` is that log offset."""
    if len(view) < 4:
        return Before(0, wanted=4)
    total = int.from_bytes(view[-4:], "big")
    if total < BLANK_SIZE_MIN:
        return Before(0, reason=f"its TotalSize is {total}")
    if total > len(view):
        return Before(0, wanted=total)
    begin = len(view) - total
    magic = int.from_bytes(view[begin + 4 : begin + 8], "big")
    if magic == BLANK_MAGIC and int.from_bytes(view[begin : begin + 4], "big") == total:
        return Before(total)
    if total < FIXED_SIZE:
        return Before(0, reason=f"its TotalSize is {total}")
    try:
        record = decode_record(view, begin, VERIFY_ALL)
    except RecordError as error:
        return Before(0, reason=str(error))
    if record.physical_offset != end_position - total:
        return Before(0, reason="its PhysicalOffset is not where it lies")
    return Before(total, record)
