"""Owners of a shard in processes of their own, each under load, each telling what it is told and reads.

A process can be killed, paused past its lease and woken; a thread cannot. Run as a program, this module is
such an owner: it opens the shard, again whenever it has lost it, appends numbered records to a few queues
and reads them all, until its stdin ends. Each event is a line of JSON on stdout: what happened, when (the
machine's monotonic clock, before the call), and what `Told` makes of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import structlog
from processes import wait_until
from store_history import Attempt, Queue, StoreHistory

from holdmq.config.model import StorageSection
from holdmq.errors import ShardLostError, StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import decode_record
from storage.api.batches import Batch, BatchRun
from storage.api.queues import QueueRead, ReadStatus
from storage.kv.store import KvStore

TOPIC: Final = "devices"
QUEUES: Final = 3
WINDOW: Final = 8
"""Batches that an owner has unanswered at most."""
PAUSE_S: Final = 0.004
"""Between two batches: a load that leaves room for the servers, and for the tests beside."""
NUMBERS_PER_OWNER: Final = 10_000_000
READ_BYTES: Final = 1 << 16
END_S: Final = 40.0


class Posted:
    """Callbacks of a store for whoever runs them."""

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def post(self, callback: Callable[[], object]) -> None:
        self._callbacks.put(callback)

    def run_for(self, timeout_s: float) -> None:
        """Run what is there; wait for the first so long."""
        try:
            self._callbacks.get(timeout=timeout_s)()
            while True:
                self._callbacks.get_nowait()()
        except Empty:
            return


def numbers_in(read: QueueRead) -> list[int]:
    """What the records of a read say."""
    found = []
    for part in read.parts:
        at = 0
        while at < len(part):
            record = decode_record(part, at)
            found.append(int(bytes(record.body)))
            at += record.total_size
    return found


class Reading:
    """One reader of all queues, from memory first or always from the servers, whatever comes."""

    def __init__(self, name: str, is_cold: bool) -> None:
        self._name = name
        self._is_cold = is_cold
        self._places = {(TOPIC, queue_id): (0, 0) for queue_id in range(QUEUES)}

    def step(self, store: KvStore) -> None:
        """Read on in each queue, once."""
        for queue, (epoch, offset) in self._places.items():
            asked_s = time.monotonic()
            try:
                read = read_at(store, queue, epoch, offset, self._is_cold)
            except StorageError as error:
                say("unread", asked_s, self._name, str(error))
                continue
            self._places[queue] = (store.epoch, read.next_offset)
            if read.status is ReadStatus.FOUND:
                say("read", asked_s, self._name, queue[1], store.epoch, offset, numbers_in(read))
            elif read.status is not ReadStatus.AT_END:
                say("sent", asked_s, self._name, queue[1], store.epoch, read.next_offset)


def read_at(store: KvStore, queue: Queue, epoch: int, offset: int, is_cold: bool) -> QueueRead:
    """Read as a broker does: from memory, else from the servers; or from these at once."""
    asked = (*queue, epoch, offset, READ_BYTES, 1000)
    read = None if is_cold else store.read_queue(*asked)
    return store.read_queue_cold(*asked) if read is None else read


class Load:
    """What an owner does with its shard."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._chance = Random(plan["seed"])
        self._number = plan["seed"] * NUMBERS_PER_OWNER
        self._posted = Posted()
        self._waiting = 0
        self._lost = ""
        self._next_s = 0.0
        self._warm, self._cold = Reading("warm", False), Reading("cold", True)
        self.stopping = Event()

    def run(self) -> None:
        """Own the shard as long as it can be had, and try again, until `stopping`."""
        while not self.stopping.is_set():
            store = self._open()
            if store is not None:
                self._serve(store)
                if self._lost:
                    self._count_loss(store)
                closing_s = time.monotonic()
                store.close()
                say("closed", closing_s)
            self._posted.run_for(0.05)

    def _open(self) -> KvStore | None:
        asked_s = time.monotonic()
        store = opened(self._plan, self._posted)
        try:
            store.open(0.5)
        except StorageError as error:
            say("shut", asked_s, str(error))
            store.close()
            return None
        say("open", asked_s, store.epoch, starts_of_epochs(store), store.confirmed_position)
        self._lost = ""
        return store

    def _count_loss(self, store: KvStore) -> None:
        """As a broker does before it opens its shard again: tell how many records the servers have lost."""
        while not self.stopping.is_set():
            asked_s, epoch = time.monotonic(), store.epoch
            try:
                lost = store.count_loss()
            except ShardLostError as error:
                say("taken", asked_s, str(error))
                return
            except StorageError as error:
                say("uncounted", asked_s, str(error))
                self.stopping.wait(0.1)
                continue
            say("counted", asked_s, epoch + 1, starts_of_epochs(store), lost)
            return

    def _serve(self, store: KvStore) -> None:
        is_over = Event()

        def read_cold() -> None:
            while not is_over.wait(PAUSE_S):
                self._cold.step(store)

        thread = Thread(target=read_cold)
        thread.start()
        while not self._lost and not self.stopping.is_set():
            self._append(store)
            self._posted.run_for(PAUSE_S / 4)
            self._warm.step(store)
        while self._waiting:  # each is answered, whatever became of the shard
            self._posted.run_for(0.1)
        is_over.set()
        thread.join()
        for reading in (self._warm, self._cold):
            reading.step(store)

    def _append(self, store: KvStore) -> None:
        if self._waiting >= WINDOW or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PAUSE_S
        queue_id, count = self._chance.randrange(QUEUES), self._chance.choice((1, 1, 3, 20))
        first = self._number + 1
        self._number += count
        bodies = [b"%-100d" % number for number in range(first, first + count)]
        raw, sizes = encode_batch(TOPIC.encode(), queue_id, bodies, b"", 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun(TOPIC, queue_id, count)])
        self._waiting += 1
        say("try", time.monotonic(), first, count, queue_id)

        def done(batch: Batch, error: StorageError | None) -> None:
            self._waiting -= 1
            if error is None:
                say("ack", time.monotonic(), first, store.epoch, batch.runs[0].base_offset, batch.position)
            elif isinstance(error, ShardLostError) or self.stopping.is_set():
                self._lost = str(error)
                say("unknown", time.monotonic(), first, str(error))
            else:
                say("refused", time.monotonic(), first, str(error))

        store.append(batch, done)


def opened(plan: dict[str, Any], posted: Posted) -> KvStore:
    """The store of a plan, not yet open."""
    settings = StorageSection.model_validate({"engine": "kv", "kv": plan["kv"], **plan["storage"]})
    return KvStore(settings, plan["shard"], lambda _: 1, posted.post)


def starts_of_epochs(store: KvStore) -> list[tuple[int, int]]:
    """Every epoch of a store's log, and the position at which it begins."""
    limits = [(epoch + 1, store.epoch_limit(epoch)) for epoch in range(1, store.epoch)]
    return [(1, 0), *((epoch, limit) for epoch, limit in limits if limit is not None)]


def say(what: str, when_s: float, *rest: object) -> None:
    """One write a line, so that a kill leaves no half of one."""
    os.write(1, (json.dumps([what, when_s, *rest]) + "\n").encode())


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    load = Load(json.loads(sys.argv[1]))

    def watch() -> None:
        sys.stdin.read()
        load.stopping.set()

    Thread(target=watch, daemon=True).start()
    load.run()


class Told(NamedTuple):
    """A line of an owner."""

    when_s: float
    owner: str
    what: str
    rest: list[Any]


class ShardOwner:
    """A process that owns a shard, or tries to; `told` is what it has said so far."""

    def __init__(self, name: str, plan: dict[str, Any], log: Path) -> None:
        self.name = name
        self.told: list[Told] = []
        root, support = Path(__file__).parents[2], Path(__file__).parent
        with log.open("ab") as told:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, __file__, json.dumps(plan)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True,
                env={**os.environ, "PYTHONPATH": f"{root}:{support}", "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self._collector = Thread(target=self._collect, daemon=True)
        self._collector.start()

    def count(self, what: str) -> int:
        """How often it has said this."""
        return sum(told.what == what for told in list(self.told))

    def wait_more(self, what: str, more: int = 1) -> None:
        """Wait until it has said this so many times more than now."""
        goal = self.count(what) + more
        wait_until(lambda: self.count(what) >= goal or not self.runs, f"{self.name}: {what} +{more}")
        assert self.runs, f"{self.name} has ended: {self.told[-3:]}"

    def times_of(self, what: str) -> list[float]:
        return [told.when_s for told in list(self.told) if told.what == what]

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._gone()

    def stop(self) -> None:
        """Let it have its answers, read to the end, and close its store."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._gone() == 0, f"{self.name}: {self.told[-3:]}"

    def end(self) -> None:
        """End it whatever it does."""
        if self.runs:
            self.kill()

    def _gone(self) -> int:
        code = self._process.wait(END_S)
        self._collector.join(END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return code

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, when_s, *rest = json.loads(line)
            self.told.append(Told(when_s, self.name, what, rest))


def history_of(owners: Iterable[ShardOwner]) -> StoreHistory:
    """What owners told, in the order of time."""
    history = StoreHistory()
    attempts: dict[int, Attempt] = {}
    for _, owner, what, rest in sorted(each for one in owners for each in one.told):
        match what, rest:
            case "try", [first, count, queue_id]:
                numbers = range(first, first + count)
                attempts[first] = history.attempt(owner, (TOPIC, queue_id), numbers)
            case "ack", [first, epoch, base_offset, position]:
                history.acknowledged(attempts[first], epoch, base_offset, position)
            case "refused", [first, _]:
                history.refused(attempts[first])
            case "read", [reader, queue_id, epoch, offset, numbers]:
                history.read(f"{owner}, {reader}", (TOPIC, queue_id), epoch, offset, numbers)
            case "sent", [reader, queue_id, epoch, offset]:
                history.repositioned(f"{owner}, {reader}", (TOPIC, queue_id), epoch, offset)
            case "open", [_, epochs, _]:
                for number, start in epochs:
                    history.rose(number, start, 0)
            case "counted", [epoch, epochs, lost]:
                for number, start in epochs:
                    history.rose(number, start, lost if number == epoch else 0)
    return history


def judged(plan: dict[str, Any], owners: Sequence[ShardOwner]) -> StoreHistory:
    """End owners, read what the shard has, and fail with the first anomalies of their history."""
    for owner in owners:
        owner.end()
    posted, stores = Posted(), list[KvStore]()

    def is_open() -> bool:
        store = opened(plan, posted)
        try:
            store.open(0.5)
        except StorageError:
            store.close()
            return False
        stores.append(store)
        return True

    wait_until(is_open, "the shard is free")
    [store] = stores
    try:
        history = history_of(owners)
        for number, start in starts_of_epochs(store):
            history.rose(number, start, 0)
        for queue_id in range(QUEUES):
            queue = (TOPIC, queue_id)
            first, end = store.bounds(*queue)
            offset, numbers = first, list[int]()
            while offset < end:
                read = read_at(store, queue, 0, offset, True)
                assert read.next_offset > offset, read.reason
                numbers += numbers_in(read)
                offset = read.next_offset
            history.final(queue, store.epoch, first, numbers)
    finally:
        store.close()
    found = history.anomalies()
    kinds = Counter(anomaly.kind.name for anomaly in found)
    assert not found, f"{dict(kinds)}:\n" + "\n".join(map(str, found[:20]))
    return history


if __name__ == "__main__":
    main()
