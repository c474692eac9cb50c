from __future__ import annotations

from dataclasses import replace

import pytest
from session_bench import VERSIONS, Bench, reasons

from gateway.session.events import Closed, Connected
from holdmq.mqtt import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connect,
    Disconnect,
    MqttError,
    PingReq,
    PingResp,
    Properties,
    Publish,
    PublishRun,
    ReasonCode,
    Will,
    encode,
)

# CONNECT


@pytest.mark.mqtt("MQTT-3.1.4-5", "MQTT-3.2.2-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_of_each_version_is_admitted_without_a_session_present(version: int) -> None:
    answer = Bench(version).connect(clean_start=False)
    assert answer.reason_code == 0
    assert answer.session_present is False  # [MQTT-3.2.2-2], sessions end with their connection


def test_connack_says_what_is_not_offered() -> None:
    answer = Bench().connect(properties=Properties(session_expiry_interval=600))
    said = answer.properties
    assert said.session_expiry_interval is None
    assert said.retain_available is None  # 3.2.2.3.5: they are
    assert said.shared_subscription_available is None  # 3.2.2.3.13: they are
    assert said.maximum_qos is None
    assert said.receive_maximum == 1024
    assert said.topic_alias_maximum == 16


def test_an_expiry_beyond_the_maximum_is_answered_with_the_servers() -> None:  # 3.2.2.3.2
    bench = Bench(session_expiry_max_s=60)
    assert bench.connect(properties=Properties(session_expiry_interval=600)).properties == replace(
        Bench(session_expiry_max_s=60).connect().properties, session_expiry_interval=60
    )
    assert bench.session.expiry_s == 60
    assert (
        Bench().connect(properties=Properties(session_expiry_interval=60)).properties.session_expiry_interval
        is None
    )


@pytest.mark.parametrize(("clean", "expiry_s"), [(True, 0), (False, 30 * 86_400)])
def test_an_mqtt_3_session_lasts_as_long_as_any_unless_it_is_clean(clean: bool, expiry_s: int) -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect(clean_start=clean)
    assert bench.session.expiry_s == expiry_s


# Opening


@pytest.mark.mqtt("MQTT-3.2.0-1", "MQTT-3.2.2-3")
def test_what_comes_behind_connect_waits_until_the_session_is_open() -> None:
    bench = Bench()
    events = bench.feed(Connect(version=MQTT_5, client_id="c"), PingReq())
    assert [type(event) for event in events] == [Connected]
    assert bench.feed(Publish("a", b"x", 1, packet_id=1)) == []
    assert bench.sent() == []
    assert bench.session.next_deadline() is None
    events = bench.session.admit(True, bench.now)
    assert [type(event) for event in events] == [PublishRun]
    connack, pong = bench.sent()
    assert connack.session_present
    assert isinstance(pong, PingResp)


@pytest.mark.mqtt("MQTT-3.2.2-7", "MQTT-3.2.2-8", "MQTT-3.2.2-6")
def test_a_session_that_cannot_be_opened_is_refused_with_the_reason() -> None:
    bench = Bench()
    bench.feed(Connect(version=MQTT_5, client_id="c"), PingReq())
    events = bench.session.refuse(MqttError(ReasonCode.SERVER_UNAVAILABLE, "away"))
    assert reasons(events) == ["server_unavailable"]
    assert [packet.reason_code for packet in bench.sent()] == [0x88]
    assert bench.session.refuse(MqttError(ReasonCode.SERVER_UNAVAILABLE, "away")) == []


def test_a_connection_that_is_lost_before_it_was_opened_has_no_will() -> None:
    bench = Bench()
    bench.feed(Connect(version=MQTT_5, client_id="c", will=Will("w", b"gone")))
    assert [event.will for event in bench.session.connection_lost() if isinstance(event, Closed)] == [None]


@pytest.mark.mqtt("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_an_empty_client_id_gets_one_assigned() -> None:  # [MQTT-3.1.3-6], -7
    answer = Bench().connect(client_id="")
    assert answer.properties.assigned_client_identifier == "auto-1"


@pytest.mark.parametrize("asked", [0, 7200])
def test_a_keep_alive_beyond_the_maximum_is_answered_with_the_servers(asked: int) -> None:  # [MQTT-3.2.2-21]
    assert Bench().connect(keep_alive=asked).properties.server_keep_alive == 60


@pytest.mark.mqtt("MQTT-3.1.4-2", "MQTT-3.2.2-7")
@pytest.mark.parametrize(("version", "code"), [(MQTT_5, 0x86), (MQTT_3_1_1, 0x87), (MQTT_3_1, 0x87)])
def test_without_anonymous_access_everybody_is_refused(version: int, code: int) -> None:
    bench = Bench(version, anonymous=False)
    events = bench.feed(Connect(client_id="c", version=version, username="u", password=b"p"))
    assert [event for event in events if isinstance(event, Connected)] == []
    assert bench.sent()[0].reason_code == code
    assert reasons(events) == [ReasonCode(code).name.lower()]


@pytest.mark.mqtt("MQTT-3.1.3-8")
def test_a_client_id_over_the_limit_is_refused() -> None:  # [MQTT-3.1.3-8]
    bench = Bench(client_id_max_bytes=23)
    events = bench.feed(Connect(client_id="x" * 24, version=MQTT_5))
    assert bench.sent()[0].reason_code == 0x85
    assert reasons(events) == ["client_identifier_not_valid"]


def test_enhanced_authentication_is_refused() -> None:  # [MQTT-4.12.0-1]
    bench = Bench()
    bench.feed(Connect(client_id="c", version=MQTT_5, properties=Properties(authentication_method="SCRAM")))
    assert bench.sent()[0].reason_code == 0x8C


def test_beyond_the_connections_a_client_is_told_that_the_server_is_busy() -> None:
    bench = Bench()
    bench.session.refuse_with = MqttError(ReasonCode.SERVER_BUSY, "full")
    bench.feed(Connect(client_id="c", version=MQTT_5))
    assert bench.sent()[0].reason_code == 0x89


@pytest.mark.mqtt("MQTT-3.1.0-1")
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 64]
)
def test_a_port_scanners_bytes_close_the_connection_without_an_answer(
    garbage: bytes,
) -> None:  # [MQTT-3.1.0-1]
    bench = Bench()
    events = bench.feed(garbage)
    assert len(reasons(events)) == 1
    assert bench.session.data_to_send() == b""
    assert sum(bench.counters.refused.values()) == 1


@pytest.mark.mqtt("MQTT-3.2.2-15")
@pytest.mark.parametrize(
    ("header", "reason"),
    [(b"\x30\xff\xff\xff\x7f", "packet_too_large"), (b"\x30\x80\x86\x86\x8f\x01", "malformed_packet")],
)
def test_a_huge_remaining_length_is_refused_before_anything_is_kept(header: bytes, reason: str) -> None:
    """256 MB is the most that can be said; 300 MB takes a fifth byte."""
    bench = Bench()
    bench.connect()
    assert reasons(bench.feed(header)) == [reason]
    assert bench.sent()[0].reason_code == {"packet_too_large": 0x95, "malformed_packet": 0x81}[reason]


@pytest.mark.mqtt("MQTT-3.1.0-2", "MQTT-3.2.0-2")
def test_a_second_connect_is_a_protocol_error() -> None:  # [MQTT-3.1.0-2]
    bench = Bench()
    bench.connect()
    assert reasons(bench.feed(Connect(client_id="c", version=MQTT_5))) == ["protocol_error"]
    assert bench.sent()[0].reason_code == 0x82


# Time


def test_half_a_connect_and_silence_are_closed_at_the_unauthenticated_deadline() -> None:
    bench = Bench(unauthenticated_s=10)
    bench.feed(encode(Connect(client_id="c", version=MQTT_5), MQTT_5)[:9])
    bench.now += 5
    bench.feed(b"")  # trickling bytes do not move the deadline
    assert bench.session.next_deadline() == 1010.0
    assert bench.session.handle_deadline(1009.9) == []
    assert reasons(bench.session.handle_deadline(1010.0)) == ["unauthenticated"]


@pytest.mark.mqtt("MQTT-3.1.2-22", "MQTT-3.12.4-1")
def test_silence_of_one_and_a_half_keep_alives_ends_the_connection() -> None:  # [MQTT-3.1.2-22]
    bench = Bench()
    bench.connect(keep_alive=10, will=Will("w", b"gone"))
    bench.now += 14
    bench.feed(PingReq())
    assert isinstance(bench.sent()[0], PingResp)  # [MQTT-3.12.4-1]
    assert bench.session.handle_deadline(1015.1) == []
    events = bench.session.handle_deadline(1029.0)
    assert reasons(events) == ["keep_alive"]
    assert events[0].will is not None
    assert bench.sent()[0].reason_code == 0x8D


def test_a_socket_that_we_do_not_read_does_not_count_as_silent() -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect(keep_alive=1)
    bench.session.is_held = True
    assert bench.session.handle_deadline(1100.0) == []
    assert bench.session.next_deadline() == 1101.5


def test_a_keep_alive_of_0_has_no_deadline_in_mqtt_3() -> None:
    bench = Bench(MQTT_3_1_1)
    bench.connect(keep_alive=0)
    assert bench.session.next_deadline() is None


# Wills


@pytest.mark.mqtt("MQTT-3.1.2-10", "MQTT-3.14.4-3")
@pytest.mark.parametrize(("code", "published"), [(0x00, False), (0x04, True)])
def test_disconnect_drops_the_will_unless_it_asks_for_it(
    code: int, published: bool
) -> None:  # [MQTT-3.1.2-10]
    bench = Bench()
    bench.connect(will=Will("w", b"gone"))
    events = bench.feed(Disconnect(code))
    assert (events[-1].will is not None) is published
    assert reasons(events) == [""]


def test_a_lost_connection_makes_the_will_due_at_once() -> None:  # [MQTT-3.1.2-8], sessions end here
    bench = Bench()
    bench.connect(will=Will("w", b"gone", properties=Properties(will_delay_interval=60)))
    assert bench.session.connection_lost()[0].will is not None
    assert bench.session.connection_lost() == []


@pytest.mark.mqtt("MQTT-3.1.2-7")
def test_a_connection_that_never_connected_has_no_will() -> None:
    assert Bench().session.connection_lost()[0].will is None
