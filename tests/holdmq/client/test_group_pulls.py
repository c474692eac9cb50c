from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdmq.client import RouteTable, TopicQueue
from holdmq.client import group_pulls as module
from holdmq.client.group_pulls import GroupPulls
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import Code
from holdmq.message import Message
from holdmq.record.codec import encode_message


class World:
    """Pulls of one consumer over a real connection; `fill` and `queue` change what there is."""

    def __init__(self, routes: RouteTable, broker: Any, **settings: Any) -> None:
        self.broker = broker
        self.queues: dict[TopicQueue, ProcessQueue] = {}
        self.filters = {"t": TagFilter()}
        self.fenced: list[ProcessQueue] = []
        self.came: list[ProcessQueue] = []
        self.pulls = GroupPulls(
            routes, "g", self.queues, self.filters, self.came.append, self.fenced.append, **settings
        )

    def queue(self, queue_id: int, offset: int = 0, is_fresh: bool = False) -> ProcessQueue:
        queue = TopicQueue("t", "broker-0", queue_id)
        process = self.queues[queue] = ProcessQueue(queue, 7 + queue_id, offset, 1, is_fresh)
        self.pulls.pull_soon()
        return process

    def fill(self, queue_id: int, count: int, size: int = 10, tag: str | None = None) -> None:
        for _ in range(count):
            record = encode_message(Message("t", bytes(size), tag), queue_id, 1)
            self.broker.append("t", queue_id, record)
        self.broker._wake()

    @property
    def asked(self) -> list[set[int]]:
        return [{row[1] for row in pull.queues} for pull in self.broker.pulls]


@pytest.fixture
async def routes(registries: list[str], broker: Any, until: Any) -> AsyncIterator[RouteTable]:
    await broker.add_topic("t", 20)
    routes = RouteTable(registries, "me")
    routes.start()
    await routes.topic("t")
    link = routes.link("broker-0")
    await until(lambda: link.is_up)
    yield routes
    await routes.close()


async def test_a_queue_that_is_new_need_not_wait_for_a_held_pull(
    routes: RouteTable, broker: Any, until: Any
) -> None:
    world = World(routes, broker)
    world.queue(0)
    world.queue(1)
    await until(lambda: world.asked == [{0, 1}])
    world.fill(2, 3)
    late = world.queue(2)
    await until(lambda: late.waiting == 3)
    assert world.asked[1] == {2}
    assert broker.pulls[1].group == "g"
    assert broker.pulls[1].generations == [9]
    world.pulls.close()


async def test_only_so_many_pulls_are_held_and_they_come_together_again(
    routes: RouteTable, broker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.PULLS_MAX == 8
    monkeypatch.setattr(module, "PULLS_MAX", 2)
    world = World(routes, broker, hold_ms=300)
    for queue_id in range(3):
        world.queue(queue_id)
        await until(lambda n=queue_id: len(world.asked) > min(n, 1))
    assert world.asked[:2] == [{0}, {1}]
    await until(lambda: {0, 1, 2} in world.asked)
    world.pulls.close()


async def test_a_queue_with_its_share_in_hand_is_not_pulled(
    routes: RouteTable, broker: Any, until: Any
) -> None:
    world = World(routes, broker, buffer_max_bytes=8_000, buffer_max_messages=1_000)
    full, other = world.queue(0), world.queue(1)
    world.fill(0, 100, 100)
    await until(lambda: not world.pulls.has_room(full) and not full.is_asked)
    assert full.waiting_bytes <= 4_000
    world.fill(1, 1)
    await until(lambda: other.waiting == 1)
    waiting = full.waiting
    while (taken := full.take()) is not None:
        full.finish(taken.offset)
    world.pulls.pull_soon()
    await until(lambda: full.waiting and full.floor >= waiting)
    world.pulls.close()


async def test_a_share_of_messages_bounds_as_well(routes: RouteTable, broker: Any, until: Any) -> None:
    world = World(routes, broker, buffer_max_messages=5)
    process = world.queue(0)
    world.fill(0, 5)
    await until(lambda: process.waiting == 5)
    assert not world.pulls.has_room(process)
    world.pulls.close()


@pytest.mark.parametrize(
    ("offset", "is_fresh", "goes_on_at", "skipped"),
    [(5, False, 100, 95), (0, True, 100, 0), (500, False, 103, 0)],
)
async def test_a_position_that_cannot_be_read_is_left_and_that_is_said(
    routes: RouteTable, broker: Any, until: Any, offset: int, is_fresh: bool, goes_on_at: int, skipped: int
) -> None:
    broker.first[("t", 0)] = 100
    world = World(routes, broker)
    world.fill(0, 3)
    with capture_logs() as logs:
        process = world.queue(0, offset, is_fresh)
        await until(lambda: process.next_offset == 103)
    assert process.floor == goes_on_at
    assert world.pulls.skipped == skipped
    said = [entry["offset"] for entry in logs if entry["log_level"] == "error"]
    assert said == ([] if is_fresh else [offset])
    world.pulls.close()


async def test_a_damaged_record_is_passed_over_and_a_fence_is_told(
    routes: RouteTable, broker: Any, until: Any
) -> None:
    world = World(routes, broker)
    broker.cuts[("t", 0)] = Code.CORRUPT
    world.fill(0, 1)
    process = world.queue(0)
    await until(lambda: world.pulls.skipped)
    del broker.cuts[("t", 0)]
    broker.cuts[("t", 1)] = Code.GROUP_FENCED
    fenced = world.queue(1)
    await until(lambda: fenced in world.fenced)
    assert process not in world.fenced
    world.pulls.close()


async def test_filters_are_registered_again_on_a_new_connection(
    routes: RouteTable, broker: Any, until: Any
) -> None:
    world = World(routes, broker)
    world.filters["t"] = TagFilter("a || b/c")
    process = world.queue(0)
    await until(lambda: world.asked)
    broker.close_connections()
    world.fill(0, 2, tag="x")
    world.fill(0, 1, tag="a")
    link = routes.link("broker-0")
    await until(lambda: link.is_up and len(broker.filters) == 1)
    world.pulls.pull_soon()
    await until(lambda: process.waiting == 1)
    assert len(broker.filters) == 2
    world.pulls.close()


async def test_what_comes_for_an_older_turn_is_void(routes: RouteTable, broker: Any, until: Any) -> None:
    world = World(routes, broker)
    process = world.queue(0)
    await until(lambda: world.asked)
    process.discard()
    process.is_stopped = True
    world.fill(0, 2)
    await until(lambda: world.pulls.answers)
    assert process.waiting == 0
    assert world.came == []
    world.pulls.close()
