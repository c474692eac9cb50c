"""Records that say which queues are given up."""

from __future__ import annotations

import numpy as np
import pytest

from holdmq.errors import RecordError
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun, sizes_of
from storage.core.stamper import Stamper
from storage.log.retention.core.deleted import DELETED_TOPIC, DeletedQueue, deletions_batch, deletions_in


def stamped(batch: Batch) -> Batch:
    batch.position, batch.store_ms = 1_000, 5
    for run in batch.runs:
        run.base_offset = 0
    Stamper().stamp(batch, bytes(8))
    return batch


def test_what_is_said_is_read_with_the_place_of_its_record() -> None:
    queues = [DeletedQueue("t", 3, 2**40), DeletedQueue("%RETRY%g", 0, 0), DeletedQueue("löschen", 1, 7)]
    batch = stamped(deletions_batch(queues, 5))
    found = deletions_in(batch)
    assert [queue._replace(position=-1) for queue in found] == queues
    assert [queue.position for queue in found] == (batch.starts + 1_000).tolist()


def test_records_of_other_topics_say_nothing_of_it() -> None:
    records = [encode_record(b"t", 0, b"x", b"", 5), encode_record(b"u", 0, b"x", b"", 5)]
    runs = [BatchRun("t", 0, 1), BatchRun("u", 0, 1)]
    batch = Batch(memoryview(bytearray().join(records)), sizes_of(records), runs)
    assert deletions_in(batch) == []


@pytest.mark.parametrize("body", [b"", bytes(11), bytes(12)])
def test_a_record_that_is_cut_is_refused(body: bytes) -> None:
    record = encode_record(DELETED_TOPIC.encode(), 0, body, b"", 5)
    batch = Batch(
        memoryview(bytearray(record)), np.array([len(record)], np.int64), [BatchRun(DELETED_TOPIC, 0, 1)]
    )
    with pytest.raises(RecordError, match="cut"):
        deletions_in(batch)
