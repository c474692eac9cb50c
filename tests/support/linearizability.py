"""Tells whether a history of concurrent operations could have happened one after the other.

Each operation then has a moment between its call and its return at which it took effect, and all answers are
those of a single copy (Herlihy and Wing, 1990). The search is the one of Wing and Gong, with Lowe's memory of
what was tried, as in porcupine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)
O = TypeVar("O")  # noqa: E741 # an operation, as the papers call it


class Impossible:
    """What a step answers when an operation cannot have had its result in a state."""


IMPOSSIBLE: Final = Impossible()


class Operation(NamedTuple, Generic[O]):
    """What was called from `called_at` until `returned_at`; inf = nobody knows whether it took effect."""

    what: O
    called_at: float
    returned_at: float = math.inf


class _Event:
    """The call of an operation, or its return: a link of a list."""

    __slots__ = ("after", "before", "number", "returns")

    def __init__(self, number: int, returns: _Event | None) -> None:
        self.number = number
        self.returns = returns
        """A call's return; None for a return itself, and for the head."""
        self.before = self.after = self


def is_linearizable(
    history: Iterable[Operation[O]], initial: S, step: Callable[[S, O], S | Impossible]
) -> bool:
    """Whether the operations can be ordered, each within its time, so that `step` leads through all of them.

    `step` gives the state after an operation, IMPOSSIBLE if it cannot have had its result in this one.
    Operations of which nobody knows may be left out, or have taken effect at any time after their call.
    """
    operations = list(history)
    head = _linked(operations)
    unfinished = sum(1 << n for n, each in enumerate(operations) if each.returned_at < math.inf)
    state, done = initial, 0
    tried: set[tuple[int, S]] = set()
    path: list[tuple[_Event, S]] = []
    event = head.after
    while unfinished & ~done:
        if event.returns is not None:
            new = step(state, operations[event.number].what)
            after = done | 1 << event.number
            if not isinstance(new, Impossible) and (after, new) not in tried:
                tried.add((after, new))
                path.append((event, state))
                state, done = new, after
                _take(event)
                event = head.after
            else:
                event = event.after
        else:
            # Something returned before it took effect: an earlier choice was wrong.
            if not path:
                return False
            event, state = path.pop()
            done &= ~(1 << event.number)
            _put_back(event)
            event = event.after
    return True


def _linked(operations: Sequence[Operation[O]]) -> _Event:
    """All calls and returns in their order, behind a head; at one time calls come first."""
    events: list[tuple[float, bool, _Event]] = []
    for number, each in enumerate(operations):
        returned = _Event(number, None)
        events += [(each.called_at, False, _Event(number, returned)), (each.returned_at, True, returned)]
    head = last = _Event(-1, None)
    for _, _, event in sorted(events, key=lambda one: one[:2]):
        event.before, last.after = last, event
        last = event
    last.after, head.before = head, last
    return head


def _take(call: _Event) -> None:
    assert call.returns is not None
    for event in (call, call.returns):
        event.before.after, event.after.before = event.after, event.before


def _put_back(call: _Event) -> None:
    assert call.returns is not None
    for event in (call.returns, call):
        event.before.after = event.after.before = event
