"""``holdmq quota set | list | show | remove``: what tenants, users and access keys may use."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, CommandGroup, print_json
from holdmq.cli.shown import say, write_line
from holdmq.config.model import Config
from holdmq.quotas.limits import LIMITS, parse_principal, principal_of
from holdmq.service.process import EXIT_FAILED
from holdmq.wire.quota_headers import QuotaRow

if TYPE_CHECKING:
    from holdmq.client.quotas import QuotaAdmin, QuotaView

T = TypeVar("T")

app = CommandGroup("Quotas: what a tenant, user or access key may use.", "holdmq quota list")

Whose = Annotated[
    str,
    typer.Argument(
        metavar="WHOSE",
        help="tenant:NAME, user:NAME or key:NAME; NAME * = each that has no quota of its own.",
    ),
]


@app.add("set", example="holdmq quota set user:depot-7 --publish-rate 100 --connections 20")
def set_(
    given: Asking,
    whose: Whose,
    publish_rate: Annotated[int, typer.Option("--publish-rate", min=0, help="Messages a second.")] = 0,
    publish_bytes_rate: Annotated[
        int, typer.Option("--publish-bytes-rate", min=0, help="Bytes a second.")
    ] = 0,
    topics: Annotated[int, typer.Option("--topics", min=0, help="Topics, of a tenant.")] = 0,
    sessions: Annotated[int, typer.Option("--sessions", min=0, help="MQTT sessions that are kept.")] = 0,
    connections: Annotated[int, typer.Option("--connections", min=0, help="Connections at a time.")] = 0,
    kept_bytes: Annotated[
        int, typer.Option("--kept-bytes", min=0, help="Bytes in the log, of a tenant.")
    ] = 0,
) -> None:
    """Set what somebody may use, in place of his quota of before; what is not named has no limit.

    Exit code 1 if a broker did not answer: it keeps to what it had.
    """
    kind, name = parse_principal(whose)
    quota = QuotaRow(
        kind, name, publish_rate, publish_bytes_rate, topics, sessions, connections, kept_bytes, _user()
    )
    done = _run(given.configuration(), lambda quotas: quotas.set(quota))
    given.tell({"quota": done.quota._asdict(), "away": done.away}, f"{whose} may use {_limits(done.quota)}")
    _say_away(done.away)


@app.add("list", example="holdmq quota list --json")
def list_(given: Asking) -> None:
    """List quotas with what is used of them, and who uses that of everybody."""
    found = _run(given.configuration(), lambda quotas: quotas.list())
    given.table(
        ("whose", "may use", "sends now", "waited", "refused"),
        [_shown(view) for view in found.quotas],
        lambda row: (
            row["principal"],
            _limits(QuotaRow(**row["quota"])),
            f"{row['used']['messages_per_s']} msg/s, {row['used']['bytes_per_s']} B/s",
            row["used"]["waited"],
            row["used"]["refused"],
        ),
    )
    for view in found.quotas:
        if view.lacking:
            names = ", ".join(view.lacking)
            say(f"{view.principal}: {names} has another quota, or none: set it again", err=True)
    if found.away:
        say(f"no answer from {', '.join(found.away)}: what is used there is missing", err=True)


@app.add("show", example="holdmq quota show user:depot-7")
def show(given: Asking, whose: Whose) -> None:
    """Show a quota and what is used of it. Exit code 1 if there is none."""
    principal = principal_of(*parse_principal(whose))
    found = _run(given.configuration(), lambda quotas: quotas.list())
    view = next((view for view in found.quotas if view.principal == principal), None)
    if view is None:
        say(f"{whose} has no quota", err=True)
        raise typer.Exit(EXIT_FAILED)
    if given.as_json:
        print_json(_shown(view))
    else:
        for limit, used, most in _use_of(view):
            write_line(f"{limit}  {used} of {most or 'any'}".encode())
        write_line(f"waited {view.used.waited} times, refused {view.used.refused} times".encode())
    if found.away:
        say(f"no answer from {', '.join(found.away)}: what is used there is missing", err=True)


@app.add("remove", example="holdmq quota remove user:depot-7")
def remove(given: Asking, whose: Whose) -> None:
    """Have no quota for somebody any more. Exit code 1 if there was none, or a broker did not answer."""
    kind, name = parse_principal(whose)
    done = _run(given.configuration(), lambda quotas: quotas.remove(kind, name, _user()))
    given.tell(
        {"removed": done.was_present, "away": done.away},
        f"{whose} has no quota any more" if done.was_present else f"{whose} has no quota",
    )
    _say_away(done.away)
    if not done.was_present:
        raise typer.Exit(EXIT_FAILED)


def _say_away(away: list[str]) -> None:
    if away:
        say(f"no answer from {', '.join(away)}: it keeps to what it had; say this again then", err=True)
        raise typer.Exit(EXIT_FAILED)


def _shown(view: QuotaView) -> dict[str, Any]:
    return {
        "principal": view.principal,
        "quota": view.quota._asdict(),
        "used": view.used._asdict(),
        "lacking": view.lacking,
    }


def _use_of(view: QuotaView) -> list[tuple[str, int, int]]:
    """Each limit with what is used of it."""
    use = view.used
    used = (use.messages_per_s, use.bytes_per_s, use.topics, use.sessions, use.connections, use.kept_bytes)
    return [(limit, used, getattr(view.quota, limit)) for limit, used in zip(LIMITS, used, strict=True)]


def _limits(quota: QuotaRow) -> str:
    return ", ".join(f"{limit} {getattr(quota, limit)}" for limit in LIMITS if getattr(quota, limit))


def _run(config: Config, work: Callable[[QuotaAdmin], Awaitable[T]]) -> T:
    from holdmq.client.quotas import QuotaAdmin

    return run_calls(config, QuotaAdmin, work)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a container's user may have no name
