"""Which engine keeps a broker's messages, and how it is opened: nothing above it knows which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.alerts.statistics_calls import BusySegment
from broker.state.home import StateHome
from broker.topics.core.table import TopicTable
from broker.topics.logged_topics import LoggedTopics
from holdmq.config.model import Config
from holdmq.errors import ConfigError, ShardLostError, StorageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.files.disk import Disk, RealDisk
from holdmq.files.private_directory import close_to_others
from storage.api.replication import ReplicatedLog
from storage.api.store import NO_LOSS, OrderedStore, RecordLoss
from storage.log.state.core.files import LoggedFiles
from storage.log.state.disk import LogDisk
from storage.log.state.following import LoggedState
from storage.log.store import open_store

NEEDED_FILES: Final = ("topic.json", "subscriptionGroup.json", "consumerOffset.json")
"""What a store that has records has, unless somebody lost it."""
ANNOUNCE_S: Final = 60.0
"""How long a start waits until its log says again which queues were deleted: 100,000 at most."""
TABLES_S: Final = 600.0
"""How long a start waits until the tables are written down once: 10 GiB of them on a slow disk."""


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
    is_state_in_log: bool
    """Whether that is the log: what is saved there makes it grow."""
    is_topics_inside: bool
    """Whether `disk` can be read only once the store is open, and `prepare` was called."""
    prepare: Callable[[], None]
    """Puts the state files where they belong, over the open store. Blocking; HoldMQError."""
    busy_segments: Callable[[], Sequence[BusySegment]]
    """The parts of the log that are read from the disk now."""
    account_for_loss: Callable[[], int]
    """Says, after the shard was lost, how many confirmed records are gone. Blocking."""
    loss: Callable[[], RecordLoss]
    """What the store lost last of what was confirmed; never waits."""
    where: str
    """Where the store is, for people."""
    replicated: ReplicatedLog | None = None
    """The log as replication moves it; None = it has no copies."""
    made_ms: Callable[[], int] = lambda: 0
    """When the store was made, ms since the epoch, once it is open; 0 = nobody knows."""


def engine_of(
    config: Config,
    table: TopicTable,
    lost: Callable[[ShardLostError], None],
    is_home: bool,
    wanted_back: Callable[[], None],
    is_state_in_log: bool = False,
    owned_for_s: Callable[[], float] | None = None,
) -> StorageEngine:
    """Make the store of a configuration; the caller opens it (blocking) before anything else.

    `is_state_in_log`: what the rooms know is in the log itself, as copies of it need; what is in files of an
    earlier start moves there, and back when this one wants files. `owned_for_s`: the log is one copy of
    several, and this says for how long no other one can lead; None = it is the only one. `lost` is called on
    the loop when the store is not this process's any more; `wanted_back` when the shard is another broker's
    (not `is_home`), and that broker is back.
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
        return StorageEngine(
            kv, kv.disk, False, True, _nothing, list, kv.count_loss, kv.loss, kv.server.where
        )
    disk = RealDisk()
    root = Path(config.storage.data_dir)
    home = StateHome(root / "config", disk)
    is_moving = is_state_in_log or home.is_marked()
    accept_backup = config.storage.accept_backup
    kept = KeptInLog(table, root, home, accept_backup) if is_moving else None
    store = open_store(
        config.storage,
        name,
        table.key_levels,
        post,
        accept_backup=accept_backup,
        is_table=table.is_table,
        state=None if kept is None else kept.state,
        is_replicated=owned_for_s is not None,
        owned_for_s=owned_for_s,
    )
    close_to_others(root, "format.json")
    logged: Disk | None = None
    prepare = _nothing
    if kept is not None:
        logged = LogDisk(kept.state.files, store.append_state, post, lambda: store.synced_position, root)
        prepare = partial(kept.prepare, logged, is_state_in_log, store, post)
    return StorageEngine(
        store,
        logged if logged is not None and is_state_in_log else disk,
        is_state_in_log,
        is_moving,
        prepare,
        lambda: store.chunks.activity.rates,
        lambda: 0,
        lambda: NO_LOSS,
        config.storage.data_dir,
        store.replicated,
        lambda: store.made_ms,
    )


class StateTakingStore(Protocol):
    """A store into whose log the broker's state moves."""

    @property
    def confirmed_position(self) -> int:
        """The log offset up to which records are visible."""

    def announce_deletions(self, done: Callable[[StorageError | None], None]) -> None:
        """Let the log say which queues were given up before it had the state."""

    def keep_tables(self, done: Callable[[StorageError | None], None]) -> None:
        """Let a snapshot of the tables hold what is confirmed, for copies that begin with it."""


class KeptInLog:
    """State files in a log: what they say of topics is known while it is read."""

    def __init__(self, table: TopicTable, root: Path, home: StateHome, accept_backup: bool) -> None:
        path = root / "config" / "topic.json"
        files = LoggedFiles()
        self.topics = LoggedTopics(table, str(path.relative_to(root)), path, files.content)
        self.state = LoggedState(files, self.topics.changed)
        self._home = home
        self._accept_backup = accept_backup
        if not home.is_log():
            # What the log may have is of an earlier time.
            self.topics.stop()
            loaded = AtomicFile(path, RealDisk()).load(accept_backup)
            if loaded is not None:
                table.load(loaded.content, loaded.data_version, str(path))

    def prepare(
        self,
        logged: Disk,
        is_state_in_log: bool,
        store: StateTakingStore,
        post: Callable[[Callable[[], object]], object],
    ) -> None:
        """Move the files where they belong; from now on the table of topics is its owner's. Blocking.

        Raises StoreFormatError when somebody has lost them. Nobody takes a single one out of a log, so what
        is missing there was never made; without any of them a log has no records.
        """
        self.topics.stop()
        if is_state_in_log:
            if not self._home.is_log():
                if store.confirmed_position > 0 and not self._accept_backup:
                    self._home.refuse_without(NEEDED_FILES)
                _await(store.announce_deletions, post, ANNOUNCE_S)
            elif self.state.files.is_empty and store.confirmed_position > 0 and not self._accept_backup:
                self._home.refuse_without(NEEDED_FILES)
            self._home.move_into_log(
                logged, self._accept_backup, partial(_await, store.keep_tables, post, TABLES_S)
            )
        else:
            self._home.move_out_of_log(logged)


def _await(
    ask: Callable[[Callable[[StorageError | None], None]], None],
    post: Callable[[Callable[[], object]], object],
    timeout_s: float,
) -> None:
    """Ask on the event loop for what takes a while, and wait for it. Blocking. StorageError, TimeoutError."""
    told: Future[StorageError | None] = Future()
    post(partial(ask, told.set_result))
    error = told.result(timeout_s)
    if error is not None:
        raise error


def _nothing() -> None:
    """There is nothing to prepare."""
