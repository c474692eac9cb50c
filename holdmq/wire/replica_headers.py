"""Typed headers between the replicas of a shard, and of those who look after them.

They go to a replica's own port (`replication.port`), which is open whether it leads or not; REPLICA_LIST
goes to the broker, whose address is in routes. Who does not lead in that epoch answers NOT_LEADER with
`epoch`, the highest that it knows, and `leader`, who leads there ("" = not known).
"""

from __future__ import annotations

from typing import NamedTuple

from holdmq.wire.header import Header, header


class EpochRow(NamedTuple):
    """An epoch of a log and the log offset at which it began."""

    epoch: int
    start: int


class QueueEndRow(NamedTuple):
    """The next offset of a queue."""

    topic: str
    queue_id: int
    end: int


class CopyRow(NamedTuple):
    """A copy as its leader sees it: what it acknowledged, and how long ago it was level."""

    replica: str
    acknowledged: int
    behind_ms: int
    is_member: bool
    is_whole: bool


class ReplicaRow(NamedTuple):
    """A replica, and host:port of its own port."""

    replica: str
    address: str


@header
class ReplicaListResponse(Header):
    """The replicas of the broker's shard, in the order of its configuration; none = it has one copy.

    Rows are ReplicaRow; `replica` is the one that answers.
    """

    replica: str
    replicas: list[ReplicaRow]


@header
class ReplicaHelloRequest(Header):
    """A copy begins to follow; rows of `epochs` are EpochRow.

    `end`: behind the last byte that it would acknowledge; `is_whole` False: it may lack bytes that it has
    acknowledged. `session` is of this hello alone. `read_address`: where clients may read from the copy, ""
    = nowhere.
    """

    shard: str
    replica: str
    epoch: int
    store_id: bytes
    session: int
    epochs: list[EpochRow]
    end: int
    confirmed: int
    is_whole: bool
    format_level: int
    read_address: str = ""


@header
class ReplicaHelloResponse(Header):
    """The leader's log: rows of `epochs` are EpochRow, of `queue_ends` QueueEndRow.

    `queue_ends` are there only for a copy that must begin anew at `first`.
    """

    epoch: int
    store_id: bytes
    session: int
    epochs: list[EpochRow]
    first: int
    end: int
    queue_ends: list[QueueEndRow]


@header
class ReplicaFetchRequest(Header):
    """A copy asks for the log from `position` on, and acknowledges everything below `acknowledged`."""

    shard: str
    replica: str
    epoch: int
    session: int
    position: int
    acknowledged: int


@header
class ReplicaFetchResponse(Header):
    """Body: the log's bytes from `position` to `end`, of a blank only its first 8.

    `is_whole`: the copy has all that it can have acknowledged; `take_over`: it is asked to lead.
    """

    session: int
    position: int
    end: int
    confirmed: int
    first: int
    is_whole: bool
    take_over: bool


@header
class ReplicaTablesRequest(Header):
    """A copy that begins anew asks for the leader's newest snapshot of tables, or for more of it.

    `name` "" = from its beginning; else that snapshot from `offset` on, STORE_FAILED when it is not the
    newest any more.
    """

    shard: str
    replica: str
    name: str
    offset: int


@header
class ReplicaTablesResponse(Header):
    """Body: bytes of the snapshot from `offset` on. `name` "" = there is none; its rows are of the log below
    `position`, and it has `size` bytes in all.
    """

    name: str
    position: int
    size: int
    offset: int


@header
class ReplicaStatusRequest(Header):
    """What a replica has and does."""

    shard: str


@header
class ReplicaStatusResponse(Header):
    """A replica; rows of `epochs` are EpochRow, of `copies` CopyRow (of a leader).

    `role` is waiting, copying, campaigning, promoting, leading or ended. `epoch`, `leader` and `in_sync` are
    those of the shard's state as it was read last; epoch 0 = none was read. `lease_ms`: how long the lead's
    lease is still trusted.
    """

    replica: str
    role: str
    epoch: int
    leader: str
    in_sync: list[str]
    store_id: bytes
    epochs: list[EpochRow]
    first: int
    end: int
    confirmed: int
    is_whole: bool
    is_serving: bool
    lease_ms: int
    copies: list[CopyRow]


@header
class ReplicaSwitchRequest(Header):
    """The leader is to hand the lead to `to`, a member; "" = to the member that has most."""

    shard: str
    to: str


@header
class ReplicaSwitchResponse(Header):
    """Names the replica that is asked to lead; its status shows when it does."""

    to: str


@header
class ReplicaPromoteRequest(Header):
    """This replica is to lead without all that others may have: `accept_loss` must be true."""

    shard: str
    accept_loss: bool


@header
class ReplicaPromoteResponse(Header):
    """The replica campaigns: what lies behind `end` elsewhere is given up."""

    end: int
