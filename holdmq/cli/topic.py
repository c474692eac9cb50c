"""``holdmq topic list | create | update | queues | readers | pause | resume | delete``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import CommandGroup, GivenTenant, QueuesPerBroker, Search, Yes, confirm
from holdmq.cli.shown import say
from holdmq.cli.times import show_time
from holdmq.config.model import Config
from holdmq.errors import Code, HoldMQError, RemoteError, UsageError
from holdmq.service.process import EXIT_FAILED
from holdmq.wire.topic_headers import FIRST_GROUP_OWN, FIRST_GROUPS, SPREAD_FIXED, SPREADS

if TYPE_CHECKING:
    from holdmq.client.admin import Admin
    from holdmq.wire.headers import TopicRow, TopicStats

T = TypeVar("T")
LOOK_AGAIN_S: Final = 1.0
"""How often a step of a removal that has to wait is tried."""
PERMS: Final = {"i": 1, "w": 2, "r": 4}
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

app = CommandGroup(
    "Topics: what there is, new ones, their settings and queues, their end.", "holdmq topic list"
)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name: letters, digits, _ and -.")]
WaitS = Annotated[
    float,
    typer.Option("--wait", min=0, help="Seconds to wait for producers and consumer groups; 0 = not at all."),
]


@dataclass(frozen=True, slots=True)
class TopicChoices:
    """Settings of a topic that can change; None = as it is, or the default."""

    perm: Annotated[
        str | None,
        typer.Option("--perm", help="What clients may do: rw, r, w or none.", show_default=False),
    ] = None
    order: Annotated[
        bool | None,
        typer.Option(
            "--order/--no-order", help="Keep keys in order, also while it grows.", show_default=False
        ),
    ] = None
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention", help="Keep messages for 90s, 30m, 12h, 3d …; 0 = as the log.", show_default=False
        ),
    ] = None

    first_group: Annotated[
        str | None,
        typer.Option(
            "--first-group",
            help="Where the first group that ever reads it begins unless it says so: beginning, or own "
            "(as all others: at the end).",
            show_default=False,
        ),
    ] = None

    spread: Annotated[
        str | None,
        typer.Option(
            "--spread",
            help="Who is to have it: all brokers, also those that join later, or fixed: those of today.",
            show_default=False,
        ),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return those that are given, as Admin takes them. Raises UsageError."""
        return {
            **({} if self.perm is None else {"perm": _perm(self.perm)}),
            **({} if self.order is None else {"order": self.order}),
            **({} if self.retention is None else {"retention_ms": _retention_ms(self.retention)}),
            **({} if self.first_group is None else {"first_group": _first_group(self.first_group)}),
            **({} if self.spread is None else {"spread": _spread(self.spread)}),
        }


@app.add("list", example="holdmq topic list --search orders")
def list_(
    given: GivenTenant,
    system: Annotated[bool, typer.Option("--system", help="Show system topics too.")] = False,
    search: Search = "",
) -> None:
    """List topics with their queues and counts, a line per topic and broker."""
    answers = _run(given.configuration(), lambda admin: admin.topics_of_brokers(system, search=search))
    found = {b: topics for b, topics in answers.items() if not isinstance(topics, HoldMQError)}
    rows = [_row(broker, topic, counts) for broker, topics in found.items() for topic, counts in topics]
    rows.sort(key=lambda row: (row["topic"], row["broker"]))
    given.table(
        ("topic", "broker", "queues", "kind", "perm", "stored", "in", "out", "replayed", ""),
        rows,
        lambda row: (
            *(row["topic"], row["broker"], _queues(row), row["kind"], _letters(row["perm"])),
            *(row[name] for name in ("messages_stored", "messages_in", "messages_out", "messages_replayed")),
            _state(row),
        ),
    )
    _say_silent(answers)


@app.add("create", example="holdmq topic create devices --queues 8 --retention 12h")
def create(
    given: GivenTenant,
    name: Name,
    settings: TopicChoices,
    queues: QueuesPerBroker = 0,
    key_levels: Annotated[
        int,
        typer.Option("--key-levels", min=1, max=8, help="Levels of a tag that filters select quickly by."),
    ] = 1,
    kind: Annotated[str, typer.Option("--kind", help="log, table or temporary.")] = "log",
) -> None:
    """Create a topic on every live broker; creating it again with the same settings succeeds."""
    found = _run(
        given.configuration(),
        lambda admin: admin.create_topic(
            name,
            queues,
            key_levels,
            kind=kind,
            **settings.changes(),
        ),
    )
    _show(found, given, lambda broker, row: f"{row.topic} is on {broker} with {row.write_queues} queues")


@app.add("update", example="holdmq topic update devices --perm rw --retention 12h")
def update(
    given: GivenTenant,
    name: Name,
    settings: TopicChoices,
    filter_type: Annotated[str | None, typer.Option("--filter-type", hidden=True)] = None,
    sys_flag: Annotated[str | None, typer.Option("--sysflag", hidden=True)] = None,
) -> None:
    """Change settings of a topic on every broker that has it; what is not named stays as it is."""
    # Programs may still say them: a sentence says more than "no such option".
    if filter_type is not None:
        raise UsageError(
            "--filter-type never had an effect and is gone: a subscriber chooses its filter, "
            "in the SDK or by MQTT"
        )
    if sys_flag is not None:
        raise UsageError(
            "--sysflag never had an effect and is gone: --order and --kind are what is left of it"
        )
    found = _run(
        given.configuration(),
        lambda admin: admin.update_topic(
            name,
            **settings.changes(),
        ),
    )
    _show(found, given, _sentence)


@app.add("queues", example="holdmq topic queues devices --to 8")
def queues(
    given: GivenTenant,
    name: Name,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, max=1024, help="How many it is to have per broker.", show_default=False),
    ] = None,
    wait_s: WaitS = 600.0,
) -> None:
    """Show a topic's queues, or grow or shrink it to [bold]--to[/bold] queues on every broker.

    Shrinking removes the highest queues in three steps: hidden from producers, then, when every group has
    consumed them, from consumers, then deleted. Whoever lags is named. Stopped half way, it goes on when
    it is called again.
    """
    settings = given.configuration()
    if to is None:
        _show_queues(_run(settings, lambda admin: _bounds(admin, name)), given)
        return
    wanted = to
    _show(_run(settings, lambda admin: _resize(admin, name, wanted, wait_s)), given, _sentence)


@app.add("readers", example="holdmq topic readers devices")
def readers(given: GivenTenant, name: Name) -> None:
    """List who reads a topic, whichever way: members of groups, pulls, Spark, gateways, the console."""
    answers = _run(given.configuration(), lambda admin: admin.topic_readers(name))
    found = {b: view for b, view in answers.items() if not isinstance(view, HoldMQError)}
    rows = [{"broker": broker, **row._asdict()} for broker, view in found.items() for row in view.rows]
    given.table(
        ("kind", "group", "client", "role", "broker", "address", "access key", "since", "last read"),
        rows,
        lambda row: (
            *(row[name] for name in ("kind", "group", "client_id", "role", "broker", "address", "principal")),
            show_time(row["since_ms"]),
            show_time(row["seen_ms"]),
        ),
    )
    for broker, view in found.items():
        if view.total > len(view.rows) or view.has_others:
            say(f"{broker} has more readers of {name} than are shown", err=True)
    _say_silent(answers)


@app.add("pause", example="holdmq topic pause devices")
def pause(given: GivenTenant, name: Name) -> None:
    """Pause a topic: it takes and keeps messages, and delivers none until it is resumed."""
    _show(_run(given.configuration(), lambda admin: admin.pause_topic(name)), given, _sentence)


@app.add("resume", example="holdmq topic resume devices")
def resume(given: GivenTenant, name: Name) -> None:
    """Resume a paused topic: what it kept is delivered, then what comes."""
    _show(_run(given.configuration(), lambda admin: admin.pause_topic(name, False)), given, _sentence)


@app.add("delete", example="holdmq topic delete devices --yes")
def delete(
    given: GivenTenant,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="At once, whoever uses it: unconsumed messages are lost.")
    ] = False,
    yes: Yes = False,
    wait_s: WaitS = 600.0,
) -> None:
    """Delete a topic and all its messages on every broker, once every group has consumed them."""
    if not yes:
        confirm(f"Delete topic {name} and all its messages?")

    async def work(admin: Admin) -> None:
        if not force:
            await _hide(admin, name, 0, wait_s)
        await admin.delete_topic(name, force=force)

    _run(given.configuration(), work)
    given.tell({"deleted": name}, f"{name} is deleted")


# Work


def _run(config: Config, work: Callable[[Admin], Awaitable[T]]) -> T:
    from holdmq.client.admin import Admin

    return run_calls(config, Admin, work, tenant=config.client.tenant)


async def _resize(admin: Admin, name: str, queues: int, wait_s: float) -> dict[str, TopicRow]:
    from holdmq.wire.topic_headers import DELETE

    views = {view.topic: view for view in await admin.topics(names=[name])}
    if name not in views:
        raise RemoteError(Code.TOPIC_UNKNOWN, f"no broker has a topic {name!r}")
    now = views[name].rows.values()
    if all(row.write_queues <= queues for row in now) and any(row.write_queues < queues for row in now):
        return await admin.grow_topic(name, queues)
    if any(row.write_queues < queues for row in now):
        raise UsageError(
            f"{name} has fewer than {queues} queues at some brokers, more at others: grow it first"
        )
    await _hide(admin, name, queues, wait_s)
    return await admin.remove_queues(name, queues, DELETE)


async def _hide(admin: Admin, name: str, queues: int, wait_s: float) -> None:
    """The first two steps, each as soon as its condition holds. RemoteError after `wait_s`."""
    from holdmq.wire.topic_headers import HIDE_FROM_CONSUMERS, HIDE_FROM_PRODUCERS

    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    told = ""
    for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS):
        while True:
            try:
                if step == HIDE_FROM_CONSUMERS:
                    # A broker that joined since the first step may have the topic by now.
                    await admin.remove_queues(name, queues, HIDE_FROM_PRODUCERS)
                await admin.remove_queues(name, queues, step)
            except RemoteError as error:
                if error.code != Code.TOPIC_IN_USE or loop.time() >= deadline:
                    raise
                # What only counts down or up is no news.
                reason = re.sub(r"[0-9]+ (s|messages)\b", r"some \1", error.remark)
                if reason != told:
                    say(f"waiting: {error.remark}", err=True)
                    told = reason
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                break


async def _bounds(admin: Admin, name: str) -> list[dict[str, Any]]:
    views = {view.topic: view for view in await admin.topics(names=[name])}
    if name not in views:
        raise RemoteError(Code.TOPIC_UNKNOWN, f"no broker has a topic {name!r}")
    rows = views[name].rows
    found = []
    for queue, bounds in sorted((await admin.queue_bounds([name])).items()):
        row = rows.get(queue.broker)
        found.append(
            {
                "topic": name,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "first_offset": bounds.first_offset,
                "end_offset": bounds.end_offset,
                "hidden_from_producers": row is not None and queue.queue_id >= row.write_queues,
            }
        )
    return found


# What is typed


def _say_silent(answers: Mapping[str, object]) -> None:
    """Name the brokers that did not answer, and fail if there are any."""
    silent = {broker: error for broker, error in answers.items() if isinstance(error, HoldMQError)}
    for broker, error in silent.items():
        say(f"{broker} does not tell its topics: {error}", err=True)
    if silent:
        raise typer.Exit(EXIT_FAILED)


def _perm(text: str) -> int:
    if text == "none":
        return 0
    if not text or set(text) - PERMS.keys() or len(set(text)) < len(text):
        raise UsageError(f"--perm {text!r} is not rw, r, w or none")
    return sum(PERMS[letter] for letter in text)


def _first_group(text: str) -> str:
    if text not in FIRST_GROUPS:
        raise UsageError(f"--first-group {text!r} is not beginning or own")
    return text


def _spread(text: str) -> str:
    if text not in SPREADS:
        raise UsageError(f"--spread {text!r} is not all or fixed")
    return text


def _retention_ms(text: str) -> int:
    if text == "0":
        return 0
    found = re.fullmatch(r"([1-9][0-9]*)([smhd])", text)
    if found is None:
        raise UsageError(f"--retention {text!r} is no time as 90s, 30m, 12h or 3d, and not 0")
    return int(found[1]) * UNITS_MS[found[2]]


# What is shown


def _row(broker: str, topic: TopicRow, counts: TopicStats | None) -> dict[str, Any]:
    return {"broker": broker, **topic._asdict(), **(counts._asdict() if counts is not None else {})}


def _show(found: dict[str, TopicRow], given: GivenTenant, sentence: Callable[[str, TopicRow], str]) -> None:
    rows = sorted(found.items())
    given.tell(
        [_row(broker, row, None) for broker, row in rows], *(sentence(broker, row) for broker, row in rows)
    )


def _sentence(broker: str, row: TopicRow) -> str:
    shown = _row(broker, row, None)
    parts = [f"{_queues(shown)} queues", f"perm {_letters(row.perm)}"]
    if row.retention_ms:
        parts.append(f"retention {row.retention_ms // 1000} s")
    if row.first_group != FIRST_GROUP_OWN:
        parts.append(f"first group from the {row.first_group}: {row.first_reader or 'none yet'}")
    return ", ".join([f"{row.topic} on {broker}: {parts[0]}", *parts[1:], *filter(None, [_state(shown)])])


def _queues(row: dict[str, Any]) -> str:
    counts = [row["write_queues"], row["read_queues"], row["stored_queues"] or row["read_queues"]]
    return str(counts[0]) if len(set(counts)) == 1 else "{} ({} to consumers, {} stored)".format(*counts)


def _letters(perm: int) -> str:
    return "".join(letter for letter in "rwi" if perm & PERMS[letter]) or "none"


def _state(row: dict[str, Any]) -> str:
    return " ".join(word for word, holds in _flags(row) if holds)


def _flags(row: dict[str, Any]) -> tuple[tuple[str, bool], ...]:
    is_from_beginning = row["first_group"] != FIRST_GROUP_OWN
    return (
        ("order", row["order"]),
        ("paused", row["is_paused"]),
        ("first:beginning", is_from_beginning),
        ("fixed", row["spread"] == SPREAD_FIXED and row["kind"] == "log" and not row["order"]),
    )


def _show_queues(found: list[dict[str, Any]], given: GivenTenant) -> None:
    given.table(
        ("broker", "queue", "first offset", "end offset", ""),
        found,
        lambda row: (
            *(row[name] for name in ("broker", "queue_id", "first_offset", "end_offset")),
            "hidden from producers" if row["hidden_from_producers"] else "",
        ),
    )
