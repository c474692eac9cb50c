from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import structlog

from holdmq.errors import Code, RemoteError, TransportError, WireError
from holdmq.message import TopicQueue
from holdmq.wire.column_headers import COLUMNS_QUEUES_MAX, ColumnQueue
from holdmq.wire.headers import PulledQueue
from spark_streaming.source.offsets import FROM_FIRST, OffsetRange
from spark_streaming.source.ranges import DataLossError, RangeReader
from spark_streaming.source.replica_pulls import PulledColumns

EPOCH = 5
Script = Callable[[ColumnQueue], PulledQueue | Exception]


class Pulls:
    """Answers pulls from a script, without columns."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.asked: list[list[ColumnQueue]] = []

    def pull(self, broker: str, queues: Sequence[ColumnQueue]) -> PulledColumns:
        self.asked.append(list(queues))
        script = self.scripts.pop(0)
        rows = []
        for queue in queues:
            row = script(queue)
            if isinstance(row, Exception):
                raise row
            rows.append(row)
        return PulledColumns(rows, (), [], EPOCH)


def answer(status: Code = Code.OK, records: int = 0, next_offset: int = -1, end: int = 1000) -> Script:
    def script(queue: ColumnQueue) -> PulledQueue:
        following = queue.offset + records if next_offset < 0 else next_offset
        return PulledQueue(queue.topic, queue.queue_id, status, following, 0, end, records, records)

    return script


def fails(error: Exception) -> Script:
    return lambda _: error


def reader(pulls: Pulls, *wanted: OffsetRange, fail: bool = True, timeout_s: float = 10) -> RangeReader:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    return RangeReader(
        pulls, wanted, fail_on_data_loss=fail, timeout_s=timeout_s, clock=lambda: clock[0], sleep=sleep
    )


def one(start: int, end: int, queue_id: int = 0) -> OffsetRange:
    return OffsetRange(TopicQueue("t", "b", queue_id), 3, start, end)


def counts(found: RangeReader) -> list[int]:
    return [part.records for answer in found for part in answer.parts]


def test_a_range_is_asked_for_until_its_end_is_there() -> None:
    pulls = Pulls(answer(records=4), answer(records=6))
    assert counts(reader(pulls, one(10, 20))) == [4, 6]
    # The first ask claims the epoch of the checkpoint, later ones that of the last answer.
    assert pulls.asked == [[ColumnQueue("t", 0, 3, 10, 20)], [ColumnQueue("t", 0, EPOCH, 14, 20)]]


def test_queues_that_an_answer_had_no_room_for_are_asked_again() -> None:
    pulls = Pulls(answer(records=5), answer(records=5))
    whole = pulls.pull

    def short(broker: str, queues: Sequence[ColumnQueue]) -> PulledColumns:
        return whole(broker, queues)._replace(queues=whole_rows(queues)[:1])

    def whole_rows(queues: Sequence[ColumnQueue]) -> list[PulledQueue]:
        return [PulledQueue(q.topic, q.queue_id, 0, q.offset + 5, 0, 99, 5, 5) for q in queues]

    pulls.pull = short  # type: ignore[method-assign]
    assert counts(reader(pulls, one(0, 5, 0), one(0, 5, 1))) == [5, 5]
    assert [[q.queue_id for q in asked] for asked in pulls.asked] == [[0, 1], [1]]


def test_more_queues_than_one_pull_may_name_are_read_in_groups() -> None:
    wanted = [one(0, 1, i) for i in range(COLUMNS_QUEUES_MAX + 1)]
    pulls = Pulls(answer(records=1), answer(records=1))
    assert sum(counts(reader(pulls, *wanted))) == COLUMNS_QUEUES_MAX + 1
    assert [len(asked) for asked in pulls.asked] == [COLUMNS_QUEUES_MAX, 1]


def test_a_broker_that_comes_back_is_read_on() -> None:
    gone = fails(TransportError("refused"))
    pulls = Pulls(answer(records=4), gone, gone, gone, answer(records=6))
    assert counts(reader(pulls, one(0, 10))) == [4, 6]


def test_a_broker_that_stays_away_fails_the_task_after_the_timeout() -> None:
    pulls = Pulls(*[fails(TransportError("refused"))] * 100)
    with pytest.raises(TransportError, match="broker b gave no records for 10 s: refused"):
        counts(reader(pulls, one(0, 10)))
    assert len(pulls.asked) > 5


def test_a_broker_that_answers_without_records_is_not_asked_without_a_pause() -> None:
    pulls = Pulls(*[answer(next_offset=4)] * 4, answer(records=6))
    found = reader(pulls, one(4, 10), timeout_s=2)
    assert counts(found) == [6]
    with pytest.raises(TransportError, match="it has them, but answers without any"):
        counts(reader(Pulls(*[answer(next_offset=4)] * 100), one(4, 10)))


def test_records_that_the_tags_left_nothing_of_are_passed() -> None:
    pulls = Pulls(answer(next_offset=15, end=20), answer(next_offset=20, end=20))
    with structlog.testing.capture_logs() as said:
        assert counts(reader(pulls, one(10, 20))) == []
    assert said == []


def test_an_answer_for_queues_that_were_not_asked_for_is_refused() -> None:
    pulls = Pulls(lambda _: PulledQueue("other", 0, 0, 5, 0, 9, 5, 5))
    with pytest.raises(WireError, match="rows of other/0, which it was not asked for"):
        counts(reader(pulls, one(0, 5)))


def test_a_refusal_that_waiting_does_not_mend_is_raised_at_once() -> None:
    pulls = Pulls(fails(RemoteError(Code.NOT_PERMITTED, "no")))
    with pytest.raises(RemoteError, match="NOT_PERMITTED"):
        counts(reader(pulls, one(0, 10)))


def test_retention_that_overtook_the_query_names_topic_queue_and_offsets() -> None:
    pulls = Pulls(answer(Code.OFFSET_BEHIND, next_offset=7))
    with pytest.raises(DataLossError, match=r"topic t, queue 0 at broker b: records 2 to 6 are gone"):
        counts(reader(pulls, one(2, 10)))


def test_retention_that_overtook_the_query_is_counted_when_told() -> None:
    pulls = Pulls(answer(Code.OFFSET_BEHIND, next_offset=7), answer(records=3))
    found = reader(pulls, one(2, 10), fail=False)
    assert counts(found) == [3]
    assert found.lost == 5


def test_a_new_queue_whose_first_records_went_loses_nothing() -> None:
    pulls = Pulls(answer(Code.OFFSET_BEHIND, next_offset=7), answer(records=3))
    assert counts(reader(pulls, one(FROM_FIRST, 10))) == [3]
    assert pulls.asked[0][0].offset == 0


@pytest.mark.parametrize("status", [Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN])
def test_a_deleted_queue_is_a_loss(status: Code) -> None:
    with pytest.raises(DataLossError, match="the queue was deleted"):
        counts(reader(Pulls(answer(status, next_offset=0)), one(2, 10)))
    found = reader(Pulls(answer(status, next_offset=0)), one(2, 10), fail=False)
    assert counts(found) == []
    assert found.lost == 8


def test_damage_is_a_loss_and_reading_goes_on_after_it() -> None:
    found = reader(Pulls(answer(Code.CORRUPT, next_offset=5), answer(records=5)), one(2, 10), fail=False)
    assert counts(found) == [5]
    assert found.lost == 3


def test_what_took_the_place_of_cut_records_is_read() -> None:
    pulls = Pulls(answer(Code.OFFSET_AHEAD, next_offset=5), answer(records=7))
    assert counts(reader(pulls, one(8, 12))) == [7]
    assert pulls.asked[1] == [ColumnQueue("t", 0, EPOCH, 5, 12)]


def test_a_log_that_is_still_shorter_than_the_offset_is_read_from_its_cut() -> None:
    pulls = Pulls(answer(Code.OFFSET_AHEAD, next_offset=5), answer(records=1))
    assert counts(reader(pulls, one(8, 6))) == [1]
    assert counts(reader(Pulls(answer(Code.OFFSET_AHEAD, next_offset=6)), one(8, 6))) == []


def test_a_log_cut_below_the_planned_end_ends_the_range() -> None:
    pulls = Pulls(answer(records=2, end=10), answer(end=10))
    assert counts(reader(pulls, one(8, 12))) == [2]
