"""Producer windows: what makes a resent batch harmless and keeps a producer's order over refusals.

A producer numbers its records per (topic, queue). A window remembers the epoch, the next
sequence expected and the last `WINDOW_BATCHES` accepted batches::

    first sequence = next          accept, next += records
    first sequence > next          OUT_OF_SEQUENCE: an earlier batch was refused or is on its way
    a remembered batch             a repeat: answered with the first offsets, once confirmed
    anything else below next       OUT_OF_SEQUENCE: never an ok for what may not be stored
    older epoch                    PRODUCER_FENCED
    newer epoch                    a new start: its sequences begin with 0
    no window                      a new start, or forgotten: 0 begins one, anything else is OUT_OF_SEQUENCE

A batch that the store refuses takes `next` back to its first sequence, so that everything
sent after it is refused until it is resent [wire.md, PRODUCE].

Windows survive restarts (`broker.produce.core.produced`): which records of a queue are whose follows from
*bindings*, each written in front of the first batch that it holds for::

    records of this queue with this mark are, from here on, this producer's, from this sequence on

A window whose last binding still holds needs no other: an append costs nothing for it. What a start
found in the log is remembered with the records' CRCs, and a run counts as a repeat of it only if its
records are the same: `compare`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final

from holdmq.errors import Code

WINDOW_BATCHES: Final = 64
"""Batches remembered per window: more than any client keeps in flight."""
WINDOWS_MAX: Final = 200_000
"""Windows in memory (about 400 bytes each): 50 gateway workers on 4,000 queues."""
RECOVERED_RECORDS_MAX: Final = 65_536
"""Records that a window remembers of what a start found: more than any producer has unanswered."""
CRC_BYTES: Final = 4
BATCHES_MAX: Final = 500_000
"""Batches remembered in all windows (about 200 bytes each); past it the longest unused windows go."""
WINDOW_IDLE_S: Final = 24 * 3600.0
"""A window unused this long is forgotten: longer than any client retries."""

Key = tuple[int, str, int]
"""(producer id, topic, queue id)."""


Mark = tuple[str, int, int]
"""(topic, queue id, mark): a mark is what a producer's records share (`broker.produce.core.produced`)."""


class SequencedBatch:
    """A run that was accepted: its place in the producer's numbering, and once stored its offset.

    `needs_binding`: a binding must go in front of it. `crcs`: the BodyCRCs of its records if a start found
    them in the log, where nothing says how they were cut into runs; empty for a run that is known as one.
    """

    __slots__ = (
        "base_offset",
        "crcs",
        "first",
        "is_confirmed",
        "is_torn",
        "needs_binding",
        "records",
        "waiting",
    )

    def __init__(self, first: int, records: int) -> None:
        self.first = first
        self.records = records
        self.base_offset = -1
        self.is_confirmed = False
        self.needs_binding = False
        self.crcs = b""
        self.is_torn = False
        self.waiting: list[Any] | None = None

    @classmethod
    def stored(cls, first: int, records: int, base_offset: int, crcs: bytes = b"") -> SequencedBatch:
        """One that the log has."""
        batch = cls(first, records)
        batch.base_offset = base_offset
        batch.is_confirmed = True
        batch.crcs = crcs
        return batch

    def wait(self, somebody: Any) -> None:
        """Note who sent this batch again before it was stored."""
        if self.waiting is None:
            self.waiting = []
        self.waiting.append(somebody)

    def take_waiting(self) -> list[Any]:
        """Whoever waits for this batch, once."""
        waiting, self.waiting = self.waiting, None
        return waiting or []


class ProducerWindow:
    """One producer's recent batches on one queue.

    `is_bound`: what it is given next needs no binding. `mark` is of its last binding (None = none yet), and
    `bound_at` the log position of the last one that is confirmed, for `bound_mark` (-1 = none).
    """

    __slots__ = ("batches", "bound_at", "bound_mark", "epoch", "is_bound", "mark", "next", "used_at")

    def __init__(self, epoch: int, first: int, now: float) -> None:
        self.epoch = epoch
        self.next = first
        self.batches: deque[SequencedBatch] = deque()
        self.used_at = now
        self.is_bound = False
        self.mark: int | None = None
        self.bound_at = -1
        self.bound_mark = 0

    def stored(self) -> tuple[int, list[SequencedBatch]]:
        """What the log has of it: the next sequence, and the batches."""
        batches = list(self.batches)
        following = self.next
        while batches and not batches[-1].is_confirmed:
            following = batches.pop().first
        return following, batches


class Verdict:
    """What `Sequences.offer` decided: `code` OK with `accepted` or `repeat` set, or a refusal.

    `must_compare`: ask `Sequences.compare` instead. `stored`: so many of the run's first records are in the
    log already, from `base_offset` on (-1 = not in one piece); `accepted` is the rest.
    """

    __slots__ = ("accepted", "base_offset", "code", "must_compare", "remark", "repeat", "stored")

    def __init__(
        self,
        code: Code,
        accepted: SequencedBatch | None = None,
        repeat: SequencedBatch | None = None,
        remark: str = "",
    ) -> None:
        self.code = code
        self.accepted = accepted
        self.repeat = repeat
        self.remark = remark
        self.must_compare = False
        self.stored = 0
        self.base_offset = -1


class Sequences:
    """All windows of a broker, least recently used first."""

    def __init__(self, windows_max: int = WINDOWS_MAX, batches_max: int = BATCHES_MAX) -> None:
        self.batches = 0
        self._windows: OrderedDict[Key, ProducerWindow] = OrderedDict()
        self._owners: dict[Mark, ProducerWindow] = {}
        self._windows_max = windows_max
        self._batches_max = batches_max
        self.repeats = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._windows)

    def offer(self, key: Key, epoch: int, first: int, records: int, now: float) -> Verdict:
        """Decide on a run before it is appended; an accepted one must be confirmed or refused later."""
        window = self._windows.get(key)
        if window is None:
            if first:
                return Verdict(Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: {first} begins no window")
            window = self._add(key, ProducerWindow(epoch, 0, now))
        else:
            window.used_at = now
            self._windows.move_to_end(key)
        if epoch < window.epoch:
            return Verdict(Code.PRODUCER_FENCED, remark=f"producer {key[0]} has epoch {window.epoch}")
        if epoch > window.epoch:
            self._restart(window, epoch)
        if first == window.next:
            return Verdict(Code.OK, accepted=self._accept(window, first, records))
        if first > window.next:
            return Verdict(
                Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: expected {window.next}, got {first}"
            )
        return self._repeat(key, window, first, records)

    def compare(self, key: Key, first: int, records: int, crcs: bytes) -> Verdict:
        """Decide on a run that the log may have since before a start, by its records' BodyCRCs of 4 bytes.

        To be called in the turn in which `offer` said `must_compare`. What the log has of the run may be a
        part of it: a crash cut it; then the rest is accepted.
        """
        window = self._windows[key]
        end = first + records
        at = first
        base_offset = -1
        is_whole = is_confirmed = True
        last: SequencedBatch | None = None
        for batch in window.batches:
            if at >= end or batch.first + batch.records <= at:
                continue
            if batch.first > at:
                break
            taken = min(batch.first + batch.records, end) - at
            begin = at - batch.first
            if batch.crcs:
                sums = crcs[(at - first) * CRC_BYTES : (at - first + taken) * CRC_BYTES]
                if batch.crcs[begin * CRC_BYTES : (begin + taken) * CRC_BYTES] != sums:
                    break
            elif begin or taken < batch.records or (last is None and not batch.is_torn):
                break
            if last is None:
                base_offset = -1 if batch.base_offset < 0 else batch.base_offset + begin
            elif batch.base_offset + begin != base_offset + at - first:
                is_whole = False
            is_confirmed = is_confirmed and batch.is_confirmed
            last = batch
            at += taken
        if last is None or (at < end and at != window.next):
            return Verdict(Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: the log has another {first}")
        if not is_whole:
            base_offset = -1
        if at < end:
            verdict = Verdict(Code.OK, accepted=self._accept(window, at, end - at))
            verdict.stored, verdict.base_offset = at - first, base_offset
            return verdict
        if not is_confirmed:
            # The rest is on its way; its answer is the whole run's.
            return Verdict(Code.OK, repeat=last)
        return Verdict(Code.OK, repeat=SequencedBatch.stored(first, records, base_offset))

    def bind(self, key: Key, mark: int) -> int:
        """A binding goes in front of the window's newest batch; its epoch.

        Whose records had this mark in this queue until now needs one again.
        """
        window = self._windows[key]
        owned = (key[1], key[2], mark)
        owner = self._owners.get(owned)
        if owner is not None and owner is not window:
            owner.is_bound = False
        if window.mark is not None and window.mark != mark:
            self._disown(key, window)
        self._owners[owned] = window
        window.mark = mark
        window.is_bound = True
        return window.epoch

    def bound(self, key: Key, epoch: int, mark: int, position: int) -> None:
        """The log has a binding of this window at this position."""
        window = self._windows.get(key)
        if window is not None and window.epoch == epoch:
            window.bound_at, window.bound_mark = position, mark

    def restore(self, key: Key, window: ProducerWindow) -> None:
        """Take a window that a start has put together; the longest unused come first."""
        self._add(key, window)
        self.batches += len(window.batches)
        if window.is_bound and window.mark is not None:
            self._owners[key[1], key[2], window.mark] = window
        while self.batches > self._batches_max and len(self._windows) > 1:
            self._evict()

    def unbind(self, key: Key) -> None:
        """The log lacks records of the window's newest run, or of one that it was given before."""
        window = self._windows.get(key)
        if window is not None:
            window.is_bound = False

    def keys(self) -> list[Key]:
        """The keys of all windows, the longest unused first."""
        return list(self._windows)

    def window(self, key: Key) -> ProducerWindow | None:
        """A window, to be read only."""
        return self._windows.get(key)

    def refuse(self, key: Key, epoch: int, first: int, now: float) -> None:
        """The run of this first sequence was refused for a reason that may pass: expect it again."""
        window = self._windows.get(key)
        if window is None or window.epoch != epoch:
            return
        window.used_at = now
        window.next = min(window.next, first)
        window.is_bound = False
        while window.batches and window.batches[-1].first >= first:
            window.batches.pop()
            self.batches -= 1

    def postpone(self, key: Key, epoch: int, first: int, now: float) -> None:
        """The run was refused before it was looked at and will come again; later ones wait for it.

        A repeat of a stored run may be refused like this too: what is stored stays known.
        """
        window = self._windows.get(key)
        if window is not None:
            window.used_at = now
            self._windows.move_to_end(key)
            if epoch > window.epoch:
                self._restart(window, epoch)

    def consume(self, key: Key, epoch: int, first: int, records: int, now: float) -> bool:
        """The run is refused for good: what follows it is welcome. False if it is not its turn."""
        window = self._windows.get(key)
        if window is None:
            if first:
                return False
            window = self._add(key, ProducerWindow(epoch, 0, now))
        window.used_at = now
        self._windows.move_to_end(key)
        if epoch > window.epoch:
            self._restart(window, epoch)
        if window.epoch == epoch and window.next < first:
            return False
        if window.epoch == epoch and window.next == first:
            window.next = first + records
            # The log does not say that these are missing.
            window.is_bound = False
        return True

    def expire(self, now: float) -> None:
        """Forget windows that were idle for WINDOW_IDLE_S."""
        while self._windows:
            window = next(iter(self._windows.values()))
            if now - window.used_at < WINDOW_IDLE_S:
                return
            self._forget()

    def _accept(self, window: ProducerWindow, first: int, records: int) -> SequencedBatch:
        batch = SequencedBatch(first, records)
        batch.needs_binding = not window.is_bound
        batches = window.batches
        batches.append(batch)
        window.next = first + records
        self.batches += 1
        while len(batches) > WINDOW_BATCHES and batches[0].is_confirmed:
            batches.popleft()
            self.batches -= 1
        while self.batches > self._batches_max and len(self._windows) > 1:
            self._evict()
        return batch

    def _restart(self, window: ProducerWindow, epoch: int) -> None:
        """Whatever comes first: of two batches on their way the first may have been refused unseen."""
        self.batches -= len(window.batches)
        window.epoch, window.next = epoch, 0
        window.is_bound, window.bound_at = False, -1
        window.batches.clear()

    def _forget(self) -> None:
        key, window = self._windows.popitem(last=False)
        self.batches -= len(window.batches)
        self._disown(key, window)

    def _disown(self, key: Key, window: ProducerWindow) -> None:
        if window.mark is None:
            return
        owned = (key[1], key[2], window.mark)
        if self._owners.get(owned) is window:
            del self._owners[owned]

    def _evict(self) -> None:
        self._forget()
        self.evicted += 1

    def _add(self, key: Key, window: ProducerWindow) -> ProducerWindow:
        self._windows[key] = window
        if len(self._windows) > self._windows_max:
            self._evict()
        return window

    def _repeat(self, key: Key, window: ProducerWindow, first: int, records: int) -> Verdict:
        self.repeats += 1
        for batch in reversed(window.batches):
            if (batch.crcs or batch.is_torn) and batch.first <= first < batch.first + batch.records:
                verdict = Verdict(Code.OUT_OF_SEQUENCE)
                verdict.must_compare = True
                return verdict
            if batch.first == first and batch.records == records:
                return Verdict(Code.OK, repeat=batch)
            if batch.first <= first < batch.first + batch.records:
                return Verdict(
                    Code.OUT_OF_SEQUENCE,
                    remark=f"{key[1]}/{key[2]}: {first} (+{records}) came as {batch.first}+{batch.records}",
                )
        return Verdict(Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: {first} is below {window.next}")
