"""What every engine promises beside its queues: condition, index, timer, tables, retention, log order."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest
import xxhash

from holdmq.errors import RecordError, StorageError, UsageError
from holdmq.message import MessageId
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.index import MessagePlace
from storage.api.tables import END_OF_WALK, KEY_BYTES_MAX, TAKE, Judged, KeyChange, VersionedRow
from storage.api.timer import DelayedRecord

TABLE = "%T"
MINUTE = 60_000


def delayed(body: bytes, due_ms: int) -> DelayedRecord:
    return DelayedRecord(encode_record(b"devices", 0, body, b"", 5), due_ms)


def changed(tested: Any, *changes: tuple[str, bytes | None]) -> None:
    """Change keys by one batch, and wait until the table shows it."""
    answers: list[StorageError | None] = []
    batch = tested.store.tables.change_many(
        TABLE, [KeyChange(0, key, value) for key, value in changes], lambda _b, error: answers.append(error)
    )
    tested.pump(lambda: bool(answers))
    assert answers == [None]
    reached: list[StorageError | None] = []
    tested.store.tables.wait_applied(batch.end, reached.append)
    tested.pump(lambda: bool(reached))
    assert reached == [None]


def test_an_open_store_takes_records_and_nothing_waits(tested: Any) -> None:
    assert tested.store.state().ok
    tested.write(b"a")
    assert tested.store.backlog() == (0, 0)
    assert all(isinstance(value, int | float) for value in tested.store.numbers().values())


def test_messages_are_found_by_key_newest_first_and_by_unique_id(tested: Any) -> None:
    tested.write(b"a", KEYS="k")
    last = tested.write(b"b", KEYS="k", UNIQ_KEY="u")
    index = tested.store.index
    tested.pump(lambda: index.indexed_position >= last.end)
    matches = index.by_key("devices", "k", max_count=10)
    assert ([record.body for record in matches.records], matches.is_complete) == ([b"b", b"a"], True)
    one = index.by_key("devices", "k", max_count=1)
    assert ([record.body for record in one.records], one.is_complete) == ([b"b"], False)
    assert [record.body for record in index.by_unique_id("devices", "u").records] == [b"b"]
    assert index.by_key("devices", "u").records == index.by_key("other", "k").records == []


def test_every_message_of_a_producer_that_counts_is_found_by_its_unique_id(tested: Any) -> None:
    """Ids that are neighbours' may share an entry of an index: 300 in batches, with others' between them."""
    numbers = range(300)
    last = None
    for first in numbers[::50]:
        records = [
            tested.batch(b"%d" % number, UNIQ_KEY=f"00000000000000ab-{number:010x}")
            for number in numbers[first : first + 50]
        ]
        records.insert(25, tested.batch(b"x" * 3000, UNIQ_KEY="another"))
        raw = b"".join(bytes(each.records) for each in records)
        sizes = np.array([len(each.records) for each in records], np.int64)
        last = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", 0, len(sizes), 1)])
        assert tested.refusal_of(last) is None
    assert last is not None
    twice = tested.write(b"again", UNIQ_KEY=f"00000000000000ab-{7:010x}")
    index = tested.store.index
    tested.pump(lambda: index.indexed_position >= twice.end)
    for number in numbers:
        found = index.by_unique_id("devices", f"00000000000000ab-{number:010x}")
        wanted = [b"again"] * (number == 7) + [b"%d" % number]
        assert ([record.body for record in found.records], found.is_complete) == (wanted, True)
    one = index.by_unique_id("devices", f"00000000000000ab-{7:010x}", max_count=1)
    assert [record.body for record in one.records] == [b"again"]
    older = index.by_unique_id("devices", f"00000000000000ab-{7:010x}", before=twice.position)
    assert [record.body for record in older.records] == [b"7"]
    assert index.by_unique_id("devices", f"00000000000000ab-{300:010x}").records == []
    assert len(index.by_unique_id("devices", "another").records) == 6


def test_offsets_are_found_by_time_and_records_backwards(tested: Any) -> None:
    begin_ms = tested.clock_ms
    for body in (b"a", b"b", b"c"):
        tested.write(body)
        tested.clock_ms += 1000
    index = tested.store.index
    assert [index.offset_at("devices", 0, begin_ms + ms) for ms in (-1, 0, 1, 1000, 2001)] == [0, 0, 1, 1, 3]
    assert [record.body for record in index.queue_before("devices", 0, 2, 10)] == [b"b", b"a"]


def test_a_message_id_names_a_message_or_says_why_not(tested: Any) -> None:
    batch = tested.write(b"a")
    index, store_id = tested.store.index, tested.store.store_id
    found = index.message(MessageId(store_id, batch.position))
    assert (found.place, found.record.body) == (MessagePlace.FOUND, b"a")
    ahead = index.message(MessageId(store_id, batch.end + 4096))
    assert (ahead.place, ahead.record) == (MessagePlace.AHEAD, None)
    assert ahead.reason
    assert index.message(MessageId(b"elsewher", 0)).place is MessagePlace.OTHER_STORE


def test_delayed_messages_appear_once_at_their_time_over_a_restart(tested: Any) -> None:
    answers: list[StorageError | None] = []
    due = [delayed(b"past", tested.clock_ms - 1), delayed(b"later", tested.clock_ms + MINUTE)]
    tested.store.timer.schedule(due, lambda _batch, error: answers.append(error))
    tested.pump(lambda: bool(answers))
    assert answers == [None]
    tested.pump(lambda: tested.store.bounds("devices", 0)[1] == 1)
    assert tested.bodies() == [b"past"]
    tested.clock_ms += 2 * MINUTE
    tested.reopen()
    tested.pump(lambda: tested.store.bounds("devices", 0)[1] == 2)
    assert tested.bodies() == [b"past", b"later"]


@pytest.mark.parametrize("due_ms", [-1, 1 << 62])
def test_a_due_time_that_is_none_is_refused(tested: Any, due_ms: int) -> None:
    with pytest.raises(RecordError, match="due time"):
        tested.store.timer.schedule([delayed(b"a", due_ms)], lambda _batch, _error: None)


def test_what_is_due_at_one_moment_comes_in_the_order_in_which_it_was_stored(tested: Any) -> None:
    due_ms = tested.clock_ms + MINUTE
    answers: list[StorageError | None] = []
    wanted = [b"%d" % i for i in range(120)]
    waiting = [delayed(body, due_ms) for body in wanted]
    tested.store.timer.schedule(waiting, lambda _batch, error: answers.append(error))
    tested.pump(lambda: answers == [None])
    tested.pump(lambda: tested.store.numbers()["timer_pending"] == 120)
    tested.reopen()
    tested.pump(lambda: tested.store.numbers()["timer_pending"] == 120)
    tested.clock_ms = due_ms
    tested.store.timer.wake()
    tested.pump(lambda: tested.store.bounds("devices", 0)[1] == 120)
    assert tested.bodies() == wanted
    tested.pump(lambda: tested.store.numbers()["timer_pending"] == 0)


def test_a_table_has_the_newest_value_and_versions_rise(tested: Any) -> None:
    changed(tested, ("a", b"1"), ("b", b"1"))
    tables = tested.store.tables
    (before,) = tables.get_many(TABLE, ["a"])
    changed(tested, ("a", b"2"), ("b", None))
    row, gone = tables.get_many(TABLE, ["a", "b"])
    assert (row.value, gone) == (b"2", None)
    assert row.version > before.version
    assert tables.size_of(TABLE).rows == 1
    tested.reopen()
    assert tested.store.tables.get_many(TABLE, ["a"]) == [VersionedRow("a", b"2", row.version)]


def test_a_scan_is_in_the_order_of_keys_and_paged(tested: Any) -> None:
    changed(tested, *[(key, b"v") for key in ("p/b", "q", "p/a", "p/c")])
    tables = tested.store.tables
    page = tables.scan(TABLE, "p/", max_count=2)
    assert [row.key for row in page.rows] == ["p/a", "p/b"]
    rest = tables.scan(TABLE, "p/", page.next_after, max_count=2)
    assert ([row.key for row in rest.rows], rest.next_after) == (["p/c"], None)


def test_a_watch_hears_changes_of_its_prefix_until_it_ends(tested: Any) -> None:
    heard: list[bytes] = []
    end = tested.store.tables.watch(TABLE, "p/", lambda rows: heard.extend(row.key for row in rows))
    changed(tested, ("p/a", b"1"), ("q", b"1"))
    tested.pump(lambda: heard == [b"p/a"])
    end()
    changed(tested, ("p/b", b"1"))
    assert heard == [b"p/a"]


@pytest.mark.parametrize(
    ("topic", "key"), [(TABLE, ""), (TABLE, "k" * (KEY_BYTES_MAX + 1)), ("devices", "k")]
)
def test_what_is_no_row_is_refused(tested: Any, topic: str, key: str) -> None:
    with pytest.raises(RecordError):
        tested.store.tables.put(topic, key, b"", lambda _batch, _error: None)


def test_a_topic_is_not_kept_longer_than_the_log(tested: Any) -> None:
    tested.store.retention.set_topic_age("devices", MINUTE)
    tested.store.retention.set_topic_age("devices", None)
    with pytest.raises(UsageError):
        tested.store.retention.set_topic_age("devices", 1 << 60)


def test_an_engine_with_log_order_reads_all_queues_in_it(tested: Any) -> None:
    order = tested.store.log_order
    if order is None:
        return
    begin = order.confirmed_position
    tested.write(b"a", queue_id=0)
    last = tested.write(b"b", queue_id=1)
    assert order.confirmed_position == last.end
    assert order.synced_position <= order.confirmed_position
    runs = [(run.queue_id, run.base_offset) for batch in order.read_log(begin, 1 << 20) for run in batch.runs]
    assert runs == [(0, 0), (1, 0)]
    assert order.tail(last.end) == order.read_log(last.end, 1) == []
    assert order.epoch_limit(0) is None


def walked(tested: Any, begin: bytes, after: bytes | None, most: int) -> tuple[list[bytes], bytes]:
    """The keys that a walk gives until there are `most`, and the last one that it had judged by then."""
    judged = [after or b""]

    def judge(key: bytes) -> Judged:
        judged.append(key)
        return TAKE

    with closing(tested.store.tables.walk(TABLE, begin, after, judge)) as walk:
        return [row.key for row in islice(walk, most)], judged[-1]


@pytest.mark.parametrize("most", [1, 7, 40, 300])
def test_who_ends_a_walk_goes_on_behind_the_last_key_that_it_judged(tested: Any, most: int) -> None:
    keys = [f"p/{i:03}" for i in range(300)]
    changed(tested, *((key, b"v") for key in keys))
    found: list[bytes] = []
    last: bytes | None = None
    while True:
        page, last = walked(tested, b"p/", last, most)
        if not page:
            break
        assert last == page[-1]
        found += page
    assert found == [key.encode() for key in keys]


def test_a_walk_goes_on_where_the_judge_says(tested: Any) -> None:
    keys = [f"{letter}/{i:02}" for letter in "abc" for i in range(80)]
    changed(tested, *((key, key.encode()) for key in keys))
    seen: list[bytes] = []

    def judge(key: bytes) -> Judged:
        seen.append(key)
        if key.startswith(b"a"):
            return b"a/70" if key == b"a/03" else b""
        if key.startswith(b"b"):
            return b"c/10"
        return END_OF_WALK if key == b"c/75" else TAKE

    found = [(row.key, bytes(row.value)) for row in tested.store.tables.walk(TABLE, b"", None, judge)]
    wanted = [b"c/%02d" % i for i in range(10, 75)]
    assert found == [(key, key) for key in wanted]
    jumped = [b"a/%02d" % i for i in (*range(4), *range(70, 80))]
    assert seen == [*jumped, b"b/00", *wanted, b"c/75"]


def test_long_keys_are_in_the_order_of_their_first_bytes_and_their_digests(tested: Any) -> None:
    """As the wire promises (`holdmq.wire.table_headers`): clients merge the pages of several brokers."""
    short = [f"p/{i}" for i in range(5)]
    long = ["p/" + "x" * 365 + f"{i}" for i in range(40)]
    changed(tested, *((key, b"v") for key in (*long, *short, "p/" + "x" * 365, "p/y", "q")))
    digests = sorted(long, key=lambda key: xxhash.xxh3_128_digest(key.encode()))
    wanted = [*short, "p/" + "x" * 365, *digests, "p/y"]
    for count in (1, 3, 1000):
        found: list[str] = []
        after: str | None = None
        while True:
            page = tested.store.tables.scan(TABLE, "p/", after, max_count=count)
            found += [row.key for row in page.rows]
            after = page.next_after
            if after is None:
                break
        assert found == wanted
    exact = tested.store.tables.scan(TABLE, long[7])
    assert [row.key for row in exact.rows] == [long[7]]
    changed(tested, *((key, None) for key in long))
    rest = tested.store.tables.scan(TABLE, "p/")
    assert [row.key for row in rest.rows] == [*short, "p/" + "x" * 365, "p/y"]
