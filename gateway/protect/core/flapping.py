"""Clients that connect again and again, sans-IO: counted, then banned for a while.

Keyed on (principal, address), so that a stranger who uses a device's name elsewhere does not get the device
banned, nor a device its neighbours behind the same address.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

FLAPPING_MAX: Final = 100_000
"""Clients whose connects are counted, some 250 bytes each; past it who was seen first is forgotten."""
BANS_MAX: Final = 10_000
"""Bans at a time; past it the one that ends first is lifted."""

Key = tuple[str, bytes]
"""Principal, and the address as `gateway.ground.addresses.address_key` has it."""


class Ban(NamedTuple):
    """A ban: whom, until when (the clock of who calls), after how many connects."""

    key: Key
    until: float
    connects: int


def ban_row(ban: Ban, now: float) -> dict[str, Any]:
    """A ban as processes tell each other; clocks may differ, so `left_s` counts from now."""
    principal, address = ban.key
    return {
        "principal": principal,
        "address": address.hex(),
        "left_s": round(ban.until - now, 3),
        "connects": ban.connects,
    }


def ban_of(row: dict[str, Any], now: float) -> Ban:
    """The ban that a row tells of."""
    key = str(row["principal"]), bytes.fromhex(row["address"])
    return Ban(key, now + float(row["left_s"]), int(row["connects"]))


class Bans:
    """Addresses and client ids that are banned; `len()` is how many."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[Key, Ban] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, ban: Ban) -> None:
        """Ban somebody, or for another time."""
        if ban.key not in self._by_key and len(self._by_key) >= BANS_MAX:
            first = min(self._by_key.values(), key=lambda other: other.until)
            del self._by_key[first.key]
        self._by_key[ban.key] = ban

    def of(self, key: Key, now: float) -> Ban | None:
        """The ban that is in force, if there is one."""
        ban = self._by_key.get(key)
        return ban if ban is not None and ban.until > now else None

    def lift(self, principal: str | None) -> int:
        """Lift the bans of a principal, wherever it is, or all (None); how many there were."""
        gone = [key for key in self._by_key if principal is None or key[0] == principal]
        for key in gone:
            del self._by_key[key]
        return len(gone)

    def expire(self, now: float) -> None:
        """Forget bans that have ended."""
        for key in [key for key, ban in self._by_key.items() if ban.until <= now]:
            del self._by_key[key]

    def all(self) -> list[Ban]:
        """Every ban, the one that ends first in front."""
        return sorted(self._by_key.values(), key=lambda ban: ban.until)


class Flapping:
    """Counts connects; a window begins with the first one and ends `window_s` later."""

    __slots__ = ("_connects", "_connects_max", "_window_s")

    def __init__(self, connects_max: int, window_s: float) -> None:
        self._connects_max = connects_max
        self._window_s = window_s
        # In the order in which windows began: the first ones are those to forget.
        self._connects: dict[Key, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._connects)

    def connected(self, key: Key, now: float) -> int:
        """A client connects: 0, or how often it has in its window once that is more than it may."""
        began, count = self._connects.get(key, (now, 0))
        if count and now - began >= self._window_s:
            del self._connects[key]
            began, count = now, 0
        count += 1
        if count > self._connects_max:
            del self._connects[key]
            return count
        if count == 1 and len(self._connects) >= FLAPPING_MAX:
            del self._connects[next(iter(self._connects))]
        self._connects[key] = began, count
        return 0

    def forget(self, principal: str | None) -> None:
        """Begin anew with a principal, or with all (None)."""
        for key in [key for key in self._connects if principal is None or key[0] == principal]:
            del self._connects[key]

    def expire(self, now: float) -> None:
        """Forget windows that are over."""
        over: list[Key] = []
        for key, (began, _) in self._connects.items():
            if now - began < self._window_s:
                break
            over.append(key)
        for key in over:
            del self._connects[key]
