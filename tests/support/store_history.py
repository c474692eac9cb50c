"""Tells from what producers were told and readers saw whether a store kept its promise under faults.

After the Kafka workload of Jepsen: every record has a number of its own that is appended once; an append is
acknowledged, refused, or unknown. The store may lose acknowledged records only by a rise of its epoch that it
reported, with how many, and only behind the position at which that epoch begins.

Nothing here waits, reads a clock or knows an engine. Whoever drives the store tells each event as it happens,
and at the end what each queue has; `anomalies` is what must be empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

Queue = tuple[str, int]
"""A topic and the id of a queue."""


class Kind(Enum):
    """What a store must not do."""

    LOST = "an acknowledged record is gone, and no rise of the epoch accounts for it"
    UNDERREPORTED = "a rise of the epoch took more acknowledged records than it reported"
    UNSEEN = "a record that was read is gone, and no rise of the epoch accounts for it"
    MOVED = "an acknowledged record is readable at another offset"
    INCONSISTENT = "one epoch, queue and offset had two records"
    DUPLICATE = "a record is there twice"
    ABORTED_READ = "a refused record was read"
    PHANTOM = "a record was read that nobody appended to this queue"
    DISORDER = "a producer's records are not in its order"
    SKIPPED = "a reader went on without records in between"
    WENT_BACK = "a reader was given offsets again, or an older epoch"
    EPOCH = "epochs do not rise"


class Anomaly(NamedTuple):
    """One breach of the promise, and where."""

    kind: Kind
    where: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.where}"


class Outcome(Enum):
    """What a producer was told of an append."""

    UNKNOWN = "nothing, or that nobody knows"
    ACKNOWLEDGED = "it is stored"
    REFUSED = "nothing of it is stored"


class Attempt:
    """One append of a producer: its numbers, and what became of it."""

    __slots__ = ("base_offset", "epoch", "numbers", "outcome", "position", "producer", "queue")

    def __init__(self, producer: str, queue: Queue, numbers: list[int]) -> None:
        self.producer = producer
        self.queue = queue
        self.numbers = numbers
        self.outcome = Outcome.UNKNOWN
        self.epoch = self.base_offset = self.position = -1


class Rise(NamedTuple):
    """An epoch began at a log position; `lost` acknowledged records behind it are reported as gone."""

    epoch: int
    start: int
    lost: int


class Sighting(NamedTuple):
    """Somebody saw a number at an offset of a queue, in an epoch."""

    epoch: int
    queue: Queue
    offset: int
    number: int
    by: str


class _Final(NamedTuple):
    epoch: int
    first_offset: int
    numbers: list[int]


class StoreHistory:
    """Collects what happened to one store, whoever owned it, and finds what must not have."""

    def __init__(self) -> None:
        self._attempts: list[Attempt] = []
        self._rises: list[Rise] = []
        self._sightings: list[Sighting] = []
        self._finals: dict[Queue, _Final] = {}
        self._readers: dict[tuple[str, Queue], tuple[int, int]] = {}
        self._anomalies: list[Anomaly] = []

    # What producers do.

    def attempt(self, producer: str, queue: Queue, numbers: Sequence[int]) -> Attempt:
        """A producer appends records with these numbers to a queue: rising, and never appended before.

        Unknown until `acknowledged` or `refused` says otherwise.
        """
        attempt = Attempt(producer, queue, list(numbers))
        self._attempts.append(attempt)
        return attempt

    def acknowledged(self, attempt: Attempt, epoch: int, base_offset: int, position: int) -> None:
        """The store said that all of it is stored from `base_offset` on, in the log at `position`."""
        attempt.outcome, attempt.epoch = Outcome.ACKNOWLEDGED, epoch
        attempt.base_offset, attempt.position = base_offset, position

    def refused(self, attempt: Attempt) -> None:
        """The store said that nothing of it is stored, nor will be."""
        attempt.outcome = Outcome.REFUSED

    # What the store reports.

    def rose(self, epoch: int, start: int, lost: int) -> None:
        """The store reported an epoch that begins at log position `start`, after a loss of `lost` records.

        In the order of the epochs; every owner may tell it again.
        """
        rise = Rise(epoch, start, lost)
        known = next((each for each in self._rises if each.epoch == epoch), None)
        if known is not None:
            if known.start != start:
                self._note(Kind.EPOCH, f"epoch {epoch} begins at {known.start} and at {start}")
            elif lost > known.lost:
                self._rises[self._rises.index(known)] = rise
            return
        if self._rises and epoch < self._rises[-1].epoch:
            self._note(Kind.EPOCH, f"epoch {epoch} begins after epoch {self._rises[-1].epoch}")
        self._rises.append(rise)

    # What readers see.

    def read(self, reader: str, queue: Queue, epoch: int, offset: int, numbers: Sequence[int]) -> None:
        """A reader was given these numbers from `offset` on."""
        at_epoch, expected = self._readers.get((reader, queue), (0, offset))
        where = f"{reader} of {queue}: {offset} in epoch {epoch} after {expected} in epoch {at_epoch}"
        if epoch < at_epoch or (epoch == at_epoch and offset < expected):
            self._note(Kind.WENT_BACK, where)
        elif offset > expected:
            self._note(Kind.SKIPPED, where)
        self._readers[reader, queue] = (epoch, offset + len(numbers))
        self._saw(reader, queue, epoch, offset, numbers)

    def repositioned(self, reader: str, queue: Queue, epoch: int, offset: int) -> None:
        """The store told a reader to go on at `offset`: retention, damage or a rise of the epoch."""
        at_epoch, _ = self._readers.get((reader, queue), (0, offset))
        if epoch < at_epoch:
            self._note(Kind.WENT_BACK, f"{reader} of {queue} is sent from epoch {at_epoch} back to {epoch}")
        self._readers[reader, queue] = (epoch, offset)

    def final(self, queue: Queue, epoch: int, first_offset: int, numbers: Sequence[int]) -> None:
        """All that a queue has when the faults are over: what lies before `first_offset` went by age."""
        self._finals[queue] = _Final(epoch, first_offset, list(numbers))
        self._saw("the end", queue, epoch, first_offset, numbers)

    # What is wrong.

    def anomalies(self) -> list[Anomaly]:
        """Every breach of the promise in what was told so far; queues without `final` count as empty."""
        by_number = {number: attempt for attempt in self._attempts for number in attempt.numbers}
        return [
            *self._anomalies,
            *self._of_sightings(by_number),
            *self._of_ends(by_number),
            *self._of_losses(),
        ]

    def counts(self) -> dict[str, int]:
        """Records acknowledged, refused, unknown and seen: a check of nothing proves nothing."""
        sizes: Counter[Outcome] = Counter()
        for attempt in self._attempts:
            sizes[attempt.outcome] += len(attempt.numbers)
        counted = {outcome.name.lower(): sizes[outcome] for outcome in Outcome}
        return counted | {"seen": len({sighting.number for sighting in self._sightings})}

    def reported_losses(self) -> int:
        """How many acknowledged records all rises of the epoch reported as gone."""
        return sum(rise.lost for rise in self._rises)

    def missing(self) -> int:
        """How many acknowledged records are nowhere in the end."""
        there = {number for final in self._finals.values() for number in final.numbers}
        return sum(number not in there for attempt in self._acknowledged() for number in attempt.numbers)

    def _note(self, kind: Kind, where: str) -> None:
        self._anomalies.append(Anomaly(kind, where))

    def _saw(self, by: str, queue: Queue, epoch: int, offset: int, numbers: Sequence[int]) -> None:
        for index, number in enumerate(numbers):
            self._sightings.append(Sighting(epoch, queue, offset + index, number, by))

    def _acknowledged(self) -> Iterable[Attempt]:
        return (attempt for attempt in self._attempts if attempt.outcome is Outcome.ACKNOWLEDGED)

    def _of_sightings(self, by_number: dict[int, Attempt]) -> Iterable[Anomaly]:
        """Two records at a place, a record at two places, records that ought not to be there."""
        seen: dict[tuple[int, Queue, int], tuple[int, str]] = {}
        places: dict[tuple[int, int], tuple[Queue, int]] = {}
        told = [
            Sighting(attempt.epoch, attempt.queue, attempt.base_offset + index, number, attempt.producer)
            for attempt in self._acknowledged()
            for index, number in enumerate(attempt.numbers)
        ]
        for sighting in (*told, *self._sightings):
            epoch, queue, offset, number, by = sighting
            other, other_by = seen.setdefault((epoch, queue, offset), (number, by))
            if other != number:
                where = f"{queue} at {offset} in epoch {epoch} is {other} ({other_by}) and {number} ({by})"
                yield Anomaly(Kind.INCONSISTENT, where)
            place = places.setdefault((epoch, number), (queue, offset))
            if place != (queue, offset):
                where = f"{number} in epoch {epoch} is at {place} and at {(queue, offset)} ({by})"
                yield Anomaly(Kind.DUPLICATE, where)
            attempt = by_number.get(number)
            if attempt is None or attempt.queue != queue:
                yield Anomaly(Kind.PHANTOM, f"{number} at {offset} of {queue} ({by})")
            elif attempt.outcome is Outcome.REFUSED:
                yield Anomaly(Kind.ABORTED_READ, f"{number} at {offset} of {queue} ({by})")

    def _of_ends(self, by_number: dict[int, Attempt]) -> Iterable[Anomaly]:
        """What each queue has in the end: each producer's records in its order, and no record twice."""
        for queue, final in self._finals.items():
            for number, times in Counter(final.numbers).items():
                if times > 1:
                    yield Anomaly(Kind.DUPLICATE, f"{number} is {times} times in {queue}")
            orders: dict[str, list[int]] = {}
            for number in final.numbers:
                if number in by_number:
                    orders.setdefault(by_number[number].producer, []).append(number)
            for producer, numbers in orders.items():
                for earlier, later in pairwise(numbers):
                    if later < earlier:
                        yield Anomaly(Kind.DISORDER, f"{later} of {producer} is behind {earlier} in {queue}")

    def _of_losses(self) -> Iterable[Anomaly]:
        """What was acknowledged or read and is not where it was: only a rise that reported it excuses it."""
        taken: Counter[int] = Counter()
        excused: set[int] = set()
        for attempt in self._acknowledged():
            final = self._finals.get(attempt.queue, _Final(0, 0, []))
            for index, number in enumerate(attempt.numbers):
                offset = attempt.base_offset + index
                if offset < final.first_offset or _at(final, offset) == number:
                    continue
                where = f"{number} at {offset} of {attempt.queue}, acknowledged in epoch {attempt.epoch}"
                rise = self._rise_over(attempt)
                if number in final.numbers:
                    if rise is None:
                        yield Anomaly(Kind.MOVED, where)
                elif rise is None:
                    yield Anomaly(Kind.LOST, where)
                else:
                    taken[rise.epoch] += 1
                excused.add(number)
        for rise in self._rises:
            if taken[rise.epoch] > rise.lost:
                where = f"epoch {rise.epoch} from {rise.start} on: {taken[rise.epoch]} of {rise.lost}"
                yield Anomaly(Kind.UNDERREPORTED, where)
        yield from self._of_unseen(excused)

    def _of_unseen(self, judged: set[int]) -> Iterable[Anomaly]:
        """What readers saw and is gone, whether or not its producer heard of it."""
        for sighting in self._sightings:
            if sighting.number in judged:
                continue
            final = self._finals.get(sighting.queue, _Final(0, 0, []))
            if sighting.offset < final.first_offset or _at(final, sighting.offset) == sighting.number:
                continue
            if not any(rise.lost and rise.epoch > sighting.epoch for rise in self._rises):
                judged.add(sighting.number)
                where = f"{sighting.number} at {sighting.offset} of {sighting.queue}, read by {sighting.by}"
                yield Anomaly(Kind.UNSEEN, where)

    def _rise_over(self, attempt: Attempt) -> Rise | None:
        """The first rise after an acknowledgement that begins at or before its place in the log."""
        return next((r for r in self._rises if r.epoch > attempt.epoch and r.start <= attempt.position), None)


def _at(final: _Final, offset: int) -> int | None:
    index = offset - final.first_offset
    return final.numbers[index] if 0 <= index < len(final.numbers) else None
