"""The log engine's side of replication: `storage.api.replication.ReplicatedLog` on one store's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from holdmq.errors import FewReplicasError, NotLeaderError, ShardLostError, StorageError, UsageError
from storage.api.replication import Done, Epoch, LogBytes, QueueEnds, TableSnapshot
from storage.core.epochs import Epochs
from storage.core.scan import NextOffsets
from storage.log.appends import LogAppends, Post
from storage.log.failures import write_failure
from storage.log.home import StoreDirectory
from storage.log.replicated.copying import CopiedAppends
from storage.log.replicated.gate import ReplicaGate
from storage.log.replicated.identity import ReplicaNote
from storage.log.replicated.raw_reads import RawReader, read_memory
from storage.log.replicated.replaying import Replaying
from storage.log.retention.retention import Retention
from storage.log.segments import Segments
from storage.log.tables.tables import LogTables

log = structlog.get_logger("holdmq.storage")


class ReplicaLog:
    """One open log. `run` does blocking work off the loop, one piece after the other.

    `leads_from`: where the log ended when this replica began to lead; None = it does not. `leads` is called
    when it begins to.
    """

    def __init__(
        self,
        home: StoreDirectory,
        segments: Segments,
        appends: LogAppends,
        gate: ReplicaGate,
        copying: CopiedAppends,
        raw: RawReader,
        replaying: Replaying,
        retention: Retention,
        note: ReplicaNote,
        tables: Callable[[], LogTables | None],
        synced: Callable[[], int],
        leads: Callable[[], object],
        run: Callable[[Callable[[], object]], object],
        post: Post,
    ) -> None:
        self.leads_from: int | None = None
        self._home = home
        self._segments = segments
        self._appends = appends
        self._gate = gate
        self._copying = copying
        self._raw = raw
        self._replaying = replaying
        self._retention = retention
        self._note = note
        self._tables = tables
        self._synced = synced
        self._leads = leads
        self._run = run
        self._post = post
        self._epochs = Epochs([])
        self._is_beginning = False
        self._is_distrusted = False
        gate.watch(self._distrust_failure)

    def open(
        self,
        epochs: Epochs,
        confirmed: int,
        end: int,
        floors: NextOffsets,
        is_clean: bool,
        is_damaged: bool,
    ) -> None:
        """Begin as a copy. Blocking, before anything is written; StorageError and OSError of the disk."""
        self._epochs = epochs
        self._note.open(is_clean, is_damaged)
        self._copying.open(self._home.store_id, floors)
        self._gate.open(confirmed, end)
        self._replaying.open(confirmed, end)
        self._copy("it has not begun to lead")

    def _copy(self, reason: str) -> None:
        self.leads_from = None
        self._appends.not_leading = NotLeaderError(
            f"this replica does not lead: {reason}", operation="append", hint="ask who leads"
        )
        self._retention.leader_first = self._segments.first_position

    # What it is

    @property
    def store_id(self) -> bytes:
        return self._home.store_id

    @property
    def incarnation(self) -> bytes:
        return self._note.incarnation

    @property
    def first_position(self) -> int:
        return self._segments.first_position

    @property
    def appended_position(self) -> int:
        return self._appends.end

    @property
    def written_position(self) -> int:
        return self._gate.written_position

    @property
    def synced_position(self) -> int:
        return min(self._synced(), self._gate.written_position)

    @property
    def durable_position(self) -> int:
        return self._gate.durable_position

    @property
    def confirmed_position(self) -> int:
        return self._appends.confirmed_position

    @property
    def writing_ms(self) -> float:
        return self._appends.writing_ms

    @property
    def epochs(self) -> Sequence[Epoch]:
        return self._epochs.all

    @property
    def is_whole(self) -> bool:
        return self._note.is_whole

    @property
    def failure(self) -> StorageError | None:
        return self._gate.failure

    def watch(self, moved: Callable[[], object]) -> None:
        self._gate.watch(moved)

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges; any thread."""
        return {
            "replica_written_position": self._gate.written_position,
            "replica_copied_batches_total": self._copying.batches,
            "replica_copied_bytes_total": self._copying.bytes,
            "replica_refused_answers_total": self._copying.refused,
            "replica_waits_total": self._copying.waits,
            "replica_whole": float(self._note.is_whole),
            "replica_leads": float(self.leads_from is not None),
        }

    def may_release(self) -> bool:
        """Whether what an earlier leader may have appended is confirmed, and this one appends. Any thread."""
        leads_from = self.leads_from
        return leads_from is not None and self._appends.confirmed_position >= leads_from

    # Notes

    def trust(self, is_whole: bool, done: Done) -> None:
        self._write_down(partial(self._note.save, is_whole), done)

    def _distrust_failure(self) -> None:
        """After a failed fsync nobody knows what is on disk: a start must not believe that all of it is."""
        failure = self._gate.failure
        if failure is not None and failure.operation == "fsync" and not self._is_distrusted:
            self._is_distrusted = True
            self.trust(False, _log_failure)

    def begin_epoch(self, epoch: int, done: Done) -> None:
        end = self._appends.end
        if epoch <= self._epochs.current:
            raise StorageError(
                f"epoch {epoch} is not above {self._epochs.current}", operation="begin epoch", offset=end
            )
        if end != self._gate.durable_position or self._is_beginning:
            raise UsageError("an epoch begins when everything before it is written")
        self._is_beginning = True
        begun = Epochs(list(self._epochs.all))
        begun.begin(epoch, end)
        self._write_down(partial(self._home.save_epochs, begun), partial(self._begun, epoch, end, done))

    def _begun(self, epoch: int, end: int, done: Done, error: StorageError | None) -> None:
        self._is_beginning = False
        if error is None:
            self._epochs.begin(epoch, end)
        done(error)

    def _write_down(self, save: Callable[[], object], done: Done) -> None:
        def work() -> None:
            error: StorageError | None = None
            try:
                save()
            except StorageError as failed:
                error = failed
            except OSError as failed:
                error = write_failure(failed, "write", str(self._home.directory), None)
            self._post(partial(done, error))

        self._run(work)

    # Leading

    def begin_leading(self) -> None:
        appends = self._appends
        for key, following in self._copying.floors.items():
            appends.add_queue(key, following)
        appends.not_leading = appends.few_replicas = None
        self._retention.leader_first = None
        self.leads_from = appends.end
        self._leads()

    def stop_appends(self) -> None:
        self._appends.not_leading = NotLeaderError(
            "this replica stops to lead", operation="append", hint="ask who leads"
        )
        self.leads_from = None

    def refuse_appends(self, why: FewReplicasError) -> None:
        self._appends.few_replicas = why

    def take_appends(self) -> None:
        self._appends.few_replicas = None

    @property
    def refused_for_copies(self) -> int:
        return self._appends.refused_for_copies

    def end_leading(self) -> None:
        self._copy("another one does, or will")
        self._copying.begin()
        self._appends.give_up(
            ShardLostError(
                "another replica leads, and may have it or not", operation="append", hint="send it again"
            )
        )

    def keep_from(self, position: int | None) -> None:
        self._retention.copies_from = position

    def queue_ends(self) -> QueueEnds:
        ends = {key: queue.confirmed for key, queue in self._appends.queues.items()}
        return {**self._copying.floors, **ends}

    def table_snapshot(self) -> TableSnapshot | None:
        tables = self._tables()
        return None if tables is None else tables.newest_snapshot()

    def read_snapshot(self, name: str, offset: int, max_bytes: int) -> bytes:
        tables = self._tables()
        if tables is None:
            raise StorageError("this log has no tables", operation="read", path=name)
        return tables.read_snapshot(name, offset, max_bytes)

    def read_bytes(self, position: int, max_bytes: int) -> LogBytes | None:
        gate = self._gate
        return read_memory(gate.newest, (), gate.written_position, self._epochs.all, position, max_bytes)

    def read_bytes_cold(self, position: int, max_bytes: int) -> LogBytes:
        return self._raw.read(self._epochs.all, position, max_bytes)

    # Copying

    def append_copied(self, data: memoryview, position: int, done: Done) -> int:
        if self._is_beginning:
            raise UsageError("nothing is appended while an epoch begins")
        return self._copying.append(data, position, done)

    def drop_below(self, position: int) -> None:
        retention = self._retention
        if retention.leader_first is not None:
            retention.leader_first = max(retention.leader_first, position)

    # Both

    def confirm_to(self, limit: int) -> None:
        if self._gate.raise_limit(limit):
            self._replaying.go_on()
            self._appends.go_on()


def _log_failure(error: StorageError | None) -> None:
    if error is not None:
        log.error("it could not be noted that this copy does not trust itself", reason=str(error))
