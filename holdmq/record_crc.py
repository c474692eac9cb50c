"""The BodyCRCs of many records by one CRC of all their bytes: what a cold read can afford.

CRC-32 is linear: the CRC of a run of records, with every byte that BodyCRC does not cover set to
zero, follows from the records' own CRCs and their places. One pass of zlib over the run (it lets
other threads work meanwhile) replaces a call per record; damage in a record always changes the
sum, and damage in several cancels out once in 2³². Who wants to can make it cancel out, so records
that a producer sends are checked one by one (`holdmq.record_batch.check_entries`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from holdmq.record import (
    IPV6_EXTRA,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    Buffer,
)
from holdmq.record_batch import Ints, verify_bodies

Words = npt.NDArray[np.uint32]

AT_ONCE_BYTES: Final = 1 << 20
"""The longest run that is checked at once: the table of powers takes four times that."""
AT_ONCE_RECORDS_MIN: Final = 512
"""Below it a call per record is cheaper than numpy's fixed cost (measured)."""

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 0x80000000
_ALL: Final = 0xFFFFFFFF
_CRC_AT: Final = QUEUE_ID_AT - 4
_TRAILER: Final = 8


def first_damaged(records: Buffer, starts: Ints, sizes: Ints) -> int:
    """The index of the first record whose BodyCRC is wrong; -1 = all are right.

    The records are stamped and have passed `check_layout`. Only those that lie one behind the other
    are checked at once.
    """
    if (
        len(starts) >= AT_ONCE_RECORDS_MIN
        and int(sizes.sum()) <= AT_ONCE_BYTES
        and (starts[1:] == starts[:-1] + sizes[:-1]).all()
    ):
        raw = np.frombuffer(records, np.uint8)[int(starts[0]) : int(starts[-1] + sizes[-1])]
        if _sum_of_bytes(raw, starts - starts[0], sizes) == _sum_of_crcs(raw, starts - starts[0], sizes):
            return -1
    return verify_bodies(records, starts, sizes)


def _sum_of_bytes(raw: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> int:
    """The CRC of the run with all that BodyCRC does not cover set to zero."""
    data = raw.copy()
    _clear(data, starts, QUEUE_ID_AT)
    _clear(data, starts + QUEUE_OFFSET_AT, 16)
    longer = data[starts + (SYS_FLAG_AT + 3)] & SYS_BORN_IPV6
    extra = np.where(longer != 0, IPV6_EXTRA, 0) if longer.any() else 0
    _clear(data, starts + STORE_MS_AT + extra, 16)
    _clear(data, starts + sizes - _TRAILER, _TRAILER)
    return crc32(data)


def _clear(data: npt.NDArray[np.uint8], at: Ints, size: int) -> None:
    nothing = np.zeros(1, np.dtype(f"V{size}"))
    view: npt.NDArray[np.void] = np.ndarray((len(data) - size + 1,), nothing.dtype, data, strides=(1,))
    view[at] = nothing


def _sum_of_crcs(raw: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> int:
    """What that CRC must be: every record's own, shifted by what lies behind it.

    zlib begins with ones and inverts its result, which cancels out but for the two ends of each
    record and of the run.
    """
    powers = _powers()
    length = len(raw)
    view = np.ndarray((length - 3,), np.dtype(">u4"), raw, strides=(1,))
    crcs: Words = view[starts + _CRC_AT].astype(np.uint32)
    behind: Words = powers[length - (starts + sizes - _TRAILER)]
    before: Words = powers[length - starts - QUEUE_ID_AT]
    ends = int(np.bitwise_xor.reduce(behind)) ^ int(np.bitwise_xor.reduce(before)) ^ int(powers[length])
    return _sum_of_products(crcs, behind) ^ _product(_ALL, ends ^ _ONE)


def _sum_of_products(left: Words, right: Words) -> int:
    """The sum of products of polynomials, bit by bit of `left` for all of them at once."""
    result = 0
    mask = np.empty_like(left)
    one = np.uint32(1)
    for bit in range(32):
        np.right_shift(left, np.uint32(bit), out=mask)
        np.bitwise_and(mask, one, out=mask)
        np.negative(mask, out=mask)
        np.bitwise_and(mask, right, out=mask)
        result = _times_x(result) ^ int(np.bitwise_xor.reduce(mask))
    return result


def _times_x(value: int) -> int:
    return (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)


def _product(left: int, right: int) -> int:
    """The product of two polynomials, the highest bit being x⁰, modulo CRC-32's."""
    result = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            result ^= right
        right = _times_x(right)
    return result


@cache
def _powers() -> Words:
    """x to 8·n for every n up to AT_ONCE_BYTES: what n bytes behind a CRC multiply it by."""
    powers = np.empty(AT_ONCE_BYTES + 1, np.uint32)
    powers[0] = _ONE
    known = 1
    step = 0x00800000  # x⁸
    while known < len(powers):
        part = powers[: min(known, len(powers) - known)]
        total = np.zeros_like(part)
        factor = step
        for bit in range(31, -1, -1):
            total ^= -((part >> np.uint32(bit)) & np.uint32(1)) & np.uint32(factor)
            factor = _times_x(factor)
        powers[known : known + len(part)] = total
        known *= 2
        step = _product(step, step)
    return powers
