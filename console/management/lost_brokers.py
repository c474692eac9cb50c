"""A broker that is lost for good: what is gone with it, and that it is given up at every registry."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.live.cluster import Cluster
from holdmq.client.lost_brokers import BrokerLoss, LostBrokers
from holdmq.rpc.security import Security


class ForgetOrder(InputModel):
    """Whether what only this broker kept is to be given up; if not, it is only said."""

    accept_loss: bool = Field(False, description="Give it up; without, nothing is changed.")


class LostTopic(Answer):
    """A topic that the broker had, and the others that have it. `is_ordered`: its keys move to those."""

    topic: str
    queues: int
    is_ordered: bool
    others: int


class BrokerLossAnswer(Noticed):
    """What is lost, by what registries heard of the broker last; null = none of them knows.

    `forgotten_ms`: since when it is given up, at the registries `told`, null = it is not. `topics` are the
    first of `topics_total`.
    """

    broker: str
    forgotten_ms: int | None
    told: list[str]
    silent_ms: int | None
    sessions: int | None
    retained: int | None
    topics_total: int
    queues_total: int
    topics: list[LostTopic]


def endpoints(cluster: Cluster, registries: Sequence[str], security: Security | None) -> list[Endpoint]:
    """Return the endpoint over brokers that are lost."""

    async def forget(call: Call) -> Result:
        order: ForgetOrder = call.body
        broker = call.path("broker")
        async with LostBrokers(registries, client_id=cluster.client_id, security=security) as lost:
            loss = await (lost.forget(broker) if order.accept_loss else lost.look(broker))
        if loss.refused:
            raise RefusedRequest(409, "NOT_FORGOTTEN", next(iter(loss.refused.values())))
        if not loss.is_known:
            raise RefusedRequest(404, "NOT_FOUND", f"no registry knows a broker {broker[:200]!r}")
        if order.accept_loss:
            cluster.forget()
        return _shown(loss)

    return [
        Endpoint("POST", "brokers/{broker}/forget", Rank.ADMIN, forget,
                 "Say what is lost with a broker that never comes back, or give it up.", BrokerLossAnswer,
                 body=ForgetOrder),
    ]  # fmt: skip


def _shown(loss: BrokerLoss) -> BrokerLossAnswer:
    answer = BrokerLossAnswer(
        broker=loss.broker,
        forgotten_ms=loss.forgotten_ms or None,
        told=loss.told,
        silent_ms=loss.silent_ms,
        sessions=loss.sessions,
        retained=loss.retained,
        topics_total=loss.topics_total,
        queues_total=loss.queues_total,
        topics=[LostTopic(**row._asdict()) for row in loss.topics],
    )
    if loss.silent:
        answer.notice = f"no answer from {', '.join(loss.silent)}: do this again when they are there"
    return answer
