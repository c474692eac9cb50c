"""QoS 2 publishes that the log has, by (session uid, packet id): what is sent again is not stored again.

The record says who it is (`holdmq.record.once`). Per packet id the newest generation and its offset are kept;
a record whose generation is not higher is a repeat. What a session's records say is settled is forgotten, so
that a session mostly has a handful of ids here, whether or not it is connected; at the bound those go whose
sessions published longest ago. Like the windows of producers it is in their snapshot, and completed from the
log behind it (`apply`). Sans-IO. Source: mqtt.md, Inbound QoS 2.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from holdmq.errors import RecordError
from holdmq.record.batch import Ints
from holdmq.record.each import properties_at
from holdmq.record.once import ONCE_KEY, WILL_UID, Generation, Once, once_of
from storage.api.batches import Batch
from storage.api.timer import TIMER_TOPIC

IDS_MAX: Final = 200_000
"""Packet ids remembered (about 300 bytes each): 20,000 sessions that publish, ten on their way each."""
WILLS_MAX: Final = 20_000
"""Of them wills: one is sent again within minutes, if ever, and must not drive out what is for weeks."""
TRIM_FROM: Final = 8
"""Ids of one session before what is settled is looked for."""


class Sifted(NamedTuple):
    """A run without what the log has: the indices that are left, and what they say of themselves.

    `offset` is where the first one is that was left out; -1 = nowhere in particular.
    """

    kept: list[int]
    notes: list[tuple[int, Once]]
    offset: int


class _Session:
    """`ids` has (generation, offset) by packet id; the longest known come first."""

    __slots__ = ("epoch", "ids", "trim_at")

    def __init__(self, trim_at: int) -> None:
        self.epoch = 0
        self.ids: dict[int, tuple[Generation, int]] = {}
        self.trim_at = trim_at


class ReceivedIds:
    """All that one broker knows. Counters: `repeats`, `stale` (of older connections), `evicted` (ids)."""

    def __init__(
        self, ids_max: int = IDS_MAX, trim_from: int = TRIM_FROM, wills_max: int = WILLS_MAX
    ) -> None:
        self.ids = 0
        self.repeats = self.stale = self.evicted = 0
        self._ids_max = ids_max
        self._wills_max = wills_max
        self._wills: deque[int] = deque()
        self._trim_from = trim_from
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._on_their_way: set[tuple[int, int]] = set()

    # What comes

    def sift(self, properties: Sequence[bytes]) -> Sifted | None:
        """Leave out of a run what the log has; `properties` are its records' encoded ones.

        What is left is on its way from then on: `confirm` or `refuse` its notes. None = of one record it
        is not known yet, as it is on its way: nothing is changed, and the run may come again.
        """
        kept: list[int] = []
        notes: list[tuple[int, Once]] = []
        offset = -1
        taken: dict[tuple[int, int], Generation] = {}
        repeats = stale = 0
        for index, raw in enumerate(properties):
            once = once_of(raw)
            if once is None:
                kept.append(index)
                continue
            key = (once.uid, once.packet_id)
            session = self._sessions.get(once.uid)
            known = None if session is None else session.ids.get(once.packet_id)
            if session is not None and once.epoch < session.epoch:
                stale += 1
            elif known is not None and once.generation <= known[0]:
                repeats += 1
                offset = known[1] if offset < 0 else offset
            elif once.generation <= taken.get(key, (-1, 0)):
                repeats += 1
            elif key in self._on_their_way:
                return None
            else:
                taken[key] = once.generation
                notes.append((len(kept), once))
                kept.append(index)
        self.repeats += repeats
        self.stale += stale
        self._on_their_way.update(taken)
        return Sifted(kept, notes, offset)

    def confirm(self, notes: Iterable[tuple[int, Once]], base_offset: int) -> None:
        """The log has them, the first of their run at `base_offset` (-1 = where they wait for their time)."""
        for index, once in notes:
            self._on_their_way.discard((once.uid, once.packet_id))
            self._note(once, base_offset + index if base_offset >= 0 else -1)
        self._evict()

    def refuse(self, notes: Iterable[tuple[int, Once]]) -> None:
        """The log has them not."""
        for _, once in notes:
            self._on_their_way.discard((once.uid, once.packet_id))

    def _note(self, once: Once, offset: int) -> None:
        session = self._sessions.get(once.uid)
        if session is None:
            session = self._sessions[once.uid] = _Session(self._trim_from)
            if once.uid & WILL_UID:
                self._wills.append(once.uid)
        else:
            self._sessions.move_to_end(once.uid)
        session.epoch = max(session.epoch, once.epoch)
        known = session.ids.get(once.packet_id)
        if known is None:
            self.ids += 1
        elif known[0] >= once.generation:
            return
        session.ids[once.packet_id] = (once.generation, offset)
        if once.settled and len(session.ids) > session.trim_at:
            self._trim(session, (once.epoch, once.settled))

    def _trim(self, session: _Session, settled: Generation) -> None:
        left = {packet_id: known for packet_id, known in session.ids.items() if known[0] >= settled}
        self.ids -= len(session.ids) - len(left)
        session.ids = left
        session.trim_at = max(self._trim_from, 2 * len(left))

    def _evict(self) -> None:
        while len(self._wills) > self._wills_max:
            will = self._sessions.pop(self._wills.popleft(), None)
            self.ids -= 0 if will is None else len(will.ids)
        while self.ids > self._ids_max and len(self._sessions) > 1:
            _, session = self._sessions.popitem(last=False)
            self.ids -= len(session.ids)
            self.evicted += len(session.ids)

    # Starts

    def apply(self, batch: Batch) -> None:
        """Take the next records of the log."""
        data = bytes(batch.records)
        chosen = _noted(data, batch.starts)
        first = 0
        at = 0
        for run in batch.runs if chosen else ():
            last = first + run.count
            while at < len(chosen) and chosen[at] < last:
                index = chosen[at]
                start, size = int(batch.starts[index]), int(batch.sizes[index])
                once = once_of(data[properties_at(data, start) : start + size - 8])
                if once is not None:
                    waits = run.topic == TIMER_TOPIC
                    self._note(once, -1 if waits else run.base_offset + index - first)
                at += 1
            first = last
        self._evict()

    def uids(self) -> list[int]:
        """The sessions, the longest unused first."""
        return list(self._sessions)

    def capture(self, uid: int) -> list[Any] | None:
        """What a snapshot has of a session; None = it was forgotten meanwhile."""
        session = self._sessions.get(uid)
        if session is None:
            return None
        ids = [[packet_id, *generation, offset] for packet_id, (generation, offset) in session.ids.items()]
        return [uid, session.epoch, ids]

    def load(self, content: Any) -> None:
        """Take a snapshot's sessions, in their order; RecordError if they are none."""
        try:
            for number in sorted(content):
                uid, epoch, ids = content[number]
                for packet_id, begun, count, offset in ids:
                    once = Once(int(uid), int(packet_id), (int(begun), int(count)), int(epoch), 0)
                    self._note(once, int(offset))
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise RecordError(f"the snapshot of QoS 2 publishes is malformed: {error}") from None
        self._evict()


def _noted(data: bytes, starts: Ints) -> list[int]:
    """Which records may say what they are known by: those that have the key somewhere."""
    found: list[int] = []
    at = data.find(ONCE_KEY)
    while at >= 0:
        index = int(np.searchsorted(starts, at, "right")) - 1
        found.append(index)
        if index + 1 == len(starts):
            break
        at = data.find(ONCE_KEY, int(starts[index + 1]))
    return found
