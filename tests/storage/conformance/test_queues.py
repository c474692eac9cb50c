"""What every engine promises of queues: `storage.api.queues` and `storage.api.batches`."""

from __future__ import annotations

from typing import Any

import pytest

from holdmq.errors import StorageError
from holdmq.record.codec import decode_record
from storage.api.batches import Batch
from storage.api.queues import HashFilter, ReadStatus


def test_records_are_read_in_the_order_of_their_appends(tested: Any) -> None:
    first, second = tested.write(b"a", b"b"), tested.write(b"c")
    assert [first.runs[0].base_offset, second.runs[0].base_offset] == [0, 2]
    assert tested.store.bounds("devices", 0) == (0, 3)
    assert tested.bodies() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("topic", ["devices", "news#tmp"])
def test_a_run_is_told_how_many_bytes_it_has(tested: Any, topic: str) -> None:
    written = tested.write(b"a", b"bcd", topic=topic)
    assert written.runs[0].size_bytes == len(written.records) == written.sizes.sum()


def test_queues_have_offsets_of_their_own(tested: Any) -> None:
    tested.write(b"a", queue_id=0)
    other = tested.write(b"b", queue_id=1)
    assert other.runs[0].base_offset == 0
    assert (tested.bodies(queue_id=0), tested.bodies(queue_id=1)) == ([b"a"], [b"b"])


def test_records_bear_their_queue_offset_and_the_store_that_stamped_them(tested: Any) -> None:
    tested.write(b"a", b"b")
    read = tested.read(1)
    record = decode_record(read.parts[0])
    assert (record.queue_offset, record.body) == (1, b"b")
    assert len(tested.store.store_id) == 8


def test_nothing_is_visible_before_confirmation_and_subscribers_hear_before_the_appender(tested: Any) -> None:
    heard: list[str] = []
    tested.store.subscribe(lambda batches: heard.extend("visible" for _ in batches))
    tested.store.append(tested.batch(b"a"), lambda _batch, error: heard.append(f"done {error}"))
    assert tested.store.bounds("devices", 0) == (0, 0)
    tested.pump(lambda: len(heard) == 2)
    assert heard == ["visible", "done None"]
    assert tested.store.bounds("devices", 0) == (0, 1)


def test_batches_are_confirmed_in_order_and_the_queue_is_being_written_until_then(tested: Any) -> None:
    made = [tested.batch(b"%d" % i) for i in range(5)]
    visible: list[Batch] = []
    answered: list[Batch] = []

    def done(batch: Batch, error: StorageError | None) -> None:
        assert error is None
        assert batch in visible
        answered.append(batch)

    tested.store.subscribe(visible.extend)
    for batch in made:
        tested.store.append(batch, done)
    assert tested.store.is_being_written("devices", 0)
    tested.pump(lambda: len(answered) == 5)
    assert answered == visible == made
    assert not tested.store.is_being_written("devices", 0)


def test_a_queue_never_written_is_empty(tested: Any) -> None:
    assert tested.store.bounds("unknown", 3) == (0, 0)
    read = tested.read(0, "unknown", 3)
    assert (read.status, read.next_offset, read.count) == (ReadStatus.AT_END, 0, 0)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_read_says_where_it_stands(tested: Any, is_reopened: bool) -> None:
    tested.write(b"a", b"b")
    if is_reopened:
        tested.reopen()
    at_end, ahead = tested.read(2), tested.read(9)
    assert (at_end.status, at_end.next_offset) == (ReadStatus.AT_END, 2)
    assert (ahead.status, ahead.next_offset) == (ReadStatus.AHEAD, 2)
    assert (ahead.first_offset, ahead.end_offset) == (0, 2)


def test_a_read_is_bounded_and_gives_at_least_one_record(tested: Any) -> None:
    tested.write(*[b"x" * 100] * 10)
    assert tested.read(0, max_bytes=1).count == 1
    three = tested.read(4, max_count=3)
    assert (three.count, three.next_offset) == (3, 7)
    assert three.size_bytes == sum(map(len, three.parts))


def test_a_filter_passes_its_tags_and_reads_past_the_others(tested: Any) -> None:
    wanted = tested.write(b"a", tag="42/t").runs[0].hashes
    tested.write(b"b", tag="7/t")
    tested.write(b"c")
    exact = int(wanted[0])
    assert tested.bodies(wanted=HashFilter([exact])) == [b"a"]
    assert tested.bodies(wanted=HashFilter(prefixes=[exact >> 32])) == [b"a"]
    assert tested.bodies(wanted=HashFilter([0])) == [b"c"]
    assert tested.bodies(wanted=HashFilter([exact ^ 1])) == []


def test_memory_and_disk_give_equal_bytes(tested: Any) -> None:
    tested.write(b"a", b"b", b"c")
    from_memory = b"".join(tested.read(0).parts)
    tested.reopen()
    assert b"".join(tested.store.read_queue_cold("devices", 0, 0, 0, 1 << 20, 10).parts) == from_memory


def test_records_and_the_store_s_id_outlive_it(tested: Any) -> None:
    tested.write(b"a", b"b")
    store_id, epoch = tested.store.store_id, tested.store.epoch
    tested.reopen()
    assert tested.bodies() == [b"a", b"b"]
    assert (tested.store.store_id, tested.store.epoch) == (store_id, epoch)
    assert tested.write(b"c").runs[0].base_offset == 2


def test_a_closed_store_refuses_and_says_so(tested: Any) -> None:
    tested.store.close()
    refusal = tested.refusal_of(tested.batch(b"a"))
    assert isinstance(refusal, StorageError)
    assert "closed" in str(refusal)
    assert not tested.store.state().ok


def test_a_deleted_queue_is_empty_and_goes_on_at_its_next_offset(tested: Any) -> None:
    tested.write(b"a", b"b")
    answers: list[StorageError | None] = []
    tested.store.delete_queue("devices", 0, answers.append)
    tested.pump(lambda: bool(answers))
    assert answers == [None]
    assert tested.bodies() == []
    assert tested.write(b"c").runs[0].base_offset == 2
    behind = tested.read(0)
    assert (behind.status, behind.next_offset) == (ReadStatus.BEHIND, 2)
    tested.reopen()
    assert tested.bodies() == [b"c"]


def test_temporary_topics_are_read_and_forgotten(tested: Any) -> None:
    batch = tested.write(b"a", topic="news#tmp")
    assert batch.position == -1
    assert tested.bodies("news#tmp") == [b"a"]
    tested.store.temporary.remove("news#tmp")
    assert tested.bodies("news#tmp") == []
    tested.store.temporary.add("by-kind")
    assert tested.write(b"b", topic="by-kind").position == -1
