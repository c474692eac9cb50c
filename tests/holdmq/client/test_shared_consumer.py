"""The shared consumer against real processes: push and pull, failures, leaving, what cannot be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdmq.client import Message, Producer, SharedConsumer, SharedMessage
from holdmq.errors import Code, RemoteError, UsageError

StackMaker = Callable[..., Any]


@pytest.fixture
def registries(holdmq_stack: StackMaker) -> list[str]:
    stack = holdmq_stack(services=("registry", "broker"))
    return [f"127.0.0.1:{stack.registry_port}"]


@pytest.mark.parametrize(
    ("group", "topics", "settings"),
    [
        ("g#", ["t"], {}),
        ("g", [], {}),
        ("g", "t", {}),
        ("g", ["%SHARED%"], {}),
        ("g", {"t": "a/#/b"}, {}),
        ("g", ["t"], {"start": "now"}),
        ("g", ["t"], {"concurrency": 0}),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_asked(
    group: str, topics: Any, settings: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        SharedConsumer(["127.0.0.1:1"], group, topics, **settings)


async def test_what_is_no_message_is_refused_in_words() -> None:
    consumer: Any = SharedConsumer(["127.0.0.1:1"], "g", ["t"])
    message = SharedMessage("t", b"")
    for call in (consumer.ack([message]), consumer.nack(0.3), consumer.extend(message, invisible_s=1)):
        with pytest.raises(UsageError, match=r"one by one|cannot be settled"):
            await call


async def test_a_handler_decides_about_each_message(registries: list[str]) -> None:
    """A plain function runs on a thread; one that asks for a delay or for time gets it."""
    seen: list[tuple[str, int, str]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocking(message: SharedMessage) -> bool:
        seen.append((message.body.decode(), message.reconsume_times, threading.current_thread().name[:6]))
        if len(seen) == 3:
            loop.call_soon_threadsafe(done.set)
        return message.reconsume_times > 0 or message.body != b"again"

    async with Producer(registries) as producer:
        async with SharedConsumer(registries, "blocking", ["t"], blocking) as consumer:
            await producer.send_batch([Message("t", b"once"), Message("t", b"again")])
            await done.wait()
        assert sorted(seen) == [("again", 0, "holdmq"), ("again", 1, "holdmq"), ("once", 0, "holdmq")]
        assert (consumer.handled, consumer.failed) == (2, 1)

        at: list[float] = []
        longer: list[int] = []
        done.clear()

        async def patient(message: SharedMessage) -> None:
            if message.body == b"later":
                at.append(loop.time())
                if len(at) == 1:
                    await consumer.nack(message, delay_s=0.3)
            else:
                await consumer.extend(message, invisible_s=60)
                await asyncio.sleep(5.5)
                longer.append(message.reconsume_times)
            if len(at) == 2 and longer:
                done.set()

        consumer = SharedConsumer(registries, "patient", ["t"], patient, invisible_s=5.0)
        async with consumer:
            await producer.send_batch([Message("t", b"later"), Message("t", b"long")])
            await done.wait()
        assert at[1] - at[0] >= 0.3
        assert longer == [0]
        assert consumer.numbers()["acks_refused_total"] == 0


async def test_what_a_member_did_not_begin_with_is_given_back_without_an_attempt(
    registries: list[str],
) -> None:
    async with Producer(registries) as producer, SharedConsumer(registries, "g", ["t"]) as second:
        first = SharedConsumer(registries, "g", ["t"])
        await first.start()
        await producer.send_batch([Message("t", b"%d" % i) for i in range(20)])
        held: list[SharedMessage] = []
        while len(held) < 5:
            held += await first.pull(5 - len(held), 5_000)
        await first.ack(*held[:2])
        await first.nack(held[2])
        await first.close()
        found: dict[bytes, int] = {}
        while len(found) < 18:
            messages = await second.pull(100, 5_000)
            found.update({message.body: message.reconsume_times for message in messages})
            await second.ack(*messages)
        assert found.pop(held[2].body) == 1
        assert set(found.values()) == {0}
        assert not {message.body for message in held[:2]} & found.keys()
        with pytest.raises(RemoteError) as caught:
            await first.ack(held[3])
        assert caught.value.code == Code.RECEIPT_UNKNOWN
        with pytest.raises(UsageError, match="not started"):
            await first.pull()


async def test_members_must_agree_and_topics_may_come_later(registries: list[str]) -> None:
    async with (
        SharedConsumer(registries, "g", {"unborn": "a/#"}) as consumer,
        Producer(registries) as producer,
    ):
        await producer.send_batch([Message("unborn", b"1", "a/b"), Message("unborn", b"2", "b")])
        (message,) = await consumer.pull(10, 20_000)
        assert (message.topic, message.tag, message.body) == ("unborn", "a/b", b"1")
        await consumer.ack(message)
        with pytest.raises(RemoteError) as caught:
            await SharedConsumer(registries, "g", ["unborn"]).start()
        assert caught.value.code == Code.MODE_CONFLICT
        with pytest.raises(UsageError, match="handler"):
            async with SharedConsumer(registries, "h", ["unborn"], lambda _: None) as pushed:
                await pushed.pull()
