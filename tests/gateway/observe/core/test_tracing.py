from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ground.entries import make_entry
from gateway.observe.core.tracing import LIST_MAX, TEXT_MAX, views
from holdmq.mqtt import (
    MQTT_5,
    SERVER,
    Auth,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)


def shown(packet: Packet, *, sender: int = 0) -> list[dict[str, Any]]:
    """What a trace shows of a packet that came over the wire."""
    if sender:
        decoder: Decoder[Any] = Decoder(CheckedTopics(bytes), sender=sender, version=MQTT_5)
    else:
        decoder = Decoder(CheckedTopics(lambda raw: make_entry(raw, 1000, 100)), topic_alias_maximum=10)
        if not isinstance(packet, Connect):
            decoder.feed(encode(Connect(client_id="c", version=MQTT_5), MQTT_5))
    found = [view for item in decoder.feed(encode(packet, MQTT_5)) for view in views(item)]
    json.dumps(found)
    return found


def test_a_connect_is_shown_without_its_password() -> None:
    packet = Connect("c", MQTT_5, False, 30, "user", b"secret", Will("w/c", b"private", 1))
    (view,) = shown(packet)
    assert view["packet"] == "CONNECT"
    assert (view["client_id"], view["mqtt"], view["username"], view["keep_alive_s"]) == ("c", "5", "user", 30)
    assert view["will"] == {"topic": "w/c", "qos": 1, "retain": False}
    assert "secret" not in json.dumps(view)
    assert "private" not in json.dumps(view)


@pytest.mark.parametrize("sender", [0, SERVER])
def test_a_publish_is_shown_with_its_topic_and_the_beginning_of_its_payload(sender: int) -> None:
    packet = Publish("a/b", b"21.5 " * 100, 1, packet_id=7, properties=Properties(message_expiry_interval=60))
    (view,) = shown(packet, sender=sender)
    assert (view["packet"], view["topic"], view["qos"], view["packet_id"]) == ("PUBLISH", "a/b", 1, 7)
    assert view["payload_bytes"] == 500
    assert len(view["payload"]) == TEXT_MAX
    assert view["properties"] == {"message_expiry_interval": 60}


def test_a_payload_that_is_no_text_is_shown_in_digits_and_no_terminal_is_controlled() -> None:
    assert shown(Publish("a", b"\xff\x00"))[0]["payload"] == "ff00"
    assert shown(Publish("a", b"\x1b[2Jx"))[0]["payload"] == "\\x1b[2Jx"


def test_what_authenticates_is_not_shown() -> None:
    packet = Auth(0x18, Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"proof"))
    (view,) = shown(packet, sender=SERVER)
    assert view["properties"] == {"authentication_method": "SCRAM-SHA-256", "authentication_data": "***"}


@pytest.mark.parametrize(
    ("packet", "sender", "view"),
    [
        (PingReq(), 0, {"packet": "PINGREQ"}),
        (PubAck(7), 0, {"packet": "PUBACK", "packet_ids": [7]}),
        (PubAck(7, 0x87), 0, {"packet": "PUBACK", "packet_id": 7, "reason_code": "0x87"}),
        (ConnAck(True), SERVER, {"packet": "CONNACK", "session_present": True, "reason": "success"}),
        (Subscribe(3, [Subscription("a/#", 1)]), 0, {"packet": "SUBSCRIBE", "filters": {"a/#": 1}}),
        (Unsubscribe(3, ["a/#"]), 0, {"packet": "UNSUBSCRIBE", "packet_id": 3, "filters": ["a/#"]}),
        (SubAck(3, [1, 0x87]), SERVER, {"packet": "SUBACK", "reason_codes": ["0x01", "0x87"]}),
        (Disconnect(0x8E), SERVER, {"packet": "DISCONNECT", "reason": "session_taken_over"}),
    ],
    ids=str,
)
def test_every_packet_says_what_matters(packet: Packet, sender: int, view: dict[str, Any]) -> None:
    (found,) = shown(packet, sender=sender)
    assert found | view == found


def test_long_lists_are_cut() -> None:
    packet = Subscribe(3, [Subscription(f"a/{n}") for n in range(100)])
    assert len(shown(packet)[0]["filters"]) == LIST_MAX
