"""How fast principals publish at this broker, and who has to wait for how long. Sans-IO.

A rate holds for the whole cluster; each of its brokers grants an equal part of it, to producers that send
here and to the clients of gateways, which say what they have sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from holdmq.quotas.buckets import Pace
from holdmq.quotas.limits import QuotaBook

PACES_MAX: Final = 20_000
"""Principals whose sending is counted, some 500 bytes each; past it who sent longest ago is new again."""
WAIT_MAX_S: Final = 2.0
"""The longest that a producer is told to wait for its turn: it may look again before."""
MEAN_OVER_S: Final = 5.0
"""Over how long what is sent per second is averaged."""


class _Use:
    """What one principal sends: its pace (None = it has no rate now), and its mean."""

    __slots__ = ("at", "bytes_per_s", "messages_per_s", "next_turn", "pace", "waited")

    def __init__(self, now: float) -> None:
        self.at = now
        self.pace: Pace | None = None
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self.next_turn = 0.0
        """When the producer that was told to wait last is to come."""
        self.waited = 0

    def count(self, messages: float, size_bytes: float, now: float) -> None:
        self.settle(now)
        self.messages_per_s += messages / MEAN_OVER_S
        self.bytes_per_s += size_bytes / MEAN_OVER_S

    def settle(self, now: float) -> None:
        left = math.exp(-max(0.0, now - self.at) / MEAN_OVER_S)
        self.messages_per_s *= left
        self.bytes_per_s *= left
        self.at = now


class PublishRates:
    """Paces by principal, as a book of quotas has their rates; `parts` brokers share each."""

    def __init__(self, book: QuotaBook) -> None:
        self.evicted = 0
        self.waited = 0
        self._book = book
        self._parts = 1
        self._of: dict[str, _Use] = {}

    def __len__(self) -> int:
        return len(self._of)

    @property
    def parts(self) -> int:
        """How many brokers share each rate."""
        return self._parts

    @parts.setter
    def parts(self, parts: int) -> None:
        if parts != self._parts:
            self._parts = parts
            self.quotas_changed()

    def quotas_changed(self) -> None:
        """Rates are other ones: everybody begins anew, without a debt."""
        for use in self._of.values():
            use.pace = None

    def wait_s(self, principals: Iterable[str], messages: int, size_bytes: int, now: float) -> float:
        """For how long a producer with so much has to wait, 0 = it may send now; nothing is taken yet.

        Those who are told to wait get turns one behind the other, as long as what they have is worth.
        """
        wait_s = 0.0
        for principal in principals:
            use = self._paced(principal, now)
            if use is None or use.pace is None:
                continue
            owed_s = use.pace.owed_s(now)
            if owed_s <= 0:
                continue
            use.waited += 1
            self.waited += 1
            turn = min(max(use.next_turn, now + owed_s), now + WAIT_MAX_S)
            use.next_turn = turn + use.pace.cost_s(messages, size_bytes)
            wait_s = max(wait_s, turn - now)
        return wait_s

    def take(self, principals: Iterable[str], messages: float, size_bytes: float, now: float) -> float:
        """Count what was sent; return for how many seconds nothing more may come, 0 = more may."""
        owed_s = 0.0
        for principal in principals:
            use = self._paced(principal, now)
            if use is not None and use.pace is not None:
                use.count(messages, size_bytes, now)
                owed_s = max(owed_s, use.pace.take(messages, size_bytes, now))
        return owed_s

    def held_back(self, principal: str) -> None:
        """Gateways were told to read nobody of this principal for a while."""
        use = self._of.get(principal)
        self.waited += 1
        if use is not None:
            use.waited += 1

    def used(self, principal: str, now: float) -> tuple[float, float, int]:
        """Messages and bytes per second of the last seconds, and how often it had to wait."""
        use = self._of.get(principal)
        if use is None:
            return 0.0, 0.0, 0
        use.settle(now)
        return use.messages_per_s, use.bytes_per_s, use.waited

    def principals(self) -> list[str]:
        """Those that have a rate and have sent."""
        return list(self._of)

    def _paced(self, principal: str, now: float) -> _Use | None:
        use = self._of.get(principal)
        if use is not None and use.pace is not None:
            return use
        quota = self._book.of(principal)
        if quota is None or not (quota.publish_rate or quota.publish_bytes_rate):
            return None
        if use is None:
            if len(self._of) >= PACES_MAX:
                self._make_room()
            use = self._of[principal] = _Use(now)
        use.pace = Pace(quota.publish_rate / self._parts, quota.publish_bytes_rate / self._parts, now)
        return use

    def _make_room(self) -> None:
        """Forget the tenth that sent longest ago: looking for one each time would cost as much."""
        oldest = sorted(self._of, key=lambda principal: self._of[principal].at)
        for principal in oldest[: max(1, PACES_MAX // 10)]:
            del self._of[principal]
            self.evicted += 1
