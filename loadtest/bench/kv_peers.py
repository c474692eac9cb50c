"""The key-value engine beside other queues over Valkey, and beside NSQ: messages per second, in and out.

    python -m loadtest.bench.kv_peers [--messages 200000] [--rounds 5] [--size 200] [--batch 100]

Every store is a Valkey of its own that flushes its append-only file each second; nsqd keeps its files. One
process per client, all of them Python. A round produces the messages in batches, each batch acknowledged,
with a few on their way, and then consumes them; the targets take turns, so that a drift of the machine's
speed meets all of them.

- `holdmq bodies`, `holdmq messages`: the SDK, a broker, and the key-value engine behind it
- `streams`: pipelines of XADD, an entry per message, then XREAD
- `stream of keys`: a key per message (SET) and an entry that names it (XADD), then XREAD and MGET
- `lists`: as kombu, which celery stands on, has them: LPUSH; then RPOP, a hash and a sorted set of what is
  not acknowledged, and its end (here in pipelines, which kombu has not)
- `nsq`: MPUB, then a channel with FIN for each message
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from loadtest.bench.harness.command import BenchCommand, Options, say, take_turns
from loadtest.bench.harness.nsq_client import NsqConnection
from loadtest.bench.sdk_peers import (
    WARM_MESSAGES,
    Round,
    RoundPlan,
    RoundRates,
    bounded,
    holdmq_bodies,
    holdmq_messages,
    in_flight,
    redis_client,
    redis_streams,
    show,
)
from loadtest.peers import holdmq_broker, if_installed, key_value_engine, nsq, valkey

FETCH: Final = 1_000
"""Messages per read where the client says how many it wants."""


async def stream_of_keys(address: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Pipelines of SET and XADD, then XREAD and MGET."""
    name = f"keys{serial}"
    async with redis_client(address, plan) as connection:
        made = 0

        async def send(batch: list[bytes]) -> None:
            nonlocal made
            first, made = made, made + len(batch)
            async with connection.pipeline(transaction=False) as pipeline:
                for number, body in enumerate(batch, first):
                    key = f"{name}:{number}"
                    pipeline.set(key, body)
                    pipeline.xadd(name, {b"k": key})
                await pipeline.execute()

        seconds = await in_flight(plan, send)
        began = time.perf_counter()
        left, last = plan.messages, b"0"
        while left > 0:
            answer: Any = await connection.xread({name: last}, count=FETCH)
            ((_, entries),) = answer
            last = entries[-1][0]
            bodies = await connection.mget([fields[b"k"] for _, fields in entries])
            left -= sum(body is not None for body in bodies)
        consumed = plan.messages / (time.perf_counter() - began)
        await connection.flushdb()
        return RoundRates(plan.messages / seconds, consumed)


async def lists(address: str, plan: RoundPlan, serial: int) -> RoundRates:
    """Pipelines of LPUSH, then RPOP with what kombu keeps of messages that are not acknowledged."""
    name = f"list{serial}"
    async with redis_client(address, plan) as connection:

        async def send(batch: list[bytes]) -> None:
            async with connection.pipeline(transaction=False) as pipeline:
                for body in batch:
                    pipeline.lpush(name, body)
                await pipeline.execute()

        seconds = await in_flight(plan, send)
        began = time.perf_counter()
        taken = 0
        while taken < plan.messages:
            bodies: Any = await connection.rpop(name, FETCH)
            tags = [b"%d" % number for number in range(taken, taken + len(bodies))]
            async with connection.pipeline(transaction=False) as pipeline:
                pipeline.hset("unacked", mapping=dict(zip(tags, bodies, strict=True)))
                pipeline.zadd("unacked_index", dict.fromkeys(tags, time.time()))
                await pipeline.execute()
            async with connection.pipeline(transaction=False) as pipeline:
                pipeline.zrem("unacked_index", *tags)
                pipeline.hdel("unacked", *tags)
                await pipeline.execute()
            taken += len(bodies)
        return RoundRates(plan.messages / seconds, plan.messages / (time.perf_counter() - began))


async def nsq_channel(address: str, plan: RoundPlan, serial: int) -> RoundRates:
    """MPUB on a few connections, then one that reads a channel."""
    topic = f"bench{serial}"
    async with AsyncExitStack() as stack:
        free: asyncio.Queue[NsqConnection] = asyncio.Queue()
        for _ in range(plan.in_flight):
            connection = await NsqConnection.open(address)
            stack.push_async_callback(connection.close)
            free.put_nowait(connection)

        async def send(batch: list[bytes]) -> None:
            connection = await free.get()
            await connection.publish(topic, batch)
            free.put_nowait(connection)

        seconds = await in_flight(plan, send)
        reader = await NsqConnection.open(address)
        stack.push_async_callback(reader.close)
        began = time.perf_counter()
        await reader.subscribe(topic, "bench")
        await reader.consume(plan.messages)
        return RoundRates(plan.messages / seconds, plan.messages / (time.perf_counter() - began))


def compare(plan: RoundPlan, rounds: int, directory: Path) -> dict[str, list[RoundRates]]:
    """Return the rates of every round by target."""
    with ExitStack() as stack:
        places = {name: directory / name for name in ("holdmq", "streams", "keys", "lists")}
        for place in places.values():
            place.mkdir()
        sets = stack.enter_context(key_value_engine(places["holdmq"]))
        registry = stack.enter_context(holdmq_broker(places["holdmq"], *sets)).registry
        targets: dict[str, tuple[Round, str]] = {
            "holdmq bodies": (holdmq_bodies, registry),
            "holdmq messages": (holdmq_messages, registry),
            "streams": (redis_streams, stack.enter_context(valkey(places["streams"]))),
            "stream of keys": (stream_of_keys, stack.enter_context(valkey(places["keys"]))),
            "lists": (lists, stack.enter_context(valkey(places["lists"]))),
        }
        targets |= {
            name: (nsq_channel, address)
            for name, address in if_installed(stack, "nsq", nsq, directory).items()
        }
        serials = dict.fromkeys(targets, 0)

        def one_round(name: str, messages: int) -> RoundRates:
            run, address = targets[name]
            serials[name] += 1
            return uvloop.run(bounded(name, run(address, plan._replace(messages=messages), serials[name])))

        for name in targets:
            # Topics and streams are made once, connections tried, caches filled.
            one_round(name, WARM_MESSAGES)
        return take_turns(rounds, {name: partial(one_round, name, plan.messages) for name in targets})


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines."""
    plan = RoundPlan(options.messages, options.size, options.batch, options.in_flight)
    say(show(compare(plan, options.rounds, home)))


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when something is missing or fails."""
    return BenchCommand(
        __doc__,
        messages=(200_000, "of one measurement"),
        size=(200, "payload bytes"),
        batch=(100, "messages of one batch"),
        in_flight=(8, "batches on their way at a time"),
        rounds=5,
    ).run(measure, appendfsync="everysec")


if __name__ == "__main__":
    sys.exit(main())
