"""A shard of the key-value engine, written key by key as `storage.kv.core.layout` has it."""

from __future__ import annotations

import json
import time
from typing import Any

from redis import Redis

from holdmq.cli.kv_shard import RUN, tag_of

RUN_BYTES = 250


def write_shard(
    client: Redis, prefix: str = "holdmq", name: str = "broker-0", batches: int = 10, records: int = 3
) -> str:
    """Write batches of two runs (devices/0, orders/1) of `records` each, a table, a timer; return the tag."""
    tag = tag_of(prefix, name)
    now = int(time.time() * 1000)
    for i in range(batches):
        end = 2 * RUN_BYTES * (i + 1)
        client.xadd(f"{tag}:l", {"r": b"x" * 2 * RUN_BYTES, "t": now}, id=f"0-{end}")
        for j, queue in enumerate(("devices/0", "orders/1")):
            run = RUN.pack(end - RUN_BYTES * (2 - j), now, RUN_BYTES, records)
            client.xadd(f"{tag}:q:{queue}", {"p": run}, id=f"0-{records * (i + 1)}")
            client.hset(f"{tag}:b", queue, records * (i + 1))
    state: dict[str, Any] = {
        "format": 1, "store_id": "0011223344556677", "term": 2, "owner": "host:1234", "lease_ms": now + 9000,
        "end": 2 * RUN_BYTES * batches, "first": 0, "store_ms": now, "run_id": "r", "lost": 0,
    }  # fmt: skip
    client.hset(f"{tag}:s", mapping=state)
    client.set(f"{tag}:e", json.dumps({"epochs": [[1, 0], [2, RUN_BYTES]]}))
    client.hset(f"{tag}:T:settings", "a", "1")
    client.zadd(f"{tag}:K:settings", {"a": 0})
    client.hset(f"{tag}:w", "0", "record")
    client.zadd(f"{tag}:t", {"0": now})
    client.set(f"{tag}:x:1:2", "entries")
    client.hset(f"{tag}:f", "topic.json", "{}")
    return tag


def add_to_shards(client: Redis, prefix: str = "holdmq", name: str = "broker-0") -> None:
    """Let commands know of a shard; in a cluster its server is another one."""
    client.sadd(f"{prefix}:shards", name)
