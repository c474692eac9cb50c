"""``holdmq log verify | dump | stat``: a store without its broker."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdmq.cli.options import CommandGroup, Output, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.progress import bytes_bar
from holdmq.cli.shown import say
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.record.codec import Record
    from storage.log.offline.store import Finding, OfflineStore
    from storage.log.offline.verify import LogSums, QueueSums

app = CommandGroup(
    "A store on disk, while no broker has it open: check it, count it, look into it.",
    "holdmq log verify ./holdmq-data/store",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The store: what storage.data_dir names.")]


@app.add("verify", example="holdmq log verify ./holdmq-data/store --truncate")
def verify(
    output: Output,
    directory: Directory,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="Cut the log at its first damaged record (what is cut is kept in DIR/cut), and write "
            "the consume queues anew. Nothing else changes a store.",
        ),
    ] = False,
) -> None:
    """Look at every byte of a store; say where what is wrong. Exit code 1 when anything is."""
    from storage.log.offline.verify import Verification

    with _opened(directory) as store:
        levels = _key_levels(store)
        run = Verification(store, levels)
        found: list[Finding] = []
        with bytes_bar("verify") as report:
            for finding in run.run(report):
                found.append(finding)
                if not output.as_json:
                    say(f"{finding.path} at {finding.offset}: {finding.what}")
        answer: dict[str, Any] = {
            "ok": not found,
            "records": run.records,
            "entries": run.entries,
            "files": run.files,
            "end": run.end,
            "findings": [finding._asdict() for finding in found],
        }
        if truncate and found:
            answer["cut"] = _truncated(store, levels or (lambda _: 1), output)
    sums = f"{run.records} records, {run.entries} consume-queue entries, {run.files} JSON files"
    output.tell(answer, f"{sums}: {len(found)} findings" if found else f"{sums}: all whole")
    if found and not truncate:
        raise typer.Exit(EXIT_FAILED)


@app.add("stat", example="holdmq log stat ./holdmq-data/store --json")
def stat(output: Output, directory: Directory) -> None:
    """Count what the log holds, exactly: messages and bytes of every queue, and of all."""
    from storage.log.offline.verify import sums_of

    with _opened(directory) as store, bytes_bar("stat") as report:
        sums = sums_of(store, report)
        is_clean = store.clean_end is not None
    queues = sorted(sums.queues.values(), key=lambda queue: (queue.topic, queue.queue_id))
    if output.as_json:
        print_json(_stat_fields(sums, queues, is_clean))
        return
    table = PlainTable("topic", "queue", "first", "end", "messages", "body bytes", "record bytes")
    for queue in queues:
        numbers = (queue.queue_id, queue.first_offset, queue.end_offset, queue.messages)
        table.add_row(queue.topic, *map(str, (*numbers, queue.body_bytes, queue.record_bytes)))
    totals = [sum(column) for column in zip(*map(_counts, queues), strict=True)] or [0, 0, 0]
    table.add_row("all", "", "", "", *map(str, totals), style="bold")
    Console().print(table)
    say(
        f"{sums.segments} segments, log offsets {sums.first_position} to {sums.end}, "
        + ("closed cleanly" if is_clean else "not closed cleanly")
    )
    if sums.findings:
        say(f"{sums.findings} places are damaged and not counted: holdmq log verify {directory}")


@app.add("dump", example="holdmq log dump ./holdmq-data/store --topic devices --limit 10 --json")
def dump(
    output: Output,
    directory: Directory,
    topic: Annotated[str | None, typer.Option(help="Only this topic.", show_default=False)] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.", show_default=False)] = None,
    tag: Annotated[str | None, typer.Option(help="Only this tag.", show_default=False)] = None,
    key: Annotated[
        str | None, typer.Option(help="Only messages with this key or unique id.", show_default=False)
    ] = None,
    start: Annotated[
        int, typer.Option("--from", min=0, metavar="OFFSET", help="Begin at this log offset.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many; 0 = all.")] = 0,
) -> None:
    """Print records in the log's order; damaged places are named where they lie."""
    from storage.log.offline.store import Finding

    printed = 0
    with _opened(directory) as store:
        for item in _records(store, start):
            if isinstance(item, Finding):
                say(f"{item.path} at {item.offset}: {item.what}", err=True)
                continue
            if not _is_wanted(item, topic, queue, tag, key):
                continue
            output.tell(_record_fields(item), _line(item))
            printed += 1
            if printed == limit:
                return


@contextmanager
def _opened(directory: Path) -> Iterator[OfflineStore]:
    from storage.log.offline.store import OfflineStore

    store = OfflineStore(directory)
    store.open()
    try:
        yield store
    finally:
        store.close()


def _key_levels(store: OfflineStore) -> Callable[[str], int] | None:
    """Every topic's key levels from topic.json, in a file or in the log; None when it cannot be read."""
    from broker.topics.core.table import TopicTable
    from holdmq.cli.kept_state import state_file
    from holdmq.errors import StorageError

    path = store.directory / "config" / "topic.json"
    table = TopicTable(1, 1)
    try:
        loaded = state_file(store, path.name)
        if loaded is not None:
            table.load(loaded.content, loaded.data_version, str(path))
    except StorageError:
        return None  # verify reports the file itself
    return table.key_levels


def _truncated(store: OfflineStore, key_levels: Callable[[str], int], output: Output) -> dict[str, int]:
    from storage.log.offline.repair import truncate

    cut = truncate(store, key_levels)
    if not output.as_json:
        say(f"the log now ends at {cut.end}; {cut.cut_bytes} bytes were moved to {store.directory / 'cut'}")
    return cut._asdict()


def _counts(queue: QueueSums) -> tuple[int, int, int]:
    return queue.messages, queue.body_bytes, queue.record_bytes


def _stat_fields(sums: LogSums, queues: list[QueueSums], is_clean: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "first_position": sums.first_position,
        "end": sums.end,
        "segments": sums.segments,
        "closed_cleanly": is_clean,
        "damaged_places": sums.findings,
        "first_store_ms": sums.first_store_ms,
        "last_store_ms": sums.last_store_ms,
        "messages": sum(queue.messages for queue in queues),
        "body_bytes": sum(queue.body_bytes for queue in queues),
        "record_bytes": sum(queue.record_bytes for queue in queues),
        "queues": [asdict(queue) for queue in queues],
    }


def _records(store: OfflineStore, start: int) -> Iterator[Record | Finding]:
    from holdmq.record.codec import decode_record
    from storage.log.offline.store import Finding

    begin = store.segments.first_position
    segment = store.segments.locate(start)
    if segment is not None:
        begin = segment.start
    for item in store.walk(lambda _: 1, lambda _done, _total: None, begin):
        if isinstance(item, Finding):
            if item.position >= start:
                yield item
            continue
        for at in item.starts.tolist():
            if item.position + at >= start:
                yield decode_record(item.records, at)


def _is_wanted(
    record: Record, topic: str | None, queue: int | None, tag: str | None, key: str | None
) -> bool:
    if topic is None and record.topic == PRODUCED_TOPIC.encode():
        return False  # no message: only who asks for it is shown it
    if topic is not None and record.topic != topic.encode():
        return False
    if queue is not None and record.queue_id != queue:
        return False
    if tag is not None and record.tag != tag.encode():
        return False
    return key is None or key in _keys(record)


def _keys(record: Record) -> list[str]:
    from holdmq.record.codec import decode_properties

    pairs = decode_properties(record.properties).pairs
    return [value for name, value in pairs if name in ("KEYS", "UNIQ_KEY")]


def _record_fields(record: Record) -> dict[str, Any]:
    """What a program wants to know; `body` is text, or `body_base64` what is no UTF-8."""
    from holdmq.record.codec import decode_properties

    try:
        body = {"body": record.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(record.body).decode()}
    message = record.to_message()
    return {
        "position": record.physical_offset,
        "size": record.total_size,
        "topic": message.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": str(message.message_id),
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "properties": decode_properties(record.properties).pairs,
        **body,
    }


def _line(record: Record) -> str:
    tag = "" if record.tag is None else record.tag.decode("utf-8", "replace")
    where = f"{record.physical_offset} {record.topic.decode('utf-8', 'replace')}/{record.queue_id}"
    body = record.body.decode("utf-8", "backslashreplace")
    return f"{where} {record.queue_offset} {record.store_ms} {tag!r} {body}"
