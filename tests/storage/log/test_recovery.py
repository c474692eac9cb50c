"""Starts after a crash: exactly the intact prefix, the rest kept aside, indexes equal to before."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from any_disk import ANY_DISK
from killed_program import said_until_killed

from holdmq.errors import CorruptRecordError, StorageError
from holdmq.record.codec import VERIFY_ALL, decode_record
from storage.api.queues import ReadStatus

# Each is seconds of computing: minutes on a machine that has others to serve.
pytestmark = pytest.mark.timeout(900)

MakeDriver = Callable[..., Any]
SEGMENT = "0" * 20
ACKNOWLEDGED_MIN = 100
"""Appends that are answered before a process is killed."""


@pytest.fixture
def crashed(driver: MakeDriver, tmp_path: Path) -> tuple[Path, list[int], bytes]:
    """A store as a crash leaves it: its directory, the records' ends, and the log's bytes."""
    d = driver(tmp_path / "origin", flush_interval_ms=60_000).open()
    batches = [d.append_and_wait(2, queue_id=i % 2) for i in range(10)]
    whole = b"".join(bytes(b.records) for b in batches)
    ends = [b.position + int(end) for b in batches for end in b.starts + b.sizes]
    shutil.copytree(tmp_path / "origin", tmp_path / "crashed")
    return tmp_path / "crashed", ends, whole


def damaged(crashed: Path, into: Path, change: Callable[[bytearray], None]) -> Path:
    if into.exists():
        shutil.rmtree(into)
    shutil.copytree(crashed, into)
    segment = into / "commitlog" / SEGMENT
    raw = bytearray(segment.read_bytes())
    change(raw)
    segment.write_bytes(raw)
    return into


def open_and_compare(driver: MakeDriver, directory: Path, expected: bytes, is_cut: bool) -> None:
    d = driver(directory).open()
    assert d.store.confirmed_position == len(expected)
    assert d.log_bytes() == expected
    assert d.store.epoch == 2
    kept = directory / "cut" / f"{len(expected):020d}"
    assert kept.exists() == is_cut
    assert (d.store.cut_bytes > 0) == is_cut
    for queue_id in (0, 1):
        end = d.store.bounds("devices", queue_id)[1]
        if end:
            read = d.store.read_queue_cold("devices", queue_id, 0, 0, 1 << 20, 100)
            assert read.count == end
    # What follows begins exactly behind the prefix, in clean zeros.
    batch = d.append_and_wait(1)
    assert batch.position == len(expected)
    segment = (directory / "commitlog" / SEGMENT).read_bytes()
    assert segment[: batch.end] == expected + bytes(batch.records)
    assert not segment[batch.end :].strip(b"\0")
    assert len(segment) == 1 << 20
    d.store.close()


def test_an_unclean_start_keeps_every_whole_record(
    driver: MakeDriver, crashed: tuple[Path, list[int], bytes]
) -> None:
    directory, _, whole = crashed
    open_and_compare(driver, directory, whole, is_cut=False)


def test_a_log_cut_at_any_byte_of_the_last_records_recovers_to_the_prefix(
    driver: MakeDriver, crashed: tuple[Path, list[int], bytes], tmp_path: Path
) -> None:
    directory, ends, whole = crashed
    # Some on a real file system; test_crashes does every byte on a simulated disk.
    for cut in range(ends[-4], ends[-1], 7):
        keep = max(end for end in ends if end <= cut)

        def change(raw: bytearray, cut: int = cut) -> None:
            raw[cut:] = bytes(len(raw) - cut)

        copy = damaged(directory, tmp_path / "cut", change)
        # Zeros may be what a record ends in: only bytes that are there can be kept aside.
        open_and_compare(driver, copy, whole[:keep], is_cut=any(whole[keep:cut]))


def test_any_flipped_byte_of_the_last_records_cuts_there(
    driver: MakeDriver, crashed: tuple[Path, list[int], bytes], tmp_path: Path
) -> None:
    directory, ends, whole = crashed
    for at in range(ends[-4], ends[-1], 7):
        keep = max(end for end in ends if end <= at)

        def change(raw: bytearray, at: int = at) -> None:
            raw[at] ^= 0x5A

        copy = damaged(directory, tmp_path / "flip", change)
        open_and_compare(driver, copy, whole[:keep], is_cut=True)


def test_what_was_cut_is_kept_as_it_was(driver: MakeDriver, crashed: tuple[Path, list[int], bytes]) -> None:
    directory, ends, whole = crashed

    def change(raw: bytearray) -> None:
        raw[ends[-3] + 60] ^= 1

    copy = damaged(directory, directory.parent / "kept", change)
    after = bytearray((copy / "commitlog" / SEGMENT).read_bytes()[: len(whole)])
    d = driver(copy).open()
    assert d.store.numbers()["recovery_cut_bytes"] == len(whole) - ends[-3]
    assert (copy / "cut" / f"{ends[-3]:020d}").read_bytes() == after[ends[-3] :]


@pytest.mark.parametrize(("offset_by", "ms_by"), [(1, 0), (-1, 0), (0, -1)])
def test_records_out_of_their_order_cut_the_log(
    driver: MakeDriver, crashed: tuple[Path, list[int], bytes], offset_by: int, ms_by: int
) -> None:
    """Each record is whole, but its queue offset or time is not what follows: a stale one from before."""
    import numpy as np

    from holdmq.record.batch import stamp

    directory, ends, whole = crashed

    def change(raw: bytearray) -> None:
        start, end = ends[-2], ends[-1]
        record = decode_record(raw, start, VERIFY_ALL)
        view = memoryview(raw)[start:end]
        stamp(
            view, np.array([0]), np.array([end - start]), np.array([record.queue_offset + offset_by]), start,
            record.store_ms + ms_by, record.store_host,
        )  # fmt: skip
        decode_record(raw, start, VERIFY_ALL)

    copy = damaged(directory, directory.parent / "order", change)
    open_and_compare(driver, copy, whole[: ends[-2]], is_cut=True)


def test_positions_learnt_before_a_cut_are_answered_ahead(
    driver: MakeDriver, crashed: tuple[Path, list[int], bytes]
) -> None:
    directory, ends, _ = crashed

    def change(raw: bytearray) -> None:
        raw[ends[-5] :] = bytes(len(raw) - ends[-5])

    copy = damaged(directory, directory.parent / "ahead", change)
    d = driver(copy).open()
    survived = d.store.bounds("devices", 0)[1]
    d.append_and_wait(8)
    d.wait_indexed()
    offset = survived + 2  # was there before the crash, and is there again, but another record
    assert d.store.read_queue("devices", 0, 2, offset, 1000, 10).status == ReadStatus.FOUND
    assert d.store.read_queue("devices", 0, 0, offset, 1000, 10).status == ReadStatus.FOUND
    assert d.store.read_queue("devices", 0, 1, offset, 1000, 10) is None
    ahead = d.store.read_queue_cold("devices", 0, 1, offset, 1000, 10)
    assert (ahead.status, ahead.next_offset) == (ReadStatus.AHEAD, survived)
    assert d.store.read_queue_cold("devices", 0, 1, survived, 1 << 20, 10).status == ReadStatus.FOUND
    d.store.close()
    assert d.open().store.epoch == 2, "a clean start keeps the epoch"


@pytest.mark.parametrize("what", ["consumequeue", "consumequeue/devices/1"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_deleted_consume_queues_are_built_again_as_they_were(
    driver: MakeDriver, tmp_path: Path, what: str, is_clean: bool
) -> None:
    d = driver(consume_queue_file_bytes=1024).open()
    for i in range(80):
        d.append_and_wait(5, queue_id=i % 3, topic=("devices", "alarms")[i % 2], body=bytes(9_000))
    d.wait_indexed()
    d.store.close()
    store = tmp_path / "store"
    if not is_clean:
        (store / "clean").unlink()
    before = {
        p.relative_to(store): p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()
    }
    assert max(map(len, before.values())) == 1040
    shutil.rmtree(store / what)
    d.open()
    after = {p.relative_to(store): p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()}
    assert after == before


def test_damage_below_the_checkpoint_is_reported_and_read_past(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    batches = [d.append_and_wait(20) for _ in range(5)]
    d.wait_indexed()
    d.store.close()
    segment = tmp_path / "store" / "commitlog" / SEGMENT
    whole = segment.read_bytes()
    starts = batches[2].starts + batches[2].position
    for at, name in (
        (int(starts[5]) + 100, "body"),
        (int(starts[5]) + 1, "size"),
        (int(starts[5]) + 5, "magic"),
    ):
        raw = bytearray(whole)
        raw[at] ^= 0xFF
        segment.write_bytes(raw)
        d.open()
        assert d.store.confirmed_position == batches[-1].end, name
        assert d.store.epoch == 1
        read = d.store.read_queue_cold("devices", 0, 0, 40, 1 << 20, 1000)
        assert (read.status, read.next_offset) == (ReadStatus.FOUND, 45)
        read = d.store.read_queue_cold("devices", 0, 0, 45, 1 << 20, 1000)
        assert (read.status, read.next_offset) == (ReadStatus.CORRUPT, 46)
        assert str(segment) in read.reason
        assert str(int(starts[5])) in read.reason
        assert d.store.read_queue_cold("devices", 0, 0, 46, 1 << 20, 1000).count == 54
        good = d.store.read_log(0, 1 << 20)
        assert good[-1].end == int(starts[5])
        with pytest.raises(CorruptRecordError, match=str(segment)) as damage:
            d.store.read_log(good[-1].end, 1 << 20)
        assert damage.value.offset == int(starts[5])
        assert damage.value.resume_at == int(starts[6])
        assert d.store.read_log(damage.value.resume_at, 1 << 20)[-1].end == batches[-1].end
        d.store.close()


def test_a_damaged_checkpoint_refuses_to_start_unless_the_backup_is_accepted(
    driver: MakeDriver, tmp_path: Path
) -> None:
    d = driver().open()
    expected = bytes(d.append_and_wait(5).records)
    d.wait_indexed()
    d.store.close()
    d.open()
    expected += bytes(d.append_and_wait(5).records)
    d.wait_indexed()
    d.store.close()
    file = tmp_path / "store" / "checkpoint.json"
    file.write_bytes(file.read_bytes().replace(b'"position":', b'"position":1'))
    with pytest.raises(StorageError, match=r"checkpoint\.json.*checksum.*--accept-backup"):
        driver().open()
    d.open(accept_backup=True)
    assert d.log_bytes() == expected


def test_missing_segments_are_refused(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    d.append_and_wait(5)
    d.wait_indexed()
    d.store.close()
    shutil.rmtree(tmp_path / "store" / "commitlog")
    with pytest.raises(StorageError, match="segments are missing"):
        driver().open()


APPENDER = """
import json, queue, sys
from holdmq.config.model import StorageSection
from holdmq.record.batch import encode_batch
from storage.log.store import open_store
from storage.api.batches import Batch, BatchRun
posted = queue.SimpleQueue()
directory, any_disk = sys.argv[1], json.loads(sys.argv[2])
settings = StorageSection.model_validate(
    {"data_dir": directory, "segment_size_bytes": 1 << 20, "flush_interval_ms": 20, **any_disk}
)
store = open_store(settings, "b1", lambda _: 1, posted.put)
store.open()
waiting, number = 0, store.confirmed_position
def done(batch, error):
    global waiting
    waiting -= 1
    assert error is None
    run = batch.runs[0]
    sys.stdout.write(f"{batch.position} {len(batch.records)} {run.queue_id} {run.base_offset}\\n")
    sys.stdout.flush()
print("open", store.epoch, flush=True)
while True:
    number += 1
    raw, sizes = encode_batch(b"devices", number % 3, [b"%d" % number * 30] * (1 + number % 7), b"", 5)
    run = BatchRun("devices", number % 3, len(sizes))
    store.append(Batch(memoryview(bytearray(raw)), sizes, [run]), done)
    waiting += 1
    while waiting > 8:
        posted.get()()
"""


def test_nothing_acknowledged_is_lost_by_kill_9(driver: MakeDriver, tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: list[tuple[int, int, int, int]] = []
    for epoch in range(1, 5):
        # However slow the machine is, there is something to lose.
        opened, *lines = said_until_killed(
            APPENDER,
            [str(tmp_path / "store"), json.dumps(ANY_DISK)],
            1 + ACKNOWLEDGED_MIN,
            chance.uniform(0.0, 0.4),
        )
        assert opened == f"open {epoch}"
        acknowledged.extend(tuple(map(int, line.split())) for line in lines)  # type: ignore[misc]
        d = driver(tmp_path / "check")
        if (tmp_path / "check").exists():
            shutil.rmtree(tmp_path / "check")
        shutil.copytree(tmp_path / "store", tmp_path / "check")
        d.open()
        assert len(acknowledged) >= ACKNOWLEDGED_MIN * epoch
        log = {}
        position = 0
        while position < d.store.confirmed_position:
            for batch in d.store.read_log(position, 8 << 20):
                first = 0
                for run in batch.runs:
                    for i in range(run.count):
                        log[batch.position + int(batch.starts[first + i])] = (
                            run.queue_id,
                            run.base_offset + i,
                        )
                    first += run.count
                position = batch.end
        for at, _size, queue_id, base_offset in acknowledged:
            assert log[at] == (queue_id, base_offset)
        for queue_id in range(3):
            end = d.store.bounds("devices", queue_id)[1]
            assert end == sum(where[0] == queue_id for where in log.values())
            offset = 0
            while offset < end:
                read = d.store.read_queue_cold("devices", queue_id, 0, offset, 1 << 20, 10_000)
                assert read.status == ReadStatus.FOUND
                offset = read.next_offset
        d.store.close()
