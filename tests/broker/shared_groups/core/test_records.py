from __future__ import annotations

import msgpack
import pytest

from broker.shared_groups.core.acknowledged import bits
from broker.shared_groups.core.queue import QueueKey, SharedQueue
from broker.shared_groups.core.records import ENTRY_NUMBERS_MAX, ProgressNews, RestoredShared
from holdmq.errors import RecordError

KEY = QueueKey("g", "t", 0)


def restored(*bodies: bytes) -> list[SharedQueue]:
    found = RestoredShared()
    for body in bodies:
        found.apply_body(body)
    return found.queues(65_536)


def test_what_was_written_is_put_together_again() -> None:
    queue = SharedQueue(KEY, 100)
    news = ProgressNews()
    news.began(queue)
    news.acknowledged(queue, 102, 0b1011)
    news.attempted(queue, 101, 0b1, 2)
    (body,) = news.bodies()
    (again,) = restored(body, body)
    assert (again.key, again.floor, again.next_offset) == (KEY, 100, 106)
    assert again.acknowledged.ranges() == [(102, 2), (105, 1)]
    assert sorted(again.waiting) == [(100, 1, 0), (101, 1, 2), (104, 1, 0)]


def test_a_group_that_was_forgotten_begins_anew() -> None:
    queue = SharedQueue(KEY, 100)
    other = SharedQueue(QueueKey("other", "t", 0), 7)
    first, second = ProgressNews(), ProgressNews()
    first.began(queue)
    first.began(other)
    second.forgot("g")
    assert [again.key for again in restored(*first.bodies(), *second.bodies())] == [other.key]
    third = ProgressNews()
    third.began(SharedQueue(KEY, 3))
    again = {q.key: q.floor for q in restored(*first.bodies(), *second.bodies(), *third.bodies())}
    assert again == {KEY: 3, other.key: 7}


def test_a_window_of_holes_is_split_over_records() -> None:
    queue = SharedQueue(KEY, 0)
    news = ProgressNews()
    holes = sum(1 << offset for offset in range(1, 65_536, 2))
    news.acknowledged(queue, 0, holes)
    news.attempted(queue, 0, bits(65_536) & ~holes, 1)
    bodies = list(news.bodies())
    assert all(len(body) < 5 * ENTRY_NUMBERS_MAX for body in bodies)
    (again,) = restored(*bodies)
    assert again.acknowledged.mask == holes
    assert again.waiting_count() == 32_768


@pytest.mark.parametrize(
    "entries",
    [b"\xc1", {}, [1], [["g", "t", 0, 0, []]], [["g", "t", 0, 0, [1], []]], [["g", "t", 0, 0, [], [1, 2]]],
     [["g", "t", 0, 0, [-1, 2], []]], [["g", "t", "0", 0, [], []]]],
)  # fmt: skip
def test_what_is_no_record_is_refused(entries: object) -> None:
    body = entries if isinstance(entries, bytes) else msgpack.packb(entries)
    with pytest.raises(RecordError, match="%SHARED%"):
        restored(body)
