"""What a persistent session publishes with QoS 2, so that each message is in the log once. Sans-IO.

Every publish carries a generation of its packet id (`holdmq.record.once`); its queue's broker takes one that
is not higher than the newest it knows for a repeat. PUBREL raises it, in the session's row, before PUBCOMP::

    PUBLISH ──► generation of the id, its queue in the row ──► log ──► PUBREC
    PUBREL  ──► the row: the id's generation is higher from now on ──► PUBCOMP

A publish is not written down, so after a crash nobody knows what a client will send again: an id that was not
released on this connection keeps the generation that the row gives it, and one that was gets the newest. Once
it is known what is unreleased (the session ended in order, or `WHOLE_FROM` ids were released since) the row
needs neither: all that is released has the newest generation. As long as something may be unreleased the
row names the queues, too: what is sent again goes where it went. Source: mqtt.md, Inbound QoS 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdmq.record.once import NO_GENERATION, Generation, Once
from holdmq.wire.session_state import ReceivedRow, ids_of, ranges_of

WHOLE_FROM: Final = 1_000
"""Ids released on a connection after which all that was unreleased before it has been sent again: a client
does that first [MQTT-4.4.0-1]. It bounds the row of a client that never comes to a good end."""
QUEUES_MAX: Final = 256
"""Log topics that a session publishes to with QoS 2: as many as MQTT creates."""

Queue = tuple[str, int]
"""A queue: (broker, queue id)."""


class ReceivedWrite:
    """What a row that is on its way says: `completed` are PUBCOMPs (packet id → reason code) that leave when
    it is written, `bound` are called then."""

    __slots__ = ("bound", "completed", "queues", "settled")

    def __init__(
        self,
        completed: dict[int, int],
        queues: dict[str, Queue],
        settled: int,
        bound: list[Callable[[], None]],
    ) -> None:
        self.completed = completed
        self.queues = queues
        self.settled = settled
        self.bound = bound


class ReceivedQueues:
    """Generations and queues of one session, on a connection of the session's `epoch`.

    `queues` are those in its row, by log topic. `is_whole`: every unreleased id is known. `recorded` are
    unreleased ids that the log has, as the row says.
    """

    __slots__ = (
        "_base",
        "_binding",
        "_bound",
        "_completed",
        "_current",
        "_epoch",
        "_has_released",
        "_inherited",
        "_released",
        "_settled",
        "_taken",
        "_uid",
        "_wanted",
        "is_whole",
        "queues",
        "recorded",
    )

    def __init__(self, uid: int, epoch: int, row: ReceivedRow | None = None) -> None:
        self._uid = uid
        self._epoch = epoch
        self._base: Generation = NO_GENERATION
        self._inherited: dict[int, Generation] = {}
        self.queues: dict[str, Queue] = {}
        self.recorded: list[int] = []
        self._taken: dict[int, Generation] = {}
        self.is_whole = True
        if row is not None:
            self._base = row.base
            for generation, ranges in row.generations:
                for packet_id in ids_of(ranges):
                    self._inherited[packet_id] = generation
            self.queues = dict(row.queues)
            self.recorded = ids_of(row.recorded)
            self._taken = {i: self._inherited.get(i, self._base) for i in self.recorded}
            self.is_whole = not row.queues
        self._current = self._base
        self._released: set[int] = set()
        self._has_released = False
        self._completed: dict[int, int] | None = None
        self._wanted: dict[str, Queue] = {}
        self._bound: list[Callable[[], None]] = []
        self._binding = 0
        self._settled = 0

    # Publishes

    def note(self, packet_id: int) -> bytes:
        """The property of a publish with this id, which is unreleased from now on."""
        generation = self._taken.get(packet_id)
        if generation is None:
            if self.is_whole or packet_id in self._released:
                generation = self._current
            else:
                generation = self._inherited.get(packet_id, self._base)
            self._taken[packet_id] = generation
        return Once(self._uid, packet_id, generation, self._epoch, self._settled).pair()

    def bind(self, topic: str, queue: Queue, bound: Callable[[], None]) -> bool:
        """Have the row name the queue of a topic, and call `bound` then; False: there are QUEUES_MAX."""
        if len(self.queues) + len(self._wanted) >= QUEUES_MAX and topic not in self.queues:
            return False
        self._wanted[topic] = queue
        self._bound.append(bound)
        self._binding += 1
        return True

    @property
    def is_binding(self) -> bool:
        """Whether a publish waits for its queue to be written down."""
        return self._binding > 0

    # PUBREL

    def release(self, packet_id: int, reason_code: int) -> None:
        """PUBREL came: its PUBCOMP leaves with the next row that is written."""
        self._taken.pop(packet_id, None)
        if not self.is_whole:
            self._released.add(packet_id)
        self._has_released = True
        if self._completed is None:
            self._completed = {}
        self._completed[packet_id] = reason_code

    # The row

    def row(self, unreleased: dict[int, bool] | None, *, is_over: bool = False) -> ReceivedRow:
        """What the row must say now; `unreleased` are ids → whether the log surely has their publish.

        `is_over`: the connection ends with it.
        """
        unreleased = unreleased or {}
        # Those that were refused are free again.
        self._taken = {i: generation for i, generation in self._taken.items() if i in unreleased}
        if self._has_released:
            self._has_released = False
            begun, count = self._current
            self._current = (self._epoch, count + 1) if begun == self._epoch else (self._epoch, 1)
        if not self.is_whole and len(self._released) >= WHOLE_FROM:
            self.is_whole = True
        if self.is_whole:
            self._base = self._current
            self._inherited.clear()
            self._released.clear()
        generations = {**self._inherited, **dict.fromkeys(self._released, self._current), **self._taken}
        by_generation: dict[Generation, list[int]] = {}
        for packet_id, generation in generations.items():
            if generation != self._base:
                by_generation.setdefault(generation, []).append(packet_id)
        queues = {**self.queues, **self._wanted}
        if is_over and self.is_whole and not self._taken:
            queues = {}
        return ReceivedRow(
            self._base,
            [(generation, ranges_of(ids)) for generation, ids in by_generation.items()],
            ranges_of(i for i in self._taken if unreleased[i]),
            queues,
        )

    def begin_write(self, unreleased: dict[int, bool] | None) -> ReceivedWrite:
        """The row as it is now is on its way."""
        completed, self._completed = self._completed or {}, None
        bound, self._bound = self._bound, []
        wanted, self._wanted = self._wanted, {}
        return ReceivedWrite(completed, wanted, self._settled_by(unreleased or {}), bound)

    def _settled_by(self, unreleased: dict[int, bool]) -> int:
        """The count below which nobody sends a generation of this epoch again, once the row says so."""
        if not self.is_whole or self._current[0] != self._epoch:
            return 0
        settled = self._current[1]
        for packet_id, (begun, count) in self._taken.items():
            if not unreleased.get(packet_id, False):
                settled = min(settled, count if begun == self._epoch else 0)
        return settled

    def written(self, write: ReceivedWrite) -> None:
        """The row has it; the caller sends its PUBCOMPs and calls its `bound`."""
        self.queues |= write.queues
        self._binding -= len(write.bound)
        self._settled = max(self._settled, write.settled)

    def failed(self, write: ReceivedWrite) -> None:
        """Take a row back that did not arrive, as far as is known: the next one says it, too."""
        if write.completed:
            self._completed = {**write.completed, **(self._completed or {})}
        self._wanted = {**write.queues, **self._wanted}
        self._bound = [*write.bound, *self._bound]
