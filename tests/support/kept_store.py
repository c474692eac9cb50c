"""A store that has its broker's state files in its log, with its "event loop" on a thread."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
from any_disk import ANY_DISK

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.log.state.core.files import LoggedFiles
from storage.log.state.disk import LogDisk
from storage.log.state.following import LoggedState
from storage.log.store import LogStore, open_store

MIB = 1 << 20
LEVELS = "config/levels.json"


T = TypeVar("T")


class KeptStore:
    """A store that has state files, and its "event loop" on a thread.

    How many levels of a key count in a topic is what the file `levels.json` says.
    """

    def __init__(self, directory: Path, is_replicated: bool = False, **settings: Any) -> None:
        self.directory = directory
        values = {"data_dir": str(directory), "segment_size_bytes": MIB, "flush_interval_ms": 10}
        self.settings = StorageSection.model_validate(values | {**ANY_DISK, **settings})
        self.files = LoggedFiles()
        self.changed: list[str] = []
        self.levels: dict[str, int] = {}
        self._posted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.store: LogStore = open_store(
            self.settings,
            "b1",
            lambda topic: self.levels.get(topic, 1),
            self._posted.put,
            is_table=lambda _: False,
            is_replicated=is_replicated,
            state=LoggedState(self.files, self._has_changed),
        )
        self.disk = LogDisk(
            self.files,
            self.store.append_state,
            self._posted.put,
            lambda: self.store.synced_position,
            directory,
        )
        self._loop = threading.Thread(target=self._run)

    def _has_changed(self, name: str) -> None:
        self.changed.append(name)
        if name == LEVELS:
            raw = self.files.content(name)
            assert raw is not None
            self.levels = AtomicFile(self.directory / name).of_bytes(raw).content

    def post(self, callback: Callable[[], object]) -> None:
        """Run something on the loop."""
        self._posted.put(callback)

    def on_loop(self, work: Callable[[], T]) -> T:
        """What some work on the loop returns."""
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(work())
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                ended.set_exception(error)

        self._posted.put(run)
        return ended.result(40)

    def _run(self) -> None:
        while (callback := self._posted.get()) is not None:
            callback()

    def open(self) -> KeptStore:
        self.store.open()
        self._loop.start()
        return self

    def close(self) -> None:
        self.store.close()
        if self._loop.is_alive():
            self._posted.put(None)
            self._loop.join()

    def file(self, name: str) -> AtomicFile:
        return AtomicFile(self.directory / "config" / name, self.disk)

    def save(self, name: str, content: dict[str, Any], version: int) -> None:
        file = self.file(name)
        file.load(accept_backup=True)
        file.save(content, version)

    def version(self, name: str) -> int:
        loaded = self.file(name).load()
        return 0 if loaded is None else loaded.data_version

    def append(self, topic: str, count: int, tag: bytes = b"") -> StorageError | None:
        ended = threading.Event()
        errors: list[StorageError | None] = []

        def done(_batch: Batch, error: StorageError | None) -> None:
            errors.append(error)
            ended.set()

        properties = b"TAGS\x01" + tag + b"\x02" if tag else b""
        raw, sizes = encode_batch(topic.encode(), 0, [bytes(100)] * count, properties, 5)
        batch = Batch(
            memoryview(bytearray(raw)), sizes, [BatchRun(topic, 0, count, self.levels.get(topic, 1))]
        )
        self._posted.put(lambda: self.store.append(batch, done))
        assert ended.wait(40)
        return errors[0]


MakeKept = Callable[..., KeptStore]


@pytest.fixture
def make_kept(tmp_path: Path) -> Iterator[MakeKept]:
    made: list[KeptStore] = []

    def one(directory: Path | None = None, **settings: Any) -> KeptStore:
        kept = KeptStore(directory or tmp_path / "store", **settings)
        made.append(kept)
        return kept.open()

    yield one
    for each in made:
        each.close()


def killed(kept: KeptStore, to: Path) -> Path:
    """What a killed process leaves: its files as they are now."""
    shutil.copytree(kept.directory, to, dirs_exist_ok=True)
    return to
