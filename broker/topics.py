"""topic.json: topics are durable before their first record.

Changes are written by one thread, one after the other; what is asked for meanwhile shares
the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from broker.core.topics import Topic, TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Request
from holdmq.wire.headers import TopicCreateRequest, TopicCreateResponse
from storage.atomic_file import AtomicFile

CREATES_MAX: Final = 1_000
"""TOPIC_CREATEs waiting for the file; past it BUSY."""


class Topics:
    """The topic table and its file. `on_change` is called after every change is durable."""

    def __init__(self, path: Path, table: TopicTable, auto_create: bool) -> None:
        self.table = table
        self.on_change: Callable[[], None] = lambda: None
        self._file = AtomicFile(path)
        self._auto_create = auto_create
        self._thread = ThreadPoolExecutor(1, "topics")
        self._waiting: list[tuple[Request, TopicCreateRequest]] = []
        self._writing: asyncio.Future[None] | None = None

    def load(self, accept_backup: bool = False) -> None:
        """Read the file (blocking); an absent one is an empty table. StorageError if damaged."""
        loaded = self._file.load(accept_backup)
        if loaded is not None:
            self.table.load(loaded.content, loaded.data_version, str(self._file.path))

    def create(self, request: Request) -> None:
        """TOPIC_CREATE: answered when the topic is durable."""
        header = request.header(TopicCreateRequest)
        if len(self._waiting) >= CREATES_MAX:
            raise RemoteError(Code.BUSY, f"{CREATES_MAX} topics wait to be created")
        if header.by_use:
            known = self.table.get(header.topic)
            if known is not None:
                request.reply(TopicCreateResponse([known.row()]))
                return
            if not self._auto_create:
                raise RemoteError(
                    Code.TOPIC_UNKNOWN,
                    f"topic {header.topic!r} does not exist and broker.auto_create_topics is off",
                )
        self.table.plan_create(header.topic, header.queues, header.key_levels, header.kind)
        self._waiting.append((request, header))
        if self._writing is None:
            self._write_next()

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._thread.shutdown(wait=True)

    def _write_next(self) -> None:
        """Take one waiting request: write the table with its topic, then add it and answer."""
        while self._waiting:
            request, header = self._waiting.pop(0)
            try:
                topic = self._plan(header)
            except HoldMQError as e:
                request.refuse(e)
                continue
            if topic is None:
                known = self.table.get(header.topic)
                assert known is not None
                request.reply(TopicCreateResponse([known.row()]))
                continue
            content = self.table.content(adding=topic)
            self._write(topic, content, request)
            return

    def _plan(self, header: TopicCreateRequest) -> Topic | None:
        if header.by_use and self.table.get(header.topic) is not None:
            return None
        return self.table.plan_create(header.topic, header.queues, header.key_levels, header.kind)

    def _write(self, topic: Topic, content: dict[str, Any], request: Request) -> None:
        loop = asyncio.get_running_loop()
        version = self.table.data_version + 1
        future = loop.run_in_executor(self._thread, self._file.save, content, version)
        self._writing = future

        def done(finished: asyncio.Future[None]) -> None:
            self._writing = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self.table.add(topic)
                request.reply(TopicCreateResponse([topic.row()]))
                self.on_change()
            elif isinstance(error, HoldMQError):
                request.refuse(error)
            else:
                request.refuse(RemoteError(Code.SYSTEM_ERROR, f"topic.json could not be written: {error}"))
            self._write_next()

        future.add_done_callback(done)
