"""Leases on (group, queue): at most one member consumes a queue of a clustering group.

Every grant has a generation, from one counter that begins above everything that an earlier start of
the broker can have granted. A lease ends when it is released, when its connection closes, when it
was not renewed for `lease_s`, or by a reset; from then on its generation is of no use to anybody.

All leases last equally long, so the order of their renewals is that of their deadlines: one dict in
that order takes the place of a heap.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

LEASES_MAX: Final = 1_000_000
"""Leases of one broker, some 400 bytes each: a hundred queues for each of 10,000 members."""
WANTS_MAX: Final = 1_000_000
"""Refused wishes that are remembered; past it who wants a queue has to ask again by itself."""

Owner = TypeVar("Owner")


class LeaseKey(NamedTuple):
    """A queue as a group consumes it."""

    group: str
    topic: str
    queue_id: int


class QueueLease(Generic[Owner]):
    """A queue in somebody's hands until `deadline` (the caller's clock)."""

    __slots__ = ("client_id", "deadline", "generation", "key", "owner")

    def __init__(self, key: LeaseKey, owner: Owner, client_id: str, generation: int, deadline: float) -> None:
        self.key = key
        self.owner = owner
        self.client_id = client_id
        self.generation = generation
        self.deadline = deadline


class Grant(NamedTuple):
    """An answer to `acquire`. `generation` 0 = not granted: `holder` has it (None = nobody), and if
    `is_fenced` the generation that was to be renewed is not valid any more; `is_full`: LEASES_MAX.
    """

    generation: int
    holder: str | None = None
    is_fenced: bool = False
    is_full: bool = False


class Ended(NamedTuple, Generic[Owner]):
    """A lease that ended, and who had asked for its queue meanwhile."""

    lease: QueueLease[Owner]
    wanted_by: list[Owner]


class Leases(Generic[Owner]):
    """All leases of one broker. `now` is any monotonic clock in seconds."""

    def __init__(
        self,
        lease_s: float,
        first_generation: int = 1,
        leases_max: int = LEASES_MAX,
        wants_max: int = WANTS_MAX,
    ) -> None:
        self.lease_s = lease_s
        self.granted = self.expired = self.refused = 0
        self._generation = first_generation - 1
        self._leases_max = leases_max
        self._wants_max = wants_max
        self._leases: dict[LeaseKey, QueueLease[Owner]] = {}
        self._by_owner: dict[Owner, dict[LeaseKey, None]] = {}
        self._wants: dict[LeaseKey, dict[Owner, None]] = {}
        self._wanted_by: dict[Owner, set[LeaseKey]] = {}
        self._wants_size = 0

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def wants(self) -> int:
        """Wishes that are remembered."""
        return self._wants_size

    def start_above(self, generation: int) -> None:
        """Grant nothing but generations above this one (an earlier start's)."""
        self._generation = max(self._generation, generation)

    def acquire(self, owner: Owner, client_id: str, key: LeaseKey, generation: int, now: float) -> Grant:
        """Ask for a lease (`generation` 0) or renew the one in hand.

        Who asks anew for what he has gets a new generation: an answer was lost, and what he does under
        the old one must not count. A lease that ended is not renewed but has to be asked for: its queue
        may have been somebody else's meanwhile. The caller ends late leases first (`expire`).
        """
        lease = self._leases.get(key)
        if lease is None:
            if generation:
                return self._refuse(Grant(0, None, is_fenced=True))
            if len(self._leases) >= self._leases_max:
                return self._refuse(Grant(0, None, is_full=True))
            lease = QueueLease(key, owner, client_id, 0, now)
            self._leases[key] = lease
            self._by_owner.setdefault(owner, {})[key] = None
        elif lease.owner != owner:
            self._want(owner, key)
            return self._refuse(Grant(0, lease.client_id, is_fenced=generation != 0))
        elif generation and (generation != lease.generation or lease.deadline <= now):
            return self._refuse(Grant(0, None, is_fenced=True))
        self._unwant(owner, key)
        if not generation:
            self._generation += 1
            self.granted += 1
            lease.generation = self._generation
        del self._leases[key]
        self._leases[key] = lease
        lease.deadline = now + self.lease_s
        return Grant(lease.generation, client_id)

    def is_valid(self, owner: Owner, key: LeaseKey, generation: int, now: float) -> bool:
        """Whether this connection may pull and report under this generation."""
        lease = self._leases.get(key)
        return (
            lease is not None
            and lease.generation == generation
            and lease.owner == owner
            and lease.deadline > now
        )

    def holder(self, key: LeaseKey, now: float) -> str | None:
        """The client id that has a queue; None = nobody."""
        lease = self._leases.get(key)
        return lease.client_id if lease is not None and lease.deadline > now else None

    def count(self, owner: Owner, group: str) -> int:
        """How many queues of a group a connection has."""
        return sum(key.group == group for key in self._by_owner.get(owner, ()))

    def release(self, owner: Owner, key: LeaseKey, generation: int) -> Ended[Owner] | None:
        """Give a lease back; None = it is not this one's, or of another generation."""
        lease = self._leases.get(key)
        if lease is None or lease.owner != owner or lease.generation != generation:
            return None
        return self._end(lease)

    def end(self, key: LeaseKey) -> Ended[Owner] | None:
        """End whatever lease there is on a queue; None = there is none."""
        lease = self._leases.get(key)
        return None if lease is None else self._end(lease)

    def end_owner(self, owner: Owner, group: str | None = None) -> list[Ended[Owner]]:
        """End a connection's leases and wishes in a group, None = in all of them."""
        for key in [k for k in self._wanted_by.get(owner, ()) if group in (None, k.group)]:
            self._unwant(owner, key)
        keys = [k for k in self._by_owner.get(owner, ()) if group in (None, k.group)]
        return [self._end(self._leases[key]) for key in keys]

    def end_queue(self, topic: str, queue_id: int) -> list[Ended[Owner]]:
        """A queue is gone: end every group's lease on it."""
        keys = [key for key in self._leases if key.topic == topic and key.queue_id == queue_id]
        return [self._end(self._leases[key]) for key in keys]

    def expire(self, now: float) -> list[Ended[Owner]]:
        """End the leases that were not renewed in time."""
        late: list[QueueLease[Owner]] = []
        for lease in self._leases.values():
            if lease.deadline > now:
                break
            late.append(lease)
        self.expired += len(late)
        return [self._end(lease) for lease in late]

    def next_deadline(self) -> float | None:
        """When `expire` should be called; None = there are no leases."""
        for lease in self._leases.values():
            return lease.deadline
        return None

    def postpone(self, by_s: float) -> None:
        """This process stood still for so long: nobody could renew."""
        for lease in self._leases.values():
            lease.deadline += by_s

    def _end(self, lease: QueueLease[Owner]) -> Ended[Owner]:
        key = lease.key
        del self._leases[key]
        owned = self._by_owner[lease.owner]
        del owned[key]
        if not owned:
            del self._by_owner[lease.owner]
        wanted_by = list(self._wants.get(key, ()))
        for owner in wanted_by:
            self._unwant(owner, key)
        return Ended(lease, wanted_by)

    def _refuse(self, grant: Grant) -> Grant:
        self.refused += 1
        return grant

    def _want(self, owner: Owner, key: LeaseKey) -> None:
        wants = self._wants.get(key, {})
        if owner in wants or self._wants_size >= self._wants_max:
            return
        self._wants.setdefault(key, wants)[owner] = None
        self._wanted_by.setdefault(owner, set()).add(key)
        self._wants_size += 1

    def _unwant(self, owner: Owner, key: LeaseKey) -> None:
        wants = self._wants.get(key)
        if wants is None or owner not in wants:
            return
        del wants[owner]
        if not wants:
            del self._wants[key]
        keys = self._wanted_by[owner]
        keys.discard(key)
        if not keys:
            del self._wanted_by[owner]
        self._wants_size -= 1
