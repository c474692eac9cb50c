"""What a member is told that it has room for, and what it says that it holds."""

from __future__ import annotations

import pytest

from gateway.session.memberships import missing_credit, positions_of
from holdmq.record.codec import encode_record


@pytest.mark.parametrize(
    ("room", "shares", "credit", "missing"),
    [
        (0, 1, 0, 0),
        (10, 1, 0, 10),
        (10, 1, 5, 5),
        (10, 1, 6, 0),  # too little to be told
        (10, 3, 0, 3),
        (2, 5, 0, 1),  # a broker without credit could never deliver
        (2, 5, 1, 0),
        (10, 0, 0, 10),
    ],
)
def test_the_room_of_a_session_is_parted_and_told_when_it_is_worth_it(
    room: int, shares: int, credit: int, missing: int
) -> None:
    assert missing_credit(room, shares, credit) == missing


def test_records_say_their_positions_and_a_torn_one_ends_them() -> None:
    record = bytearray(encode_record(b"t", 0, b"body", b"", 1))
    records = b""
    for position in (7, 1 << 40):
        record[28:36] = position.to_bytes(8, "big")
        records += bytes(record)
    assert positions_of(records) == [7, 1 << 40]
    assert positions_of(records + b"\0" * 40) == [7, 1 << 40, 0]
    assert positions_of(b"") == []
