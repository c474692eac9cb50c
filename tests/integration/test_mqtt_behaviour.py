"""What clients rely on beyond single packets, over real processes: order of effects, windows, last words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqtt_client import MqttClient
from processes import running_stack

from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_stack(tmp_path_factory.mktemp("behaviour"), **{"gateway.receive_max": 50}) as stack:
        yield stack.mqtt_port


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_what_is_published_behind_a_subscribe_comes_without_waiting_for_suback(
    port: int, version: int
) -> None:
    client = MqttClient(port, f"eager-{version}", clean=True, expiry_s=0, version=version)
    topic = f"eager/{version}"
    client.send(
        Subscribe(1, [Subscription(topic, 2)]),
        Publish(topic, b"0"),
        Publish(topic, b"1", 1, packet_id=2),
        Publish(topic, b"2", 2, packet_id=3),
    )
    assert client.wait_for(SubAck).reason_codes == [2]
    assert client.wait_for(PubAck).packet_id == 2
    assert client.wait_for(PubRec).packet_id == 3
    client.send(PubRel(3))
    assert sorted(bytes(m.payload) for m in client.take(3)) == [b"0", b"1", b"2"]


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
def test_a_full_window_holds_deliveries_back_and_nothing_else(port: int) -> None:
    client = MqttClient(port, "narrow", clean=True, expiry_s=0, receive_max=2)
    client.subscribe("narrow/1", qos=1)
    client.publish("narrow/1", b"0", b"1", b"2", b"3")  # acknowledged, though two wait to be
    first = [client.message() for _ in range(2)]
    client.send(PingReq())
    client.wait_for(PingResp)
    assert not [packet for packet in client.received if isinstance(packet, Publish)]
    client.send(PubAck(first[0].packet_id))
    assert bytes(client.message().payload) == b"2"
    client.send(PubAck(first[1].packet_id))
    assert bytes(client.message().payload) == b"3"


@pytest.mark.mqtt("MQTT-3.3.4-7", "MQTT-4.13.1-1", "MQTT-3.14.4-2")
def test_who_exceeds_the_receive_maximum_hears_so_though_it_goes_on_sending(port: int) -> None:
    client = MqttClient(port, "greedy", clean=True, expiry_s=0)
    assert client.connack.properties.receive_maximum == 50
    client.send(*[Publish("greedy/1", b"x" * 2000, 2, packet_id=n) for n in range(1, 80)])
    while not isinstance(packet := client.next(), Disconnect):
        client.send(PubRel(packet.packet_id))
    assert packet.reason_code == 0x93
    with pytest.raises(ConnectionError):
        client.next()
