"""Shared groups with real processes."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdmq.client import Admin, Message, Producer, SharedConsumer, SharedMessage
from holdmq.client.shared_calls import SharedView
from holdmq.errors import RemoteError, TransportError

GUIDE = Path(__file__).parents[2] / "docs" / "shared.md"
StackMaker = Callable[..., Any]


@pytest.fixture
def stack(holdmq_stack: StackMaker) -> Any:
    return holdmq_stack(services=("registry", "broker"))


@pytest.fixture
def registries(stack: Any) -> list[str]:
    return [f"127.0.0.1:{stack.registry_port}"]


async def test_20_members_on_4_queues_all_receive_and_a_member_that_never_acks_loses_its_messages(
    registries: list[str],
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic("t", 4)
    got: dict[int, list[bytes]] = {n: [] for n in range(20)}
    attempts: dict[bytes, int] = {}
    kept: list[bytes] = []
    sent = {b"%d" % i for i in range(2_000)}
    everything = asyncio.Event()

    def handler_of(number: int) -> Callable[[SharedMessage], Any]:
        async def handle(message: SharedMessage) -> None:
            got[number].append(message.body)
            attempts[message.body] = message.reconsume_times
            if attempts.keys() >= sent:
                everything.set()
            await asyncio.sleep(0.001)

        return handle

    consumers = [
        SharedConsumer(registries, "g", ["t"], handler_of(number), concurrency=4) for number in range(20)
    ]
    async with SharedConsumer(registries, "g", ["t"], invisible_s=1.0, ready_max=10) as never:
        for consumer in consumers:
            await consumer.start()
        async with Producer(registries) as producer:
            keeping = asyncio.ensure_future(never.pull(10, 20_000))
            for first in range(0, 2_000, 200):
                await producer.send_batch([Message("t", b"%d" % i) for i in range(first, first + 200)])
        kept += [message.body for message in await keeping]
        await everything.wait()
        async with Admin(registries) as admin:
            view = (await admin.shared_groups("g"))["broker-0"]
            assert isinstance(view, SharedView)
            assert {row.queue_id for row in view.queues if row.topic == "t"} == {0, 1, 2, 3}
            assert len({row.client_id for row in view.members}) == 21
        for consumer in consumers:
            await consumer.close()
    assert all(got.values()), "every member received"
    assert kept
    assert {attempts[body] for body in kept} == {1}
    assert Counter(body for bodies in got.values() for body in bodies) == Counter(sent)


async def test_kill_9_of_the_broker_loses_nothing_and_repeats_nothing_that_was_acknowledged(
    stack: Any, registries: list[str]
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic("t", 4)
    sent: set[bytes] = set()
    seen: Counter[bytes] = Counter()
    acknowledged: dict[tuple[int, int], bytes] = {}
    # The log may have an acknowledgement whose answer the kill took: its message need not come again.
    unanswered: dict[tuple[int, int], bytes] = {}
    repeated: list[bytes] = []
    is_over = False

    async def is_all_done() -> bool:
        async with Admin(registries) as admin:
            view = (await admin.shared_groups("g")).get("broker-0")
        return isinstance(view, SharedView) and all(row.floor == row.end_offset for row in view.queues)

    async def member() -> None:
        async with SharedConsumer(registries, "g", ["t"], invisible_s=2.0) as consumer:
            while not is_over or not await is_all_done():
                messages = await consumer.pull(50, 200)
                # Now, when they come: while these wait, the time of some ends, and others acknowledge them.
                repeated.extend(m.body for m in messages if (m.queue_id, m.queue_offset) in acknowledged)
                for message in messages:
                    seen[message.body] += 1
                    place = message.queue_id, message.queue_offset
                    try:
                        await consumer.ack(message)
                        acknowledged[place] = message.body
                    except TransportError:
                        unanswered[place] = message.body
                    except RemoteError:
                        pass  # it was taken back before: it comes again

    async with Producer(registries, send_timeout_s=200.0) as producer:
        members = [asyncio.ensure_future(member()) for _ in range(6)]
        # The group has begun when a message that is sent again and again arrives.
        number = 0
        while not seen:
            await producer.send(Message("t", b"first %d" % number))
            number += 1
        for _ in range(3):
            for _ in range(20):
                batch = [Message("t", b"%d" % (number + i)) for i in range(20)]
                number += 20
                await producer.send_batch(batch)
                sent.update(message.body for message in batch)
            await asyncio.to_thread(stack.restart, "broker", signal.SIGKILL)
        is_over = True
        await asyncio.gather(*members)
    assert len(sent) == 1_200
    assert sent <= {*acknowledged.values(), *unanswered.values()}
    assert repeated == []


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples())))
def test_the_guide_s_examples_run(stack: Any, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = examples()[number].replace("127.0.0.1:9876", f"127.0.0.1:{stack.registry_port}")
    exec(compile(code, f"{GUIDE.name} example {number}", "exec"), {"__name__": "__main__"})
    shown = re.findall(r"^# prints: (.*)$", code, re.MULTILINE)
    printed = [line for line in capsys.readouterr().out.splitlines() if not re.match(r"\d{4}-\d\d-", line)]
    assert [line for line in printed if line in shown] == shown
