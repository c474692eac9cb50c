"""Messages by key, by unique id, by time, by id and backwards; the index is rebuilt when it is lost."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdmq.errors import CorruptRecordError
from holdmq.message import MessageId
from holdmq.record.batch import encode_batch
from holdmq.record.codec import decode_record, encode_properties
from holdmq.record.properties import KEY
from storage.api.batches import Batch, BatchRun
from storage.api.index import LATEST_MS, LOG_END, MessagePlace
from storage.core.keys import hash_of
from storage.log.core.names import offsets_of
from storage.log.index import key_index, query
from storage.log.offline.repair import truncate
from storage.log.offline.store import OfflineStore

MakeDriver = Callable[..., Any]
MIB = 1 << 20


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.003)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files of 8 slots and 10 entries."""
    made = key_index.KeyIndex.__init__
    monkeypatch.setattr(key_index.KeyIndex, "__init__", lambda self, *args: made(self, *args, 8, 10))


def keyed(d: Any, *keys: str, topic: str = "devices", unique: str = "", size: int = 2) -> int:
    """Append one message with these keys; its log offset."""
    pairs = [("KEYS", key) for key in keys] + ([("UNIQ_KEY", unique)] if unique else [])
    raw, sizes = encode_batch(topic.encode(), 0, [bytes(size)], encode_properties(pairs), 5)
    batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun(topic, 0, 1)])
    d.store.append(batch, lambda _batch, error: d.results.append(error))
    assert d.wait(1) == [None]
    return batch.position


def caught_up(d: Any) -> None:
    numbers = d.store.numbers
    wait_for(lambda: numbers()["key_index_position"] == d.store.confirmed_position)
    wait_for(lambda: numbers()["key_index_pending"] == 0)


@contextmanager
def flusher_held(d: Any) -> Iterator[None]:
    """The flusher stands still between two of its steps: no file is written or renamed meanwhile."""
    is_held, go_on = threading.Event(), threading.Event()
    upkeep = d.store.flusher.upkeep

    def hold() -> None:
        is_held.set()
        assert go_on.wait(60)

    d.store.flusher.upkeep = hold
    try:
        assert is_held.wait(40)
        yield
    finally:
        d.store.flusher.upkeep = upkeep
        go_on.set()


def positions(matches: Any) -> list[int]:
    return [record.physical_offset for record in matches.records]


@pytest.mark.usefixtures("small_files")
def test_a_key_s_messages_are_paged_by_position_though_they_share_a_store_time(driver: MakeDriver) -> None:
    d = driver().open()
    wanted = [keyed(d, "k") for _ in range(25)]
    caught_up(d)
    assert d.store.index.indexed_position == d.store.confirmed_position
    found, before = [], LOG_END
    while True:
        page = d.store.index.by_key("devices", "k", max_count=4, before=before)
        found += positions(page)
        if page.is_complete:
            break
        before = found[-1]
    assert found == wanted[::-1]
    one = d.store.index.by_key("devices", "k", before=wanted[3], max_bytes=1)
    assert (positions(one), one.is_complete) == ([wanted[2]], False)


@pytest.mark.usefixtures("small_files")
def test_messages_are_found_by_key_newest_first_across_files_and_restarts(
    driver: MakeDriver, tmp_path: Path
) -> None:
    d = driver().open()
    wanted, others = [], []
    for i in range(40):
        d.clock_ms += 1000
        (wanted if i % 4 == 0 else others).append(keyed(d, "k" if i % 4 == 0 else f"o{i}", f"second{i}"))
    keyed(d, "k", topic="elsewhere")
    caught_up(d)
    assert len(os.listdir(tmp_path / "store" / "keyindex")) >= 8
    for _ in range(2):
        found = d.store.index.by_key("devices", "k")
        assert positions(found) == wanted[::-1]
        assert found.is_complete
        assert positions(d.store.index.by_key("devices", "k", max_count=3)) == wanted[:-4:-1]
        assert not d.store.index.by_key("devices", "k", max_count=3).is_complete
        assert positions(d.store.index.by_key("devices", "second7")) == [others[5]]
        assert positions(d.store.index.by_key("devices", "nobody's")) == []
        first_ms = d.clock_ms - 39_000
        within = d.store.index.by_key("devices", "k", first_ms + 4_000, first_ms + 12_000)
        assert positions(within) == wanted[3:0:-1]
        d.store.close()
        d.open()
        assert d.store.numbers()["key_index_rebuilds_total"] == 0


def test_a_unique_id_is_no_key_and_escaped_text_is_found(driver: MakeDriver) -> None:
    d = driver().open()
    first = keyed(d, "a\x01b", unique="id\x02")
    again = keyed(d, unique="id\x02")
    caught_up(d)
    assert positions(d.store.index.by_unique_id("devices", "id\x02")) == [again, first]
    assert positions(d.store.index.by_key("devices", "id\x02")) == []
    assert positions(d.store.index.by_key("devices", "a\x01b")) == [first]


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("loss", ["all", "one", "header", "newest"])
def test_a_lost_index_is_built_again_from_the_log(driver: MakeDriver, tmp_path: Path, loss: str) -> None:
    d = driver().open()
    wanted = [keyed(d, "k") for _ in range(35)]
    caught_up(d)
    d.store.close()
    files = sorted((tmp_path / "store" / "keyindex").iterdir())
    assert len(files) == 4
    if loss == "header":
        raw = bytearray(files[1].read_bytes())
        raw[20] ^= 1
        files[1].write_bytes(raw)
    for path in {"all": files, "one": files[1:2], "newest": files[-1:]}.get(loss, []):
        path.unlink()
    d.open()
    caught_up(d)
    assert positions(d.store.index.by_key("devices", "k")) == wanted[::-1]
    assert d.store.numbers()["key_index_rebuilds_total"] == (loss != "newest")


@pytest.mark.usefixtures("small_files")
def test_after_a_crash_the_index_equals_the_log(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    for _ in range(25):
        keyed(d, "k")
    caught_up(d)
    # As a crash leaves it: nothing but what headers say is certain, and the log's end was cut.
    last = max((tmp_path / "store" / "keyindex").iterdir())
    copy = tmp_path / "copy"
    with flusher_held(d):
        shutil.copytree(tmp_path / "store", copy)
    with (copy / "keyindex" / last.name).open("r+b") as file:
        file.seek(-15, os.SEEK_END)
        file.write(b"\xff" * 15)
    with (copy / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(d.store.confirmed_position - 30)
        file.write(b"torn")
    crashed = driver(copy).open()
    caught_up(crashed)
    keyed(crashed, "k")
    caught_up(crashed)
    assert len(positions(crashed.store.index.by_key("devices", "k"))) == 25
    assert crashed.store.index.by_key("devices", "k").is_complete


@pytest.mark.usefixtures("small_files")
def test_what_a_repair_cuts_off_leaves_the_index_too(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    wanted = [keyed(d, "k") for _ in range(35)]
    caught_up(d)
    d.store.close()
    with (tmp_path / "store" / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(wanted[13] + 50)
        file.write(b"X")
    store = OfflineStore(tmp_path / "store")
    store.open()
    assert truncate(store, lambda _: 1).end == wanted[13]
    store.close()
    d.open()
    assert keyed(d, "other") == wanted[13]
    caught_up(d)
    assert positions(d.store.index.by_key("devices", "k")) == wanted[12::-1]
    assert positions(d.store.index.by_key("devices", "other")) == wanted[13:14]
    assert d.store.numbers()["key_index_rebuilds_total"] == 0
    hash_ = hash_of(KEY, b"devices", b"k")
    assert d.store.index.keys.find(hash_, 0, LATEST_MS, 100).positions == wanted[12::-1], "nothing stale"


@pytest.mark.usefixtures("small_files")
def test_index_files_go_with_the_segments(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver(retention_segments=2, retention_interval_ms=1).open()
    wanted = [keyed(d, "k", size=200_000) for _ in range(40)]
    caught_up(d)
    wait_for(lambda: d.store.first_position == 6 * MIB)
    wait_for(lambda: len(offsets_of(os.listdir(tmp_path / "store" / "keyindex"))) <= 2)
    kept = [position for position in wanted if position >= d.store.first_position]
    assert positions(d.store.index.by_key("devices", "k")) == kept[::-1]


def test_a_full_disk_makes_the_index_late_and_nothing_else(
    driver: MakeDriver, watched_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "PENDING_MAX", 5)
    d = driver(disk=watched_disk).open()
    watched_disk.failing = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.parent.name == "keyindex" else None
    )
    wanted = [keyed(d, "k") for _ in range(4)]
    wait_for(lambda: d.store.numbers()["key_index_failures_total"] > 0)
    wanted += [keyed(d, "k") for _ in range(8)]
    d.wait_indexed()
    assert d.store.numbers()["key_index_discards_total"] > 0
    assert not d.store.index.by_key("devices", "k").is_complete
    watched_disk.failing = lambda _operation, _path: None
    caught_up(d)
    found = d.store.index.by_key("devices", "k")
    assert positions(found) == wanted[::-1]
    assert found.is_complete


def test_answers_and_candidates_are_bounded(driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "RESULTS_MAX", 3)
    monkeypatch.setattr(query, "CANDIDATES_MAX", 5)
    monkeypatch.setattr(key_index, "PROBES_MAX", 4)
    d = driver().open()
    for _ in range(6):
        keyed(d, "k")
    caught_up(d)
    found = d.store.index.by_key("devices", "k", max_count=100)
    assert (len(found.records), found.is_complete) == (3, False)
    monkeypatch.setattr(query, "BYTES_MAX", 1)
    assert len(d.store.index.by_key("devices", "k").records) == 1
    monkeypatch.setattr(query, "RESULTS_MAX", 100)
    monkeypatch.setattr(query, "BYTES_MAX", MIB)
    found = d.store.index.by_key("devices", "k")
    assert (len(found.records), found.is_complete) == (4, False)


def test_the_offset_of_a_time_is_the_first_stored_then(driver: MakeDriver) -> None:
    d = driver().open()
    start = d.clock_ms
    for minute in range(50):
        d.clock_ms = start + minute * 60_000
        d.append_and_wait(3)
    d.wait_indexed()
    at = d.store.index.offset_at
    assert at("devices", 0, 0) == 0
    for minute in range(50):
        assert at("devices", 0, start + minute * 60_000) == 3 * minute
        assert at("devices", 0, start + minute * 60_000 - 1) == 3 * minute
    assert at("devices", 0, start + 50 * 60_000) == 150
    assert at("devices", 9, start) == 0


def test_a_time_is_found_in_memory_before_the_files_know_it(driver: MakeDriver, watched_disk: Any) -> None:
    d = driver(disk=watched_disk).open()
    watched_disk.failing = lambda operation, path: (
        errno.ENOSPC if operation == "write" and path.parent.name == "0" else None
    )
    start = d.clock_ms
    for second in range(5):
        d.clock_ms = start + second * 1000
        d.append_and_wait(2)
    assert d.store.index.offset_at("devices", 0, start + 1500) == 4
    assert d.store.index.offset_at("devices", 0, start + 9000) == 10
    newest = d.store.index.queue_before("devices", 0, 10, 4)
    assert [record.queue_offset for record in newest] == [9, 8, 7, 6]


def test_the_log_is_read_backwards_over_segments_and_blanks(driver: MakeDriver) -> None:
    d = driver().open()
    for _ in range(5):
        d.append_and_wait(150, body=bytes(3000))
        d.append_and_wait(3, topic="other")
    whole: list[int] = []
    position = 0
    while position < d.store.confirmed_position:
        for batch in d.store.read_log(position, MIB):
            whole += (batch.starts + batch.position).tolist()
            position = batch.end
    position, found = d.store.confirmed_position, []
    while records := d.store.index.before(position, 100):
        found += [record.physical_offset for record in records]
        position = records[-1].physical_offset
    assert found == whole[::-1]
    assert len(d.store.index.before(d.store.confirmed_position, 100, 1)) == 1
    queue = d.store.index.queue_before("other", 0, 7, 3)
    assert [record.queue_offset for record in queue] == [6, 5, 4]
    assert d.store.index.queue_before("other", 0, 0) == []
    assert d.store.index.queue_before("nobody", 0, 5) == []


def test_reading_backwards_stops_at_damage_and_says_where(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    batch = d.append_and_wait(10)
    with (tmp_path / "store" / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(int(batch.starts[4]) + 50)
        file.write(b"X")
    records = d.store.index.before(d.store.confirmed_position)
    assert [record.queue_offset for record in records] == [9, 8, 7, 6, 5]
    with pytest.raises(CorruptRecordError, match=f"at offset {batch.starts[5]}"):
        d.store.index.before(int(batch.starts[5]))


def test_a_message_id_is_answered_whatever_it_names(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver(retention_segments=1, retention_interval_ms=1).open()
    store_id = d.store.store_id
    batches = [d.append_and_wait(300, body=bytes(3000)) for _ in range(3)]
    wait_for(lambda: d.store.first_position == batches[2].position)
    message = d.store.index.message
    at = batches[2].position + int(batches[2].starts[7])
    found = message(MessageId(store_id, at))
    assert found.place is MessagePlace.FOUND
    raw = bytes(batches[2].records[int(batches[2].starts[7]) :])
    assert found.record.queue_offset == decode_record(raw).queue_offset == 607
    for message_id, place, reason in (
        (MessageId(b"12345678", at), MessagePlace.OTHER_STORE, "3132333435363738"),
        (MessageId(store_id, 0), MessagePlace.GONE, f"begins at {batches[2].position}"),
        (MessageId(store_id, batches[2].end), MessagePlace.AHEAD, "ends at"),
        (MessageId(store_id, -1), MessagePlace.GONE, "begins at"),
        (MessageId(store_id, at + 1), MessagePlace.NO_RECORD, "not a record's start"),
    ):
        answer = message(message_id)
        assert (answer.place, answer.record) == (place, None)
        assert reason in answer.reason
    path = next((tmp_path / "store" / "commitlog").glob(f"*{batches[2].position}"))
    with path.open("r+b") as file:
        file.seek(at - batches[2].position + 100)
        file.write(b"X")
    d.store.close()
    d.open()
    message = d.store.index.message
    assert message(MessageId(store_id, at)).place is MessagePlace.CORRUPT


def test_a_blank_is_no_message(driver: MakeDriver) -> None:
    d = driver().open()
    first = d.append_and_wait(300, body=bytes(3000))
    d.append_and_wait(300, body=bytes(3000))
    assert d.store.index.message(MessageId(d.store.store_id, first.end)).place is MessagePlace.NO_RECORD


def test_no_position_inside_a_record_is_a_message_not_even_in_the_log_s_last(driver: MakeDriver) -> None:
    d = driver().open()
    batch = d.append_and_wait(3)
    starts = {batch.position + int(start) for start in batch.starts}
    for position in range(batch.position, batch.end):
        place = d.store.index.message(MessageId(d.store.store_id, position)).place
        assert place is (MessagePlace.FOUND if position in starts else MessagePlace.NO_RECORD)
