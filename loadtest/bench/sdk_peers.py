"""HoldMQ's SDK beside NATS JetStream and Redis Streams in one run: messages produced and consumed per second.

    python -m loadtest.bench.sdk_peers [--messages 200000] [--rounds 3] [--size 100] [--batch 4096]

Each target writes its log to files without waiting for the disk: HoldMQ with storage.flush = async, JetStream
with file storage, Redis with an append-only file flushed every second. One process per client, all of them
Python. A round produces the messages in batches, each batch acknowledged, with a few batches on their way,
and then consumes them from the beginning. The targets take turns, so that a drift of the machine's speed
meets all of them.

HoldMQ is measured three ways: `bodies` (send_bodies, poll_raw), `messages` (send_batch and poll, with an
object per message on both sides, as the peers' clients have) and `one-way` (send_one_way).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from holdmq.client import Message, Producer, PullConsumer
from holdmq.errors import StartupError
from holdmq.record.batch import split_records
from loadtest.bench.harness.command import BenchCommand, Options, say, show_rates, take_turns
from loadtest.peers import holdmq_broker, missing_peers, nats, redis

ROUND_MAX_S: Final = 120.0
"""A target that takes longer is stuck."""
WARM_MESSAGES: Final = 5_000
FETCH_MAX: Final = 10_000
"""Messages per read where the client says how many it wants."""


class RoundPlan(NamedTuple):
    """What every target does in a round."""

    messages: int
    size_bytes: int
    batch: int
    in_flight: int

    def batches(self) -> list[list[bytes]]:
        """The bodies, in batches."""
        body = b"x" * self.size_bytes
        full, rest = divmod(self.messages, self.batch)
        return [[body] * self.batch] * full + ([[body] * rest] if rest else [])


class RoundRates(NamedTuple):
    """Messages per second of one round."""

    produced: float
    consumed: float


Round = Callable[[str, RoundPlan, int], Coroutine[Any, Any, RoundRates]]


async def in_flight(plan: RoundPlan, send: Callable[[list[bytes]], Awaitable[Any]]) -> float:
    """Send all batches, `in_flight` of them at a time; return the seconds."""
    waiting = iter(plan.batches())

    async def lane() -> None:
        for batch in waiting:
            await send(batch)

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(plan.in_flight)))
    return time.perf_counter() - began


async def holdmq_bodies(registry: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Measure `send_bodies`, then `poll_raw`."""
    topic = f"bodies-{serial}"
    async with Producer([registry]) as producer:
        seconds = await in_flight(plan, lambda batch: producer.send_bodies(topic, batch))
    async with PullConsumer([registry]) as consumer:
        await consumer.assign([topic], "earliest")
        began = time.perf_counter()
        left = plan.messages
        while left > 0:
            left -= sum(len(split_records(part.records)) for part in await consumer.poll_raw(8 << 20))
        return RoundRates(plan.messages / seconds, plan.messages / (time.perf_counter() - began))


async def holdmq_messages(registry: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Measure `send_batch`, then `poll`."""
    topic = f"messages-{serial}"
    async with Producer([registry]) as producer:
        seconds = await in_flight(
            plan, lambda batch: producer.send_batch([Message(topic, body) for body in batch])
        )
    return RoundRates(plan.messages / seconds, await _poll_all(registry, topic, plan))


async def holdmq_one_way(registry: str, plan: RoundPlan, serial: int) -> RoundRates:
    """`send_one_way` until all are stored, then `poll`."""
    topic = f"one-way-{serial}"
    body = b"x" * plan.size_bytes
    began = time.perf_counter()
    async with Producer([registry]) as producer:
        for i in range(plan.messages):
            await producer.send_one_way(Message(topic, body))
            if i % 500 == 0:
                await asyncio.sleep(0)  # as a program would that has something to read, too
        await producer.close()
        seconds = time.perf_counter() - began
        if producer.numbers()["one_way_stored_total"] != plan.messages:
            raise StartupError("one-way messages were not stored; the broker's log says why")
    return RoundRates(plan.messages / seconds, await _poll_all(registry, topic, plan))


async def _poll_all(registry: str, topic: str, plan: RoundPlan) -> float:
    async with PullConsumer([registry]) as consumer:
        await consumer.assign([topic], "earliest")
        began = time.perf_counter()
        left = plan.messages
        while left > 0:
            left -= len(await consumer.poll(8 << 20))
        return plan.messages / (time.perf_counter() - began)


async def jetstream(address: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Publishes whose acknowledgements are awaited by batch, then fetches of a durable pull consumer."""
    import nats as client
    from nats.js.api import AckPolicy, ConsumerConfig

    connection = await client.connect(f"nats://{address}")
    try:
        # Acknowledgements of a batch are futures of the client, bounded by its own limit.
        stream = connection.jetstream(publish_async_max_pending=plan.batch * plan.in_flight + 1)
        subject = f"bench{serial}"
        await stream.add_stream(name=subject, subjects=[subject])

        async def send(batch: list[bytes]) -> None:
            await asyncio.gather(*[await stream.publish_async(subject, body) for body in batch])

        seconds = await in_flight(plan, send)
        # Without acknowledgements, as the others read.
        settings = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = await stream.pull_subscribe(subject, durable=f"reader{serial}", config=settings)
        began = time.perf_counter()
        left = plan.messages
        while left > 0:
            left -= len(await consumer.fetch(min(left, FETCH_MAX), timeout=30))
        consumed = plan.messages / (time.perf_counter() - began)
        await stream.delete_stream(subject)
        return RoundRates(plan.messages / seconds, consumed)
    finally:
        await connection.close()


def redis_client(address: str, plan: RoundPlan) -> Any:
    """A client of ``HOST:PORT`` with a connection for each batch on its way: a pipeline has one to itself."""
    from redis.asyncio import Redis

    host, _, port = address.rpartition(":")
    return Redis(host=host, port=int(port), max_connections=plan.in_flight + 1)


async def redis_streams(address: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Pipelines of XADD, then XREAD."""
    name = f"bench{serial}"
    async with redis_client(address, plan) as connection:

        async def send(batch: list[bytes]) -> None:
            async with connection.pipeline(transaction=False) as pipeline:
                for body in batch:
                    pipeline.xadd(name, {b"b": body})
                await pipeline.execute()

        seconds = await in_flight(plan, send)
        began = time.perf_counter()
        left, last = plan.messages, b"0"
        while left > 0:
            ((_, entries),) = await connection.xread({name: last}, count=FETCH_MAX)
            last = entries[-1][0]
            left -= len(entries)
        consumed = plan.messages / (time.perf_counter() - began)
        await connection.delete(name)
        return RoundRates(plan.messages / seconds, consumed)


async def bounded(name: str, work: Coroutine[Any, Any, RoundRates]) -> RoundRates:
    """Return what a round measures. Raises StartupError when it takes too long."""
    try:
        async with asyncio.timeout(ROUND_MAX_S):
            return await work
    except TimeoutError:
        raise StartupError(f"{name} did not get through a round within {ROUND_MAX_S:.0f} s") from None


def compare(plan: RoundPlan, rounds: int, directory: Path) -> dict[str, list[RoundRates]]:
    """Return the rates of every round by target."""
    with ExitStack() as stack:
        places = {name: directory / name for name in ("holdmq", "nats", "redis")}
        for place in places.values():
            place.mkdir()
        broker = stack.enter_context(holdmq_broker(places["holdmq"])).registry
        at_nats = stack.enter_context(nats(places["nats"]))
        at_redis = stack.enter_context(redis(places["redis"]))
        targets: dict[str, tuple[Round, str]] = {
            "holdmq bodies": (holdmq_bodies, broker),
            "holdmq messages": (holdmq_messages, broker),
            "holdmq one-way": (holdmq_one_way, broker),
            "nats jetstream": (jetstream, at_nats),
            "redis streams": (redis_streams, at_redis),
        }
        for name, (run, address) in targets.items():
            # Topics and streams are made once, connections tried, caches filled.
            uvloop.run(bounded(name, run(address, plan._replace(messages=WARM_MESSAGES), 0)))
        serials = dict.fromkeys(targets, 0)

        def one_round(name: str) -> RoundRates:
            run, address = targets[name]
            serials[name] += 1
            return uvloop.run(bounded(name, run(address, plan, serials[name])))

        return take_turns(rounds, {name: partial(one_round, name) for name in targets})


def show(results: dict[str, list[RoundRates]]) -> str:
    """Return the results as lines: median, least and most of both rates."""
    lines = []
    for name, rates in results.items():
        both = zip(("produced", "consumed"), zip(*rates, strict=True), strict=True)
        lines.append(f"{name:16} " + "  ".join(f"{what} {show_rates(found)}" for what, found in both))
    return "\n".join(lines)


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines; StartupError when a peer is missing."""
    if missing := missing_peers():
        raise StartupError("\n".join(missing))
    plan = RoundPlan(options.messages, options.size, options.batch, options.in_flight)
    results = compare(plan, options.rounds, home)
    say(json.dumps(results) if options.json else show(results))


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when something is missing or fails."""
    return BenchCommand(
        __doc__,
        messages=(200_000, "of one measurement"),
        size=(100, "payload bytes"),
        batch=(4096, "messages of one batch"),
        in_flight=(4, "batches on their way at a time"),
        rounds=3,
        json=(False, "print the rates of every round as JSON"),
    ).run(measure, flush="async")


if __name__ == "__main__":
    sys.exit(main())
