"""Connections to brokers, and MQTT sessions: found, looked at, disconnected, forgotten."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, ListQuery, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.live.cluster import Cluster
from console.management.clients import ClusterClients
from console.management.paging import part_of
from holdmq.client.sessions import SessionView
from holdmq.client.statistics import StatisticsView, TrafficOf, traffic

CONNECTION_SORTS: Final = ("client_id", "role", "broker", "address", "software", "connected")
SOURCES_SHOWN: Final = 20
"""Clients, and access keys, that are shown of the busiest."""
LOOKS_MAX: Final = 20
"""Pages of sessions that are looked at for one answer: where few are away it would be all of them."""


class ConnectionsQuery(ListQuery):
    """Which connections are asked for."""

    role: str = Field("", max_length=40)
    kind: Literal["", "producer", "consumer", "gateway", "spark", "console"] = ""


class ConnectionOverview(Answer):
    """One connection to a broker; `state` is what its heartbeats say, `principal` its access key.

    `produces`: up to ten topics that it sent to last; `reads`: topics of its groups, and up to ten more.
    """

    broker: str
    role: str
    client_id: str
    address: str
    language: str
    software: str
    connected: str
    state: dict[str, Any]
    principal: str
    kinds: list[str]
    produces: list[str]
    groups: list[str]
    reads: list[str]


class SourceTraffic(Answer):
    """What a client or an access key sends and takes per second, in the last minute and the last day."""

    name: str
    messages_in_per_s: float
    bytes_in_per_s: float
    messages_out_per_s: float
    bytes_out_per_s: float
    messages_replayed_per_s: float
    messages_in_per_s_day: float
    messages_out_per_s_day: float


class BusiestSources(Noticed):
    """The clients and the access keys that sent and took most in the last minute."""

    clients: list[SourceTraffic]
    access_keys: list[SourceTraffic]


class ConnectionList(Noticed):
    """A part of the connections."""

    connections: list[ConnectionOverview]
    total: int
    next: str | None


class SessionsQuery(InputModel):
    """Which sessions: whose client id begins with `prefix`."""

    prefix: str = Field("", max_length=1024)
    state: Literal["", "online", "offline"] = ""
    limit: int = Field(100, ge=1, le=1000)
    after: str = Field("", max_length=70_000)


class SessionOverview(Answer):
    """A session at its broker. `ended_ms` null: it is connected, to `gateway`."""

    client_id: str
    principal: str
    broker: str
    gateway: str
    online: bool
    expiry_s: int
    created_ms: int
    ended_ms: int | None


class SessionList(Answer):
    """A part of the sessions, by client id; how many there are nobody counts."""

    sessions: list[SessionOverview]
    total: int | None
    next: str | None


class SessionSubscription(Answer):
    """A filter of a session, with the options that were granted."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


class SessionDetail(SessionOverview):
    """A session, what it subscribed to, and how many messages it was being sent when it last wrote."""

    subscriptions: list[SessionSubscription]
    waiting: int


class Disconnected(Answer):
    """Whether the client was connected."""

    was_connected: bool


class Forgotten(Answer):
    """Whether there was a session."""

    existed: bool


def endpoints(cluster: Cluster, clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over connections and sessions."""
    sessions = clients.sessions

    async def list_connections(call: Call) -> Result:
        query: ConnectionsQuery = call.query
        known = await cluster.listing("connections")
        rows = [
            row
            for row in known["connections"]
            if (not query.role or row["role"] == query.role)
            and (not query.kind or query.kind in row["kinds"])
        ]
        searched = ("client_id", "address", "software", "broker", "principal")
        part = part_of(rows, query, searched, CONNECTION_SORTS)
        answer: dict[str, Any] = {"connections": part.rows, "total": part.total, "next": part.following}
        if "notice" in known:
            answer["notice"] = known["notice"]
        return ConnectionList.model_validate(answer)

    async def list_busiest(_call: Call) -> Result:
        counted = await clients.admin.statistics([], [], sources=True, rows_max=SOURCES_SHOWN)
        views = [view for view in counted.values() if isinstance(view, StatisticsView)]
        away = sorted(broker for broker, view in counted.items() if not isinstance(view, StatisticsView))
        told = {"notice": f"no answer from {', '.join(away)}: their counts are missing"} if away else {}
        by_client = traffic(views, lambda view: view.clients)[:SOURCES_SHOWN]
        by_key = traffic(views, lambda view: view.users)[:SOURCES_SHOWN]
        return BusiestSources(
            clients=[_source(one) for one in by_client], access_keys=[_source(one) for one in by_key], **told
        )

    async def list_sessions(call: Call) -> Result:
        query: SessionsQuery = call.query
        found: list[SessionView] = []
        after: str | None = query.after
        is_online = {"online": True, "offline": False}.get(query.state)
        for _ in range(LOOKS_MAX):
            assert after is not None
            page = await sessions.page(query.prefix, after, query.limit - len(found), is_online=is_online)
            after = page.next_after
            found += page.sessions
            if after is None or len(found) >= query.limit:
                break
        return SessionList(sessions=[_session(one) for one in found], total=None, next=after)

    async def show(call: Call) -> Result:
        client_id = call.path("client_id")
        details = await sessions.show(client_id)
        if details is None:
            raise RefusedRequest(404, "NOT_FOUND", f"{client_id[:200]!r} has no session")
        overview = _session(SessionView(details.broker, details.row))
        return SessionDetail(
            **overview.model_dump(),
            subscriptions=[
                SessionSubscription(
                    filter=name,
                    qos=options.qos,
                    no_local=options.no_local,
                    retain_as_published=options.retain_as_published,
                    retain_handling=options.retain_handling,
                )
                for name, options in sorted(details.filters.items())
            ],
            waiting=len(details.state.planned),
        )

    async def disconnect(call: Call) -> Result:
        return Disconnected(was_connected=await sessions.kick(call.path("client_id")))

    async def forget(call: Call) -> Result:
        return Forgotten(existed=await sessions.drop(call.path("client_id")))

    named = frozenset({"client_id"})
    one = "sessions/{client_id}"
    return [
        Endpoint("GET", "connections", Rank.VIEWER, list_connections, "Connections to the brokers.",
                 ConnectionList, ConnectionsQuery),
        Endpoint("GET", "connections/busiest", Rank.VIEWER, list_busiest, "Clients and access keys that send "
                 "and take most.", BusiestSources),
        Endpoint("GET", "sessions", Rank.VIEWER, list_sessions, "MQTT sessions.", SessionList, SessionsQuery),
        Endpoint("POST", f"{one}/disconnect", Rank.OPERATOR, disconnect, "Disconnect a client, whose session "
                 "stays.", Disconnected, names_slashes=named),
        Endpoint("GET", one, Rank.VIEWER, show, "A session and its subscriptions.", SessionDetail,
                 names_slashes=named),
        Endpoint("DELETE", one, Rank.OPERATOR, forget, "Disconnect a client, and forget its session.",
                 Forgotten, names_slashes=named),
    ]  # fmt: skip


def _source(one: TrafficOf) -> SourceTraffic:
    return SourceTraffic(
        name=one.name,
        messages_in_per_s=one.minute.messages_in,
        bytes_in_per_s=one.minute.bytes_in,
        messages_out_per_s=one.minute.messages_out,
        bytes_out_per_s=one.minute.bytes_out,
        messages_replayed_per_s=one.minute.messages_replayed,
        messages_in_per_s_day=one.day.messages_in,
        messages_out_per_s_day=one.day.messages_out,
    )


def _session(view: SessionView) -> SessionOverview:
    row = view.row
    return SessionOverview(
        client_id=row.client_id,
        principal=row.principal,
        broker=view.broker,
        gateway=row.owner,
        online=row.ended_ms == 0,
        expiry_s=row.expiry_s,
        created_ms=row.created_ms,
        ended_ms=row.ended_ms or None,
    )
