"""Throttles for senders that have used a rate up, sans-IO: one for all of a principal, whoever of it sends.

Those who wait are let on in the order in which they began to, as many at a time as what has come back is
worth: a thousand clients of one tenant that were all let on at once would all send once more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from holdmq.quotas.buckets import Pace

W = TypeVar("W", bound=Hashable)
"""One that waits: a connection."""
THROTTLES_MAX: Final = 20_000
"""Principals with a rate that are remembered, some 500 bytes each; past it the oldest is new again."""
_MEAN_WEIGHT: Final = 0.1
"""How much one read counts in the mean of what a read costs."""


class Throttle(Generic[W]):
    """The rate of one principal, and those of it that wait."""

    __slots__ = ("_mean_s", "_pace", "held_until", "waiting")

    def __init__(self, messages_per_s: float, bytes_per_s: float, now: float) -> None:
        self._pace = Pace(messages_per_s, bytes_per_s, now)
        self._mean_s = 0.0
        self.held_until = 0.0
        """Nobody is let on before: so a broker said, who knows what all have sent."""
        self.waiting: dict[W, None] = {}

    def took(self, messages: float, size_bytes: float, now: float) -> bool:
        """Count what came; whether who sent it has to wait."""
        cost_s = self._pace.cost_s(messages, size_bytes)
        self._mean_s += (cost_s - self._mean_s) * _MEAN_WEIGHT if self._mean_s else cost_s
        return self._pace.take(messages, size_bytes, now) > 0 or now < self.held_until

    def hold(self, until: float) -> None:
        """Let nobody on before `until`; nothing is saved up meanwhile: all workers would spend it at once."""
        if until > self.held_until:
            self.held_until = until
            self._pace.empty_until(until)

    def is_in_debt(self, now: float) -> bool:
        """Whether nobody may send now."""
        return now < self.held_until or self._pace.owed_s(now) > 0

    def is_idle(self, now: float, full_s: float = 1.0) -> bool:
        """Whether it is as good as new: nothing is owed or was taken lately, and nobody waits."""
        return not self.waiting and now >= self.held_until and self._pace.left_s(now) >= full_s

    def let_on(self, now: float) -> list[W]:
        """Those who wait no longer: at least one when nothing is owed, more if there is room for them."""
        if now < self.held_until:
            return []
        left_s = self._pace.left_s(now)
        if left_s < 0:
            return []
        count = 1 + int(left_s / self._mean_s) if self._mean_s > 0 else len(self.waiting)
        found = [one for one, _ in zip(self.waiting, range(count), strict=False)]
        for one in found:
            del self.waiting[one]
        return found


RatesOf = Callable[[str], tuple[float, float] | None]
"""Messages and bytes per second (0 = no limit) of a principal; None = it has no rate."""


class Throttles(Generic[W]):
    """A Throttle for each principal that has a rate and sends; at most THROTTLES_MAX."""

    def __init__(self, rates_of: RatesOf) -> None:
        self.evicted = 0
        self._rates_of = rates_of
        self._of: dict[str, Throttle[W]] = {}
        self._at: dict[W, Throttle[W]] = {}
        """Where each one waits who does."""
        self._busy: dict[Throttle[W], None] = {}
        """Those where somebody waits."""

    def __len__(self) -> int:
        return len(self._of)

    @property
    def waiting(self) -> int:
        """How many of all principals wait."""
        return len(self._at)

    def took(self, principal: str, messages: float, size_bytes: float, now: float) -> Throttle[W] | None:
        """Count what one of a principal sent; the throttle at which it has to wait, None = it need not."""
        throttle = self.of(principal, now)
        if throttle is None or not throttle.took(messages, size_bytes, now):
            return None
        return throttle

    def of(self, principal: str, now: float) -> Throttle[W] | None:
        """The throttle of a principal, made now if it has none yet; None = it has no rate."""
        throttle = self._of.get(principal)
        if throttle is None:
            rates = self._rates_of(principal)
            if rates is None:
                return None
            if len(self._of) >= THROTTLES_MAX:
                self._make_room(now)
            throttle = self._of[principal] = Throttle(*rates, now)
        return throttle

    def hold(self, principal: str, for_s: float, now: float) -> None:
        """Let nobody of a principal on for so long."""
        throttle = self.of(principal, now)
        if throttle is not None:
            throttle.hold(now + for_s)

    def wait(self, one: W, throttle: Throttle[W]) -> None:
        """Have one wait at a throttle, behind those who do already; it waits at one only."""
        if one not in self._at:
            self._at[one] = throttle
            self._busy[throttle] = None
            throttle.waiting[one] = None

    def let_on(self, now: float) -> list[W]:
        """Those who wait no longer, of all principals."""
        found: list[W] = []
        for throttle in list(self._busy):
            found += throttle.let_on(now)
            if not throttle.waiting:
                del self._busy[throttle]
        for one in found:
            del self._at[one]
        return found

    def forget(self, one: W) -> None:
        """Take out one that is gone."""
        throttle = self._at.pop(one, None)
        if throttle is not None:
            throttle.waiting.pop(one, None)

    def rates_changed(self) -> list[W]:
        """Begin anew with other rates; those who waited for the old ones."""
        found = list(self._at)
        self._at.clear()
        self._busy.clear()
        self._of.clear()
        return found

    def expire(self, now: float) -> None:
        """Forget those that are as good as new."""
        for principal in [name for name, throttle in self._of.items() if throttle.is_idle(now)]:
            del self._of[principal]

    def _make_room(self, now: float) -> None:
        self.expire(now)
        if len(self._of) < THROTTLES_MAX:
            return
        oldest = next((name for name, throttle in self._of.items() if not throttle.waiting), None)
        # Who waits at one that is gone is let on when that owes nothing.
        del self._of[oldest if oldest is not None else next(iter(self._of))]
        self.evicted += 1
