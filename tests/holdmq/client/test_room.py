from __future__ import annotations

import asyncio

import pytest

from holdmq.client.room import Room
from holdmq.errors import RequestTimeout, TransportError


def room(max_bytes: int = 100) -> Room:
    return Room(max_bytes, lambda: None)


def taking(room: Room, size: int, order: list[int], deadline_s: float = 30.0) -> asyncio.Task[None]:
    deadline = asyncio.get_running_loop().time() + deadline_s
    return asyncio.ensure_future(room.take(size, deadline, lambda: order.append(size)))


async def test_who_waits_goes_in_order_before_anybody_who_comes_later() -> None:
    bound, order = room(), [0]
    assert bound.try_take(100)
    waiting = [taking(bound, size, order) for size in (60, 70, 5)]
    await asyncio.sleep(0)
    assert not bound.try_take(1)
    bound.give_back(100)
    assert order == [0, 60]
    assert not bound.try_take(1)
    bound.give_back(60)
    assert order == [0, 60, 70, 5]
    await asyncio.gather(*waiting)
    assert (bound.taken_bytes, bound.waits) == (75, 3)


async def test_one_that_is_larger_than_the_bound_goes_alone() -> None:
    bound = room()
    assert bound.try_take(500)
    assert not bound.try_take(1)
    bound.give_back(500)
    assert bound.is_idle


async def test_a_deadline_or_a_cancellation_leaves_the_queue_and_takes_nothing() -> None:
    bound, order = room(), [0]
    assert bound.try_take(90)
    late, given_up, patient = (
        taking(bound, 50, order, 0.05),
        taking(bound, 60, order),
        taking(bound, 10, order),
    )
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(RequestTimeout, match="no room"):
        await late
    await patient
    assert order == [0, 10]
    assert bound.taken_bytes == 100


async def test_drain_waits_for_the_last_byte_and_close_fails_who_waits() -> None:
    bound, order = room(), [0]
    assert bound.try_take(100)
    waiting = taking(bound, 10, order)
    await asyncio.sleep(0)
    bound.close(TransportError("closed"))
    with pytest.raises(TransportError, match="closed"):
        await waiting
    draining = asyncio.ensure_future(bound.drain(None))
    await asyncio.sleep(0)
    assert not draining.done()
    bound.give_back(100)
    await draining
    await bound.drain(None)


async def test_who_comes_to_a_closed_room_is_refused_at_once() -> None:
    bound, order = room(), [0]
    bound.close(TransportError("closed"))
    assert not bound.try_take(1)
    with pytest.raises(TransportError, match="closed"):
        await taking(bound, 1, order)
    assert (order, bound.is_idle) == ([0], True)
