"""What MQTT 5.0 demands of a server and no other test of the session shows: docs/mqtt-conformance.md."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from session_bench import VERSIONS, Bench, ids, reasons

from gateway.session.events import Closed, Connected
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    PUBREC,
    PUBREL,
    AckRun,
    ConnAck,
    Connect,
    Disconnect,
    MqttError,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)

CONNECT_5 = encode(Connect(client_id="c", version=MQTT_5), MQTT_5)


def receiver(**said: Any) -> Bench:
    """A connected client that is sent messages."""
    bench = Bench()
    bench.connect(properties=Properties(**said))
    bench.session.outgoing()
    return bench


# CONNECT


@pytest.mark.mqtt("MQTT-1.5.4-3")
def test_a_byte_order_mark_is_a_character_of_a_client_id_and_of_a_topic() -> None:
    bench = Bench()
    bench.connect(client_id="\ufeffdevice")
    assert bench.session.client_id == "\ufeffdevice"
    events = bench.feed(Publish("\ufeffa/b"), Publish("a/b"))
    assert [m[0].mqtt_topic for event in events for m in event.messages] == ["\ufeffa/b", "a/b"]


@pytest.mark.mqtt("MQTT-3.1.2-1")
def test_another_protocol_name_ends_the_connection() -> None:
    bench = Bench()
    assert reasons(bench.feed(CONNECT_5.replace(b"MQTT", b"MQTX"))) == ["unsupported_protocol_version"]
    assert bench.session.data_to_send() == b""


@pytest.mark.mqtt("MQTT-3.1.2-2", "MQTT-3.2.2-6", "MQTT-3.2.2-7")
@pytest.mark.parametrize(("level", "answer"), [(6, b"\x00\x84"), (3, b"\x00\x01")])
def test_a_version_that_is_not_spoken_is_refused_in_a_way_that_it_may_know(level: int, answer: bytes) -> None:
    bench = Bench()
    events = bench.feed(CONNECT_5.replace(b"MQTT\x05", b"MQTT" + bytes((level,))))
    assert reasons(events) == ["unsupported_protocol_version"]
    data = bench.session.data_to_send()
    assert (data[0], data[2:4]) == (0x20, answer)


@pytest.mark.mqtt("MQTT-3.1.4-1", "MQTT-3.1.2-3", "MQTT-3.14.0-1")
def test_a_malformed_connect_is_answered_with_connack_and_never_with_disconnect() -> None:
    bench = Bench()
    flags_at = CONNECT_5.index(b"MQTT\x05") + 5
    broken = CONNECT_5[:flags_at] + b"\x03" + CONNECT_5[flags_at + 1 :]
    assert reasons(bench.feed(broken)) == ["malformed_packet"]
    (answer,) = bench.sent()
    assert isinstance(answer, ConnAck)
    assert (answer.reason_code, answer.session_present) == (0x81, False)


@pytest.mark.mqtt("MQTT-3.14.0-1")
def test_a_connection_that_was_not_accepted_yet_gets_no_disconnect() -> None:
    early = Bench()
    early.session.close(0x8B, "draining", "ends")
    assert early.session.data_to_send() == b""
    opening = Bench()
    opening.feed(Connect(client_id="c", version=MQTT_5))
    opening.session.close(0x8B, "draining", "ends")
    assert opening.session.data_to_send() == b""


@pytest.mark.mqtt("MQTT-3.1.3-5", "MQTT-3.1.4-5", "MQTT-3.2.0-2")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", ["a", "0123456789abcdefghijklm", "NOPQRSTUVWXYZABCDEFGHIJ"])
def test_short_client_ids_of_letters_and_digits_are_accepted_and_answered_once(
    version: int, client_id: str
) -> None:
    bench = Bench(version)
    assert bench.connect(client_id=client_id).reason_code == 0
    bench.feed(PingReq())
    assert [type(item) for item in bench.sent()] == [PingResp]


@pytest.mark.mqtt("MQTT-3.1.4-6", "MQTT-3.1.4-2")
def test_nothing_behind_a_refused_connect_is_processed() -> None:
    bench = Bench()
    events = bench.feed(
        Connect(client_id="c", version=MQTT_5), Publish("a/b", b"x", 1, packet_id=1), PingReq()
    )
    assert [type(event) for event in events] == [Connected]
    events = bench.session.refuse(MqttError(0x87, "no"))
    assert [type(event) for event in events] == [Closed]
    assert [type(item) for item in bench.sent()] == [ConnAck]
    assert bench.feed(PingReq()) == []
    assert bench.session.data_to_send() == b""


@pytest.mark.mqtt("MQTT-3.2.2-9", "MQTT-3.2.2-10", "MQTT-3.2.2-12")
def test_every_qos_is_offered_so_no_maximum_is_told() -> None:
    bench = Bench()
    assert bench.connect(will=Will("w", b"", 2)).properties.maximum_qos is None
    events = bench.feed(Subscribe(1, [Subscription("a", 2)]), Publish("a", b"", 2, packet_id=2))
    assert [code for code, _ in events[0].granted] == [2]
    assert len(events[1].messages) == 1


@pytest.mark.mqtt("MQTT-3.2.2-22")
@pytest.mark.parametrize("keep_alive", [1, 30, 60])
def test_without_a_server_keep_alive_the_clients_counts(keep_alive: int) -> None:
    bench = Bench()
    assert bench.connect(keep_alive=keep_alive).properties.server_keep_alive is None
    assert bench.session.next_deadline() == bench.now + 1.5 * keep_alive


@pytest.mark.mqtt("MQTT-4.12.0-6")
def test_who_names_no_authentication_method_hears_of_none() -> None:
    properties = Bench().connect().properties
    assert properties.authentication_method is None
    assert properties.authentication_data is None


# Packet identifiers and DUP


@pytest.mark.mqtt("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
def test_packet_ids_go_round_and_pass_over_what_is_in_flight() -> None:
    bench = Bench()
    bench.connect()
    outbound = bench.session.outgoing()
    bench.push()
    outbound.next_id = 65_534
    for flags in (2, 4, 2, 4):
        assert bench.push(flags)
    assert [item.packet_id for item in bench.sent()] == [1, 65_534, 65_535, 2, 3]


@pytest.mark.mqtt("MQTT-4.3.1-1", "MQTT-4.3.2-2", "MQTT-4.3.3-2", "MQTT-2.2.1-2", "MQTT-3.3.1-2")
def test_what_is_sent_first_has_no_dup_and_an_id_only_above_qos_0() -> None:
    bench = receiver()
    bench.session.send(b"\x30\x04\x00\x01a\x00")
    bench.push(2)
    bench.push(4)
    assert [(m.qos, m.dup, m.packet_id) for m in bench.sent()] == [
        (0, False, 0),
        (1, False, 1),
        (2, False, 2),
    ]


@pytest.mark.mqtt("MQTT-4.3.2-5")
def test_after_puback_the_same_id_is_a_new_message_whatever_its_dup_says() -> None:
    bench = Bench()
    bench.connect()
    for dup in (False, True):
        events = bench.feed(Publish("a", b"x", 1, dup=dup, packet_id=7))
        assert len(events[0].messages) == 1
        bench.settle([7])
        assert ids(bench.sent()) == [7]


@pytest.mark.mqtt("MQTT-4.4.0-2", "MQTT-4.3.2-3")
@pytest.mark.parametrize(("flags", "answer"), [(2, PubAck(1, 0x97)), (4, PubRec(1, 0x97))])
def test_what_a_client_refuses_is_settled_and_not_sent_again(flags: int, answer: PubAck | PubRec) -> None:
    bench = receiver(receive_maximum=1)
    assert bench.push(flags)
    assert not bench.push(flags)
    bench.sent()
    bench.feed(answer)
    outbound = bench.session.outbound
    assert outbound is not None
    assert outbound.inflight is None
    assert bench.sent() == []
    assert bench.push(flags)


# Flow control


@pytest.mark.mqtt("MQTT-3.3.4-10", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
def test_a_full_window_delays_nothing_but_publishes_above_qos_0() -> None:
    bench = receiver(receive_maximum=1)
    assert bench.push(4)
    assert not bench.push(2)
    assert not bench.push(4)
    bench.sent()
    bench.feed(PingReq(), Publish("a", b"x", 1, packet_id=9), PubRel(5))
    bench.settle([9])
    bench.session.subscribed(3, [1])
    bench.session.unsubscribed(4, [0])
    bench.session.send(b"\x30\x04\x00\x01a\x00")
    answers = bench.sent()
    assert [type(item) for item in answers] == [PingResp, PubComp, AckRun, SubAck, UnsubAck, Publish]
    bench.feed(PubRec(1))
    assert [(item.packet_type, item.packet_ids) for item in bench.sent()] == [(PUBREL, [1])]
    assert not bench.push(2), "PUBREC alone frees nothing"
    bench.feed(PubComp(1))
    assert bench.push(2)


# Acknowledgements


@pytest.mark.mqtt(
    "MQTT-3.1.2-29",
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.9.2-2",
    "MQTT-3.11.2-1",
    "MQTT-3.11.2-2",
)
def test_acknowledgements_carry_a_code_and_no_words() -> None:
    """So they fit any client, and who wants no problem information gets none."""
    bench = Bench()
    bench.connect(properties=Properties(request_problem_information=0, maximum_packet_size=64))
    bench.feed(Publish("a", b"", 1, packet_id=1), Publish("a", b"", 2, packet_id=2), PubRel(3), PubRec(4))
    bench.settle([1], PUBACK, 0x97)
    bench.settle([2], PUBREC, 0x97)
    bench.session.subscribed(5, [0x97])
    bench.session.unsubscribed(6, [0x11])
    answers = bench.sent()
    assert [type(item) for item in answers] == [PubComp, PubRel, PubAck, PubRec, SubAck, UnsubAck]
    assert [item.properties for item in answers] == [Properties()] * 6


@pytest.mark.mqtt("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1", "MQTT-2.2.1-5")
def test_acknowledgements_have_their_codes_and_the_id_of_what_they_answer() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(Publish("a", b"", 1, packet_id=11), Publish("a", b"", 2, packet_id=12), PubRel(13), PubRec(14))
    bench.settle([11], PUBACK, 0x87)
    bench.settle([12], PUBREC, 0x90)
    assert bench.sent() == [PubComp(13, 0x92), PubRel(14, 0x92), PubAck(11, 0x87), PubRec(12, 0x90)]


@pytest.mark.mqtt("MQTT-4.3.3-3", "MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6")
def test_a_qos_2_delivery_is_under_way_until_pubcomp_and_its_publish_is_sent_once() -> None:
    bench = receiver(receive_maximum=1)
    bench.push(4)
    assert [m.packet_id for m in bench.sent()] == [1]
    outbound = bench.session.outbound
    assert outbound is not None
    for _ in range(2):  # a repeated PUBREC is answered with PUBREL again, and with nothing else
        bench.feed(PubRec(1))
        assert [(item.packet_type, item.packet_ids) for item in bench.sent()] == [(PUBREL, [1])]
        assert list(outbound.inflight or {}) == [1]
    bench.feed(PubComp(1))
    assert outbound.inflight is None


@pytest.mark.mqtt("MQTT-3.3.4-1", "MQTT-4.3.2-4", "MQTT-4.3.3-8", "MQTT-4.3.3-11")
def test_a_publish_is_answered_as_its_qos_says_and_not_before_the_log_has_it() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(*[Publish("a", b"", qos, packet_id=qos * 10) for qos in (0, 1, 2)])
    assert bench.sent() == []
    bench.settle([10], PUBACK)
    bench.settle([20], PUBREC)
    bench.feed(PubRel(20))
    found = [(item.packet_type, item.packet_ids) for item in bench.sent()]
    assert found == [(4, [10]), (5, [20]), (7, [20])]


# Subscriptions


@pytest.mark.mqtt("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_several_filters_are_answered_by_one_suback_in_their_order(version: int) -> None:
    bench = Bench(version, topic_levels_max=4)
    bench.connect()
    wanted = [("a", 2), ("x/x/x/x/x", 1), ("b/#", 0), ("c", 1), ("a", 0)]
    (event,) = bench.feed(Subscribe(8, [Subscription(name, qos) for name, qos in wanted]))
    codes = [code for code, _ in event.granted]
    assert codes == [2, 0x8F, 0, 1, 0]
    bench.session.subscribed(8, codes)
    (answer,) = bench.sent()
    refused = 0x8F if version == MQTT_5 else 0x80
    assert (answer.packet_id, answer.reason_codes) == (8, [2, refused, 0, 1, 0])


@pytest.mark.mqtt("MQTT-3.10.4-3")
def test_deliveries_that_were_begun_go_on_after_unsubscribe() -> None:
    bench = Bench()
    bench.connect()
    bench.feed(Subscribe(1, [Subscription("a", 2)]))
    bench.push(4)
    bench.push(2)
    bench.sent()
    bench.feed(Unsubscribe(2, ["a"]))
    bench.session.unsubscribed(2, [0])
    bench.feed(PubRec(1), PubComp(1), PubAck(2))
    found = bench.sent()
    assert [type(item) for item in found] == [UnsubAck, AckRun]
    assert (found[1].packet_type, found[1].packet_ids) == (PUBREL, [1])


# Ends


@pytest.mark.mqtt("MQTT-3.14.4-1", "MQTT-3.14.2-2", "MQTT-3.14.2-4", "MQTT-4.13.2-1")
def test_disconnect_is_the_last_packet_and_has_a_reason_string_alone() -> None:
    bench = Bench()
    bench.connect(properties=Properties(session_expiry_interval=60))
    events = bench.session.close(0x98, "dropped", "somebody said so")
    assert reasons(events) == ["dropped"]
    bench.session.subscribed(1, [0])
    bench.session.unsubscribed(1, [0])
    bench.feed(PingReq(), Publish("a", b"", 1, packet_id=1))
    assert bench.sent() == [Disconnect(0x98, Properties(reason_string="somebody said so"))]


@pytest.mark.mqtt("MQTT-3.14.2-1", "MQTT-3.14.4-3", "MQTT-3.1.2-10")
def test_every_reason_that_a_client_may_give_ends_the_connection_and_only_0_drops_the_will() -> None:
    allowed = [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
    for code in itertools.chain(allowed, [0x8C]):
        bench = Bench()
        bench.connect(will=Will("w", b"gone"))
        events = bench.feed(Disconnect(code))
        assert reasons(events) == [""]
        assert (events[-1].will is None) is (code == 0)
        assert bench.session.data_to_send() == b""


@pytest.mark.mqtt("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x36\x05\x00\x01a\x00\x01", 0x81), (b"\x82\x03\x00\x01\x00", 0x82), (b"\x00\x00", 0x81)],
)
def test_what_breaks_the_protocol_ends_the_connection_with_its_code(data: bytes, code: int) -> None:
    bench = Bench()
    bench.connect()
    assert len(reasons(bench.feed(data))) == 1
    assert [packet.reason_code for packet in bench.sent()] == [code]
