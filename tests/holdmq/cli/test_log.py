"""`holdmq log`: what it counts is what was written, what it cannot read it names."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from any_disk import ANY_DISK

from holdmq.config.model import StorageSection
from holdmq.record.batch import encode_batch
from holdmq.record.codec import encode_properties
from storage.api.batches import Batch, BatchRun
from storage.log.store import open_store

Holdmq = Callable[..., Any]


def write(directory: Path, topic: str = "devices") -> int:
    """Three batches in two queues; the log's end."""
    posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    settings = StorageSection(
        data_dir=str(directory), segment_size_bytes=1 << 20, flush_interval_ms=20, **ANY_DISK
    )
    store = open_store(settings, "b1", lambda _: 1, posted.put)
    store.open()
    answers: list[Any] = []
    for queue_id, count, body in ((0, 2, b"21.5"), (1, 3, b"\xff"), (0, 1, b"22")):
        properties = [
            encode_properties([("TAGS", "42/temp"), ("KEYS", f"{queue_id}-{i}")]) for i in range(count)
        ]
        raw, sizes = encode_batch(topic.encode(), queue_id, [body] * count, properties, 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun(topic, queue_id, count)])
        store.append(batch, lambda _, error: answers.append(error))
    while len(answers) < 3:
        posted.get(timeout=20)()
    assert answers == [None] * 3
    end = store.confirmed_position
    store.close()
    return end


def test_stat_counts_exactly(holdmq: Holdmq, tmp_path: Path) -> None:
    end = write(tmp_path)
    sums = json.loads(holdmq("log", "stat", str(tmp_path), "--json").stdout)
    assert (sums["messages"], sums["body_bytes"], sums["record_bytes"]) == (6, 13, end)
    assert (sums["first_position"], sums["end"], sums["closed_cleanly"]) == (0, end, True)
    assert [(q["queue_id"], q["first_offset"], q["end_offset"], q["messages"]) for q in sums["queues"]] == [
        (0, 0, 3, 3),
        (1, 0, 3, 3),
    ]
    table = holdmq("log", "stat", str(tmp_path)).stdout
    assert "devices" in table
    assert "closed cleanly" in table


def test_what_brokers_note_of_producers_is_no_message(holdmq: Holdmq, tmp_path: Path) -> None:
    write(tmp_path, "%PRODUCED%")
    sums = json.loads(holdmq("log", "stat", str(tmp_path), "--json").stdout)
    assert (sums["messages"], sums["queues"]) == (0, [])
    verified = json.loads(holdmq("log", "verify", str(tmp_path), "--json").stdout)
    assert (verified["ok"], verified["records"], verified["entries"]) == (True, 0, 0)
    assert holdmq("log", "dump", str(tmp_path)).stdout == ""
    asked = holdmq("log", "dump", str(tmp_path), "--topic", "%PRODUCED%", "--json").stdout
    assert len(asked.splitlines()) == 6


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ([], ["21.5", "21.5", None, None, None, "22"]),
        (["--queue", "0", "--limit", "2"], ["21.5", "21.5"]),
        (["--key", "1-2"], [None]),
        (["--tag", "42/temp", "--topic", "devices", "--from", "1", "--queue", "0"], ["21.5", "22"]),
        (["--topic", "others"], []),
    ],
)
def test_dump_prints_what_is_asked_for(
    holdmq: Holdmq, tmp_path: Path, options: list[str], bodies: list[str | None]
) -> None:
    write(tmp_path)
    rows = [
        json.loads(line)
        for line in holdmq("log", "dump", str(tmp_path), *options, "--json").stdout.splitlines()
    ]
    assert [row.get("body") for row in rows] == bodies
    assert len(holdmq("log", "dump", str(tmp_path), *options).stdout.splitlines()) == len(bodies)


def test_verify_names_the_place_and_cuts_only_when_told(holdmq: Holdmq, tmp_path: Path) -> None:
    end = write(tmp_path)
    clean = holdmq("log", "verify", str(tmp_path), "--json")
    assert clean.returncode == 0
    assert json.loads(clean.stdout)["records"] == 6
    segment = tmp_path / "commitlog" / ("0" * 20)
    with segment.open("r+b") as file:
        file.seek(end - 20)
        file.write(b"X")
    before = segment.read_bytes()
    found = holdmq("log", "verify", str(tmp_path))
    assert found.returncode == 1
    assert f"{segment} at " in found.stdout
    assert segment.read_bytes() == before
    dumped = holdmq("log", "dump", str(tmp_path))
    assert len(dumped.stdout.splitlines()) == 5
    assert str(segment) in dumped.stderr
    cut = json.loads(holdmq("log", "verify", str(tmp_path), "--truncate", "--json").stdout)
    assert cut["cut"]["end"] < end
    assert holdmq("log", "verify", str(tmp_path)).returncode == 0
    assert json.loads(holdmq("log", "stat", str(tmp_path), "--json").stdout)["messages"] == 5


def test_what_is_no_store_is_refused_in_a_sentence(holdmq_process: Holdmq, tmp_path: Path) -> None:
    refused = holdmq_process("log", "stat", str(tmp_path / "nothing"))
    assert refused.returncode == 1
    assert "there is no store" in refused.stderr
    assert "Traceback" not in refused.stderr
