"""A broker that is killed again and again while it takes over topics, which others make and delete."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from processes import Stack
from two_brokers import Cluster, third_broker, two_brokers

from holdmq.client import Admin
from holdmq.errors import HoldMQError

ALL: Final = {"broker-0", "broker-1", "broker-2"}
TOPICS: Final = 620
"""More than a page."""
KILLS: Final = 5
PATIENCE_S: Final = 90.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path)


@pytest.fixture
def third(cluster: Cluster, tmp_path: Path) -> Iterator[Stack]:
    yield from third_broker(cluster, tmp_path)


async def test_all_brokers_have_the_same_topics_in_the_end(cluster: Cluster, third: Stack) -> None:
    chance = random.Random(7)
    wanted = {f"t{number}" for number in range(TOPICS)}
    async with Admin(cluster.registries) as admin:
        await asyncio.gather(*(admin.create_topic(name, 1) for name in sorted(wanted)))
        goes_on = True

        async def change() -> None:
            """Delete topics, and make others, also some that were deleted before."""
            number = 0
            while goes_on:
                number += 1
                name = chance.choice(sorted(wanted)) if chance.random() < 0.6 else f"t{number % 200}"
                # Who is killed is still live at the registry for a moment: the others have done it.
                with contextlib.suppress(HoldMQError):
                    if name in wanted:
                        wanted.discard(name)
                        await admin.delete_topic(name, force=True)
                    else:
                        wanted.add(name)
                        await admin.create_topic(name, 1)
                await asyncio.sleep(0.02)

        changing = asyncio.create_task(change())
        for _ in range(KILLS):
            await asyncio.to_thread(third.start, "broker")
            await asyncio.sleep(chance.uniform(0.8, 2.5))
            await asyncio.to_thread(third.stop, "broker", signal.SIGKILL)
        await asyncio.to_thread(third.start, "broker")
        goes_on = False
        await changing

        async def found() -> dict[str, set[str]]:
            return {view.topic: set(view.rows) for view in await admin.topics()}

        async with asyncio.timeout(PATIENCE_S):
            while await found() != dict.fromkeys(wanted, ALL):
                await asyncio.sleep(0.2)
