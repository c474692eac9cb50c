"""Producer windows: order over refusals, repeats, epochs, bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.produce.core import sequences
from broker.produce.core.sequences import WINDOW_BATCHES, WINDOW_IDLE_S, Sequences
from holdmq.errors import Code

KEY = (7, "devices", 0)


def accept(table: Sequences, first: int, records: int, epoch: int = 1, base: int | None = None) -> None:
    verdict = table.offer(KEY, epoch, first, records, 0.0)
    assert verdict.code == Code.OK
    assert verdict.accepted is not None
    verdict.accepted.base_offset = first if base is None else base
    verdict.accepted.is_confirmed = True


def test_an_unknown_producer_begins_with_0() -> None:
    table = Sequences()
    assert table.offer(KEY, 1, 500, 3, 0.0).code == Code.OUT_OF_SEQUENCE
    assert not table.consume(KEY, 1, 500, 3, 0.0)
    assert len(table) == 0
    accept(table, 0, 3)
    accept(table, 3, 1)


def test_a_gap_is_refused_until_the_missing_batch_comes() -> None:
    table = Sequences()
    accept(table, 0, 2)
    assert table.offer(KEY, 1, 4, 2, 0.0).code == Code.OUT_OF_SEQUENCE
    accept(table, 2, 2)
    accept(table, 4, 2)


def test_a_repeat_is_answered_with_its_first_offset() -> None:
    table = Sequences()
    accept(table, 0, 2, base=100)
    accept(table, 2, 2, base=110)
    repeat = table.offer(KEY, 1, 0, 2, 0.0).repeat
    assert repeat is not None
    assert repeat.is_confirmed
    assert repeat.base_offset == 100
    assert table.repeats == 1


def test_a_repeat_of_an_unconfirmed_batch_waits_for_it() -> None:
    table = Sequences()
    first = table.offer(KEY, 1, 0, 2, 0.0).accepted
    again = table.offer(KEY, 1, 0, 2, 0.0).repeat
    assert again is first
    assert again is not None
    assert not again.is_confirmed
    again.wait("somebody")
    assert again.take_waiting() == ["somebody"]
    assert again.take_waiting() == []


def test_a_repeat_cut_otherwise_than_the_first_time_is_refused() -> None:
    table = Sequences()
    accept(table, 0, 4)
    assert table.offer(KEY, 1, 2, 2, 0.0).code == Code.OUT_OF_SEQUENCE


def test_what_is_below_next_and_not_remembered_is_never_answered_as_stored() -> None:
    table = Sequences()
    for i in range(WINDOW_BATCHES + 5):
        accept(table, i, 1)
    for first in (0, 3, 4):
        assert table.offer(KEY, 1, first, 1, 0.0).code == Code.OUT_OF_SEQUENCE
    assert table.offer(KEY, 1, 5, 1, 0.0).repeat is not None


def test_a_window_shrinks_again_after_much_was_unconfirmed() -> None:
    table = Sequences()
    batches = [table.offer(KEY, 1, i, 1, 0.0).accepted for i in range(3 * WINDOW_BATCHES)]
    assert table.batches == 3 * WINDOW_BATCHES
    for batch in batches:
        assert batch is not None
        batch.is_confirmed = True
    accept(table, 3 * WINDOW_BATCHES, 1)
    assert table.batches == WINDOW_BATCHES


def test_batches_are_bounded_over_all_windows() -> None:
    table = Sequences(batches_max=10)
    for producer in range(4):
        for i in range(4):
            table.offer((producer, "t", 0), 1, i, 1, 0.0)
    assert table.batches <= 10
    assert table.evicted == 2


def test_a_final_refusal_out_of_turn_consumes_nothing() -> None:
    table = Sequences()
    accept(table, 0, 1)
    table.postpone(KEY, 1, 0, 0.0)
    assert not table.consume(KEY, 1, 2, 1, 0.0)
    accept(table, 1, 1)
    assert table.consume(KEY, 1, 2, 1, 0.0)
    accept(table, 3, 1)


def test_after_a_passing_refusal_everything_waits_for_the_refused_batch() -> None:
    table = Sequences()
    accept(table, 0, 2)
    assert table.offer(KEY, 1, 2, 2, 0.0).accepted is not None
    assert table.offer(KEY, 1, 4, 2, 0.0).accepted is not None
    table.refuse(KEY, 1, 2, 0.0)
    table.refuse(KEY, 1, 4, 0.0)
    assert table.offer(KEY, 1, 4, 2, 0.0).code == Code.OUT_OF_SEQUENCE
    accept(table, 2, 2)
    accept(table, 4, 2)


def test_a_refusal_of_the_very_first_batch_is_remembered() -> None:
    table = Sequences()
    assert table.offer(KEY, 1, 0, 2, 0.0).accepted is not None
    table.refuse(KEY, 1, 0, 0.0)
    assert table.offer(KEY, 1, 2, 1, 0.0).code == Code.OUT_OF_SEQUENCE
    accept(table, 0, 2)


def test_a_final_refusal_consumes_its_sequences() -> None:
    table = Sequences()
    accept(table, 0, 2)
    table.consume(KEY, 1, 2, 3, 0.0)
    accept(table, 5, 1)


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_anew() -> None:
    table = Sequences()
    accept(table, 0, 2, epoch=2)
    assert table.offer(KEY, 1, 2, 1, 0.0).code == Code.PRODUCER_FENCED
    accept(table, 0, 1, epoch=3)
    assert table.offer(KEY, 2, 2, 1, 0.0).code == Code.PRODUCER_FENCED


def test_what_overtakes_the_start_of_an_epoch_waits_for_it_whatever_is_said_of_it() -> None:
    table = Sequences()
    accept(table, 0, 5)
    assert table.offer(KEY, 2, 3, 1, 0.0).code == Code.OUT_OF_SEQUENCE
    table.postpone(KEY, 3, 0, 0.0)
    assert not table.consume(KEY, 4, 3, 1, 0.0)
    accept(table, 0, 3, epoch=4)
    accept(table, 3, 1, epoch=4)


def test_windows_are_bounded_and_the_longest_unused_goes() -> None:
    table = Sequences(windows_max=2)
    for producer in (1, 2):
        table.offer((producer, "t", 0), 1, 0, 1, 0.0)
    table.offer((1, "t", 0), 1, 1, 1, 1.0)
    table.offer((3, "t", 0), 1, 0, 1, 2.0)
    assert len(table) == 2
    assert table.evicted == 1
    assert table.offer((1, "t", 0), 1, 9, 1, 3.0).code == Code.OUT_OF_SEQUENCE


def test_idle_windows_are_forgotten() -> None:
    table = Sequences()
    accept(table, 0, 1)
    table.expire(WINDOW_IDLE_S - 1)
    assert len(table) == 1
    table.expire(WINDOW_IDLE_S + 1)
    assert len(table) == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.booleans()), max_size=60))
def test_whatever_is_resent_and_refused_the_log_gets_each_sequence_once_in_order(
    attempts: list[tuple[int, int, bool]],
) -> None:
    table = Sequences()
    accept(table, 0, 1)
    stored = [0]
    for first, records, fails in attempts:
        accepted = table.offer(KEY, 1, first, records, 0.0).accepted
        if accepted is None:
            continue
        if fails:
            table.refuse(KEY, 1, first, 0.0)
        else:
            accepted.is_confirmed = True
            stored += range(first, first + records)
    assert stored == list(range(len(stored)))


def test_the_bounds_have_the_documented_sizes() -> None:
    assert sequences.WINDOW_BATCHES == 64
    assert sequences.WINDOW_IDLE_S == 24 * 3600


def test_a_stored_batch_that_is_resent_while_the_broker_is_busy_stays_known() -> None:
    table = Sequences()
    accept(table, 0, 2, base=100)
    accept(table, 2, 2, base=102)
    table.postpone(KEY, 1, 0, 0.0)
    table.postpone(KEY, 1, 0, 0.0)
    for first, base in ((0, 100), (2, 102)):
        verdict = table.offer(KEY, 1, first, 2, 0.0)
        assert verdict.repeat is not None
        assert verdict.repeat.base_offset == base
    accept(table, 4, 1)


def test_what_follows_a_busy_start_of_an_epoch_waits_for_it() -> None:
    table = Sequences()
    accept(table, 0, 5)
    table.postpone(KEY, 2, 0, 0.0)
    assert table.offer(KEY, 2, 3, 1, 0.0).code == Code.OUT_OF_SEQUENCE
    accept(table, 0, 3, epoch=2)
    accept(table, 3, 1, epoch=2)
