"""What every engine promises beside its queues: condition, index, timer, tables, retention, log order."""

from __future__ import annotations

from typing import Any

import pytest

from holdmq.errors import RecordError, StorageError, UsageError
from holdmq.message import MessageId
from holdmq.record.codec import encode_record
from storage.api.index import MessagePlace
from storage.api.tables import KEY_BYTES_MAX, KeyChange, VersionedRow
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
