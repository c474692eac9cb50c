"""A store whose callbacks run here, and a disk whose fsync is slow when it is told to be."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.files.disk import OpenFile, RealDisk, RealFile
from storage.api.batches import Batch
from storage.log.store import LogStore, open_store

PROBE_S: Final = 0.001


class StoreBench:
    """A store whose callbacks run here, as they would on the event loop."""

    def __init__(
        self, directory: Path, is_table: Callable[[str], bool] | None = None, **settings: Any
    ) -> None:
        self.posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._settings = StorageSection.model_validate({"data_dir": str(directory), **settings})
        self._is_table = is_table
        self.store = self._open()
        self.answered = 0

    def _open(self) -> LogStore:
        store = open_store(self._settings, "bench", lambda _: 1, self.posted.put, is_table=self._is_table)
        store.open()
        return store

    def note_answer(self, _batch: Batch, error: StorageError | None) -> None:
        """Count an answered call; raises its error."""
        if error is not None:
            raise error
        self.answered += 1

    def run(self, until: Callable[[], bool], timeout_s: float = 60) -> None:
        """Run callbacks until something holds; TimeoutError when that takes longer."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError("the benchmark does not come to its end")
            try:
                self.posted.get(timeout=0.05)()
            except queue.Empty:
                continue


class SlowFile(RealFile):
    """A file of a disk that takes its time for fsync."""

    __slots__ = ("disk",)

    def __init__(self, file: OpenFile, disk: SlowDisk) -> None:
        assert isinstance(file, RealFile)
        super().__init__(file.fd, file.path)
        self.disk = disk

    def sync(self) -> None:
        self.disk.wait()
        super().sync()


class SlowDisk(RealDisk):
    """The real disk, `delay_s` slower at every fsync once `is_slow`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.is_slow = False
        self.waits = 0

    def wait(self) -> None:
        """Take the time that one fsync takes."""
        if self.is_slow:
            self.waits += 1
            time.sleep(self.delay_s)

    def open(self, path: Path, create: bool = False) -> OpenFile:
        return SlowFile(super().open(path, create), self)

    def create_anew(self, path: Path) -> OpenFile:
        return SlowFile(super().create_anew(path), self)

    def sync_directory(self, directory: Path) -> None:
        self.wait()
        super().sync_directory(directory)

    def sync_all(self, directory: Path) -> None:
        self.wait()
        super().sync_all(directory)


async def open_on_loop(directory: Path, disk: SlowDisk | None = None, **settings: Any) -> LogStore:
    """Open a store whose callbacks run on this event loop; a slow disk is slow from then on."""
    made = StorageSection.model_validate({"data_dir": str(directory), **settings})
    post = asyncio.get_running_loop().call_soon_threadsafe
    store = open_store(made, "bench", lambda _: 1, post, disk=disk)
    await asyncio.to_thread(store.open)
    if disk is not None:
        disk.is_slow = True
    return store


async def close_off_loop(store: LogStore, disk: SlowDisk | None = None) -> None:
    """Close a store that is open on this event loop; its disk is slow no more."""
    if disk is not None:
        disk.is_slow = False
    await asyncio.to_thread(store.close)


async def probe_loop(seconds: float) -> Sequence[float]:
    """Ask the event loop for a call every millisecond; return how much too late each came, in seconds."""
    loop = asyncio.get_running_loop()
    stalls: list[float] = []
    done = loop.create_future()
    end = time.perf_counter() + seconds
    asked = time.perf_counter()

    def called() -> None:
        nonlocal asked
        now = time.perf_counter()
        stalls.append(max(0.0, now - asked - PROBE_S))
        if now >= end:
            done.set_result(None)
            return
        asked = now
        loop.call_later(PROBE_S, called)

    loop.call_later(PROBE_S, called)
    await done
    return stalls
