"""Store times of messages at offsets, for a backlog's age: from memory on the loop, from disk on the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.record.codec import decode_record
from storage.api.queues import MessageQueues, QueueRead

LOOKS_PER_TURN: Final = 128
"""Look-ups in memory in one turn of the loop: about a millisecond."""

Place = tuple[str, int, int]
"""Topic, queue id, offset."""
Times = dict[Place, int]
Done = Callable[[Times | HoldMQError], None]


def look_up_times(store: MessageQueues, places: list[Place], done: Done) -> None:
    """Call `done` with the store time in ms of every message that can be read; later, or from inside."""
    _look(store, places, 0, {}, [], done)


def _look(
    store: MessageQueues, places: list[Place], begin: int, found: Times, cold: list[Place], done: Done
) -> None:
    loop = asyncio.get_running_loop()
    for place in places[begin : begin + LOOKS_PER_TURN]:
        topic, queue_id, offset = place
        read = store.read_queue(topic, queue_id, 0, offset, 1, 1)
        if read is None:
            cold.append(place)
        else:
            _take(found, place, read)
    begin += LOOKS_PER_TURN
    if begin < len(places):
        loop.call_soon(_look, store, places, begin, found, cold, done)
    elif cold:
        _look_cold(store, found, cold, done)
    else:
        done(found)


def _look_cold(store: MessageQueues, found: Times, cold: list[Place], done: Done) -> None:
    def read_all() -> Times:
        times: Times = {}
        for place in cold:
            topic, queue_id, offset = place
            _take(times, place, store.read_queue_cold(topic, queue_id, 0, offset, 1, 1))
        return times

    def finished(future: asyncio.Future[Times]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            done({**found, **future.result()})
        elif isinstance(error, HoldMQError):
            done(error)
        else:
            done(RemoteError(Code.SYSTEM_ERROR, f"the look-up of store times failed: {error}"))

    future = asyncio.get_running_loop().run_in_executor(store.reader_pool, read_all)
    future.add_done_callback(finished)


def _take(found: Times, place: Place, read: QueueRead) -> None:
    if read.count:
        found[place] = decode_record(read.parts[0]).store_ms
