"""The directory of a replica's log: which store is open on it, and who uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from broker.app.engine import StorageEngine, engine_of
from broker.state.home import StateHome
from broker.topics.core.table import TopicTable
from holdmq.config.model import Config
from holdmq.errors import ShardLostError, StorageError
from holdmq.files.disk import RealDisk
from storage.api.replication import LogStart, ReplicatedLog
from storage.api.store import OrderedStore
from storage.log.replicated.closed import ClosedLogDirectory

READERS: Final = 2
"""Threads that read old bytes for copies: a disk serves two in turn as fast as it can."""


class LogReaders(Protocol):
    """Read an open log beside replication, whoever leads."""

    def begin(self, store: OrderedStore, topics: TopicTable) -> None:
        """Read from now on."""

    async def end(self) -> None:
        """Read no more: the log is closed, or led."""


class ReplicaHome:
    """`broker.replication.ports.LogHome` over the log engine. `owned_for_s` is asked at each hand-out."""

    def __init__(self, config: Config, owned_for_s: Callable[[], float], clients: LogReaders) -> None:
        self._clients = clients
        self.readers: Executor = ThreadPoolExecutor(READERS, "replica-reader")
        self.engine: StorageEngine | None = None
        self.table: TopicTable | None = None
        self._config = config
        self._owned_for_s = owned_for_s
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._directory = Path(config.storage.data_dir)
        self._closed = ClosedLogDirectory(
            RealDisk(),
            self._directory,
            config.broker.name,
            config.storage.segment_size_bytes,
        )

    def take(self) -> None:
        """Use the open log: nothing closes it before `leave`."""
        self._is_free.clear()

    def leave(self) -> None:
        """Use the log no more."""
        self._is_free.set()

    async def open(self) -> ReplicatedLog:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._closed.finish)
        settings = self._config.broker
        if not StateHome(self._directory / "config", RealDisk()).is_log():
            await self._move_state_into_log()
        table = TopicTable(settings.topics_max, settings.topic_queues_default)
        engine = engine_of(self._config, table, _never_lost, True, _never_wanted, True, self._owned_for_s)
        await loop.run_in_executor(None, engine.store.open)
        assert engine.replicated is not None
        self.engine, self.table = engine, table
        self._clients.begin(engine.store, table)
        return engine.replicated

    async def _move_state_into_log(self) -> None:
        """A log of one copy that has records gets the broker's state before anybody copies it.

        A copy of the records below that state would know nothing of their topics: neither which of them are
        tables nor how their tags are looked for.
        """
        loop = asyncio.get_running_loop()
        settings = self._config.broker
        table = TopicTable(settings.topics_max, settings.topic_queues_default)
        engine = engine_of(self._config, table, _never_lost, True, _never_wanted, True)
        await loop.run_in_executor(None, engine.store.open)
        try:
            if engine.store.confirmed_position > 0:
                await loop.run_in_executor(None, engine.prepare)
        finally:
            await loop.run_in_executor(None, engine.store.close)

    async def open_again(self) -> ReplicatedLog:
        await self.close()
        return await self.open()

    async def cut(self, position: int, epochs_kept: int) -> ReplicatedLog:
        await self.close()
        cut = partial(self._closed.cut, position, epochs_kept)
        await asyncio.get_running_loop().run_in_executor(None, cut)
        return await self.open()

    async def receive(self, data: bytes, offset: int) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._closed.receive, data, offset)

    async def start_over(self, start: LogStart) -> ReplicatedLog:
        await self.close()
        loop = asyncio.get_running_loop()
        # Files of a broker that was here before are of the log that is given up; they go first.
        await loop.run_in_executor(None, StateHome(self._directory / "config", RealDisk()).give_up)
        await loop.run_in_executor(None, self._closed.start_over, start)
        return await self.open()

    async def close(self) -> None:
        await self._is_free.wait()
        await self._clients.end()
        engine, self.engine, self.table = self.engine, None, None
        if engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, engine.store.close)

    def failure(self) -> StorageError | None:
        engine = self.engine
        return None if engine is None or engine.replicated is None else engine.replicated.failure


def _never_lost(error: ShardLostError) -> None:
    raise error  # a log on a local disk is nobody else's


def _never_wanted() -> None:
    """Nobody else wants a replica's own directory."""
