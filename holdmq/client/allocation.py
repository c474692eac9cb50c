"""Which member of a group consumes which queue: the strategies, computed alike by every member. Pure.

A strategy divides the queues of one topic among members. All members of a group must use the same:
a queue that two members want goes to one of them by lease, one that nobody wants waits.
Source: RocketMQ's AllocateMessageQueueStrategy and its implementations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import xxhash

from holdmq.errors import UsageError
from holdmq.message import TopicQueue

Shares = Mapping[str, Sequence[TopicQueue]]
"""Members and what is theirs."""
Allocate = Callable[[Sequence[TopicQueue], Sequence[str]], Shares]
"""The queues of one topic and the members' client ids, both sorted and not empty, to shares."""

VIRTUAL_NODES: Final = 100
"""Points of one member on the hash ring: shares then differ by about a tenth."""
ROOM_SEPARATOR: Final = "@"


class Strategy(NamedTuple):
    """A strategy and the name under which a group's member list shows it."""

    name: str
    allocate: Allocate


def average(queues: Sequence[TopicQueue], members: Sequence[str]) -> dict[str, list[TopicQueue]]:
    """Runs of neighbouring queues, as equal as can be; the first members have one more."""
    size, more = divmod(len(queues), len(members))
    shares: dict[str, list[TopicQueue]] = {}
    at = 0
    for index, member in enumerate(members):
        end = at + size + (index < more)
        shares[member] = list(queues[at:end])
        at = end
    return shares


def circle(queues: Sequence[TopicQueue], members: Sequence[str]) -> dict[str, list[TopicQueue]]:
    """One queue to each member in turn: the queues of one broker are spread over all members."""
    return {member: list(queues[index :: len(members)]) for index, member in enumerate(members)}


def consistent_hash(queues: Sequence[TopicQueue], members: Sequence[str]) -> dict[str, list[TopicQueue]]:
    """By a hash ring: a member that comes or goes moves only its own queues; shares are less equal."""
    ring = sorted(
        (xxhash.xxh3_64_intdigest(f"{member}#{point}".encode()), member)
        for member in members
        for point in range(VIRTUAL_NODES)
    )
    points = [point for point, _ in ring]
    shares: dict[str, list[TopicQueue]] = {member: [] for member in members}
    for queue in queues:
        at = bisect_left(points, xxhash.xxh3_64_intdigest(str(queue).encode()))
        shares[ring[at % len(ring)][1]].append(queue)
    return shares


def room_of(name: str) -> str:
    """The machine room in a broker's name or client id: what is before the first `@`; "" without one."""
    room, separator, _ = name.partition(ROOM_SEPARATOR)
    return room if separator else ""


def machine_room(
    room_of_broker: Callable[[str], str] = room_of,
    room_of_member: Callable[[str], str] = room_of,
    inner: Allocate = average,
) -> Strategy:
    """Queues of a room to members of the room, by `inner`; those of a room without members to all.

    The rooms are by default what is before `@` in broker names and client ids. (RocketMQ's
    AllocateMachineRoomNearby: its older ByMachineRoom leaves rooms without members unread.)
    """

    def allocate(queues: Sequence[TopicQueue], members: Sequence[str]) -> Shares:
        rooms: dict[str, list[str]] = {}
        for member in members:
            rooms.setdefault(room_of_member(member), []).append(member)
        parts: dict[str, list[TopicQueue]] = {}
        for queue in queues:
            room = room_of_broker(queue.broker)
            parts.setdefault(room if room in rooms else "", []).append(queue)
        shares: dict[str, list[TopicQueue]] = {member: [] for member in members}
        for room, part in parts.items():
            for member, share in inner(part, rooms[room] if room else members).items():
                shares[member] += share
        return shares

    return Strategy("machine_room", allocate)


STRATEGIES: Final = {
    "average": Strategy("average", average),
    "circle": Strategy("circle", circle),
    "consistent_hash": Strategy("consistent_hash", consistent_hash),
    "machine_room": machine_room(),
}


def strategy_of(wanted: str | Strategy | Allocate) -> Strategy:
    """A strategy by name, as it is, or one's own function; UsageError for an unknown name."""
    if isinstance(wanted, Strategy):
        return wanted
    if isinstance(wanted, str):
        known = STRATEGIES.get(wanted)
        if known is None:
            raise UsageError(f"strategy {wanted!r} is not one of {', '.join(sorted(STRATEGIES))}")
        return known
    return Strategy(getattr(wanted, "__name__", "custom"), wanted)


def queues_of_member(
    member: str,
    strategy: Strategy,
    queues: Iterable[TopicQueue],
    members_at: Mapping[str, Sequence[str]],
) -> set[TopicQueue]:
    """The queues that `member` should consume.

    `members_at` are the group's members by broker, for the brokers where `member` is one itself. A queue
    whose owner is no member at the queue's broker goes to one that is: who cannot reach a broker
    must not keep its queues from those who can. Raises UsageError for a strategy that gives a queue
    twice, or to somebody who is no member.
    """
    everybody = sorted({name for names in members_at.values() for name in names})
    if member not in everybody:
        return set()
    topics: dict[str, list[TopicQueue]] = {}
    for queue in sorted(set(queues)):
        topics.setdefault(queue.topic, []).append(queue)
    mine: set[TopicQueue] = set()
    for of_topic in topics.values():
        for queue, owner in _owners(strategy, of_topic, everybody).items():
            present = members_at.get(queue.broker)
            if present and owner not in present:
                ordered = sorted(present)
                owner = ordered[xxhash.xxh3_64_intdigest(str(queue).encode()) % len(ordered)]
            if owner == member:
                mine.add(queue)
    return mine


def _owners(
    strategy: Strategy, queues: Sequence[TopicQueue], members: Sequence[str]
) -> dict[TopicQueue, str]:
    owners: dict[TopicQueue, str] = {}
    known = set(queues)
    for owner, share in strategy.allocate(queues, members).items():
        if owner not in members:
            raise UsageError(f"strategy {strategy.name} gives queues to {owner!r}, who is no member")
        for queue in share:
            if queue in owners:
                raise UsageError(f"strategy {strategy.name} gives {queue} to {owners[queue]!r} and {owner!r}")
            if queue not in known:
                raise UsageError(f"strategy {strategy.name} gives {queue}, which it was not asked about")
            owners[queue] = owner
    return owners
