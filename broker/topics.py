"""topic.json: topics are durable before their first record.

Changes are written by one thread, one after the other; topics that are asked for while a
write is under way go into the next one together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.core.topics import Topic, TopicTable
from broker.part import Part
from holdmq.atomic_file import AtomicFile
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import TopicCreateRequest, TopicCreateResponse

CREATES_MAX: Final = 1_000
"""TOPIC_CREATEs waiting for the file; past it BUSY."""


Required = Callable[[HoldMQError | None], None]


class Topics(Part):
    """The topic table and its file. `on_change` is called after every change is durable."""

    def __init__(self, path: Path, table: TopicTable, auto_create: bool) -> None:
        self.table = table
        self.on_change: Callable[[], None] = lambda: None
        self._file = AtomicFile(path)
        self._auto_create = auto_create
        self._thread = ThreadPoolExecutor(1, "topics")
        self._waiting: list[tuple[Request, TopicCreateRequest]] = []
        self._required: list[tuple[Topic, Required]] = []
        self._writing: asyncio.Future[None] | None = None

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.TOPIC_CREATE: self.create}

    def numbers(self) -> Mapping[str, int]:
        return {"topics": len(self.table)}

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

    def require(self, name: str, queues: int, done: Required) -> None:
        """Have a system topic, whatever topics_max says; an existing one stays as it is.

        `done` gets None when it is durable, perhaps at once, or why it cannot be.
        """
        if self.table.get(name) is not None:
            done(None)
            return
        self._required.append((Topic(name, queues, queues), done))
        if self._writing is None:
            self._write_next()

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._thread.shutdown(wait=True)

    def _write_next(self) -> None:
        """Write the table with every topic that is waited for, then add them and answer."""
        waiting, self._waiting = self._waiting, []
        adding: dict[str, Topic] = {}
        asked: list[tuple[Request, str]] = []
        for request, header in waiting:
            try:
                topic = adding.get(header.topic) or self._plan(header, len(adding))
            except HoldMQError as e:
                request.refuse(e)
                continue
            if topic is not None:
                adding[topic.name] = topic
            asked.append((request, header.topic))
        required, self._required = self._required, []
        for topic, _ in required:
            if self.table.get(topic.name) is None:
                adding.setdefault(topic.name, topic)
        if adding:
            self._write(adding, asked, required)
        else:
            self._answer(asked, required)

    def _plan(self, header: TopicCreateRequest, adding: int) -> Topic | None:
        if header.by_use and self.table.get(header.topic) is not None:
            return None
        return self.table.plan_create(header.topic, header.queues, header.key_levels, header.kind, adding)

    def _answer(self, asked: list[tuple[Request, str]], required: list[tuple[Topic, Required]]) -> None:
        for request, name in asked:
            known = self.table.get(name)
            assert known is not None
            request.reply(TopicCreateResponse([known.row()]))
        for _, have in required:
            have(None)

    def _write(
        self,
        adding: dict[str, Topic],
        asked: list[tuple[Request, str]],
        required: list[tuple[Topic, Required]],
    ) -> None:
        loop = asyncio.get_running_loop()
        content = self.table.content(adding)
        version = self.table.data_version + len(adding)
        future = loop.run_in_executor(self._thread, self._file.save, content, version)
        self._writing = future

        def done(finished: asyncio.Future[None]) -> None:
            self._writing = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                for topic in adding.values():
                    self.table.add(topic)
                self._answer(asked, required)
                self.on_change()
            else:
                if not isinstance(error, HoldMQError):
                    error = RemoteError(Code.SYSTEM_ERROR, f"topic.json could not be written: {error}")
                for request, _ in asked:
                    request.refuse(error)
                for _, have in required:
                    have(error)
            if (self._waiting or self._required) and self._writing is None:
                self._write_next()

        future.add_done_callback(done)
