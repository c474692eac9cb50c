from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from holdmq.client.records import Packing, encode, encode_bodies, mark, move, unique_id
from holdmq.errors import RecordError
from holdmq.message import Message
from holdmq.record.bodies import ID_MASK
from holdmq.record.codec import SYS_COMPRESSED, VERIFY_BODY, Record, decode_record, encode_message


def split(records: bytes) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(records):
        found.append(decode_record(records, at, VERIFY_BODY))
        at += found[-1].total_size
    return found


@pytest.mark.parametrize("tag", [None, "", "42/temp", "ü/\x01%"])
@pytest.mark.parametrize(
    "bodies",
    [[b""], [b"", b""], [b"abc"] * 50, [bytes(i) for i in range(50)], [b"", b"x" * 300_000, b"y"]],
)
def test_many_bodies_are_the_same_records_as_one_by_one(tag: str | None, bodies: list[bytes]) -> None:
    topic = "devices"
    made = encode_bodies(topic, 3, tag, bodies, 77, 5, 1_700_000_000_000)
    one_by_one = [
        encode(
            Message(topic, body, tag, unique_id=unique_id(77, 5 + i), born_ms=1_700_000_000_000),
            3,
            Packing(0),
        )
        for i, body in enumerate(bodies)
    ]
    assert made.records == b"".join(one_by_one)
    assert made.sizes == b"".join(len(record).to_bytes(4, "big") for record in one_by_one)
    assert made.largest == max(map(len, one_by_one))


@pytest.mark.parametrize("first", [0x9F, 0x1234ABCDEF, (1 << 32) - 2, ID_MASK - 1])
def test_unique_ids_count_on_over_every_carry_and_their_end(first: int) -> None:
    records = encode_bodies("t", 0, None, [b"x"] * 3, 1, first, 1).records
    assert [r.to_message().unique_id for r in split(records)] == [unique_id(1, first + i) for i in range(3)]


def test_moved_records_differ_in_their_queue_alone() -> None:
    rng = random.Random(3)
    messages = [
        Message("t", rng.randbytes(rng.randrange(300)), "a", (f"k{i}",), {"p": "v"}, unique_id="u", born_ms=9)
        for i in range(20)
    ]
    records = [encode(message, 1, Packing()) for message in messages]
    sizes = np.array([len(record) for record in records], np.int64)
    moved = move(b"".join(records), sizes, 70_000)
    assert moved == b"".join(encode(message, 70_000, Packing()) for message in messages)
    assert all(record.queue_id == 70_000 for record in split(moved))


def test_large_bodies_are_compressed_where_that_helps() -> None:
    large = Message("t", b"12.5;" * 2000, unique_id="u", born_ms=1)
    record = decode_record(encode(large, 0, Packing()))
    assert record.sys_flag & SYS_COMPRESSED
    assert len(record.body) < 1000
    assert record.to_message().body == large.body
    random_body = Message("t", random.Random(1).randbytes(10_000), unique_id="u", born_ms=1)
    for message, packing in ((random_body, Packing()), (large, Packing(0)), (large, Packing(20_000))):
        assert not decode_record(encode(message, 0, packing)).sys_flag & SYS_COMPRESSED


def test_a_body_that_no_reader_would_unpack_is_refused() -> None:
    with pytest.raises(RecordError, match="12582912 are allowed"):
        encode(Message("t", bytes((12 << 20) + 1), unique_id="u", born_ms=1), 0, Packing())


@pytest.mark.parametrize("tag", [None, "", "42/temp", "ü/\x01%|"])
@pytest.mark.parametrize("own_id", [unique_id(7, 9), "user's own \x02", unique_id(7, 9) + "0"])
def test_the_short_way_to_properties_gives_the_same(tag: str | None, own_id: str) -> None:
    message = Message("t", b"x", tag, unique_id=own_id, born_ms=5)
    for _ in range(2):
        own, plain = (
            decode_record(encode(message, 1, Packing())),
            decode_record(encode_message(message, 1, 5)),
        )
        assert (own.properties, own.prepared, plain.prepared) == (plain.properties, mark(), 0)
        assert own.to_message() == plain.to_message()


FORKS = """
import os
from holdmq.client.records import Packing, encode, mark
from holdmq.message import Message
from holdmq.record.codec import decode_record

before = mark()
child = os.fork()
if child == 0:
    record = decode_record(encode(Message("t", b""), 0, Packing(0)), 0, 0)
    os._exit(record.prepared == before or record.prepared != mark())
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or mark() != before)
"""


def test_a_forked_process_has_a_mark_of_its_own() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], check=False).returncode == 0
