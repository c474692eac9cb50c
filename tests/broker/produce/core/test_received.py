"""QoS 2 publishes that a broker knows: what is a repeat, what is too late, what is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from broker.produce.core.received import ReceivedIds
from holdmq.errors import RecordError
from holdmq.record.codec import SYS_QOS_SHIFT, encode_record
from holdmq.record.once import WILL_UID, Once, once_of
from storage.api.batches import Batch, BatchRun
from storage.api.timer import TIMER_TOPIC

UID = 7


def pair(
    packet_id: int, generation: tuple[int, int], epoch: int = 1, settled: int = 0, uid: int = UID
) -> bytes:
    return Once(uid, packet_id, generation, epoch, settled).pair()


def store(received: ReceivedIds, *pairs: bytes, offset: int = 0) -> list[int]:
    """Sift a run and confirm what is left; the indices that are."""
    sifted = received.sift(pairs)
    assert sifted is not None
    received.confirm(sifted.notes, offset)
    return sifted.kept


def test_a_generation_that_is_not_higher_is_a_repeat_and_told_where_it_is() -> None:
    received = ReceivedIds()
    assert store(received, pair(1, (1, 2)), b"TAGS\x01t\x02", pair(2, (1, 2)), offset=40) == [0, 1, 2]
    sifted = received.sift([pair(2, (1, 1)), pair(1, (1, 2)), pair(3, (1, 2))])
    assert sifted is not None
    assert (sifted.kept, sifted.offset) == ([2], 42)
    assert received.repeats == 2
    received.refuse(sifted.notes)
    assert store(received, pair(1, (1, 3)), pair(1, (1, 3))) == [0], "twice in one run is once"


def test_what_is_on_its_way_is_not_decided_and_may_come_again() -> None:
    received = ReceivedIds()
    first = received.sift([pair(1, (1, 1))])
    assert first is not None
    assert received.sift([pair(2, (1, 1)), pair(1, (1, 1))]) is None
    assert store(received, pair(2, (1, 1))) == [0], "nothing is left of a run that was put off"
    received.refuse(first.notes)
    assert store(received, pair(1, (1, 1))) == [0]


def test_what_an_older_connection_sends_is_too_late_once_a_newer_one_published() -> None:
    received = ReceivedIds()
    # A gateway that stood still has a publish of a higher generation than the row ever had.
    assert store(received, pair(5, (0, 0), epoch=2)) == [0]
    assert store(received, pair(5, (1, 1), epoch=1)) == []
    assert received.stale == 1


def test_what_is_settled_is_forgotten() -> None:
    received = ReceivedIds(trim_from=2)
    for packet_id in range(1, 11):
        store(received, pair(packet_id, (1, packet_id), settled=max(0, packet_id - 1)))
    assert received.ids <= 4
    assert store(received, pair(10, (1, 10))) == []


def test_the_sessions_that_published_longest_ago_go_at_the_bound() -> None:
    received = ReceivedIds(ids_max=10)
    for uid in range(20):
        store(received, pair(1, (1, 1), uid=uid))
    assert received.ids == 10
    assert received.evicted == 10
    assert store(received, pair(1, (1, 1), uid=19)) == []
    assert store(received, pair(1, (1, 1), uid=0)) == [0], "it is not known any more"


def test_wills_do_not_drive_out_publishes() -> None:
    received = ReceivedIds(ids_max=10, wills_max=3)
    store(received, pair(1, (1, 1)))
    for n in range(20):
        store(received, pair(0, (1, 1), uid=WILL_UID | n))
    assert received.ids == 4
    assert store(received, pair(1, (1, 1))) == []
    assert store(received, pair(0, (1, 1), uid=WILL_UID | 19)) == []


def test_a_snapshot_and_the_log_behind_it_say_what_was_known() -> None:
    received = ReceivedIds()
    store(received, pair(1, (1, 1)), pair(2, (1, 1)), offset=5)
    rows = [received.capture(uid) for uid in received.uids()]
    assert received.capture(99) is None
    flags = 2 << SYS_QOS_SHIFT
    raw = [
        encode_record(b"other", 0, b"qos 0", pair(9, (1, 1)), 1),
        encode_record(b"t", 0, b"x", pair(1, (1, 2), epoch=3), 1, sys_flag=flags),
        encode_record(b"t", 0, b"y", b"TAGS\x01t\x02", 1, sys_flag=flags),
        encode_record(TIMER_TOPIC.encode(), 0, b"z", pair(4, (1, 2), epoch=3), 1, sys_flag=flags),
    ]
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    runs = [
        BatchRun("other", 0, 1, base_offset=0),
        BatchRun("t", 0, 2, base_offset=70),
        BatchRun(TIMER_TOPIC, 0, 1),
    ]
    again = ReceivedIds()
    again.load({"00000000": rows[0]})
    again.apply(Batch(memoryview(b"".join(raw)), sizes, runs))
    for packet_id, offset in ((1, 70), (2, 6), (4, -1), (9, 0)):
        sifted = again.sift([pair(packet_id, (1, 1), epoch=3)])
        assert sifted is not None
        assert (sifted.kept, sifted.offset) == ([], offset)
    assert again.sift([pair(2, (1, 2), epoch=2)]) is not None
    assert again.stale == 1


@pytest.mark.parametrize(
    "content", [{"0": 5}, {"0": [1, 2, [[1]]]}, [1], {"0": ["x", 1, []], "1": [1, 1, 4]}]
)
def test_a_snapshot_that_is_none_is_refused(content: object) -> None:
    with pytest.raises(RecordError):
        ReceivedIds().load(content)


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"TAGS\x01ONCE\x02",
        b"u.ONCE\x011/1/1/1/1/1\x02",
        b"ONCE\x011/1/1/1/1\x02",
        b"ONCE\x011/1/1/1/1/x\x02",
        b"ONCE\x011/1/1/1/1/-1\x02",
        b"\x00ONCE\x011/1/1/1/1/1\x02",
        b"ONCE\x011/1/1\x00/1/1/1\x02",
        b"ONCE\x011/1/1/1/1/1",
    ],
)
def test_what_is_no_note_is_none(properties: bytes) -> None:
    assert once_of(properties) is None


def test_a_note_is_read_as_it_was_written() -> None:
    once = Once((1 << 64) - 1, 65_535, ((1 << 62) + 5, 3), (1 << 62) + 6, 2)
    assert once_of(b"TAGS\x01t\x02" + once.pair() + b"\x00\x26") == once
    assert len(once.pair()) <= 128
