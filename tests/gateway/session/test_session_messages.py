from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_bench import VERSIONS, Bench, ids, reasons

from gateway.ground.receipts import CLOSE, PublishReceipt
from gateway.session.cursor import SessionCursor
from gateway.session.events import Closed, Subscribing, Unsubscribing, WindowOpened
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    PUBREC,
    PUBREL,
    AckRun,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)

# Publishes in


@pytest.mark.mqtt("MQTT-4.3.2-4", "MQTT-2.2.1-5")
def test_publishes_come_as_runs_and_are_acknowledged_when_they_settle() -> None:
    bench = Bench()
    bench.connect()
    events = bench.feed(*[Publish("a/b", b"x", 1, packet_id=n) for n in (1, 2, 3)])
    assert len(events[0].messages) == 3
    assert bench.sent() == []
    bench.settle([1, 2, 3])
    assert ids(bench.sent()) == [1, 2, 3]
    assert bench.session.inbound is not None
    assert bench.session.inbound.count == 0


@pytest.mark.mqtt("MQTT-4.6.0-2", "MQTT-4.6.0-3")
def test_acknowledgements_leave_in_the_order_of_the_publishes() -> None:  # [MQTT-4.6.0-2]
    bench = Bench()
    bench.connect()
    bench.feed(*[Publish("a/b", b"x", 1, packet_id=n) for n in (1, 2, 3)])
    receipts = []
    for packet_id in (1, 2, 3):
        receipt = PublishReceipt(bench.session, PUBACK, packet_id)
        bench.session.expect(receipt)
        receipts.append(receipt)
    receipts[2].settle(0)
    receipts[1].settle(0x97)
    assert bench.sent() == []
    receipts[0].settle(0)
    answers = bench.sent()
    assert ids(answers) == [1, 2, 3]
    assert isinstance(answers[1], PubAck)
    assert answers[1].reason_code == 0x97


def test_what_is_not_settled_yet_holds_back_only_what_came_after_it() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(*[Publish("a/b", b"x", 1, packet_id=n) for n in (1, 2)])
    receipts = []
    for packet_id in (1, 2):
        receipt = PublishReceipt(bench.session, PUBACK, packet_id)
        bench.session.expect(receipt)
        receipts.append(receipt)
    receipts[0].settle(0)
    assert ids(bench.sent()) == [1]
    receipts[1].settle(0)
    assert ids(bench.sent()) == [2]


def test_a_refusal_is_acknowledged_in_mqtt_3() -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect()
    bench.feed(Publish("a", b"", 1, packet_id=5))
    bench.settle([5], outcome=0x97)
    assert ids(bench.sent()) == [5]


def test_what_the_log_may_not_have_is_never_acknowledged_and_dooms_the_connection() -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect()
    bench.feed(Publish("a", b"", 1, packet_id=5), Publish("a", b"", 1, packet_id=6))
    bench.settle([5], outcome=CLOSE | 0x89)
    bench.settle([6])
    assert bench.context.unserved == [bench.session]
    assert bench.sent() == [], "what is settled behind it is not answered either"


@pytest.mark.mqtt("MQTT-3.3.4-7")
def test_more_unacknowledged_publishes_than_the_receive_maximum_end_the_connection() -> None:  # 3.3.4
    bench = Bench(receive_max=2)
    bench.connect()
    assert reasons(bench.feed(*[Publish("a", b"", 1, packet_id=n) for n in (1, 2, 3)])) == [
        "receive_maximum_exceeded"
    ]
    assert bench.sent()[0].reason_code == 0x93


def test_mqtt_3_has_no_receive_maximum_but_its_socket_is_to_be_held() -> None:
    bench = Bench(MQTT_3_1_1, receive_max=2)
    bench.connect()
    assert reasons(bench.feed(*[Publish("a", b"", 1, packet_id=n) for n in (1, 2, 3)])) == []
    assert bench.session.is_saturated
    bench.settle([1, 2])
    assert not bench.session.is_saturated


def test_unreleased_qos_2_does_not_stop_the_reading_that_would_release_it() -> None:
    bench = Bench(MQTT_3_1_1, receive_max=2)
    bench.connect()
    bench.feed(*[Publish("a", b"", 2, packet_id=n) for n in (1, 2, 3)])
    assert bench.session.is_saturated
    bench.settle([1, 2, 3], PUBREC)
    assert not bench.session.is_saturated
    bench.feed(PubRel(1), PubRel(2), PubRel(3))
    assert bench.session.inbound is not None
    assert bench.session.inbound.count == 0


@pytest.mark.mqtt("MQTT-3.3.2-12", "MQTT-3.3.2-9")
def test_topic_aliases_up_to_the_maximum_are_resolved() -> None:
    bench = Bench()
    bench.connect()
    alias = Properties(topic_alias=16)
    events = bench.feed(Publish("a/b", b"1", properties=alias), Publish("", b"2", properties=alias))
    assert [m[0].mqtt_topic for e in events for m in e.messages] == ["a/b", "a/b"]
    assert reasons(bench.feed(Publish("c", b"", properties=Properties(topic_alias=17)))) == [
        "topic_alias_invalid"
    ]


# QoS 2 in


@pytest.mark.mqtt("MQTT-4.3.3-8", "MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
def test_qos_2_is_handed_on_once_until_it_is_released() -> None:  # [MQTT-4.3.3-9] … -12
    bench = Bench()
    bench.connect()
    message = Publish("a", b"once", 2, packet_id=9)
    assert len(bench.feed(message)[0].messages) == 1
    assert bench.feed(message) == []
    assert bench.sent() == [], "the log does not have it yet"
    bench.settle([9], PUBREC)
    assert ids(bench.sent()) == [9]
    again = Publish("a", b"once", 2, dup=True, packet_id=9)
    assert bench.feed(again) == []
    assert ids(bench.sent()) == [9]
    bench.feed(PubRel(9))
    assert [type(item) for item in bench.sent()] == [AckRun]
    assert len(bench.feed(message)[0].messages) == 1, "the id is free again"


@pytest.mark.mqtt("MQTT-4.3.3-10")
def test_a_repeat_in_the_same_read_is_handed_on_once() -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect()
    message = Publish("a", b"once", 2, packet_id=9)
    assert len(bench.feed(message, message, Publish("a", b"", 1, packet_id=1))[0].messages) == 2


class Topic:
    """A topic that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Topic.compared += 1
        return self is other

    __hash__ = object.__hash__


@pytest.mark.interpreted
def test_a_read_full_of_repeats_is_not_compared_each_with_each() -> None:
    bench = Bench()
    bench.connect()
    run: PublishRun[Any] = PublishRun(b"")
    run.messages = [(Topic(), 4, n % 2 + 1, 0, 0, b"") for n in range(100)]
    events: list[Any] = bench.session._take([run], None, 0.0)
    assert [message[2] for message in events[0].messages] == [1, 2]
    assert bench.counters.messages_repeated_total == 98
    assert Topic.compared == 0


@pytest.mark.mqtt("MQTT-4.3.3-9", "MQTT-3.5.2-1")
def test_a_refused_qos_2_publish_frees_its_id() -> None:  # 3.5.2.1
    bench = Bench()
    bench.connect()
    bench.feed(Publish("a", b"", 2, packet_id=9))
    bench.settle([9], PUBREC, outcome=0x97)
    answer = bench.sent()[0]
    assert isinstance(answer, PubRec)
    assert answer.reason_code == 0x97
    assert bench.session.inbound is not None
    assert bench.session.inbound.count == 0
    assert len(bench.feed(Publish("a", b"", 2, packet_id=9))[0].messages) == 1


def test_pubrel_of_an_unknown_id_is_answered_so() -> None:  # 3.7.2.1
    bench = Bench()
    bench.connect()
    bench.feed(PubRel(77))
    answer = bench.sent()[0]
    assert isinstance(answer, PubComp)
    assert answer.reason_code == 0x92


# Subscriptions


def subscribe(*filters: tuple[str, int], **options: Any) -> Subscribe:
    return Subscribe(3, [Subscription(f, qos, **options) for f, qos in filters])


@pytest.mark.mqtt("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-2.2.1-6")
def test_subscriptions_are_granted_and_answered_when_in_effect() -> None:  # [MQTT-3.8.4-6], -7
    bench = Bench()
    bench.connect()
    event = bench.feed(subscribe(("a", 0), ("b/+", 1), ("c/#", 2)))[0]
    assert isinstance(event, Subscribing)
    assert [code for code, _ in event.granted] == [0, 1, 2]
    assert bench.sent() == []
    bench.session.subscribed(event.packet_id, [code for code, _ in event.granted])
    answer = bench.sent()[0]
    assert isinstance(answer, SubAck)
    assert (answer.packet_id, answer.reason_codes) == (3, [0, 1, 2])


@pytest.mark.parametrize("version", [MQTT_5, MQTT_3_1_1])
def test_shared_subscriptions_are_granted_beside_others_and_counted_with_them(version: int) -> None:
    bench = Bench(version, filters_per_client_max=2)
    bench.connect()
    event = bench.feed(subscribe(("$share/g/a", 1), ("a", 1), ("$share/h/a", 1)))[0]
    assert [code for code, _ in event.granted] == [1, 1, 0x97]


def test_filters_with_plus_have_so_many_levels_together() -> None:
    bench = Bench(plus_levels_per_client_max=8)
    bench.connect()
    wanted = (("a/+/c", 0), ("+/b/#", 0), ("a/b/c/d/e/#", 0), ("$share/g/+", 0), ("+/+", 0), ("+", 0))
    event = bench.feed(subscribe(*wanted))[0]
    assert [code for code, _ in event.granted] == [0, 0, 0, 0x97, 0, 0x97]
    assert bench.counters.refused == {"subscribe_plus_levels_exceeded": 2}
    assert "more than 8 levels" in event.reason


@pytest.mark.parametrize("section", [{"filters_per_client_max": 2}, {"plus_levels_per_client_max": 4}])
def test_filters_count_before_they_are_in_effect(section: dict[str, int]) -> None:
    bench = Bench(**section)
    bench.connect()
    asked = [encode(subscribe((f"+/{n}", 0)), MQTT_5) for n in (1, 2, 1, 3)]
    events = bench.feed(*asked)
    assert [code for event in events for code, _ in event.granted] == [0, 0, 0, 0x97]
    outbound = bench.session.outgoing()
    for event in events:
        outbound.decided(event.fresh)
    assert (outbound.asked, outbound.asked_levels) == (None, 0)


def test_filters_past_their_limits_are_refused_each() -> None:
    bench = Bench(filters_per_client_max=2, topic_levels_max=3, topic_max_bytes=64)
    bench.connect()
    event = bench.feed(subscribe(("a", 0), ("a/b/c/d", 0), ("x" * 65, 0), ("b", 0), ("c", 0), ("a", 1)))[0]
    assert [code for code, _ in event.granted] == [0, 0x8F, 0x8F, 0, 0x97, 1]


@pytest.mark.mqtt(
    "MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2", "MQTT-2.2.1-6"
)
def test_unsubscribe_is_answered_with_a_code_for_each_filter() -> None:  # [MQTT-3.11.3-1]
    bench = Bench()
    bench.connect()
    event = bench.feed(Unsubscribe(4, ["a", "b"]))[0]
    assert isinstance(event, Unsubscribing)
    bench.session.unsubscribed(4, [0, 0x11])
    answer = bench.sent()[0]
    assert isinstance(answer, UnsubAck)
    assert answer.reason_codes == [0, 0x11]


# Messages out


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.3.2-3")
def test_the_window_is_the_smaller_of_the_clients_receive_maximum_and_ours() -> None:  # [MQTT-3.3.4-9]
    bench = Bench()
    bench.connect(properties=Properties(receive_maximum=2))
    bench.feed(subscribe(("a", 1)))
    assert bench.push()
    assert bench.push()
    assert not bench.push()
    bench.feed(PubAck(1))
    assert bench.push()
    outbound = bench.session.outbound
    assert outbound is not None
    assert outbound.inflight == {2: None, 3: None}


def test_acknowledgements_of_a_lagging_session_say_that_the_window_opened() -> None:
    from gateway.session.lag import Lag

    bench = Bench(inflight_max=4)
    bench.connect()
    bench.feed(subscribe(("a", 1)))
    for _ in range(4):
        bench.push()
    outbound = bench.session.outbound
    assert outbound is not None
    outbound.lag = Lag()
    assert bench.feed(PubAck(1)) == []
    assert [type(event) for event in bench.feed(PubAck(2))] == [WindowOpened]


@pytest.mark.mqtt("MQTT-4.3.3-4", "MQTT-4.3.3-5")
def test_qos_2_is_released_once_and_completed() -> None:  # 4.3.3
    bench = Bench()
    bench.connect(properties=Properties(receive_maximum=1))
    bench.feed(subscribe(("a", 2)))
    assert bench.push(4)
    bench.sent()
    bench.feed(PubAck(1))
    assert not bench.push(4), "a PUBACK settles no QoS 2"
    bench.feed(PubRec(1))
    assert [(p.packet_type, p.packet_ids) for p in bench.sent()] == [(PUBREL, [1])]
    assert not bench.push(4)
    bench.feed(PubComp(1))
    assert bench.push(4)


@pytest.mark.mqtt("MQTT-4.4.0-2")
def test_a_refused_qos_2_message_is_settled_without_a_pubrel() -> None:  # [MQTT-4.3.3-4]
    bench = Bench()
    bench.connect(properties=Properties(receive_maximum=1))
    bench.feed(subscribe(("a", 2)))
    bench.push(4)
    bench.sent()
    bench.feed(PubRec(1, ReasonCode.QUOTA_EXCEEDED))
    assert bench.sent() == []
    assert bench.push(4)


def test_a_cursor_plans_qos_2_before_it_is_sent_and_notes_pubrec_before_pubrel() -> None:
    bench = Bench()
    bench.connect(properties=Properties(session_expiry_interval=60))
    cursor = bench.session.cursor = SessionCursor(1)
    bench.feed(subscribe(("a", 2)))
    assert bench.push(2, 10)
    assert bench.push(4, 20)
    assert [p.qos for p in bench.sent()] == [1]
    assert bench.context.planning == [bench.session]
    assert bench.context.stale == [bench.session]
    written = cursor.begin_write()
    assert [packet_id for _, packet_id, _ in written.publishes] == [2]
    cursor.failed(written)
    bench.push(4, 30)
    assert [packet_id for _, packet_id, _ in cursor.begin_write().publishes] == [2, 3]
    bench.feed(PubRec(2))
    assert bench.sent() == []
    assert cursor.begin_write().released == [2]
    bench.session.send_pubrel(2)
    assert [(p.packet_type, p.packet_ids) for p in bench.sent()] == [(PUBREL, [2])]
    bench.feed(PubComp(2))
    bench.session.send_pubrel(2)
    assert bench.sent() == []


def test_pubrec_for_what_was_never_sent_is_answered_so() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(PubRec(5))
    answer = bench.sent()[0]
    assert isinstance(answer, PubRel)
    assert answer.reason_code == 0x92


# Ends


def test_disconnect_may_not_raise_a_session_expiry_of_0() -> None:  # 3.14.2.2.2
    bench = Bench()
    bench.connect()
    events = bench.feed(Disconnect(0, Properties(session_expiry_interval=5)))
    assert reasons(events) == ["protocol_error"]


@pytest.mark.mqtt("MQTT-4.12.0-7")
def test_auth_without_a_method_is_a_protocol_error() -> None:
    bench = Bench()
    bench.connect()
    assert reasons(bench.feed(Auth(0x19, Properties(authentication_method="x")))) == ["protocol_error"]


@pytest.mark.mqtt("MQTT-3.14.4-1", "MQTT-3.1.4-3")
def test_after_its_end_a_session_takes_nothing_and_says_nothing() -> None:
    bench = Bench()
    bench.connect()
    bench.session.close(ReasonCode.SESSION_TAKEN_OVER, "taken_over", "again")
    assert bench.sent()[0].reason_code == 0x8E
    assert bench.feed(PingReq()) == []
    assert bench.session.close(0x8E, "taken_over", "again") == []
    bench.session.subscribed(1, [0])
    assert bench.session.data_to_send() == b""


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_one_by_one_are_understood_as_those_at_once(version: int) -> None:
    packets: list[Packet] = [
        Connect(client_id="c", version=version),
        Publish("a/b", b"payload", 1, packet_id=1),
        Subscribe(2, [Subscription("x/#", 1)]),
        PingReq(),
        Unsubscribe(3, ["x/#"]),
        Disconnect(),
    ]
    data = b"".join(encode(packet, version) for packet in packets)
    whole, single = Bench(version), Bench(version)
    expected = [type(event) for event in whole.feed(data)]
    found = [type(event) for byte in data for event in single.feed(bytes((byte,)))]
    assert found == expected
    assert single.session.data_to_send() == whole.session.data_to_send()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.binary(max_size=64), st.integers(0, 200), st.integers(0, 255))
def test_no_bytes_do_more_than_end_the_session(version: int, junk: bytes, at: int, value: int) -> None:
    packets: list[Packet] = [
        Connect(client_id="c", version=version, will=Will("w", b"x")),
        Publish("a/b", b"payload", 2, packet_id=1),
        Subscribe(2, [Subscription("x/#", 1)]),
        PubRel(1),
        Unsubscribe(3, ["x/#"]),
    ]
    data = bytearray(b"".join(encode(packet, version) for packet in packets))
    data[at % len(data)] = value
    bench = Bench(version)
    events = bench.feed(bytes(data) + junk)
    assert sum(isinstance(event, Closed) for event in events) <= 1
    if bench.session.state == 2:
        assert isinstance(events[-1], Closed)
