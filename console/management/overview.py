"""The cluster as a whole: how its brokers and disks are, and the alarms that are raised or were."""

from __future__ import annotations

from console.api.endpoint import Answer, Call, Endpoint, Noticed, Result
from console.api.live import BrokerAnswer, Gateway
from console.identity.roles import Rank
from console.live.cluster import Cluster
from console.management.clients import ClusterClients
from holdmq.client.statistics import AlarmsView
from holdmq.wire.statistics_headers import AlarmRow

HISTORY_MAX = 500


class ClusterCounts(Answer):
    """How many there are."""

    topics: int
    brokers: int
    gateways: int
    connections: int


class ClusterAnswer(Noticed):
    """The cluster; `alarms`: how many are raised."""

    registries: list[str]
    brokers: list[BrokerAnswer]
    gateways: list[Gateway]
    counts: ClusterCounts
    alarms: int


class ActiveAlarm(Answer):
    """An alarm that is raised at a broker; `value` and `peak` in the unit of `threshold`."""

    broker: str
    kind: str
    name: str
    since_ms: int
    value: int
    threshold: int
    peak: int
    text: str
    is_told: bool


class PastAlarm(ActiveAlarm):
    """An alarm that is over."""

    ended_ms: int


class AlarmChannel(Answer):
    """A way on which a broker tells of alarms, and how that goes."""

    broker: str
    channel: str
    sent: int
    failed: int
    dropped: int
    waiting: int
    last_error: str


class AlarmList(Noticed):
    """Alarms, the newest first. `history` goes back to each broker's start, at most."""

    active: list[ActiveAlarm]
    history: list[PastAlarm]
    channels: list[AlarmChannel]


def endpoints(cluster: Cluster, clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over the whole cluster."""

    async def show(_call: Call) -> Result:
        overview = await cluster.whole()
        return ClusterAnswer.model_validate(
            {**overview, "registries": cluster.registries, "alarms": len((await alarms_now()).active)}
        )

    async def alarms_now() -> AlarmList:
        views = await clients.admin.alarms()
        known = [(broker, view) for broker, view in sorted(views.items()) if isinstance(view, AlarmsView)]
        silent = sorted(views.keys() - {broker for broker, _ in known})
        active = [_active(broker, row) for broker, view in known for row in view.alarms]
        history = [
            PastAlarm(**_active(broker, row).model_dump(), ended_ms=ended_ms)
            for broker, view in known
            for row, ended_ms in view.over
        ]
        channels = [
            AlarmChannel(broker=broker, **row._asdict()) for broker, view in known for row in view.channels
        ]
        answer = AlarmList(
            active=sorted(active, key=lambda one: -one.since_ms),
            history=sorted(history, key=lambda one: -one.ended_ms)[:HISTORY_MAX],
            channels=channels,
        )
        if silent:
            answer.notice = f"no answer from {', '.join(silent)}: alarms that only they know are missing"
        return answer

    async def alarms(_call: Call) -> Result:
        return await alarms_now()

    return [
        Endpoint("GET", "cluster", Rank.VIEWER, show, "Brokers, gateways and how many there are of what.",
                 ClusterAnswer),
        Endpoint("GET", "alarms", Rank.VIEWER, alarms, "Alarms that are raised, and that were.", AlarmList),
    ]  # fmt: skip


def _active(broker: str, row: AlarmRow) -> ActiveAlarm:
    return ActiveAlarm(broker=broker, **row._asdict())
