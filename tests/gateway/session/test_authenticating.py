"""Enhanced authentication of one session: AUTH before CONNACK, AUTH again, what breaks the rules (4.12)."""

from __future__ import annotations

from typing import Any

import pytest
from scram_client import ScramClient
from session_bench import Bench, reasons

from gateway.session.events import Closed, Connected
from gateway.session.scram import METHOD, ScramServer, Verifier
from holdmq.mqtt import (
    MQTT_3_1_1,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    encode,
)

VERIFIER = Verifier.of("pencil", b"s" * 16)
INVENTED = Verifier(4096, b"i" * 16, b"", b"")
USERS = {"ada": VERIFIER, "eve": VERIFIER}


def bench(**section: Any) -> Bench:
    made = Bench(**section)
    made.context.methods[METHOD] = lambda _: ScramServer(USERS.get, lambda _: INVENTED, "server")
    return made


def auth(code: int, data: bytes | None, method: str | None = METHOD) -> Auth:
    return Auth(code, Properties(authentication_method=method, authentication_data=data))


def begin(made: Bench, client: ScramClient, **fields: Any) -> bytes:
    """CONNECT with the first message; the challenge."""
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    assert made.feed(Connect(client_id="c", version=5, properties=properties, **fields)) == []
    answer = made.sent()[0]
    assert isinstance(answer, Auth)
    assert (answer.reason_code, answer.properties.authentication_method) == (0x18, METHOD)
    return answer.properties.authentication_data or b""


def connected(made: Bench, user: str = "ada") -> ConnAck:
    client = ScramClient(user, "pencil")
    events = made.feed(auth(0x18, client.final(begin(made, client))))
    assert [type(event) for event in events] == [Connected]
    made.session.admit(False, made.now)
    answer = made.sent()[0]
    assert isinstance(answer, ConnAck)
    assert client.verify(answer.properties.authentication_data or b"")
    return answer


@pytest.mark.mqtt("MQTT-4.12.0-2", "MQTT-4.12.0-3", "MQTT-4.12.0-5")
def test_a_client_that_knows_its_password_is_admitted_and_told_that_the_server_does_too() -> None:
    made = bench()
    answer = connected(made)
    assert answer.reason_code == 0
    assert answer.properties.authentication_method == METHOD
    assert answer.properties.topic_alias_maximum == 16
    assert made.session.principal == "ada"


@pytest.mark.mqtt("MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_a_client_without_first_data_is_asked_for_it() -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    made.feed(Connect(client_id="c", version=5, properties=Properties(authentication_method=METHOD)))
    asked = made.sent()[0]
    assert (asked.reason_code, asked.properties.authentication_data) == (0x18, None)
    assert (asked.properties.reason_string, asked.properties.user_properties) == (None, ())
    made.feed(auth(0x18, client.first()))
    challenge = made.sent()[0].properties.authentication_data
    events = made.feed(auth(0x18, client.final(challenge)))
    assert [type(event) for event in events] == [Connected]


@pytest.mark.mqtt("MQTT-4.12.0-1")
@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "", "PLAIN"])
def test_a_method_that_is_not_offered_is_refused(method: str) -> None:
    made = bench()
    events = made.feed(Connect(client_id="c", version=5, properties=Properties(authentication_method=method)))
    assert reasons(events) == ["bad_authentication_method"]
    assert made.sent()[0].reason_code == 0x8C


@pytest.mark.mqtt("MQTT-4.12.0-4")
@pytest.mark.parametrize(("user", "word"), [("ada", "crayon"), ("nobody", "pencil")])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(user: str, word: str) -> None:
    made, client = bench(), ScramClient(user, word)
    events = made.feed(auth(0x18, client.final(begin(made, client))))
    assert reasons(events) == ["not_authorized"]
    refusal = made.sent()[0]
    assert isinstance(refusal, ConnAck)
    assert refusal.reason_code == 0x87
    said = refusal.properties.reason_string
    assert said == f"SCRAM-SHA-256: no such user, or a wrong password of '{user}'"
    assert made.session.principal == ""


def test_a_message_that_is_no_scram_is_refused() -> None:
    made = bench()
    properties = Properties(authentication_method=METHOD, authentication_data=b"hello")
    events = made.feed(Connect(client_id="c", version=5, properties=properties))
    assert reasons(events) == ["not_authorized"]
    assert made.sent()[0].reason_code == 0x87


@pytest.mark.mqtt("MQTT-3.1.2-30")
@pytest.mark.parametrize("packet", [PingReq(), Publish("a", b"x", 1, packet_id=1), Publish("a", b"x")])
def test_nothing_else_may_be_sent_meanwhile(packet: Any) -> None:
    made = bench()
    begin(made, ScramClient("ada", "pencil"))
    events = made.feed(packet)
    assert reasons(events) == ["protocol_error"]
    assert made.sent()[0].reason_code == 0x82


def test_what_comes_right_behind_connect_is_too_early() -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    events = made.feed(Connect(client_id="c", version=5, properties=properties), PingReq())
    assert reasons(events) == ["protocol_error"]


def test_what_comes_behind_the_last_auth_waits_for_connack() -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    last = auth(0x18, client.final(begin(made, client)))
    events = made.feed(last, PingReq())
    assert [type(event) for event in events] == [Connected]
    assert made.sent() == []
    made.session.admit(False, made.now)
    assert [type(item) for item in made.sent()] == [ConnAck, PingResp]


def test_a_client_may_give_up_meanwhile() -> None:
    made = bench()
    begin(made, ScramClient("ada", "pencil"))
    events = made.feed(Disconnect())
    assert [type(event) for event in events] == [Closed]
    assert made.sent() == []


@pytest.mark.mqtt("MQTT-4.12.0-5")
@pytest.mark.parametrize("method", ["SCRAM-SHA-1", None])
def test_auth_with_another_method_breaks_the_protocol(method: str | None) -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    final = client.final(begin(made, client))
    data = final if method is not None else None
    events = made.feed(auth(0x18, data, method))
    assert reasons(events) == ["protocol_error"]
    assert made.sent()[0].reason_code == 0x82


@pytest.mark.mqtt("MQTT-4.12.0-3", "MQTT-3.15.2-1")
@pytest.mark.parametrize("code", [0x19, 0x00])
def test_auth_before_connack_must_continue(code: int) -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    final = client.final(begin(made, client))
    raw = encode(auth(0x19, final), 5)
    assert reasons(made.feed(raw[:2] + bytes((code,)) + raw[3:])) in (
        ["protocol_error"],
        ["malformed_packet"],
    )


@pytest.mark.mqtt("MQTT-4.12.0-6", "MQTT-4.12.0-7")
def test_who_named_no_method_is_told_of_none_and_may_send_no_auth() -> None:
    made = bench()
    assert made.connect().properties.authentication_method is None
    events = made.feed(auth(0x19, b"x"))
    assert reasons(events) == ["protocol_error"]
    assert made.sent()[0].reason_code == 0x82


def test_authentication_takes_no_longer_than_a_connect_may() -> None:
    made = bench(unauthenticated_s=10)
    begin(made, ScramClient("ada", "pencil"))
    assert made.session.next_deadline() == made.now + 10
    made.now += 10
    assert reasons(made.session.handle_deadline(made.now)) == ["unauthenticated"]


def test_mqtt_3_has_no_auth() -> None:
    made = Bench(MQTT_3_1_1)
    made.connect()
    assert reasons(made.feed(b"\xf0\x00")) == ["malformed_packet"]


# Again


def again(made: Bench, user: str, word: str) -> list[Any]:
    client = ScramClient(user, word)
    assert made.feed(auth(0x19, client.first())) == []
    challenge = made.sent()[0]
    assert challenge.reason_code == 0x18
    events = made.feed(auth(0x18, client.final(challenge.properties.authentication_data)))
    if not events:
        last = made.sent()[0]
        assert (last.reason_code, last.properties.authentication_method) == (0x00, METHOD)
        assert client.verify(last.properties.authentication_data)
    return events


@pytest.mark.mqtt("MQTT-4.12.1-1")
def test_a_client_authenticates_again_while_it_goes_on() -> None:
    made = bench()
    connected(made)
    client = ScramClient("ada", "pencil")
    made.feed(auth(0x19, client.first()), PingReq())
    challenge, pong = made.sent()
    assert isinstance(pong, PingResp)
    made.feed(auth(0x18, client.final(challenge.properties.authentication_data)))
    assert made.sent()[0].reason_code == 0x00
    assert again(made, "ada", "pencil") == []


@pytest.mark.mqtt("MQTT-4.12.1-2")
@pytest.mark.parametrize(("user", "word"), [("ada", "crayon"), ("eve", "pencil")])
def test_a_wrong_password_or_another_user_ends_the_connection(user: str, word: str) -> None:
    made = bench()
    connected(made)
    assert reasons(again(made, user, word)) == ["not_authorized"]
    last = made.sent()[0]
    assert isinstance(last, Disconnect)
    assert last.reason_code == 0x87


def test_auth_that_continues_nothing_breaks_the_protocol() -> None:
    made = bench()
    connected(made)
    assert reasons(made.feed(auth(0x18, b"x"))) == ["protocol_error"]


def test_while_it_is_asked_who_that_is_no_packet_is_kept_that_is_larger_than_a_connect() -> None:
    made = bench()
    begin(made, ScramClient("ada", "pencil"))
    large = encode(Publish("a/b", b"x" * 1_000_000), 5)
    assert reasons(made.feed(large[:1_000])) == ["packet_too_large"]
    assert made.session._decoder.buffered == 0


def test_what_came_with_connect_is_bounded_with_the_next_bytes() -> None:
    made, client = bench(), ScramClient("ada", "pencil")
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    large = encode(Publish("a/b", b"x" * 1_000_000), 5)
    assert made.feed(Connect(client_id="c", version=5, properties=properties), large[:1_000]) == []
    assert reasons(made.feed(large[1_000:1_001])) == ["packet_too_large"]
    assert made.session._decoder.buffered == 0


def test_who_is_admitted_may_send_packets_of_any_size_again() -> None:
    made = bench()
    connected(made)
    large = encode(Publish("a/b", b"x" * 1_000_000, 1, packet_id=1), 5)
    assert reasons(made.feed(large[:1_000])) == []
    assert made.session._decoder.buffered == 1_000
