"""``holdmq top``: what brokers do now, on a terminal, a pipe or as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdmq.cli.options import Asking, CommandGroup, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.config.model import Config
from holdmq.errors import HoldMQError
from holdmq.names.visible_text import visible

if TYPE_CHECKING:
    from holdmq.client.admin import Admin

SLOW_S: Final = 5.0
"""How often backlogs and connections are asked for: they cost a broker more than its counts."""
ROWS_MIN: Final = 3
ROWS_ON_PIPE: Final = 20
ROWS_ASKED: Final = 200
CONNECTIONS_MAX: Final = 1_000
"""Connections of one JSON document or page, those that came last."""

View = dict[str, Any]


def register(app: CommandGroup) -> None:
    """Add the command `top`, a live picture, to `app`."""
    app.add("top", example="holdmq top --once")(top)


def top(
    given: Asking,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two pictures.")
    ] = 1.0,
) -> None:
    """Watch rates per topic, backlog per group, busy segments, connections and alarms, until Ctrl-C."""
    asyncio.run(_run(given.configuration(), once, interval, given.as_json))


async def _run(config: Config, once: bool, interval_s: float, as_json: bool) -> None:
    from holdmq.client.admin import Admin
    from holdmq.rpc.security import Security

    # A signal must not end it in the middle of a question: what was cancelled there may be swallowed.
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    name = f"holdmq-top-{os.getpid()}"
    async with Admin(
        config.registries(), client_id=name, security=Security.of(config), cluster=config.client.cluster
    ) as admin:
        watch = Watch(admin)
        if as_json:
            await _repeat(watch, once, interval_s, print_json, stopping)
        elif once or not sys.stdout.isatty():
            await _repeat(watch, once, interval_s, _print, stopping)
        else:
            console = Console()
            with Live(console=console, screen=True, auto_refresh=False) as live:

                def show(view: View) -> None:
                    live.update(render(view, rows_for(console.height, view)), refresh=True)

                await _repeat(watch, False, interval_s, show, stopping)


async def _repeat(watch: Watch, once: bool, interval_s: float, show: Any, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        show(await watch.look())
        if once:
            return
        due = max(due + interval_s, loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await stopping.wait()
        if stopping.is_set():
            return


def _print(view: View) -> None:
    Console().print(render(view, ROWS_ON_PIPE))
    sys.stdout.flush()


class Watch:
    """Asks the brokers for one picture after the other."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._asked_at = float("-inf")
        self._groups: list[View] = []
        self._connections: list[View] = []

    async def look(self) -> View:
        """The next picture, as JSON has it. TransportError when nobody answers."""
        statuses, statistics, alarms, _ = await asyncio.gather(
            self._admin.broker_status(),
            self._admin.statistics(sources=True, rows_max=ROWS_ASKED),
            self._admin.alarms(),
            self._look_slowly(),
        )
        from holdmq.client.statistics import StatisticsView, traffic

        counted = {b: view for b, view in statistics.items() if isinstance(view, StatisticsView)}
        segments = [
            {"broker": broker, **segment._asdict()}
            for broker, view in counted.items()
            for segment in view.segments
        ]
        segments.sort(key=lambda one: -(one["read_bytes"] + one["written_bytes"]))
        totals = {broker: traffic([view], lambda view: [view.broker])[0] for broker, view in counted.items()}
        groups = traffic(counted.values(), lambda view: view.groups)
        pulled = {one.name: one for one in groups}
        return {
            "at_ms": time.time_ns() // 1_000_000,
            "brokers": [
                _broker(broker, status, totals.get(broker)) for broker, status in sorted(statuses.items())
            ],
            "topics": [_rates(one) for one in traffic(counted.values(), lambda view: view.topics)],
            "groups": [_with_traffic(group, pulled.get(group["group"])) for group in self._groups],
            "clients": [_rates(one) for one in traffic(counted.values(), lambda view: view.clients)],
            "users": [_rates(one) for one in traffic(counted.values(), lambda view: view.users)],
            "segments": segments,
            "connections": self._connections,
            "alarms": [
                {"broker": broker, **row._asdict()}
                for broker, found in alarms.items()
                if not isinstance(found, HoldMQError)
                for row in found.alarms
            ],
        }

    async def _look_slowly(self) -> None:
        from holdmq.client.statistics import BacklogView, group_backlogs

        now = time.monotonic()
        if now - self._asked_at < SLOW_S:
            return
        self._asked_at = now
        backlog, connections = await asyncio.gather(self._admin.backlog(), self._admin.connections())
        views = [view for view in backlog.values() if isinstance(view, BacklogView)]
        self._groups = [asdict(group) for group in group_backlogs(views)]
        listed = [
            {
                "broker": broker,
                "role": row.role,
                "client_id": row.client_id,
                "address": row.address,
                "language": row.language,
                "software": row.software,
                "connected_ms": row.connected_ms,
                "kinds": row.kinds,
                "principal": row.principal,
                "produces": row.produces,
                "groups": sorted({subscription[0] for subscription in row.subscriptions}),
                "topics": sorted({subscription[2] for subscription in row.subscriptions}),
            }
            for broker, found in connections.items()
            if not isinstance(found, HoldMQError)
            for row in found
        ]
        listed.sort(key=lambda one: -one["connected_ms"])
        self._connections = listed[:CONNECTIONS_MAX]


def _broker(broker: str, status: Any, total: Any) -> View:
    if isinstance(status, HoldMQError):
        return {"broker": broker, "error": str(status)}
    return {
        "broker": broker,
        "error": "",
        "writable": status.writable,
        "reason": status.reason,
        "log_bytes": status.confirmed_position - status.first_position,
        "connections": status.numbers.get("connections", 0),
        **({} if total is None else _rates(total)),
    }


def _rates(traffic: Any) -> View:
    found = asdict(traffic)
    for window in ("second", "minute", "hour", "day"):
        found[window] = getattr(traffic, window)._asdict()
    del found["queue_id"], found["topic"]
    for came_back in ("back", "back_minute"):
        found[came_back] = getattr(traffic, came_back)._asdict()
    if not found["name"]:
        del found["name"]
    return found


def _with_traffic(group: View, traffic: Any) -> View:
    if traffic is None:
        none = dict.fromkeys(("requeued", "timed_out", "given_back"), 0)
        return {**group, "messages_out": 0.0, "back_minute": none}
    back = traffic.back_minute._asdict()
    return {**group, "messages_out": traffic.second.messages_out, "back_minute": back}


# Pictures


def rows_for(height: int, view: View) -> int:
    """How many rows each of the four tables may have on a screen of so many lines."""
    used = 1 + len(view["brokers"]) + len(view["alarms"]) + 4 * 3
    return max(ROWS_MIN, (height - used) // 4)


def render(view: View, rows: int) -> RenderableType:
    """A picture with at most so many rows of topics, groups, segments and connections each."""
    at = time.strftime("%H:%M:%S", time.localtime(view["at_ms"] / 1000))
    lines: list[RenderableType] = [Text(f"holdmq top  {at}", style="bold")]
    lines += [Text(visible(_broker_line(broker))) for broker in view["brokers"]]
    alarms = (f"ALARM {alarm['broker']}: {alarm['text']}" for alarm in view["alarms"])
    lines += [Text(visible(alarm), style="red") for alarm in alarms]
    lines.append(_topics(view["topics"], rows))
    lines.append(_groups(view["groups"], rows))
    lines.append(_segments(view["segments"], rows))
    lines.append(_connections(view["connections"], rows))
    return Group(*lines)


def _broker_line(broker: View) -> str:
    if broker["error"]:
        return f"{broker['broker']}: {broker['error']}"
    second = broker.get("second", {})
    state = "" if broker["writable"] else f", TAKES NOTHING: {broker['reason']}"
    return (
        f"{broker['broker']}: in {_rate(second.get('messages_in', 0))} msg/s "
        f"{size(second.get('bytes_in', 0))}/s, out {_rate(second.get('messages_out', 0))} msg/s "
        f"{size(second.get('bytes_out', 0))}/s, put {_ms(broker.get('put_ms'))}, "
        f"log {size(broker['log_bytes'])}, {broker['connections']} connections{state}"
    )


def _topics(topics: list[View], rows: int) -> PlainTable:
    table = _table(
        "topic", ["in/s", "in/s 1 m", "in/s 1 h", "in/s 1 d", "B/s in", "out/s", "replay/s", "put", "get"]
    )
    for one in topics[:rows]:
        table.add_row(
            one["name"],
            *(_rate(one[window]["messages_in"]) for window in ("second", "minute", "hour", "day")),
            size(one["second"]["bytes_in"]),
            _rate(one["second"]["messages_out"]),
            _rate(one["second"]["messages_replayed"]),
            _ms(one["put_ms"]),
            _ms(one["get_ms"]),
        )
    return _more(table, len(topics) - rows)


def _groups(groups: list[View], rows: int) -> PlainTable:
    table = _table("group", ["backlog", "age", "out/s", "again 1 m", "late 1 m", "mode", "topics"])
    for one in groups[:rows]:
        age = f"{one['age_ms'] / 1000:.1f} s" if one["messages"] else ""
        table.add_row(
            one["group"],
            str(one["messages"]),
            age,
            _rate(one["messages_out"]),
            str(one["back_minute"]["requeued"]),
            str(one["back_minute"]["timed_out"]),
            one["mode"],
            _few(one["topics"]),
        )
    return _more(table, len(groups) - rows)


def _segments(segments: list[View], rows: int) -> PlainTable:
    table = _table("segment", ["broker", "written/s", "read/s", "hits/s"])
    for one in segments[:rows]:
        table.add_row(
            f"{one['start']:020}",
            one["broker"],
            size(one["written_bytes"]),
            size(one["read_bytes"]),
            str(one["hits"]),
        )
    return _more(table, len(segments) - rows)


def _connections(connections: list[View], rows: int) -> PlainTable:
    table = _table("client", ["role", "broker", "address", "software", "groups", "topics"])
    for one in connections[:rows]:
        software = f"{one['language']} {one['software']}".strip()
        table.add_row(
            one["client_id"],
            one["role"],
            one["broker"],
            one["address"],
            software,
            _few(one["groups"]),
            _few(one["topics"]),
        )
    return _more(table, len(connections) - rows)


def _table(first: str, others: Iterable[str]) -> PlainTable:
    table = PlainTable(box=None, padding=(0, 2, 0, 0), header_style="bold reverse")
    table.add_column(first, no_wrap=True)
    for name in others:
        is_text = name in ("mode", "topics", "broker", "role", "address", "software", "groups")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table


def _more(table: PlainTable, left_out: int) -> PlainTable:
    if left_out > 0:
        table.add_row(f"… {left_out} more")
    return table


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"


def size(value: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
