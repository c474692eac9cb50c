"""What encoding leaves out for MQTT 3, and what it refuses to encode at all."""

from __future__ import annotations

import pytest

from holdmq.errors import UsageError
from holdmq.mqtt import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)


def test_the_refusal_of_an_unknown_level_is_return_code_1_in_mqtt_3() -> None:
    refusal = ConnAck(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    assert encode(refusal, MQTT_3_1_1) == b"\x20\x02\x00\x01"
    assert encode(refusal, MQTT_5) == b"\x20\x03\x00\x84\x00"


def test_fields_that_mqtt_3_lacks_are_left_out() -> None:
    said = Properties(reason_string="no")
    assert encode(PubAck(1, 0x87, said), MQTT_3_1_1) == b"\x40\x02\x00\x01"
    assert encode(SubAck(1, [0x87, 2], said), MQTT_3_1) == b"\x90\x04\x00\x01\x80\x02"
    assert encode(UnsubAck(1, [0x11], said), MQTT_3_1_1) == b"\xb0\x02\x00\x01"
    assert encode(ConnAck(True), MQTT_3_1) == b"\x20\x02\x00\x00"
    assert encode(Disconnect(0x8E, said), MQTT_3_1_1) == b"\xe0\x00"


@pytest.mark.mqtt(
    "MQTT-2.2.1-2",
    "MQTT-3.2.2-6",
    "MQTT-3.2.2-8",
    "MQTT-3.3.1-2",
    "MQTT-3.3.1-4",
    "MQTT-3.3.2-2",
    "MQTT-3.4.2-1",
    "MQTT-3.9.3-2",
    "MQTT-3.14.2-1",
    "MQTT-1.5.4-2",
)
@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Connect("a", 6), 6),
        (Connect("a", MQTT_3_1_1, password=b"p"), MQTT_3_1_1),
        (Connect("a", will=Will("a/+", b"")), MQTT_3_1_1),
        (Connect("a", will=Will("a", b"", 3)), MQTT_3_1_1),
        (Connect("a\0"), MQTT_3_1_1),
        (Connect("\ud800"), MQTT_3_1_1),
        (Connect("a", keep_alive=65_536), MQTT_3_1_1),
        (Connect("a" * 65_536), MQTT_3_1_1),
        (ConnAck(True, 0x80), MQTT_5),
        (ConnAck(False, 0x8E), MQTT_5),
        (ConnAck(properties=Properties(topic_alias=1)), MQTT_5),
        (ConnAck(properties=Properties(receive_maximum=0)), MQTT_5),
        (ConnAck(properties=Properties(retain_available=2)), MQTT_5),
        (ConnAck(properties=Properties(maximum_packet_size=1 << 32)), MQTT_5),
        (Publish("a/#"), MQTT_3_1_1),
        (Publish(""), MQTT_5),
        (Publish("a", qos=3, packet_id=1), MQTT_3_1_1),
        (Publish("a", qos=1), MQTT_3_1_1),
        (Publish("a", packet_id=1), MQTT_3_1_1),
        (Publish("a", dup=True), MQTT_3_1_1),
        (Publish("", properties=Properties(topic_alias=1)), MQTT_3_1_1),
        (PubAck(0), MQTT_3_1_1),
        (PubAck(1, 0x92), MQTT_5),
        (Subscribe(1, []), MQTT_3_1_1),
        (Subscribe(1, [Subscription("a/#/b")]), MQTT_3_1_1),
        (Subscribe(1, [Subscription("a", 3)]), MQTT_3_1_1),
        (Subscribe(1, [Subscription("$share/g/a", no_local=True)]), MQTT_5),
        (Subscribe(1, [Subscription("a")], Properties(subscription_identifiers=(1, 2))), MQTT_5),
        (SubAck(1, []), MQTT_3_1_1),
        (SubAck(1, [3]), MQTT_3_1_1),
        (Unsubscribe(1, []), MQTT_3_1_1),
        (UnsubAck(1, []), MQTT_5),
        (Auth(), MQTT_3_1_1),
        (Disconnect(0x84), MQTT_5),
    ],
    ids=repr,
)
def test_what_nobody_may_send_is_not_encoded(packet: Packet, version: int) -> None:
    with pytest.raises(UsageError):
        encode(packet, version)
