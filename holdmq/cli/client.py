"""``holdmq client list | busiest | show | kick``: MQTT clients that are connected, to whichever gateway."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, ClientId, CommandGroup, Yes, confirm, print_json
from holdmq.cli.shown import say
from holdmq.cli.times import TIME_HELP, parse_time, show_time
from holdmq.config.model import Config
from holdmq.errors import UsageError
from holdmq.service.process import EXIT_FAILED
from holdmq.wire.busiest_headers import BUSIEST_SORTS
from holdmq.wire.client_headers import ROWS_MAX, ClientRow, ClientSelection
from holdmq.wire.client_places import SORTS

if TYPE_CHECKING:
    from holdmq.client.connected import ClientAdmin, ClientPage

T = TypeVar("T")

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}
"""Levels of the protocol, as CONNECT says them, and what people call them."""
LOOK_S: Final = 1.0
"""Between two looks at a client: what happened meanwhile are its rates."""

app = CommandGroup(
    "MQTT clients that are connected, to whichever gateway.", "holdmq client list --user depot-7"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which clients a command is about: those for which all that is given holds."""

    client: Annotated[
        str,
        typer.Option("--client", metavar="ID", help="Client ids that begin so, or a pattern with * and ?."),
    ] = ""
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="Users that begin so, or a pattern.")
    ] = ""
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="An address, or a network as 10.0.0.0/8.")
    ] = ""
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="HOST", help="Gateways whose host begins so, or a pattern.")
    ] = ""
    protocol: Annotated[str, typer.Option("--protocol", metavar="VERSION", help="3.1, 3.1.1 or 5.")] = ""
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help=f"Connected at this time or later, {TIME_HELP}.")
    ] = ""
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Connected before this time.")] = ""

    def selection(self) -> ClientSelection:
        """Return what is asked for. Raises UsageError."""
        versions = {name: level for level, name in VERSIONS.items()}
        if self.protocol and self.protocol not in versions:
            raise UsageError(f"--protocol is one of {', '.join(versions)}")
        now_ms = time.time_ns() // 1_000_000
        return ClientSelection(
            client_id=self.client,
            user=self.user,
            address=self.address,
            gateway=self.gateway,
            version=versions.get(self.protocol, 0),
            connected_from_ms=parse_time(self.since, now_ms) if self.since else 0,
            connected_until_ms=parse_time(self.until, now_ms) if self.until else 0,
        )


@app.add("list", example="holdmq client list --client 'meter-*' --sort -connected")
def list_(
    given: Asking,
    wanted: Wanted,
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="COLUMN", help=f"{', '.join(SORTS)}; - before it: the largest first."),
    ] = "client_id",
    count: Annotated[int, typer.Option("--count", min=1, max=100_000, help="Show at most so many.")] = 100,
    filters: Annotated[
        int, typer.Option("--filters", min=0, max=1_000, help="Tell so many subscriptions of each (JSON).")
    ] = 0,
) -> None:
    """List connected clients, also those without a session that outlives their connection."""
    selection = wanted.selection()

    async def work(clients: ClientAdmin) -> tuple[list[ClientRow], ClientPage]:
        found: list[ClientRow] = []
        after = ""
        while True:
            left = min(ROWS_MAX, count - len(found))
            page = await clients.page(selection, sort=sort, after=after, count=left, filters_max=filters)
            found += page.clients
            if page.next_after is None or len(found) >= count:
                return found, page
            after = page.next_after

    found, page = _run(given.configuration(), work)
    given.table(
        ("client id", "tenant", "user", "address", "mqtt", "connected", "gateway", "subscribes to",
         "in flight", "messages in", "out"),
        [_shown(row) for row in found],
        lambda row: (
            row["client_id"], row["tenant"], row["user"], _address(row), row["protocol"],
            show_time(row["connected_ms"]), f"{row['gateway']} {row['worker']}", row["subscriptions"],
            f"{row['in_flight_in']} in, {row['in_flight_out']} out", row["messages_in"], row["messages_out"],
        ),
    )  # fmt: skip
    if not given.as_json and page.total > len(found):
        say(f"{len(found)} of {page.total} clients; --count shows more")
    _warn(page.silent)


@app.add("busiest", example="holdmq client busiest --by user --sort bytes_in")
def busiest(
    given: Asking,
    by: Annotated[str, typer.Option("--by", help="user or client.")] = "user",
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help=f"{', '.join(BUSIEST_SORTS)}: the most first.")
    ] = "messages_in",
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="Show at most so many.")] = 20,
) -> None:
    """Show the MQTT users or clients that sent and got most, since their gateway workers were started."""
    found = _run(given.configuration(), lambda clients: clients.busiest(by, sort=sort, count=count))
    given.table(
        (by, "connections", "messages in", "out", "bytes in", "out", "not sure"),
        [row._asdict() for row in found.rows],
        lambda row: (
            row["name"] or "(nobody)", row["connections"], row["messages_in"], row["messages_out"],
            row["bytes_in"], row["bytes_out"], row["error"] or "",
        ),
    )  # fmt: skip
    _warn(found.silent)


@app.add("show", example="holdmq client show meter-42 --json")
def show(given: Asking, client_id: ClientId) -> None:
    """Show a connected client: where it is, what it subscribes to, what it sends and is sent in a second.

    Exit code 1 if it is not connected.
    """

    async def work(clients: ClientAdmin) -> tuple[ClientRow | None, ClientRow | None, float]:
        import asyncio

        first = await clients.show(client_id)
        began = time.monotonic()
        if first is None:
            return None, None, 0.0
        await asyncio.sleep(LOOK_S)
        return first, await clients.show(client_id), time.monotonic() - began

    first, second, seconds = _run(given.configuration(), work)
    if first is None:
        say(f"{client_id} is not connected", err=True)
        raise typer.Exit(EXIT_FAILED)
    is_same = second is not None and second.connected_ms == first.connected_ms
    row = second if is_same and second is not None else first
    rates = rates_of(first, row, seconds) if is_same else {}
    if given.as_json:
        print_json({**_shown(row), "filters": row.filters, "rates": rates})
        return
    shown = _shown(row)
    by = (f" as {row.user}" if row.user else "") + (f" of tenant {row.tenant}" if row.tenant else "")
    say(f"{row.client_id}{by} from {_address(shown)}, since {show_time(row.connected_ms)}")
    start = "clean start" if row.is_clean else "session resumed if there was one"
    say(f"MQTT {shown['protocol']}, keep alive {row.keep_alive_s} s, {start}")
    say(f"its session expires {row.expiry_s} s after its end")
    say(f"at {row.gateway}, worker {row.worker}, listener {row.listener}")
    say(f"{row.messages_in} messages in, {row.messages_out} out; {_bytes(row.bytes_in)} in,"
        f" {_bytes(row.bytes_out)} out")  # fmt: skip
    if rates:
        say(f"now {rates['messages_in']:.1f} messages/s in, {rates['messages_out']:.1f} out;"
            f" {rates['bytes_in']:.0f} bytes/s in, {rates['bytes_out']:.0f} out")  # fmt: skip
    say(f"{row.in_flight_in} publishes wait for their answer, {row.in_flight_out} messages for the client's")
    for name, qos in row.filters:
        say(f"  subscribes to {name} with QoS {qos}")
    if row.subscriptions > len(row.filters):
        say(f"  and to {row.subscriptions - len(row.filters)} more")


@app.add("kick", example="holdmq client kick --user depot-7 --dry-run")
def kick(
    given: Asking,
    wanted: Wanted,
    client_id: Annotated[str | None, typer.Argument(metavar="[CLIENT_ID]", help="One client.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")] = False,
    yes: Yes = False,
) -> None:
    """Disconnect one client, or all of a selection; sessions stay, and they may connect again.

    Of several it says how many they are, and asks. Exit code 1 if nobody was disconnected.
    """
    selection = wanted.selection()
    if client_id is not None:
        if selection != ClientSelection(""):
            raise UsageError("name one client, or say which with options, not both")
        selection = ClientSelection("", exact_id=client_id)
    elif selection == ClientSelection(""):
        raise UsageError("say which clients: a client id, or options; --client '*' means all")
    config = given.configuration()
    if dry_run or (client_id is None and not yes):
        page = _run(config, lambda clients: clients.page(selection, count=1))
        if dry_run:
            given.tell(
                {"would_kick": page.total, "silent": page.silent},
                f"{page.total} clients would be disconnected",
            )
            _warn(page.silent)
            return
        confirm(f"Disconnect {page.total} clients?")
    done = _run(config, lambda clients: clients.kick(selection))
    given.tell({"kicked": done.clients, "silent": done.silent}, f"{done.clients} clients are disconnected")
    _warn(done.silent)
    if not done.clients:
        raise typer.Exit(EXIT_FAILED)


def _run(config: Config, work: Callable[[ClientAdmin], Awaitable[T]]) -> T:
    from holdmq.client.connected import ClientAdmin

    return run_calls(config, ClientAdmin, work)


def rates_of(before: ClientRow, after: ClientRow, seconds: float) -> dict[str, float]:
    """Return messages and bytes a second between two looks at one connection."""
    names = ("messages_in", "messages_out", "bytes_in", "bytes_out")
    return {name: round((getattr(after, name) - getattr(before, name)) / seconds, 2) for name in names}


def _warn(silent: list[str]) -> None:
    if silent:
        say(f"no answer from {', '.join(silent)}: their clients are missing", err=True)


def _shown(row: ClientRow) -> dict[str, Any]:
    found = row._asdict()
    del found["order"], found["version"]
    if not row.filters:
        del found["filters"]
    return {**found, "tenant": row.tenant, "protocol": VERSIONS.get(row.version, str(row.version))}


def _address(row: dict[str, Any]) -> str:
    address, port = row["address"], row["port"]
    if not address:
        return "a UNIX socket"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _bytes(count: int) -> str:
    return "unknown" if count < 0 else f"{count} bytes"
