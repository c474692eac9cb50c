"""Producer windows: what makes a resent batch harmless and keeps a producer's order over refusals.

A producer numbers its records per (topic, queue). A window remembers the epoch, the next
sequence expected and the last `WINDOW_BATCHES` accepted batches::

    first sequence = next          accept, next += records
    first sequence > next          OUT_OF_SEQUENCE: an earlier batch was refused or is on its way
    a remembered batch             a repeat: answered with the first offsets, once confirmed
    anything else below next       OUT_OF_SEQUENCE: never an ok for what may not be stored
    older epoch                    PRODUCER_FENCED
    newer epoch                    a new start: its sequences begin with 0
    no window                      any first sequence: the broker was started again, or has forgotten

A batch that the store refuses takes `next` back to its first sequence, so that everything
sent after it is refused until it is resent [wire.md, PRODUCE].
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final

from holdmq.errors import Code

WINDOW_BATCHES: Final = 64
"""Batches remembered per window: more than any client keeps in flight."""
WINDOWS_MAX: Final = 200_000
"""Windows in memory (about 400 bytes each): 50 gateway workers on 4,000 queues."""
BATCHES_MAX: Final = 500_000
"""Batches remembered in all windows (about 200 bytes each); past it the longest unused windows go."""
WINDOW_IDLE_S: Final = 24 * 3600.0
"""A window unused this long is forgotten: longer than any client retries."""

Key = tuple[int, str, int]
"""(producer id, topic, queue id)."""


class SequencedBatch:
    """A run that was accepted: its place in the producer's numbering, and once stored its offset."""

    __slots__ = ("base_offset", "first", "is_confirmed", "records", "waiting")

    def __init__(self, first: int, records: int) -> None:
        self.first = first
        self.records = records
        self.base_offset = -1
        self.is_confirmed = False
        self.waiting: list[Any] | None = None

    def wait(self, somebody: Any) -> None:
        """Note who sent this batch again before it was stored."""
        if self.waiting is None:
            self.waiting = []
        self.waiting.append(somebody)

    def take_waiting(self) -> list[Any]:
        """Whoever waits for this batch, once."""
        waiting, self.waiting = self.waiting, None
        return waiting or []


class Window:
    """One producer's recent batches on one queue."""

    __slots__ = ("batches", "epoch", "next", "used_at")

    def __init__(self, epoch: int, first: int, now: float) -> None:
        self.epoch = epoch
        self.next = first
        self.batches: deque[SequencedBatch] = deque()
        self.used_at = now


class Verdict:
    """What `Sequences.offer` decided: `code` OK with `accepted` or `repeat` set, or a refusal."""

    __slots__ = ("accepted", "code", "remark", "repeat")

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


class Sequences:
    """All windows of a broker, least recently used first."""

    def __init__(self, windows_max: int = WINDOWS_MAX, batches_max: int = BATCHES_MAX) -> None:
        self.batches = 0
        self._windows: OrderedDict[Key, Window] = OrderedDict()
        self._windows_max = windows_max
        self._batches_max = batches_max
        self.repeats = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._windows)

    def offer(self, key: Key, epoch: int, first: int, records: int, now: float) -> Verdict:
        """Decide on a run before it is appended; an accepted one must be confirmed or refused later."""
        window = self._window(key, epoch, first, now)
        if epoch < window.epoch:
            return Verdict(Code.PRODUCER_FENCED, remark=f"producer {key[0]} has epoch {window.epoch}")
        if epoch > window.epoch:
            self._restart(window, epoch)
        if first == window.next:
            batch = SequencedBatch(first, records)
            window.batches.append(batch)
            window.next = first + records
            self.batches += 1
            while len(window.batches) > WINDOW_BATCHES and window.batches[0].is_confirmed:
                window.batches.popleft()
                self.batches -= 1
            while self.batches > self._batches_max and len(self._windows) > 1:
                self._evict()
            return Verdict(Code.OK, accepted=batch)
        if first > window.next:
            return Verdict(
                Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: expected {window.next}, got {first}"
            )
        return self._repeat(key, window, first, records)

    def refuse(self, key: Key, epoch: int, first: int, now: float) -> None:
        """The run of this first sequence was refused for a reason that may pass: expect it again."""
        window = self._window(key, epoch, first, now)
        if window.epoch != epoch:
            return
        window.next = min(window.next, first)
        while window.batches and window.batches[-1].first >= first:
            window.batches.pop()
            self.batches -= 1

    def postpone(self, key: Key, epoch: int, first: int, now: float) -> None:
        """The run was refused before it was looked at and will come again; later ones wait for it.

        A repeat of a stored run may be refused like this too: what is stored stays known.
        """
        window = self._window(key, epoch, first, now)
        if epoch > window.epoch:
            self._restart(window, epoch)

    def consume(self, key: Key, epoch: int, first: int, records: int, now: float) -> bool:
        """The run is refused for good: what follows it is welcome. False if it is not its turn."""
        window = self._window(key, epoch, first, now)
        if epoch > window.epoch:
            self._restart(window, epoch)
        if window.epoch == epoch and window.next < first:
            return False
        if window.epoch == epoch and window.next == first:
            window.next = first + records
        return True

    def expire(self, now: float) -> None:
        """Forget windows that were idle for WINDOW_IDLE_S."""
        while self._windows:
            window = next(iter(self._windows.values()))
            if now - window.used_at < WINDOW_IDLE_S:
                return
            self._forget()

    def _restart(self, window: Window, epoch: int) -> None:
        """Whatever comes first: of two batches on their way the first may have been refused unseen."""
        self.batches -= len(window.batches)
        window.epoch, window.next = epoch, 0
        window.batches.clear()

    def _forget(self) -> None:
        window = self._windows.popitem(last=False)[1]
        self.batches -= len(window.batches)

    def _evict(self) -> None:
        self._forget()
        self.evicted += 1

    def _window(self, key: Key, epoch: int, first: int, now: float) -> Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(epoch, first, now)
            if len(self._windows) > self._windows_max:
                self._evict()
            return window
        window.used_at = now
        self._windows.move_to_end(key)
        return window

    def _repeat(self, key: Key, window: Window, first: int, records: int) -> Verdict:
        self.repeats += 1
        for batch in reversed(window.batches):
            if batch.first == first and batch.records == records:
                return Verdict(Code.OK, repeat=batch)
            if batch.first <= first < batch.first + batch.records:
                return Verdict(
                    Code.OUT_OF_SEQUENCE,
                    remark=f"{key[1]}/{key[2]}: {first} (+{records}) came as {batch.first}+{batch.records}",
                )
        return Verdict(Code.OUT_OF_SEQUENCE, remark=f"{key[1]}/{key[2]}: {first} is below {window.next}")
