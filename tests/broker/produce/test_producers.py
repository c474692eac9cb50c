"""Windows over crashes: whatever is left of the log, what is sent again is in it once, where it is told."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from sim_disk import SimDisk
from stepped_store import Stepped

from broker.kernel.snapshot_file import SnapshotFile
from broker.kernel.statistics import Statistics
from broker.produce.bounds import MessageBounds
from broker.produce.producers import Producers
from broker.produce.requests import Produce
from broker.topics.core.table import Topic, TopicTable
from holdmq.credentials.access_keys import Grants
from holdmq.errors import Code, RemoteError
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.record.batch import split_records
from holdmq.record.codec import COPY_MARK, decode_record, encode_record
from holdmq.wire.headers import ProduceRequest, ProduceRun
from storage.api.batches import Batch, BatchRun
from storage.api.timer import TIMER_TOPIC

FILE = Path("/store/config/producers.json")
NOW_MS = 1_700_000_000_000
A, B, C = 11, 12, 13
MARKS = {A: 0, B: 5, C: 0}


class Peer:
    """A connection that may do everything, and stays open."""

    grants = None
    is_closed = False


class Sent(NamedTuple):
    """A run of a PRODUCE."""

    producer: int
    queue_id: int
    epoch: int
    first: int
    bodies: list[bytes]
    is_delayed: bool = False

    def records(self) -> list[bytes]:
        """As its producer has encoded them, once for all times that they are sent."""
        properties = b"DUE\x01%d\x02" % (NOW_MS * 2) if self.is_delayed else b""
        mark = MARKS.get(self.producer, 0)
        return [
            encode_record(b"devices", self.queue_id, body, properties, NOW_MS, prepared=mark)
            for body in self.bodies
        ]


class Asked:
    """A request, and its answer."""

    def __init__(self, header: ProduceRequest, body: memoryview) -> None:
        self._header = header
        self.body = body
        self.connection = Peer()
        self.answer: Any = None

    def header(self, _kind: object) -> ProduceRequest:
        return self._header

    def reply(self, answer: Any) -> None:
        self.answer = answer


class NoQuotas:
    """Nobody has a rate to keep."""

    has_rates = False
    has_kept = False

    def is_full(self, _topic: str) -> RemoteError | None:
        raise AssertionError

    def senders(self, _grants: Grants | None, _topics: Iterable[str]) -> tuple[str, ...]:
        raise AssertionError

    def wait_s(self, _senders: tuple[str, ...], _messages: int, _size_bytes: int) -> float:
        raise AssertionError

    def sent(self, _senders: tuple[str, ...], _messages: int, _size_bytes: int) -> None:
        raise AssertionError


class Broker:
    """PRODUCE over a store on a simulated disk; every write happens in a step of `turn`."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.stepped = Stepped(disk, 1 << 16)
        table = TopicTable(100, 4)
        table.add(Topic("devices", 4, 4))
        self.produce = Produce(
            self.stepped.store,
            table,
            Statistics(0.0),
            1 << 20,
            MessageBounds(0, {}, float),
            lambda _connection: "client",
            NoQuotas(),
            lambda: NOW_MS,
        )
        self.producers = Producers(
            self.stepped.store,
            self.produce.sequences,
            self.produce.received,
            SnapshotFile(FILE, disk, False),
        )
        self.producers.load()

    def turn(self) -> None:
        while self.stepped.store.writer.step():
            pass
        self.stepped.deliver()

    def send(self, *runs: Sent) -> list[tuple[int, int]]:
        """(status, base offset) of each run."""
        records = [record for run in runs for record in run.records()]
        body = struct.pack(f">I{len(records)}I", len(records), *map(len, records)) + b"".join(records)
        rows = [
            ProduceRun("devices", run.queue_id, len(run.bodies), run.producer, run.epoch, run.first)
            for run in runs
        ]
        delayed = [i for i, run in enumerate(runs) if run.is_delayed]
        asked = Asked(ProduceRequest(zlib.crc32(body), rows, delayed=delayed), memoryview(bytearray(body)))
        self.produce.handle(asked)  # type: ignore[arg-type]
        self.turn()
        return [(result[0], result[1]) for result in asked.answer.results]

    def other_append(self, queue_id: int, body: bytes) -> None:
        """What a broker itself puts into a queue: a released or moved copy."""
        raw = encode_record(b"devices", queue_id, body, b"", NOW_MS, prepared=COPY_MARK)
        batch = Batch(memoryview(bytearray(raw)), split_records(raw), [BatchRun("devices", queue_id, 1)])
        self.stepped.store.append(batch, lambda _batch, _error: None)
        self.turn()

    def stored(self) -> dict[tuple[str, int, int], bytes]:
        """Every message by topic, queue and offset."""
        found: dict[tuple[str, int, int], bytes] = {}
        store = self.stepped.store
        position = store.first_position
        while position < store.confirmed_position:
            for batch in store.read_log(position, 1 << 20):
                for at in batch.starts.tolist():
                    record = decode_record(batch.records, at)
                    if record.topic != PRODUCED_TOPIC.encode():
                        found[record.topic.decode(), record.queue_id, record.queue_offset] = record.body
                position = batch.end
        return found

    def places(self) -> list[int]:
        """Where each record of the log begins, and its end."""
        store = self.stepped.store
        places: list[int] = []
        position = 0
        while position < store.confirmed_position:
            for batch in store.read_log(position, 1 << 20):
                places += (batch.starts + batch.position).tolist()
                position = batch.end
        return [*places, store.confirmed_position]

    async def save(self) -> None:
        """Have a snapshot written."""
        before = self.producers.snapshots
        self.stepped.store.flusher.step()
        self.producers.take_snapshot()
        async with asyncio.timeout(40):
            while self.producers.snapshots == before:
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.producers.close()


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{i}".encode() for i in range(count)]


SCRIPT: list[list[Sent]] = [
    [Sent(A, 0, 1, 0, names("a-old-", 2))],
    [Sent(A, 0, 2, 0, names("a0-", 3)), Sent(B, 0, 1, 0, names("b0-", 2))],
    [Sent(B, 0, 1, 2, names("b1-", 2)), Sent(B, 1, 1, 0, names("b2-", 3))],
    [Sent(C, 0, 1, 0, names("c0-", 1))],
    [Sent(A, 0, 2, 3, names("a1-", 2))],
    [Sent(A, 0, 2, 5, names("a2-", 2)), Sent(A, 2, 2, 0, names("a3-", 2), True)],
    [Sent(A, 2, 2, 2, names("a4-", 2), True), Sent(A, 2, 2, 4, names("a5-", 2))],
    [Sent(B, 0, 1, 4, names("b3-", 3))],
    [Sent(C, 0, 1, 1, names("c1-", 4)), Sent(B, 1, 1, 3, names("b4-", 2))],
]
SAVED_AFTER = 4


async def played(is_saved: bool) -> tuple[SimDisk, list[int], int]:
    """The disk after the script, where its records lie, and where the snapshot was taken."""
    broker = Broker(SimDisk())
    saved_at = 0
    for number, runs in enumerate(SCRIPT):
        if is_saved and number == SAVED_AFTER:
            saved_at = broker.stepped.store.confirmed_position
            await broker.save()
        assert {status for status, _ in broker.send(*runs)} == {Code.OK}
        broker.other_append(0, b"copy-%d" % number)
    places = broker.places()
    broker.close()
    return broker.disk.after_kill(), places, saved_at


def cut(disk: SimDisk, position: int) -> SimDisk:
    """The disk as it is when the log was written up to there only."""
    image = disk.copy()
    (name,) = [n for n in image.list(Path("/store/commitlog")) if n.isdigit() and int(n) == 0]
    content = image.content(Path("/store/commitlog") / name)
    content[position:] = bytes(len(content) - position)
    return image


def resend(broker: Broker, script: list[list[Sent]]) -> dict[bytes, int]:
    """Send everything as if nothing had been answered; the base offset told for each run's first body."""
    before = set(broker.stored().values())
    told: dict[bytes, int] = {}
    for runs in script:
        # An epoch that is over is not sent any more: all of it was answered.
        going = [run for run in runs if run.bodies[0] != b"a-old-0" or not {*run.bodies} <= before]
        for run, (status, base_offset) in zip(going, broker.send(*going) if going else [], strict=True):
            assert status == Code.OK, (run, Code(status))
            told[run.bodies[0]] = base_offset
    return told


def check(broker: Broker, told: dict[bytes, int]) -> list[bytes]:
    """Everything is there once, and where it was told; the runs for which no place was told."""
    stored = broker.stored()
    counts = Counter(stored.values())
    unplaced: list[bytes] = []
    for runs in SCRIPT:
        for run in runs:
            assert {body: counts[body] for body in run.bodies} == dict.fromkeys(run.bodies, 1)
            base_offset = told.get(run.bodies[0])
            if base_offset is None:
                continue
            if base_offset < 0:
                unplaced += [] if run.is_delayed else [run.bodies[0]]
                continue
            assert not run.is_delayed
            for i, body in enumerate(run.bodies):
                assert stored["devices", run.queue_id, base_offset + i] == body
    return unplaced


@pytest.mark.parametrize("is_saved", [False, True])
async def test_at_whatever_byte_a_crash_cuts_the_log_what_is_sent_again_is_in_it_once(is_saved: bool) -> None:
    disk, places, saved_at = await played(is_saved)
    middles = [(a + b) // 2 for a, b in pairwise(places)]
    cuts = [at for at in sorted({*places, *middles}) if at >= saved_at]
    assert len(cuts) > len(places) - 10
    for position in cuts:
        broker = Broker(cut(disk, position))
        told = resend(broker, SCRIPT)
        # Copies that came before the rest of a torn run may stand in the middle of it.
        assert len(check(broker, told)) == 0
        end = broker.stepped.store.confirmed_position
        told.pop(b"a-old-0", None)
        broker.close()
        again = Broker(broker.disk.after_kill())
        assert resend(again, SCRIPT) == told
        assert again.stepped.store.confirmed_position == end
        again.close()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_a_loss_of_power_takes_what_is_sent_again_is_in_the_log_once(seed: int) -> None:
    before = Broker(SimDisk())
    for number, runs in enumerate(SCRIPT):
        if number == SAVED_AFTER:
            await before.save()
        before.send(*runs)
    before.close()
    broker = Broker(before.disk.after_power_loss(seed))
    assert check(broker, resend(broker, SCRIPT)) == []
    broker.close()


async def test_the_rest_of_a_torn_run_behind_others_is_stored_once_and_no_place_is_told() -> None:
    disk, places, _ = await played(False)
    at = next(p for p in places if decoded(disk, p).body == b"b3-1")
    broker = Broker(cut(disk, at))
    broker.other_append(0, b"between")
    told = resend(broker, SCRIPT)
    assert check(broker, told) == [b"b3-0"]
    told.pop(b"a-old-0", None)
    broker.close()
    again = Broker(broker.disk.after_kill())
    assert resend(again, SCRIPT) == told
    again.close()


def decoded(disk: SimDisk, position: int) -> Any:
    path = Path("/store/commitlog") / ("0" * 20)
    content = disk.content(path)
    return (
        decode_record(content, position)
        if any(content[position : position + 4])
        else SimpleNamespace(body=b"")
    )


async def test_a_gap_is_refused_after_a_crash_as_before() -> None:
    disk, _, _ = await played(False)
    broker = Broker(disk)
    assert broker.send(Sent(B, 1, 1, 6, [b"gap"])) == [(Code.OUT_OF_SEQUENCE, -1)]
    assert broker.send(Sent(99, 1, 1, 6, [b"gap"])) == [(Code.OUT_OF_SEQUENCE, -1)]
    assert broker.send(Sent(B, 1, 1, 5, [b"next"]))[0][0] == Code.OK
    broker.close()


async def test_what_only_has_a_stored_runs_sequences_is_no_repeat() -> None:
    disk, _, _ = await played(False)
    broker = Broker(disk)
    assert broker.send(Sent(B, 1, 1, 3, names("other-", 2))) == [(Code.OUT_OF_SEQUENCE, -1)]
    assert broker.send(Sent(B, 1, 1, 3, names("b4-", 2)))[0][0] == Code.OK
    broker.close()


async def test_a_producer_alone_in_its_queue_leaves_one_note_whatever_it_sends() -> None:
    broker = Broker(SimDisk())
    for serial in range(50):
        broker.send(Sent(B, 0, 1, serial, [b"%d" % serial]), Sent(A, 0, 1, serial, [b"a%d" % serial]))
    assert broker.stepped.store.bounds(PRODUCED_TOPIC, 0) == (0, 1)
    for serial in range(50, 53):
        broker.send(Sent(A, 0, 1, serial, [b"a"]))
        broker.send(Sent(C, 0, 1, serial - 50, [b"c"]))
    # A and C have the same mark: whose turn it is must be said each time.
    assert broker.stepped.store.bounds(PRODUCED_TOPIC, 0) == (0, 6)
    broker.close()


async def test_a_snapshot_of_another_log_is_not_believed() -> None:
    broker = Broker(SimDisk())
    for runs in SCRIPT:
        broker.send(*runs)
    await broker.save()
    broker.close()
    elsewhere = SimDisk()
    raw = bytes(broker.disk.content(FILE))
    first = Broker(elsewhere)
    first.close()
    elsewhere = elsewhere.after_kill()
    elsewhere.make_directory(FILE.parent)
    file = elsewhere.open(FILE, create=True)
    file.write([raw], 0)
    file.sync()
    file.close()
    restored = Broker(elsewhere)
    assert len(restored.produce.sequences) == 0
    resend(restored, SCRIPT)
    assert Counter(restored.stored().values())[b"a0-0"] == 1
    restored.close()
    assert TIMER_TOPIC in {topic for topic, _, _ in restored.stored()}
