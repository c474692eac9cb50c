"""Whether a broker still sees a registry, and whether it is the one that tells when it does not."""

from __future__ import annotations

from typing import Final

from holdmq.alarms.core.alarms import AlarmKey, Reading

REGISTRY_LOST: Final = "registry_lost"


class RegistrySight:
    """What one broker sees of all registries. `now` is a clock in seconds that never goes back.

    As long as one registry answers it tells of the others; of the last one the brokers do. Of these it is the
    first by name that lives: `is_first` is set by who can find that out.
    """

    def __init__(self) -> None:
        self.is_first = False
        self._waiting_for: set[str] = set()
        self._lost_since: float | None = None

    def answered(self, registry: str) -> None:
        """A registry answers, and is missed from now on if it does not."""
        self._waiting_for.add(registry)
        self._lost_since = None
        self.is_first = False

    def left(self, registry: str) -> None:
        """A registry stops in order: nobody waits for it."""
        self._waiting_for.discard(registry)

    def none_answers(self, now: float) -> None:
        """Take it that no registry answers from `now` on, if one did."""
        if self._lost_since is None:
            self._lost_since = now

    def reading(self, now: float, lost_after_s: float) -> Reading | None:
        """Give what is to be told: None while one answers, none was ever there, or another broker tells."""
        since = self._lost_since
        if not (lost_after_s and self.is_first and self._waiting_for) or since is None:
            return None
        if now - since < lost_after_s:
            return None
        names = ", ".join(sorted(self._waiting_for))
        text = (
            f"no registry has answered for {now - since:.0f} s, nor said goodbye: {names} died, or this "
            "broker is cut off; what is connected goes on, nothing new is found; start them"
        )
        return Reading(AlarmKey(REGISTRY_LOST, names), 1, 1, text)
