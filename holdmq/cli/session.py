"""``holdmq session list | show | kick | drop | shares``: MQTT sessions and what they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import first_of, run_calls
from holdmq.cli.options import Asking, ClientId, CommandGroup, Yes, confirm, print_json
from holdmq.cli.shown import say
from holdmq.cli.times import show_time
from holdmq.config.model import Config
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.client.sessions import SessionAdmin, SessionDetails, SessionView, ShareView
    from holdmq.wire.session_headers import SessionRow

T = TypeVar("T")

app = CommandGroup(
    "MQTT sessions: who is connected where, and what waits for whom.", "holdmq session show meter-42"
)


@app.add("list", example="holdmq session list --prefix meter- --offline")
def list_(
    given: Asking,
    prefix: Annotated[str, typer.Option("--prefix", help="Only client ids that begin so.")] = "",
    offline: Annotated[bool, typer.Option("--offline", help="Only those that are not connected.")] = False,
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most so many.")] = 1000,
) -> None:
    """List sessions by client id, at each broker that owns them."""

    async def work(sessions: SessionAdmin) -> list[SessionView]:
        every = sessions.list(prefix)
        return await first_of((view async for view in every if not (offline and view.row.owner)), count)

    views = _run(given.configuration(), work)
    given.table(
        ("client id", "broker", "connected to", "disconnected", "expires after", "principal"),
        [_shown(view.broker, view.row) for view in views],
        lambda row: (row["client_id"], row["broker"], *_cells(row), row["principal"]),
    )


@app.add("show", example="holdmq session show meter-42 --json")
def show(given: Asking, client_id: ClientId) -> None:
    """Show a session: its subscriptions, its place in each broker's log, what is under way."""
    details = _run(given.configuration(), lambda sessions: sessions.show(client_id))
    if details is None:
        say(f"{client_id} has no session", err=True)
        raise typer.Exit(1)
    if given.as_json:
        print_json(_detailed(details))
        return
    connected, ended, expires = _cells(details.row._asdict())
    say(f"{client_id} at {details.broker}, made {show_time(details.row.created_ms)}")
    say(f"connected to {connected}" if connected else f"disconnected {ended}, expires after {expires}")
    for name, options in sorted(details.filters.items()):
        say(f"  subscribes to {name} with QoS {options.qos}")
    for broker, place in sorted(details.state.places.items()):
        say(f"  is at {place.position} of {broker}'s log")
    say(f"  {len(details.state.planned)} deliveries under way")


@app.add("kick", example="holdmq session kick meter-42")
def kick(given: Asking, client_id: ClientId) -> None:
    """Disconnect a client; its session stays, and it may connect again. Exit code 1 if it is away."""
    was_connected = _run(given.configuration(), lambda sessions: sessions.kick(client_id))
    given.tell(
        {"kicked": client_id if was_connected else None},
        f"{client_id} is disconnected, its session stays"
        if was_connected
        else f"{client_id} is not connected",
    )
    if not was_connected:
        raise typer.Exit(EXIT_FAILED)


@app.add("drop", example="holdmq session drop meter-42 --yes")
def drop(given: Asking, client_id: ClientId, yes: Yes = False) -> None:
    """Disconnect a client, and forget its session with all that waits for it."""
    if not yes:
        confirm(f"Disconnect {client_id} and forget its session for good?")
    was_present = _run(given.configuration(), lambda sessions: sessions.drop(client_id))
    given.tell(
        {"dropped": client_id if was_present else None},
        f"{client_id} is gone" if was_present else f"{client_id} had no session",
    )


@app.add("shares", example="holdmq session shares --prefix '$share/billing/'")
def shares(
    given: Asking, prefix: Annotated[str, typer.Option("--prefix", help="Only groups that begin so.")] = ""
) -> None:
    """List MQTT's share groups ($share/NAME/FILTER), at each broker for its own log."""

    async def work(sessions: SessionAdmin) -> list[ShareView]:
        return [view async for view in sessions.shares(prefix)]

    views = _run(given.configuration(), work)
    given.table(
        ("group", "broker", "sessions", "connected", "in flight", "returned", "log before it"),
        [{"broker": view.broker, **view.row._asdict()} for view in views],
        lambda row: (
            *(row[name] for name in ("name", "broker", "sessions", "online", "in_flight", "returned")),
            f"{row['behind_bytes']} bytes",
        ),
    )


def _run(config: Config, work: Callable[[SessionAdmin], Awaitable[T]]) -> T:
    from holdmq.client.sessions import SessionAdmin

    return run_calls(config, SessionAdmin, work)


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    ended = "" if row["owner"] or not row["ended_ms"] else show_time(row["ended_ms"])
    return row["owner"], ended, f"{row['expiry_s']} s"


def _shown(broker: str, row: SessionRow) -> dict[str, Any]:
    return {"broker": broker, **row._asdict()}


def _detailed(details: SessionDetails) -> dict[str, Any]:
    return {
        **_shown(details.broker, details.row),
        "filters": {
            name: {
                "qos": options.qos,
                "no_local": options.no_local,
                "retain_as_published": options.retain_as_published,
                "retain_handling": options.retain_handling,
                "identifier": options.identifier,
            }
            for name, options in sorted(details.filters.items())
        },
        "places": {broker: place._asdict() for broker, place in sorted(details.state.places.items())},
        "planned": [row._asdict() for row in details.state.planned],
    }
