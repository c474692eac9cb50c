"""Records that come from disk, one by one: whole, unchanged, and at their place. A loop that mypyc compiles.

One look at each record instead of a pass over all of them for every field. What BodyCRC covers before a
body is mostly what it is in the record before: its CRC is then known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i64_be, write_i64_le
from zlib_ng.zlib_ng import crc32

from holdmq.record.codec import (
    CRC_AT,
    FIXED_SIZE,
    IPV6_EXTRA,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_LIMIT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
)
from holdmq.record.each import layout_fault
from storage.core.stamps import check_of

if TYPE_CHECKING:
    from mypy_extensions import i64

WRONG_BODY_CRC: Final = "its BodyCRC does not match"
WRONG_STAMP: Final = "its StampCheck does not match"
WRONG_PLACE: Final = "its PhysicalOffset is not where it lies"

_U32: Final = 0xFFFFFFFF
_NO_STAMP: Final = bytes(16)


class Checker:
    """Checks records that lie one after the other; `size_bytes` of them were whole, `count` records.

    `reason` is why the next one is not; empty = the bytes given so far end there.
    """

    def __init__(self, position: int) -> None:
        self.size_bytes = 0
        self.count = 0
        self.reason = ""
        self._position = position
        self._sizes = BytesWriter()
        self._queue_offsets = BytesWriter()
        # What stands at 12, 36, 44 and 48 of the record before, and its CRC up to StoreHost; -1 = unknown.
        self._queue: i64 = 0
        self._flag: i64 = 0
        self._born: i64 = 0
        self._host: i64 = 0
        self._head_crc = -1

    def sizes(self) -> bytes:
        """The whole records' sizes, 8 bytes each, little-endian."""
        return self._sizes.getvalue()

    def queue_offsets(self) -> bytes:
        """The whole records' queue offsets, likewise."""
        return self._queue_offsets.getvalue()

    def check(self, data: bytes) -> None:
        """Check what lies behind `size_bytes`, up to the first record that is cut or not whole."""
        start: i64 = 0
        length: i64 = len(data)
        position: i64 = self._position + self.size_bytes
        while start + 8 <= length:
            total: i64 = (read_i64_be(data, start) >> 32) & _U32
            if total < FIXED_SIZE or total > RECORD_BYTES_LIMIT:
                self.reason = f"its TotalSize is {total}"
                break
            if start + total > length:
                break
            self.reason = self._problem(data, start, start + total, position + start)
            if self.reason:
                break
            write_i64_le(self._sizes, total)
            write_i64_le(self._queue_offsets, read_i64_be(data, start + QUEUE_OFFSET_AT))
            self.count += 1
            start += total
        self.size_bytes += start

    def check_at(self, data: bytes, starts: list[int], sizes: list[int]) -> int:
        """How many records at `starts`, all within `data`, come before the first that is not whole."""
        good = 0
        for begin, size in zip(starts, sizes, strict=True):
            start: i64 = begin
            total: i64 = size
            if total < FIXED_SIZE or self._problem(data, start, start + total, self._position + start):
                break
            good += 1
        return good

    def _problem(self, data: bytes, start: i64, end: i64, position: i64) -> str:
        """What is wrong with the record; empty = nothing."""
        fault = layout_fault(data, start, end)
        if fault:
            return fault
        extra: i64 = IPV6_EXTRA if data[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
        store_at: i64 = start + STORE_MS_AT + extra
        crc = crc32(data[store_at + 16 : end - SUFFIX_BYTES], self._crc_of_head(data, start, store_at))
        if crc != (read_i64_be(data, start + CRC_AT) >> 32) & _U32:
            return WRONG_BODY_CRC
        offset: i64 = read_i64_be(data, start + QUEUE_OFFSET_AT)
        physical: i64 = read_i64_be(data, start + PHYSICAL_OFFSET_AT)
        stored: i64 = check_of(offset, physical, read_i64_be(data, store_at), read_i64_be(data, store_at + 8))
        if stored != (read_i64_be(data, end - SUFFIX_BYTES) >> 32) & _U32:
            return WRONG_STAMP
        return "" if physical == position else WRONG_PLACE

    def _crc_of_head(self, data: bytes, start: i64, store_at: i64) -> int:
        """The CRC of fields 4 to 12, their stamps zero."""
        if store_at - start != STORE_MS_AT:
            return _head_crc(data, start, store_at)
        queue: i64 = read_i64_be(data, start + QUEUE_ID_AT)
        flag: i64 = read_i64_be(data, start + SYS_FLAG_AT)
        born: i64 = read_i64_be(data, start + SYS_FLAG_AT + 8)
        host: i64 = read_i64_be(data, store_at - 8)
        if (
            self._head_crc < 0
            or queue != self._queue
            or flag != self._flag
            or born != self._born
            or host != self._host
        ):
            self._head_crc = _head_crc(data, start, store_at)
            self._queue, self._flag, self._born, self._host = queue, flag, born, host
        return self._head_crc


def _head_crc(data: bytes, start: i64, store_at: i64) -> int:
    fields = data[start + QUEUE_ID_AT : start + QUEUE_OFFSET_AT]
    return crc32(fields + _NO_STAMP + data[start + SYS_FLAG_AT : store_at] + _NO_STAMP)
