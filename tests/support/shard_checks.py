"""What must hold of a shard's log, its copies and its clients after faults."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Final

from cluster_view import messages_of
from devices import Fleet
from processes import wait_until
from shard_load import CATCH_UP_S, TOPIC, Application, Clients, Place
from shard_network import REPLICAS, ShardNetwork

DEVICES: Final = "devices"


def check(shard: ShardNetwork, application: Application, fleet: Fleet, clients: Clients) -> None:
    """Everything acknowledged is where it was said to be, in order and once; `clients` run, and catch up."""
    placed = application.placed

    def missing() -> dict[str, list[Place]]:
        consumed = {queue: set(offsets) for queue, offsets in clients.consumed.items()}
        return {
            "the reader": sorted(placed.keys() - clients.read[TOPIC].keys()),
            "the shared group": sorted(placed.keys() - clients.shared),
            "the ordered group": sorted(p for p in placed if p[1] not in consumed.get(p[0], ())),
        }

    def has_everything() -> bool:
        return bool(clients.errors) or not any(missing().values())

    try:
        wait_until(has_everything, "clients have everything", CATCH_UP_S)
    except AssertionError as error:
        lacks = {name: (len(places), places[:3]) for name, places in missing().items()}
        raise AssertionError(f"{error}: they lack {lacks}") from None
    finally:
        clients.stop()
        assert not clients.errors, f"{len(clients.errors)}: {clients.errors[:3]}"
    stored = _stored(shard)
    for topic, values in stored.items():
        for place, body in values.items():
            seen = clients.read[topic].get(place, body)
            assert seen == body, f"{topic} {place} was {seen!r}, and is {body!r}"
    kept_from = _first_offsets(stored[TOPIC])
    if shard.options.is_retained:
        assert any(kept_from.values()), "retention took nothing: the run was too short"
    for (queue_id, offset), body in placed.items():
        assert clients.read[TOPIC].get((queue_id, offset)) == body, f"lost: {body!r} at {queue_id}/{offset}"
        if not shard.options.is_retained or offset >= kept_from.get(queue_id, offset + 1):
            assert stored[TOPIC].get((queue_id, offset)) == body, f"lost: {body!r} at {queue_id}/{offset}"
    _check_order(clients.read[TOPIC])
    _check_ordered_group(clients.consumed, placed)
    _check_devices(fleet, clients.read[DEVICES] | stored[DEVICES])
    shard.wait_in_sync()
    _check_copies(shard)


def _stored(shard: ShardNetwork) -> dict[str, dict[Place, bytes]]:
    stored: dict[str, dict[Place, bytes]] = {TOPIC: {}, DEVICES: {}}
    for message in asyncio.run(messages_of([shard.registry], DEVICES, TOPIC)):
        stored[message.topic][message.queue_id, message.queue_offset] = message.body
    return stored


def _first_offsets(stored: dict[Place, bytes]) -> dict[int, int]:
    first: dict[int, int] = {}
    for queue_id, offset in stored:
        first[queue_id] = min(offset, first.get(queue_id, offset))
    return first


def _check_order(read: dict[Place, bytes]) -> None:
    """A producer's messages are in order in each queue, and each is there once."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for (queue_id, offset), body in sorted(read.items()):
        assert offset == len(numbers[queue_id]), f"queue {queue_id} lacks offset {len(numbers[queue_id])}"
        numbers[queue_id].append(int(body.split(b"-")[1]))
    every = [number for queue in numbers.values() for number in queue]
    assert len(every) == len(set(every)), "an application's messages are there twice"
    for queue in numbers.values():
        assert queue == sorted(queue), "an application's messages are out of order"


def _check_ordered_group(consumed: dict[int, list[int]], placed: dict[Place, bytes]) -> None:
    """Each queue was handed out from its beginning without a gap; what came again had come before."""
    for queue_id, offsets in consumed.items():
        first_seen = list(dict.fromkeys(offsets))
        assert first_seen == list(range(len(first_seen))), f"the ordered group skipped in queue {queue_id}"
    missing = [place for place in placed if place[1] not in set(consumed[place[0]])]
    assert not missing, f"the ordered group lacks {missing[:3]}"


def _check_devices(fleet: Fleet, read: dict[Place, bytes]) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    ends: dict[int, int] = defaultdict(int)
    for (queue_id, offset), body in sorted(read.items()):
        assert offset == ends[queue_id], f"queue {queue_id} of devices lacks offset {ends[queue_id]}"
        ends[queue_id] += 1
        name, _, number = body.decode().partition(":")
        seen[name].append(int(number))
    for device in fleet.devices:
        first_seen = list(dict.fromkeys(seen[device.name]))
        acknowledged = set(device.acknowledged)
        missing = acknowledged - set(first_seen)
        assert not missing, f"{device.name} lost acknowledged messages: {sorted(missing)[:5]}"
        in_order = [number for number in first_seen if number in acknowledged]
        assert in_order == sorted(in_order), f"{device.name}'s messages are out of order"


def _check_copies(shard: ShardNetwork) -> None:
    """The files of all copies are equal up to the lowest confirmed position."""
    confirmed = min(status.confirmed for name in REPLICAS if (status := shard.status(name)) is not None)
    logs = {name: shard.data(name) / "commitlog" for name in REPLICAS}
    first = max(min(int(p.name) for p in path.iterdir() if p.name.isdigit()) for path in logs.values())
    contents = {name: _log_bytes(path, first, confirmed) for name, path in logs.items()}
    reference = contents[REPLICAS[0]]
    assert reference or not confirmed
    for name in REPLICAS[1:]:
        assert contents[name] == reference, f"the logs of {REPLICAS[0]} and {name} differ below {confirmed}"


def _log_bytes(path: Path, first: int, end: int) -> bytes:
    parts = []
    for segment in sorted(p for p in path.iterdir() if p.name.isdigit() and int(p.name) >= first):
        start = int(segment.name)
        if start < end:
            with segment.open("rb") as file:
                parts.append(file.read(end - start))
    return b"".join(parts)[: end - first]
