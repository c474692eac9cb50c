"""Connections to the other replicas: what the core says goes out, and answers come back as its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from broker.replication.core.messages import (
    CopyFetch,
    CopyHello,
    CopyReport,
    CopyWelcome,
    FetchGrant,
    Refused,
)
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.replica_headers import (
    EpochRow,
    QueueEndRow,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaHelloRequest,
    ReplicaHelloResponse,
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaTablesRequest,
    ReplicaTablesResponse,
)
from storage.api.replication import Epoch, QueueEnds

NO_BYTES: Final = memoryview(b"")
TABLES_S: Final = 20.0
"""Longest for a part of the tables: they are read from a disk that producers use."""
RETRY_S: Final = 0.1
"""How soon a replica without a connection counts as one that does not answer."""


class PeerAnswer:
    """An answer of a replica: `message` for the core (None = there is none), and what came with it.

    `end` and `body` are a fetch's bytes; `queue_ends` are there in a welcome to a copy that begins anew.
    """

    __slots__ = ("body", "end", "message", "queue_ends")

    def __init__(
        self,
        message: CopyWelcome | FetchGrant | Refused | CopyReport | None,
        end: int = 0,
        body: memoryview = NO_BYTES,
        queue_ends: QueueEnds | None = None,
    ) -> None:
        self.message = message
        self.end = end
        self.body = body
        self.queue_ends = queue_ends or {}


OnAnswer = Callable[[str, PeerAnswer], None]


class Peers:
    """All other replicas of a shard. `addresses` are by replica id; nothing is sent before `start`."""

    def __init__(
        self,
        shard: str,
        replica: str,
        addresses: Mapping[str, str],
        timeout_s: float,
        hold_s: float,
        security: Security | None,
    ) -> None:
        self._shard = shard
        self._replica = replica
        self._timeout_s = timeout_s
        self._hold_s = hold_s
        self._clients = {
            peer: Client(address, "broker", f"{shard}/{replica}", security=security)
            for peer, address in addresses.items()
            if peer != replica
        }

    def start(self) -> None:
        """Connect in the background."""
        for client in self._clients.values():
            client.start()

    async def close(self) -> None:
        """Close every connection to a replica."""
        for client in self._clients.values():
            await client.close()

    def say(self, peer: str, message: object, done: OnAnswer) -> None:
        """Send a message; `done` is called once, with no message when no answer came in time."""
        code, header, timeout_s = self._request(message)
        client = self._clients[peer]
        if client.connection is None:
            # Not at once: who asks would ask again and again meanwhile.
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_S, done, peer, PeerAnswer(None))
            return

        def answered(reply: Reply | HoldMQError) -> None:
            done(peer, _answer(code, reply))

        client.request(code, header, answered, timeout_s)

    async def tables(self, peer: str, name: str, offset: int) -> tuple[ReplicaTablesResponse, bytes]:
        """Ask for the leader's snapshot of tables, or for more of it. Raises HoldMQError."""
        header = ReplicaTablesRequest(self._shard, self._replica, name, offset)
        reply = await self._clients[peer].call(RequestCode.REPLICA_TABLES, header, TABLES_S)
        return reply.header(ReplicaTablesResponse), bytes(reply.body)

    def _request(self, message: object) -> tuple[RequestCode, Header, float]:
        if isinstance(message, CopyFetch):
            fetch = ReplicaFetchRequest(
                self._shard,
                self._replica,
                message.epoch,
                message.session,
                message.position,
                message.acknowledged,
            )
            return RequestCode.REPLICA_FETCH, fetch, self._timeout_s + self._hold_s
        if isinstance(message, CopyHello):
            hello = ReplicaHelloRequest(
                self._shard,
                self._replica,
                message.epoch,
                message.store_id,
                message.session,
                [EpochRow(*epoch) for epoch in message.epochs],
                message.end,
                message.confirmed,
                message.is_whole,
                message.format_level,
                message.read_address,
            )
            return RequestCode.REPLICA_HELLO, hello, self._timeout_s
        return RequestCode.REPLICA_STATUS, ReplicaStatusRequest(self._shard), self._timeout_s


def _answer(code: RequestCode, reply: Reply | HoldMQError) -> PeerAnswer:
    """What a reply is to the core."""
    if isinstance(reply, RemoteError) and reply.code == Code.NOT_LEADER:
        epoch, leader = reply.ext_fields.get("epoch", 0), reply.ext_fields.get("leader", "")
        needs = reply.ext_fields.get("needs", "")
        return PeerAnswer(Refused(epoch if isinstance(epoch, int) else 0, str(leader), str(needs)))
    if isinstance(reply, HoldMQError):
        return PeerAnswer(None)
    try:
        if code == RequestCode.REPLICA_FETCH:
            return _granted(reply)
        if code == RequestCode.REPLICA_HELLO:
            return _welcomed(reply)
        status = reply.header(ReplicaStatusResponse)
        return PeerAnswer(CopyReport(status.store_id, status.end, _epochs(status.epochs)))
    except WireError:
        return PeerAnswer(None)


def _granted(reply: Reply) -> PeerAnswer:
    answer = reply.header(ReplicaFetchResponse)
    grant = FetchGrant(
        answer.session,
        answer.position,
        answer.end,
        answer.confirmed,
        answer.first,
        answer.is_whole,
        answer.take_over,
    )
    return PeerAnswer(grant, answer.end, reply.body)


def _welcomed(reply: Reply) -> PeerAnswer:
    answer = reply.header(ReplicaHelloResponse)
    ends = {(row.topic, row.queue_id): row.end for row in rows(QueueEndRow, answer.queue_ends)}
    welcome = CopyWelcome(
        answer.epoch, answer.store_id, answer.session, _epochs(answer.epochs), answer.first, answer.end
    )
    return PeerAnswer(welcome, queue_ends=ends)


def _epochs(found: list[EpochRow]) -> tuple[Epoch, ...]:
    epochs = tuple(Epoch(row.epoch, row.start) for row in rows(EpochRow, found))
    if not epochs:
        raise WireError("a log has no epoch", Code.MISSING_FIELD)
    return epochs
