"""Clients of every kind at work on one cluster, each of which notes what it got and the longest it waited.

Whatever one of them raises fails the test: a broker that is away or led by another copy of it, is a
pause and no error to any of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

from mqtt_client import MqttClient
from pyspark.sql.datasource import DataSourceStreamReader

from holdmq.client import Consumer, Message, Producer, PullConsumer, SharedConsumer, Table
from holdmq.mqtt import PubAck, Publish
from spark_streaming.source.reader import HoldMQDataSource

SEND_S: Final = 100.0
BLOCKING: Final = 6
"""Clients that have a thread each: devices, and Spark."""
PAUSE_S: Final = 0.01
"""Between two messages of a producer: a load that leaves room for the brokers beside."""
TURN_S: Final = 0.05
"""How long a device waits for a message before it looks at what else there is."""
CATCH_UP_S: Final = 60.0


class Progress:
    """What one client got, in its order, and the longest time in which it got nothing."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.longest_s = 0.0
        self._at = 0.0

    def note(self, body: bytes) -> None:
        now = time.monotonic()
        if self._at:
            self.longest_s = max(self.longest_s, now - self._at)
        self._at = now
        self.got.append(body)

    def in_order(self) -> list[bytes]:
        """Each message once, in the order in which it came first."""
        return list(dict.fromkeys(self.got))


class EveryClient:
    """Producers, consumers and devices, at work from `async with` on. Break what you like, then `finish`.

    `name`: of its topics, groups and devices, as another one was at work there before.
    """

    def __init__(self, registries: list[str], mqtt_port: int, name: str) -> None:
        self._topic, self._devices, self._table = f"sdk-{name}", f"devices-{name}", f"table-{name}"
        self._exact = f"exact-{name}"
        self._group = f"group-{name}"
        self.progress: dict[str, Progress] = {}
        self._registries = registries
        self._mqtt_port = mqtt_port
        self._stopping = asyncio.Event()
        self._done = asyncio.Event()
        self._threads = ThreadPoolExecutor(BLOCKING)
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        self._stopping.set()
        self._done.set()
        tasks = [*self._producing, *self._consuming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def _start(self) -> None:
        """Begin, and come back when each of them got something."""
        async with Table(self._table, self._registries) as table:
            await table.create()
        async with Producer(self._registries) as producer:
            for topic in (self._topic, self._devices):
                await producer.send(Message(topic, b"first"))
        self._consuming = self._tasks(
            [
                self._subscribe,
                self._subscribe_exactly,
                self._take_turns,
                self._pull,
                self._consume,
                self._share,
                self._spark,
                self._watch,
            ]
        )
        await self.until(lambda: len(self.progress) == len(self._consuming))
        self._producing = self._tasks([self._publish, self._publish_exactly, self._send, self._count])
        await self.moved_on()

    async def _on_thread(self, run: Callable[[], None]) -> None:
        """Run what blocks: the loop's own threads are few, and for what is short."""
        await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _tasks(self, works: Iterable[Callable[[Progress], Coroutine[Any, Any, None]]]) -> list[Any]:
        return [asyncio.create_task(work(Progress()), name=work.__name__) for work in works]

    async def moved_on(self, count: int = 20) -> None:
        """Wait until each of them has got so many more."""
        goals = {name: len(one.got) + count for name, one in self.progress.items()}
        await self.until(lambda: all(len(self.progress[name].got) >= goals[name] for name in goals))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what comes, unless one of the clients fails first."""
        deadline = time.monotonic() + CATCH_UP_S
        while not holds():
            for task in (*self._producing, *self._consuming):
                if task.done():
                    task.result()
            counts = {name: len(one.got) for name, one in self.progress.items()}
            assert time.monotonic() < deadline, f"nothing more comes: {counts}"
            await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """Stop the producers, let the others have everything, and check it; raises what one raised."""
        self._stopping.set()
        await asyncio.gather(*self._producing)
        sent = set(self.progress["send"].got)
        published = set(self.progress["publish"].got)
        wanted = {"subscribe": published, "watch": set(self.progress["count"].got[-1:])}
        exactly = set(self.progress["publish_exactly"].got)
        wanted |= dict.fromkeys(("subscribe_exactly", "take_turns"), exactly)
        wanted |= dict.fromkeys(("pull", "consume", "share", "spark"), sent)
        await self.until(lambda: all(w <= set(self.progress[name].got) for name, w in wanted.items()))
        self._done.set()
        await asyncio.gather(*self._consuming)
        self._check()

    def _check(self) -> None:
        """Nothing is missing, what has an order is in it, and who promises once gets each once."""
        sent = self.progress["send"].got
        published = self.progress["publish"].got
        for name in ("pull", "spark"):
            got = [body for body in self.progress[name].got if body != b"first"]
            assert [body for body, count in Counter(got).items() if count > 1] == [], name
            assert got == sent, name
        for name in ("consume", "share"):
            assert set(self.progress[name].in_order()) - {b"first"} == set(sent), name
        assert self.progress["consume"].in_order()[-len(sent) :] == sent
        assert self.progress["subscribe"].in_order() == published
        exactly = self.progress["publish_exactly"].got
        assert self.progress["subscribe_exactly"].got == exactly
        turns = Counter(self.progress["take_turns"].got)
        assert [body for body, count in turns.items() if count > 1] == []
        assert set(turns) == set(exactly)
        numbers = [int(body) for body in self.progress["count"].got]
        assert numbers == list(range(1, len(numbers) + 1))
        seen = [int(body) for body in self.progress["watch"].got]
        assert seen == sorted(seen)

    # Producers

    async def _publish(self, progress: Progress) -> None:
        """An MQTT device with QoS 1, which is never disconnected."""
        self.progress["publish"] = progress

        def run() -> None:
            device = MqttClient(self._mqtt_port, f"publisher-{self._group}", clean=True)
            number = 0
            while not self._stopping.is_set():
                body = b"%d" % number
                number += 1
                device.send(Publish(f"{self._devices}/1", body, 1, packet_id=number % 65535 + 1))
                assert device.wait_for(PubAck).reason_code == 0
                progress.note(body)
                time.sleep(PAUSE_S)

        await self._on_thread(run)

    async def _publish_exactly(self, progress: Progress) -> None:
        """An MQTT device with QoS 2, which is never disconnected."""
        self.progress["publish_exactly"] = progress

        def run() -> None:
            device = MqttClient(self._mqtt_port, f"exact-{self._group}")
            number = 0
            while not self._stopping.is_set():
                body = b"%d" % number
                number += 1
                device.publish(f"{self._exact}/1", body, qos=2)
                progress.note(body)
                time.sleep(PAUSE_S)

        await self._on_thread(run)

    async def _send(self, progress: Progress) -> None:
        self.progress["send"] = progress
        number = 0
        async with Producer(self._registries, send_timeout_s=SEND_S) as producer:
            while not self._stopping.is_set():
                body = b"%d" % number
                number += 1
                await producer.send(Message(self._topic, body), key="k")
                progress.note(body)
                await asyncio.sleep(PAUSE_S)

    async def _count(self, progress: Progress) -> None:
        """Raise a counter in a table, each time by the version that the last change gave it."""
        self.progress["count"] = progress
        async with Table(self._table, self._registries, timeout_s=SEND_S) as table:
            version, number = -1, 0
            while not self._stopping.is_set():
                number += 1
                version = await table.put("n", b"%d" % number, if_version=version)
                entry = await table.get("n")
                assert entry is not None
                assert (entry.value, entry.version) == (b"%d" % number, version)
                progress.note(entry.value)
                await asyncio.sleep(PAUSE_S)

    # Consumers

    async def _subscribe(self, progress: Progress) -> None:
        """A device with a session that subscribes with QoS 1, and is never disconnected."""

        def run() -> None:
            device = MqttClient(self._mqtt_port, f"subscriber-{self._group}")
            device.subscribe(f"{self._devices}/#")
            self.progress["subscribe"] = progress
            self._take(progress, device)

        await self._on_thread(run)

    async def _subscribe_exactly(self, progress: Progress) -> None:
        """A device with a session that subscribes with QoS 2, and is never disconnected."""

        def run() -> None:
            device = MqttClient(self._mqtt_port, f"exactly-{self._group}")
            device.subscribe(f"{self._exact}/#", qos=2)
            self.progress["subscribe_exactly"] = progress
            self._take(progress, device)

        await self._on_thread(run)

    async def _take_turns(self, progress: Progress) -> None:
        """Two devices with one `$share` subscription with QoS 2, which are never disconnected."""

        def run() -> None:
            devices = [MqttClient(self._mqtt_port, f"turn-{n}-{self._group}") for n in range(2)]
            for device in devices:
                device.subscribe(f"$share/turns/{self._exact}/#", qos=2)
            self.progress["take_turns"] = progress
            self._take(progress, *devices)

        await self._on_thread(run)

    def _take(self, progress: Progress, *devices: MqttClient) -> None:
        """Acknowledge to the end what devices get, in turn, until all is done."""
        while not self._done.is_set():
            for device in devices:
                try:
                    message = device.wait_for(Publish, TURN_S)
                except TimeoutError:
                    continue
                progress.note(message.payload)
                device.settle(message)

    async def _pull(self, progress: Progress) -> None:
        async with PullConsumer(self._registries) as consumer:
            await consumer.assign([self._topic], "earliest")
            self.progress["pull"] = progress
            while not self._done.is_set():
                for message in await consumer.poll(hold_ms=300):
                    progress.note(message.body)

    async def _consume(self, progress: Progress) -> None:
        async def handle(message: Message) -> None:
            progress.note(message.body)

        async with Consumer(
            self._registries, self._group, handle, [self._topic], start="earliest", ordered=True
        ):
            self.progress["consume"] = progress
            await self._done.wait()

    async def _share(self, progress: Progress) -> None:
        async def handle(message: Message) -> None:
            progress.note(message.body)

        async with SharedConsumer(
            self._registries, f"shared-{self._group}", [self._topic], handle, start="earliest"
        ):
            self.progress["share"] = progress
            await self._done.wait()

    async def _watch(self, progress: Progress) -> None:
        async with Table(self._table, self._registries, timeout_s=SEND_S) as table, table.watch() as watch:
            self.progress["watch"] = progress
            ending = asyncio.ensure_future(self._done.wait())
            while not ending.done():
                coming = asyncio.ensure_future(anext(watch))
                await asyncio.wait((ending, coming), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                value = getattr(coming.result(), "value", None)
                if value is not None:
                    progress.note(value)

    async def _spark(self, progress: Progress) -> None:
        """A streaming query, driven as Spark drives it."""

        def run() -> None:
            options = {
                "registry": ",".join(self._registries),
                "topics": self._topic,
                "starting_offsets": "earliest",
            }
            source = HoldMQDataSource(options)
            reader = source.streamReader(source.schema())
            offsets = reader.initialOffset()
            self.progress["spark"] = progress
            while not self._done.is_set():
                end = json.loads(json.dumps(reader.latestOffset(offsets, reader.getDefaultReadLimit())))
                for body in _bodies(reader, offsets, end):
                    progress.note(body)
                offsets = end
                time.sleep(0.05)

        await self._on_thread(run)


def _bodies(reader: DataSourceStreamReader, start: Any, end: Any) -> Iterable[bytes]:
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            yield from (row["body"] for row in batch.to_pylist())
