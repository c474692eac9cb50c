"""`holdmq kv` against real servers: one, and the masters of a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here
from kv_shards import BATCH_BYTES, RECORD_BYTES, RUN_BYTES, add_to_shards, log_batch, write_shard
from processes import free_port, running_stack
from redis import Redis
from security import Authority
from tls_front import tls_front
from valkey_servers import ValkeyServer, running_cluster, slot_of

from broker.app.metric_help import STORE
from holdmq.cli.kv_shard import RUNS_READ
from holdmq.client.sync import SyncProducer
from holdmq.client.sync_lookups import SyncTable
from holdmq.message import Message
from storage.kv.core.layout import RUN, ShardKeys, waiting_name

TAG = ShardKeys("holdmq", "broker-0").tag
END = 10 * BATCH_BYTES


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.end()


@pytest.fixture
def server(of_module: ValkeyServer) -> ValkeyServer:
    """One server with a shard as it should be."""
    of_module.command("FLUSHALL")
    with of_module.client() as client:
        write_shard(client)
        add_to_shards(client)
    return of_module


def kv(server: Any, *arguments: str, code: int = 0) -> str:
    """The output of a command that ends with `code`; what it says when it fails."""
    url = server if isinstance(server, str) else server.url
    done = run_here("kv", *arguments, HOLDMQ_STORAGE__KV__URL=url)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def findings(server: ValkeyServer) -> list[tuple[str, str]]:
    answer = json.loads(kv(server, "check", "--json", code=1))
    assert answer["ok"] is False
    return [(one["key"].removeprefix(f"{TAG}:"), one["what"]) for one in answer["findings"]]


def test_a_shard_that_is_as_it_should_be_is_said_to_be(server: ValkeyServer) -> None:
    said = kv(server, "check")
    assert "1 shards, 2 queues: all agrees" in said
    assert f"shard broker-0, at 127.0.0.1:{server.port}: owned by host:1234 for " in said
    assert f" s, term 2, epoch 2, log 0 to {END}, 0 records lost\n" in said
    answer = json.loads(kv(server, "check", "--json"))
    assert (answer["ok"], answer["findings"]) == (True, [])
    (shard,) = answer["shards"]
    left = shard.pop("lease_left_ms")
    assert 0 < left <= 9000
    assert shard == {
        "name": "broker-0", "node": f"127.0.0.1:{server.port}", "slot": None, "format": 1,
        "owner": "host:1234", "term": 2, "epoch": 2, "first": 0, "end": END, "lost_records": 0, "queues": 2,
    }  # fmt: skip


def test_what_retention_took_and_queues_that_are_empty_are_no_findings(server: ValkeyServer) -> None:
    with server.client() as client:
        client.xtrim(f"{TAG}:l", minid=f"0-{6 * BATCH_BYTES + 1}", approximate=False)
        client.hset(f"{TAG}:s", "first", 6 * BATCH_BYTES)
        client.xtrim(f"{TAG}:q:devices/0", minid="0-19", approximate=False)
        client.hset(f"{TAG}:g", "devices/0", 18)
        client.xtrim(f"{TAG}:q:orders/1", minid="0-31", approximate=False)
        client.hset(f"{TAG}:g", "orders/1", 30)
        client.hset(f"{TAG}:b", "new/0", 0)
    kv(server, "check")


def test_a_lease_that_has_ended_is_no_lease(server: ValkeyServer) -> None:
    with server.client() as client:
        client.hset(f"{TAG}:s", "lease_ms", 1)
    assert json.loads(kv(server, "check", "--json"))["shards"][0]["lease_left_ms"] == 0
    assert "owned by nobody, term 2" in kv(server, "check")


BROKEN: list[tuple[Callable[[Redis], object], str, str]] = [
    (lambda c: c.delete(f"{TAG}:s"), "s", "is missing"),
    (lambda c: c.hdel(f"{TAG}:s", "store_ms"), "s", "has no number as its store_ms: None"),
    (lambda c: c.hset(f"{TAG}:s", "format", 2), "s", "is of format 2; this version reads 1"),
    (
        lambda c: c.hset(f"{TAG}:s", "end", END - 1),
        "l",
        f"has {END} as its last id, and the log ends at {END - 1}",
    ),
    (lambda c: c.delete(f"{TAG}:l"), "l", f"has 0 as its last id, and the log ends at {END}"),
    (
        lambda c: c.xtrim(f"{TAG}:l", minid="0-1001", approximate=False),
        "l",
        f"begins at {BATCH_BYTES}, and the log's first position is 0",
    ),
    (lambda c: c.set(f"{TAG}:e", "{"), "e", "is no JSON"),
    (lambda c: c.set(f"{TAG}:e", '{"epochs": [[2, 0], [1, 5]]}'), "e", "has no list of rising epochs"),
    (lambda c: c.set(f"{TAG}:e", f'{{"epochs": [[2, {END + 1}]]}}'), "e", f"behind the log's end {END}"),
    (lambda c: c.hset(f"{TAG}:b", "devices/0", 27), "q:devices/0", "has 30 as its last id, and the queue's"),
    (lambda c: c.delete(f"{TAG}:q:orders/1"), "q:orders/1", "is missing, and the queue's next offset is 30"),
    (lambda c: c.hdel(f"{TAG}:b", "orders/1"), "q:orders/1", "is a stream up to 30 of a queue that is not"),
    (lambda c: c.hset(f"{TAG}:g", "gone/1", 3), "q:gone/1", "has a first offset, 3, and no next one"),
    (lambda c: c.hset(f"{TAG}:g", "devices/0", 31), "q:devices/0", "is kept from 31 on, and its next offset"),
    (lambda c: c.xdel(f"{TAG}:q:devices/0", "0-3"), "q:devices/0", "begins at 3, and is kept from 0 on"),
    (lambda c: c.hset(f"{TAG}:T:settings", "b", "2"), "T:settings", "has 2 rows, and 1 keys are in their"),
    (lambda c: c.hset(f"{TAG}:z", "settings/rows", 3), "T:settings", "has 1 rows, and 3 were counted"),
    (lambda c: c.zrem(f"{TAG}:t", waiting_name(0)), "w", "has 1 delayed messages, and 0 have a due time"),
]


@pytest.mark.parametrize(("damage", "key", "what"), BROKEN, ids=[f"{key} {what}" for _, key, what in BROKEN])
def test_what_does_not_agree_is_found(
    server: ValkeyServer, damage: Callable[[Redis], object], key: str, what: str
) -> None:
    with server.client() as client:
        damage(client)
    assert any(where == key and what in said for where, said in findings(server)), findings(server)
    said = kv(server, "check", code=1)
    assert f"{TAG}:{key} " in said
    assert "findings" in said


def test_every_record_is_read_when_told_to(server: ValkeyServer) -> None:
    assert json.loads(kv(server, "check", "--json"))["records"] is None
    assert json.loads(kv(server, "check", "--records", "--json"))["records"] == 60
    assert "1 shards, 2 queues, 60 records: all agrees" in kv(server, "check", "--records")


def replace_batch(client: Redis, number: int, records: bytes) -> None:
    """Give the log's batch `number` other records: a stream is only appended to, so it is made anew."""
    entries = client.xrange(f"{TAG}:l")
    client.delete(f"{TAG}:l")
    for i, (entry_id, _) in enumerate(entries):
        client.xadd(f"{TAG}:l", {"r": records if i == number else log_batch(i, 1), "t": 1}, id=entry_id)


def damaged(number: int, at: int) -> bytes:
    raw = bytearray(log_batch(number, 1))
    raw[at] ^= 1
    return bytes(raw)


IN_RECORDS: list[tuple[Callable[[Redis], object], str, str]] = [
    (lambda c: replace_batch(c, 2, damaged(2, RECORD_BYTES + 95)), "l",
     f"has a record at {2 * BATCH_BYTES + RECORD_BYTES} that is not whole: its BodyCRC does not match"),
    (lambda c: replace_batch(c, 2, log_batch(3, 1)), "l",
     f"has a record at {2 * BATCH_BYTES} that is not whole: its PhysicalOffset is not where it lies"),
    (lambda c: replace_batch(c, 2, damaged(2, 5 * RECORD_BYTES + 3)), "l",
     "that is not whole: the batch ends in it"),
    (lambda c: replace_batch(c, 2, log_batch(2, 0)), "l", "its StoreTimestamp is before its predecessor's"),
    (lambda c: c.xdel(f"{TAG}:l", f"0-{3 * BATCH_BYTES}"), "l",
     f"has a batch from {3 * BATCH_BYTES} on, and the one before ends at {2 * BATCH_BYTES}"),
    (lambda c: c.xdel(f"{TAG}:q:orders/1", "0-9"), "q:orders/1", "lacks what the log has up to offset 9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "key", "what"),
    IN_RECORDS,
    ids=[what.partition(" that ")[2] or what for *_, what in IN_RECORDS],
)
def test_a_record_that_is_not_as_it_should_be_is_found(
    server: ValkeyServer, damage: Callable[[Redis], object], key: str, what: str
) -> None:
    with Redis("127.0.0.1", server.port) as client:
        damage(client)
    answer = json.loads(kv(server, "check", "--records", "--json", code=1))
    found = [(one["key"].removeprefix(f"{TAG}:"), one["what"]) for one in answer["findings"]]
    assert any(where == key and what in said for where, said in found), found


def test_a_run_that_its_queue_has_elsewhere_is_found(server: ValkeyServer) -> None:
    with Redis("127.0.0.1", server.port) as client:
        client.xadd(f"{TAG}:q:new/0", {"p": RUN.pack(7, 1, RUN_BYTES, 3)}, id="0-3")
        client.rename(f"{TAG}:q:devices/0", "away")
        entries = client.xrange("away")
        for i, (entry_id, fields) in enumerate(entries):
            packed = RUN.pack(7, 1, RUN_BYTES, 3) if i == 4 else fields[b"p"]
            client.xadd(f"{TAG}:q:devices/0", {"p": packed}, id=entry_id)
        client.delete("away", f"{TAG}:q:new/0")
    answer = json.loads(kv(server, "check", "--records", "--json", code=1))
    at = 4 * BATCH_BYTES + RUN_BYTES
    (found,) = answer["findings"]
    assert found["what"] == f"says that offset 14 ends at {7 + RUN_BYTES}; in the log it ends at {at}"


def test_a_server_that_evicts_keys_is_found(server: ValkeyServer) -> None:
    server.configure("maxmemory-policy", "allkeys-lru")
    try:
        answer = json.loads(kv(server, "check", "--json", code=1))
        said = kv(server, "check", code=1)
    finally:
        server.configure("maxmemory-policy", "noeviction")
    (found,) = answer["findings"]
    assert (found["shard"], found["key"]) == ("", f"127.0.0.1:{server.port}")
    assert f"127.0.0.1:{server.port} takes any key away when its memory is full" in said
    assert "maxmemory-policy is allkeys-lru" in said


def test_without_a_shard_the_prefix_is_doubted(server: ValkeyServer) -> None:
    said = kv(server, "check", "--set", "storage.kv.prefix=other", code=1)
    assert said.startswith("error: use of other:shards failed: there is no shard; ")


def test_a_server_that_is_away_or_refuses_is_one_sentence(
    new_valkey: Callable[..., ValkeyServer],
) -> None:
    closed = new_valkey()
    closed.configure("requirepass", "hush")
    said = kv(closed, "stat", code=1)
    assert "storage.kv.url has user and password" in said
    wrong = run_here("kv", "stat", HOLDMQ_STORAGE__KV__URL=closed.url.replace("//", "//:wrongly@"))
    assert wrong.returncode == 1
    assert "wrongly" not in wrong.stderr
    right = run_here("kv", "check", HOLDMQ_STORAGE__KV__URL=closed.url.replace("//", "//:hush@"))
    assert "there is no shard" in right.stderr
    closed.end()
    said = kv(closed, "check", code=1)
    assert f"use of 127.0.0.1:{closed.port} failed: " in said
    assert said.endswith("is the server up, and does storage.kv.url name it?\n")


def test_without_an_address_people_are_told_where_it_is() -> None:
    done = run_here("kv", "check")
    assert done.returncode == 2
    assert "storage.kv.url does not say where the servers are" in done.stderr


def test_a_seed_that_is_away_is_passed_over(server: ValkeyServer, tmp_path: Path) -> None:
    away = ValkeyServer(tmp_path)
    done = run_here("kv", "check", HOLDMQ_STORAGE__KV__URL=f"{away.url},127.0.0.1:{server.port}/")
    assert done.returncode == 0, done.stderr


def test_what_topics_have_is_counted(server: ValkeyServer) -> None:
    answer = json.loads(kv(server, "stat", "--json"))
    assert answer["prefix"] == "holdmq"
    (shard,) = answer["shards"]
    assert (shard["records"], shard["batches"], shard["bytes"]) == (60, 10, END)
    row = {"queues": 1, "records": 30, "batches": 10, "bytes": 10 * RUN_BYTES, "bytes_exact": True}
    assert shard["topics"] == [{"topic": "devices", **row}, {"topic": "orders", **row}]
    memory = shard["memory_bytes"]
    assert memory["others"] == 0
    assert all(memory[kind] > 0 for kind in ("log", "queues", "timers", "tables", "keys", "state"))
    (node,) = answer["nodes"]
    assert (node["slots"], node["shards"]) == (16384, ["broker-0"])
    assert node["keys"] == server.command("DBSIZE")
    assert node["memory_bytes"] > memory["log"]
    said = kv(server, "stat")
    assert f"shard broker-0, at 127.0.0.1:{server.port}: 10 batches, {END} bytes" in said
    assert "16384" in said


def test_bytes_of_a_long_queue_are_about_right(server: ValkeyServer) -> None:
    with server.client() as client:
        for i in range(RUNS_READ + 20):
            run = RUN.pack(0, 0, 100 if i < 20 else 200, 2)
            client.xadd(f"{TAG}:q:long/0", {"p": run}, id=f"0-{2 * (i + 1)}")
        client.hset(f"{TAG}:b", "long/0", 2 * (RUNS_READ + 20))
    (shard,) = json.loads(kv(server, "stat", "--json"))["shards"]
    (long,) = (row for row in shard["topics"] if row["topic"] == "long")
    assert (long["bytes_exact"], long["bytes"]) == (False, 200 * (RUNS_READ + 20))
    assert "~24000" in kv(server, "stat")


def test_in_a_cluster_each_shard_is_asked_of_its_master(tmp_path: Path) -> None:
    names = [f"broker-{i}" for i in range(6)]
    with running_cluster(tmp_path) as cluster:
        homes = {name: cluster.master_of(ShardKeys("holdmq", name).tag) for name in names}
        assert len({home.port for home in homes.values()}) > 1
        for name, home in homes.items():
            with home.client() as client:
                write_shard(client, name=name)
            with cluster.master_of("holdmq:shards").client() as client:
                add_to_shards(client, name=name)
        shards = json.loads(kv(cluster, "check", "--json"))["shards"]
        assert {shard["name"]: shard["node"] for shard in shards} == {
            name: f"127.0.0.1:{home.port}" for name, home in homes.items()
        }
        assert [shard["slot"] for shard in shards] == [
            slot_of(ShardKeys("holdmq", name).tag) for name in names
        ]
        nodes = json.loads(kv(cluster, "stat", "--json"))["nodes"]
        assert sum(node["slots"] for node in nodes) == 16384
        assert sorted(name for node in nodes for name in node["shards"]) == names
        assert "6 shards, 12 queues: all agrees" in kv(cluster, "check")
        said = kv(cluster, "stat")
        for shard in shards:
            assert f"shard {shard['name']}, slot {shard['slot']} at {shard['node']}: 10 batches" in said


def rule_of_the_guide() -> list[str]:
    """What docs/valkey.md lets a user do, for ACL SETUSER."""
    guide = (Path(__file__).parents[3] / "docs" / "valkey.md").read_text()
    found = re.search(r"^ACL (SETUSER holdmq .*?)```", guide, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].split()


def test_what_brokers_store_in_a_cluster_agrees_and_is_counted(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "kv") as cluster, ExitStack() as running:
        for server in cluster.servers:
            server.command("ACL", *rule_of_the_guide())
        url = cluster.url.replace("//", "//holdmq:PASSWORD@")
        settings = {"storage.engine": "kv", "storage.kv.url": url, "storage.kv.min_replicas": 1}
        stack = running.enter_context(running_stack(tmp_path, "registry", "broker", **settings))
        with SyncProducer([stack.registry]) as producer:
            for i in range(20):
                producer.send(Message("orders", b"x", keys=(f"order-{i}",)))
            producer.send(Message("orders", b"later"), delay_ms=3_600_000)
        with SyncTable("settings", [stack.registry]) as table:
            table.create()
            for key in "aab":
                table.put(key, b"1")
            table.delete("b")
        assert "all agrees" in kv(url, "check", "--records")
        answer = json.loads(kv(url, "stat", "--json"))
        for server in cluster.servers:
            assert server.command("ACL", "LOG") == [], "nothing was refused"
        told = stack.http("broker", "/metrics")[1]
        for name in (name for name in STORE if name.startswith("kv_")):
            assert f"# TYPE holdmq_store_{name} " in told, name
    (shard,) = answer["shards"]
    assert {row["topic"]: row["records"] for row in shard["topics"] if row["topic"][0] != "%"} == {
        "orders": 20,
        "settings": 4,
    }
    memory = shard["memory_bytes"]
    assert memory["others"] == 0
    assert all(memory[kind] > 0 for kind in ("log", "queues", "timers", "tables", "keys", "state"))
    # Nothing of it is in files.
    assert not (tmp_path / "store").exists()


def test_tls_is_spoken_with_servers_that_an_authority_has_signed(
    server: ValkeyServer, tmp_path: Path
) -> None:
    ours, theirs = (Authority(tmp_path / name) for name in ("ours", "theirs"))
    files, port = ours.issue("kv"), free_port()
    url = f"rediss://127.0.0.1:{port}/"
    trust = f"--set=storage.kv.ca_file={ours.ca}"
    with tls_front(port, server.port, str(files.cert), str(files.key)):
        assert "all agrees" in kv(url, "check", trust)
        wrong = kv(url, "check", f"--set=storage.kv.ca_file={theirs.ca}", code=1)
        assert "certificate verify failed" in wrong
        settings = {"url": url, "ca_file": ours.ca, "prefix": "encrypted"}
        overrides = {"storage.engine": "kv"} | {f"storage.kv.{key}": one for key, one in settings.items()}
        with running_stack(tmp_path, "registry", "broker", **overrides) as stack:
            with SyncProducer([stack.registry]) as producer:
                producer.send(Message("orders", b"x"))
            assert "all agrees" in kv(url, "check", "--records", trust, "--set=storage.kv.prefix=encrypted")
