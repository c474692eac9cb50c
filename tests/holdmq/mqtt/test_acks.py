from __future__ import annotations

import pytest

from holdmq.errors import UsageError
from holdmq.mqtt import (
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    AckRun,
    CheckedTopics,
    Decoder,
    MqttError,
    PubAck,
    encode_acks,
    encode_pubacks,
    encode_pubcomps,
    encode_pubrecs,
    encode_pubrels,
    encode_short_ack,
)

TYPES = [PUBACK, PUBREC, PUBREL, PUBCOMP]


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
@pytest.mark.parametrize("packet_type", TYPES)
def test_a_burst_is_written_and_read_as_one_run(packet_type: int, count: int) -> None:
    ids = [(index * 7919) % 65_535 + 1 for index in range(count)]
    wire = encode_acks(packet_type, ids)
    assert len(wire) == 4 * count
    (run,) = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1).feed(wire)
    assert isinstance(run, AckRun)
    assert (run.packet_type, run.packet_ids, len(run)) == (packet_type, ids, count)


def test_the_bytes_are_those_of_each_type() -> None:
    assert encode_pubacks([1, 0x1234]) == b"\x40\x02\x00\x01\x40\x02\x12\x34"
    assert encode_pubrecs([1]) == b"\x50\x02\x00\x01"
    assert encode_pubrels([0xFFFF, 1]) == b"\x62\x02\xff\xff\x62\x02\x00\x01"
    assert encode_pubcomps([1, 2]) == b"\x70\x02\x00\x01\x70\x02\x00\x02"
    assert encode_pubacks([]) == b""


@pytest.mark.parametrize("ids", [[0], [65_536], [-1], [1, 0], [1, 65_536], [1, -1]])
def test_what_is_no_packet_id_is_not_written(ids: list[int]) -> None:
    with pytest.raises(UsageError):
        encode_pubacks(ids)


def test_runs_split_by_type_and_by_long_forms() -> None:
    wire = (
        encode_acks(PUBACK, [1, 2])
        + encode_acks(PUBREC, [3])
        + b"\x40\x03\x00\x04\x10"
        + encode_acks(PUBACK, [5])
    )
    items = Decoder(CheckedTopics(bytes), version=MQTT_5).feed(wire)
    runs = [(item.packet_type, item.packet_ids) for item in items if isinstance(item, AckRun)]
    assert runs == [(PUBACK, [1, 2]), (PUBREC, [3]), (PUBACK, [5])]
    assert items[2] == PubAck(4, 0x10)


def test_an_acknowledgement_that_is_cut_waits_for_its_rest() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    wire = encode_pubacks([1, 2, 3])
    (first,) = decoder.feed(wire[:10])
    (rest,) = decoder.feed(wire[10:])
    assert isinstance(first, AckRun)
    assert isinstance(rest, AckRun)
    assert (first.packet_ids, rest.packet_ids) == ([1, 2], [3])


def test_what_came_before_packet_id_0_is_not_lost() -> None:
    decoder = Decoder(CheckedTopics(bytes), version=MQTT_3_1_1)
    with pytest.raises(MqttError) as raised:
        decoder.feed(b"\xc0\x00" + encode_pubacks([1, 2]) + b"\x40\x02\x00\x00" + encode_pubacks([3]))
    _, run = raised.value.decoded
    assert isinstance(run, AckRun)
    assert run.packet_ids == [1, 2]


@pytest.mark.parametrize("packet_type", TYPES)
def test_one_short_acknowledgement_is_a_run_of_one(packet_type: int) -> None:
    for packet_id in (1, 255, 256, 65_535):
        assert encode_short_ack(packet_type, packet_id) == encode_acks(packet_type, [packet_id, 1])[:4]
    for packet_id in (-1, 0, 65_536):
        with pytest.raises(UsageError):
            encode_short_ack(packet_type, packet_id)
