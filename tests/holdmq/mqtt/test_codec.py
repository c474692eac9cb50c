"""Golden bytes of every packet in every version: whole, byte by byte, with trailing bytes, truncated."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdmq.errors import UsageError
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
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    encode_acks,
    publishes,
)

SHORT_ACKS: dict[int, type[PubAck | PubRec | PubRel | PubComp]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
}


class Golden(NamedTuple):
    name: str
    version: int
    sender: int
    wire: bytes
    packet: Packet


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


EVERYTHING_IN_CONNECT = (
    b"\x11\x00\x00\x00\x0a"  # session expiry
    b"\x15\x00\x05SCRAM\x16\x00\x01x"  # authentication method and data
    b"\x17\x00\x19\x01"  # request problem, request response information
    b"\x21\x00\x14\x22\x00\x05"  # receive maximum, topic alias maximum
    b"\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01c"  # user property, twice
    b"\x27\x00\x10\x00\x00"  # maximum packet size
)
EVERYTHING_IN_WILL = (
    b"\x01\x01\x02\x00\x00\x00\x3c\x03\x00\x01t\x08\x00\x01r\x09\x00\x02\x00\xff"
    b"\x18\x00\x00\x00\x05\x26\x00\x01k\x00\x01v"
)
EVERYTHING_IN_CONNACK = (
    b"\x11\x00\x00\x00\x0a\x12\x00\x02id\x13\x00\x3c\x15\x00\x01m\x16\x00\x01d\x1a\x00\x02ri\x1c\x00\x01s"
    b"\x1f\x00\x02ok\x21\x00\x0a\x22\x00\x05\x24\x01\x25\x01\x26\x00\x01k\x00\x01v\x27\x00\x00\x10\x00"
    b"\x28\x01\x29\x01\x2a\x00"
)
EVERYTHING_IN_PUBLISH = (
    b"\x01\x01\x02\x00\x00\x00\x3c\x03\x00\x01t\x08\x00\x01r\x09\x00\x02\x00\xff\x26\x00\x01k\x00\x01v"
)

GOLDEN = [
    Golden(
        "MQTT 3.1 CONNECT",
        MQTT_3_1,
        CLIENT,
        b"\x10\x11\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x03abc",
        Connect("abc", MQTT_3_1, True, 60),
    ),
    Golden(
        "MQTT 3.1.1 CONNECT with an empty client id",
        MQTT_3_1_1,
        CLIENT,
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        Connect("", MQTT_3_1_1, True, 0),
    ),
    Golden(
        "MQTT 3.1.1 CONNECT with will, user name and password",
        MQTT_3_1_1,
        CLIENT,
        b"\x10\x24\x00\x04MQTT\x04\xf4\xff\xff"
        + text("id")
        + text("w/t")
        + text(b"\x00bye")
        + text("user")
        + text(b"\xffpw"),
        Connect("id", MQTT_3_1_1, False, 65_535, "user", b"\xffpw", Will("w/t", b"\x00bye", 2, True)),
    ),
    Golden(
        "MQTT 5 CONNECT, empty client id kept, password without user name",
        MQTT_5,
        CLIENT,
        b"\x10\x10\x00\x04MQTT\x05\x40\x00\x0a\x00\x00\x00" + text(b"p"),
        Connect("", MQTT_5, False, 10, None, b"p"),
    ),
    Golden(
        "MQTT 5 CONNECT with every property",
        MQTT_5,
        CLIENT,
        b"\x10\x64\x00\x04MQTT\x05\x0e\x00\x0a\x2e"
        + EVERYTHING_IN_CONNECT
        + text("id")
        + b"\x20"
        + EVERYTHING_IN_WILL
        + text("w")
        + text(b"p"),
        Connect(
            "id",
            MQTT_5,
            True,
            10,
            will=Will(
                "w",
                b"p",
                1,
                False,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=60,
                    content_type="t",
                    response_topic="r",
                    correlation_data=b"\x00\xff",
                    will_delay_interval=5,
                    user_properties=(("k", "v"),),
                ),
            ),
            properties=Properties(
                session_expiry_interval=10,
                authentication_method="SCRAM",
                authentication_data=b"x",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=20,
                topic_alias_maximum=5,
                user_properties=(("a", "b"), ("a", "c")),
                maximum_packet_size=1_048_576,
            ),
        ),
    ),
    Golden("MQTT 3.1 CONNACK", MQTT_3_1, SERVER, b"\x20\x02\x00\x00", ConnAck()),
    Golden("MQTT 3.1.1 CONNACK, session present", MQTT_3_1_1, SERVER, b"\x20\x02\x01\x00", ConnAck(True)),
    Golden(
        "MQTT 3.1.1 CONNACK, bad user name or password",
        MQTT_3_1_1,
        SERVER,
        b"\x20\x02\x00\x04",
        ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
    ),
    Golden("MQTT 5 CONNACK, server busy", MQTT_5, SERVER, b"\x20\x03\x00\x89\x00", ConnAck(False, 0x89)),
    Golden(
        "MQTT 5 CONNACK with every property",
        MQTT_5,
        SERVER,
        b"\x20\x42\x01\x00\x3f" + EVERYTHING_IN_CONNACK,
        ConnAck(
            True,
            0,
            Properties(
                session_expiry_interval=10,
                assigned_client_identifier="id",
                server_keep_alive=60,
                authentication_method="m",
                authentication_data=b"d",
                response_information="ri",
                server_reference="s",
                reason_string="ok",
                receive_maximum=10,
                topic_alias_maximum=5,
                maximum_qos=1,
                retain_available=1,
                user_properties=(("k", "v"),),
                maximum_packet_size=4096,
                wildcard_subscription_available=1,
                subscription_identifiers_available=1,
                shared_subscription_available=0,
            ),
        ),
    ),
    Golden("PUBLISH QoS 0", MQTT_3_1_1, CLIENT, b"\x30\x07\x00\x03a/bhi", Publish("a/b", b"hi")),
    Golden(
        "PUBLISH QoS 0, no payload, retain", MQTT_3_1, CLIENT, b"\x31\x03\x00\x01a", Publish("a", retain=True)
    ),
    Golden(
        "PUBLISH QoS 1 repeated",
        MQTT_3_1_1,
        CLIENT,
        b"\x3a\x08\x00\x03a/b\xff\xffx",
        Publish("a/b", b"x", 1, dup=True, packet_id=65_535),
    ),
    Golden(
        "PUBLISH with two bytes of remaining length",
        MQTT_3_1_1,
        SERVER,
        b"\x34\xc9\x01\x00\x03a/b\x00\x01" + b"p" * 194,
        Publish("a/b", b"p" * 194, 2, packet_id=1),
    ),
    Golden(
        "PUBLISH with three bytes of remaining length",
        MQTT_3_1_1,
        SERVER,
        b"\x30\x83\x80\x01\x00\x01a" + b"p" * 16_384,
        Publish("a", b"p" * 16_384),
    ),
    Golden(
        "PUBLISH with a topic beyond the basic plane",
        MQTT_3_1_1,
        CLIENT,
        b"\x30\x0c\x00\x08\xef\xbb\xbfA\xf0\xaa\x9b\x94hi",
        Publish("\ufeffA\U0002a6d4", b"hi"),
    ),
    Golden(
        "MQTT 5 PUBLISH",
        MQTT_5,
        CLIENT,
        b"\x32\x07\x00\x01a\x00\x09\x00x",
        Publish("a", b"x", 1, packet_id=9),
    ),
    Golden(
        "MQTT 5 PUBLISH with properties",
        MQTT_5,
        CLIENT,
        b"\x32\x22\x00\x01a\x00\x09\x1b" + EVERYTHING_IN_PUBLISH + b"x",
        Publish(
            "a",
            b"x",
            1,
            packet_id=9,
            properties=Properties(
                payload_format_indicator=1,
                message_expiry_interval=60,
                content_type="t",
                response_topic="r",
                correlation_data=b"\x00\xff",
                user_properties=(("k", "v"),),
            ),
        ),
    ),
    Golden(
        "MQTT 5 PUBLISH from a server with subscription identifiers",
        MQTT_5,
        SERVER,
        b"\x30\x0c\x00\x01a\x07\x0b\x01\x0b\xff\xff\xff\x7fx",
        Publish("a", b"x", properties=Properties(subscription_identifiers=(1, 268_435_455))),
    ),
    Golden("PUBACK", MQTT_3_1_1, CLIENT, b"\x40\x02\x12\x34", PubAck(0x1234)),
    Golden("PUBREC", MQTT_5, CLIENT, b"\x50\x02\x00\x01", PubRec(1)),
    Golden("PUBREL", MQTT_3_1_1, CLIENT, b"\x62\x02\x00\x01", PubRel(1)),
    Golden("PUBCOMP", MQTT_3_1, SERVER, b"\x70\x02\xff\xff", PubComp(65_535)),
    Golden("PUBACK with a reason", MQTT_5, SERVER, b"\x40\x03\x00\x01\x10", PubAck(1, 0x10)),
    Golden(
        "PUBREC with reason and properties",
        MQTT_5,
        SERVER,
        b"\x50\x09\x00\x01\x97\x05\x1f\x00\x02no",
        PubRec(1, ReasonCode.QUOTA_EXCEEDED, Properties(reason_string="no")),
    ),
    Golden("PUBREL, identifier not found", MQTT_5, CLIENT, b"\x62\x03\x00\x01\x92", PubRel(1, 0x92)),
    Golden(
        "PUBCOMP with a user property",
        MQTT_5,
        CLIENT,
        b"\x70\x0b\x00\x01\x00\x07\x26\x00\x01k\x00\x01v",
        PubComp(1, 0, Properties(user_properties=(("k", "v"),))),
    ),
    Golden(
        "SUBSCRIBE",
        MQTT_3_1_1,
        CLIENT,
        b"\x82\x0e\x00\x0a\x00\x03a/b\x01\x00\x03c/#\x02",
        Subscribe(10, [Subscription("a/b", 1), Subscription("c/#", 2)]),
    ),
    Golden(
        "MQTT 5 SUBSCRIBE with every option",
        MQTT_5,
        CLIENT,
        b"\x82\x16\x00\x0a\x02\x0b\x07\x00\x01a\x2d" + text("$share/g/b") + b"\x12",
        Subscribe(
            10,
            [Subscription("a", 1, True, True, 2), Subscription("$share/g/b", 2, False, False, 1)],
            Properties(subscription_identifiers=(7,)),
        ),
    ),
    Golden("SUBACK", MQTT_3_1_1, SERVER, b"\x90\x05\x00\x0a\x01\x02\x80", SubAck(10, [1, 2, 0x80])),
    Golden("MQTT 5 SUBACK", MQTT_5, SERVER, b"\x90\x05\x00\x0a\x00\x01\x8f", SubAck(10, [1, 0x8F])),
    Golden(
        "UNSUBSCRIBE",
        MQTT_3_1_1,
        CLIENT,
        b"\xa2\x0a\x00\x0a\x00\x01a\x00\x03b/+",
        Unsubscribe(10, ["a", "b/+"]),
    ),
    Golden("MQTT 5 UNSUBSCRIBE", MQTT_5, CLIENT, b"\xa2\x06\x00\x0a\x00\x00\x01a", Unsubscribe(10, ["a"])),
    Golden("UNSUBACK", MQTT_3_1_1, SERVER, b"\xb0\x02\x00\x0a", UnsubAck(10)),
    Golden("MQTT 5 UNSUBACK", MQTT_5, SERVER, b"\xb0\x05\x00\x0a\x00\x00\x11", UnsubAck(10, [0, 0x11])),
    Golden("PINGREQ", MQTT_3_1_1, CLIENT, b"\xc0\x00", PingReq()),
    Golden("PINGRESP", MQTT_5, SERVER, b"\xd0\x00", PingResp()),
    Golden("DISCONNECT", MQTT_3_1_1, CLIENT, b"\xe0\x00", Disconnect()),
    Golden("MQTT 5 DISCONNECT without anything", MQTT_5, CLIENT, b"\xe0\x00", Disconnect()),
    Golden("MQTT 5 DISCONNECT with will", MQTT_5, CLIENT, b"\xe0\x01\x04", Disconnect(0x04)),
    Golden(
        "MQTT 5 DISCONNECT with session expiry",
        MQTT_5,
        CLIENT,
        b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a",
        Disconnect(0, Properties(session_expiry_interval=10)),
    ),
    Golden(
        "MQTT 5 DISCONNECT from a server that has moved",
        MQTT_5,
        SERVER,
        b"\xe0\x07\x9d\x05\x1c\x00\x02s2",
        Disconnect(ReasonCode.SERVER_MOVED, Properties(server_reference="s2")),
    ),
    Golden("AUTH without anything", MQTT_5, SERVER, b"\xf0\x00", Auth()),
    Golden(
        "AUTH",
        MQTT_5,
        CLIENT,
        b"\xf0\x0a\x18\x08\x15\x00\x01m\x16\x00\x01d",
        Auth(
            ReasonCode.CONTINUE_AUTHENTICATION,
            Properties(authentication_method="m", authentication_data=b"d"),
        ),
    ),
]
# Other bytes for the same packet, which an encoder of ours never writes.
LOOSE = [
    Golden("MQTT 5 PUBACK, reason 0 written out", MQTT_5, CLIENT, b"\x40\x03\x00\x01\x00", PubAck(1)),
    Golden("MQTT 5 PUBACK, all written out", MQTT_5, CLIENT, b"\x40\x04\x00\x01\x00\x00", PubAck(1)),
    Golden("MQTT 5 DISCONNECT, all written out", MQTT_5, CLIENT, b"\xe0\x02\x00\x00", Disconnect()),
    Golden(
        "MQTT 3.1.1 PUBLISH, remaining length in more bytes than needed",
        MQTT_3_1_1,
        CLIENT,
        b"\x30\x83\x00\x00\x01a",
        Publish("a"),
    ),
    Golden("MQTT 3.1 SUBSCRIBE repeated", MQTT_3_1, CLIENT, b"\x8a\x06\x00\x01\x00\x01a\x00",
           Subscribe(1, [Subscription("a")])),
    Golden("MQTT 3.1 PUBREL repeated", MQTT_3_1, CLIENT, b"\x6a\x02\x00\x01", PubRel(1)),
    Golden(
        "MQTT 3.1 CONNECT, user name and password announced and absent",
        MQTT_3_1,
        CLIENT,
        b"\x10\x0f\x00\x06MQIsdp\x03\xc2\x00\x3c\x00\x01a",
        Connect("a", MQTT_3_1, True, 60),
    ),
    Golden(
        "MQTT 3.1 CONNECT with a client id of more than 23 characters",
        MQTT_3_1,
        CLIENT,
        b"\x10\x26\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x18" + b"a" * 24,
        Connect("a" * 24, MQTT_3_1, True, 60),
    ),
    Golden(
        "MQTT 5 properties in another order",
        MQTT_5,
        SERVER,
        b"\x20\x0d\x00\x00\x0a\x25\x00\x21\x00\x01\x1f\x00\x02ok",
        ConnAck(False, 0, Properties(retain_available=0, receive_maximum=1, reason_string="ok")),
    ),
]  # fmt: skip


def by_name(golden: Golden) -> str:
    return golden.name


def decoder_for(golden: Golden) -> Decoder[bytes]:
    version = 0 if isinstance(golden.packet, Connect) else golden.version
    return Decoder(CheckedTopics(bytes), sender=golden.sender, version=version)


def flatten(items: list[PublishRun[bytes] | AckRun | Packet]) -> list[Packet]:
    packets: list[Packet] = []
    for item in items:
        if isinstance(item, PublishRun):
            packets += publishes(item)
        elif isinstance(item, AckRun):
            packets += [SHORT_ACKS[item.packet_type](packet_id) for packet_id in item.packet_ids]
        else:
            packets.append(item)
    return packets


@pytest.mark.mqtt("MQTT-2.1.3-1", "MQTT-2.2.2-1", "MQTT-3.2.2-1", "MQTT-3.3.2-1")
@pytest.mark.parametrize("golden", GOLDEN, ids=by_name)
def test_a_packet_encodes_to_its_golden_bytes(golden: Golden) -> None:
    assert encode(golden.packet, golden.version).hex() == golden.wire.hex()


@pytest.mark.mqtt("MQTT-3.1.3-1", "MQTT-3.1.3-3", "MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19")
@pytest.mark.parametrize("golden", GOLDEN + LOOSE, ids=by_name)
def test_golden_bytes_decode_whole(golden: Golden) -> None:
    decoder = decoder_for(golden)
    assert flatten(decoder.feed(golden.wire)) == [golden.packet]
    assert decoder.version == golden.version
    assert decoder.buffered == 0


@pytest.mark.parametrize("golden", GOLDEN + LOOSE, ids=by_name)
def test_golden_bytes_decode_byte_by_byte(golden: Golden) -> None:
    decoder = decoder_for(golden)
    wire = golden.wire[:400] if len(golden.wire) > 1000 else golden.wire
    for index in range(len(wire) - 1):
        assert decoder.feed(wire[index : index + 1]) == []
        assert decoder.buffered == index + 1
    assert flatten(decoder.feed(golden.wire[len(wire) - 1 :])) == [golden.packet]


@pytest.mark.parametrize("golden", GOLDEN + LOOSE, ids=by_name)
def test_bytes_after_a_packet_begin_the_next(golden: Golden) -> None:
    decoder = decoder_for(golden)
    ping = b"\xc0\x00" if golden.sender == CLIENT else b"\xd0\x00"
    packets = flatten(decoder.feed(golden.wire + ping + b"\x40"))
    assert packets == [golden.packet, PingReq() if golden.sender == CLIENT else PingResp()]
    assert decoder.buffered == 1
    assert flatten(decoder.feed(b"\x02\x00\x07")) == [PubAck(7)]


@pytest.mark.parametrize("golden", GOLDEN + LOOSE, ids=by_name)
def test_a_truncated_packet_gives_nothing_and_is_kept(golden: Golden) -> None:
    for cut in {1, 2, len(golden.wire) // 2, len(golden.wire) - 1} - {len(golden.wire)}:
        decoder = decoder_for(golden)
        assert decoder.feed(golden.wire[:cut]) == []
        assert decoder.buffered == cut
        assert flatten(decoder.feed(golden.wire[cut:])) == [golden.packet]


@pytest.mark.parametrize(
    "golden", [one for one in GOLDEN if len(one.wire) > 2 and len(one.wire) < 128], ids=by_name
)
def test_a_packet_whose_length_is_cut_is_refused_or_shorter(golden: Golden) -> None:
    """The remaining length is the only end: no field may be read past it."""
    for length in range(golden.wire[1]):
        decoder = decoder_for(golden)
        wire = golden.wire[:1] + bytes((length,)) + golden.wire[2 : 2 + length]
        try:
            packets = flatten(decoder.feed(wire))
        except MqttError:
            continue
        assert len(packets) == 1
        assert packets != [golden.packet]


def test_all_packets_of_a_connection_in_one_feed_keep_their_order() -> None:
    sent = [golden for golden in GOLDEN if golden.version == MQTT_3_1_1 and golden.sender == CLIENT]
    connect, rest = sent[0], [one for one in sent if not isinstance(one.packet, Connect)]
    decoder = decoder_for(connect)
    wire = connect.wire + b"".join(one.wire for one in rest)
    assert flatten(decoder.feed(wire)) == [connect.packet, *(one.packet for one in rest)]


def test_packets_before_a_violation_come_with_the_error() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    good = b"\x30\x03\x00\x01a" * 2 + encode_acks(PUBACK, [1, 2]) + b"\xc0\x00" + b"\x30\x03\x00\x01b"
    with pytest.raises(MqttError) as raised:
        decoder.feed(good + b"\x36\x05\x00\x01a\x00\x01")
    run, acks, ping, last = raised.value.decoded
    assert isinstance(run, PublishRun)
    assert publishes(run) == [Publish("a"), Publish("a")]
    assert isinstance(acks, AckRun)
    assert acks.packet_ids == [1, 2]
    assert ping == PingReq()
    assert isinstance(last, PublishRun)
    assert publishes(last) == [Publish("b")]


def test_a_decoder_that_refused_refuses_all_further_bytes() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    with pytest.raises(MqttError, match="type 0"):
        decoder.feed(b"\xc0\x00\x00\x00")
    with pytest.raises(MqttError, match="type 0") as raised:
        decoder.feed(b"\xc0\x00")
    assert raised.value.decoded == []
    assert raised.value.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.mqtt("MQTT-3.2.2-15")
@pytest.mark.parametrize("first", [0x10, 0x30, 0x82])
def test_a_packet_above_the_maximum_is_refused_by_its_fixed_header(first: int) -> None:
    version = 0 if first == 0x10 else MQTT_5
    decoder = Decoder(CheckedTopics(bytes), 300, version=version)
    with pytest.raises(MqttError, match="maximum packet size here is 300") as raised:
        decoder.feed(bytes((first, 0xAA, 0x02)))  # 298 bytes would follow
    assert raised.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert decoder.buffered == 0


def test_a_300_megabyte_remaining_length_is_refused_at_once() -> None:
    decoder = Decoder(CheckedTopics(bytes))
    with pytest.raises(MqttError) as raised:
        decoder.feed(b"\x10\xff\xff\xff\x7f")
    assert raised.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert decoder.version == 0


def test_what_is_kept_of_a_cut_packet_stays_within_the_maximum() -> None:
    decoder = Decoder(CheckedTopics(bytes), 300, version=MQTT_3_1_1)
    wire = b"\x30\xa9\x02\x00\x01a" + b"p" * 294
    assert len(wire) == 300
    for index in range(299):
        assert decoder.feed(wire[index : index + 1]) == []
    assert decoder.buffered == 299
    assert flatten(decoder.feed(wire[299:])) == [Publish("a", b"p" * 294)]
    assert decoder.buffered == 0


@pytest.mark.mqtt("MQTT-3.1.2-1", "MQTT-3.1.2-2")
@pytest.mark.parametrize(
    ("wire", "version", "reason"),
    [
        (b"\x10\x0c\x00\x04MQTT\x03\x02\x00\x00\x00\x00", MQTT_3_1_1, 0x84),
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", MQTT_5, 0x84),
        (b"\x10\x0c\x00\x04MQTT\x84\x02\x00\x00\x00\x00", MQTT_3_1_1, 0x84),  # a bridge's bit
        (b"\x10\x0e\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00", MQTT_3_1_1, 0x84),
        (b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00", 0, 0x84),
        (b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00", MQTT_3_1_1, 0x85),
        (b"GET / HTTP/1.1\r\n\r\n", 0, 0x82),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00", 0, 0x81),  # TLS
    ],
)
def test_after_a_refused_connect_the_version_says_how_to_answer(
    wire: bytes, version: int, reason: int
) -> None:
    decoder = Decoder(CheckedTopics(bytes))
    with pytest.raises(MqttError) as raised:
        decoder.feed(wire)
    assert (decoder.version, raised.value.reason_code) == (version, reason)


def test_a_decoder_of_a_server_needs_the_version() -> None:
    with pytest.raises(UsageError, match="protocol level"):
        Decoder(CheckedTopics(bytes), sender=SERVER)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Connect("a", password=b"secret"))


def test_a_connect_has_a_bound_of_its_own_and_what_follows_the_other() -> None:
    decoder = Decoder(CheckedTopics(bytes), 1_000, connect_max_size=100)
    with pytest.raises(MqttError) as raised:
        decoder.feed(b"\x10\x63" + b"x" * 50)  # a body of 99 bytes
    assert raised.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert decoder.buffered == 0
    decoder = Decoder(CheckedTopics(bytes), 1_000, connect_max_size=100)
    assert decoder.feed(b"\x10\x62" + b"x" * 50) == []
    assert decoder.buffered == 52
    decoder = Decoder(CheckedTopics(bytes), 1_000, connect_max_size=100)
    publish = encode(Publish("a", b"x" * 900), MQTT_5)
    items = decoder.feed(encode(Connect(client_id="c", version=MQTT_5), MQTT_5) + publish)
    assert [type(item) for item in items] == [Connect, PublishRun]


def test_a_bound_that_is_lowered_holds_for_a_packet_under_way() -> None:
    decoder = Decoder(CheckedTopics(bytes), 1_000, version=MQTT_5)
    publish = encode(Publish("a", b"x" * 900), MQTT_5)
    assert decoder.feed(publish[:300]) == []
    decoder.max_packet_size = 500
    with pytest.raises(MqttError) as raised:
        decoder.feed(publish[300:301])
    assert raised.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert decoder.buffered == 0
