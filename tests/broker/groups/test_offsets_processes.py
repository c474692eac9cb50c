"""The offset file of a real broker: killed, damaged, taken away. No group jumps in silence."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from group_peer import GroupPeer
from processes import Stack, end_all, running_stack, wait_until

from holdmq.client.sync import SyncProducer
from holdmq.message import Message
from holdmq.wire.codes import RequestCode
from holdmq.wire.offset_headers import TO_OFFSET, OffsetResetRequest

QUEUES = range(4)
SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A registry and what a broker left in its store: a topic of which group g consumed 7 of each queue."""
    stack = Stack(tmp_path_factory.mktemp("made"), {"storage.segment_size_bytes": SEGMENT_BYTES})
    stack.start("registry")
    try:
        stack.start("broker")
        with SyncProducer([stack.registry]) as producer:
            for i in range(200):
                producer.send(Message("devices", b"%d" % i), key=f"{i}")
        assert run(stack, lambda one: report(one, 5)) == [-1] * 4
        assert run(stack, lambda one: report(one, 7)) == [5] * 4
        assert stack.stop("broker") == 0
        yield stack
    finally:
        end_all([stack])


@pytest.fixture
def consumed(made: Stack, tmp_path: Path) -> Iterator[Stack]:
    """A stopped broker with that registry and a copy of that store."""
    shutil.copytree(made.directory / "store", tmp_path / "store")
    stack = Stack(
        tmp_path, {"registry.port": made.registry_port, "storage.segment_size_bytes": SEGMENT_BYTES}
    )
    try:
        yield stack
    finally:
        end_all([stack])


def run(
    stack: Stack, action: Callable[[GroupPeer], Awaitable[None]] | None = None, group: str = "g"
) -> list[int]:
    """Join, lease every queue, act if told to; the offsets from which the leases let consume."""

    async def consume() -> list[int]:
        one = GroupPeer(stack.broker_port, "one", group)
        try:
            await one.join("devices")
            leased = await one.lease(*QUEUES, topic="devices")
            if action is not None:
                await action(one)
            return [row.offset for row in leased]
        finally:
            await one.client.close()

    return asyncio.run(consume())


async def report(one: GroupPeer, offset: int) -> None:
    for queue_id in QUEUES:
        assert await one.report(queue_id, offset, topic="devices", wait_for_disk=True) == []


def offsets(stack: Stack, group: str = "g") -> list[int]:
    return run(stack, group=group)


def path_of(stack: Stack, name: str = "consumerOffset.json") -> Path:
    return stack.directory / "store" / "config" / name


def refusal(stack: Stack) -> str:
    """Start the broker; it must end with exit code 1 and one sentence, which is returned."""
    assert stack.start("broker", wait=False).wait(60) == 1
    del stack.processes["broker"]
    assert "Traceback" not in stack.log("broker")
    sentence = json.loads(stack.log("broker").splitlines()[-1])
    assert sentence["level"] == "error"
    return str(sentence["event"])


def start_with_backups(stack: Stack) -> None:
    stack.start("broker", "--accept-backup")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def halve(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.json"))


DAMAGES = [flip, halve, empty, rename]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_offset_file_falls_back_to_its_backup_and_says_so(
    consumed: Stack, damage: Callable[[Path], None]
) -> None:
    damage(path_of(consumed))
    consumed.start("broker")
    assert all(offset in (5, 7) for offset in offsets(consumed))
    said = [json.loads(line) for line in consumed.log("broker").splitlines() if line.startswith("{")]
    told = [line for line in said if "consumerOffset.json cannot be used; its backup is" in line["event"]]
    assert len(told) == 1
    assert told[0]["level"] == "error"
    assert told[0]["backup"].endswith("consumerOffset.json.bak")
    # What it fell back to is whole again, and so is the next start.
    consumed.restart("broker", signal.SIGKILL)
    assert all(offset in (5, 7) for offset in offsets(consumed))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_group_that_began_or_was_reset_just_before_does_not_jump_with_the_backup(
    consumed: Stack, damage: Callable[[Path], None]
) -> None:
    async def begin_and_reset() -> None:
        began = GroupPeer(consumed.broker_port, "two", group="began")
        try:
            await began.join("devices")
            await began.lease(*QUEUES, topic="devices")
            await report(began, 9)
            reset = OffsetResetRequest("g", "devices", TO_OFFSET, 2)
            await began.client.call(RequestCode.OFFSET_RESET, reset)
        finally:
            await began.client.close()

    consumed.start("broker")
    asyncio.run(begin_and_reset())
    consumed.stop("broker", signal.SIGKILL)
    damage(path_of(consumed))
    consumed.start("broker")
    assert offsets(consumed) == [2] * 4
    assert offsets(consumed, "began") == [9] * 4


def test_without_a_backup_that_can_be_used_the_broker_refuses_to_start(consumed: Stack) -> None:
    path = path_of(consumed)
    backup = path.with_name(path.name + ".bak")
    kept = path.read_bytes()
    flip(path)
    flip(backup)
    sentence = refusal(consumed)
    assert "consumerOffset.json" in sentence
    assert "its backup too" in sentence
    path.unlink()
    backup.unlink()
    sentence = refusal(consumed)
    assert "consumerOffset.json" in sentence
    assert "--accept-backup" in sentence
    assert not path.exists()
    path.write_bytes(kept)
    consumed.start("broker")
    assert offsets(consumed) == [7] * 4


def test_to_go_on_without_any_offsets_has_to_be_said(consumed: Stack) -> None:
    path = path_of(consumed)
    path.unlink()
    path.with_name(path.name + ".bak").unlink()
    start_with_backups(consumed)
    assert offsets(consumed) == [-1] * 4
    assert "no group has an offset" in consumed.log("broker")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_group_file_is_refused_by_name_and_its_backup_only_taken_when_told(
    consumed: Stack, damage: Callable[[Path], None]
) -> None:
    path = path_of(consumed, "subscriptionGroup.json")
    damage(path)
    sentence = refusal(consumed)
    assert "subscriptionGroup.json" in sentence
    assert "--accept-backup" in sentence
    start_with_backups(consumed)
    assert offsets(consumed) == [7] * 4


def test_a_killed_broker_has_what_was_answered_from_disk_and_fences_what_was_before(consumed: Stack) -> None:
    consumed.start("broker")

    async def consume() -> None:
        one = GroupPeer(consumed.broker_port, "one")
        await one.join("devices")
        await one.lease(*QUEUES, topic="devices")
        old = one.generations["devices", 0]
        await report(one, 9)
        await asyncio.to_thread(consumed.restart, "broker", signal.SIGKILL)
        again = GroupPeer(consumed.broker_port, "one")
        await again.join("devices")
        leased = await again.lease(*QUEUES, topic="devices")
        assert [row.offset for row in leased] == [9] * 4
        assert leased[0].generation > old
        refused = await again.report(0, 10, topic="devices", generation=old)
        assert len(refused) == 1
        await one.client.close()
        await again.client.close()

    asyncio.run(consume())


def test_offsets_come_to_the_file_by_themselves(consumed: Stack) -> None:
    consumed.set("broker.offset_save_interval_s", 0.2)
    consumed.start("broker")

    async def advance(one: GroupPeer) -> None:
        assert await one.report(0, 9, topic="devices") == []

    run(consumed, advance)

    def saved() -> bool:
        table = json.loads(path_of(consumed).read_text())["content"]["offsetTable"]
        return bool(table["devices@g"]["0"] == 9)

    wait_until(saved, "the offset is in consumerOffset.json")


def test_what_a_group_has_yet_to_consume_is_kept_and_goes_when_it_has(tmp_path: Path) -> None:
    settings = {
        "storage.delete": "consumed",
        "storage.segment_size_bytes": 1 << 20,
        "storage.retention_bytes": 1 << 20,
        "storage.retention_interval_ms": 50,
        "broker.topic_queues_default": 1,
        "broker.offset_save_interval_s": 0.2,
    }
    with running_stack(tmp_path, "registry", "broker", **settings) as stack:
        with SyncProducer([stack.registry]) as producer:
            producer.send(Message("devices", b"first"))
            run_one(stack, 1)
            for _ in range(6):
                producer.send_batch([Message("devices", bytes(4096))] * 250)
        waits, deleted = "holdmq_store_retention_waits_total", "holdmq_store_retention_segments_deleted_total"
        wait_until(lambda: "group g" in stack.log("broker"), "a segment is kept for the group")
        assert stack.metric("broker", waits) > 0
        assert stack.metric("broker", deleted) == 0
        run_one(stack, 1501)
        wait_until(lambda: stack.metric("broker", deleted) > 0, "what is consumed goes")


def run_one(stack: Stack, offset: int) -> None:
    """The group consumes the topic's only queue up to an offset."""

    async def consume() -> None:
        one = GroupPeer(stack.broker_port, "one")
        await one.join("devices")
        await one.lease(0, topic="devices")
        assert await one.report(0, offset, topic="devices", wait_for_disk=True) == []
        await one.client.close()

    asyncio.run(consume())
