"""``holdmq ban add | list | remove | clear``: MQTT clients that no gateway lets in."""

from __future__ import annotations

import getpass
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.control import Admin, ask
from holdmq.cli.options import Asking, CommandGroup
from holdmq.cli.shown import say
from holdmq.cli.times import parse_time, show_time
from holdmq.config.model import Config
from holdmq.errors import UsageError
from holdmq.service.process import EXIT_FAILED
from holdmq.wire.ban_headers import ADDRESS, CLIENT_ID, PATTERN, USER, BanRow, FlappingRow

if TYPE_CHECKING:
    from holdmq.client.bans import BanAdmin, BansFound, FlappingBansFound

T = TypeVar("T")

app = CommandGroup("MQTT clients that are banned, at every gateway.", "holdmq ban list")


@dataclass(frozen=True, slots=True)
class Banned:
    """What is banned: one of these."""

    client: Annotated[str, typer.Option("--client", metavar="ID", help="A whole client id.")] = ""
    user: Annotated[str, typer.Option("--user", metavar="USER", help="A user that was authenticated.")] = ""
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="An address, or a network as 10.0.0.0/8.")
    ] = ""
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="PATTERN", help="Client ids that fit, with * and ?.")
    ] = ""

    def named(self) -> tuple[str, str]:
        """Return kind and value. Raises UsageError unless it is one."""
        given = {CLIENT_ID: self.client, USER: self.user, ADDRESS: self.address, PATTERN: self.pattern}
        found = [(kind, value) for kind, value in given.items() if value]
        if len(found) != 1:
            raise UsageError("say one of --client, --user, --address and --pattern")
        return found[0]


@app.add("add", example="holdmq ban add --address 192.0.2.0/24 --reason scanner --for 2h")
def add(
    given: Asking,
    banned: Banned,
    reason: Annotated[str, typer.Option("--reason", help="Why, for who looks at it later.")] = "",
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="As 15m, 2h, 30d; for ever if not given.")
    ] = "",
) -> None:
    """Ban clients from all gateways, now and after restarts: they are refused (0x8A), and disconnected."""
    kind, value = banned.named()
    until_ms = 0
    if for_:
        now_ms = time.time_ns() // 1_000_000
        until_ms = 2 * now_ms - parse_time(for_, now_ms)
        if until_ms <= now_ms:
            raise UsageError(f"--for {for_!r} is no time as 15m, 2h or 30d")
    ban = BanRow(kind, value, reason, _user(), 0, until_ms)
    made = _run(given.configuration(), lambda bans: bans.add(ban))
    end = f"until {show_time(made.until_ms)}" if made.until_ms else "for ever"
    given.tell(made._asdict(), f"{_kind(made.kind)} {made.value} is banned {end}")


@app.add("list", example="holdmq ban list --json")
def list_(given: Asking, admin: Admin = "") -> None:
    """List the bans of the fleet, and those that gateways have made of clients that connect too often.

    With --admin only the latter, of the gateway that has this admin port on this machine.
    """
    if admin:
        found = list(ask(given.configuration(), admin, "GET", "/bans"))
        given.table(
            ("client", "address", "connects", "ends in"),
            found,
            lambda row: (row["principal"], row["address"], row["connects"], f"{row['left_s']:.0f} s"),
        )
        return

    async def work(bans: BanAdmin) -> tuple[BansFound, FlappingBansFound]:
        return await bans.list(), await bans.flapping()

    made, flapping = _run(given.configuration(), work)
    given.table(
        ("what", "value", "until", "by", "why"),
        [*(ban._asdict() for ban in made.bans), *map(_flapping, flapping.bans)],
        lambda row: (
            _kind(row["kind"]), row["value"], show_time(row["until_ms"]) if row["until_ms"] else "for ever",
            row["by"], row["reason"],
        ),
    )  # fmt: skip
    missing = [*made.away, *flapping.silent]
    if missing:
        say(f"no answer from {', '.join(missing)}: what only they know is missing", err=True)


@app.add("remove", example="holdmq ban remove --address 192.0.2.0/24")
def remove(given: Asking, banned: Banned) -> None:
    """Lift a ban of the fleet. Exit code 1 if there was none."""
    kind, value = banned.named()
    done = _run(given.configuration(), lambda bans: bans.remove(kind, value, _user()))
    given.tell(
        {"removed": done.was_present, "away": done.away},
        f"{_kind(kind)} {value} is banned no longer" if done.was_present else "there is no such ban",
    )
    if done.away:
        say(f"no answer from {', '.join(done.away)}: a ban that they have stays in force", err=True)
    if not done.was_present:
        raise typer.Exit(EXIT_FAILED)


@app.add("clear", example="holdmq ban clear meter-42")
def clear(
    given: Asking,
    client: Annotated[str | None, typer.Argument(metavar="CLIENT", help="Whose bans to lift.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Lift all bans.")] = False,
    admin: Admin = "",
) -> None:
    """Lift what this machine's gateway has banned by itself, for one client or all, and waits for wrong
    passwords."""
    if (client is None) != all_:
        raise UsageError("name a client, or say --all")
    query: dict[str, Any] = {"principal": client, "all": 1 if all_ else None}
    (row,) = ask(given.configuration(), admin, "POST", "/bans", **query)
    given.tell(row, f"{row['lifted']} bans lifted")


def _run(config: Config, work: Callable[[BanAdmin], Awaitable[T]]) -> T:
    from holdmq.client.bans import BanAdmin

    return run_calls(config, BanAdmin, work)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a container's user may have no name


def _kind(kind: str) -> str:
    return {CLIENT_ID: "client id"}.get(kind, kind)


def _flapping(row: FlappingRow) -> dict[str, Any]:
    return {
        "kind": "flapping",
        "value": row.principal,
        "reason": f"{row.connects} connects",
        "by": f"gateway {row.gateway}",
        "made_ms": 0,
        "until_ms": time.time_ns() // 1_000_000 + row.left_s * 1000,
        "gateway": row.gateway,
        "address": row.address,
    }
