from __future__ import annotations

import pytest

from holdmq.mqtt import CheckedTopics, MqttError
from holdmq.mqtt.topics import CACHED_TOPIC_BYTES_MAX


class Counting:
    def __init__(self) -> None:
        self.made: list[bytes] = []

    def __call__(self, topic: bytes) -> int:
        self.made.append(topic)
        return len(self.made)


def test_an_entry_is_made_once() -> None:
    create = Counting()
    table = CheckedTopics(create)
    assert [table.admit(topic) for topic in (b"a", b"b", b"a", b"b")] == [1, 2, 1, 2]
    assert create.made == [b"a", b"b"]


def test_the_table_is_bounded_and_keeps_what_is_used() -> None:
    create = Counting()
    table = CheckedTopics(create, max_entries=10)
    hot = table.admit(b"hot")
    for index in range(100):
        table.admit(b"cold/%d" % index)
        assert table.admit(b"hot") == hot
        assert len(table) <= 10
    assert create.made.count(b"hot") == 1
    assert table.rotations > 10


def test_a_long_topic_is_checked_each_time_and_not_kept() -> None:
    create = Counting()
    table = CheckedTopics(create)
    longest = b"t" * CACHED_TOPIC_BYTES_MAX
    table.admit(longest)
    table.admit(longest)
    table.admit(longest + b"t")
    table.admit(longest + b"t")
    assert len(create.made) == 3
    assert len(table) == 1


def test_an_invalid_topic_makes_no_entry() -> None:
    create = Counting()
    table = CheckedTopics(create)
    with pytest.raises(MqttError):
        table.admit(b"a/#")
    assert create.made == []
    assert len(table) == 0
