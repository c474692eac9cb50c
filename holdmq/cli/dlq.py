"""``holdmq dlq list | read | resend | purge``: what consumer groups gave up."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import first_of, run_calls
from holdmq.cli.options import CommandGroup, GivenTenant, GroupName, Yes, confirm, print_json
from holdmq.cli.shown import content, say
from holdmq.config.model import Config
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.client.dead_letters import DeadLetters, ReadLetter

T = TypeVar("T")

BY_SHOWN = 128
"""How much of its user's name and host the command tells: what a broker takes."""
SHOWN_BYTES = 60
"""How much of a body a line shows; --json shows all of it."""

app = CommandGroup("Dead letters: messages that a consumer group failed with too often.", "holdmq dlq list")

Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BROKER/OFFSET]…", help="Which, as `dlq read` shows them.", show_default=False),
]


@app.add("list", example="holdmq dlq list")
def list_(given: GivenTenant) -> None:
    """List the groups that have dead letters, and how many were sent again."""

    async def work(letters: DeadLetters) -> list[dict[str, Any]]:
        return [{"group": name, **found._asdict()} for name, found in (await letters.groups()).items()]

    rows = _run(given.configuration(), work)
    given.table(("group", "dead letters", "sent again"), rows, dict.values)


@app.add("read", example="holdmq dlq read billing --count 5")
def read(
    given: GivenTenant,
    group: GroupName,
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most so many.")] = 20,
    after: Annotated[
        str, typer.Option("--after", metavar="BROKER/OFFSET", help="Go on behind this one.")
    ] = "",
) -> None:
    """Show a group's dead letters, the oldest of each broker first: origin, retries, body, if sent again."""

    async def work(letters: DeadLetters) -> list[ReadLetter]:
        start = dict([_place(after)]) if after else {}
        broker = next(iter(start), "")
        every = letters.read(group, start)
        # Brokers come in the order of their names.
        return await first_of((letter async for letter in every if letter.broker >= broker), count)

    for letter in _run(given.configuration(), work):
        given.tell(_shown(letter), _line(letter))


@app.add("resend", example="holdmq dlq resend billing --topic billing-again")
def resend(
    given: GivenTenant,
    group: GroupName,
    places: Places = None,
    topic: Annotated[str, typer.Option("--topic", help="Send them to this topic, not to their own.")] = "",
) -> None:
    """Send dead letters again as new messages: those named, or all; none is sent twice."""
    wanted = None if not places else [_place(place) for place in places]
    done = _run(
        given.configuration(), lambda letters: letters.resend(group, wanted, topic=topic, by=_asker())
    )
    if given.as_json:
        failures = [{"broker": broker, **failure._asdict()} for broker, failure in done.failures]
        print_json({"resent": done.resent, "repeated": done.repeated, "failures": failures})
    else:
        say(f"{done.resent} sent again, {done.repeated} had been before")
        for broker, failure in done.failures:
            say(f"{broker}/{failure.offset} was not sent: {failure.remark}", err=True)
    if done.failures:
        raise typer.Exit(1)


@app.add("purge", example="holdmq dlq purge billing --yes")
def purge(
    given: GivenTenant,
    group: GroupName,
    until: Annotated[
        list[str] | None,
        typer.Option("--until", metavar="BROKER/OFFSET", help="Only what lies before this one; repeat it."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Give up a group's dead letters for good, at every broker."""
    if not yes:
        confirm(f"Give up the dead letters of {group} for good?")
    ends = dict(_place(place) for place in until) if until else None
    purged = _run(given.configuration(), lambda letters: letters.purge(group, ends))
    given.tell({"purged": purged}, f"{purged} dead letters of {group} are gone")


def _run(config: Config, work: Callable[[DeadLetters], Awaitable[T]]) -> T:
    from holdmq.client.dead_letters import DeadLetters

    return run_calls(config, DeadLetters, work, tenant=config.client.tenant)


def _place(text: str) -> tuple[str, int]:
    broker, _, offset = text.rpartition("/")
    if not broker or not offset.isdigit():
        raise UsageError(f"{text!r} is no dead letter: BROKER/OFFSET is, as `holdmq dlq read` shows it")
    return broker, int(offset)


def _asker() -> str:
    """Who runs this, as `dlq read` and the console show it: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have a number only.
        user = str(os.getuid())
    return "".join(filter(str.isprintable, f"{user}@{socket.gethostname()}"))[:BY_SHOWN]


def _shown(letter: ReadLetter) -> dict[str, Any]:
    message, origin = letter.message, letter.origin
    return {
        "broker": letter.broker,
        "offset": letter.offset,
        "failed_ms": letter.failed_ms,
        "retries": message.reconsume_times,
        "topic": message.topic,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "unique_id": message.unique_id,
        "born_ms": message.born_ms,
        "origin": None if origin is None else f"{origin.topic}/{origin.queue_id}/{origin.offset}",
        "resent": None if letter.resent is None else letter.resent._asdict(),
        **content("body", message.body),
    }


def _line(letter: ReadLetter) -> str:
    shown = _shown(letter)
    when = _moment(letter.failed_ms)
    raw = letter.message.body
    body = repr(raw[:SHOWN_BYTES])[2:-1] + ("…" if len(raw) > SHOWN_BYTES else "")
    tag = "" if letter.message.tag is None else f"/{letter.message.tag}"
    return (
        f"{letter.broker}/{letter.offset}  {when}  {shown['retries']} retries  "
        f"{letter.message.topic}{tag} (was {shown['origin']})  {_resent(letter)}{body}"
    )


def _resent(letter: ReadLetter) -> str:
    if letter.resent is None:
        return ""
    at_ms, by = letter.resent
    return f"sent again{'' if at_ms is None else f' {_moment(at_ms)}'}{f' by {by}' if by else ''}  "


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1e3, UTC).isoformat(timespec="seconds")
