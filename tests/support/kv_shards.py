"""A shard of the key-value engine, written key by key as `storage.kv.core.layout` has it."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from redis import Redis

from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.core.stamper import Stamper
from storage.kv.core.layout import RUN, ShardKeys, waiting_name

QUEUES = (("devices", 0), ("orders", 1))
RECORDS = 3
"""Records of a run; each batch has one of each queue."""
RECORD_BYTES = len(encode_record(b"devices", 0, b"x" * 20, b"", 1))
RUN_BYTES = RECORDS * RECORD_BYTES
BATCH_BYTES = 2 * RUN_BYTES


def log_batch(number: int, store_ms: int) -> bytes:
    """The stamped records of a batch, `number` from 0 on."""
    bodies = {name: b"x" * (27 - len(name)) for name, _ in QUEUES}  # all records are of one size
    made = [
        encode_record(name.encode(), queue_id, bodies[name], b"", 1)
        for name, queue_id in QUEUES
        for _ in range(RECORDS)
    ]
    runs = [BatchRun(name, queue_id, RECORDS, base_offset=RECORDS * number) for name, queue_id in QUEUES]
    sizes = np.array([len(record) for record in made], np.int64)
    batch = Batch(memoryview(bytearray(b"".join(made))), sizes, runs, BATCH_BYTES * number, store_ms)
    Stamper().stamp(batch, b"\x00store\x00\x01")
    assert len(batch.records) == BATCH_BYTES
    return bytes(batch.records)


def write_shard(client: Redis, prefix: str = "holdmq", name: str = "broker-0", batches: int = 10) -> str:
    """Write batches, each with a run of devices/0 and of orders/1, a table, a timer; return the tag."""
    tag = ShardKeys(prefix, name).tag
    now = int(time.time() * 1000)
    for i in range(batches):
        end = BATCH_BYTES * (i + 1)
        client.xadd(f"{tag}:l", {"r": log_batch(i, now), "t": now}, id=f"0-{end}")
        for j, (topic, queue_id) in enumerate(QUEUES):
            run = RUN.pack(end - RUN_BYTES * (2 - j), now, RUN_BYTES, RECORDS)
            client.xadd(f"{tag}:q:{topic}/{queue_id}", {"p": run}, id=f"0-{RECORDS * (i + 1)}")
            client.hset(f"{tag}:b", f"{topic}/{queue_id}", RECORDS * (i + 1))
    state: dict[str, Any] = {
        "format": 1, "store_id": "0011223344556677", "term": 2, "owner": "host:1234", "lease_ms": now + 9000,
        "end": BATCH_BYTES * batches, "first": 0, "store_ms": now, "run_id": "r", "lost": 0,
    }  # fmt: skip
    client.hset(f"{tag}:s", mapping=state)
    client.set(f"{tag}:e", json.dumps({"epochs": [[1, 0], [2, RUN_BYTES]]}))
    client.hset(f"{tag}:T:settings", "a", "1")
    client.zadd(f"{tag}:K:settings", {"a": 0})
    client.hset(f"{tag}:z", mapping={"settings/rows": 1, "settings/bytes": 2})
    client.hset(f"{tag}:w", waiting_name(0), "record")
    client.zadd(f"{tag}:t", {waiting_name(0): now})
    client.set(f"{tag}:x:1:2", "entries")
    client.hset(f"{tag}:f", "topic.json", "{}")
    return tag


def add_to_shards(client: Redis, prefix: str = "holdmq", name: str = "broker-0") -> None:
    """Let commands know of a shard; in a cluster its server is another one."""
    client.sadd(f"{prefix}:shards", name)
