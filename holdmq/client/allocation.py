"""Which member of a group consumes which queue: the strategies, computed alike by every member. Pure.

A strategy divides the queues of one topic among members. All members of a group must use the same:
a queue that two members want goes to one of them by lease, one that nobody wants waits.
Source: RocketMQ's AllocateMessageQueueStrategy and its implementations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
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


class Rooms(NamedTuple):
    """Machine rooms by the names of brokers and by members' client ids; who said none is in neither."""

    of_brokers: Mapping[str, str] = MappingProxyType({})
    of_members: Mapping[str, str] = MappingProxyType({})


NO_ROOMS: Final = Rooms()


class Strategy(NamedTuple):
    """A strategy and the name under which a group's member list shows it.

    `allocate_within(rooms)`: what allocates where machine rooms are known, in place of `allocate`; None =
    they do not matter.
    """

    name: str
    allocate: Allocate
    allocate_within: Callable[[Rooms], Allocate] | None = None

    def within(self, rooms: Rooms) -> Allocate:
        """What allocates where these are the machine rooms."""
        return self.allocate if self.allocate_within is None else self.allocate_within(rooms)


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
    room_of_broker: Callable[[str], str] | None = None,
    room_of_member: Callable[[str], str] | None = None,
    inner: Allocate = average,
) -> Strategy:
    """Queues of a room to members of the room, by `inner`; those of a room without members to all.

    The rooms are what brokers and members say (`broker.room`; `room` of a consumer), and for those that say
    none what is before an `@` in their name; or what the functions return. (RocketMQ's
    AllocateMachineRoomNearby: its older ByMachineRoom leaves rooms without members unread.)
    """

    def within(rooms: Rooms) -> Allocate:
        def of_broker(name: str) -> str:
            return rooms.of_brokers.get(name) or room_of(name)

        def of_member(client_id: str) -> str:
            return rooms.of_members.get(client_id) or room_of(client_id)

        return partial(_by_room, room_of_broker or of_broker, room_of_member or of_member, inner)

    return Strategy("machine_room", within(NO_ROOMS), within)


def _by_room(
    room_of_broker: Callable[[str], str],
    room_of_member: Callable[[str], str],
    inner: Allocate,
    queues: Sequence[TopicQueue],
    members: Sequence[str],
) -> Shares:
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
    rooms: Rooms = NO_ROOMS,
) -> set[TopicQueue]:
    """The queues that `member` should consume, where brokers and members are in these machine rooms.

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
        for queue, owner in _owners(strategy, of_topic, everybody, rooms).items():
            present = members_at.get(queue.broker)
            if present and owner not in present:
                ordered = sorted(present)
                owner = ordered[xxhash.xxh3_64_intdigest(str(queue).encode()) % len(ordered)]
            if owner == member:
                mine.add(queue)
    return mine


def _owners(
    strategy: Strategy, queues: Sequence[TopicQueue], members: Sequence[str], rooms: Rooms
) -> dict[TopicQueue, str]:
    owners: dict[TopicQueue, str] = {}
    known = set(queues)
    for owner, share in strategy.within(rooms)(queues, members).items():
        if owner not in members:
            raise UsageError(f"strategy {strategy.name} gives queues to {owner!r}, who is no member")
        for queue in share:
            if queue in owners:
                raise UsageError(f"strategy {strategy.name} gives {queue} to {owners[queue]!r} and {owner!r}")
            if queue not in known:
                raise UsageError(f"strategy {strategy.name} gives {queue}, which it was not asked about")
            owners[queue] = owner
    return owners
