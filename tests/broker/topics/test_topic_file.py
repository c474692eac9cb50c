"""topic.json: changes are planned one on another, written together, bounded while they wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.state.state_file import StateFile
from broker.topics.core.table import Topic, TopicTable
from broker.topics.topic_file import CHANGES_MAX, Staged, TopicFile
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError


class Changes:
    """A file of topics, and what became of each change."""

    def __init__(self, directory: Path) -> None:
        self.table = TopicTable(100_000, 4)
        self.applied: list[tuple[str, str]] = []
        self.done: list[HoldMQError | None] = []
        self.file = TopicFile(StateFile(directory / "topic.json"), self.table, self._applied)

    def _applied(self, before: Topic | None, after: Topic | None) -> None:
        self.applied.append((_name(before), _name(after)))

    def put(self, name: str) -> None:
        self.file.submit(lambda staged: staged.put(Topic(name, 1, 1)), self.done.append)


def _name(topic: Topic | None) -> str:
    return "" if topic is None else topic.name


async def test_what_waits_for_the_file_is_bounded_and_written_together(tmp_path: Path) -> None:
    changes = Changes(tmp_path)
    changes.put("first")
    for number in range(CHANGES_MAX):
        changes.put(f"t{number}")
    assert changes.file.waiting == CHANGES_MAX
    with pytest.raises(BusyError) as refused:
        changes.put("one too many")
    assert refused.value.retry_after_ms > 0
    # The broker's own changes are not refused: they are what makes room.
    changes.file.submit(lambda staged: staged.remove("first"), changes.done.append, is_bounded=False)
    await all_done(changes, CHANGES_MAX + 2)
    assert changes.file.file.writes == 2
    assert changes.table.get("first") is None
    assert len(changes.table) == CHANGES_MAX
    changes.file.close()


async def test_a_plan_sees_what_those_before_it_leave_and_a_refused_one_stops_nobody(tmp_path: Path) -> None:
    changes = Changes(tmp_path)

    def refuse(_staged: Staged) -> None:
        raise RemoteError(Code.TOPIC_INVALID, "no")

    def look(staged: Staged) -> None:
        assert staged.get("a") is not None
        assert len(staged) == 1

    changes.put("a")
    changes.file.submit(refuse, changes.done.append)
    changes.file.submit(look, changes.done.append)
    changes.put("b")
    await all_done(changes, 4)
    assert [error is None for error in changes.done] == [True, False, True, True]
    assert changes.applied == [("", "a"), ("", "b")]
    changes.file.close()


async def test_temporary_topics_wait_for_no_file(tmp_path: Path) -> None:
    changes = Changes(tmp_path)
    topic = Topic("c#tmp", 1, 1, kind="temporary")
    changes.file.submit(lambda staged: staged.put(topic), changes.done.append)
    assert changes.done == [None]
    assert changes.file.file.writes == 0
    changes.file.close()


async def all_done(changes: Changes, count: int) -> None:
    while len(changes.done) < count:
        await asyncio.sleep(0)


async def test_what_waits_when_the_broker_ends_is_refused(tmp_path: Path) -> None:
    changes = Changes(tmp_path)
    changes.put("first")
    changes.put("second")
    changes.file.close()
    changes.put("third")
    await all_done(changes, 3)
    assert changes.done[0] is None
    assert [isinstance(error, BusyError) for error in changes.done[1:]] == [True, True]
    assert changes.table.get("first") is not None
    assert changes.table.get("second") is changes.table.get("third") is None
