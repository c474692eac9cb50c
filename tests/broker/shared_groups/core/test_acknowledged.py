from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.shared_groups.core.acknowledged import Acknowledged, bits, ranges_of


def test_ranges_are_the_runs_of_set_bits() -> None:
    assert list(ranges_of(0)) == []
    assert list(ranges_of(0b1)) == [(0, 1)]
    assert list(ranges_of(0b1101100, 10)) == [(12, 2), (15, 2)]


def test_the_floor_rises_over_what_is_done_without_a_gap() -> None:
    done = Acknowledged(10)
    done.add(12, 0b11)
    assert (done.floor, done.ranges(), done.count, done.end) == (10, [(12, 2)], 2, 14)
    done.add(10, 0b1)
    assert (done.floor, done.ranges()) == (11, [(12, 2)])
    done.add(11, 0b1)
    assert (done.floor, done.mask) == (14, 0)


def test_what_retention_took_counts_what_was_not_done() -> None:
    done = Acknowledged(0)
    done.add(2, 0b111)
    assert done.raise_floor(3) == 2
    assert (done.floor, done.mask) == (5, 0)
    assert done.raise_floor(4) == 0
    assert done.raise_floor(1_000_000) == 999_995


def test_what_is_missing_lies_between_floor_and_end() -> None:
    done = Acknowledged(5)
    done.add(6, 0b101)
    assert done.missing(12) == [(5, 1), (7, 1), (9, 3)]
    assert done.missing(5) == done.missing(3) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=20), st.integers(0, 20))
def test_it_is_a_set_of_offsets(ranges: list[tuple[int, int]], floor: int) -> None:
    done = Acknowledged(floor)
    model = set(range(floor))
    for first, count in ranges:
        done.add(first, bits(count))
        model |= set(range(first, first + count))
    expected = next(offset for offset in range(200) if offset not in model)
    assert done.floor == max(floor, expected)
    assert all((offset in done) == (offset in model) for offset in range(100))
    assert {o for first, count in done.missing(90) for o in range(first, first + count)} == {
        o for o in range(90) if o not in model
    }
