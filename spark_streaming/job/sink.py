"""The Delta table that batches are written to, each exactly once.

A micro-batch is replayed after a crash with the same id and the same records. The commit that carries its
rows also carries (app, batch id) as a Delta application transaction; a batch whose id is not above the
newest one of its app is already there, and is skipped.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

MAINTENANCE_BATCHES: Final = 50
"""Batches between two rounds of compaction and cleaning: at most this many small files to read."""
FILE_TARGET_BYTES: Final = 8 << 20
"""Size at which a compacted file is left alone: bounds what a round rewrites to a fraction of a second."""
RETENTION_STEP: Final = dt.timedelta(hours=1)
"""Rows are removed in steps of this: files at the edge are rewritten hourly at most."""

_CONFIGURATION: Final = {
    # Readers are promised ten minutes with a snapshot (docs/spark.md).
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    # A reader needs the log for as long as opening the table takes.
    "delta.logRetentionDuration": "interval 1 minutes",
}
# Checkpoints and cleaning have their own round; a commit that now and then did more would be late.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Sink:
    """One Delta table with one writer, this process."""

    __slots__ = ("_commits", "_expired_to", "_retention", "_table", "path")

    def __init__(self, path: Path, schema: pa.Schema, retention: dt.timedelta) -> None:
        """Open the table at `path`, or create it empty. Rows whose `second` is older than `retention` go."""
        self.path = path
        self._retention = retention
        path.mkdir(parents=True, exist_ok=True)
        self._table = DeltaTable.create(path, schema, mode="ignore", configuration=_CONFIGURATION)
        self._commits = 0
        self._expired_to: dt.datetime | None = None

    def is_empty(self) -> bool:
        """Return whether no batch was ever written."""
        self._table.update_incremental()
        return self._table.version() == 0

    def last_batch(self, app: str) -> int:
        """Return the newest batch id that `app` has written, -1 before the first."""
        self._table.update_incremental()
        found = self._table.transaction_version(app)
        return -1 if found is None else int(found)

    def write(self, app: str, batch_id: int, rows: pa.Table) -> bool:
        """Append `rows` as batch `batch_id` of `app` in one commit; False when they are already there.

        `app` names one checkpoint: batch ids count within it. No rows, no commit.
        """
        if batch_id <= self.last_batch(app):
            return False
        if rows.num_rows:
            write_deltalake(
                self._table,
                rows,
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(app, batch_id)]),
                post_commithook_properties=_NO_HOOKS,
            )
            self._commits += 1
        return True

    def maintain(self, now: dt.datetime) -> bool:
        """Every ``MAINTENANCE_BATCHES`` commits: expire, compact, checkpoint and clean; True if it did.

        Files that are replaced here stay readable for the table's deleted-file retention.
        """
        if self._commits < MAINTENANCE_BATCHES:
            return False
        self._commits = 0
        self._expire(now)
        self._table.optimize.compact(target_size=FILE_TARGET_BYTES, post_commithook_properties=_NO_HOOKS)
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        self._table.vacuum(dry_run=False, post_commithook_properties=_NO_HOOKS)
        return True

    def _expire(self, now: dt.datetime) -> None:
        oldest = now.astimezone(dt.UTC) - self._retention
        step = int(RETENTION_STEP.total_seconds())
        edge = dt.datetime.fromtimestamp(int(oldest.timestamp()) // step * step, dt.UTC)
        if self._expired_to is not None and edge <= self._expired_to:
            return
        # A delete commits even when it finds nothing, and the first one of a process may find nothing to do.
        self._table.delete(_older_than(edge), post_commithook_properties=_NO_HOOKS)
        self._expired_to = edge


def _older_than(edge: dt.datetime) -> str:
    # The literal must have the column's exact type: files are pruned by their statistics without casts.
    literal = f"arrow_cast('{edge.strftime('%Y-%m-%dT%H:%M:%SZ')}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return f"second < {literal}"
