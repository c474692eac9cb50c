"""Exactly once: kill -9 of whatever takes part in counting, at random moments, with tables of both kinds.

The truth is what `holdmq log stat` finds in the log: neither what was sent nor what the source counted.
HOLDMQ_TEST_KILL_ROUNDS=20 HOLDMQ_TEST_KILL_MESSAGES=1000000 is the long form; it takes half an hour.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import paho.mqtt.client as paho
import psutil
import psycopg
import pyarrow as pa
import pytest
from counted import Sums, check_all, delta_sums, has_bytes, truth_of
from paho.mqtt.enums import CallbackAPIVersion
from postgresql import running_postgresql
from processes import Process, Stack, wait_until

from holdmq.client.producer import Producer
from holdmq.config.analytics import StatsSection
from holdmq.message import Message
from spark_streaming.job.opening import open_sink
from spark_streaming.job.parts import COUNTS, parts_of
from spark_streaming.tables import TPS_1S, TPS_1S_TABLE

ROUNDS = int(os.environ.get("HOLDMQ_TEST_KILL_ROUNDS", "0"))
"""Kills for each kind of tables; 0 = the few below, each of its own kind."""
MESSAGES = int(os.environ.get("HOLDMQ_TEST_KILL_MESSAGES", "10000"))
"""Messages over all topics, at least, for each kind of tables."""
SEED = int(os.environ.get("HOLDMQ_TEST_KILL_SEED", str(random.randrange(1 << 30))))

VICTIMS = ("driver", "JVM", "worker", "broker", "gateway")
FEW = {"delta": ("worker", "broker", "gateway", "driver"), "postgresql": ("JVM",)}
SENT_TOPICS = tuple(f"sent-{number}" for number in range(6))
MQTT_TOPICS = ("floor", "roof")
PAUSE_S = 0.1
"""Between batches: a machine that starts a JVM again and again has better things to do than to count."""
TOGETHER_S = 300.0
SETTLE_S = 60.0


class Place(NamedTuple):
    """The tables of one kind, and the settings that choose them."""

    kind: str
    settings: dict[str, str]

    def sums(self, name: str, data_dir: Path) -> Sums:
        """Messages and bytes (0 in a table without them) by topic; empty while the table is not there."""
        if self.kind == "delta":
            return delta_sums(data_dir, name)
        size = "sum(bytes)::bigint" if has_bytes(name) else "0"
        query = f"SELECT topic, sum(messages)::bigint, {size} FROM holdmq.{name} GROUP BY topic"
        try:
            with psycopg.connect(self.settings["stats.postgresql_url"]) as connection:
                rows = connection.execute(query.encode()).fetchall()
        except psycopg.errors.UndefinedTable:
            return {}
        return {topic: (messages, size) for topic, messages, size in rows}

    def put_aside(self, data_dir: Path) -> int:
        """Messages in the table of seconds that a rebuild has put aside."""
        if self.kind == "delta":
            (aside,) = (data_dir / "aside").iterdir()
            assert (aside / "checkpoints" / "tps_1s" / "metadata").exists()
            return sum(messages for messages, _ in self.sums("tps_1s", aside).values())
        with psycopg.connect(self.settings["stats.postgresql_url"]) as connection:
            schemas = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdmq\\_%'"
            ((schema,),) = connection.execute(schemas).fetchall()
            ((messages,),) = connection.execute(f"SELECT sum(messages) FROM {schema}.tps_1s".encode())
        return int(messages)


class Cluster(Stack):
    """Registry, broker and gateway, and the job that counts."""

    place: Place
    worker_was_killed = False
    """Since the job was started last."""

    def use(self, place: Place) -> None:
        self.place = place
        self.data_dir = self.directory / f"stats-{place.kind}"
        for key, value in {**place.settings, "stats.data_dir": str(self.data_dir)}.items():
            self.set(key, value)

    def counted(self) -> int:
        """Messages in the smallest table."""
        return sum(messages for messages, _ in self.place.sums("tps_1h", self.data_dir).values())

    def wait_counted(self, more_than: int) -> None:
        def check() -> bool:
            self.go_on()
            # A look at a table costs more than those that `wait_until` is made for.
            time.sleep(PAUSE_S)
            return self.counted() > more_than

        wait_until(check, f"more than {more_than} messages are counted", TOGETHER_S)

    def go_on(self) -> None:
        """Start the job again if it ended, as it may once one of its workers was killed."""
        ended = self.processes["stats"].poll()
        if ended is not None:
            # A query does not outlive its planner, one of the Python workers; it may notice late.
            assert ended == 1, f"ended with {ended}: {self.log('stats')[-2000:]}"
            assert self.worker_was_killed, f"ended: {self.log('stats')[-2000:]}"
            assert "start again to go on from the checkpoint" in self.log("stats")
            self.start_stats()

    def start_stats(self, *options: str, wait: bool = True) -> Process:
        """Start the job with options of the command line."""
        process = self.start("stats", *options, wait=False)
        self.worker_was_killed = False
        if wait:
            wait_until(
                lambda: process.poll() is not None or self.http("stats", "/readyz")[0] == 200,
                "the job is ready",
                TOGETHER_S,
            )
            assert process.poll() is None, self.log("stats")[-2000:]
        return process

    def kill(self, victim: str) -> None:
        """kill -9 of one process, and a start of what does not come back by itself."""
        if victim in ("broker", "gateway"):
            self.restart(victim, signal.SIGKILL)
            return
        self.go_on()
        stats = self.processes["stats"]
        family = psutil.Process(stats.pid).children(recursive=True)
        jvm = next(child for child in family if name_of(child) == "java")
        if victim == "worker":
            wait_until(lambda: kill_one(jvm.children(recursive=True)), "a Python worker to kill")
            self.worker_was_killed = True
            return
        if victim == "driver":
            os.kill(stats.pid, signal.SIGKILL)
            stats.wait()
            wait_until(
                lambda: not any(map(psutil.Process.is_running, family)),
                "nothing outlives the job",
                TOGETHER_S,
            )
        else:
            jvm.kill()
            assert stats.wait(TOGETHER_S) == 1
            assert "the JVM of Spark ended with exit code -9" in self.log("stats")


def name_of(process: psutil.Process) -> str:
    """Its name, "" when it has ended: Spark starts some that live for milliseconds."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def kill_one(processes: list[psutil.Process]) -> bool:
    """kill -9 of any of these; False if none of them is there any more."""
    random.shuffle(processes)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            return True
    return False


class Load(threading.Thread):
    """Sends to every topic, from a thread, until it is told to stop: some by the SDK, some over MQTT."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="load")
        self.messages = 0
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._turns = 0
        self._at_once = max(10, MESSAGES // 4000)
        self._ended = threading.Event()
        self._device = paho.Client(CallbackAPIVersion.VERSION2, client_id="device")
        self._device.reconnect_delay_set(1, 2)
        self._published = self._acknowledged = 0
        self._device.on_publish = self._note_acknowledged

    def run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:
            self.failure = error
            raise

    def finish(self) -> None:
        self._ended.set()
        self.join()
        assert self.failure is None

    async def _send(self) -> None:
        self._device.connect("127.0.0.1", self._cluster.mqtt_port)
        self._device.loop_start()
        try:
            async with Producer([self._cluster.registry], send_timeout_s=TOGETHER_S) as producer:
                while not self._ended.is_set():
                    await self._send_some(producer)
                    await asyncio.sleep(PAUSE_S)
            # Or the gateway would still bring it into the log when the truth has been taken from there. What
            # the device's library forgot over a reconnection nobody has.
            deadline = time.monotonic() + SETTLE_S
            while self._acknowledged < self._published and time.monotonic() < deadline:
                await asyncio.sleep(PAUSE_S)
        finally:
            self._device.disconnect()
            self._device.loop_stop()

    async def _send_some(self, producer: Producer) -> None:
        # Some topics are made while the job counts others.
        self._turns += 1
        for number, topic in enumerate(SENT_TOPICS[: 3 + self._turns // 20]):
            bodies = [b"b" * (1 + (self.messages + i) % 200) for i in range(self._at_once)]
            await producer.send_batch([Message(topic, body) for body in bodies], key=f"device-{number}")
            self.messages += len(bodies)
        if self._device.is_connected():
            for topic in MQTT_TOPICS:
                for i in range(self._at_once):
                    self._device.publish(f"{topic}/temp", b"m" * (1 + i % 50), qos=1)
                self._published += self._at_once
                self.messages += self._at_once

    def _note_acknowledged(self, *_: object) -> None:
        """One PUBACK; what a lost connection left without one is sent again on the next."""
        self._acknowledged += 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="holdmq-stats-") as directory:
        made = Cluster(Path(directory))
        try:
            made.start_all()
            yield made
        finally:
            for name in reversed(list(made.processes)):
                if made.processes[name].poll() is None:
                    made.stop(name)


@pytest.fixture(params=["delta", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "delta":
        yield Place("delta", {"stats.sink": "delta"})
        return
    with running_postgresql() as server:
        yield Place("postgresql", {"stats.sink": "postgresql", "stats.postgresql_url": server.url()})


def count_something_else(cluster: Cluster) -> None:
    """Make tables and a checkpoint that say what is not in the log."""
    settings = {key.removeprefix("stats."): value for key, value in cluster.place.settings.items()}
    stats = StatsSection(data_dir=str(cluster.data_dir), **settings)
    (part,) = [part for part in parts_of(stats) if part.name == COUNTS]
    sink = open_sink(stats, part.tables)
    sink.create()
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    row = {"second": at, "topic": "else", "messages": 5, "bytes": 50, "latency_max_ms": 0, "batch_id": 0}
    assert sink.write("holdmq-tps-5d09", 0, {TPS_1S: pa.Table.from_pylist([row], TPS_1S_TABLE.schema)})
    sink.close()
    checkpoint = cluster.data_dir / "checkpoints" / part.name
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"5d09"}')
    (checkpoint / "commits" / "0").write_text("v1\n{}")


def victims(kind: str) -> list[str]:
    rng = random.Random(SEED)
    if not ROUNDS:
        return list(FEW[kind])
    drawn = [VICTIMS[number % len(VICTIMS)] for number in range(ROUNDS)]
    rng.shuffle(drawn)
    return drawn


@pytest.mark.timeout(1800 + 120 * ROUNDS + MESSAGES // 500)
def test_every_message_is_counted_once_over_kill_9_at_random_moments(cluster: Cluster, place: Place) -> None:
    print(f"HOLDMQ_TEST_KILL_SEED={SEED}")
    rng = random.Random(SEED)
    cluster.use(place)
    count_something_else(cluster)
    load = Load(cluster)
    load.start()
    try:
        cluster.start_stats("--rebuild", "--yes")
        rounds = victims(place.kind)
        for number, victim in enumerate(rounds):
            cluster.wait_counted(cluster.counted())
            # A moment in a batch, or between two.
            time.sleep(rng.uniform(0, 1.5))
            cluster.kill(victim)
            if victim in ("driver", "JVM") and number + 1 < len(rounds):
                cluster.start_stats()
        wait_until(lambda: load.messages >= MESSAGES, "enough is sent", TOGETHER_S + MESSAGES / 500)
    finally:
        load.finish()
    truth = truth_of(cluster)
    assert truth.keys() >= {*SENT_TOPICS, *MQTT_TOPICS}
    if cluster.processes["stats"].poll() is None:
        cluster.wait_counted(sum(messages for messages, _ in truth.values()) - 1)
        assert cluster.stop("stats") == 0
    # What a kill left uncounted, and not more: it ends when it has counted what is there.
    assert cluster.start_stats("--once", wait=False).wait(TOGETHER_S) == 0, cluster.log("stats")[-2000:]
    check_all(truth, lambda name: cluster.place.sums(name, cluster.data_dir))
    assert cluster.place.put_aside(cluster.data_dir) == 5
