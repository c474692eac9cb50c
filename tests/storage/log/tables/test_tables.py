"""Tables in a store: the newest value by key, through restarts, losses and cuts of the log."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest
from any_disk import ANY_DISK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killed_program import said_until_killed
from small_disks import small_disk

from holdmq.config.model import StorageSection
from holdmq.errors import RecordError, StorageError, StoreFullError
from holdmq.files.disk import RealDisk
from holdmq.record.codec import encode_record
from storage.api.tables import END_OF_WALK, STOP, TAKE, Judged, KeyChange, RowChanged, TableSize
from storage.api.timer import DelayedRecord
from storage.log.store import LogStore, open_store
from storage.log.tables import files as table_files
from storage.log.tables import tables
from storage.log.tables.core.tables import encode_row, row_key

T = "%T"
MIB = 1 << 20


class Tabled:
    """A store with tables and its "event loop"."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.directory = directory
        values = {"data_dir": str(directory), "segment_size_bytes": MIB, "flush_interval_ms": 10}
        values |= {**ANY_DISK, **settings}
        self.settings = StorageSection.model_validate(values)
        self.errors: list[StorageError | None] = []
        self.end = 0
        self.open()

    def open(self) -> None:
        self.store: LogStore = open_store(
            self.settings, "b1", lambda _: 1, self.posted.put, is_table=lambda topic: topic.startswith("%T")
        )
        self.store.open()

    @property
    def tables(self) -> tables.LogTables:
        assert self.store.tables is not None
        return self.store.tables

    def done(self, batch: Any, error: StorageError | None) -> None:
        self.errors.append(error)
        self.end = batch.end

    def pump(self, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + 40
        while not holds():
            assert time.monotonic() < until
            try:
                self.posted.get(timeout=0.005)()
            except queue.Empty:
                continue

    def put(self, changes: list[tuple[str, bytes | None]], topic: str = T) -> None:
        """Change keys, and wait until the table shows it."""
        wanted = len(self.errors) + len(changes)
        for key, value in changes:
            if value is None:
                self.tables.delete(topic, key, self.done)
            else:
                self.tables.put(topic, key, value, self.done)
        self.pump(lambda: len(self.errors) == wanted)
        assert not any(self.errors)
        self.applied()

    def applied(self) -> None:
        reached: list[StorageError | None] = []
        self.tables.wait_applied(self.store.confirmed_position, reached.append)
        self.pump(lambda: bool(reached))
        assert reached == [None]

    def content(self, topic: str = T, prefix: str = "", page: int = 7) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        after: str | None = None
        while True:
            part = self.tables.scan(topic, prefix, after, page)
            assert not found.keys() & {row.key for row in part.rows}
            found.update((row.key, row.value) for row in part.rows)
            after = part.next_after
            if after is None:
                return found

    def reopen(self) -> None:
        self.store.close()
        self.open()
        self.applied()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Tabled]]:
    made: list[Tabled] = []

    def one(directory: Path | None = None, **settings: Any) -> Tabled:
        made.append(Tabled(directory or tmp_path / "store", **settings))
        return made[-1]

    yield one
    for each in made:
        each.store.close()


@pytest.fixture
def t(make: Callable[..., Tabled]) -> Tabled:
    return make()


def test_the_newest_value_counts_and_a_deleted_key_has_none(t: Tabled) -> None:
    t.put([("a", b"1"), ("b", b""), ("a", b"2"), ("c", b"3"), ("c", None)])
    row = t.tables.get(T, "a")
    assert row is not None
    assert (row.key, row.value) == ("a", b"2")
    first = row.version
    t.put([("a", b"4")])
    assert [r and r.value for r in t.tables.get_many(T, ["c", "a", "b"])] == [None, b"4", b""]
    row = t.tables.get(T, "a")
    assert row is not None
    assert row.version > first
    assert t.content() == {"a": b"4", "b": b""}
    assert t.tables.get("%T2", "a") is None


def test_many_rows_are_cut_where_their_values_exceed_the_bound_but_one_always_comes(t: Tabled) -> None:
    t.put([(key, bytes(100)) for key in "abc"])
    assert [row and row.key for row in t.tables.get_many(T, ["a", "x", "b", "c"], 220)] == ["a", None, "b"]
    assert len(t.tables.get_many(T, ["a", "b"], 1)) == 1


def test_a_row_s_record_is_found_by_the_id_of_who_put_it(t: Tabled) -> None:
    batch = t.tables.put(T, "a", b"1", t.done, 0, 0, "put-1")
    assert batch.position == 0
    t.pump(lambda: t.store.index.indexed_position == batch.end)
    (record,) = t.store.index.by_unique_id(T, "put-1").records
    assert (record.physical_offset, record.body) == (0, b"1")
    t.applied()
    assert t.content() == {"a": b"1"}


KEYS = st.one_of(st.text("ab/", min_size=1, max_size=4), st.sampled_from(["k" * 367 + c for c in "xyz"]))
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5)), max_size=25)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=4), KEYS)
def test_tables_are_what_a_dict_would_be(t: Tabled, rounds: list[tuple[Any, bool]], prefix: str) -> None:
    topic = f"%T{t.store.confirmed_position}"
    model: dict[str, bytes] = {}
    for changes, reopened in rounds:
        t.put(changes, topic)
        for key, value in changes:
            model.pop(key, None)
            if value is not None:
                model[key] = value
        if reopened:
            t.reopen()
        assert t.content(topic) == model
        assert t.content(topic, prefix, 2) == {k: v for k, v in model.items() if k.startswith(prefix)}
        for key, value in model.items():
            row = t.tables.get(topic, key)
            assert row is not None
            assert row.value == value


def test_pages_end_at_their_bounds(t: Tabled) -> None:
    t.put([(f"{i:03}", bytes(100)) for i in range(50)])
    page = t.tables.scan(T, "", None, 10)
    assert [row.key for row in page.rows] == [f"{i:03}" for i in range(10)]
    assert page.next_after == "009"
    assert len(t.tables.scan(T, "", "009", 1000, 350).rows) == 3
    assert len(t.tables.scan(T, "", "009", 1000, 1).rows) == 1
    assert t.tables.scan(T, "", "048").next_after is None
    assert t.tables.scan(T, "9") == ([], None)


def test_watchers_hear_of_their_keys_until_they_end(t: Tabled) -> None:
    heard: list[RowChanged] = []
    end = t.tables.watch(T, "a/", heard.extend)
    t.put([("a/1", b"x"), ("b", b"y"), ("a/1", None)])
    t.put([("a/2", b"z")], "%T2")
    t.pump(lambda: len(heard) == 2)
    assert [(change.key, change.value) for change in heard] == [(b"a/1", b"x"), (b"a/1", None)]
    end()
    t.put([("a/3", b"z")])
    assert len(heard) == 2


def test_changes_of_several_queues_are_one_batch(t: Tabled) -> None:
    changes = [KeyChange(q, f"k{q}", b"%d" % n) for n in range(3) for q in (5, 1, 3)]
    t.tables.change_many(T, [*changes, KeyChange(3, "k3", None)], t.done)
    t.pump(lambda: bool(t.errors))
    assert t.errors == [None]
    t.applied()
    assert t.content() == {"k5": b"2", "k1": b"2"}
    assert [t.store.bounds(T, q) for q in (1, 3, 5)] == [(0, 3), (0, 4), (0, 3)]


def test_only_tables_take_puts(t: Tabled) -> None:
    for topic in ("devices", "%Tx#tmp"):
        with pytest.raises(RecordError, match="no table"):
            t.tables.put(topic, "a", b"", t.done)


def test_the_database_grows_when_it_is_full(
    make: Callable[..., Tabled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files.TableFiles.__init__, "__defaults__", (65_536,))
    t = make()
    for first in range(0, 200, 20):
        t.put([(f"{i}", os.urandom(5000)) for i in range(first, first + 20)])
    assert t.store.numbers()["tables_map_growths_total"] >= 4
    assert len(t.content()) == 200
    t.reopen()
    assert len(t.content()) == 200


@pytest.mark.parametrize("lost", ["all", "current", "garbage", "snapshot"])
def test_lost_tables_are_built_again(t: Tabled, lost: str) -> None:
    t.put([(f"{i}", b"old") for i in range(50)])
    t.pump(lambda: t.tables.is_free(t.store.first_position + 100))
    t.put([(f"{i}", b"new") for i in range(40, 60)])
    before = t.content()
    t.store.close()
    directory = t.directory / "tables"
    if lost == "all":
        shutil.rmtree(directory)
    elif lost == "current":
        (directory / "current.mdb").unlink()
    elif lost == "garbage":
        (directory / "current.mdb").write_bytes(os.urandom(50_000))
    else:
        (directory / "snapshot.json").write_bytes(b"{")
    t.open()
    t.applied()
    assert t.content() == before


def test_a_snapshot_is_what_a_lost_table_starts_from(t: Tabled) -> None:
    t.put([(f"{i}", b"1") for i in range(20)])
    end = t.store.confirmed_position
    t.pump(lambda: t.tables.is_free(end))
    assert t.tables.kept_from >= end
    snapshot = next((t.directory / "tables").glob("snapshot.*.mdb"))
    t.put([("0", b"2"), ("1", None)])
    t.store.close()
    (t.directory / "tables" / "current.mdb").unlink()
    with lmdb.open(str(snapshot), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        # With its position, and the size of its one table.
        assert txn.stat()["entries"] == 20 + 3
    t.open()
    t.applied()
    numbers = t.store.numbers()
    assert numbers["tables_restores_total"] == 1
    assert numbers["tables_changes_total"] == 2
    assert t.content() == {"0": b"2", **{f"{i}": b"1" for i in range(2, 20)}}


def test_a_snapshot_is_made_once_while_nothing_changes(t: Tabled) -> None:
    t.put([("a", b"1")])
    t.pump(lambda: t.tables.is_free(t.store.confirmed_position))
    end = t.store.confirmed_position
    message = DelayedRecord(encode_record(b"devices", 0, b"x", b"", 1), 1 << 60)
    t.store.timer.schedule([message], t.done)
    t.pump(lambda: t.store.confirmed_position > end)
    t.pump(lambda: t.tables.is_free(t.store.confirmed_position))
    assert t.store.numbers()["tables_snapshots_total"] == 1
    t.put([("a", b"1")])
    t.pump(lambda: t.tables.is_free(t.store.confirmed_position))
    assert t.store.numbers()["tables_snapshots_total"] == 2
    assert len(list((t.directory / "tables").glob("snapshot.*.mdb"))) == 1


def test_who_waits_for_a_snapshot_is_told_once_it_is_made(t: Tabled, monkeypatch: pytest.MonkeyPatch) -> None:
    t.put([("a", b"1")])
    told: list[StorageError | None] = []
    t.store.keep_tables(told.append)
    t.pump(lambda: bool(told))
    assert told == [None]
    assert t.tables.kept_from >= t.store.confirmed_position
    t.store.keep_tables(told.append)
    t.pump(lambda: len(told) == 2)
    assert t.store.numbers()["tables_snapshots_total"] == 1, "what is there already is not made again"
    t.put([("a", b"2")])

    def fail(self: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(table_files.TableFiles, "snapshot", fail)
    t.store.keep_tables(told.append)
    t.pump(lambda: len(told) == 3)
    assert isinstance(told[2], StorageError)


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_tables_never_show_what_the_log_lost(t: Tabled, has_snapshot: bool, tmp_path: Path) -> None:
    t.put([("a", b"1"), ("b", b"1")])
    if has_snapshot:
        t.pump(lambda: t.tables.is_free(t.store.confirmed_position))
    kept = t.store.confirmed_position
    t.put([("a", b"2"), ("b", None), ("c", b"2")])
    t.store.close()
    # What a power loss may do under async flush: the log's end is gone, what LMDB synced is not.
    (t.directory / "clean").unlink()
    (t.directory / "checkpoint.json").unlink()
    (t.directory / "checkpoint.json.bak").rename(t.directory / "checkpoint.json")
    segment = t.directory / "commitlog" / f"{0:020}"
    raw = bytearray(segment.read_bytes())
    raw[kept:] = bytes(len(raw) - kept)
    segment.write_bytes(raw)
    shutil.rmtree(t.directory / "consumequeue")
    checkpoint = t.directory / "checkpoint.json"
    if f'"position":{kept}' not in checkpoint.read_text():
        checkpoint.write_text(first_checkpoint(t, tmp_path))
    t.open()
    assert t.store.confirmed_position == kept
    assert t.store.numbers()["tables_restores_total"] == 1
    t.applied()
    assert t.content() == {"a": b"1", "b": b"1"}
    t.put([("d", b"3")])
    t.reopen()
    assert t.content() == {"a": b"1", "b": b"1", "d": b"3"}


def first_checkpoint(t: Tabled, tmp_path: Path) -> str:
    """The checkpoint of an empty store."""
    empty = Tabled(tmp_path / "empty")
    text = (tmp_path / "empty" / "checkpoint.json").read_text()
    empty.store.close()
    return text


def test_a_failing_database_makes_the_store_read_only(t: Tabled, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise lmdb.PanicError("mdb_txn_commit")

    monkeypatch.setattr(table_files.TableFiles, "_apply", broken)
    t.tables.put(T, "a", b"1", t.done)
    reached: list[StorageError | None] = []
    t.tables.wait_applied(1 << 40, reached.append)
    t.pump(lambda: bool(reached))
    assert "LMDB" in str(reached[0])
    t.pump(lambda: not t.store.state().ok)
    assert "check the disk" in t.store.state().reason


def test_a_full_disk_under_the_database_is_waited_for(t: Tabled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RETRY_S", 0.01)
    monkeypatch.setattr(tables, "WAIT_MAX_S", 0.01)
    whole = table_files.TableFiles._apply

    def full(*_args: Any) -> None:
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    monkeypatch.setattr(table_files.TableFiles, "_apply", full)
    t.tables.put(T, "a", b"1", t.done)
    t.pump(lambda: t.store.numbers()["tables_failures_total"] > 2)
    assert t.errors == [None]
    assert t.tables.get(T, "a") is None
    monkeypatch.setattr(table_files.TableFiles, "_apply", whole)
    t.applied()
    assert t.content() == {"a": b"1"}


def test_the_write_that_fills_a_disk_is_waited_for_as_well(tmp_path: Path) -> None:
    """It is a short write, which LMDB calls an input/output error."""
    rows = [RowChanged(T, b"k%d" % number, b"v" * 4000, 1) for number in range(200)]
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        files = table_files.TableFiles(RealDisk(), disk.path / "tables")
        files.open()
        files.apply(rows[:1], table_files.Applied(1, 1))
        for left in (0, 40_000, 100_000):
            disk.fill(left)
            with pytest.raises(StoreFullError, match="LMDB"):
                files.apply(rows, table_files.Applied(2, 1))
            disk.give_back()
        files.apply(rows, table_files.Applied(2, 1))
        found = files.get_many(T, [row.key for row in rows])
        assert [row and row.value for row in found] == [b"v" * 4000] * len(rows)
        files.close()


def test_closed_tables_say_so(t: Tabled) -> None:
    t.store.close()
    with pytest.raises(StorageError, match="closed"):
        t.tables.get(T, "a")


def test_a_store_without_tables_has_none(driver: Callable[..., Any], tmp_path: Path) -> None:
    d = driver().open()
    assert d.store.tables is None
    assert not (tmp_path / "store" / "tables").exists()


CHILD: Final = """
import json, queue, random, sys, time
from holdmq.config.model import StorageSection
from storage.log.tables import tables
from storage.log.store import open_store

tables.SNAPSHOT_BYTES = 100_000
directory, seed = sys.argv[1], int(sys.argv[2])
rnd = random.Random(seed)
posted = queue.SimpleQueue()
settings = StorageSection.model_validate(
    {"data_dir": directory, "segment_size_bytes": 1 << 20, "flush_interval_ms": 10, **json.loads(sys.argv[3])}
)
store = open_store(settings, "b1", lambda _: 1, posted.put, is_table=lambda topic: topic == "%T")
store.open()


def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()


def done(_batch, error):
    assert error is None, error
    say("answered")


serial = 0
while True:
    for _ in range(rnd.randrange(1, 20)):
        serial += 1
        key = str(rnd.randrange(200))
        if rnd.random() < 0.2:
            say(f"{key} -")
            store.tables.delete("%T", key, done)
        else:
            say(f"{key} {seed}-{serial}")
            store.tables.put("%T", key, f"{seed}-{serial}".encode(), done)
    until = time.monotonic() + 0.002
    while time.monotonic() < until:
        try:
            posted.get(timeout=0.001)()
        except queue.Empty:
            pass
"""


@pytest.mark.timeout(900)
def test_tables_are_exact_across_kills(make: Callable[..., Tabled], tmp_path: Path) -> None:
    directory = tmp_path / "store"
    rnd = random.Random(7)
    # What each key may show: what was answered last, or what was said later and may be stored or not.
    possible: dict[str, list[str]] = {}
    total = 0
    for seed in range(4):
        # Its changes in their order as they are made, and "answered" for each that was.
        arguments = [str(directory), str(seed), json.dumps(ANY_DISK)]
        lines = said_until_killed(CHILD, arguments, 200, rnd.uniform(0.0, 0.4))
        made = [line.split(" ") for line in lines if line != "answered"]
        answered = len(lines) - len(made)
        total += answered
        for place, (key, value) in enumerate(made):
            if place < answered:
                possible[key] = [value]
            else:
                possible.setdefault(key, ["-"]).append(value)
    t = make(directory)
    t.applied()
    shown = t.content()
    assert total > 100
    assert shown.keys() <= possible.keys()
    for key, values in possible.items():
        assert shown.get(key, b"-").decode() in values
    t.store.close()
    shutil.rmtree(directory / "tables")
    t.open()
    t.applied()
    assert t.content() == shown


def walked(
    t: Tabled, judge: Callable[[bytes], Judged], begin: bytes = b"", after: bytes | None = None
) -> list[tuple[str, bytes]]:
    with contextlib.closing(t.tables.walk(T, begin, after, judge)) as walk:
        return [(row.key.decode(), bytes(row.value)) for row in walk]


def test_a_walk_gives_what_is_taken_in_the_order_of_the_keys(t: Tabled) -> None:
    t.put([(f"{n}", b"%d" % n) for n in range(9)])
    t.put([("0", b"other table")], "%T2")
    assert [key for key, _ in walked(t, lambda _: TAKE)] == list("012345678")
    assert walked(t, lambda key: TAKE if key in b"357" else b"") == [("3", b"3"), ("5", b"5"), ("7", b"7")]
    assert [key for key, _ in walked(t, lambda _: TAKE, b"4")] == list("45678")
    assert [key for key, _ in walked(t, lambda _: TAKE, b"4", b"6")] == list("78")
    assert [key for key, _ in walked(t, lambda key: END_OF_WALK if key == b"2" else TAKE)] == list("01")


def test_a_walk_seeks_where_it_is_told_to_and_never_back(t: Tabled) -> None:
    t.put([(f"{n:03}", b"") for n in range(100)])
    met: list[bytes] = []

    def judge(key: bytes) -> Judged:
        met.append(key)
        return {b"000": b"050", b"050": b"020", b"051": b"0985"}.get(key, TAKE)

    assert [key for key, _ in walked(t, judge)] == ["099"]
    assert met == [b"000", b"050", b"051", b"099"]


def test_among_long_keys_that_begin_alike_a_walk_goes_one_by_one(t: Tabled) -> None:
    same = "k" * 400
    keys = [f"{same}{n}" for n in range(20)]
    t.put([(key, b"") for key in [*keys, "j", "l"]])
    wanted = set(keys[3:5])

    def judge(key: bytes) -> Judged:
        # To seek or to end at one of them would miss those that lie behind it by chance.
        return TAKE if key.decode() in wanted else b"kz" if key < keys[9].encode() else END_OF_WALK

    assert {key for key, _ in walked(t, judge, b"k")} == wanted
    assert len(walked(t, lambda key: STOP if len(key) > 400 else TAKE)) == 1
    first = next(iter(walked(t, lambda _: TAKE, b"k")))[0]
    assert len(walked(t, lambda _: TAKE, b"k", first.encode())) == 20


def test_a_walk_that_is_not_read_to_its_end_keeps_nobody_waiting(t: Tabled) -> None:
    t.put([(f"{n}", b"x" * 100) for n in range(10)])
    with contextlib.closing(t.tables.walk(T, b"", None, lambda _: TAKE)) as walk:
        next(walk)
    before = t.store.numbers()["tables_map_growths_total"]
    t.tables._files.map_bytes = t.tables._files._env.info()["map_size"]  # type: ignore[union-attr]
    t.put([(f"big{n}", os.urandom(MIB // 2)) for n in range(160)])
    assert t.store.numbers()["tables_map_growths_total"] > before


def size_by_hand(content: dict[str, bytes], topic: str = T) -> TableSize:
    rows = [
        (row_key(topic, key.encode()), encode_row(key.encode(), value, 1)) for key, value in content.items()
    ]
    return TableSize(len(rows), sum(len(key) + len(row) for key, row in rows))


def test_a_tables_size_is_known_through_changes_restarts_and_losses(t: Tabled) -> None:
    rng = random.Random(3)
    assert t.tables.size_of(T) == TableSize(0, 0)
    for turn in range(4):
        keys = [f"{rng.randrange(30)}" for _ in range(40)]
        t.put([(key, None if rng.random() < 0.3 else rng.randbytes(rng.randrange(50))) for key in keys])
        assert t.tables.size_of(T) == size_by_hand(t.content())
        if turn == 1:
            t.reopen()
        if turn == 2:
            t.store.close()
            shutil.rmtree(t.directory / "tables")
            t.open()
            t.applied()
        assert t.tables.size_of(T) == size_by_hand(t.content())


def test_a_database_without_sizes_is_counted_when_it_is_opened(t: Tabled) -> None:
    t.put([(f"{n}", b"abc") for n in range(5)])
    t.put([("x", b"abc")], "%T2")
    sizes = [t.tables.size_of(topic) for topic in (T, "%T2")]
    t.store.close()
    with (
        lmdb.open(str(t.directory / "tables" / "current.mdb"), subdir=False) as env,
        env.begin(write=True) as txn,
    ):
        for key in (b"\0sizes", b"\0sizes%T", b"\0sizes%T2"):
            assert txn.delete(key)
    t.open()
    assert [t.tables.size_of(topic) for topic in (T, "%T2")] == sizes
    t.put([("y", b"abc")], "%T2")
    t.reopen()
    assert t.tables.size_of(T) == sizes[0]
    assert t.tables.size_of("%T2").rows == 2
