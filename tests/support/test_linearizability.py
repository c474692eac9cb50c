"""The checker itself: it agrees with trying all orders, and finds what is wrong."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linearizability import IMPOSSIBLE, Impossible, Operation, is_linearizable

Cas = tuple[int, int, bool | None]
"""Expected value, new value, and whether it was done (None = unknown); or a read: (value, value, True)."""


def step(state: int, what: Cas) -> int | Impossible:
    expected, new, was_done = what
    if was_done is False:
        return IMPOSSIBLE if state == expected else state
    return new if state == expected else IMPOSSIBLE


def read(value: int, called: float, returned: float) -> Operation[Cas]:
    return Operation((value, value, True), called, returned)


def cas(expected: int, new: int, called: float, returned: float, done: bool = True) -> Operation[Cas]:
    return Operation((expected, new, done), called, returned)


def lost(expected: int, new: int, called: float) -> Operation[Cas]:
    return Operation((expected, new, None), called)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [read(0, 0, 1), cas(0, 1, 1, 2), read(1, 2, 3)],
        [cas(0, 1, 0, 10), read(0, 1, 2), read(1, 3, 4)],
        [cas(0, 1, 0, 10), cas(0, 2, 0, 10, done=False), read(1, 11, 12)],
        [lost(0, 1, 0), read(0, 1, 2), read(0, 5, 6)],
        [lost(0, 1, 0), read(0, 1, 2), read(1, 5, 6), cas(1, 2, 7, 8)],
        [lost(0, 1, 0), cas(0, 2, 1, 2), read(2, 5, 6), lost(2, 3, 7)],
        [lost(0, 1, 0), lost(1, 2, 0), read(2, 5, 6)],
        [cas(0, 1, 0, 1), cas(1, 0, 1, 2), cas(0, 3, 0, 3)],
    ],
)
def test_what_can_have_happened(history: list[Operation[Cas]]) -> None:
    assert is_linearizable(history, 0, step)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([cas(0, 1, 0, 1), read(0, 2, 3)], "a stale read"),
        ([cas(0, 1, 0, 10), read(1, 1, 2), read(0, 3, 4)], "a read that goes back"),
        ([cas(0, 1, 0, 5), cas(0, 2, 0, 5)], "two of one expectation"),
        ([cas(0, 1, 0, 1), cas(1, 2, 2, 3, done=False)], "refused though nobody was quicker"),
        ([read(7, 0, 1)], "a value that nobody wrote"),
        ([lost(0, 1, 0), read(1, 1, 2), read(0, 3, 4)], "taken back"),
        ([read(1, 0, 1), lost(0, 1, 2)], "seen before it was called"),
        ([lost(0, 1, 0), cas(0, 2, 1, 2), read(1, 3, 4)], "over another one"),
    ],
)
def test_what_cannot_have_happened(history: list[Operation[Cas]], fault: str) -> None:
    assert not is_linearizable(history, 0, step), fault


VALUES = st.integers(0, 2)
OPERATIONS = st.builds(
    lambda expected, new, done, called, takes: Operation(
        (expected, new, done), called, math.inf if done is None else called + takes
    ),
    VALUES,
    VALUES,
    st.sampled_from([True, True, False, None]),
    st.integers(0, 6),
    st.integers(0, 6),
)


@given(st.lists(OPERATIONS, max_size=5))
def test_it_agrees_with_trying_all_orders(history: list[Operation[Cas]]) -> None:
    assert is_linearizable(history, 0, step) == _by_all_orders(history)


def _by_all_orders(history: list[Operation[Cas]]) -> bool:
    unknown = [each for each in history if each.returned_at == math.inf]
    for left_out in range(1 << len(unknown)):
        gone = [each for bit, each in enumerate(unknown) if left_out >> bit & 1]
        kept = list(history)
        for each in gone:
            kept.remove(each)
        if any(_is_possible(order) for order in permutations(kept)):
            return True
    return False


def _is_possible(order: tuple[Operation[Cas], ...]) -> bool:
    state, earliest = 0, -math.inf
    for each in order:
        earliest = max(earliest, each.called_at)
        if earliest > each.returned_at:
            return False
        new = step(state, each.what)
        if isinstance(new, Impossible):
            return False
        state = new
    return True
