"""Which engine keeps a broker's messages, and how it is opened: nothing above it knows which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.alerts.statistics_calls import BusySegment
from broker.topics.core.table import TopicTable
from holdmq.config.model import Config
from holdmq.errors import ConfigError, ShardLostError
from holdmq.files.disk import Disk, RealDisk
from holdmq.files.private_directory import close_to_others
from storage.api.store import NO_LOSS, OrderedStore, RecordLoss
from storage.log.store import open_store


class OpenableStore(OrderedStore, Protocol):
    """A store with its life; both methods block."""

    def open(self) -> None:
        """Open it. Raises StorageError."""

    def close(self) -> None:
        """Finish what is under way, and end."""


class StorageEngine(NamedTuple):
    """A broker's store, and what depends on which engine it is."""

    store: OpenableStore
    disk: Disk
    """Where the broker's rooms have their state files."""
    is_topics_inside: bool
    """Whether `disk` can be read only once the store is open."""
    busy_segments: Callable[[], Sequence[BusySegment]]
    """The parts of the log that are read from the disk now."""
    account_for_loss: Callable[[], int]
    """Says, after the shard was lost, how many confirmed records are gone. Blocking."""
    loss: Callable[[], RecordLoss]
    """What the store lost last of what was confirmed; never waits."""
    where: str
    """Where the store is, for people."""


def engine_of(
    config: Config,
    table: TopicTable,
    lost: Callable[[ShardLostError], None],
    is_home: bool,
    wanted_back: Callable[[], None],
) -> StorageEngine:
    """Make the store of a configuration; the caller opens it (blocking) before anything else.

    `lost` is called on the loop when the store is not this process's any more; `wanted_back` when the shard
    is another broker's (not `is_home`), and that broker is back.
    """
    post = asyncio.get_running_loop().call_soon_threadsafe
    name = config.broker.name
    if config.storage.engine == "kv":
        try:
            # An extra: brokers of the log engine need no client of a key-value server.
            from storage.kv.store import KvStore
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"storage.engine = kv needs the package {error.name}; install it: pip install 'holdmq[kv]'"
            ) from error
        kv = KvStore(
            config.storage,
            name,
            table.key_levels,
            post,
            is_table=table.is_table,
            lost=lost,
            is_home=is_home,
            wanted_back=wanted_back,
        )
        return StorageEngine(kv, kv.disk, True, list, kv.count_loss, kv.loss, kv.server.where)
    store = open_store(
        config.storage,
        name,
        table.key_levels,
        post,
        accept_backup=config.storage.accept_backup,
        is_table=table.is_table,
    )
    close_to_others(Path(config.storage.data_dir), "format.json")
    return StorageEngine(
        store,
        RealDisk(),
        False,
        lambda: store.chunks.activity.rates,
        lambda: 0,
        lambda: NO_LOSS,
        config.storage.data_dir,
    )
