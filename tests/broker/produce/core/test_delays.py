from __future__ import annotations

import pytest

from broker.produce.core.delays import due_of, waiting_records
from broker.topics.core.table import Topic
from holdmq.errors import Code, RemoteError
from holdmq.record.codec import decode_record, encode_record
from holdmq.record.origin import value_in

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        ("5", 5),
        ("+5", NOW + 5),
        ("+0", NOW),
        (str((1 << 62) - 1), (1 << 62) - 1),
        (str(1 << 62), None),
        ("+" + str((1 << 62) - 1), None),
        ("9" * 4000, None),
        ("-5", None),
        ("", None),
        ("+", None),
        ("++5", None),
        ("1e3", None),
        ("\N{SUPERSCRIPT TWO}", None),
    ],
)
def test_a_due_time_is_a_moment_or_a_delay(text: str, due_ms: int | None) -> None:
    assert due_of(f"TAGS\x01a\x02DUE\x01{text}\x02".encode(), NOW) == due_ms


def test_properties_without_a_due_time_have_none() -> None:
    assert due_of(b"u.DUE\x015\x02", NOW) is None
    assert due_of(b"", NOW) is None
    assert due_of(b"TAGS\x01a\x02\0DUE\x015\x02", NOW) is None


def test_waiting_records_name_their_topic_queue_and_moment() -> None:
    properties = b"TAGS\x01a\x02DUE\x01+7\x02"
    record = encode_record(b"t", 2, b"body", properties, NOW)
    (waiting,) = waiting_records(Topic("t", 4, 4), [record], [properties], NOW)
    got = decode_record(waiting)
    assert got.topic == b"%TIMER"
    assert value_in(got.properties, "DEST") == "t/2"
    assert value_in(got.properties, "DUE") == str(NOW + 7)


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        (Topic("t#tmp", 1, 1, kind="temporary"), b"DUE\x015\x02", Code.KIND_UNFIT),
        (Topic("t", 1, 1, kind="table"), b"DUE\x015\x02", Code.KIND_UNFIT),
        (Topic("t", 1, 1), b"TAGS\x01a\x02", Code.DELAY_INVALID),
        (Topic("t", 1, 1), b"u.x\x01" + b"y" * 65_520 + b"\x02DUE\x015\x02", Code.LIMIT_EXCEEDED),
    ],
)
def test_what_cannot_wait_is_refused(topic: Topic, properties: bytes, code: Code) -> None:
    record = encode_record(topic.name.encode(), 0, b"body", properties, NOW)
    with pytest.raises(RemoteError) as refused:
        waiting_records(topic, [record], [properties], NOW)
    assert refused.value.code == code
