"""Replicas of brokers: what each has and does, and the lead handed from one to another.

Making a replica lead that may lack acknowledged messages is left to `holdmq replica promote`: it is for who
has looked at the machines, and says on them that what is lost may be lost.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.live.cluster import Cluster
from console.live.shards import Shards
from holdmq.client.replicas import ReplicaView, ShardView
from holdmq.errors import Code, RemoteError, UsageError


class ReplicaAnswer(Answer):
    """A replica.

    `role`: it leads, may lead next, catches up, or does not answer (`reason` says why); `does` is what it
    says itself. `epoch` and `end` are of its log, `confirmed` is up to where it knows it to be acknowledged.
    `behind_ms` and `behind_bytes` are what the leader says of a copy, `lease_ms` of a leader for how long it
    trusts its lease; `may_lead`: the lead can be handed to it now.
    """

    replica: str
    address: str
    role: Literal["leader", "in sync", "learner", "missing"]
    does: str
    reason: str
    serves: bool
    in_sync: bool | None
    whole: bool | None
    epoch: int | None
    end: int | None
    confirmed: int | None
    behind_ms: int | None
    behind_bytes: int | None
    lease_ms: int | None
    may_lead: bool


class ShardAnswer(Answer):
    """A broker's shard: `copies` of its log, 1 = no `replicas`; `leader` "" = none.

    `epoch` 0 = it has none. `ok`: every replica answers, and one of them serves.
    """

    broker: str
    copies: int
    epoch: int
    leader: str
    ok: bool
    replicas: list[ReplicaAnswer]


class ShardList(Noticed):
    """All shards, by name; one that nobody leads is there if this console has seen it before."""

    shards: list[ShardAnswer]


class SwitchOrder(InputModel):
    """Which replica is to lead."""

    to: str = Field(min_length=1, max_length=64)


class Switched(Answer):
    """Which replica leads now."""

    leader: str


def endpoints(cluster: Cluster, shards: Shards) -> list[Endpoint]:
    """Return the endpoints over replicas."""

    async def list_(_call: Call) -> Result:
        now = await shards.now()
        answer = ShardList(shards=[_shard(view) for view in now.shards])
        if now.notice:
            answer.notice = f"{now.notice}; shards that were not seen before are missing"
        return answer

    async def switch(call: Call) -> Result:
        order: SwitchOrder = call.body
        broker = call.path("broker")
        replicas = await shards.replicas_of(broker)
        if replicas is None:
            raise RefusedRequest(404, "NOT_FOUND", f"there is no broker {broker[:200]!r}")
        if not replicas.addresses:
            raise RefusedRequest(409, "ONE_COPY", f"{broker} has one copy: nobody else can lead")
        if order.to not in replicas.addresses:
            names = ", ".join(replicas.addresses)
            raise RefusedRequest(
                400, "INVALID_ARGUMENT", f"{broker} has no replica {order.to!r}, but {names}", "to"
            )
        try:
            leader = await replicas.switch(order.to)
        except UsageError as error:
            raise RefusedRequest(409, "NOT_LEADER", str(error)) from error
        except RemoteError as error:
            if error.code is not Code.NOT_ENOUGH_REPLICAS:
                raise
            raise RefusedRequest(409, error.code.name, error.remark or str(error)) from error
        finally:
            shards.forget()
            cluster.forget()
        return Switched(leader=leader)

    return [
        Endpoint("GET", "replicas", Rank.VIEWER, list_, "Replicas of each broker, and which one leads.",
                 ShardList),
        Endpoint("POST", "replicas/{broker}/switch", Rank.OPERATOR, switch,
                 "Hand the lead to another replica in sync.", Switched, body=SwitchOrder),
    ]  # fmt: skip


def _shard(view: ShardView) -> ShardAnswer:
    leader = view.leader
    return ShardAnswer(
        broker=view.shard,
        copies=max(1, len(view.replicas)),
        epoch=view.epoch,
        leader="" if leader is None else leader.replica,
        ok=view.is_well or not view.replicas,
        replicas=[_replica(view, one) for one in view.replicas],
    )


def _replica(view: ShardView, one: ReplicaView) -> ReplicaAnswer:
    status = one.status
    return ReplicaAnswer(
        replica=one.replica,
        address=one.address,
        role=one.standing,
        does="" if status is None else status.role,
        reason=one.reason,
        serves=one.serves,
        in_sync=one.in_sync,
        whole=None if status is None else status.is_whole,
        epoch=None if status is None else one.log_epoch,
        end=None if status is None else status.end,
        confirmed=None if status is None else status.confirmed,
        behind_ms=one.behind_ms,
        behind_bytes=one.behind_bytes,
        lease_ms=one.lease_ms,
        may_lead=view.may_lead_next(one),
    )
