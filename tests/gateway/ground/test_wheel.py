from __future__ import annotations

from gateway.ground.wheel import NOWHERE, SLOTS, TICK_S, Wheel


class Item:
    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.wheel_slot = NOWHERE
        self.asked = 0

    def next_deadline(self) -> float | None:
        self.asked += 1
        return self.deadline


def run_until(wheel: Wheel[Item], start: float, end: float) -> list[tuple[float, Item]]:
    found = []
    steps = int((end - start) / TICK_S)
    for n in range(1, steps + 1):
        now = start + n * TICK_S
        found += [(now, item) for item in wheel.advance(now)]
    return found


def test_an_item_comes_within_one_tick_of_its_deadline_and_never_before() -> None:
    wheel: Wheel[Item] = Wheel(100.0)
    items = [Item(100.0 + n * 0.1) for n in range(1, 400)]
    for item in items:
        wheel.put(item)
    found = run_until(wheel, 100.0, 145.0)
    assert len(found) == len(items)
    assert all(
        item.deadline is not None and item.deadline <= at <= item.deadline + 2 * TICK_S for at, item in found
    )
    assert len(wheel) == 0


def test_a_deadline_that_moved_later_is_kept_without_a_call() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    item = Item(1.0)
    wheel.put(item)
    item.deadline = 3.0
    assert run_until(wheel, 0.0, 2.5) == []
    assert [i for _, i in run_until(wheel, 2.5, 4.0)] == [item]


def test_a_deadline_beyond_the_horizon_comes_at_its_time() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    far = Item(3.5 * SLOTS * TICK_S)
    wheel.put(far)
    assert [i for _, i in run_until(wheel, 0.0, far.deadline - TICK_S)] == []  # type: ignore[operator]
    assert [i for _, i in run_until(wheel, far.deadline - TICK_S, far.deadline + 1)] == [far]  # type: ignore[operator]
    assert far.asked < 10


def test_a_removed_item_and_one_without_a_deadline_never_come() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    removed, never = Item(1.0), Item(None)
    wheel.put(removed)
    wheel.put(never)
    wheel.remove(removed)
    wheel.remove(removed)
    assert len(wheel) == 0
    assert wheel.next_deadline() is None
    assert run_until(wheel, 0.0, 3.0) == []


def test_a_slot_whose_items_were_all_removed_takes_no_memory() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    items = [Item(1.0) for _ in range(1000)]
    for item in items:
        wheel.put(item)
    for item in items:
        wheel.remove(item)
    assert wheel._slots == [None] * SLOTS


def test_put_moves_an_item_to_a_nearer_deadline() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    item = Item(50.0)
    wheel.put(item)
    item.deadline = 1.0
    wheel.put(item)
    assert len(wheel) == 1
    assert [i for _, i in run_until(wheel, 0.0, 2.0)] == [item]


def test_a_stall_longer_than_the_horizon_loses_nothing() -> None:
    wheel: Wheel[Item] = Wheel(0.0)
    items = [Item(float(n)) for n in range(1, 100)]
    for item in items:
        wheel.put(item)
    assert set(wheel.advance(10_000.0)) == set(items)
