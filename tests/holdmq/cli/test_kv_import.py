"""`holdmq kv import`: what a broker over the log engine had is there for one over the key-value engine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_view import messages_of
from command_line import run_here, runner
from mqtt_client import MqttClient, bodies, numbered
from processes import Stack, end_all, wait_until
from pydantic import SecretStr
from valkey_servers import ValkeyServer, running_cluster

from holdmq.client import Consumer, DeadLetters, Message, Producer
from holdmq.client.sync import SyncProducer
from holdmq.client.sync_lookups import SyncTable
from holdmq.config.kv import KvSection
from holdmq.mqtt import PubAck, Publish
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from storage.kv.core.layout import FORMAT, IMPORTING, ShardKeys
from storage.kv.reading import ServerReader
from storage.kv.server import ShardServer

KEYS = ShardKeys("holdmq", "broker-0")
BULK = 2_000
BULK_BYTES = 4_000
SEGMENT_BYTES = 1 << 20
OLD = {"storage.engine": "log", "storage.segment_size_bytes": SEGMENT_BYTES}


class Old(Stack):
    """A stack whose broker has had traffic over the log engine, and is stopped; `placed` is what it held."""

    placed: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    stack = Old(tmp_path_factory.mktemp("old"), OLD)
    try:
        stack.start_all()
        asyncio.run(use(stack))
        stack.stop("gateway")
        stack.stop("broker")
        yield stack
    finally:
        end_all([stack])


@pytest.fixture
def store(of_module: Old, tmp_path: Path) -> Path:
    """A copy of its store, for a test of its own."""
    return shutil.copytree(of_module.directory / "store", tmp_path / "store")


async def use(stack: Old) -> None:
    """Everything that a broker keeps."""
    registries = [stack.registry]
    await asyncio.to_thread(use_devices, stack)
    async with Producer(registries) as producer, DeadLetters(registries) as letters:
        await producer.send(Message("orders", b"first", "t", ("order-1",)))
        for group in ("bad", "good"):
            link = producer.routes.link("broker-0").client
            request = GroupUpdateRequest(group, delay_levels_ms=[100], retry_max_times=1)
            await link.call(RequestCode.GROUP_UPDATE, request, 30.0)
        seen: list[bytes] = []

        async def take(message: Message) -> bool:
            seen.append(message.body)
            return True

        async def fail(_: Message) -> bool:
            return False

        await producer.send_batch([Message("orders", b"%d" % i) for i in range(20)])
        async with (
            Consumer(registries, "good", take, ["orders"], start="earliest"),
            Consumer(registries, "bad", fail, ["orders"], start="earliest"),
        ):
            while len(seen) < 21 or (await letters.groups()).get("bad", (0, 0))[0] < 21:
                await asyncio.sleep(0.05)
        await producer.send_batch([Message("orders", b"new %d" % i) for i in range(10)])
        await producer.send(Message("orders", b"went"), delay_ms=100)
        for at in range(0, BULK, 100):
            await producer.send_batch([Message("bulk", bytes(BULK_BYTES)) for _ in range(at, at + 100)])
        await producer.send(Message("orders", b"in an hour"), delay_ms=3_600_000)
        while not any(message.body == b"went" for message in await messages_of(registries, "orders")):
            await asyncio.sleep(0.05)
        await producer.send(Message("orders", b"soon"), delay_ms=8_000)
    stack.placed = places(await messages_of(registries, "orders", "bulk"))


def use_devices(stack: Old) -> None:
    away = MqttClient(stack.mqtt_port, "away")
    away.subscribe("plant/#", qos=1)
    worker = MqttClient(stack.mqtt_port, "worker")
    worker.subscribe("$share/team/jobs/#", qos=1)
    device = MqttClient(stack.mqtt_port, "device")
    device.publish("jobs/1", *numbered(4))
    assert bodies(worker.take(4)) == numbered(4)
    worker.disconnect()
    device.publish("jobs/1", *numbered(20, 4))
    device.publish("plant/1", *numbered(3))
    assert bodies(away.take(3)) == numbered(3)
    away.disconnect()
    device.publish("plant/1", *numbered(50, 3))
    device.send(Publish("state/1", b"kept", 1, True, packet_id=60_000))
    device.wait_for(PubAck)
    with SyncTable("settings", [stack.registry]) as table:
        table.create()
        for key in ("a", "b", "c" * 500):
            table.put(key, b"1")
        table.put("a", b"2")
        table.delete("b")
    MqttClient.close_all()


def places(messages: list[Message]) -> list[tuple[Any, ...]]:
    """What must be as it was, but for what is due meanwhile."""
    return sorted(
        (m.topic, m.queue_id, m.queue_offset, str(m.message_id), m.store_ms, m.unique_id, m.body)
        for m in messages
        if m.body != b"soon"
    )


def import_(store: Path, server: ValkeyServer | str, *arguments: str, code: int = 0) -> str:
    """What an import that ends with `code` says."""
    url = server if isinstance(server, str) else server.url
    done = run_here("kv", "import", str(store), "--broker=broker-0", f"--url={url}", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def check(server: ValkeyServer | str) -> None:
    url = server if isinstance(server, str) else server.url
    done = run_here("kv", "check", "--records", HOLDMQ_STORAGE__KV__URL=url)
    assert done.returncode == 0, (done.stdout, done.stderr)


def contents(server: ValkeyServer) -> dict[str, Any]:
    """All that the shard has, but for who has had it and when."""
    keys = sorted(key for key in server.command("KEYS", "*") if key != KEYS.state)
    return {key: server.command("DEBUG", "DIGEST-VALUE", key) for key in keys}


def places_of_records(server: ValkeyServer, first: int, end: int) -> int:
    """How many records there are when the next one is always asked for behind the one before."""
    shard = ShardServer(KvSection(url=SecretStr(server.url)), KEYS)
    shard.open()
    reader = ServerReader(shard, KEYS, lambda _: 1)
    position, count = first, 0
    while position < end:
        (batch,) = reader.read_log(position, 1, first, end)
        position = batch.end
        count += 1
    shard.close()
    return count


def test_a_broker_over_the_other_engine_goes_on_with_all_of_it(
    of_module: Old, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    told = json.loads(import_(of_module.directory / "store", server, "--json"))
    assert told["broker"] == "broker-0"
    assert (told["continued"], told["expired_records"]) == (False, 0)
    assert told["records"] > BULK
    assert told["rows"] > 2
    with server.client() as client:
        assert client.hlen(KEYS.holes) >= BULK * BULK_BYTES // SEGMENT_BYTES - 1
        assert client.hget(KEYS.state, "format") == str(FORMAT)
    check(server)
    assert places_of_records(server, told["first"], told["end"]) > BULK
    stack = of_module
    stack.set("storage.engine", "kv")
    stack.set("storage.kv.url", server.url)
    stack.start("broker")
    stack.start("gateway")
    try:
        asyncio.run(find_all(stack))
        find_by_key(stack)
        check(server)
    finally:
        stack.stop("gateway")
        stack.stop("broker")


async def find_all(stack: Old) -> None:
    registries = [stack.registry]
    assert places(await messages_of(registries, "orders", "bulk")) == stack.placed
    await asyncio.to_thread(find_devices, stack)
    seen: list[bytes] = []
    async with DeadLetters(registries) as letters:
        bad = [letter.message.body async for letter in letters.read("bad")]
        assert sorted(bad) == sorted([b"first", *(b"%d" % i for i in range(20))])
    async with Consumer(registries, "good", lambda m: seen.append(m.body), ["orders"]):
        while b"soon" not in seen:
            await asyncio.sleep(0.05)
    assert sorted(seen) == sorted([b"soon", b"went", *(b"new %d" % i for i in range(10))])


def find_by_key(stack: Old) -> None:
    message_id = next(place[3] for place in stack.placed if place[6] == b"first")
    run = runner(stack)
    shown = json.loads(run("message", "get", message_id, "--json").stdout)
    assert shown["keys"] == ["order-1"]
    found = json.loads(run("message", "find", "orders", "--key", "order-1", "--json").stdout)
    assert found["message_id"] == message_id


def find_devices(stack: Old) -> None:
    away = MqttClient(stack.mqtt_port, "away")
    assert away.connack.session_present
    assert bodies(away.take(50)) == numbered(50, 3)
    assert away.is_silent()
    worker = MqttClient(stack.mqtt_port, "worker")
    assert sorted(bodies(worker.take(20))) == sorted(numbered(20, 4))
    assert worker.is_silent()
    other = MqttClient(stack.mqtt_port, "other", clean=True)
    other.subscribe("state/#")
    kept = other.message()
    assert (bytes(kept.payload), kept.retain) == (b"kept", True)
    with SyncTable("settings", [stack.registry]) as table:
        values = [None if row is None else row.value for row in (table.get(key) for key in "ab")]
        assert values == [b"2", None]
        assert table.get("c" * 500) is not None
    MqttClient.close_all()


def test_what_is_stopped_half_way_goes_on_where_it_was(
    store: Path, new_valkey: Callable[..., ValkeyServer]
) -> None:
    whole, server = new_valkey(), new_valkey()
    import_(store, whole)
    # Full in the middle: it says so, and a broker does not have it.
    import_bytes = BULK * BULK_BYTES
    used = server.command("INFO", "memory")["used_memory"]
    server.configure("maxmemory", str(used + import_bytes // 2))
    assert "raise maxmemory" in import_(store, server, code=1)
    assert server.command("HGET", KEYS.state, "format") == str(IMPORTING)
    half = int(server.command("HGET", KEYS.state, "end"))
    assert half > 0
    server.configure("maxmemory", "0")
    # Killed further on, with whatever is under way.
    server.configure("maxmemory", str(used + import_bytes * 4 // 5))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["kv", "import", str(store), "--broker=broker-0", f"--url={server.url}"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdmq.cli", *words], env=environ, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: int(server.command("HGET", KEYS.state, "end")) > half, "it went on")
    finally:
        process.kill()
        process.wait()
    server.configure("maxmemory", "0")
    told = json.loads(import_(store, server, "--json"))
    assert told["continued"] is True
    check(server)
    assert contents(server) == contents(whole)
    assert "it is not empty" in import_(store, server, code=1)


def test_a_broker_does_not_open_what_is_imported_half(
    of_module: Old, store: Path, tmp_path: Path, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    server.configure("maxmemory", str(server.command("INFO", "memory")["used_memory"] + (4 << 20)))
    import_(store, server, code=1)
    stack = Stack(tmp_path, {"storage.engine": "kv", "storage.kv.url": server.url})
    stack.start("registry")
    try:
        stack.start("broker", wait=False)
        assert stack.processes["broker"].wait(60) != 0
        assert "an import into it has not come to its end" in stack.log("broker")
        del stack.processes["broker"]
    finally:
        end_all([stack])
    server.configure("maxmemory", "0")
    import_(store, server)
    check(server)


def test_a_store_that_went_on_meanwhile_is_imported_from_its_beginning(
    store: Path, tmp_path: Path, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    server.configure("maxmemory", str(server.command("INFO", "memory")["used_memory"] + (4 << 20)))
    import_(store, server, code=1)
    stack = Stack(tmp_path, OLD)
    stack.start_all(("registry", "broker"))
    with SyncProducer([stack.registry]) as producer:
        producer.send(Message("orders", b"later"))
    end_all([stack])
    server.configure("maxmemory", "0")
    assert json.loads(import_(store, server, "--json"))["continued"] is False
    check(server)


def test_what_is_too_old_to_keep_stays_behind(store: Path, new_valkey: Callable[..., ValkeyServer]) -> None:
    server = new_valkey()
    time.sleep(3)
    kept = "--set=storage.retention_age_s=1"
    told = json.loads(import_(store, server, "--json", kept))
    assert (told["records"], told["expired_records"] > BULK) == (0, True)
    check(server)
    with server.client() as client:
        # What waits is no message of its queue yet.
        assert client.zcard(KEYS.due) == 2
        assert client.hlen(KEYS.table("settings")) == 2


def test_a_cluster_takes_it_as_well(store: Path, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "kv") as cluster:
        import_(store, cluster.url, "--set=storage.kv.min_replicas=1")
        check(cluster.url)


def test_what_cannot_be_imported_is_refused_before_anything_is_written(
    of_module: Old, store: Path, tmp_path: Path, new_valkey: Callable[..., ValkeyServer]
) -> None:
    server = new_valkey()
    wrong = run_here("kv", "import", str(store), "--broker=broker-1", f"--url={server.url}")
    assert "it is of broker 'broker-0', not of 'broker-1'" in wrong.stderr
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert "there is no store" in import_(nothing, server, code=1)
    segment = sorted((store / "commitlog").iterdir())[2]
    raw = segment.read_bytes()
    segment.write_bytes(raw[:2000] + bytes([raw[2000] ^ 1]) + raw[2001:])
    assert "it is damaged: " in import_(store, server, code=1)
    segment.write_bytes(raw)
    clean = (store / "clean").read_bytes()
    (store / "clean").unlink()
    assert "it was not closed in order" in import_(store, server, code=1)
    (store / "clean").write_bytes(clean)
    stack = Stack(tmp_path, OLD)
    stack.start_all(("registry", "broker"))
    try:
        assert "a broker has it open" in import_(store, server, code=1)
    finally:
        end_all([stack])
    assert server.command("DBSIZE") == 0
    server.command("HSET", KEYS.state, "format", FORMAT)
    assert "broker broker-0: it is not empty" in import_(store, server, code=1)
