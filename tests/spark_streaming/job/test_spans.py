from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_streaming.job.spans import FileSpan, runs_to_fold

HOUR = 3600
FILES = st.lists(
    st.tuples(st.integers(0, 40 * HOUR), st.integers(0, 9 * HOUR), st.integers(0, 1000)).map(
        lambda drawn: FileSpan(drawn[0], drawn[0] + drawn[1], drawn[2])
    ),
    max_size=12,
)


def test_a_span_that_one_file_has_to_itself_stays() -> None:
    files = [FileSpan(0, HOUR - 1, 5), FileSpan(HOUR, 3 * HOUR, 5)]
    assert list(runs_to_fold(files, HOUR, 100)) == []


def test_neighbours_with_rows_in_several_files_are_one_run() -> None:
    files = [FileSpan(0, 2 * HOUR, 5), FileSpan(HOUR, 2 * HOUR + 1, 5), FileSpan(9 * HOUR, 9 * HOUR, 5)]
    assert list(runs_to_fold(files, HOUR, 100)) == [(HOUR, 3 * HOUR)]


def test_a_run_with_too_many_rows_is_cut_down_to_single_spans_at_most() -> None:
    files = [FileSpan(0, 4 * HOUR - 1, 400), FileSpan(0, 4 * HOUR - 1, 400)]
    assert list(runs_to_fold(files, HOUR, 400)) == [(0, 2 * HOUR), (2 * HOUR, 4 * HOUR)]
    assert list(runs_to_fold(files, HOUR, 1)) == [(n * HOUR, (n + 1) * HOUR) for n in range(4)]


def test_a_clock_that_was_decades_off_costs_nothing() -> None:
    files = [FileSpan(0, 60 * 365 * 86_400, 5), FileSpan(30 * 365 * 86_400, 30 * 365 * 86_400 + 5, 5)]
    start = 30 * 365 * 86_400
    assert list(runs_to_fold(files, HOUR, 100)) == [(start, start + HOUR)]


@given(FILES, st.integers(1, 3000))
def test_runs_are_exactly_the_spans_of_several_files(files: list[FileSpan], rows_max: int) -> None:
    runs = list(runs_to_fold(files, HOUR, rows_max))
    folded = [span for start, end in runs for span in range(start // HOUR, end // HOUR)]
    assert folded == sorted(set(folded))
    shared = [
        span
        for span in range(60)
        if sum(file.oldest_s // HOUR <= span <= file.newest_s // HOUR for file in files) > 1
    ]
    assert folded == shared
