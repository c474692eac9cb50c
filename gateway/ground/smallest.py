"""The least size of messages, as brokers tell it."""

from __future__ import annotations


class SmallestMessage:
    """The largest of what the brokers say: where a message goes is not known yet when it is refused.

    What a broker said stays until it says something else, also while it is away.
    """

    __slots__ = ("_told", "bytes_min")

    def __init__(self) -> None:
        self.bytes_min = 0
        """Publishes with fewer bytes of payload are refused; 0 = none."""
        self._told: dict[str, int] = {}

    def told(self, broker: str, bytes_min: int) -> None:
        """A broker says what it takes."""
        self._told[broker] = bytes_min
        self.bytes_min = max(self._told.values())
