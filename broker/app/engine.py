"""Which engine keeps a broker's messages, and how it is opened."""

from __future__ import annotations

import asyncio

from broker.topics.core.table import TopicTable
from holdmq.config.model import Config
from storage.log.store import LogStore, open_store


def engine_of(config: Config, table: TopicTable) -> LogStore:
    """Make the store of a configuration; the caller opens it (blocking) before anything else."""
    return open_store(
        config.storage,
        config.broker.name,
        table.key_levels,
        asyncio.get_running_loop().call_soon_threadsafe,
        accept_backup=config.storage.accept_backup,
        is_table=table.is_table,
    )
