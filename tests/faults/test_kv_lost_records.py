"""A key-value server that comes back without its newest writes: whoever is to know is told how many went."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Stack, running_stack, wait_until
from receivers import HookServer
from valkey_servers import ValkeyServer

from holdmq.client.producer import Producer
from holdmq.message import Message

MESSAGES = 50
LOST = "holdmq_store_kv_lost_records_lately"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """One that has nothing once it was killed."""
    made = ValkeyServer(tmp_path / "valkey")
    made.start()
    yield made
    made.end()


@pytest.fixture
def hook() -> Iterator[HookServer]:
    made = HookServer()
    yield made
    made.close()


def test_messages_that_the_servers_lost_are_an_alarm_that_ends(
    server: ValkeyServer, hook: HookServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "storage.engine": "kv",
        "storage.kv.url": server.url,
        "storage.kv.lease_ms": 2000,
        "alarms.interval_s": 0.2,
        "alarms.cooldown_s": 15,
        "alarms.webhook_url": hook.url,
    }
    with running_stack(tmp_path, "registry", "broker", **settings) as stack:
        asyncio.run(send(stack))
        assert stack.metric("broker", LOST) == 0
        server.restart(signal.SIGKILL)
        told = [told_of(hook, "raised"), told_of(hook, "over")]
        assert {alarm["name"] for alarm in told} == {"broker-0"}
        assert told[0]["value"] >= MESSAGES
        assert "the key-value servers lost " in told[0]["text"]
        wait_until(lambda: stack.metric("broker", LOST) >= MESSAGES, "its metric says so")
        # It goes on with what comes now.
        asyncio.run(send(stack))
    assert "the servers lost confirmed records" in stack.log("broker")


async def send(stack: Stack) -> None:
    async with Producer([stack.registry]) as producer:
        await producer.send_batch([Message("orders", b"%d" % i) for i in range(MESSAGES)])


def told_of(hook: HookServer, state: str) -> dict[str, Any]:
    """The next notice of the alarm, of this state."""
    while True:
        for alarm in hook.next()["alarms"]:
            if (alarm["kind"], alarm["state"]) == ("lost_records", state):
                found: dict[str, Any] = alarm
                return found
