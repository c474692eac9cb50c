"""What a log store shows of itself: counters (names in _total) and gauges for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.log.store import LogStore


def numbers_of(store: LogStore) -> dict[str, float]:
    """All numbers of `store`, by metric name without its prefix; called on any thread."""
    writer, flusher = store.writer, store.flusher
    return {
        "appends_total": store._appends,
        "records_total": store._records,
        "bytes_total": store._bytes,
        "refused_batches_total": store._refused,
        "rollbacks_total": store._rollbacks,
        "write_groups_total": writer.groups,
        "fsyncs_total": writer.fsyncs + flusher.fsyncs,
        "blanks_total": writer.blanks,
        "index_writes_total": store._files.writes,
        "index_failures_total": flusher.index_failures,
        "checkpoints_total": flusher.checkpoints,
        "memory_reads_total": store._memory_reads,
        "tail_hits_total": store._tail_reads,
        "tail_misses_total": store._tail_misses,
        "cold_reads_total": store._cold_reads,
        **store.chunks.numbers(),
        **store.sidecars.numbers(),
        **store.temporary.numbers(),
        "corrupt_reads_total": store._reader.corrupt,
        "behind_reads_total": store._behind_reads,
        "recovery_cut_bytes": store.cut_bytes,
        "pending_batches": len(store._pending),
        "pending_bytes": store._pending_bytes,
        "tail_bytes": store._tail.size_bytes,
        "tail_batches": len(store._tail),
        "queues": len(store._queues),
        "segments": len(store._segments.table),
        "confirmed_position": store.confirmed_position,
        "synced_position": writer.synced,
        "indexed_position": flusher.indexed,
        "epoch": store.epoch,
        "writable": float(store.state().ok),
        **store.derived.numbers(),
        **store.retention.numbers(),
        **store._keys.numbers(),
    }
