"""Lets a broker have the tables of sessions and retained messages, or go without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from broker.joining.cluster import KEPT_TABLES, ClusterFound, ClusterInquiry
from broker.joining.core.keeping import may_keep
from broker.kernel.request_family import RequestFamily
from broker.state.state_file import StateFile
from broker.topics.core.table import TopicTable
from holdmq.errors import HoldMQError, StorageError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import UNKNOWN
from holdmq.wire.joining_headers import KeptCountsResponse
from holdmq.wire.retained_headers import RETAINED_TOPIC
from holdmq.wire.session_headers import SESSION_TOPIC
from storage.api.store import OrderedStore

LOOK_AGAIN_S: Final = 0.5
"""How soon is asked again whom nobody answered."""
NEWCOMER: Final = "isNewcomer"

log = structlog.get_logger("holdmq.broker")


class KeepsTables(Protocol):
    """A room whose table is spread over the brokers that have it."""

    def start(self, is_keeper: bool) -> None:
        """Have the table, or serve without it."""


class Keeping(RequestFamily):
    """Whether this broker keeps sessions and retained messages; answers KEPT_COUNTS.

    `open_sessions` counts those that are open here, of which the table need not have a row, `stored_sessions`
    those that have one, None = not yet. `file` has the
    mark of a broker that went without.
    """

    def __init__(
        self,
        name: str,
        store: OrderedStore,
        topics: TopicTable,
        open_sessions: Callable[[], int],
        stored_sessions: Callable[[], int | None],
        rooms: list[KeepsTables],
        file: StateFile,
    ) -> None:
        self.is_keeper: bool | None = None
        """None = it is not decided yet."""
        self._name = name
        self._store = store
        self._topics = topics
        self._open_sessions = open_sessions
        self._stored_sessions = stored_sessions
        self._rooms = rooms
        self._file = file
        self._is_newcomer = False
        self._loop = asyncio.get_running_loop()
        self._looked_at: float | None = None

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.KEPT_COUNTS: self._count}

    def numbers(self) -> Mapping[str, int]:
        return {"is_keeper": int(self.is_keeper is True)}

    def load(self, accept_backup: bool) -> None:
        """Read the mark (blocking). StorageError if it is damaged."""
        loaded = self._file.load(accept_backup)
        self._is_newcomer = loaded is not None and loaded.content.get(NEWCOMER) is True

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._file.close()

    @property
    def has_tables(self) -> bool:
        """Whether the disk has a table of them: it was a keeper before."""
        return any(self._topics.get(name) is not None for name in KEPT_TABLES)

    def counts(self) -> tuple[int, int]:
        """Sessions that are written down and retained messages; UNKNOWN until they are counted."""
        tables = self._store.tables
        if self.is_keeper is None or tables is None:
            return UNKNOWN, UNKNOWN
        if not self.is_keeper:
            return 0, 0
        sessions = self._stored_sessions()
        retained = tables.size_of(RETAINED_TOPIC).rows
        return UNKNOWN if sessions is None else sessions, retained

    def begin(self, is_keeper: bool) -> None:
        """Serve with the tables, or without."""
        self.is_keeper = is_keeper
        for room in self._rooms:
            room.start(is_keeper)

    async def decide(self, cluster: ClusterInquiry, found: ClusterFound) -> bool:
        """Decide by what registries say, and begin; False = it has to be asked again."""
        if self.is_keeper is not None:
            return True
        if self._looked_at is None:
            self._looked_at = self._loop.time()
        keepers = await cluster.keepers(found)
        waited_s = self._loop.time() - self._looked_at
        decided = may_keep(self._name, self.has_tables, self._is_newcomer, keepers, waited_s)
        if decided is None or not await self._mark(not decided):
            return False
        if not decided:
            log.info(
                "this broker keeps no sessions and retained messages: others have them already",
                keepers=sorted(found.keepers),
            )
        self.begin(decided)
        return True

    async def _mark(self, is_newcomer: bool) -> bool:
        """Have the mark on disk before anything follows from it."""
        if is_newcomer == self._is_newcomer:
            return True
        written: asyncio.Future[HoldMQError | None] = self._loop.create_future()
        self._file.save({NEWCOMER: is_newcomer}, self._file.data_version + 1, written.set_result)
        error = await asyncio.shield(written)
        if error is not None:
            log.error("joining.json cannot be written; trying again", reason=str(error))
            return False
        self._is_newcomer = is_newcomer
        return True

    def _count(self, request: Request) -> None:
        tables = self._store.tables
        assert tables is not None

        def applied(error: StorageError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            sessions = tables.size_of(SESSION_TOPIC).rows + self._open_sessions()
            retained = tables.size_of(RETAINED_TOPIC).rows
            request.reply(KeptCountsResponse(self.is_keeper is True, sessions, retained))

        tables.wait_applied(self._store.confirmed_position, applied)
