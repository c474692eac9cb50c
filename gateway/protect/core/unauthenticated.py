"""What connections hold of clients that nobody knows yet: half a CONNECT, or one that is looked into."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class UnauthenticatedBytes(Generic[H]):
    """Bytes by holder, up to `max_bytes` together. Who holds most has to go when there are more.

    An honest client holds some hundred bytes for a moment, so that who fills the room are those that hold
    much: were it the newest that has to go, they could keep everybody out.
    """

    __slots__ = ("_held", "_sizes", "max_bytes", "total")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.total = 0
        self._held: dict[H, int] = {}
        # Holders by how many bits their number of bytes has, those that grew into it first in front.
        self._sizes: dict[int, dict[H, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, holder: H, change_bytes: int) -> None:
        """A holder has so many bytes more, or less (negative)."""
        before = self._held.get(holder, 0)
        held = before + change_bytes
        self.total += change_bytes
        if held.bit_length() != before.bit_length():
            self._leave(holder, before)
            if held:
                self._sizes.setdefault(held.bit_length(), {})[holder] = None
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def forget(self, holder: H) -> None:
        """Count a holder no more, as it is known or gone; one that holds nothing changes nothing."""
        held = self._held.pop(holder, 0)
        self.total -= held
        self._leave(holder, held)

    def one_too_many(self) -> H | None:
        """Find who has to go: of those that hold most, within a factor of two, the one that does so longest.

        None = there is room. It is to be forgotten before this is asked again.
        """
        if self.total <= self.max_bytes:
            return None
        return next(iter(self._sizes[max(self._sizes)]))

    def _leave(self, holder: H, held: int) -> None:
        size = held.bit_length()
        if size:
            peers = self._sizes[size]
            del peers[holder]
            if not peers:
                del self._sizes[size]
