"""A log of a replica for simulations.

One record at each position, and a disk that can lose what was not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from broker.replication.core.log_view import LogView
from storage.api.replication import Epoch


class Produced(NamedTuple):
    """A record: which producer sent it, its sequence, the epoch in which it was appended, and its level."""

    producer: int
    sequence: int
    epoch: int
    level: int = 1


@dataclass
class Platter:
    """What a replica's disk has. `records` beyond `synced` go with the power, from some position on.

    `whole_in` is the boot of the machine in which the copy was known to be whole (None = it is not);
    `checkpoint` is a confirmed position that a restart knows of.
    """

    store_id: bytes
    first: int = 0
    records: list[Produced] = field(default_factory=list)
    synced: int = 0
    epochs: list[Epoch] = field(default_factory=lambda: [Epoch(1, 0)])
    whole_in: int | None = None
    checkpoint: int = 0

    @property
    def end(self) -> int:
        """Behind the last record."""
        return self.first + len(self.records)

    def at(self, position: int) -> Produced:
        """The record at a position."""
        return self.records[position - self.first]

    def copy(self) -> Platter:
        """The same content on another disk, as a backup has it."""
        return Platter(
            self.store_id,
            self.first,
            list(self.records),
            self.synced,
            list(self.epochs),
            self.whole_in,
            self.checkpoint,
        )

    def lose_power(self, random: Random) -> None:
        """Some of what was not synced is gone."""
        self.cut(random.randint(self.synced, self.end))
        self.synced = self.end

    def cut(self, end: int) -> None:
        """Nothing is left from `end` on."""
        del self.records[max(0, end - self.first) :]
        self.synced = min(self.synced, self.end)
        self.checkpoint = min(self.checkpoint, self.end)
        self.epochs = [epoch for epoch in self.epochs if epoch.start <= end] or [Epoch(1, 0)]


class ModelLog:
    """The log that a process has open: appends wait for the disk, `moved` is told when they are there."""

    def __init__(
        self, platter: Platter, is_sync: bool, boot: int, later: Later, moved: Callable[[], None]
    ) -> None:
        self.platter = platter
        self.confirmed = platter.checkpoint
        self.is_full = False
        self.is_slow = False
        self.is_stuck = False
        self.has_refused = False
        self.refused = 0
        self._is_sync = is_sync
        self._boot = boot
        self._later = later
        self._moved = moved
        self._queued: list[Produced] = []
        self._is_writing = False
        self._generation = 0
        is_whole = platter.whole_in is not None and (is_sync or platter.whole_in == boot)
        platter.whole_in = boot if is_whole else None
        platter.synced = platter.end  # recovery syncs what it keeps

    def view(self) -> LogView:
        """What the core is told."""
        platter = self.platter
        return LogView(
            platter.store_id,
            platter.first,
            self.appended_end,
            platter.end,
            platter.synced if self._is_sync else platter.end,
            self.confirmed,
            tuple(platter.epochs),
            platter.whole_in is not None,
            self.is_stuck and bool(self._queued),
            self.refused,
        )

    @property
    def appended_end(self) -> int:
        """Behind the last record, written or not."""
        return self.platter.end + len(self._queued)

    def append(self, records: list[Produced]) -> None:
        """Take records; they are written some time later."""
        self._queued += records
        if not self._is_writing:
            self._is_writing = True
            self._later(0.2 if self.is_slow else 0.002, self._write)

    def _write(self) -> None:
        if self.is_stuck:
            self._later(0.1, self._write)
            return
        self._is_writing = False
        if self.is_full:
            # Everything queued is taken back: nobody was served it, as it never was written.
            self._queued.clear()
            self.has_refused = True
            self._moved()
            return
        self.platter.records += self._queued
        self._queued.clear()
        if self._is_sync:
            end, generation = self.platter.end, self._generation
            self._later(0.1 if self.is_slow else 0.004, lambda: self._synced(end, generation))
        self._moved()

    def _synced(self, end: int, generation: int) -> None:
        if generation == self._generation:
            self.platter.synced = max(self.platter.synced, min(end, self.platter.end))
            self._moved()

    def sync_sometimes(self) -> None:
        """What the flusher does under async: sync, and a checkpoint."""
        self.platter.synced = self.platter.end if not self._is_sync else self.platter.synced
        self.platter.checkpoint = max(self.platter.checkpoint, min(self.confirmed, self.platter.synced))

    def confirm_to(self, limit: int) -> None:
        """Everything below is confirmed."""
        self.confirmed = max(self.confirmed, limit)

    def begin_epoch(self, epoch: int) -> None:
        """Durable at once; what is queued was fetched before, and is not of it."""
        self.platter.epochs.append(Epoch(epoch, self.platter.end))

    def cut(self, position: int, epochs_kept: int) -> None:
        """Cut to a common prefix."""
        self._generation += 1
        self._queued.clear()
        self.platter.cut(position)
        self.platter.epochs = self.platter.epochs[:epochs_kept] or [Epoch(1, 0)]
        self.confirmed = min(self.confirmed, position)

    def start_over(self, store_id: bytes, position: int, epochs: list[Epoch]) -> None:
        """An empty log of another store that begins at `position`."""
        self._generation += 1
        self._queued.clear()
        platter = self.platter
        platter.store_id = store_id
        platter.first = platter.synced = platter.checkpoint = position
        platter.records.clear()
        platter.epochs = epochs
        platter.whole_in = None
        self.confirmed = position

    def trust(self, is_whole: bool) -> None:
        """Note durably whether the copy is whole."""
        self.platter.whole_in = self._boot if is_whole else None

    def drop_below(self, position: int) -> None:
        """Retention."""
        gone = (
            min(position, self.confirmed, self.platter.synced, self.platter.checkpoint) - self.platter.first
        )
        if gone > 0:
            del self.platter.records[:gone]
            self.platter.first += gone


Later = Callable[[float, Callable[[], None]], None]
