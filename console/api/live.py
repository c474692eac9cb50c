"""What happens now: counts by second, brokers, gateways, and the stream of the pages that stay open."""

from __future__ import annotations

from typing import Any

import structlog
from pydantic import Field
from starlette.responses import Response

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.http import EventStream
from console.api.serving import secrets_of
from console.identity.identity import KnowsCallers
from console.identity.roles import Rank
from console.live.cluster import Cluster
from console.live.core.window import WINDOW_S
from console.live.feed import SharedFeed
from holdmq.errors import HoldMQError, StorageError

SECONDS_DEFAULT = 60
TOP_MAX = 1000

log = structlog.get_logger("holdmq.console")


class TpsQuery(InputModel):
    """Which seconds and topics."""

    seconds: int = Field(SECONDS_DEFAULT, ge=1, le=WINDOW_S, description="How far back to look.")
    top: int | None = Field(
        None, ge=1, le=TOP_MAX, description="Only so many topics, the busiest; all when absent."
    )


class CountAnswer(Answer):
    """Messages, and the sum of their bodies' lengths."""

    messages: int
    bytes: int


class SecondCount(CountAnswer):
    """Counts of a second, UTC, by the broker's clock."""

    second: str


class CurrentRate(CountAnswer):
    """The newest complete second; null when nothing flows."""

    second: str | None
    topics: dict[str, CountAnswer]


class Tps(Noticed):
    """The last seconds, by topic, oldest first; a second without messages is left out."""

    now: str
    seconds: int
    topics: dict[str, list[SecondCount]]
    total: list[SecondCount]
    current: CurrentRate


class BrokerAnswer(Answer):
    """A broker that the registry knows; `reason` why it is not reachable or not writable.

    `epoch`: in which it leads its copies, 0 = it has one copy. `room`: its machine room, "" = it says none.
    """

    broker: str
    cluster: str
    address: str
    epoch: int
    room: str
    reachable: bool
    writable: bool
    reason: str
    log_bytes: int
    confirmed_position: int
    connections: int
    numbers: dict[str, Any]


class Brokers(Noticed):
    """All brokers that are registered."""

    brokers: list[BrokerAnswer]


class ClusterName(Answer):
    """A cluster, and the names of its brokers."""

    cluster: str
    brokers: list[str]


class Clusters(Noticed):
    """The clusters that have brokers."""

    clusters: list[ClusterName]


class Gateway(Answer):
    """One worker process of a gateway; `state` is what its heartbeats say."""

    client_id: str
    address: str
    software: str
    connected: str
    brokers: list[str]
    state: dict[str, Any]


class Gateways(Noticed):
    """All gateway workers that are connected."""

    gateways: list[Gateway]


def endpoints_of_all(feed: SharedFeed, cluster: Cluster) -> list[Endpoint]:
    """Return the endpoints that are of no single cluster: what is counted, and which clusters there are."""

    async def tps(call: Call) -> Result:
        query: TpsQuery = call.query
        return Response(await feed.tps(query.seconds, query.top), media_type="application/json")

    async def clusters(_call: Call) -> Result:
        try:
            names = await cluster.names()
        except HoldMQError as error:
            return Clusters(clusters=[], notice=f"the registries cannot be asked: {error}")
        return Clusters(
            clusters=[ClusterName(cluster=name, brokers=brokers) for name, brokers in names.items()]
        )

    viewer = Rank.VIEWER
    return [
        Endpoint("GET", "tps", viewer, tps, "Messages and bytes per topic and second, as the statistics job "
                 "counted them.", Tps, TpsQuery),
        Endpoint("GET", "clusters", viewer, clusters, "Clusters that have brokers, by name.", Clusters),
    ]  # fmt: skip


def endpoints(feed: SharedFeed, cluster: Cluster, callers: KnowsCallers) -> list[Endpoint]:
    """Return the endpoints over feed and cluster; streams go on while `callers` know who holds them."""

    async def brokers(_call: Call) -> Result:
        return Brokers.model_validate(await cluster.listing("brokers"))

    async def gateways(_call: Call) -> Result:
        return Gateways.model_validate(await cluster.listing("gateways"))

    async def stream(call: Call) -> Result:
        cookie, bearer = secrets_of(call.request)

        async def may_go_on() -> bool:
            try:
                return await callers.is_still(call.caller, cookie, bearer)
            except StorageError as error:
                # The next request is told the same; until then nobody looks on.
                log.warning("a stream ends: the accounts cannot be read", reason=str(error))
                return False

        return EventStream(feed, cluster, may_go_on)

    viewer = Rank.VIEWER
    return [
        Endpoint("GET", "brokers", viewer, brokers,
                 "Brokers that the registry knows, and how they are.", Brokers),
        Endpoint("GET", "gateways", viewer, gateways,
                 "Gateway workers connected to the brokers.", Gateways),
        Endpoint("GET", "stream", viewer, stream, "Server-sent events, once a second: tps and cluster.",
                 files=("text/event-stream",)),
    ]  # fmt: skip
