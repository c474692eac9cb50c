"""What the log holds and what the job's tables say of it, by topic: messages and bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import deltalake
import tested_engine
from command_line import run_here
from processes import Stack

from holdmq.config.analytics import StatsSection
from spark_streaming.job.parts import COUNTS, parts_of
from spark_streaming.tables import table_path

Sums = dict[str, tuple[int, int]]
COUNTED = {
    table.name: table for part in parts_of(StatsSection()) if part.name == COUNTS for table in part.tables
}


class StoredRecord(NamedTuple):
    """A record whose body is text."""

    store_ms: int
    topic: str
    body_bytes: int


def stored_records(stack: Stack, *topics: str) -> list[StoredRecord]:
    """What topics hold, by `holdmq log dump` or as the key-value server has it, with the broker stopped."""
    assert stack.stop("broker") == 0
    if tested_engine.is_kv():
        records = tested_engine.shard_records(stack.directory)
        found = [StoredRecord(one.store_ms, one.topic.decode(), len(one.body)) for one in records]
    else:
        lines = run_here("log", "dump", str(stack.directory / "store"), "--json").stdout.splitlines()
        dumped = [one for one in map(json.loads, lines) if one["topic"] in topics]
        found = [StoredRecord(one["store_ms"], one["topic"], len(one["body"])) for one in dumped]
    stack.start("broker")
    return [record for record in found if record.topic in topics]


def truth_of(stack: Stack) -> Sums:
    """What the log holds, by `holdmq log stat` or from a shard's records, with the broker stopped for it."""
    sums: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    assert stack.stop("broker") == 0
    if tested_engine.is_kv():
        for record in tested_engine.shard_records(stack.directory):
            sums[record.topic.decode()] += 1
            sizes[record.topic.decode()] += len(record.body)
    else:
        done = run_here("log", "stat", str(stack.directory / "store"), "--json")
        for queue in json.loads(done.stdout)["queues"]:
            sums[queue["topic"]] += queue["messages"]
            sizes[queue["topic"]] += queue["body_bytes"]
    stack.start("broker")
    return {topic: (sums[topic], sizes[topic]) for topic in sums if sums[topic] and not topic.startswith("%")}


def has_bytes(name: str) -> bool:
    """Whether the table counts bytes."""
    return "bytes" in COUNTED[name].merges


def delta_sums(data_dir: Path, name: str) -> Sums:
    """What a Delta table says (0 bytes where it has none); empty while it is not there."""
    path = table_path(data_dir, name)
    if not deltalake.DeltaTable.is_deltatable(str(path)):
        return {}
    sums = ["messages", "bytes"] if has_bytes(name) else ["messages"]
    found = deltalake.DeltaTable(path).to_pyarrow_table(columns=["topic", *sums])
    grouped = found.group_by("topic").aggregate([(column, "sum") for column in sums])
    return {row["topic"]: (row["messages_sum"], row.get("bytes_sum", 0)) for row in grouped.to_pylist()}


def check_all(truth: Sums, sums_of: Callable[[str], Sums]) -> None:
    """Assert that every table that counts messages says what the log holds."""
    messages = {topic: (count, 0) for topic, (count, _) in truth.items()}
    for name in COUNTED:
        assert sums_of(name) == (truth if has_bytes(name) else messages), name
