"""The engines that keep what `storage.api` promises: a new one joins by a line in ENGINES."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest
from any_disk import ANY_DISK
from valkey_servers import ValkeyServer

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import Record, decode_record, encode_properties
from storage.api.batches import Batch, BatchRun
from storage.api.queues import HashFilter, QueueRead
from storage.api.store import MessageStore
from storage.kv.store import KvStore
from storage.log.store import open_store

Post = Callable[[Callable[[], object]], object]
TABLE: Final = "%T"
"""The one topic that is a table."""


class OpenedStore(MessageStore, Protocol):
    """A store with its end."""

    def close(self) -> None: ...


def open_log(directory: Path, post: Post, clock_ms: Callable[[], int]) -> OpenedStore:
    settings = {"data_dir": str(directory), "flush_interval_ms": 20, **ANY_DISK}
    settings |= {"segment_size_bytes": 1 << 20, "record_max_bytes": 64 << 10}
    store = open_store(
        StorageSection.model_validate(settings), "b1", lambda _: 1, post,
        clock_ms=clock_ms, is_table=lambda topic: topic == TABLE,
    )  # fmt: skip
    store.open()
    return store


SERVERS: Final[list[ValkeyServer]] = []
"""The server of the key-value engine, started by the first test that wants one."""


def open_kv(directory: Path, post: Post, clock_ms: Callable[[], int]) -> OpenedStore:
    kv = {
        "url": f"redis://127.0.0.1:{SERVERS[0].port}",
        "prefix": f"test{abs(hash(directory))}",
        "lease_ms": 3000,
    }
    settings = {"data_dir": str(directory), "engine": "kv", "kv": kv}
    store = KvStore(
        StorageSection.model_validate(settings), "b1", lambda _: 1, post,
        clock_ms=clock_ms, is_table=lambda topic: topic == TABLE,
    )  # fmt: skip
    store.open()
    return store


ENGINES: Final[dict[str, Callable[[Path, Post, Callable[[], int]], OpenedStore]]] = {
    "log": open_log,
    "kv": open_kv,
}


@pytest.fixture(scope="session", autouse=True)
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    SERVERS.append(server)
    yield
    SERVERS.remove(server)
    server.end()


class Tested:
    """A store of some engine and its "event loop": callbacks run when the test waits."""

    def __init__(self, engine: str, directory: Path) -> None:
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._open = ENGINES[engine]
        self._directory = directory
        self.clock_ms = 1_700_000_000_000
        self.store = self._opened()

    def _opened(self) -> OpenedStore:
        return self._open(self._directory, self._posted.put, lambda: self.clock_ms)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._opened()

    def pump(self, holds: Callable[[], bool]) -> None:
        """Run the store's callbacks until something holds."""
        until = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < until
            try:
                self._posted.get(timeout=0.005)()
            except queue.Empty:
                continue

    def batch(
        self, *bodies: bytes, topic: str = "devices", queue_id: int = 0, tag: str = "", **pairs: str
    ) -> Batch:
        named = [*pairs.items(), *([("TAGS", tag)] if tag else [])]
        properties = encode_properties(named) if named else b""
        raw, sizes = encode_batch(topic.encode(), queue_id, list(bodies), properties, 5)
        return Batch(memoryview(bytearray(raw)), sizes, [BatchRun(topic, queue_id, len(bodies))])

    def refusal_of(self, batch: Batch) -> StorageError | None:
        """Append and wait; None = it was confirmed."""
        answers: list[StorageError | None] = []
        self.store.append(batch, lambda _batch, error: answers.append(error))
        assert not answers, "an append is answered later, never inside the call"
        self.pump(lambda: bool(answers))
        assert len(answers) == 1
        return answers[0]

    def write(
        self, *bodies: bytes, topic: str = "devices", queue_id: int = 0, tag: str = "", **pairs: str
    ) -> Batch:
        batch = self.batch(*bodies, topic=topic, queue_id=queue_id, tag=tag, **pairs)
        assert self.refusal_of(batch) is None
        return batch

    def read(
        self,
        offset: int,
        topic: str = "devices",
        queue_id: int = 0,
        epoch: int = 0,
        max_bytes: int = 1 << 20,
        max_count: int = 1000,
        wanted: HashFilter | None = None,
    ) -> QueueRead:
        """As a broker reads: from memory, else from disk."""
        asked = (topic, queue_id, epoch, offset, max_bytes, max_count, wanted)
        read = self.store.read_queue(*asked)
        return self.store.read_queue_cold(*asked) if read is None else read

    def bodies(
        self, topic: str = "devices", queue_id: int = 0, wanted: HashFilter | None = None
    ) -> list[bytes]:
        """Everything (wanted) that a queue holds."""
        offset, end = self.store.bounds(topic, queue_id)
        found: list[bytes] = []
        while offset < end:
            read = self.read(offset, topic, queue_id, wanted=wanted)
            assert read.next_offset > offset, read.status
            found += [record.body for record in records_in(read)]
            offset = read.next_offset
        return found


def records_in(read: QueueRead) -> list[Record]:
    found: list[Record] = []
    for part in read.parts:
        at = 0
        while at < len(part):
            found.append(decode_record(part, at))
            at += found[-1].total_size
    assert len(found) == read.count
    return found


@pytest.fixture(params=list(ENGINES))
def tested(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tested]:
    made = Tested(request.param, tmp_path / "store")
    yield made
    made.store.close()
