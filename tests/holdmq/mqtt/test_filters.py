from __future__ import annotations

import pytest

from holdmq.mqtt import MqttError, ParsedFilter, ReasonCode, is_topic_name, matches, parse_filter

# The specification's own examples (4.7.1 – 4.7.3), and the corners between them.
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player10", False),
    ("sport/#", "sport", True),
    ("#", "a/b", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "finance", True),
    ("+", "/finance", False),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+/tennis/#", "sport/tennis", True),
    ("+/tennis/#", "sport/tennis/a/b", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport//player1", True),
    ("sport/+/+/#", "sport/a", False),
    ("#", "$SYS/monitor", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("a/+/c", "a/$b/c", True),
    ("a/#", "a/$b", True),
    ("+/#", "$SYS", False),
    ("ACCOUNTS", "Accounts", False),
    ("a", "a", True),
    ("a", "a/", False),
    ("/a", "a", False),
    ("/", "/", True),
    ("/#", "/", True),
    ("/#", "/a/b", True),
    ("/#", "a", False),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("a/b", "a/b/c", False),
    ("a/b/c", "a/b", False),
    ("Accounts payable", "Accounts payable", True),
]


@pytest.mark.mqtt("MQTT-3.3.2-3", "MQTT-4.7.2-1", "MQTT-4.7.3-4")
@pytest.mark.parametrize(("topic_filter", "topic", "expected"), MATCHES)
def test_a_filter_matches_as_the_specification_says(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


@pytest.mark.parametrize(
    "text", ["#", "+", "/", "a", "+/#", "a/+/#", "+/+", "//", " ", "$SYS/#", "$shared/a", "é/+"]
)
def test_an_ordinary_filter_is_its_own_text(text: str) -> None:
    assert parse_filter(text) == ParsedFilter(None, text)


@pytest.mark.mqtt("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize(
    ("text", "name", "topic_filter"),
    [
        ("$share/g/a", "g", "a"),
        ("$share/g/#", "g", "#"),
        ("$share/g/a/+/#", "g", "a/+/#"),
        ("$share/g//", "g", "/"),
        ("$share/g/$SYS/a", "g", "$SYS/a"),
    ],
)
def test_a_shared_filter_is_split(text: str, name: str, topic_filter: str) -> None:
    parsed = parse_filter(text)
    assert (parsed.share_name, parsed.topic_filter, parsed.is_shared) == (name, topic_filter, True)


INVALID = [
    "", "a#", "#a", "a/#/b", "#/", "a/b#", "+a", "a+", "a/+b/c", "++", "a/++", "##", "a/##",
    "$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/a#/b", "$share/g/a#",
]  # fmt: skip


@pytest.mark.mqtt("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(MqttError, match="topic filter") as raised:
        parse_filter(text)
    assert raised.value.reason_code == ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.mqtt("MQTT-4.7.0-1", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.7.3-3")
@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True),
        ("/", True),
        ("a b/\u00e9", True),
        ("$SYS/a", True),
        ("", False),
        ("a/+", False),
        ("#", False),
        ("a\0", False),
        ("\ud800", False),
        ("a" * 65_535, True),
        ("a" * 65_536, False),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_topic_names_are_told_from_other_text(text: str, valid: bool) -> None:
    assert is_topic_name(text) is valid
