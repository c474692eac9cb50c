from __future__ import annotations

import pytest

from holdmq.errors import WireError
from holdmq.wire.retained_headers import (
    HEAD_BYTES,
    NEVER,
    RETAINED_QUEUES,
    RetainedMessage,
    decode_retained,
    expires_ms_of,
    retained_owner,
    retained_queue,
    stamp_retained,
)

MESSAGE = RetainedMessage(2, "gerät", b"\x26\x00\x01a\x00\x01b", b"payload")


def test_a_message_comes_back_as_it_was() -> None:
    assert decode_retained(MESSAGE.encode()) == MESSAGE
    assert decode_retained(memoryview(RetainedMessage(0, "", b"", b"").encode())).payload == b""


def test_its_owner_fills_in_the_times() -> None:
    stamped = stamp_retained(memoryview(MESSAGE.encode()), 5_000, 10)
    assert decode_retained(stamped) == MESSAGE._replace(published_ms=5_000, expires_ms=15_000)
    assert expires_ms_of(stamped) == 15_000
    assert decode_retained(stamp_retained(MESSAGE.encode(), 5_000, NEVER)).expires_ms == 0


@pytest.mark.parametrize(
    ("now_ms", "left_s"), [(5_000, 10), (5_001, 10), (14_001, 1), (15_000, 0), (99_000, 0)]
)
def test_what_is_left_of_an_expiry(now_ms: int, left_s: int) -> None:
    message = MESSAGE._replace(published_ms=5_000, expires_ms=15_000)
    assert message.left_s(now_ms) == left_s
    assert MESSAGE.left_s(now_ms) is None


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        MESSAGE.encode()[: HEAD_BYTES - 1],
        b"\x02" + MESSAGE.encode()[1:],
        b"\x01\x03" + MESSAGE.encode()[2:],
        MESSAGE.encode()[: HEAD_BYTES + 3],
        MESSAGE.encode().replace("ä".encode(), b"\xff\xff"),
    ],
)
def test_what_is_no_message_is_refused(broken: bytes) -> None:
    with pytest.raises(WireError):
        decode_retained(broken)


def test_bytes_that_are_no_row_never_expire_and_cannot_be_stamped() -> None:
    assert expires_ms_of(b"x") == expires_ms_of(b"\x02" * 40) == 0
    with pytest.raises(WireError):
        stamp_retained(b"\x02" * 40, 1, 1)


def test_each_topic_has_one_owner_and_one_queue() -> None:
    brokers = ["b0", "b1", "b2"]
    topics = [f"a/{n}" for n in range(300)]
    owners = [retained_owner(topic, brokers) for topic in topics]
    assert {retained_owner(topic, reversed_) for topic in topics for reversed_ in [["b0"]]} == {"b0"}
    assert owners == [retained_owner(topic, brokers[::-1]) for topic in topics]
    assert all(60 < owners.count(broker) < 140 for broker in brokers)
    assert all(0 <= retained_queue(topic) < RETAINED_QUEUES for topic in topics)
