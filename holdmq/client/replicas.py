"""The replicas of one shard, asked at their own ports: what each has and does, and who is to lead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from holdmq.errors import HoldMQError, UsageError
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.replica_headers import (
    CopyRow,
    EpochRow,
    ReplicaPromoteRequest,
    ReplicaPromoteResponse,
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaSwitchRequest,
    ReplicaSwitchResponse,
)

CALL_S: Final = 3.0
"""A replica answers from memory; a switch-over takes a second until its leader has answered."""
SWITCH_S: Final = 10.0
"""Until the other replica leads, or it is said that it does not."""
LOOK_S: Final = 0.1

Standing = Literal["leader", "in sync", "learner", "missing"]
"""What a replica is to its shard: it leads and serves, may lead next, catches up, or does not answer."""
Answers = Mapping[str, ReplicaStatusResponse | HoldMQError]
"""By replica: what it says, or why it says nothing."""

H = TypeVar("H", bound=Header)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of a shard.

    `status`: what it says of itself, None = nothing, `reason` says why. `in_sync`: whether the leader waits
    for it, None = nobody knows. `behind_ms` is how long ago it had all that the leader had, and
    `behind_bytes` what of the leader's log it has not acknowledged; None = nobody leads, or it leads.
    """

    replica: str
    address: str
    standing: Standing
    status: ReplicaStatusResponse | None
    reason: str
    in_sync: bool | None
    behind_ms: int | None
    behind_bytes: int | None

    @property
    def serves(self) -> bool:
        """Whether it leads, serves, and is sure that no other one does."""
        return self.status is not None and self.status.is_serving and self.status.lease_ms > 0

    @property
    def lease_ms(self) -> int | None:
        """How long a leader still trusts its lease, 0 = it has run out; None = it does not lead."""
        return self.status.lease_ms if self.status is not None and self.status.is_serving else None

    @property
    def log_epoch(self) -> int:
        """The highest epoch of its log, 0 = not known: of two logs the one with the higher epoch is newer."""
        found = () if self.status is None else rows(EpochRow, self.status.epochs)
        return max((row.epoch for row in found), default=0)


@dataclass(frozen=True, slots=True)
class ShardView:
    """The replicas of a shard, in the order of its configuration."""

    shard: str
    replicas: tuple[ReplicaView, ...]

    @property
    def leader(self) -> ReplicaView | None:
        """The replica that leads and serves, whether its lease has run out or not; None = there is none."""
        return next((one for one in self.replicas if one.standing == "leader"), None)

    @property
    def epoch(self) -> int:
        """The highest epoch of the shard that a replica has read, 0 = none did."""
        return max((one.status.epoch for one in self.replicas if one.status is not None), default=0)

    @property
    def is_well(self) -> bool:
        """Whether every replica answers, and one of them hands out."""
        return all(one.status is not None for one in self.replicas) and any(
            one.serves for one in self.replicas
        )

    def may_lead_next(self, replica: ReplicaView) -> bool:
        """Whether the leader can hand the lead to it now."""
        leader = self.leader
        return leader is not None and leader.serves and replica.standing == "in sync"


def shard_view(shard: str, addresses: Mapping[str, str], answers: Answers) -> ShardView:
    """Put together what the replicas at `addresses` said."""
    said = {name: answer for name, answer in answers.items() if isinstance(answer, ReplicaStatusResponse)}
    # Who knows the highest epoch knows best who is in sync, and its leader before all who have read it.
    best = max(said.values(), key=lambda status: (status.epoch, status.is_serving), default=None)
    members = None if best is None or not best.epoch else set(best.in_sync)
    leader = max(
        (status for status in said.values() if status.is_serving), key=lambda one: one.epoch, default=None
    )
    copies = {} if leader is None else {row.replica: row for row in rows(CopyRow, leader.copies)}
    views = []
    for name, address in addresses.items():
        answer, copy = answers[name], copies.get(name)
        behind_bytes = None
        # A copy that has said hello, and nothing since, has acknowledged -1.
        if leader is not None and copy is not None and copy.acknowledged >= 0:
            behind_bytes = max(0, leader.end - copy.acknowledged)
        views.append(
            ReplicaView(
                name,
                address,
                _standing(said.get(name), leader, name in (members or ())),
                said.get(name),
                str(answer) if isinstance(answer, HoldMQError) else "",
                None if members is None else name in members,
                None if copy is None else copy.behind_ms,
                behind_bytes,
            )
        )
    return ShardView(shard, tuple(views))


def _standing(
    status: ReplicaStatusResponse | None, leader: ReplicaStatusResponse | None, is_member: bool
) -> Standing:
    if status is None:
        return "missing"
    # One that was deposed, and has not noticed, says that it serves as well.
    if status is leader:
        return "leader"
    return "in sync" if is_member and status.is_whole else "learner"


class ShardReplicas:
    """Asks the replicas of `shard` at `addresses` (id → host:port), and tells them who is to lead.

    Each question is a connection of its own, in the name of `client_id` and `role`: looked at now and then,
    replicas need no more.
    """

    def __init__(
        self, shard: str, addresses: Mapping[str, str], client_id: str, role: str, security: Security | None
    ) -> None:
        self.shard = shard
        self.addresses = dict(addresses)
        self._client_id = client_id
        self._role = role
        self._security = security

    async def view(self) -> ShardView:
        """Ask all of them; who does not answer is a row that says why."""
        request = ReplicaStatusRequest(self.shard)

        async def ask(replica: str) -> ReplicaStatusResponse | HoldMQError:
            try:
                return await self._ask(replica, RequestCode.REPLICA_STATUS, request, ReplicaStatusResponse)
            except HoldMQError as error:
                return error

        answers = await asyncio.gather(*map(ask, self.addresses))
        return shard_view(self.shard, self.addresses, dict(zip(self.addresses, answers, strict=True)))

    async def switch(self, to: str) -> str:
        """Have the leader hand the lead to `to` ("" = to who has most), and wait until that one leads.

        Returns who leads. Raises UsageError when nobody leads or there is no such replica, RemoteError when
        the leader refuses, and HoldMQError when the other one does not lead after `SWITCH_S`.
        """
        if to:
            self._check(to)
        leader = (await self.view()).leader
        if leader is None:
            raise UsageError(f"nobody leads {self.shard}: holdmq replica list says what each replica does")
        if to == leader.replica:
            return to
        request = ReplicaSwitchRequest(self.shard, to)
        answer = await self._ask(leader.replica, RequestCode.REPLICA_SWITCH, request, ReplicaSwitchResponse)
        deadline = asyncio.get_running_loop().time() + SWITCH_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LOOK_S)
            now = (await self.view()).leader
            if now is not None and now.replica == answer.to:
                return answer.to
        raise HoldMQError(f"{answer.to} does not lead after {SWITCH_S:g} s: see holdmq replica list")

    async def promote(self, replica: str) -> int:
        """Have `replica` lead with what it has, whatever may be lost; the end of its log."""
        self._check(replica)
        request = ReplicaPromoteRequest(self.shard, True)
        return (await self._ask(replica, RequestCode.REPLICA_PROMOTE, request, ReplicaPromoteResponse)).end

    def _check(self, replica: str) -> None:
        if replica not in self.addresses:
            raise UsageError(f"replication.replicas has no {replica!r}, but {', '.join(self.addresses)}")

    async def _ask(self, replica: str, code: RequestCode, header: Header, kind: type[H]) -> H:
        client = Client(self.addresses[replica], self._role, self._client_id, security=self._security)
        try:
            return (await client.call(code, header, CALL_S)).header(kind)
        finally:
            await client.close()
