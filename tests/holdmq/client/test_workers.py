from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from holdmq.client.workers import Outcome, Workers
from holdmq.message import Message

Until = Callable[[Callable[[], Any]], Any]


class Job:
    def __init__(self, number: int) -> None:
        self.first = Message("t", b"%d" % number)
        self.messages = [self.first]


class Work:
    """Jobs, and how they were settled."""

    def __init__(self, handler: Any, concurrency: int) -> None:
        self.jobs: deque[Job] = deque()
        self.settled: list[tuple[int, Outcome]] = []
        self.workers: Workers[Job] = Workers(handler, concurrency, self.take, self.settle)

    def take(self) -> Job | None:
        return self.jobs.popleft() if self.jobs else None

    async def settle(self, job: Job, outcome: Outcome) -> None:
        self.settled.append((int(job.first.body), outcome))

    def add(self, count: int) -> None:
        self.jobs.extend(Job(i) for i in range(count))
        self.workers.wake(count)


async def test_no_more_than_so_many_handlers_run_and_no_more_tasks_exist(until: Until) -> None:
    gate = asyncio.Event()

    async def handle(_: Message) -> None:
        await gate.wait()

    work = Work(handle, 3)
    before = len(asyncio.all_tasks())
    work.add(50)
    await until(lambda: work.workers.running == 3)
    assert len(asyncio.all_tasks()) == before + 3
    gate.set()
    await until(lambda: len(work.settled) == 50)
    work.add(5)
    await until(lambda: len(work.settled) == 55)
    assert len(asyncio.all_tasks()) == before + 3
    assert await work.workers.close(1) == 0


async def test_what_a_handler_returns_or_raises_is_what_becomes_of_it(until: Until) -> None:
    def plain(message: Message) -> Any:
        assert threading.current_thread().name.startswith("holdmq handler")
        if message.body == b"3":
            raise ZeroDivisionError
        return {0: None, 1: True, 2: False}[int(message.body)]

    async def coroutine(message: Message) -> Any:
        if message.body == b"3":
            raise ZeroDivisionError
        return {0: None, 1: True, 2: False}[int(message.body)]

    class Callables:
        async def __call__(self, message: Message) -> Any:
            return await coroutine(message)

    for handler in (plain, coroutine, Callables(), lambda m: coroutine(m) if m.body != b"3" else 1 / 0):
        work = Work(handler, 2)
        work.add(4)
        await until(lambda: len(work.settled) == 4)  # noqa: B023
        assert sorted(work.settled) == [(0, True), (1, True), (2, False), (3, False)]
        assert await work.workers.close(1) == 0


async def test_handlers_that_never_wait_leave_the_loop_its_turn(until: Until) -> None:
    turns = 0

    async def handle(_: Message) -> None:
        pass

    work = Work(handle, 1)
    work.add(100_000)

    def turn() -> None:
        nonlocal turns
        if work.jobs:
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

    turn()
    await until(lambda: len(work.settled) == 100_000)
    assert turns > 2
    await work.workers.close(1)


@pytest.mark.parametrize("count", [0, 2])
async def test_closing_cancels_what_does_not_end_in_time(until: Until, count: int) -> None:
    never = asyncio.Event()

    async def handle(_: Message) -> None:
        await never.wait()

    work = Work(handle, 2)
    work.add(count)
    await until(lambda: work.workers.running == count)
    assert await work.workers.close(0.01) == count
    work.add(1)
    assert work.settled == []
