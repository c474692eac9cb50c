"""``holdmq group list | create | update | delete | reset | clone | lag | clients | pause | resume``."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.console import Console

from holdmq.cli.calls import run_calls
from holdmq.cli.options import ConfigFile, GroupName, Json, Sets, Yes, configuration, confirm, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say
from holdmq.cli.times import TIME_HELP, parse_time, show_time
from holdmq.config.model import Config
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.client.groups import GroupAdmin, GroupView, MovedOffset, QueueProgress
    from holdmq.message import TopicQueue

T = TypeVar("T")
_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Consumer groups: settings, members, progress, resets.",
    epilog="Example: holdmq group lag billing",
)

Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; repeat it.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]
Consume = Annotated[
    bool | None,
    typer.Option("--consume/--no-consume", help="Whether its members may consume.", show_default=False),
]
FromMin = Annotated[
    bool | None,
    typer.Option(
        "--from-min/--no-from-min", help="Whether it may begin at the first message.", show_default=False
    ),
]
Broadcast = Annotated[
    bool | None,
    typer.Option(
        "--broadcast/--no-broadcast", help="Whether it may consume in broadcast.", show_default=False
    ),
]
RetryTimes = Annotated[
    int | None, typer.Option("--retry-max-times", help="Retries before a dead letter.", show_default=False)
]
RetryQueues = Annotated[
    int | None, typer.Option("--retry-queues", help="Queues of its retry topic.", show_default=False)
]
DelayLevels = Annotated[
    str | None,
    typer.Option(
        "--delay-levels", help="Its own retry delays, as 1s,5s,1m; '' = the broker's.", show_default=False
    ),
]


@app.command("list", epilog="Example: holdmq group list")
def list_(config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """List groups with their settings and members."""
    views = list(_run(configuration(config, set_), lambda groups: groups.groups()).values())
    _show(views, as_json)


@app.command(epilog="Example: holdmq group create billing --retry-max-times 5 --delay-levels 1s,1m,1h")
def create(
    name: GroupName,
    consume: Consume = None,
    from_min: FromMin = None,
    broadcast: Broadcast = None,
    retry_max_times: RetryTimes = None,
    retry_queues: RetryQueues = None,
    delay_levels: DelayLevels = None,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Create a group on every broker; one that exists gets the settings that are given."""
    _update(
        configuration(config, set_),
        name,
        as_json,
        consume_enable=consume,
        consume_from_min_enable=from_min,
        consume_broadcast_enable=broadcast,
        retry_max_times=retry_max_times,
        retry_queue_nums=retry_queues,
        delay_levels_ms=_delays(delay_levels),
    )


@app.command(epilog="Example: holdmq group update billing --no-consume")
def update(
    name: GroupName,
    consume: Consume = None,
    from_min: FromMin = None,
    broadcast: Broadcast = None,
    retry_max_times: RetryTimes = None,
    retry_queues: RetryQueues = None,
    delay_levels: DelayLevels = None,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Change settings of a group; what is not given stays as it is."""
    given = {
        "consume_enable": consume,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "retry_max_times": retry_max_times,
        "retry_queue_nums": retry_queues,
        "delay_levels_ms": _delays(delay_levels),
    }
    if all(value is None for value in given.values()):
        raise UsageError("no setting is given; `holdmq group update --help` lists them")
    loaded = configuration(config, set_)
    if name not in _run(loaded, lambda groups: groups.groups()):
        raise UsageError(f"group {name!r} does not exist; `holdmq group create` makes it")
    _update(loaded, name, as_json, **given)


@app.command(epilog="Example: holdmq group delete billing --yes")
def delete(
    name: GroupName, yes: Yes = False, config: ConfigFile = None, set_: Sets = None, as_json: Json = False
) -> None:
    """Delete a group without members, with its offsets, at every broker."""
    if not yes:
        confirm(f"Delete group {name} and its offsets for good?")
    _run(configuration(config, set_), lambda groups: groups.delete(name))
    if as_json:
        print_json({"deleted": name})
    else:
        say(f"{name} is deleted")


@app.command(epilog="Example: holdmq group reset billing orders --to 2h")
def reset(
    name: GroupName,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    to: Annotated[str, typer.Option("--to", help=f"earliest, latest, offset:N, or a time {TIME_HELP}.")],
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="BROKER/ID", help="Only this queue; repeat it.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Move a group in a topic; members go on there at once. Shows what happens, then asks."""
    place, value = _target(to)
    queues = [_queue(topic, text) for text in queue] if queue else None
    loaded = configuration(config, set_)

    def move(is_dry: bool) -> list[MovedOffset]:
        return _run(
            loaded, lambda groups: groups.reset(name, topic, place, value, queues=queues, dry_run=is_dry)
        )

    _confirmed(move, f"Move group {name} in {topic}?", dry_run, yes, as_json)


@app.command(epilog="Example: holdmq group clone billing billing-test")
def clone(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group whose offsets are taken.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets them; no members.")],
    topics: Topics = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Give a group the offsets of another. Shows what happens, then asks."""
    loaded = configuration(config, set_)

    def move(is_dry: bool) -> list[MovedOffset]:
        return _run(loaded, lambda groups: groups.clone(source, target, topics or None, dry_run=is_dry))

    _confirmed(move, f"Give group {target} these offsets?", dry_run, yes, as_json)


@app.command(epilog="Example: holdmq group lag billing --topic orders")
def lag(
    name: GroupName,
    topics: Topics = None,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Show how far a group is in each queue, and its backlog by count and age."""
    found = _run(configuration(config, set_), lambda groups: groups.progress(name, topics or None))
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        print_json([_progress_row(progress, now_ms) for progress in found])
        return
    table = PlainTable("topic", "broker", "queue", "offset", "end", "lag", "age")
    for p in found:
        offset = "-" if p.offset < 0 else str(p.offset)
        age = f"{p.lag_ms(now_ms) / 1000:.1f} s" if p.oldest_ms else ""
        table.add_row(
            p.queue.topic, p.queue.broker, str(p.queue.queue_id), offset, str(p.end_offset), str(p.lag), age
        )
    Console().print(table)
    oldest_ms = max((p.lag_ms(now_ms) for p in found), default=0)
    say(f"{sum(p.lag for p in found)} messages wait, the oldest for {oldest_ms / 1000:.1f} s")


@app.command(epilog="Example: holdmq group clients billing")
def clients(name: GroupName, config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """Show a group's members at each broker, and how many queues each has."""
    found = _run(configuration(config, set_), lambda groups: groups.members(name))
    listed = [{"broker": broker, **row._asdict()} for broker, members in found.items() for row in members]
    if as_json:
        print_json(listed)
        return
    table = PlainTable("client", "broker", "address", "mode", "queues", "topics", "software", "since")
    for row in listed:
        topics = ", ".join(sorted(subscription[0] for subscription in row["subscriptions"]))
        table.add_row(
            row["client_id"],
            row["broker"],
            row["address"],
            row["mode"],
            str(row["queues"]),
            topics,
            row["software"],
            show_time(row["joined_ms"]),
        )
    Console().print(table)


@app.command(epilog="Example: holdmq group pause billing")
def pause(name: GroupName, config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """Pause a group: it keeps its offsets and members, and gets nothing."""
    _show([_run(configuration(config, set_), lambda groups: groups.pause(name))], as_json)


@app.command(epilog="Example: holdmq group resume billing")
def resume(name: GroupName, config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """Let a paused group consume again."""
    _show([_run(configuration(config, set_), lambda groups: groups.pause(name, False))], as_json)


def _run(config: Config, work: Callable[[GroupAdmin], Awaitable[T]]) -> T:
    from holdmq.client.groups import GroupAdmin

    return run_calls(config, GroupAdmin, work)


def _update(config: Config, name: str, as_json: bool, **settings: Any) -> None:
    _show([_run(config, lambda groups: groups.update(name, **settings))], as_json)


def _show(views: Iterable[GroupView], as_json: bool) -> None:
    if as_json:
        print_json([{"broker": b, **row._asdict()} for view in views for b, row in view.rows.items()])
        return
    table = PlainTable("group", "mode", "members", "retries", "delays", "brokers", "")
    for view in views:
        row = next(iter(view.rows.values()))
        state = [
            *(["paused"] if any(r.is_paused for r in view.rows.values()) else []),
            *(["consumeEnable is off"] if not all(r.consume_enable for r in view.rows.values()) else []),
        ]
        delays = ",".join(f"{ms / 1000:g}s" for ms in row.delay_levels_ms)
        table.add_row(
            view.group,
            view.mode,
            str(view.members),
            str(row.retry_max_times),
            delays,
            ", ".join(sorted(view.rows)),
            ", ".join(state),
        )
    Console().print(table)


def _confirmed(
    move: Callable[[bool], list[MovedOffset]], question: str, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Show what would happen, ask, do it."""
    if dry_run or not yes:
        planned = move(True)
        if dry_run or not as_json:
            _show_moved(planned, as_json)
        if dry_run:
            return
        confirm(question)
    done = move(False)
    if as_json or yes:
        _show_moved(done, as_json)
    else:
        say(f"{len(done)} queues were moved")


def _show_moved(moved: list[MovedOffset], as_json: bool) -> None:
    if as_json:
        print_json([{**m.queue._asdict(), "before": m.before, "after": m.after} for m in moved])
        return
    table = PlainTable("topic", "broker", "queue", "before", "after")
    for m in moved:
        before = "-" if m.before < 0 else str(m.before)
        table.add_row(m.queue.topic, m.queue.broker, str(m.queue.queue_id), before, str(m.after))
    Console().print(table)


def _progress_row(progress: QueueProgress, now_ms: int) -> dict[str, Any]:
    return {
        **progress.queue._asdict(),
        "offset": progress.offset,
        "first_offset": progress.first_offset,
        "end_offset": progress.end_offset,
        "lag": progress.lag,
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
