"""``holdmq group list | create | update | delete | reset | clone | lag | clients | topics | …``."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import CommandGroup, GivenTenant, GroupName, Search, Yes, confirm, print_json
from holdmq.cli.shown import say
from holdmq.cli.times import TIME_HELP, parse_time, show_time
from holdmq.config.model import Config
from holdmq.errors import HoldMQError, UsageError
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.client.admin import Admin
    from holdmq.client.groups import GroupAdmin, GroupView, MovedOffset, QueueProgress
    from holdmq.client.statistics import StatisticsView
    from holdmq.message import TopicQueue

T = TypeVar("T")
_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

app = CommandGroup("Consumer groups: settings, members, progress, resets.", "holdmq group lag billing")

Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; repeat it.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]


@dataclass(frozen=True, slots=True)
class GroupChoices:
    """Settings of a group; None = as it is, or the broker's default."""

    consume: Annotated[
        bool | None,
        typer.Option("--consume/--no-consume", help="Whether its members may consume.", show_default=False),
    ] = None
    from_min: Annotated[
        bool | None,
        typer.Option(
            "--from-min/--no-from-min", help="Whether it may begin at the first message.", show_default=False
        ),
    ] = None
    broadcast: Annotated[
        bool | None,
        typer.Option(
            "--broadcast/--no-broadcast", help="Whether it may consume in broadcast.", show_default=False
        ),
    ] = None
    retry_max_times: Annotated[
        int | None,
        typer.Option("--retry-max-times", help="Retries before a dead letter.", show_default=False),
    ] = None
    retry_queues: Annotated[
        int | None, typer.Option("--retry-queues", help="Queues of its retry topic.", show_default=False)
    ] = None
    slow_reads_at: Annotated[
        int | None,
        typer.Option(
            "--slow-reads-at",
            help="Which copy in sync answers what is far behind, from 1 on; 0 = the leader does.",
            show_default=False,
        ),
    ] = None
    delay_levels: Annotated[
        str | None,
        typer.Option(
            "--delay-levels", help="Its own retry delays, as 1s,5s,1m; '' = the broker's.", show_default=False
        ),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return them as GroupAdmin.update takes them. Raises UsageError."""
        return {
            "consume_enable": self.consume,
            "consume_from_min_enable": self.from_min,
            "consume_broadcast_enable": self.broadcast,
            "retry_max_times": self.retry_max_times,
            "retry_queue_nums": self.retry_queues,
            "which_broker_when_consume_slowly": self.slow_reads_at,
            "delay_levels_ms": _delays(self.delay_levels),
        }


@app.add("list", example="holdmq group list --search billing")
def list_(given: GivenTenant, search: Search = "") -> None:
    """List groups with their settings and members."""
    views = list(_run(given.configuration(), lambda groups: groups.groups(search=search)).values())
    _show(views, given)


@app.add("create", example="holdmq group create billing --retry-max-times 5 --delay-levels 1s,1m,1h")
def create(given: GivenTenant, name: GroupName, settings: GroupChoices) -> None:
    """Create a group on every broker; one that exists gets the settings that are given."""
    changes = settings.changes()
    _show([_run(given.configuration(), lambda groups: groups.update(name, **changes))], given)


@app.add("update", example="holdmq group update billing --no-consume")
def update(given: GivenTenant, name: GroupName, settings: GroupChoices) -> None:
    """Change settings of a group; what is not given stays as it is."""
    changes = settings.changes()
    if all(value is None for value in changes.values()):
        raise UsageError("no setting is given; `holdmq group update --help` lists them")

    async def work(groups: GroupAdmin) -> GroupView:
        if name not in await groups.groups([name]):
            raise UsageError(f"group {name!r} does not exist; `holdmq group create` makes it")
        return await groups.update(name, **changes)

    _show([_run(given.configuration(), work)], given)


@app.add("delete", example="holdmq group delete billing --yes")
def delete(given: GivenTenant, name: GroupName, yes: Yes = False) -> None:
    """Delete a group without members, with its offsets, at every broker."""
    if not yes:
        confirm(f"Delete group {name} and its offsets for good?")
    _run(given.configuration(), lambda groups: groups.delete(name))
    given.tell({"deleted": name}, f"{name} is deleted")


@app.add("reset", example="holdmq group reset billing orders --to 2h")
def reset(
    given: GivenTenant,
    name: GroupName,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    to: Annotated[str, typer.Option("--to", help=f"earliest, latest, offset:N, or a time {TIME_HELP}.")],
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="BROKER/ID", help="Only this queue; repeat it.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move a group in a topic; members go on there at once. Shows what happens, then asks."""
    place, value = _target(to)
    queues = [_queue(topic, text) for text in queue] if queue else None
    loaded = given.configuration()

    def move(is_dry: bool) -> list[MovedOffset]:
        return _run(
            loaded, lambda groups: groups.reset(name, topic, place, value, queues=queues, dry_run=is_dry)
        )

    _confirmed(move, f"Move group {name} in {topic}?", dry_run, yes, given)


@app.add("clone", example="holdmq group clone billing billing-test")
def clone(
    given: GivenTenant,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group whose offsets are taken.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets them; no members.")],
    topics: Topics = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give a group the offsets of another. Shows what happens, then asks."""
    loaded = given.configuration()

    def move(is_dry: bool) -> list[MovedOffset]:
        return _run(loaded, lambda groups: groups.clone(source, target, topics or None, dry_run=is_dry))

    _confirmed(move, f"Give group {target} these offsets?", dry_run, yes, given)


@app.add("lag", example="holdmq group lag billing --topic orders")
def lag(given: GivenTenant, name: GroupName, topics: Topics = None) -> None:
    """Show how far a group is in each queue, and its backlog by count and age."""
    found = _run(given.configuration(), lambda groups: groups.progress(name, topics or None))
    now_ms = time.time_ns() // 1_000_000
    rows = [_progress_row(progress, now_ms) for progress in found]
    given.table(
        ("topic", "broker", "queue", "offset", "end", "lag", "age"),
        rows,
        lambda row: (
            *(row[name] for name in ("topic", "broker", "queue_id")),
            "-" if row["offset"] < 0 else row["offset"],
            *(row[name] for name in ("end_offset", "lag")),
            f"{row['lag_ms'] / 1000:.1f} s" if row["oldest_ms"] else "",
        ),
    )
    if not given.as_json:
        oldest_ms = max((row["lag_ms"] for row in rows), default=0)
        say(f"{sum(row['lag'] for row in rows)} messages wait, the oldest for {oldest_ms / 1000:.1f} s")


@app.add("clients", example="holdmq group clients billing")
def clients(given: GivenTenant, name: GroupName) -> None:
    """Show a group's members at each broker, and how many queues each has."""
    found = _run(given.configuration(), lambda groups: groups.members(name))
    listed = [{"broker": broker, **row._asdict()} for broker, members in found.items() for row in members]
    given.table(
        ("client", "broker", "address", "room", "mode", "queues", "topics", "software", "since"),
        listed,
        lambda row: (
            *(row[name] for name in ("client_id", "broker", "address", "room", "mode", "queues")),
            ", ".join(sorted(subscription[0] for subscription in row["subscriptions"])),
            row["software"],
            show_time(row["joined_ms"]),
        ),
    )


@app.add("topics", example="holdmq group topics billing")
def topics(given: GivenTenant, name: GroupName) -> None:
    """Show what a group takes of each topic, and what comes back: again, late, given back."""
    from holdmq.client import admin as admins
    from holdmq.client import statistics

    async def ask(admin: Admin) -> dict[str, StatisticsView | HoldMQError]:
        return await admin.statistics([], [name], group_topics=True)

    config = given.configuration()
    answers = run_calls(config, admins.Admin, ask, tenant=config.client.tenant)
    views = [view for view in answers.values() if isinstance(view, statistics.StatisticsView)]
    rows: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "second": one.second._asdict(),
            "minute": one.minute._asdict(),
            "hour": one.hour._asdict(),
            "day": one.day._asdict(),
            "back": one.back._asdict(),
            "back_minute": one.back_minute._asdict(),
        }
        for one in statistics.traffic(views, lambda view: view.group_topics)
    ]
    given.table(
        ("topic", "out/s 1 m", "B/s 1 m", "out/s 1 h", "requeued", "timed out", "given back"),
        rows,
        lambda row: (
            row["topic"],
            f"{row['minute']['messages_out']:.1f}",
            f"{row['minute']['bytes_out']:.0f}",
            f"{row['hour']['messages_out']:.1f}",
            *(str(row["back"][what]) for what in ("requeued", "timed_out", "given_back")),
        ),
    )
    silent = {broker: error for broker, error in answers.items() if isinstance(error, HoldMQError)}
    for broker, error in silent.items():
        say(f"{broker} does not tell its counts: {error}", err=True)
    if silent:
        raise typer.Exit(EXIT_FAILED)


@app.add("pause", example="holdmq group pause billing")
def pause(given: GivenTenant, name: GroupName) -> None:
    """Pause a group: it keeps its offsets and members, and gets nothing."""
    _show([_run(given.configuration(), lambda groups: groups.pause(name))], given)


@app.add("resume", example="holdmq group resume billing")
def resume(given: GivenTenant, name: GroupName) -> None:
    """Let a paused group consume again."""
    _show([_run(given.configuration(), lambda groups: groups.pause(name, False))], given)


def _run(config: Config, work: Callable[[GroupAdmin], Awaitable[T]]) -> T:
    from holdmq.client.groups import GroupAdmin

    return run_calls(config, GroupAdmin, work, tenant=config.client.tenant)


def _show(views: Iterable[GroupView], given: GivenTenant) -> None:
    every = list(views)
    if given.as_json:
        print_json([{"broker": b, **row._asdict()} for view in every for b, row in view.rows.items()])
    else:
        given.table(("group", "mode", "members", "retries", "delays", "brokers", ""), every, _cells)


def _cells(view: GroupView) -> tuple[object, ...]:
    row = next(iter(view.rows.values()))
    state = [
        *(["paused"] if any(r.is_paused for r in view.rows.values()) else []),
        *(["consumeEnable is off"] if not all(r.consume_enable for r in view.rows.values()) else []),
    ]
    delays = ",".join(f"{ms / 1000:g}s" for ms in row.delay_levels_ms)
    brokers = ", ".join(sorted(view.rows))
    return view.group, view.mode, view.members, row.retry_max_times, delays, brokers, ", ".join(state)


def _confirmed(
    move: Callable[[bool], list[MovedOffset]], question: str, dry_run: bool, yes: bool, given: GivenTenant
) -> None:
    """Show what would happen, ask, do it."""
    if dry_run or not yes:
        planned = move(True)
        if dry_run or not given.as_json:
            _show_moved(planned, given)
        if dry_run:
            return
        confirm(question)
    done = move(False)
    if given.as_json or yes:
        _show_moved(done, given)
    else:
        say(f"{len(done)} queues were moved")


def _show_moved(moved: list[MovedOffset], given: GivenTenant) -> None:
    given.table(
        ("topic", "broker", "queue", "before", "after"),
        [{**m.queue._asdict(), "before": m.before, "after": m.after} for m in moved],
        lambda row: (
            *(row[name] for name in ("topic", "broker", "queue_id")),
            "-" if row["before"] < 0 else row["before"],
            row["after"],
        ),
    )


def _progress_row(progress: QueueProgress, now_ms: int) -> dict[str, Any]:
    return {
        **progress.queue._asdict(),
        "offset": progress.offset,
        "first_offset": progress.first_offset,
        "end_offset": progress.end_offset,
        "lag": progress.lag,
        "oldest_ms": progress.oldest_ms,
        "lag_ms": progress.lag_ms(now_ms),
    }


def _target(text: str) -> tuple[str, int]:
    """`--to` as the place and value of a reset."""
    if text in ("earliest", "latest"):
        return text, 0
    kind, separator, number = text.partition(":")
    if kind == "offset" and separator:
        if not number.isdecimal():
            raise UsageError(f"--to {text}: offset:N takes a number from 0 on")
        return "offset", int(number)
    try:
        return "time", parse_time(text, time.time_ns() // 1_000_000)
    except UsageError as error:
        raise UsageError(f"--to {text}: earliest, latest, offset:N, or a time; {error}") from None


def _queue(topic: str, text: str) -> TopicQueue:
    from holdmq.message import TopicQueue

    broker, separator, queue_id = text.rpartition("/")
    if not separator or not broker or not queue_id.isdecimal():
        raise UsageError(f"--queue {text!r} is not BROKER/ID, as broker-0/3")
    return TopicQueue(topic, broker, int(queue_id))


def _delays(text: str | None) -> list[int] | None:
    """`--delay-levels` in ms."""
    if not text:
        return None if text is None else []
    found: list[int] = []
    for part in text.split(","):
        match = _DURATION.match(part.strip())
        if match is None:
            raise UsageError(f"--delay-levels: {part!r} is no duration, as 500ms, 5s, 1m, 2h")
        found.append(int(match[1]) * _UNIT_MS[match[2]])
    return found
