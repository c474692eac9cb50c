"""Records read back from disk, cut into the batches and runs that `broker.core.readers` scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdmq.record_batch import Ints, decode_columns, split_records, starts_of, tag_hashes
from storage.store import Batch, Run


def batches_of(
    parts: Sequence[memoryview], positions: Sequence[int], key_levels: Callable[[str], int]
) -> list[Batch]:
    """One batch per part (whole records at a log position), a run per stretch of one topic.

    Queue ids and queue offsets of the runs are not filled: readers do not look at them.
    """
    batches = []
    for part, position in zip(parts, positions, strict=True):
        sizes = split_records(part)
        if not len(sizes):
            continue
        batch = Batch(part, sizes, _runs(part, sizes, key_levels))
        batch.position = position
        batches.append(batch)
    return batches


def _runs(part: memoryview, sizes: Ints, key_levels: Callable[[str], int]) -> list[Run]:
    starts = starts_of(sizes)
    columns = decode_columns(part, starts, sizes)
    topics = [
        bytes(part[begin : begin + size])
        for begin, size in zip(columns.topic_start.tolist(), columns.topic_size.tolist(), strict=True)
    ]
    runs: list[Run] = []
    first = 0
    for last in range(1, len(topics) + 1):
        if last < len(topics) and topics[last] == topics[first]:
            continue
        name = topics[first].decode()
        run = Run(name, -1, last - first, key_levels(name))
        run.hashes = tag_hashes(part, starts[first:last], sizes[first:last], run.key_levels)
        runs.append(run)
        first = last
    return runs
