"""What a replica answers on its own port: hellos and fetches of copies, and what people ask and want."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from broker.kernel.request_family import RequestFamily
from broker.replication.agent import ReplicaAgent, boot_time, refusal_of
from broker.replication.core.messages import CopyFetch, CopyHello, Refused
from holdmq.errors import BusyError, Code, RemoteError, WireError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import PROTOCOL_VERSION, Empty, HelloRequest, HelloResponse
from holdmq.wire.replica_headers import (
    CopyRow,
    EpochRow,
    QueueEndRow,
    ReplicaFetchRequest,
    ReplicaHelloRequest,
    ReplicaHelloResponse,
    ReplicaPromoteRequest,
    ReplicaPromoteResponse,
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaSwitchRequest,
    ReplicaSwitchResponse,
    ReplicaTablesRequest,
)
from storage.api.replication import Epoch

RETRY_AFTER_MS: Final = 500


class ReplicaRequests(RequestFamily):
    """Handles these for one replica of the shard `shard`."""

    def __init__(self, cluster: str, shard: str, agent: ReplicaAgent) -> None:
        self._cluster = cluster
        self._shard = shard
        self._agent = agent
        self._switching: asyncio.Task[str] | None = None

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.HEARTBEAT: lambda request: request.reply(Empty()),
            RequestCode.REPLICA_HELLO: self._hello,
            RequestCode.REPLICA_FETCH: self._fetch,
            RequestCode.REPLICA_TABLES: self._tables,
            RequestCode.REPLICA_STATUS: self._status,
            RequestCode.REPLICA_SWITCH: self._switch,
            RequestCode.REPLICA_PROMOTE: self._promote,
        }

    def hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        """Answer the HELLO of a connection."""
        return HelloResponse(PROTOCOL_VERSION, self._shard, self._cluster, time.time_ns() // 1_000_000)

    def _check(self, shard: str) -> None:
        if shard != self._shard:
            raise RemoteError(
                Code.NOT_PERMITTED,
                f"this is a replica of {self._shard!r}, not of {shard!r}; look at replication.replicas there",
            )

    def _hello(self, request: Request) -> None:
        asked = request.header(ReplicaHelloRequest)
        self._check(asked.shard)
        epochs = tuple(Epoch(row.epoch, row.start) for row in rows(EpochRow, asked.epochs))
        if not epochs:
            raise WireError("a log has no epoch", Code.MISSING_FIELD)
        answer, ends = self._agent.hello(
            asked.replica,
            CopyHello(
                asked.epoch,
                asked.store_id,
                asked.session,
                epochs,
                asked.end,
                asked.confirmed,
                asked.is_whole,
                asked.format_level,
                asked.read_address,
            ),
        )
        if isinstance(answer, Refused):
            raise refusal_of(answer)
        request.reply(
            ReplicaHelloResponse(
                answer.epoch,
                answer.store_id,
                answer.session,
                [EpochRow(*epoch) for epoch in answer.epochs],
                answer.first,
                answer.end,
                [QueueEndRow(topic, queue_id, end) for (topic, queue_id), end in ends.items()],
            )
        )

    def _fetch(self, request: Request) -> None:
        asked = request.header(ReplicaFetchRequest)
        self._check(asked.shard)
        fetch = CopyFetch(asked.epoch, asked.session, asked.position, asked.acknowledged)
        self._agent.fetch(asked.replica, fetch, request)

    def _tables(self, request: Request) -> None:
        asked = request.header(ReplicaTablesRequest)
        self._check(asked.shard)
        self._agent.send_tables(asked.replica, asked.name, asked.offset, request)

    def _status(self, request: Request) -> None:
        self._check(request.header(ReplicaStatusRequest).shard)
        agent = self._agent
        core = agent.core
        if core is None:
            raise RemoteError(Code.BUSY, "the log is being opened", {"retry_after_ms": 1000})
        now = boot_time()
        view, state, leading = core.log, core.state, core.leading
        copies = []
        members: tuple[str, ...] = () if state is None else tuple(state.in_sync)
        if leading is not None:
            # The leader's own word: what it read of the shard's state is a second old.
            members = tuple(leading.membership.state.in_sync)
            copies = [
                CopyRow(
                    copy.peer,
                    copy.acknowledged,
                    int(max(0.0, now - copy.level_at) * 1e3),
                    copy.peer in members,
                    copy.is_whole,
                )
                for copy in leading.copies.values()
            ]
        request.reply(
            ReplicaStatusResponse(
                agent.replica,
                core.role.value,
                0 if state is None else state.epoch,
                core.leader,
                list(members),
                view.store_id,
                [EpochRow(*epoch) for epoch in view.epochs],
                view.first,
                view.appended,
                view.confirmed,
                view.is_whole,
                leading is not None and leading.is_serving,
                int(max(0.0, core.lease.valid_until - now) * 1e3) if leading is not None else 0,
                copies,
            )
        )

    def _switch(self, request: Request) -> None:
        asked = request.header(ReplicaSwitchRequest)
        self._check(asked.shard)
        core = self._agent.core
        if core is None or core.leading is None:
            raise refusal_of(Refused(0, "" if core is None else core.leader))
        if self._switching is not None:
            raise BusyError("the lead is being handed over", RETRY_AFTER_MS)
        self._switching = asyncio.get_running_loop().create_task(self._agent.switch(asked.to), name="switch")
        self._switching.add_done_callback(partial(self._switched, request, asked.to))

    def _switched(self, request: Request, wanted: str, switching: asyncio.Task[str]) -> None:
        self._switching = None
        if switching.cancelled():
            return
        to = switching.result()
        if to:
            request.reply(ReplicaSwitchResponse(to))
            return
        request.refuse(
            RemoteError(
                Code.NOT_ENOUGH_REPLICAS,
                f"{wanted or 'no replica'} can take the lead now: only another member in sync can",
            )
        )

    def _promote(self, request: Request) -> None:
        asked = request.header(ReplicaPromoteRequest)
        self._check(asked.shard)
        if not asked.accept_loss:
            raise RemoteError(
                Code.NOT_PERMITTED, "promoting gives up what other replicas have and this one lacks: say so"
            )
        core = self._agent.core
        if core is not None and core.outdated:
            raise RemoteError(Code.VERSION_UNSUPPORTED, core.outdated)
        end = self._agent.promote()
        if end < 0:
            raise RemoteError(Code.BUSY, "the log is being changed", {"retry_after_ms": 1000})
        request.reply(ReplicaPromoteResponse(end))
