"""The history checker finds each breach of the promise, and nothing in a history that keeps it."""

from __future__ import annotations

from itertools import count

from store_history import Attempt, Kind, Queue, StoreHistory

QUEUE: Queue = ("devices", 0)
OTHER: Queue = ("devices", 1)


class Stored:
    """A history of one queue in which everything goes well, until a test makes something go wrong."""

    def __init__(self) -> None:
        self.history = StoreHistory()
        self.log: list[int] = []
        self._fresh = count(1)
        self.history.rose(1, 0, 0)

    def attempt(self, producer: str, queue: Queue = QUEUE, size: int = 1) -> Attempt:
        return self.history.attempt(producer, queue, [next(self._fresh) for _ in range(size)])

    def append(self, size: int, producer: str = "p", epoch: int = 1) -> Attempt:
        attempt = self.attempt(producer, QUEUE, size)
        self.history.acknowledged(attempt, epoch, len(self.log), 100 * len(self.log))
        self.log += attempt.numbers
        return attempt

    def kinds(self, epoch: int = 1, first_offset: int = 0) -> set[Kind]:
        self.history.final(QUEUE, epoch, first_offset, self.log[first_offset:])
        return {anomaly.kind for anomaly in self.history.anomalies()}


def test_a_history_that_keeps_the_promise_has_no_anomaly() -> None:
    stored = Stored()
    stored.append(3)
    stored.append(2, "q")
    unknown, refused = (stored.attempt("p") for _ in range(2))
    stored.history.refused(refused)
    stored.log += unknown.numbers
    stored.history.read("r", QUEUE, 1, 0, stored.log[:4])
    stored.history.read("r", QUEUE, 1, 4, stored.log[4:])
    assert stored.kinds() == set()
    assert stored.history.counts() == {"acknowledged": 5, "refused": 1, "unknown": 1, "seen": 6}


def test_an_acknowledged_record_that_is_gone_is_lost() -> None:
    stored = Stored()
    stored.append(2)
    stored.log.pop()
    assert stored.kinds() == {Kind.LOST}


def test_a_queue_of_which_nothing_is_said_at_the_end_has_lost_all() -> None:
    stored = Stored()
    stored.history.acknowledged(stored.attempt("p", OTHER, 2), 1, 0, 0)
    assert stored.kinds() == {Kind.LOST}


def test_what_retention_took_is_not_lost() -> None:
    stored = Stored()
    stored.append(4)
    assert stored.kinds(first_offset=3) == set()


def test_a_loss_that_a_rise_reported_with_its_count_is_no_anomaly() -> None:
    stored = Stored()
    stored.append(2)
    stored.append(3)
    stored.history.read("r", QUEUE, 1, 0, stored.log)
    del stored.log[2:]
    stored.history.rose(2, 200, 3)
    stored.history.repositioned("r", QUEUE, 2, 2)
    stored.append(1, epoch=2)
    stored.history.read("r", QUEUE, 2, 2, stored.log[2:])
    assert stored.kinds(epoch=2) == set()


def test_a_rise_that_reports_fewer_than_it_took_is_caught() -> None:
    stored = Stored()
    stored.append(2)
    stored.append(3)
    del stored.log[2:]
    stored.history.rose(2, 200, 2)
    assert stored.kinds(epoch=2) == {Kind.UNDERREPORTED}


def test_a_rise_excuses_nothing_before_its_start() -> None:
    stored = Stored()
    stored.append(1)
    stored.append(1)
    del stored.log[1:]
    stored.history.rose(2, 101, 1)
    assert stored.kinds(epoch=2) == {Kind.LOST}


def test_a_rise_excuses_nothing_that_was_acknowledged_after_it() -> None:
    stored = Stored()
    stored.history.rose(2, 0, 5)
    stored.append(1, epoch=2)
    stored.log.clear()
    assert stored.kinds(epoch=2) == {Kind.LOST}


def test_a_late_owner_that_acknowledges_behind_the_next_epoch_s_start_is_caught() -> None:
    stored = Stored()
    stored.append(1)
    stored.history.rose(2, 100, 0)
    late = stored.attempt("late")
    stored.append(1, epoch=2)
    stored.history.acknowledged(late, 1, 1, 100)
    assert stored.kinds(epoch=2) == {Kind.UNDERREPORTED}


def test_a_record_at_another_offset_than_was_said_has_moved() -> None:
    stored = Stored()
    stored.append(1, "p")
    stored.append(1, "q")
    stored.log.reverse()
    assert Kind.MOVED in stored.kinds()


def test_two_records_at_one_place_of_an_epoch_are_caught() -> None:
    stored = Stored()
    stored.append(1)
    other = stored.attempt("q")
    stored.history.read("r", QUEUE, 1, 0, other.numbers)
    assert Kind.INCONSISTENT in stored.kinds()


def test_two_acknowledgements_of_one_place_are_caught_without_a_reader() -> None:
    stored = Stored()
    stored.append(1)
    stored.history.acknowledged(stored.attempt("q"), 1, 0, 0)
    assert Kind.INCONSISTENT in stored.kinds()


def test_a_record_that_is_stored_twice_is_caught() -> None:
    stored = Stored()
    stored.log += stored.append(1).numbers
    assert stored.kinds() == {Kind.DUPLICATE}


def test_a_refused_record_that_is_read_is_caught() -> None:
    stored = Stored()
    refused = stored.attempt("p")
    stored.history.refused(refused)
    stored.log += refused.numbers
    assert stored.kinds() == {Kind.ABORTED_READ}


def test_a_record_of_nobody_and_one_of_another_queue_are_phantoms() -> None:
    for number in (77, 1):
        stored = Stored()
        assert stored.attempt("p", OTHER, 1).numbers == [1]
        stored.log.append(number)
        assert stored.kinds() == {Kind.PHANTOM}


def test_a_producer_s_records_out_of_its_order_are_caught() -> None:
    stored = Stored()
    first, second = (stored.attempt("p") for _ in range(2))
    stored.log += [*second.numbers, *first.numbers]
    assert stored.kinds() == {Kind.DISORDER}


def test_records_of_two_producers_may_come_in_any_order() -> None:
    stored = Stored()
    first, second = stored.attempt("p"), stored.attempt("q")
    stored.log += [*second.numbers, *first.numbers]
    assert stored.kinds() == set()


def test_a_reader_that_misses_records_is_caught_unless_it_was_told_to() -> None:
    for is_told in (False, True):
        stored = Stored()
        stored.append(3)
        stored.history.read("r", QUEUE, 1, 0, stored.log[:1])
        if is_told:
            stored.history.repositioned("r", QUEUE, 1, 2)
        stored.history.read("r", QUEUE, 1, 2, stored.log[2:])
        assert stored.kinds() == (set() if is_told else {Kind.SKIPPED})


def test_a_reader_that_is_given_a_record_again_or_an_older_epoch_is_caught() -> None:
    for again in ((1, 0), (0, 1)):
        stored = Stored()
        stored.append(2)
        stored.history.read("r", QUEUE, 1, 0, stored.log[:1])
        epoch, offset = again
        stored.history.read("r", QUEUE, epoch, offset, stored.log[offset : offset + 1])
        assert stored.kinds() == {Kind.WENT_BACK}


def test_what_was_read_and_is_gone_is_caught_even_if_its_producer_never_heard_of_it() -> None:
    stored = Stored()
    unknown = stored.attempt("p")
    stored.history.read("r", QUEUE, 1, 0, unknown.numbers)
    assert stored.kinds() == {Kind.UNSEEN}
    stored.history.rose(2, 0, 1)
    assert stored.kinds(epoch=2) == set()


def test_epochs_that_fall_or_begin_at_two_places_are_caught() -> None:
    stored = Stored()
    stored.history.rose(3, 100, 0)
    stored.history.rose(2, 100, 0)
    assert stored.kinds() == {Kind.EPOCH}
    stored = Stored()
    stored.history.rose(1, 5, 0)
    assert stored.kinds() == {Kind.EPOCH}


def test_an_anomaly_says_what_and_where_in_a_sentence() -> None:
    stored = Stored()
    stored.append(1)
    stored.log.clear()
    stored.kinds()
    (anomaly,) = stored.history.anomalies()
    assert str(anomaly) == f"{Kind.LOST.value}: 1 at 0 of ('devices', 0), acknowledged in epoch 1"
