"""Random packets come back as they were sent; random bytes raise nothing but MqttError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdmq.mqtt import (
    CLIENT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SERVER,
    AckRun,
    Auth,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    publishes,
)
from holdmq.mqtt.properties import (
    BINARY,
    FLAG,
    FOUR_BYTES,
    PROPERTIES,
    TWO_BYTES,
    UTF8,
    UTF8_PAIR,
    VARINT,
    PropertySpec,
    decode_block,
    encode_block,
)
from holdmq.mqtt.protocol import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    VARINT_MAX,
    WILL,
)
from holdmq.mqtt.publish import _read_block
from holdmq.mqtt.reasons import ALLOWED_REASONS

SHORT_ACKS: dict[int, type[PubAck | PubRec | PubRel | PubComp]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
}

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
topic = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12)
topic_filter = st.sampled_from(["a", "a/#", "+/b", "#", "$share/g/a/+", "/", "é/+/#"])
packet_id = st.integers(1, 65_535)
binary = st.binary(max_size=20)
qos = st.integers(0, 2)


def values(spec: PropertySpec, packet_type: int) -> st.SearchStrategy[object]:
    if spec.identifier == 0x08:
        return topic
    kinds: dict[int, st.SearchStrategy[object]] = {
        FLAG: st.integers(0, 1),
        TWO_BYTES: st.integers(spec.minimum, 0xFFFF),
        FOUR_BYTES: st.integers(spec.minimum, 0xFFFF_FFFF),
        VARINT: st.integers(1, VARINT_MAX),
        BINARY: binary,
        UTF8: text,
        UTF8_PAIR: st.tuples(text, text),
    }
    one = kinds[spec.kind]
    if not spec.repeats:
        return one
    most = 3 if spec.repeats >> packet_type & 1 else 1
    return st.lists(one, min_size=1, max_size=most).map(tuple)


def properties(packet_type: int, without: tuple[int, ...] = ()) -> st.SearchStrategy[Properties]:
    usable = [
        spec for spec in PROPERTIES if spec.packets >> packet_type & 1 and spec.identifier not in without
    ]
    drawn = st.fixed_dictionaries({}, optional={spec.name: values(spec, packet_type) for spec in usable})

    def build(found: dict[str, object]) -> Properties:
        if "authentication_data" in found:
            found.setdefault("authentication_method", "m")
        return Properties(**found)  # type: ignore[arg-type]

    return drawn.map(build)


def reasons(packet_type: int, sender: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(ALLOWED_REASONS[packet_type, sender]))


wills = st.builds(Will, topic, binary, qos, st.booleans(), properties(WILL))
connects = st.builds(
    Connect,
    text,
    st.just(MQTT_5),
    st.booleans(),
    st.integers(0, 0xFFFF),
    st.none() | text,
    st.none() | binary,
    st.none() | wills,
    properties(CONNECT),
)
acks = st.sampled_from(sorted(SHORT_ACKS)).flatmap(
    lambda kind: st.builds(SHORT_ACKS[kind], packet_id, reasons(kind, CLIENT), properties(kind))
)


@st.composite
def publish(draw: st.DrawFn, sender: int) -> Publish:
    level = draw(qos)
    without = (0x0B, 0x23) if sender == CLIENT else (0x23,)
    return Publish(
        draw(topic),
        draw(binary),
        level,
        draw(st.booleans()),
        bool(level) and draw(st.booleans()),
        draw(packet_id) if level else 0,
        draw(properties(PUBLISH, without)),
    )


subscriptions = st.builds(
    Subscription, st.sampled_from(["a", "b/#"]), qos, st.booleans(), st.booleans(), st.integers(0, 2)
) | st.builds(Subscription, topic_filter, qos)
from_client = st.one_of(
    publish(CLIENT),
    acks,
    st.builds(Subscribe, packet_id, st.lists(subscriptions, min_size=1, max_size=4), properties(SUBSCRIBE)),
    st.builds(Unsubscribe, packet_id, st.lists(topic_filter, min_size=1), properties(UNSUBSCRIBE)),
    st.just(PingReq()),
    st.builds(Disconnect, reasons(DISCONNECT, CLIENT), properties(DISCONNECT, (0x1C,))),
    st.builds(
        Auth,
        reasons(AUTH, CLIENT),
        properties(AUTH).filter(lambda found: found.authentication_method is not None),
    ),
)
from_server = st.one_of(
    publish(SERVER),
    acks,
    st.builds(ConnAck, st.just(False), reasons(CONNACK, SERVER), properties(CONNACK)),
    st.builds(SubAck, packet_id, st.lists(reasons(SUBACK, SERVER), min_size=1), properties(SUBACK)),
    st.builds(UnsubAck, packet_id, st.lists(reasons(UNSUBACK, SERVER), min_size=1), properties(UNSUBACK)),
    st.just(PingResp()),
    st.builds(Disconnect, reasons(DISCONNECT, SERVER), properties(DISCONNECT, (0x11,))),
)


def feed(decoder: Decoder[bytes], wire: bytes, cuts: list[int]) -> list[Packet]:
    packets: list[Packet] = []
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    for start, stop in pairwise(edges):
        for item in decoder.feed(wire[start:stop]):
            if isinstance(item, PublishRun):
                packets += publishes(item)
            elif isinstance(item, AckRun):
                packets += [SHORT_ACKS[item.packet_type](number) for number in item.packet_ids]
            else:
                packets.append(item)
    return packets


REFUSALS = {None, 0x81, 0x82, 0x84, 0x85, 0x8F, 0x90, 0x94, 0x95, 0x97}


def refusal(action: Callable[[], object]) -> int | None:
    """Return the reason code of the MqttError that `action` raised, None when it raised nothing."""
    try:
        action()
    except MqttError as error:
        return error.reason_code
    return None


cuts_anywhere = st.lists(st.integers(0, 4096), max_size=6)
slow = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(connects, st.lists(from_client, max_size=5), cuts_anywhere)
def test_what_a_client_encodes_a_server_decodes(first: Connect, rest: list[Packet], cuts: list[int]) -> None:
    wire = b"".join(encode(packet, MQTT_5) for packet in [first, *rest])
    assert feed(Decoder(CheckedTopics(bytes)), wire, cuts) == [first, *rest]


@slow
@given(st.lists(from_server, max_size=5), cuts_anywhere)
def test_what_a_server_encodes_a_client_decodes(sent: list[Packet], cuts: list[int]) -> None:
    wire = b"".join(encode(packet, MQTT_5) for packet in sent)
    assert feed(Decoder(CheckedTopics(bytes), version=MQTT_5, sender=SERVER), wire, cuts) == sent


starts = st.sampled_from([0, MQTT_3_1, MQTT_3_1_1, MQTT_5])
first_bytes = st.integers(0, 255) | st.sampled_from(
    [0x10, 0x30, 0x32, 0x34, 0x40, 0x62, 0x82, 0xA2, 0xE0, 0xF0]
)


@settings(max_examples=400, deadline=None)
@given(
    starts,
    st.sampled_from([CLIENT, SERVER]),
    st.lists(st.tuples(first_bytes, st.binary(max_size=60)), max_size=4),
)
def test_random_packets_raise_nothing_but_mqtt_errors(
    version: int, sender: int, bodies: list[tuple[int, bytes]]
) -> None:
    decoder = Decoder(CheckedTopics(bytes), 50, sender=sender, version=version or (sender - 1) * MQTT_5)
    wire = b"".join(bytes((first, len(body))) + body for first, body in bodies)
    assert refusal(lambda: feed(decoder, wire, [])) in REFUSALS
    assert decoder.buffered <= 50


@settings(max_examples=300, deadline=None)
@given(connects | from_client | from_server, st.data())
def test_a_changed_byte_raises_nothing_but_mqtt_errors(packet: Packet, data: st.DataObject) -> None:
    wire = bytearray(encode(packet, MQTT_5))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    for sender in (CLIENT, SERVER):
        version = 0 if isinstance(packet, Connect) and sender == CLIENT else MQTT_5
        decoder = Decoder(CheckedTopics(bytes), sender=sender, version=version, topic_alias_maximum=10)
        assert refusal(partial(feed, decoder, bytes(wire), [])) in REFUSALS


PIECES = [
    b"\x01\x01", b"\x01\x02", b"\x02\0\0\0\x3c", b"\x02", b"\x03\0\1t", b"\x03\0\2\xc3\xa9", b"\x03\0\1\xff",
    b"\x08\0\1r", b"\x09\0\1c", b"\x0b\x05", b"\x23\0\1", b"\x23\0\0", b"\x26\0\1k\0\1v", b"\x26\0\0\0\1\0",
    b"\x26\0\1k", b"\x11\0\0\0\0", b"\x7f", b"\x82\x01",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=5,
    ),
    st.sampled_from([CLIENT, SERVER]),
)
def test_the_short_check_of_a_publish_block_decides_as_the_full_one(parts: list[bytes], sender: int) -> None:
    block = b"".join(parts)
    wire = bytes((len(block),)) + block
    verdict = refusal(lambda: decode_block(block, 0, len(block), PUBLISH, sender))
    assert refusal(lambda: _read_block(wire, 0, len(wire), sender)) == verdict
    if verdict is not None:
        return
    full = decode_block(block, 0, len(block), PUBLISH, sender)
    kept, alias, stop = _read_block(wire, 0, len(wire), sender)
    assert (alias, stop) == (full.topic_alias or 0, len(wire))
    without = {field.name: getattr(full, field.name) for field in fields(full)} | {"topic_alias": None}
    assert decode_block(kept, 0, len(kept), PUBLISH, SERVER) == Properties(**without)


@given(properties(PUBLISH))
def test_a_block_of_properties_comes_back(said: Properties) -> None:
    block = encode_block(said, PUBLISH)
    assert decode_block(block, 0, len(block), PUBLISH, SERVER) == said
