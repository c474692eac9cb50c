"""Wills at the owner of their sessions: which is due when. Sans-IO.

A will belongs to one connection: (client id, epoch)::

    armed ──END, publish──► due at now + min(will delay, expiry) ───────► being published ──► gone
      │ ▲                          │                                            │ ▲
      │ └──claimed── due at the lease's end + min(…) ◄── connection lost        └─┘ not answered
      ├──DISCONNECT 0──► gone
      └──the session is opened again: due now if the session is over or it has no delay, else gone

A connection with a newer epoch cannot bring an older one's will back, and what was due is not taken back:
so each is published once. Who is lost (its gateway, or the way to it) has until the end of the gateway's
lease to be claimed. Source: MQTT 5, 3.1.2.5, 3.1.3.2.2; mqtt.md, Wills.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, TypeVar

LEASE_S: Final = 10.0
"""How long a gateway's sessions count as connected after it was heard last (mqtt.md, Wills)."""
WILLS_MAX: Final = 2_000_000
"""Wills at one broker, 0.3 KiB each: one for each session that may be open."""

HEAP_SPARE: Final = 1_000
"""Times that are not right any more, beside as many as there are wills, before they are swept out."""

O = TypeVar("O")  # noqa: E741 - whoever has a session: a gateway's connection


class WillKey(NamedTuple):
    """Whose will it is."""

    client_id: str
    epoch: int


class _Will(Generic[O]):
    """`due_at` None = its connection is there, or it is on its way. `is_publishing`: it was due, and nothing
    takes it back. `owner` is who said that it is due, if anybody did.
    """

    __slots__ = ("delay_s", "due_at", "epoch", "is_publishing", "owner")

    def __init__(self, epoch: int, delay_s: float) -> None:
        self.epoch = epoch
        self.delay_s = delay_s
        self.due_at: float | None = None
        self.is_publishing = False
        self.owner: O | None = None


class OwnedWills(Generic[O]):
    """All wills of one owner. Counters: `published`, `cancelled` (sessions went on), `deleted`, `retried`."""

    def __init__(self, wills_max: int = WILLS_MAX) -> None:
        self.count = 0
        self.published = self.cancelled = self.deleted = self.retried = 0
        self._wills_max = wills_max
        self._wills: dict[str, list[_Will[O]]] = {}
        self._heap: list[tuple[float, str, int]] = []

    @property
    def is_full(self) -> bool:
        """Whether no more may come."""
        return self.count >= self._wills_max

    def has(self, client_id: str, epoch: int) -> bool:
        """Whether this connection's will is there, and not being published."""
        return self._waiting(client_id, epoch) is not None

    # Connections

    def arm(self, client_id: str, epoch: int, delay_s: float) -> None:
        """A connection with a will is there."""
        self._wills.setdefault(client_id, []).append(_Will(epoch, delay_s))
        self.count += 1

    def claimed(self, client_id: str, epoch: int) -> None:
        """The connection is there after all."""
        will = self._waiting(client_id, epoch)
        if will is not None:
            will.due_at = None

    def lost(self, client_id: str, epoch: int, expiry_s: float, lease_end: float) -> None:
        """The connection's gateway was lost: the will is due after the lease, if nobody claims it."""
        will = self._waiting(client_id, epoch)
        if will is not None and will.due_at is None:
            self._schedule(client_id, will, lease_end + min(will.delay_s, expiry_s))

    def ended(
        self, client_id: str, epoch: int, expiry_s: float, least_delay_s: float, now: float, owner: O | None
    ) -> None:
        """The connection ended without DISCONNECT 0 [MQTT-3.1.2-8]; the delay is at least `least_delay_s`.

        The session's end is the will's [MQTT-3.1.3-9], but for what a drain adds.
        """
        will = self._waiting(client_id, epoch)
        if will is not None:
            will.owner = owner
            will.delay_s = max(will.delay_s, least_delay_s)
            self._schedule(client_id, will, now + max(min(will.delay_s, expiry_s), least_delay_s))

    def delete(self, client_id: str, epoch: int) -> bool:
        """DISCONNECT 0 [MQTT-3.1.2-10]: whether there was a will, whose row goes."""
        will = self._waiting(client_id, epoch)
        if will is None:
            return False
        self._remove(client_id, will)
        self.deleted += 1
        return True

    # Sessions

    def opened(self, client_id: str, *, is_over: bool, now: float) -> list[WillKey]:
        """The session of a client id is opened again, or has ended (`is_over`): which wills are cancelled.

        Those are `cancel`led once the opening is written down. The others are due now: of a session that
        ended, and those without a delay, whose connection is closed by this (3.1.4, takeover).
        """
        cancelled: list[WillKey] = []
        for will in self._wills.get(client_id, ()):
            if will.is_publishing:
                continue
            if is_over or will.delay_s <= 0:
                self._schedule(client_id, will, now)
            else:
                cancelled.append(WillKey(client_id, will.epoch))
        return cancelled

    def cancel(self, keys: Iterable[WillKey]) -> None:
        """These wills will never be published: their session went on [MQTT-3.1.3-9]."""
        for key in keys:
            will = self._waiting(*key)
            if will is not None:
                self._remove(key.client_id, will)
                self.cancelled += 1

    def restore(self, client_id: str, epoch: int, delay_s: float, due_at: float) -> None:
        """A start found this will: it is due then, if nobody claims it."""
        self.arm(client_id, epoch, delay_s)
        will = self._wills[client_id][-1]
        self._schedule(client_id, will, due_at)

    # Publishing

    def next_deadline(self) -> float | None:
        """When `take_due` has something, or nothing after all; None = never."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float, count: int) -> list[tuple[WillKey, O | None]]:
        """At most `count` wills that are due, and who is to publish them if he can: they are on their way."""
        due: list[tuple[WillKey, O | None]] = []
        while self._heap and self._heap[0][0] <= now and len(due) < count:
            due_at, client_id, epoch = heapq.heappop(self._heap)
            will = self._find(client_id, epoch)
            if will is None or will.due_at != due_at:
                continue
            will.is_publishing = True
            will.due_at = None
            due.append((WillKey(client_id, epoch), will.owner))
        return due

    def is_gone(self, key: WillKey) -> None:
        """The log has it, or never will."""
        will = self._find(*key)
        if will is not None:
            self._remove(key.client_id, will)
            self.published += 1

    def put_back(self, key: WillKey, due_at: float) -> None:
        """Publish again a will that may have been published already; its record makes it once."""
        will = self._find(*key)
        if will is not None:
            self.retried += 1
            will.owner = None
            self._schedule(key.client_id, will, due_at)

    def _find(self, client_id: str, epoch: int) -> _Will[O] | None:
        for will in self._wills.get(client_id, ()):
            if will.epoch == epoch:
                return will
        return None

    def _waiting(self, client_id: str, epoch: int) -> _Will[O] | None:
        """The will, unless it is being published."""
        will = self._find(client_id, epoch)
        return None if will is None or will.is_publishing else will

    def _schedule(self, client_id: str, will: _Will[O], due_at: float) -> None:
        will.due_at = due_at
        heapq.heappush(self._heap, (due_at, client_id, will.epoch))
        if len(self._heap) > 2 * self.count + HEAP_SPARE:
            # Clients that come back in time leave theirs behind.
            self._heap = [
                (will.due_at, client_id, will.epoch)
                for client_id, wills in self._wills.items()
                for will in wills
                if will.due_at is not None
            ]
            heapq.heapify(self._heap)

    def _remove(self, client_id: str, will: _Will[O]) -> None:
        wills = self._wills[client_id]
        wills.remove(will)
        self.count -= 1
        if not wills:
            del self._wills[client_id]
