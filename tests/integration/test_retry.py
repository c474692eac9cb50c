"""Retries, dead letters and delays over real processes, and over the broker's death."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdmq.client import Consumer, DeadLetters, Message, Producer, PullConsumer, TopicQueue
from holdmq.errors import Code, HoldMQError, RemoteError, UsageError
from holdmq.record.origin import Origin
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.move_headers import (
    TO_DEAD_LETTERS,
    SendBackRequest,
    SendBackResponse,
    SendBackResult,
    SentBack,
)

StackMaker = Callable[..., Any]
LEVELS_MS = [150, 300, 450]


@pytest.fixture
def stack(holdmq_stack: StackMaker) -> Any:
    return holdmq_stack(services=("registry", "broker"))


@pytest.fixture
def registries(stack: Any) -> list[str]:
    return [stack.registry]


async def set_group(producer: Producer, group: str, **settings: Any) -> None:
    await producer.routes.refresh()
    link = producer.routes.link("broker-0").client
    await link.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(group, **settings), 30.0)


async def until(holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 100.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not await holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.05)


async def dead_letters(letters: DeadLetters, group: str) -> list[bytes]:
    return [letter.message.body async for letter in letters.read(group)]


async def test_the_first_levels_and_then_the_dead_letters_and_nobody_else_sees_them(
    registries: list[str],
) -> None:
    seen: dict[bytes, list[Message]] = defaultdict(list)
    others: list[bytes] = []

    async def fail_bad(message: Message) -> bool:
        seen[message.body].append(message)
        return not message.body.startswith(b"bad")

    async with Producer(registries) as producer, DeadLetters(registries) as letters:
        await set_group(producer, "g", delay_levels_ms=LEVELS_MS, retry_max_times=3)
        failing = Consumer(registries, "g", fail_bad, ["t"], start="earliest")
        other = Consumer(registries, "other", lambda m: others.append(m.body), ["t"], start="earliest")
        async with failing, other:
            sent = [Message("t", body, "a/b", ("k",)) for body in (b"bad 1", b"good", b"bad 2")]
            results = await producer.send_batch(sent)

            async def is_over() -> bool:
                return (await letters.groups()).get("g", (0, 0))[0] == 2 and len(others) == 3

            await until(is_over, "two dead letters")
        found = {letter.message.body: letter async for letter in letters.read("g")}
    assert sorted(others) == [b"bad 1", b"bad 2", b"good"]
    assert len(seen[b"good"]) == 1
    for body in (b"bad 1", b"bad 2"):
        tries = seen[body]
        assert [m.reconsume_times for m in tries] == [0, 1, 2, 3]
        assert {(m.topic, m.tag, m.keys, m.unique_id, m.born_ms) for m in tries} == {
            ("t", "a/b", ("k",), tries[0].unique_id, tries[0].born_ms)
        }
        for before, after, delay_ms in zip(tries, tries[1:], LEVELS_MS, strict=False):
            assert after.store_ms - before.store_ms >= delay_ms
        at = next(r for m, r in zip(sent, results, strict=True) if m.body == body)
        assert found[body].origin == Origin("t", at.queue.queue_id, at.queue_offset, 4)
        assert found[body].message.reconsume_times == 3


async def test_a_member_that_starts_later_gets_the_retries_that_wait(registries: list[str]) -> None:
    first: list[Message] = []
    second: list[Message] = []

    async def fail(message: Message) -> bool:
        first.append(message)
        return False

    async with Producer(registries) as producer:
        await set_group(producer, "g", delay_levels_ms=[1_500])
        async with Consumer(registries, "g", fail, ["t"], start="earliest") as consumer:
            await producer.send(Message("t", b"bad"))

            async def is_sent_back() -> bool:
                return consumer.numbers()["sent_back_total"] == 1

            await until(is_sent_back, "sent back")
        async with Consumer(registries, "g", second.append, ["t"]):

            async def is_retried() -> bool:
                return bool(second)

            await until(is_retried, "the retry")
    # Once, but for a retry that came while the first member was still on its way out.
    assert (second[0].body, second[0].topic, second[0].reconsume_times) == (b"bad", "t", len(first))


async def test_consumers_of_a_broker_that_dies_again_and_again_fail_exactly_once_for_good(
    stack: Any, registries: list[str]
) -> None:
    """Killed between send_back and its answer, between release and delivery, and wherever it hits."""
    messages = 300
    attempts: Counter[tuple[bytes, int]] = Counter()

    async def fail_some(message: Message) -> bool:
        attempts[message.body, message.reconsume_times] += 1
        return int(message.body) % 3 != 0

    async with Producer(registries) as producer, DeadLetters(registries) as letters:
        await set_group(producer, "g", delay_levels_ms=[100, 200], retry_max_times=2)
        async with Consumer(registries, "g", fail_some, ["t"], start="earliest"):
            for round_ in range(3):
                part = range(round_ * 100, round_ * 100 + 100)
                await producer.send_batch([Message("t", b"%d" % i) for i in part])
                await asyncio.sleep(0.15 * (round_ + 1))
                await asyncio.to_thread(stack.restart, "broker", signal.SIGKILL)

            async def is_over() -> bool:
                return (await letters.groups()).get("g", (0, 0))[0] >= messages // 3

            await until(is_over, "a hundred dead letters")
        dead = await dead_letters(letters, "g")
    expected = [b"%d" % i for i in range(0, messages, 3)]
    assert sorted(dead) == sorted(expected)
    for body in expected:
        assert all(attempts[body, times] >= 1 for times in range(3))
    assert max(times for _, times in attempts) == 2
    assert {body for body, _ in attempts} == {b"%d" % i for i in range(messages)}


async def test_what_was_sent_back_without_an_answer_is_sent_back_again_and_counted_once(
    stack: Any, registries: list[str]
) -> None:
    messages = 400
    async with Producer(registries) as producer, DeadLetters(registries) as letters:
        await set_group(producer, "g", delay_levels_ms=[50])
        await producer.routes.ensure_topic("t", timeout_s=30)
        queue = TopicQueue("t", "broker-0", 0)
        await producer.send_batch([Message("t", b"%d" % i) for i in range(messages)], queue=queue)
        answers: list[SendBackResult | None] = [None] * messages

        async def send_back(i: int) -> None:
            place = SentBack("t", 0, i, 0, TO_DEAD_LETTERS if i % 2 else 0)
            link = producer.routes.link("broker-0").client
            while answers[i] is None:
                try:
                    reply = await link.call(RequestCode.SEND_BACK, SendBackRequest("g", [place]), 30.0)
                    (answer,) = rows(SendBackResult, reply.header(SendBackResponse).results)
                    assert answer.status == Code.OK
                    answers[i] = answer
                except HoldMQError:
                    await asyncio.sleep(0.02)

        for first in range(0, messages, 100):
            sending = [asyncio.ensure_future(send_back(i)) for i in range(first, first + 100)]
            # Until some of them are answered, and others are on their way.
            while not any(answers[first : first + 100]):
                await asyncio.sleep(0)
            await asyncio.to_thread(stack.restart, "broker", signal.SIGKILL)
            await asyncio.gather(*sending)
        # Once more, every one of them: nothing new comes of it.
        answers = [None] * messages
        await asyncio.gather(*(send_back(i) for i in range(messages)))
        assert {answer.due_ms for answer in answers if answer is not None} == {-1}
        assert sorted(await dead_letters(letters, "g")) == sorted(b"%d" % i for i in range(1, messages, 2))
        retried: list[Message] = []
        async with Consumer(registries, "g", retried.append, ["t"]):

            async def is_over() -> bool:
                return len(retried) >= messages // 2

            await until(is_over, "all retries")
        assert sorted(m.body for m in retried) == sorted(b"%d" % i for i in range(0, messages, 2))


async def test_producers_delay_by_time_by_moment_and_by_level(stack: Any, registries: list[str]) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        await producer.routes.ensure_topic("t", timeout_s=30)
        await consumer.assign(["t"], "earliest")
        sent_ms = time.time_ns() // 1_000_000
        later = await producer.send(Message("t", b"later"), delay_ms=2_000)
        await producer.send(Message("t", b"level"), delay_level=1)
        await producer.send_batch([Message("t", b"moment")], due=sent_ms + 3_000)
        await producer.send(Message("t", b"far"), due=1 << 50)
        now = await producer.send(Message("t", b"now"))
        assert (later.queue_offset, later.message_id) == (-1, None)
        assert now.message_id is not None
        got: dict[bytes, Message] = {}
        while len(got) < 4:
            got |= {message.body: message for message in await consumer.poll(hold_ms=5_000)}
        assert got.keys() == {b"now", b"level", b"later", b"moment"}
        for body, delay_ms in ((b"later", 2_000), (b"level", 1_000), (b"moment", 3_000)):
            assert got[body].store_ms - sent_ms >= delay_ms
        assert stack.metric("broker", "holdmq_broker_produce_delayed_total") == 4

        async def is_one_left() -> bool:
            return stack.metric("broker", "holdmq_store_timer_pending") == 1

        await until(is_one_left, "the one that is far away waits")
        with pytest.raises(RemoteError, match="KIND_UNFIT"):
            await producer.send(Message("t#tmp", b"x"), delay_ms=5)
        for wrong in ({"delay_ms": -1}, {"delay_level": 19}, {"delay_ms": 1, "delay_level": 1}):
            with pytest.raises(UsageError):
                await producer.send(Message("t", b"x"), **wrong)


async def test_what_is_delayed_and_what_is_not_share_a_queue_in_one_turn(registries: list[str]) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        await producer.routes.ensure_topic("t", timeout_s=30)
        queue = TopicQueue("t", "broker-0", 1)
        sent_ms = time.time_ns() // 1_000_000
        sending = [
            producer.send(Message("t", b"%d" % i), queue=queue, delay_ms=700 if i % 3 == 1 else None)
            for i in range(30)
        ]
        results = await asyncio.gather(*sending)
        assert [r.queue_offset >= 0 for r in results] == [i % 3 != 1 for i in range(30)]
        await consumer.assign([queue], "earliest")
        got: list[Message] = []
        while len(got) < 30:
            got += await consumer.poll()
    at_once = [m.body for m in got if int(m.body) % 3 != 1]
    late = [m.body for m in got if int(m.body) % 3 == 1]
    assert at_once == [b"%d" % i for i in range(30) if i % 3 != 1]
    assert late == [b"%d" % i for i in range(30) if i % 3 == 1]
    assert all(m.store_ms - sent_ms >= 700 for m in got if m.body in late)


async def test_delayed_messages_survive_the_broker_and_come_once(stack: Any, registries: list[str]) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        sending = [
            asyncio.ensure_future(producer.send(Message("t", b"%d" % i), delay_ms=i * 5, timeout_s=200.0))
            for i in range(400)
        ]
        await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(2):
            await asyncio.to_thread(stack.restart, "broker", signal.SIGKILL)
        await asyncio.gather(*sending)
        await consumer.assign(["t"], "earliest")
        got: Counter[bytes] = Counter()
        while len(got) < 400 or stack.metric("broker", "holdmq_store_timer_pending"):
            got.update(message.body for message in await consumer.poll())
        got.update(message.body for message in await consumer.poll(hold_ms=500))
    # What is sent again, as the broker took it and could not answer before it died, is known to be there.
    assert got == Counter(b"%d" % i for i in range(400))
