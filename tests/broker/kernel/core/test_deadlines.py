from __future__ import annotations

from broker.kernel.core.deadlines import COMPACT_MIN, Deadlines


class Item:
    def __init__(self) -> None:
        self.is_over = False


def test_what_is_due_comes_in_order_and_once() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    late, early, over = Item(), Item(), Item()
    deadlines.push(3.0, late)
    deadlines.push(1.0, early)
    deadlines.push(0.5, over)
    over.is_over = True
    assert deadlines.next() == 1.0
    assert deadlines.due(0.9) == []
    assert deadlines.due(2.0) == [early]
    assert deadlines.due(2.0) == []
    assert deadlines.next() == 3.0


def test_what_ended_early_is_forgotten_long_before_its_deadline() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    for number in range(100_000):
        item = Item()
        deadlines.push(1e6 + number, item)
        item.is_over = number % 100 != 0
    assert len(deadlines) <= 2 * 1_000 + COMPACT_MIN
    assert len(deadlines.due(2e6)) == 1_000
