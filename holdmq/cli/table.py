"""``holdmq table create | get | scan | put | delete | watch``."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import CommandGroup, GivenTenant, QueuesPerBroker, print_json
from holdmq.cli.shown import content, say, write_line
from holdmq.config.model import Config
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.client.table_watch import Event
    from holdmq.client.tables import Table, TableEntry

T = TypeVar("T")

app = CommandGroup(
    "Tables: the newest value by key, kept by the brokers.", "holdmq table get settings sensor/42"
)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="The table: a topic of kind table.")]
Key = Annotated[str, typer.Argument(help="The key: any text of 1 to 32,768 bytes.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Only keys that begin with this.")]
IfVersion = Annotated[
    int | None,
    typer.Option(
        "--if-version", min=-1, help="Only if the row has this version; -1: only if the key has no value."
    ),
]


@app.add("create", example="holdmq table create settings")
def create(given: GivenTenant, name: Name, queues: QueuesPerBroker = 0) -> None:
    """Create a table on every live broker; creating it again with the same settings succeeds."""

    async def run(table: Table) -> list[str]:
        await table.create(queues)
        return await table.brokers()

    brokers = _with_table(given.configuration(), name, run)
    given.tell({"table": name, "brokers": brokers}, f"{name} is on {', '.join(brokers)}")


@app.add("get", example="holdmq table get settings sensor/42")
def get(given: GivenTenant, name: Name, key: Key) -> None:
    """Print the value of a key. Exit code 1 when it has none."""
    entry = _with_table(given.configuration(), name, lambda table: table.get(key))
    if entry is None:
        say(f"{key} has no value", err=True)
        raise typer.Exit(1)
    if given.as_json:
        print_json(_fields(entry))
    else:
        write_line(entry.value)


@app.add("scan", example="holdmq table scan settings --prefix sensor/")
def scan(
    given: GivenTenant,
    name: Name,
    prefix: Prefix = "",
    count: Annotated[int, typer.Option("--count", min=0, help="At most so many rows; 0 = all.")] = 0,
    after: Annotated[str | None, typer.Option("--after", help="Begin behind this key.")] = None,
) -> None:
    """Print keys and values in the order of the keys, a line for each."""

    async def run(table: Table) -> None:
        left, behind = count or sys.maxsize, after
        while left:
            page = await table.scan_page(prefix, behind, min(left, 1_000))
            for entry in page.entries:
                _show(entry, given)
            left -= len(page.entries)
            behind = page.next_after
            if behind is None:
                return

    _with_table(given.configuration(), name, run)


@app.add("put", example="holdmq table put settings sensor/42 '{\"interval_s\": 10}'")
def put(
    given: GivenTenant,
    name: Name,
    key: Key,
    value: Annotated[str | None, typer.Argument(help="The value.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="A file that is the value; - is standard input.")
    ] = None,
    if_version: IfVersion = None,
) -> None:
    """Give a key a value; prints the row's version, once the log has it."""
    raw = _value(value, file)
    version = _with_table(
        given.configuration(), name, lambda table: table.put(key, raw, if_version=if_version)
    )
    given.tell({"key": key, "version": version}, version)


@app.add("delete", example="holdmq table delete settings sensor/42")
def delete(given: GivenTenant, name: Name, key: Key, if_version: IfVersion = None) -> None:
    """Take a key's value away; that it has none is fine."""
    version = _with_table(given.configuration(), name, lambda table: table.delete(key, if_version=if_version))
    given.tell({"key": key, "version": version}, version)


@app.add("watch", example="holdmq table watch settings --prefix sensor/")
def watch(
    given: GivenTenant,
    name: Name,
    prefix: Prefix = "",
    changes_only: Annotated[
        bool, typer.Option("--changes-only", help="Do not print the rows that there are.")
    ] = False,
    count: Annotated[int, typer.Option("--count", min=0, help="End after so many changes; 0 = never.")] = 0,
) -> None:
    """Print rows, and then every change, until Ctrl-C. A key without a value any more is printed alone."""

    async def run(table: Table) -> None:
        await _watch(table, prefix, not changes_only, count or sys.maxsize, given)

    _with_table(given.configuration(), name, run)


async def _watch(table: Table, prefix: str, with_rows: bool, left: int, given: GivenTenant) -> None:
    from holdmq.client.table_watch import TableChange

    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    ending = asyncio.ensure_future(done.wait())
    async with table.watch(prefix, with_rows=with_rows) as changes:
        while left and not done.is_set():
            polling = asyncio.ensure_future(changes.poll())
            await asyncio.wait((polling, ending), return_when=asyncio.FIRST_COMPLETED)
            if not polling.done():
                polling.cancel()
                break
            for event in polling.result():
                _show_event(event, given)
                left -= isinstance(event, TableChange)
                if not left:
                    break
    ending.cancel()


def _show_event(event: Event, given: GivenTenant) -> None:
    from holdmq.client.table_watch import TableChange, TableReset

    if not isinstance(event, TableChange):
        if given.as_json:
            print_json({"reset" if isinstance(event, TableReset) else "complete": event.broker})
    elif given.as_json:
        value = {"deleted": True} if event.value is None else content("value", event.value)
        print_json({"key": event.key, **value, "version": event.version, "broker": event.broker})
    elif event.value is None:
        write_line(event.key)
    else:
        write_line(event.key, event.value)


def _with_table(config: Config, name: str, work: Callable[[Table], Awaitable[T]]) -> T:
    from holdmq.client.tables import Table

    return run_calls(config, partial(Table, name), work, tenant=config.client.tenant)


def _value(value: str | None, file: Path | None) -> bytes:
    if (value is None) == (file is None):
        raise UsageError("give the value by exactly one of VALUE and -f FILE")
    if file is None:
        assert value is not None
        return value.encode()
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"the file {file} cannot be read: {error.strerror}") from error


def _fields(entry: TableEntry) -> dict[str, Any]:
    return {"key": entry.key, **content("value", entry.value), "version": entry.version}


def _show(entry: TableEntry, given: GivenTenant) -> None:
    if given.as_json:
        print_json(_fields(entry))
    else:
        write_line(entry.key, entry.value)
