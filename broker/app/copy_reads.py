"""What clients may read at a replica while another one leads: on the broker's own port, and nothing else.

A connection is taken only from who says that it comes to read from a replica, so that everybody else finds
nobody here, as before. Each request asks first whether there is any doubt about this copy; then it is sent
back to the leader. Offsets, leases and hand-outs are the leader's, and so is what has not come yet: nothing
is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import structlog

from broker.app.calls import Identity
from broker.kernel.statistics import Statistics
from broker.kernel.statistics_ticks import StatisticsTicks
from broker.reading.column_pulls import ColumnPulls
from broker.reading.core.far_reads import CopyReads, ReadCounts
from broker.reading.pull import Pull
from broker.reading.queries import Queries
from broker.topics.core.table import TopicTable
from holdmq.config.model import Config
from holdmq.errors import RemoteError, StartupError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest, Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import FRAME_OVERHEAD_BYTES
from holdmq.wire.headers import Empty, HelloRequest, HelloResponse
from storage.api.store import OrderedStore

LISTEN_AGAIN_S: Final = 1.0
"""How soon a port that is taken is tried again: what was a leader a moment ago may still have it."""
LOOK_UPS: Final = (RequestCode.MESSAGE_GET, RequestCode.MESSAGE_FIND, RequestCode.MESSAGE_BACKWARDS)

log = structlog.get_logger("holdmq.replication")


class CopyStanding(Protocol):
    """How this replica stands to its leader."""

    def may_read(self) -> bool:
        """Whether clients may read here now."""

    def not_leading(self) -> RemoteError:
        """The refusal of what is the leader's: NOT_LEADER, with who leads as far as is known."""


class ReplicaReadServer:
    """Answers PULL, PULL_COLUMNS and look-ups over the log that is open, from `begin` until `end`.

    `far_bytes`: broker.reading.core.far_reads.
    """

    def __init__(
        self,
        config: Config,
        security: ServerSecurity | None,
        standing: CopyStanding,
        counts: ReadCounts,
        far_bytes: int,
    ) -> None:
        self._config = config
        self._security = security
        self._standing = standing
        self._counts = counts
        self._far_bytes = far_bytes
        self._store: OrderedStore | None = None
        self._rpc: Server | None = None
        self._statistics: Statistics | None = None
        self._ticks: StatisticsTicks | None = None
        self._listening: asyncio.Task[None] | None = None

    def begin(self, store: OrderedStore, topics: TopicTable) -> None:
        """Listen, in the background; the store stays open until `end` has returned."""
        settings = self._config.broker
        statistics = Statistics(asyncio.get_running_loop().time())
        reads = CopyReads(
            read_address(self._config), lambda: store.confirmed_position, self._far_bytes, self._counts
        )
        readers = _UntoldReaders()
        pull = Pull(store, topics, statistics, _NoGroups(), readers, reads)
        queries = Queries(store, topics, readers, reads).routes()
        answered: dict[RequestCode, OnRequest] = {
            **pull.routes(),
            **ColumnPulls(store, topics, statistics, readers, reads).routes(),
            **{code: queries[code] for code in LOOK_UPS},
        }
        routes: dict[RequestCode, OnRequest] = dict.fromkeys(RequestCode, self._leave_to_leader)
        routes |= {code: self._guarded(handler) for code, handler in answered.items()}
        routes[RequestCode.HEARTBEAT] = lambda request: request.reply(Empty())
        self._store = store
        self._statistics = statistics
        self._ticks = StatisticsTicks(statistics)
        self._ticks.start()
        self._rpc = Server(
            routes,
            self._hello,
            self._config.storage.record_max_bytes + FRAME_OVERHEAD_BYTES,
            on_closed=pull.closed,
            security=self._security,
        )
        listening = self._listen(self._rpc, settings.bind, settings.port)
        self._listening = asyncio.get_running_loop().create_task(listening, name="reads of clients")

    async def end(self) -> None:
        """Close the port and every connection; ending what has not begun changes nothing."""
        listening, self._listening = self._listening, None
        rpc, self._rpc = self._rpc, None
        ticks, self._ticks = self._ticks, None
        self._store = self._statistics = None
        if ticks is not None:
            ticks.stop()
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        if rpc is not None:
            await rpc.close()

    def numbers(self) -> Mapping[str, int | float]:
        """What was read here since `begin`, as a broker's numbers; empty = nobody may. Any thread."""
        statistics = self._statistics
        return {} if statistics is None else statistics.numbers()

    async def _listen(self, rpc: Server, host: str, port: int) -> None:
        is_told = False
        while True:
            try:
                await rpc.listen(host, port)
                return
            except StartupError as error:
                if not is_told:
                    log.warning("clients cannot read from this replica", reason=str(error))
                is_told = True
            await asyncio.sleep(LISTEN_AGAIN_S)

    def _hello(self, _connection: Connection, hello: HelloRequest) -> HelloResponse:
        store = self._store
        if store is None or not hello.reads_replica or not self._standing.may_read():
            raise self._standing.not_leading()
        return Identity.of(self._config).welcome(store)

    def _leave_to_leader(self, _request: Request) -> None:
        raise self._standing.not_leading()

    def _guarded(self, handler: OnRequest) -> OnRequest:
        def guarded(request: Request) -> None:
            if not self._standing.may_read():
                self._counts.sent_back += 1
                raise self._standing.not_leading()
            self._counts.served += 1
            handler(request)

        return guarded


class _NoGroups:
    """The gate of pulls where groups are not known: their leases are looked at by the leader, and expire."""

    def admit_pull(self, group: str) -> None:
        """Admit every group: the leader sent it here."""

    def is_paused(self, group: str) -> bool:
        return False

    def is_fenced(
        self, connection: Connection, group: str, topic: str, queue_id: int, generation: int
    ) -> bool:
        return False

    def slow_reads_place(self, group: str) -> int:
        return 1


class _UntoldReaders:
    """Nobody is told who reads at a replica: it has no temporary topics, which are in the leader's memory."""

    def seen(self, connection: Connection, group: str, member_id: int = 0) -> bool:
        return True

    def asked(self, connection: Connection, kind: str, topics: Iterable[str], group: str = "") -> None:
        return


def read_address(config: Config) -> str:
    """Where clients read from this replica: the broker's own address; "" = its port is not known before."""
    broker = config.broker
    return broker.advertise or (f"{broker.bind}:{broker.port}" if broker.port else "")
