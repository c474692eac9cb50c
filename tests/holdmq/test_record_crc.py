"""The CRCs of many records by one."""

from __future__ import annotations

import os
import random
from ipaddress import IPv6Address

import numpy as np
import pytest

from holdmq.record import SYS_BORN_IPV6, SYS_STORE_ID
from holdmq.record_batch import Ints, encode_batch, stamp, starts_of, verify_bodies
from holdmq.record_crc import AT_ONCE_BYTES, AT_ONCE_RECORDS_MIN, _sum_of_bytes, _sum_of_crcs, first_damaged


def records(count: int, sizes_to: int = 60, ipv6_each: int = 0) -> tuple[bytearray, Ints, Ints]:
    """Stamped records of random sizes; every `ipv6_each`th was born on an IPv6 host."""
    made, all_sizes = bytearray(), []
    chosen = random.Random(count)
    for index in range(count):
        is_long = bool(ipv6_each) and index % ipv6_each == 0
        host = IPv6Address(index + 1).packed + b"\0\0\x07\x5b" if is_long else bytes(8)
        flags = SYS_STORE_ID | (SYS_BORN_IPV6 if is_long else 0)
        body = chosen.randbytes(chosen.randrange(sizes_to))
        raw, sizes = encode_batch(b"devices", 3, [body], b"TAGS\x01t\x02", 7, host, flags)
        made += raw
        all_sizes += sizes.tolist()
    sizes = np.array(all_sizes, np.int64)
    starts = starts_of(sizes)
    stamp(made, starts, sizes, np.arange(count), 4096, 1_700_000_000_000, os.urandom(8))
    return made, starts, sizes


@pytest.mark.parametrize("ipv6_each", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 511, 2000])
def test_the_sum_over_whole_records_is_that_of_their_crcs(count: int, ipv6_each: int) -> None:
    made, starts, sizes = records(count, ipv6_each=ipv6_each)
    raw = np.frombuffer(made, np.uint8)
    assert _sum_of_bytes(raw, starts, sizes) == _sum_of_crcs(raw, starts, sizes)
    assert first_damaged(made, starts, sizes) == -1


def test_any_flipped_byte_that_the_crc_covers_is_found_where_it_is() -> None:
    made, starts, sizes = records(600, ipv6_each=5)
    for entry in (0, 1, 300, 599):
        begin, end = int(starts[entry]), int(starts[entry] + sizes[entry])
        for at in range(begin + 8, end - 8):
            made[at] ^= 0x10
            assert first_damaged(made, starts, sizes) == verify_bodies(made, starts, sizes)
            made[at] ^= 0x10
    made[int(starts[300]) + 12] ^= 1
    assert first_damaged(made, starts, sizes) == 300


def test_records_with_others_between_them_are_checked_one_by_one() -> None:
    made, starts, sizes = records(2 * AT_ONCE_RECORDS_MIN)
    assert first_damaged(made, starts[::2], sizes[::2]) == -1
    made[int(starts[4]) + 90] ^= 1
    assert first_damaged(made, starts[::2], sizes[::2]) == 2


def test_a_run_that_is_too_long_for_the_table_is_checked_one_by_one() -> None:
    made, starts, sizes = records(AT_ONCE_RECORDS_MIN, sizes_to=5000)
    assert len(made) > AT_ONCE_BYTES
    assert first_damaged(made, starts, sizes) == -1
    made[-30] ^= 1
    assert first_damaged(made, starts, sizes) == AT_ONCE_RECORDS_MIN - 1


def test_a_longest_run_uses_the_whole_table() -> None:
    made, starts, sizes = records(AT_ONCE_RECORDS_MIN, sizes_to=1200)
    last = int(np.searchsorted(np.cumsum(sizes), AT_ONCE_BYTES, "right"))
    assert first_damaged(made, starts[:last], sizes[:last]) == -1
