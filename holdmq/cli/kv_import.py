"""The work of `holdmq kv import`: a stopped log engine's store, checked, then copied into a shard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.state.home import StateHome
from broker.topics.core.table import TopicTable
from holdmq.cli.kept_state import state_file
from holdmq.cli.progress import bytes_bar
from holdmq.config.model import StorageSection
from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile
from storage.api.batches import Batch
from storage.core.epochs import Epochs
from storage.kv.importing import ImportSource, ShardImport
from storage.log.offline.state import logged_files
from storage.log.offline.store import Finding, OfflineStore
from storage.log.offline.tables import OfflineTables, opened_tables
from storage.log.offline.verify import Verification
from storage.log.state.core.files import CONFIG_TOPIC


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: counts of this run, bounds of the whole log."""

    broker: str
    store_id: str
    continued: bool
    first: int
    end: int
    records: int
    expired_records: int
    rows: int
    queues: int
    files: int


def import_store(directory: Path, settings: StorageSection, broker: str) -> Imported:
    """Copy a store into the shard of its broker's name. Raises StorageError, before it has written anything
    when the store is open, damaged, or another broker's.
    """
    store = OfflineStore(directory)
    store.open()
    try:
        with opened_tables(directory) as tables:
            return _import(store, tables, settings, broker)
    finally:
        store.close()


def _import(store: OfflineStore, tables: OfflineTables, settings: StorageSection, broker: str) -> Imported:
    topics = _checked(store, broker)
    source = ImportSource(
        store.store_id,
        store.segments.first_position,
        store.clean_end or 0,
        _epochs(store),
        store.checkpoint.queues,
        tables.applied_position,
    )
    if source.rows_applied < source.first_position and source.first_position:
        raise _refused(
            store, "its tables lack what the log no longer has", "start its broker, and stop it again"
        )
    shard = ShardImport(settings, broker, source, topics.key_levels, topics.is_table, _now_ms())
    try:
        shard.open()
        if not shard.has_rows:
            # What the log has of state files is no table of the shard: it gets the files.
            shard.put_rows(row for row in tables.rows() if row.topic != CONFIG_TOPIC)

        def walk(position: int) -> Iterator[Batch]:
            for item in store.walk(topics.key_levels, lambda _done, _total: None, position):
                if isinstance(item, Finding):
                    raise _refused(store, f"{item.path} at {item.offset}: {item.what}", "")
                yield item

        with bytes_bar("import") as report:
            shard.put_log(walk, report)
        files = shard.put_files(_state_files(store))
        shard.finish()
    finally:
        shard.close()
    return Imported(
        broker, store.store_id.hex(), shard.is_continued, source.first_position, source.end, shard.records,
        shard.expired, shard.rows, len(source.queues), files,
    )  # fmt: skip


def _checked(store: OfflineStore, broker: str) -> TopicTable:
    """Look at every byte of a store; its topics when all is whole. Raises StorageError."""
    owner: Any = None
    loaded = AtomicFile(store.directory / "format.json", store.disk).load()
    if loaded is not None:
        owner = loaded.content.get("brokerName")
    if owner != broker:
        raise _refused(
            store,
            f"it is of broker {owner!r}, not of {broker!r}",
            "sessions and routes know a broker by its name: import it under that one",
        )
    if store.checkpoint_problem:
        raise _refused(store, store.checkpoint_problem, "holdmq log verify looks at all of it")
    if store.clean_end is None:
        raise _refused(store, "it was not closed in order", "start its broker, and stop it again")
    topics = TopicTable(1, 1)
    known = state_file(store, "topic.json")
    if known is not None:
        topics.load(known.content, known.data_version, str(store.directory / "config" / "topic.json"))
    with bytes_bar("verify") as report:
        for finding in Verification(store, topics.key_levels).run(report):
            raise _refused(
                store,
                f"it is damaged: {finding.path} at {finding.offset}: {finding.what}",
                f"holdmq log verify {store.directory} names all of it",
            )
    return topics


def _refused(store: OfflineStore, why: str, hint: str) -> StorageError:
    return StoreFormatError(why, operation="import", path=str(store.directory), hint=hint)


def _epochs(store: OfflineStore) -> dict[str, Any]:
    path = store.directory / "epoch.json"
    loaded = AtomicFile(path, store.disk).load()
    return Epochs([]).content() if loaded is None else Epochs.of_content(loaded.content, str(path)).content()


def _state_files(store: OfflineStore) -> Iterator[tuple[str, bytes]]:
    """The state files of the broker's rooms, each with its path below the store."""
    directory = store.directory / "config"
    if StateHome(directory, store.disk).is_log():
        files = logged_files(store)
        for name in sorted(files.names()):
            content = files.content(name)
            if content is not None:
                yield name, content
        return
    for name in sorted(store.disk.list(directory)):
        path = directory / name
        if name.endswith(".tmp") or not path.is_file():
            continue
        yield f"config/{name}", path.read_bytes()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
