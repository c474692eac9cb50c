"""What replication needs of a log that is one copy of several: all have the same bytes at the same positions.

Replication decides, the log carries out: what is confirmed, what is cut, which epoch begins where. Positions
are log offsets. Calls belong on the event loop unless they say that they block; `done` is called there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from holdmq.errors import FewReplicasError, StorageError


class Epoch(NamedTuple):
    """An epoch of a log and the position at which it began."""

    epoch: int
    start: int


class LogBytes(NamedTuple):
    """What lies in the log from `position` to `end`: whole records of one epoch and one segment, or a blank.

    `parts` are the bytes, one after the other: views of the log's own memory, not to be written. A blank
    closes its segment; it comes alone, and as its first 8 bytes only, for what follows them is known.
    """

    position: int
    end: int
    parts: Sequence[memoryview]


Done = Callable[[StorageError | None], object]
"""Called on the loop, once: None = it is done, durably where the call says so."""

QueueEnds = Mapping[tuple[str, int], int]
"""Next queue offset by topic and queue id."""


class TableSnapshot(NamedTuple):
    """All tables of a log below `position`, as a file of `size` bytes that its leader has.

    Records of rows that the log gave up are in it alone: a copy that begins where the leader's log begins
    needs it, or lacks them. So it is with the topics of a log that had one copy: its records begin before
    what the log says of them.
    """

    name: str
    position: int
    size: int


class LogStart(NamedTuple):
    """Where an empty copy begins, as the leader says it.

    `position` is where the leader's log begins, `epochs` are those of the leader's that began at or below it,
    `queue_ends` what `ReplicatedLog.queue_ends` gave: queues go on there that have no record behind it.
    `tables` were received before (`ClosedLog.receive`; None = there are none).
    """

    store_id: bytes
    position: int
    epochs: Sequence[Epoch]
    queue_ends: QueueEnds
    tables: TableSnapshot | None = None


class ReplicatedLog(Protocol):
    """An open log of a replica. It opens as a copy, and everything behind its checkpoint is unconfirmed.

    Whether it leads or copies, readers, indexes, tables, timers and checkpoints see what is confirmed and
    nothing else. first ≤ confirmed ≤ written ≤ appended, and synced ≤ written.
    """

    @property
    def store_id(self) -> bytes:
        """8 bytes that all copies of a shard have in common."""

    @property
    def incarnation(self) -> bytes:
        """16 bytes of this directory alone: others when it was emptied, or restored from a backup."""

    @property
    def first_position(self) -> int:
        """Where the log begins."""

    @property
    def appended_position(self) -> int:
        """Behind the last byte that the log was given. It falls when a full disk takes appends back."""

    @property
    def written_position(self) -> int:
        """Behind the last byte that the disk's cache has: what copies are given. Any thread may read it."""

    @property
    def synced_position(self) -> int:
        """Behind the last byte that is certainly on disk. Any thread may read it."""

    @property
    def durable_position(self) -> int:
        """Up to where this copy counts: the synced position under flush = sync, else the written one."""

    @property
    def confirmed_position(self) -> int:
        """Up to where readers see the log. Any thread may read it."""

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes nothing any more until the process is started again; None = it does."""

    @property
    def writing_ms(self) -> float:
        """How long the oldest batch that is not written has waited; 0 = none waits. A stuck disk shows."""

    @property
    def epochs(self) -> Sequence[Epoch]:
        """All epochs of the log, ascending: the last one is the one that it is in."""

    @property
    def is_whole(self) -> bool:
        """Whether this copy surely has everything that it has acknowledged.

        True at an open: it was noted (`trust`), and nothing can have gone since, because what is
        acknowledged is fsynced, the log was closed cleanly, or the machine has not been started again;
        and the start cut no whole record behind a damaged one.
        """

    def watch(self, moved: Callable[[], object]) -> None:
        """Call `moved` on the loop after written, synced or confirmed has moved, or appends were refused."""

    # What replication notes

    def trust(self, is_whole: bool, done: Done) -> None:
        """Note durably whether the copy has everything that it can ever have acknowledged.

        A new directory has not until it is noted.
        """

    def begin_epoch(self, epoch: int, done: Done) -> None:
        """Note durably that `epoch` begins at the appended position; call it when all of that is written.

        Nothing may be appended before `done`. StorageError for an epoch that is not above the last one.
        """

    # Leading

    def begin_leading(self) -> None:
        """Take appends from now on; they go on at the log's end, in the log's last epoch."""

    def stop_appends(self) -> None:
        """Take no more appends: NotLeaderError. Those under way are still confirmed."""

    def refuse_appends(self, why: FewReplicasError) -> None:
        """Refuse appends until `take_appends` or `begin_leading`. Those under way are still confirmed."""

    def take_appends(self) -> None:
        """Take appends again, after `refuse_appends`."""

    @property
    def refused_for_copies(self) -> int:
        """How many records `refuse_appends` has had refused since the open. Any thread may read it."""

    def end_leading(self) -> None:
        """Become a copy. Who waits for a confirmation is told that its outcome is unknown: ShardLostError."""

    def keep_from(self, position: int | None) -> None:
        """Keep what copies fetch: the log from `position` on; None = nobody fetches anything.

        A disk that is filled above storage.disk_early_percent comes first: such a copy begins anew then.
        """

    def queue_ends(self) -> QueueEnds:
        """The next queue offset of every queue that was ever written to, for `LogStart`."""

    def table_snapshot(self) -> TableSnapshot | None:
        """Blocking: name the newest snapshot of the tables; None = there is none, nor need for one."""

    def read_snapshot(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Blocking: read of the snapshot of that name. StorageError when a newer one has taken its place."""

    def read_bytes(self, position: int, max_bytes: int) -> LogBytes | None:
        """Read what follows `position`, a boundary of records, below the written position, from memory.

        None = it is not in memory: ask `read_bytes_cold`. Never across an epoch's start or a segment's end;
        at least one record, if longer than `max_bytes`. Empty at the written position.
        """

    def read_bytes_cold(self, position: int, max_bytes: int) -> LogBytes:
        """Blocking: as `read_bytes`, from the files; call it on a reader pool.

        Raises BehindError when retention has passed the position, CorruptRecordError for damage there.
        """

    # Copying

    def append_copied(self, data: memoryview, position: int, done: Done) -> int:
        """Write what a leader's `read_bytes` gave for the appended position; the new appended position.

        `data` is all parts, joined, and the log's own from now on. `done` is called when the bytes are
        written, under flush = sync fsynced; it gets a StorageError when the disk fails, and the bytes are
        fetched again from the appended position. Raises, with nothing written: UsageError when this log
        leads, or `position` is not its end; CorruptRecordError for bytes that are damaged, of another store
        or place, or do not follow what is here; StorageError when this log takes nothing.
        """

    def drop_below(self, position: int) -> None:
        """Let old segments go that end at or below `position`, where the leader's log begins.

        Nothing else removes them while this log is a copy.
        """

    # Both

    def confirm_to(self, limit: int) -> None:
        """Confirm what is durable here and ends at or below `limit`, now or once it is; it never falls."""


class ClosedLog(Protocol):
    """A replica's log while no store has it open. Every call blocks and raises StorageError."""

    def cut(self, position: int, epochs_kept: int) -> None:
        """Cut the log at `position`, a boundary of records at or above what is confirmed.

        Consume queues, checkpoint and the other derived files are cut with it; of the epochs the first
        `epochs_kept` stay. What was cut is kept in cut/.
        """

    def receive(self, data: bytes, offset: int) -> None:
        """Write bytes of the leader's snapshot of tables, from offset 0 on, beside what is here."""

    def start_over(self, start: LogStart) -> None:
        """Give up everything in the directory, and begin an empty log of another store, or further on."""
