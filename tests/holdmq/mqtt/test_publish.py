from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from holdmq.errors import UsageError
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    SERVER,
    CheckedTopics,
    Decoder,
    MqttError,
    Properties,
    Publish,
    PublishRun,
    decode_publish_properties,
    delivery_properties,
    encode,
    encode_block,
    encode_publish,
    publishes,
    read_lone_publish,
    republish,
)
from holdmq.mqtt.protocol import PUBLISH


def only_run(decoder: Decoder[bytes], wire: bytes) -> PublishRun[bytes]:
    (item,) = decoder.feed(wire)
    assert isinstance(item, PublishRun)
    return item


def test_a_run_carries_entries_offsets_and_raw_properties() -> None:
    topics: CheckedTopics[int] = CheckedTopics(len)
    decoder = Decoder(topics, version=MQTT_5)
    said = Properties(content_type="t", user_properties=(("k", "v"),))
    first = encode(Publish("a/bc", b"xy", 1, True, True, 7, said), MQTT_5)
    second = encode(Publish("d", b"z"), MQTT_5)
    (run,) = decoder.feed(first + second)
    assert isinstance(run, PublishRun)
    block = b"\x03\x00\x01t\x26\x00\x01k\x00\x01v"
    end = len(first) + len(second)
    assert run.messages == [
        (4, 0b1011, 7, len(first) - 2, len(first), block),
        (1, 0, 0, end - 1, end, b""),
    ]
    assert run.buffer[end - 1 : end] == b"z"
    assert len(run) == 2
    assert decode_publish_properties(block) == said


def test_a_run_ends_where_another_packet_stands() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    one = b"\x30\x03\x00\x01a"
    items = decoder.feed(one + one + b"\xc0\x00" + one)
    assert [len(item) if isinstance(item, PublishRun) else "ping" for item in items] == [2, "ping", 1]


def test_a_large_packet_in_pieces_comes_out_as_one_buffer() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    payload = bytes(range(256)) * 4096
    wire = encode(Publish("a", payload, 1, packet_id=1), MQTT_3_1_1) + b"\x30\x03\x00\x01b"
    found: list[Publish] = []
    for start in range(0, len(wire), 65_536):
        for item in decoder.feed(wire[start : start + 65_536]):
            assert isinstance(item, PublishRun)
            found += publishes(item)
    assert found == [Publish("a", payload, 1, packet_id=1), Publish("b")]


@pytest.mark.mqtt("MQTT-3.3.2-12")
@pytest.mark.parametrize(
    "extra", [Properties(), Properties(content_type="t"), Properties(correlation_data=b"c")]
)
def test_an_alias_is_resolved_and_taken_out_of_the_properties(extra: Properties) -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_5, topic_alias_maximum=2)
    rest = encode_block(extra, PUBLISH)
    block = rest + b"\x23\x00\x02"
    head = bytes((len(block),)) + block
    topic = b"\x00\x01a"
    set_it = bytes((0x30, len(topic + head) + 1)) + topic + head + b"1"
    use_it = bytes((0x30, 2 + len(head) + 1)) + b"\x00\x00" + head + b"2"
    run = only_run(decoder, set_it + use_it)
    assert [(message[0], message[5]) for message in run.messages] == [(b"a", rest), (b"a", rest)]
    assert [run.buffer[message[3] : message[4]] for message in run.messages] == [b"1", b"2"]


@pytest.mark.mqtt("MQTT-3.3.2-12")
def test_an_alias_can_be_given_another_topic() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_5)
    decoder.allow_topic_aliases(1)
    alias = Properties(topic_alias=1)
    wire = b"".join(encode(Publish(topic, properties=alias), MQTT_5) for topic in ("a", "", "b", ""))
    assert [message[0] for message in only_run(decoder, wire).messages] == [b"a", b"a", b"b", b"b"]


def test_a_refusal_by_the_topic_table_is_the_decoders() -> None:
    def create(topic: bytes) -> bytes:
        if topic.startswith(b"$"):
            raise MqttError(0x90, "no client may publish to $")
        return topic

    decoder = Decoder(CheckedTopics(create), version=MQTT_3_1_1)
    with pytest.raises(MqttError, match="no client") as raised:
        decoder.feed(b"\x30\x03\x00\x01a\x30\x03\x00\x01$")
    assert len(raised.value.decoded) == 1


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("size", [0, 1, 100, 200, 20_000])
def test_head_packet_id_and_tail_make_the_packet(version: int, size: int) -> None:
    payload = b"p" * size
    said = Properties(content_type="t")
    packet = Publish("a/b", payload, 1, True, False, 0x1234, said)
    block = encode_block(said, PUBLISH)
    head, tail = encode_publish(version, b"a/b", memoryview(payload), 0b0011, block)
    wire = head + b"\x12\x34" + tail
    assert wire == encode(packet, version)
    again = republish(head) + b"\x12\x34" + tail
    packet.dup = True
    assert again == encode(packet, version)


@pytest.mark.mqtt("MQTT-2.2.1-2", "MQTT-2.2.2-1")
def test_a_qos_0_packet_is_all_head() -> None:
    assert encode_publish(MQTT_3_1_1, b"a", b"x", 0) == (b"\x30\x04\x00\x01ax", b"")
    assert encode_publish(MQTT_5, b"a", b"x", 1) == (b"\x31\x05\x00\x01a\x00x", b"")


def test_a_publish_that_mqtt_cannot_carry_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 268_435_455

    with pytest.raises(UsageError, match="at most 268435455"):
        encode_publish(MQTT_3_1_1, b"a", Huge(), 0)


@pytest.mark.mqtt("MQTT-3.3.2-6", "MQTT-3.3.2-18", "MQTT-3.3.4-4")
def test_a_delivery_gets_the_expiry_left_and_its_subscription_identifiers() -> None:
    said = Properties(
        content_type="t", message_expiry_interval=60, response_topic="r", user_properties=(("k", "v"),)
    )
    user_first = b"\x26\x00\x01k\x00\x01v\x08\x00\x01r\x02\x00\x00\x00\x3c\x03\x00\x01t"
    for block in (encode_block(said, PUBLISH), user_first):
        assert delivery_properties(block, None) == block
        got = decode_publish_properties(delivery_properties(block, 7, (1, 300)))
        assert got == Properties(
            content_type="t",
            message_expiry_interval=7,
            response_topic="r",
            user_properties=(("k", "v"),),
            subscription_identifiers=(1, 300),
        )


def test_an_expiry_is_not_added_to_a_message_that_has_none() -> None:
    assert delivery_properties(b"\x0b\x80\x01\x01\x01", 7) == b"\x0b\x80\x01\x01\x01"


def test_subscription_identifiers_of_a_server_reach_the_client() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_5, sender=SERVER)
    wire = encode(Publish("a", properties=Properties(subscription_identifiers=(5, 6))), MQTT_5)
    (packet,) = publishes(only_run(decoder, wire))
    assert packet.properties.subscription_identifiers == (5, 6)


def mutants(wire: bytes, draws: Random) -> Iterator[bytes]:
    """The packet, and what may stand in its place."""
    yield wire
    yield wire + wire
    yield wire[: draws.randrange(len(wire))]
    for _ in range(40):
        broken = bytearray(wire)
        for _ in range(draws.randint(1, 2)):
            broken[draws.randrange(min(len(broken), 12))] = draws.randrange(256)
        yield bytes(broken)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("size", [0, 1, 2, 100, 119, 120, 121, 122, 123, 300, 16_384])
def test_a_lone_publish_is_what_the_decoder_says_it_is(version: int, size: int) -> None:
    draws = Random(f"{version} {size}")
    known = 0
    for qos in (0, 1):
        wire = encode(Publish("a/b", b"p" * size, qos, packet_id=7 * qos), version)
        for data in mutants(wire, draws):
            stop = read_lone_publish(data, qos << 1, b"a/b", version)
            assert stop or data != wire or size == 16_384
            if stop:
                decoder = Decoder(CheckedTopics(bytes), version=version)
                (message,) = only_run(decoder, data).messages
                packet_id = data[stop] << 8 | data[stop + 1] if qos else 0
                start = stop + 2 * qos + (version == MQTT_5)
                assert message == (b"a/b", qos << 1, packet_id, start, len(data), b"")
                assert decoder.buffered == 0
                known += 1
    assert known > 2 or size == 16_384
