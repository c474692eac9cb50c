"""The record: golden bytes, round trips, and every damaged byte found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import Code, RecordError
from holdmq.message import Message, MessageId
from holdmq.record.batch import split_records, stamp, starts_of
from holdmq.record.codec import (
    NO_HOST,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_LIMIT,
    SHORT_BYTES,
    STAMP_FACTORS,
    SYS_BORN_IPV6,
    SYS_QOS_SHIFT,
    SYS_RETAIN,
    SYS_STORE_ID,
    USER_BYTES_MAX,
    VERIFY_ALL,
    VERIFY_BODY,
    RecordTemplate,
    body_crc,
    decode_host,
    decode_properties,
    decode_record,
    encode_host,
    encode_message,
    encode_properties,
    encode_record,
    message_properties,
    stamp_check,
    tag_of,
    tag_of_record,
    user_properties,
)

TAGGED = b"TAGS\x0142/temp\x02CLIENT_ID\x01dev-42\x02"

GOLDEN = bytes.fromhex(
    "0000007f"  # TotalSize 127
    "484d5131"  # HMQ1
    "d9fbfe1a"  # BodyCRC
    "00000003"  # QueueId
    "00000007"  # Flag
    "0000000000000000"  # QueueOffset
    "0000000000000000"  # PhysicalOffset
    "00000120"  # SysFlag: QoS 1, StoreHost is the store id
    "0000018bcfe56800"  # BornTimestamp
    "7f00000100001234"  # BornHost 127.0.0.1:4660
    "0000000000000000"  # StoreTimestamp
    "0000000000000000"  # StoreHost
    "00000002"  # ReconsumeTimes
    "0000000000000009"  # PreparedTransactionOffset
    "000000023231"  # Body "21"
    "0764657669636573"  # Topic "devices"
    "0013" + b"TAGS\x0142/temp\x02K\x01vvv\x02".hex() + "00000000"  # StampCheck
    "0000007f"
)


def stamped(
    record: bytes, offset: int = 5, position: int = 1 << 33, store_ms: int = 1_700_000_000_123
) -> bytes:
    buffer = bytearray(record)
    sizes = np.array([len(record)], np.int64)
    stamp(buffer, starts_of(sizes), sizes, np.array([offset]), position, store_ms, b"storeid!")
    return bytes(buffer)


def test_a_record_is_these_bytes() -> None:
    record = encode_record(
        b"devices",
        3,
        b"21",
        b"TAGS\x0142/temp\x02K\x01vvv\x02",
        0x18BCFE56800,
        encode_host("127.0.0.1", 0x1234),
        1 << SYS_QOS_SHIFT,
        7,
        2,
        9,
    )
    assert record.hex() == GOLDEN.hex()
    assert body_crc(record) == int.from_bytes(record[8:12], "big")


def test_template_and_function_make_the_same_record() -> None:
    for host in (NO_HOST, encode_host("fe80::1", 1883)):
        template = RecordTemplate(b"t", 9, TAGGED, host, SYS_RETAIN, 1, 2, 3)
        border = SHORT_BYTES - len(template.encode(b"", 77))
        for size in (0, 4, border, border + 1):
            for born_ms in (0, 77, 2**61 - 1, 2**61, 2**64 - 1):
                body = bytes(range(256)) * 4 + b"more"
                record = template.encode(body[:size], born_ms)
                assert record == encode_record(
                    b"t", 9, body[:size], TAGGED, born_ms, host, SYS_RETAIN, 1, 2, 3
                )
                assert decode_record(record, verify=VERIFY_BODY).body == body[:size]


def test_a_time_before_the_epoch_is_refused() -> None:
    template = RecordTemplate(b"t", 9)
    for size in (1, SHORT_BYTES):
        with pytest.raises(OverflowError):
            template.encode(bytes(size), -1)


@given(
    topic=st.binary(min_size=1, max_size=127),
    queue_id=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    born_ms=st.integers(0, 2**64 - 1),
    host=st.sampled_from([8, 20]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
    flag=st.integers(0, 2**32 - 1),
    times=st.integers(0, 2**32 - 1),
    prepared=st.integers(-(2**63), 2**63 - 1),
    trailing=st.binary(max_size=5),
)
def test_what_is_encoded_is_decoded(
    topic: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    born_ms: int,
    host: bytes,
    flag: int,
    times: int,
    prepared: int,
    trailing: bytes,
) -> None:
    record = encode_record(
        topic, queue_id, body, properties, born_ms, host, SYS_RETAIN, flag, times, prepared
    )
    decoded = decode_record(b"xy" + stamped(record) + trailing, 2, VERIFY_ALL)
    expected = SYS_RETAIN | SYS_STORE_ID | (SYS_BORN_IPV6 if len(host) == 20 else 0)
    assert (decoded.topic, decoded.queue_id, decoded.body, decoded.properties) == (
        topic,
        queue_id,
        body,
        properties,
    )
    assert (decoded.born_ms, decoded.born_host, decoded.sys_flag) == (born_ms, host, expected)
    assert (decoded.flag, decoded.reconsume_times, decoded.prepared) == (flag, times, prepared)
    assert (decoded.queue_offset, decoded.physical_offset, decoded.store_host) == (5, 1 << 33, b"storeid!")
    assert decoded.total_size == len(record)


@pytest.mark.parametrize("host", [NO_HOST, encode_host("::1", 1)])
def test_every_flipped_byte_of_a_stamped_record_is_found(host: bytes) -> None:
    record = stamped(encode_record(b"devices", 3, b"temperature", TAGGED, 77, host))
    decode_record(record, 0, VERIFY_ALL)
    for at in range(len(record)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            damaged = bytearray(record)
            damaged[at] ^= mask
            with pytest.raises(RecordError):
                decode_record(damaged, 0, VERIFY_ALL)


def test_no_change_of_one_stamp_byte_keeps_the_check() -> None:
    # A change by d·2^(8i) changes the sum by d·2^(8i)·factor: what may not vanish from the high half.
    for factor in STAMP_FACTORS:
        for byte in range(8):
            for d in range(1, 256):
                change = (d << 8 * byte) * factor % 2**64
                assert 2**32 <= change <= 2**64 - 2**32


def test_a_record_without_a_stamp_fails_the_whole_check_only() -> None:
    record = encode_record(b"t", 0, b"x", b"", 1)
    decode_record(record, 0, VERIFY_BODY)
    with pytest.raises(RecordError, match="StampCheck"):
        decode_record(record, 0, VERIFY_ALL)


def test_a_cut_record_is_refused_at_every_length() -> None:
    record = stamped(encode_record(b"devices", 3, b"21", TAGGED, 77))
    for length in range(len(record)):
        with pytest.raises(RecordError):
            decode_record(record[:length])


def test_lengths_that_do_not_fit_are_named() -> None:
    record = bytearray(encode_record(b"t", 0, b"body", b"", 1))
    record[84:88] = (1 << 31).to_bytes(4, "big")
    with pytest.raises(RecordError, match="BodyLength 2147483648"):
        decode_record(record)


def test_fields_that_no_record_can_hold_are_refused() -> None:
    with pytest.raises(RecordError, match="topic of 128 bytes"):
        encode_record(b"t" * 128, 0, b"", b"", 1)
    with pytest.raises(RecordError, match="topic of 0 bytes"):
        RecordTemplate(b"", 0)
    with pytest.raises(RecordError, match="SysFlag"):
        encode_record(b"t", 0, b"", b"", 1, sys_flag=0x400)
    with pytest.raises(RecordError, match="BornHost of 5"):
        encode_record(b"t", 0, b"", b"", 1, b"12345")
    with pytest.raises(RecordError, match="65535") as refused:
        encode_record(b"t", 0, b"", bytes(PROPERTIES_BYTES_MAX + 1), 1)
    assert refused.value.code == Code.LIMIT_EXCEEDED
    for encode in (RecordTemplate(b"t", 0).encode, lambda body, ms: encode_record(b"t", 0, body, b"", ms)):
        with pytest.raises(RecordError, match=str(RECORD_BYTES_LIMIT)) as refused:
            encode(bytes(RECORD_BYTES_LIMIT), 1)
        assert refused.value.code == Code.RECORD_TOO_LARGE


def test_hosts_of_both_families_are_read_back() -> None:
    assert decode_host(encode_host("10.1.2.3", 1883)) == ("10.1.2.3", 1883)
    assert decode_host(encode_host("2001:db8::7", 65535)) == ("2001:db8::7", 65535)
    with pytest.raises(RecordError, match="no IP address"):
        encode_host("example.org", 1)


# Properties

texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(st.tuples(texts.filter(bool), texts), max_size=8), st.none() | st.binary(max_size=30))
def test_properties_keep_order_repeats_and_every_character(
    pairs: list[tuple[str, str]], mqtt: bytes | None
) -> None:
    decoded = decode_properties(encode_properties(pairs, mqtt))
    assert decoded.pairs == pairs
    assert decoded.mqtt == mqtt


def test_separators_inside_a_pair_are_escaped_so() -> None:
    raw = encode_properties([("a\x01b", "\x00\x02\x03@")])
    assert raw == b"a\x03Ab\x01\x03@\x03B\x03C@\x02"


@pytest.mark.parametrize(
    "raw", [b"a\x01b", b"ab\x02", b"\x01b\x02", b"a\x01b\x01c\x02", b"a\x01\x03Z\x02", b"\xff\x01\x02"]
)
def test_properties_that_nobody_encodes_are_refused(raw: bytes) -> None:
    with pytest.raises(RecordError):
        decode_properties(raw)


def test_tag_and_user_properties_have_a_bound_of_their_own() -> None:
    fits = "x" * (USER_BYTES_MAX - len("u.k") - 2)
    encode_properties([("u.k", fits), ("PS", "y" * 1000)])
    with pytest.raises(RecordError, match="32768 are allowed") as refused:
        encode_properties([("u.k", fits), ("TAGS", "")])
    assert refused.value.code == Code.LIMIT_EXCEEDED
    with pytest.raises(RecordError, match="32768 are allowed"):
        encode_properties([], bytes(USER_BYTES_MAX + 1))
    with pytest.raises(RecordError, match="65535 are allowed"):
        encode_properties([("PS", "y" * PROPERTIES_BYTES_MAX)])


@pytest.mark.parametrize(
    ("pairs", "mqtt", "tag"),
    [
        ([], None, None),
        ([("TAGS", "")], None, b""),
        ([("TAGS", "a/b")], b"TAGS\x01no\x02", b"a/b"),
        ([("KEYS", "k"), ("TAGS", "later")], None, b"later"),
        ([("KEYS", "k")], b"\x02TAGS\x01no\x02", None),
        ([("TAGS", "a\x01\x03@")], None, b"a\x01\x03@"),
        ([("u.TAGS", "no")], None, None),
    ],
)
def test_the_tag_is_found_wherever_it_stands(
    pairs: list[tuple[str, str]], mqtt: bytes | None, tag: bytes | None
) -> None:
    properties = encode_properties(pairs, mqtt)
    assert tag_of(properties) == tag
    for host in (NO_HOST, encode_host("::1", 1)):
        record = encode_record(b"t", 0, b"\x02body", properties, 1, host)
        assert tag_of_record(b"?" + record, 1) == (None if tag is None else tag.decode())


def test_user_properties_come_from_both_parts() -> None:
    block = b"\x01\x01\x02\x00\x00\x00\x09\x23\x00\x07\x0b\x81\x01\x03\x00\x02ct"
    block += b"\x26\x00\x01a\x00\x01A\x26\x00\x01b\x00\x02BB"
    raw = encode_properties([("TAGS", "t"), ("u.a", "first"), ("u.c", "C")], block)
    assert user_properties(decode_properties(raw)) == {"a": "A", "c": "C", "b": "BB"}


@pytest.mark.parametrize(
    "block", [b"\x26\x00\x05a", b"\x26\x00\x01a", b"\x7f\x00", b"\x02\x00", b"\x26\x00\x01\xff\x00\x00"]
)
def test_mqtt_properties_that_are_cut_are_refused(block: bytes) -> None:
    with pytest.raises(RecordError):
        user_properties(decode_properties(encode_properties([], block)))


def test_a_message_comes_back_as_it_went() -> None:
    message = Message(
        "devices",
        b"21",
        "42/temp",
        ("k1", "k 2"),
        {"unit": "C", "TAGS": "mine"},
        5,
        "dev-42",
        1234,
        unique_id="u-1",
    )
    record = stamped(encode_message(message, 3, 99))
    back = decode_record(record, 0, VERIFY_ALL).to_message("b1")
    assert back == Message(
        "devices",
        b"21",
        "42/temp",
        ("k1", "k 2"),
        {"unit": "C", "TAGS": "mine"},
        5,
        "dev-42",
        1234,
        3,
        5,
        1_700_000_000_123,
        0,
        "u-1",
        MessageId(b"storeid!", 1 << 33),
        "b1",
    )
    assert message_properties(message).startswith(b"TAGS\x0142/temp\x02")
    assert decode_record(record).qos == 0
    assert decode_record(encode_message(Message("t", b""), 0, 99)).born_ms == 99


def test_stamp_check_is_the_formula() -> None:
    total = sum(v * f for v, f in zip((1, 2, 3, 4), STAMP_FACTORS, strict=True)) + 0xA0761D6478BD642F
    assert stamp_check(1, 2, 3, 4) == total % 2**64 >> 32


def test_splitting_stops_at_what_is_no_whole_record() -> None:
    record = encode_record(b"t", 0, b"abc", b"", 1)
    assert split_records(record * 3 + record[:-1]).tolist() == [len(record)] * 3
    assert split_records(record + bytes(200)).tolist() == [len(record)]
    assert split_records(b"").tolist() == []
