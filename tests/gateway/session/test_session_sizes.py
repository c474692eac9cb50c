"""What a client has room for: its Maximum Packet Size, and the names that are made short for it."""

from __future__ import annotations

import pytest
from session_bench import Bench, reasons

from gateway.ground.limits import TOPIC_ALIASES_OUT_MAX
from gateway.session.aliases import Aliases
from holdmq.mqtt import (
    MQTT_5,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)


def has_room_for(size_bytes: int) -> Properties:
    return Properties(maximum_packet_size=size_bytes)


# Maximum Packet Size


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.2.2-20")
def test_a_client_without_room_for_connack_is_refused_in_as_many_bytes_as_it_has() -> None:
    roomy = Bench()
    roomy.feed(Connect(client_id="c", version=MQTT_5, properties=has_room_for(1000)))
    assert reasons(roomy.session.admit(False, roomy.now)) == []
    size_bytes = len(roomy.session.data_to_send())
    for room in (5, size_bytes - 1):
        bench = Bench()
        bench.feed(Connect(client_id="c", version=MQTT_5, properties=has_room_for(room)))
        assert reasons(bench.session.admit(False, bench.now)) == ["packet_too_large"]
        data = bench.session.data_to_send()
        assert len(data) <= room
        assert bench.decoder.feed(data) == [ConnAck(False, 0x95)]


@pytest.mark.mqtt("MQTT-3.1.2-24")
def test_a_client_without_room_for_anything_is_told_nothing() -> None:
    bench = Bench()
    bench.feed(Connect(client_id="c", version=MQTT_5, properties=has_room_for(4)))
    assert reasons(bench.session.admit(True, bench.now)) == ["packet_too_large"]
    assert bench.session.data_to_send() == b""


@pytest.mark.mqtt("MQTT-3.1.2-24")
@pytest.mark.parametrize("count", [1, 57, 58, 121, 122, 130])
def test_a_subscribe_whose_answer_would_be_too_large_ends_the_connection(count: int) -> None:
    """Just as many as there is room for, and one more."""
    subscribe = Subscribe(1, [Subscription(f"f/{n}") for n in range(count)])
    unsubscribe = Unsubscribe(2, [f"f/{n}" for n in range(count)])
    size = 5 + count + (count + 3 > 0x7F)
    for packet in (subscribe, unsubscribe):
        bench = Bench()
        bench.connect(properties=has_room_for(max(size, 64)))
        assert reasons(bench.feed(packet)) == []
        bench.session.subscribed(1, [0] * count)
        bench.session.unsubscribed(2, [0] * count)
        data = bench.session.data_to_send()
        assert len(data) == 2 * size
        if size > 64:
            bench = Bench()
            bench.connect(properties=has_room_for(size - 1))
            assert reasons(bench.feed(packet)) == ["packet_too_large"]
            assert bench.sent()[0].reason_code == 0x95


@pytest.mark.mqtt("MQTT-3.14.2-3", "MQTT-3.14.2-4")
def test_a_reason_string_that_does_not_fit_is_left_out() -> None:
    bench = Bench()
    bench.connect(properties=has_room_for(40))
    bench.session.close(0x98, "dropped", "é" * 20)
    assert bench.sent() == [Disconnect(0x98)]
    bench = Bench()
    bench.connect(properties=has_room_for(48))
    bench.session.close(0x98, "dropped", "é" * 20)
    assert bench.sent() == [Disconnect(0x98, Properties(reason_string="é" * 20))]


@pytest.mark.mqtt("MQTT-3.9.2-1", "MQTT-3.1.2-29")
@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        (Properties(), True),
        (has_room_for(64), True),
        (has_room_for(30), False),
        (Properties(request_problem_information=0), False),
    ],
)
def test_a_suback_says_why_where_there_is_room_for_it(said: Properties, is_told: bool) -> None:
    bench = Bench()
    bench.connect(properties=said)
    bench.session.subscribed(1, [0x83], "there is no such time anywhere")
    reason = "there is no such time anywhere" if is_told else None
    assert bench.sent() == [SubAck(1, [0x83], Properties(reason_string=reason))]


# Response information


@pytest.mark.mqtt("MQTT-3.1.2-28")
@pytest.mark.parametrize(
    ("prefix", "asked", "client_id", "told"),
    [
        ("answers", 1, "meter-7", "answers/meter-7"),
        ("answers", 1, "", "answers/auto-1"),
        ("answers", 0, "meter-7", None),
        ("answers", None, "meter-7", None),
        ("answers", 1, "a+b", None),
        ("answers", 1, "a#", None),
        ("", 1, "meter-7", None),
    ],
)
def test_who_asks_for_response_information_is_told_a_topic_of_its_own(
    prefix: str, asked: int | None, client_id: str, told: str | None
) -> None:
    bench = Bench(response_prefix=prefix)
    answer = bench.connect(client_id=client_id, properties=Properties(request_response_information=asked))
    assert answer.properties.response_information == told


# Topic aliases out


def test_topics_get_aliases_in_the_order_in_which_they_are_sent_and_keep_them() -> None:
    aliases = Aliases(2)
    assert aliases.choose(b"a/long/topic", True) == 1
    assert aliases.choose(b"a/long/topic", True) == 1, "it was not sent"
    aliases.sent(b"a/long/topic", 1)
    assert aliases.choose(b"a/long/topic", True) == -1
    aliases.sent(b"a/long/topic", -1)
    assert aliases.choose(b"another/topic", True) == 2
    aliases.sent(b"another/topic", 2)
    assert aliases.choose(b"a/third/topic", True) == 0
    assert aliases.choose(b"a/long/topic", True) == -1


def test_what_may_be_overtaken_uses_aliases_and_sets_none() -> None:
    aliases = Aliases(5)
    assert aliases.choose(b"a/long/topic", False) == 0
    aliases.sent(b"a/long/topic", 1)
    assert aliases.choose(b"a/long/topic", False) == -1


def test_a_topic_as_short_as_its_alias_gets_none() -> None:
    assert Aliases(5).choose(b"a/b", True) == 0
    assert Aliases(5).choose(b"a/bc", True) == 1


@pytest.mark.mqtt("MQTT-3.1.2-26")
def test_aliases_are_bounded_whatever_a_client_takes() -> None:
    aliases = Aliases(65_535)
    for n in range(TOPIC_ALIASES_OUT_MAX):
        aliases.sent(b"topic/%d" % n, aliases.choose(b"topic/%d" % n, True))
    assert aliases.choose(b"one/more", True) == 0


@pytest.mark.mqtt("MQTT-3.1.2-27")
@pytest.mark.parametrize(("maximum", "has_aliases"), [(None, False), (0, False), (1, True)])
def test_only_a_client_that_takes_aliases_has_any(maximum: int | None, has_aliases: bool) -> None:
    bench = Bench()
    bench.connect(properties=Properties(topic_alias_maximum=maximum))
    assert (bench.session.outgoing().aliases is not None) is has_aliases
    assert bench.feed(PingReq()) == []
