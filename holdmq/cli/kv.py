"""``holdmq kv check | stat | import``: what the key-value engine has in its servers, and what goes there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdmq.cli.options import CommandGroup, Given, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.progress import bytes_bar
from holdmq.cli.shown import say
from holdmq.errors import StartupError, StorageError
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.cli.kv_nodes import KvNode, KvNodes
    from holdmq.cli.kv_shard import KvFinding, ShardFacts, TopicUse

app = CommandGroup(
    "The servers of the key-value engine: whether a shard contradicts itself, and what it takes.",
    "holdmq kv check",
)


@app.add("check", example="holdmq kv check --records --set storage.kv.prefix=holdmq")
def check(
    given: Given,
    records: Annotated[
        bool, typer.Option("--records", help="Read every record, too, and look it up in its queue.")
    ] = False,
) -> None:
    """Compare what the servers have of each shard; say what does not agree. Exit code 1 when anything."""
    settings = given.configuration().storage.kv
    read = None
    with _opened(given) as nodes:
        from holdmq.cli.kv_shard import findings_in

        shards = _shards(nodes, settings.prefix)
        found = [*_evicting(nodes), *(finding for facts, _ in shards for finding in findings_in(facts))]
        if records:
            read = 0
            for facts, node in shards:
                count, wrong = _read(facts, node)
                read += count
                found += wrong
    if given.as_json:
        print_json(
            {
                "ok": not found,
                "prefix": settings.prefix,
                "shards": [_check_fields(facts, node, nodes) for facts, node in shards],
                "records": read,
                "findings": [finding._asdict() for finding in found],
            }
        )
    else:
        for facts, node in shards:
            _say_checked(facts, node)
        for finding in found:
            say(f"{finding.key} {finding.what}")
        queues = sum(len(facts.queues) for facts, _ in shards)
        sums = f"{len(shards)} shards, {queues} queues" + ("" if read is None else f", {read} records")
        say(f"{sums}: {len(found)} findings" if found else f"{sums}: all agrees")
    if found:
        raise typer.Exit(EXIT_FAILED)


@app.add("stat", example="holdmq kv stat --json")
def stat(given: Given) -> None:
    """Count what each shard and topic has, and how slots, keys and memory are shared out over the servers."""
    settings = given.configuration().storage.kv
    with _opened(given) as nodes:
        from holdmq.cli.kv_shard import memory_of, topics_in

        rows = [
            (facts, node, topics_in(node.client, facts), memory_of(node.client, facts.keys.tag))
            for facts, node in _shards(nodes, settings.prefix)
        ]
        of_node = {
            node.name: [facts.name for facts, home, *_ in rows if home.name == node.name]
            for node in nodes.nodes
        }
        servers = [_node_fields(node, of_node[node.name]) for node in nodes.nodes]
    if given.as_json:
        shards = [
            {
                **_place_fields(facts, node, nodes),
                "records": sum(topic.records for topic in topics),
                "batches": facts.log_batches,
                "bytes": facts.number("end") - facts.number("first"),
                "memory_bytes": memory,
                "topics": [_topic_fields(topic) for topic in topics],
            }
            for facts, node, topics, memory in rows
        ]
        print_json({"prefix": settings.prefix, "nodes": servers, "shards": shards})
        return
    for facts, node, topics, memory in rows:
        size = facts.number("end") - facts.number("first")
        slot = f"slot {nodes.slot_of(facts.keys.tag)} " if nodes.is_cluster else ""
        say(f"shard {facts.name}, {slot}at {node.name}: {facts.log_batches} batches, {size} bytes")
        table = PlainTable("topic", "queues", "messages", "batches", "bytes")
        for topic in topics:
            about = "" if topic.is_exact else "~"
            counts = (topic.queues, topic.records, topic.batches, f"{about}{topic.bytes}")
            table.add_row(topic.topic, *map(str, counts))
        Console().print(table)
        takes = ", ".join(f"{kind} {taken}" for kind, taken in memory.items() if taken)
        say(f"memory in bytes: {takes}")
        say("")
    table = PlainTable("server", "slots", "keys", "memory", "of at most", "shards")
    for row in servers:
        most = row["memory_max_bytes"] or "no limit"
        names = ", ".join(row["shards"])
        cells = (row["node"], row["slots"], row["keys"], row["memory_bytes"], most, names)
        table.add_row(*map(str, cells))
    Console().print(table)


@app.add("import", example="holdmq kv import ./holdmq-data/store --broker broker-0")
def import_(
    given: Given,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The store of a stopped broker: its storage.data_dir.")
    ],
    broker: Annotated[str, typer.Option(help="The broker's name: that of the store, and of the shard.")],
    url: Annotated[
        str | None,
        typer.Option(
            help="The servers, as storage.kv.url; with a password rather there.", show_default=False
        ),
    ] = None,
) -> None:
    """Copy all that a log engine's store has into the servers, for a broker with storage.engine = kv.

    The store is looked at as a whole before, and stays as it is. When it was stopped half-way, again: it goes
    on where it was.
    """
    settings = given.configuration(*([] if url is None else [f"storage.kv.url={url}"])).storage
    with _with_client():
        from holdmq.cli.kv_import import import_store

        done = import_store(directory, settings, broker)
    skipped = f", {done.expired_records} too old to keep" if done.expired_records else ""
    begun = "went on with" if done.continued else "imported"
    given.tell(
        asdict(done),
        f"{begun} broker {done.broker}: {done.records} records{skipped}, {done.rows} rows of tables, "
        f"{done.queues} queues, {done.files} state files; the log is {done.first} to {done.end}, as it was",
        f"start it with storage.engine = kv now, and never again with {directory}",
    )


@contextmanager
def _with_client() -> Iterator[None]:
    """Say what to install when the client of key-value servers is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise StartupError(
            f"holdmq kv needs the package {error.name}; install it: pip install 'holdmq[kv]'"
        ) from error


@contextmanager
def _opened(given: Given) -> Iterator[KvNodes]:
    with _with_client():
        from holdmq.cli.kv_nodes import connected
    with connected(given.configuration().storage.kv) as nodes:
        yield nodes


def _shards(nodes: KvNodes, prefix: str) -> list[tuple[ShardFacts, KvNode]]:
    from holdmq.cli.kv_shard import read_shard, shard_names
    from storage.kv.core.layout import ShardKeys

    key = ShardKeys(prefix, "").shards
    names = shard_names(nodes.node_of(key).client, key)
    if not names:
        raise StorageError(
            "there is no shard", operation="use", path=key,
            hint="brokers with storage.engine = kv make them, below storage.kv.prefix: is it theirs?",
        )  # fmt: skip
    found = []
    for name in names:
        keys = ShardKeys(prefix, name)
        node = nodes.node_of(keys.tag)
        found.append((read_shard(node.client, keys), node))
    return found


def _evicting(nodes: KvNodes) -> Iterator[KvFinding]:
    """Servers that take away what nobody has deleted."""
    from holdmq.cli.kv_shard import KvFinding

    for node in nodes.nodes:
        policy = node.client.info("memory").get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            what = f"takes any key away when its memory is full: its maxmemory-policy is {policy}"
            yield KvFinding("", node.name, what)


def _read(facts: ShardFacts, node: KvNode) -> tuple[int, list[KvFinding]]:
    """Read every record of a shard; return how many were whole, and what is wrong."""
    from holdmq.cli.kv_records import RecordReading

    with bytes_bar(facts.name) as report:
        reading = RecordReading(node.client, facts, report)
        found = list(reading.run())
    return reading.records, found


def _place_fields(facts: ShardFacts, node: KvNode, nodes: KvNodes) -> dict[str, Any]:
    return {
        "name": facts.name,
        "node": node.name,
        "slot": nodes.slot_of(facts.keys.tag) if nodes.is_cluster else None,
    }


def _check_fields(facts: ShardFacts, node: KvNode, nodes: KvNodes) -> dict[str, Any]:
    return {
        **_place_fields(facts, node, nodes),
        "format": facts.number("format"),
        "owner": facts.state.get("owner", ""),
        "term": facts.number("term"),
        "lease_left_ms": facts.lease_left_ms,
        "epoch": facts.epoch,
        "first": facts.number("first"),
        "end": facts.number("end"),
        "lost_records": facts.number("lost"),
        "queues": len(facts.queues),
    }


def _say_checked(facts: ShardFacts, node: KvNode) -> None:
    left_s = facts.lease_left_ms / 1000
    owner = f"owned by {facts.state.get('owner', '')} for {left_s:.1f} s" if left_s else "owned by nobody"
    log = f"log {facts.number('first')} to {facts.number('end')}, {facts.number('lost')} records lost"
    term = f"term {facts.number('term')}, epoch {facts.epoch}"
    say(f"shard {facts.name}, at {node.name}: {owner}, {term}, {log}")


def _topic_fields(use: TopicUse) -> dict[str, Any]:
    return {
        "topic": use.topic,
        "queues": use.queues,
        "records": use.records,
        "batches": use.batches,
        "bytes": use.bytes,
        "bytes_exact": use.is_exact,
    }


def _node_fields(node: KvNode, shards: list[str]) -> dict[str, Any]:
    memory = node.client.info("memory")
    return {
        "node": node.name,
        "slots": node.slots,
        "keys": node.client.dbsize(),
        "memory_bytes": memory["used_memory"],
        "memory_max_bytes": memory.get("maxmemory", 0),
        "shards": shards,
    }
