"""MQTT clients that are connected, to whichever gateway: found, shown, disconnected."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from holdmq.errors import UsageError
from holdmq.wire.client_headers import ClientRow, ClientSelection

VERSIONS = {"": 0, "3.1": 3, "3.1.1": 4, "5": 5}
NAMES = {level: name for name, level in VERSIONS.items()}


class ClientWishes(InputModel):
    """Which clients: those for which all that is given holds. Ids, users and gateways: their beginning, or a
    pattern with * and ?."""

    client: str = Field("", max_length=1024)
    user: str = Field("", max_length=1024)
    address: str = Field("", max_length=80, description="An address, or a network as 10.0.0.0/8.")
    gateway: str = Field("", max_length=256)
    protocol: Literal["", "3.1", "3.1.1", "5"] = ""
    since_ms: int = Field(0, ge=0, description="Connected at this time or later, ms since 1970.")
    until_ms: int = Field(0, ge=0, description="Connected before this time.")

    def selection(self) -> ClientSelection:
        """Return it as gateways are asked."""
        return ClientSelection(
            client_id=self.client,
            user=self.user,
            address=self.address,
            gateway=self.gateway,
            version=VERSIONS[self.protocol],
            connected_from_ms=self.since_ms,
            connected_until_ms=self.until_ms,
        )


class ClientsQuery(ClientWishes):
    """Which clients, in which order."""

    sort: str = Field("client_id", max_length=40, description="A column; with - before it, largest first.")
    limit: int = Field(100, ge=1, le=1000)
    after: str = Field("", max_length=140_000)


class ConnectedClient(Answer):
    """A connected client. `bytes_in` and `bytes_out` null: nobody counts them (UNIX sockets).

    `tenant` is whose it is, "" = nobody's.
    """

    client_id: str
    tenant: str
    user: str
    address: str
    port: int
    listener: str
    protocol: str
    keep_alive_s: int
    clean_start: bool
    expiry_s: int
    connected_ms: int
    gateway: str
    worker: int
    subscriptions: int
    in_flight_in: int
    in_flight_out: int
    messages_in: int
    messages_out: int
    bytes_in: int | None
    bytes_out: int | None


class ClientListAnswer(Noticed):
    """A part of the clients; `total` of them are wanted."""

    clients: list[ConnectedClient]
    total: int
    next: str | None


class GrantedFilter(Answer):
    """A subscription of a client."""

    filter: str
    qos: int


class ClientDetail(ConnectedClient):
    """A client and what it subscribes to, up to 1,000 filters."""

    filters: list[GrantedFilter]


class BusiestQuery(InputModel):
    """Users or clients, and by what they are the busiest."""

    by: Literal["user", "client"] = "user"
    sort: Literal["messages_in", "messages_out", "bytes_in", "bytes_out"] = "messages_in"
    limit: int = Field(20, ge=1, le=1000)


class BusyClient(Answer):
    """What a user's or a client's connections carried since their gateway workers were started; up to `error`
    of the messages may be others'."""

    name: str
    connections: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    error: int


class BusiestAnswer(Noticed):
    """Users or clients that carried most, the most first."""

    busiest: list[BusyClient]


class KickWishes(ClientWishes):
    """Whom to disconnect; at least one field says it, `client` "*" means everybody.

    `dry_run`: only say how many they are.
    """

    dry_run: bool = False


class KickAnswer(Noticed):
    """How many clients are disconnected, or would be."""

    clients: int
    dry_run: bool


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over connected clients."""
    connected = clients.connected

    async def list_(call: Call) -> Result:
        query: ClientsQuery = call.query
        page = await connected.page(query.selection(), sort=query.sort, after=query.after, count=query.limit)
        rows = [ConnectedClient(**_shown(row)) for row in page.clients]
        return _noticed(ClientListAnswer(clients=rows, total=page.total, next=page.next_after), page.silent)

    async def list_busiest(call: Call) -> Result:
        query: BusiestQuery = call.query
        found = await connected.busiest(query.by, sort=query.sort, count=query.limit)
        rows = [BusyClient(**row._asdict()) for row in found.rows]
        return _noticed(BusiestAnswer(busiest=rows), found.silent)

    async def show(call: Call) -> Result:
        client_id = call.path("client_id")
        row = await connected.show(client_id)
        if row is None:
            raise RefusedRequest(404, "NOT_FOUND", f"{client_id[:200]!r} is not connected")
        return ClientDetail(
            **_shown(row), filters=[GrantedFilter(filter=name, qos=qos) for name, qos in row.filters]
        )

    async def kick(call: Call) -> Result:
        wishes: KickWishes = call.body
        selection = wishes.selection()
        if selection == ClientSelection(""):
            raise UsageError("say which clients to disconnect; * as client means all of them")
        if wishes.dry_run:
            page = await connected.page(selection, count=1)
            return _noticed(KickAnswer(clients=page.total, dry_run=True), page.silent)
        done = await connected.kick(selection)
        return _noticed(KickAnswer(clients=done.clients, dry_run=False), done.silent)

    async def disconnect(call: Call) -> Result:
        done = await connected.kick(ClientSelection("", exact_id=call.path("client_id")))
        return _noticed(KickAnswer(clients=done.clients, dry_run=False), done.silent)

    named = frozenset({"client_id"})
    one = "clients/{client_id}"
    return [
        Endpoint("GET", "clients", Rank.VIEWER, list_, "MQTT clients that are connected.", ClientListAnswer,
                 ClientsQuery),
        Endpoint("GET", "clients-busiest", Rank.VIEWER, list_busiest, "MQTT users or clients that sent and "
                 "got most.", BusiestAnswer, BusiestQuery),
        Endpoint("POST", "clients/kick", Rank.OPERATOR, kick, "Disconnect the clients of a selection, or "
                 "count them.", KickAnswer, body=KickWishes),
        Endpoint("POST", f"{one}/disconnect", Rank.OPERATOR, disconnect, "Disconnect a client by its "
                 "whole id.", KickAnswer, names_slashes=named),
        Endpoint("GET", one, Rank.VIEWER, show, "A connected client and its subscriptions.", ClientDetail,
                 names_slashes=named),
    ]  # fmt: skip


def _noticed(answer: Noticed, silent: list[str]) -> Noticed:
    if silent:
        answer.notice = f"no answer from {', '.join(silent)}: their clients are missing"
    return answer


def _shown(row: ClientRow) -> dict[str, object]:
    found = row._asdict()
    for name in ("order", "filters", "version", "is_clean"):
        del found[name]
    for name in ("bytes_in", "bytes_out"):
        found[name] = None if found[name] < 0 else found[name]
    protocol = NAMES.get(row.version, str(row.version))
    return {**found, "tenant": row.tenant, "protocol": protocol, "clean_start": row.is_clean}
