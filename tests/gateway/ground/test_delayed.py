from __future__ import annotations

import pytest

from gateway.ground.delayed import DELAY_MAX_S, DelayedTopic, split_delayed
from gateway.ground.entries import make_entry, record_properties
from holdmq.mqtt import ReasonCode
from holdmq.record.codec import decode_properties


def test_a_delayed_topic_says_the_seconds_and_where_it_goes() -> None:
    assert split_delayed(b"$delayed/15/a/b") == DelayedTopic(15, b"a/b")
    assert split_delayed(b"$delayed/0/a") == DelayedTopic(0, b"a")
    assert split_delayed(b"$delayed/007//x/") == DelayedTopic(7, b"/x/")
    assert split_delayed(b"$delayed/%d/a" % DELAY_MAX_S) == DelayedTopic(30 * 86_400, b"a")


@pytest.mark.parametrize(
    "raw",
    [
        b"$delayed/",
        b"$delayed/5",
        b"$delayed/5/",
        b"$delayed//a",
        b"$delayed/x/a",
        b"$delayed/-1/a",
        b"$delayed/1.5/a",
        b"$delayed/ 1/a",
        "$delayed/٣/a".encode(),
        b"$delayed/%d/a" % (DELAY_MAX_S + 1),
        b"$delayed/" + b"9" * 60_000 + b"/a",
        b"$delayed/1/$SYS/x",
        b"$delayed/1/$delayed/1/a",
    ],
)
def test_what_is_no_delayed_topic_is_refused(raw: bytes) -> None:
    assert split_delayed(raw) is None
    assert make_entry(raw, 1 << 20, 128).refusal == ReasonCode.TOPIC_NAME_INVALID


def test_its_entry_is_that_of_the_topic_with_a_delay() -> None:
    entry = make_entry(b"$delayed/5/devices/1/temp", 16, 3)
    assert (entry.refusal, entry.mqtt_topic, entry.delay_s) == (0, "devices/1/temp", 5)
    assert entry.own == ("devices", "1/temp")
    assert make_entry(b"devices/1/temp", 16, 3).delay_s is None


@pytest.mark.parametrize("topic", [b"devices/1/longer", b"a/b/c/d"])
def test_limits_are_those_of_the_topic_behind_the_delay(topic: bytes) -> None:
    assert make_entry(b"$delayed/5/" + topic, 15, 3).refusal == ReasonCode.TOPIC_NAME_INVALID


def test_other_names_that_begin_with_a_dollar_cannot_be_published() -> None:
    for raw in (b"$SYS/x", b"$delayed", b"$delayedx/1/a", b"$share/g/a", b"$"):
        assert make_entry(raw, 100, 10).refusal == ReasonCode.TOPIC_NAME_INVALID


def test_the_record_says_its_delay_before_the_block_of_mqtt() -> None:
    raw = record_properties("t", "c", b"\x01\x01", 5)
    assert decode_properties(raw).first("DUE") == "+5000"
    assert raw.endswith(b"\0\x01\x01")
    assert b"DUE" not in record_properties("t", "c", b"")
