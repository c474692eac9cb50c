from __future__ import annotations

import struct
import zlib

import pytest

from holdmq.errors import Code
from holdmq.produce import new_producer_id
from holdmq.produce.body import produce_body
from holdmq.produce.pauses import BACKOFF_MAX_S, BACKOFF_MIN_S, pause_s
from holdmq.produce.refusals import is_sent_again, leaves_gap


def test_every_new_producer_id_is_another() -> None:
    assert len({new_producer_id() for _ in range(100)}) == 100


def test_a_body_is_the_same_however_sizes_and_records_are_cut() -> None:
    sizes, records = struct.pack(">II", 2, 3), b"aabbb"
    whole = struct.pack(">I", 2) + sizes + records
    for body in (
        produce_body(2, [sizes], [records]),
        produce_body(2, [sizes[:4], sizes[4:]], [b"aa", memoryview(b"bbb")]),
    ):
        assert b"".join(body.parts) == whole
        assert body.length_bytes == len(whole)
        assert body.crc == zlib.crc32(whole)


def test_pauses_double_up_to_their_bound_and_are_never_shorter_than_asked_for() -> None:
    assert [pause_s(attempts, 0, 0.0) for attempts in range(3)] == [BACKOFF_MIN_S * 2**n for n in range(3)]
    assert pause_s(5_000, 0, 0.0) == BACKOFF_MAX_S
    assert BACKOFF_MAX_S / 2 <= pause_s(5_000, 0, 0.99) < BACKOFF_MAX_S
    assert pause_s(0, 3_000, 0.0) == 3.0
    assert pause_s(0, 3_000, 1.0) == 4.5


@pytest.mark.parametrize(
    ("code", "again", "gap"),
    [
        (Code.BUSY, True, False),
        (Code.OUT_OF_SEQUENCE, True, False),
        (Code.STORE_FULL, True, False),
        (Code.STORE_FAILED, True, False),
        (Code.SHUTTING_DOWN, True, False),
        (Code.BODY_CRC, True, False),
        (Code.QUEUE_UNKNOWN, False, True),
        (Code.TOPIC_UNKNOWN, False, True),
        (Code.PRODUCER_FENCED, False, True),
        (Code.NOT_PERMITTED, False, False),
        (Code.RECORD_TOO_LARGE, False, False),
        (Code.STORE_READ_ONLY, False, False),
    ],
)
def test_what_a_refusal_leaves_behind(code: Code, again: bool, gap: bool) -> None:
    assert (is_sent_again(code), leaves_gap(code)) == (again, gap)
