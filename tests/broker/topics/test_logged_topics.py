"""The topic table follows topic.json in the log until its owner takes it over."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import pytest
from sim_disk import SimDisk

from broker.topics.core.table import NOT_DELETING, Topic, TopicTable
from broker.topics.logged_topics import LoggedTopics
from holdmq.files.atomic_file import AtomicFile

NAME = "config/topic.json"
PATH = Path("/store") / NAME


def raw(*topics: Topic, version: int = 1) -> bytes:
    """A topic.json with these topics."""
    disk = SimDisk()
    content = TopicTable(10, 4).content({topic.name: topic for topic in topics})
    AtomicFile(PATH, disk).save(content, version)
    return bytes(disk.content(PATH))


class Files(dict[str, bytes]):
    """Files in a log."""


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def topics(files: Files) -> LoggedTopics:
    return LoggedTopics(TopicTable(10, 4), NAME, PATH, files.get)


def test_the_table_is_as_the_newest_file_says(files: Files, topics: LoggedTopics) -> None:
    table = topics.table
    files[NAME] = raw(Topic("a", 4, 4, key_levels=2), Topic("b", 1, 1, kind="table"))
    topics.changed(NAME)
    assert (table.key_levels("a"), table.is_table("b"), table.key_levels("c")) == (2, True, 1)
    files[NAME] = raw(Topic("b", 1, 1), Topic("c", 1, 1, key_levels=3), version=2)
    topics.changed(NAME)
    assert (table.key_levels("a"), table.is_table("b"), table.key_levels("c")) == (1, False, 3)
    assert table.get("a") is None
    assert table.data_version == 2


def test_topics_that_leave_and_come_again_are_followed(files: Files, topics: LoggedTopics) -> None:
    table = topics.table
    for deleting_to in (NOT_DELETING, 0, NOT_DELETING):
        files[NAME] = raw(Topic("a", 1, 1, stored_queues=1, deleting_to=deleting_to))
        topics.changed(NAME)
        assert [topic.name for topic in table.all()] == ([] if deleting_to == 0 else ["a"])
        assert [topic.name for topic in table.leaving()] == (["a"] if deleting_to == 0 else [])
    files[NAME] = raw()
    topics.changed(NAME)
    assert len(table) == 0


def test_other_files_and_what_its_owner_changes_are_not_loaded(files: Files, topics: LoggedTopics) -> None:
    files[NAME] = raw(Topic("a", 1, 1))
    topics.changed("config/shared.json")
    assert topics.loads == 0
    topics.stop()
    topics.changed(NAME)
    assert len(topics.table) == 0
    topics.start()
    assert topics.table.get("a") is not None


def test_a_file_that_cannot_be_read_gives_way_to_its_backup(files: Files, topics: LoggedTopics) -> None:
    files[NAME] = raw(Topic("a", 1, 1))[:-9]
    files[NAME + ".bak"] = raw(Topic("b", 1, 1))
    topics.changed(NAME)
    assert topics.table.get("b") is not None
    assert (topics.loads, topics.failures) == (1, 1)


def test_an_entry_that_is_no_topic_is_told_and_the_table_stays(files: Files, topics: LoggedTopics) -> None:
    files[NAME] = raw(Topic("a", 1, 1))
    topics.changed(NAME)
    body = json.dumps({"b": 1}, separators=(",", ":"))
    checksum = crc32(body.encode(), crc32(b"1,2,"))
    files[NAME] = f'{{"format":1,"dataVersion":2,"crc32":{checksum},"content":{body}}}\n'.encode()
    topics.changed(NAME)
    assert topics.failures == 1
    assert topics.table.key_levels("b") == 1
