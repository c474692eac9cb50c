"""Who reads a topic: subscribers until they leave, those that ask as long as they go on asking."""

from __future__ import annotations

import pytest

from broker.readers.core.table import EXPIRED_PER_TURN, ReaderTable, SubscriberKey
from holdmq.wire.group_headers import SHARED
from holdmq.wire.reader_headers import BULK, PULL

WORKERS = SubscriberKey("one", "workers", 1)


@pytest.fixture
def table() -> ReaderTable[str]:
    return ReaderTable(silent_s=10.0)


def kinds(table: ReaderTable[str], topic: str) -> list[tuple[str, str, str]]:
    return [(reader.owner, reader.kind, reader.group) for reader in table.of(topic)]


def test_a_subscriber_reads_however_silent_it_is(table: ReaderTable[str]) -> None:
    assert table.subscribe(WORKERS, SHARED, ["a", "b"], 1.0) == []
    assert table.expire(1e9) == []
    assert kinds(table, "a") == kinds(table, "b") == [("one", SHARED, "workers")]
    assert sorted(table.unsubscribe(WORKERS)) == ["a", "b"]
    assert not table.is_read("a")
    assert table.unsubscribe(WORKERS) == []


def test_one_that_asks_is_a_reader_until_it_is_silent_for_too_long(table: ReaderTable[str]) -> None:
    table.asked("spark", BULK, "", "a", 1.0)
    table.asked("spark", BULK, "", "b", 1.0)
    table.asked("spark", BULK, "", "a", 6.0)
    assert table.next_deadline() == 11.0
    assert table.expire(11.0) == ["b"]
    assert (table.silenced, table.next_deadline()) == (1, 16.0)
    assert table.expire(15.9) == []
    assert table.expire(16.0) == ["a"]
    assert table.next_deadline() is None
    assert table.asking == 0


def test_a_topic_is_unread_when_the_last_of_all_kinds_has_gone(table: ReaderTable[str]) -> None:
    table.subscribe(WORKERS, SHARED, ["a"], 1.0)
    table.asked("two", PULL, "", "a", 2.0)
    assert kinds(table, "a") == [("one", SHARED, "workers"), ("two", PULL, "")]
    assert table.close("one") == []
    assert table.close("two") == ["a"]
    assert table.close("two") == []


def test_a_changed_subscription_leaves_what_it_names_no_more(table: ReaderTable[str]) -> None:
    table.subscribe(WORKERS, SHARED, ["a", "b"], 1.0)
    assert table.subscribe(WORKERS, SHARED, ["b", "c"], 5.0) == ["a"]
    (reader,) = table.of("b")
    assert (reader.since_at, reader.seen_at) == (1.0, 5.0)
    assert table.seen(WORKERS, 7.0)
    assert reader.seen_at == 7.0
    assert not table.seen(SubscriberKey("one", "workers", 2), 7.0)


def test_two_members_of_a_group_on_one_connection_are_two_readers(table: ReaderTable[str]) -> None:
    table.subscribe(WORKERS, SHARED, ["a"], 1.0)
    table.subscribe(WORKERS._replace(member_id=2), SHARED, ["a"], 1.0)
    assert table.unsubscribe(WORKERS) == []
    (left,) = table.of("a")
    assert (left.owner, left.topics) == ("one", frozenset({"a"}))
    assert list(table.asked_by("one")) == []
    assert table.close("one") == ["a"]


def test_with_a_topic_go_those_that_asked_and_subscribers_wait_for_its_name(table: ReaderTable[str]) -> None:
    table.subscribe(WORKERS, SHARED, ["a"], 1.0)
    table.asked("two", PULL, "", "a", 1.0)
    table.forget("a")
    assert kinds(table, "a") == [("one", SHARED, "workers")]
    assert table.asking == 0
    table.forget("never there")


def test_readers_past_the_bound_count_for_their_topic_without_a_name() -> None:
    table: ReaderTable[str] = ReaderTable(10.0, asking_max=1)
    table.asked("one", PULL, "", "a", 1.0)
    table.asked("two", PULL, "", "b", 2.0)
    assert (table.asking, table.unnamed, table.of("b")) == (1, 1, [])
    assert table.is_read("b")
    assert table.has_others("b")
    assert table.close("two") == []
    assert table.expire(11.5) == ["a"]
    assert table.next_deadline() == 12.0
    assert table.expire(12.0) == ["b"]
    table.asked("two", PULL, "", "b", 13.0)
    assert kinds(table, "b") == [("two", PULL, "")]


def test_one_expire_ends_no_more_than_its_bound() -> None:
    table: ReaderTable[str] = ReaderTable(10.0)
    for i in range(EXPIRED_PER_TURN + 1):
        table.asked("one", PULL, "", f"t{i}", 0.0)
    assert len(table.expire(10.0)) == EXPIRED_PER_TURN
    assert table.next_deadline() == 10.0
    assert table.expire(10.0) == [f"t{EXPIRED_PER_TURN}"]
