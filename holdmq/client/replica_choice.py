"""Whom a reader asks for a queue: the broker that leads, or a replica that it named. Sans-IO.

The leader names a replica in its answers, and is asked again every few seconds, so that it stays the one who
decides; a replica that has nothing more to say, or fails, sends the queue back to it. Times are seconds on
any clock that never goes back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.errors import Code
from holdmq.message import TopicQueue
from holdmq.wire.headers import PulledQueue
from holdmq.wire.replica_reads import ReplicaReads

STAY_S: Final = 5.0
"""How long a queue is read at a replica until its leader is asked: a pause, a lease or a topic that ended is
known then."""
BACK_S: Final = 1.0
"""How long the leader answers by itself for a queue that a replica sent back: it has more of it than the
replica for a moment, and would send it there again."""
REST_S: Final = 3.0
"""How long a replica that failed is not asked: by then its leader does not count on it either."""
PLACES_MAX: Final = 10_000
"""Queues remembered before those are dropped whose time is over: what a member of a group may lease."""


class ReadSource(NamedTuple):
    """A broker and one of its replicas ("" = it answers itself), and what the request says of replicas."""

    broker: str
    replica: str
    wanted: ReplicaReads


class ReplicaChoice:
    """The choices of one reader, which wants replicas as `wanted` says."""

    def __init__(self, wanted: ReplicaReads) -> None:
        self.wanted = wanted
        self._places: dict[TopicQueue, tuple[str, float]] = {}
        self._rests: dict[str, float] = {}
        self._drop_at = PLACES_MAX

    @property
    def is_under_way(self) -> bool:
        """Whether a queue is at a replica, or came back a moment ago: it soon is another's question."""
        return bool(self._places)

    def source(self, queue: TopicQueue, now: float) -> ReadSource:
        """Whom to ask for a queue now."""
        place = self._places.get(queue)
        if place is not None:
            replica, until = place
            if replica and self._is_resting(replica, now):
                # Its leader would name it once more, and may just hold a pull of other queues.
                replica, until = self._places[queue] = ("", self._rests[replica])
            if now < until:
                return ReadSource(queue.broker, replica, self.wanted if replica else ReplicaReads.NEVER)
            del self._places[queue]
        return ReadSource(queue.broker, "", self.wanted)

    def took(
        self, source: ReadSource, queue: TopicQueue, offset: int, row: PulledQueue, named: str, now: float
    ) -> None:
        """Take a row of an answer to a pull from `offset` on; `named` as of `answered`.

        A replica that brings nothing sends back, whomever it names: it would be asked again and again.
        """
        brings_nothing = row.status != Code.OK or (not row.records and row.next_offset == offset)
        self.answered(source, queue, "" if source.replica and brings_nothing else named, now)

    def answered(self, source: ReadSource, queue: TopicQueue, named: str, now: float) -> None:
        """Take an answer of `source`, which names a replica for what follows in the queue ("" = none)."""
        if len(self._places) >= self._drop_at:
            self._places = {each: place for each, place in self._places.items() if place[1] > now}
            self._drop_at = max(PLACES_MAX, 2 * len(self._places))
        if not named:
            if source.replica:
                self._places[queue] = ("", now + BACK_S)
        elif self._is_resting(named, now):
            self._places[queue] = ("", self._rests[named])
        elif named != source.replica:
            self._places[queue] = (named, now + STAY_S)

    def failed(self, replica: str, now: float) -> None:
        """Note that a replica does not answer, or refuses: its queues are the leader's for a while."""
        self._rests = {address: until for address, until in self._rests.items() if until > now}
        self._rests[replica] = now + REST_S

    def forget(self, queue: TopicQueue) -> None:
        """Drop what is known of a queue that is not read any more."""
        self._places.pop(queue, None)

    def _is_resting(self, replica: str, now: float) -> bool:
        return self._rests.get(replica, now) > now
