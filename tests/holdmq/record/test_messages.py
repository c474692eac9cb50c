"""Messages of many records at once: the same as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdmq.message import Message
from holdmq.record.codec import (
    NO_HOST,
    SYS_BORN_IPV6,
    SYS_COMPRESSED,
    SYS_STORE_ID,
    decode_record,
    encode_properties,
    encode_record,
)
from holdmq.record.compression import compress
from holdmq.record.messages import decode_messages

PROPERTIES = [
    b"",
    encode_properties([("TAGS", "a/b"), ("UNIQ_KEY", "0001")]),
    encode_properties([("TAGS", "a/b"), ("UNIQ_KEY", "0002")]),
    encode_properties([("TAGS", "a/c"), ("UNIQ_KEY", "0002")]),
    encode_properties([("TAGS", "a/b"), ("UNIQ_KEY", "00ü")]),
    encode_properties([("KEYS", "k1"), ("KEYS", "k2"), ("UNIQ_KEY", "0001"), ("u.p", "v\x01")]),
    encode_properties([("u.p", "w"), ("CLIENT_ID", "d1")], b"\x26\x00\x01k\x00\x01v"),
]
BODIES = [b"", b"body", bytes(300)]
PACKED = compress(bytes(300), 6)
assert PACKED is not None


def record_of(topic: bytes, properties: bytes, kind: int, number: int) -> bytes:
    """A record as a log has it (but for the stamp check), in one of some forms."""
    flags, body, host = SYS_STORE_ID, BODIES[kind % 3], NO_HOST
    if kind == 3:
        flags, body = flags | SYS_COMPRESSED, PACKED
    if kind == 4:
        flags, host = flags | SYS_BORN_IPV6, bytes(20)
    raw = bytearray(encode_record(topic, kind, body, properties, 1 << (62 + kind % 2), host, flags, 7, 3))
    raw[20:36] = number.to_bytes(8, "big") + (number * 100).to_bytes(8, "big")
    stored_at = 56 + (12 if kind == 4 else 0)
    raw[stored_at : stored_at + 16] = (1_700_000_000_000 + number).to_bytes(8, "big") + b"store-%d " % (
        kind % 2
    )
    return bytes(raw)


def one_by_one(records: list[bytes]) -> list[Message]:
    return [decode_record(record).to_message("b") for record in records]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"t", b"u", b"longer-topic"]), st.sampled_from(PROPERTIES), st.integers(0, 4)
        ),
        max_size=8,
    )
)
def test_many_are_decoded_as_one_by_one(rows: list[tuple[bytes, bytes, int]]) -> None:
    records = [record_of(*row, number) for number, row in enumerate(rows)]
    messages, bad = decode_messages(b"".join(records), "b")
    assert messages == one_by_one(records)
    assert not bad


def test_messages_share_no_properties() -> None:
    records = [record_of(b"t", PROPERTIES[5], 0, number) for number in range(3)]
    messages, _ = decode_messages(b"".join(records), None)
    messages[0].properties["p"] = "changed"
    messages[1].properties["q"] = "added"
    assert messages[2].properties == {"p": "v\x01"}


def test_a_record_that_cannot_be_decoded_does_not_hide_the_others() -> None:
    good = [record_of(b"t", PROPERTIES[1], 0, number) for number in range(3)]
    no_text = record_of(b"t", b"TAGS\x01\xff\x02", 0, 9)
    no_zlib = bytearray(record_of(b"t", PROPERTIES[1], 3, 9))
    no_zlib[90] ^= 0xFF
    no_magic = bytearray(good[0])
    no_magic[5] ^= 0xFF
    for wrong in (no_text, bytes(no_zlib), bytes(no_magic)):
        messages, bad = decode_messages(good[0] + wrong + good[1] + wrong + good[2], "b")
        assert messages == one_by_one(good)
        assert [one.at for one in bad] == [len(good[0]), len(good[0]) + len(wrong) + len(good[1])]


def test_behind_a_wrong_size_nothing_is_read() -> None:
    good = record_of(b"t", PROPERTIES[1], 0, 1)
    for size in (0, 98, len(good) + 1, 0xFFFFFFFF):
        messages, bad = decode_messages(good + size.to_bytes(4, "big") + good[4:], "b")
        assert messages == one_by_one([good])
        assert [one.at for one in bad] == [len(good)]
    messages, bad = decode_messages(good + good[:50], "b")
    assert len(messages) == len(bad) == 1
