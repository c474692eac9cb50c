"""Topic aliases that are set for a client: short names for the topics that it gets first (3.3.2.3.4)."""

from __future__ import annotations

from typing import Final

from gateway.ground.limits import TOPIC_ALIASES_OUT_MAX

TOPIC_BYTES_SAVING: Final = 4
"""The shortest topic for which an alias pays: the property takes three bytes."""


class Aliases:
    """The aliases of one connection, which ends with them [MQTT-3.3.2-7]. Made if the client takes any.

    Topics get the numbers from 1 on in the order in which they are first sent, up to the client's Topic
    Alias Maximum [MQTT-3.1.2-26] and our own bound; none is given to another topic.
    """

    __slots__ = ("_maximum", "_numbers")

    def __init__(self, maximum: int) -> None:
        self._maximum = min(maximum, TOPIC_ALIASES_OUT_MAX)
        self._numbers: dict[bytes, int] = {}

    def choose(self, topic: bytes, may_set: bool) -> int:
        """The alias for a PUBLISH: −n stands for the topic, n is to be set by it, 0 = none.

        `may_set` is False for what may leave later than what is sent after it.
        """
        number = self._numbers.get(topic)
        if number is not None:
            return -number
        if not may_set or len(self._numbers) >= self._maximum or len(topic) < TOPIC_BYTES_SAVING:
            return 0
        return len(self._numbers) + 1

    def by_number(self) -> dict[int, bytes]:
        """The topics that are set now."""
        return {number: topic for topic, number in self._numbers.items()}

    def sent(self, topic: bytes, alias: int) -> None:
        """A PUBLISH with this choice is on its way: from now on its alias stands for its topic."""
        if alias > 0:
            self._numbers[topic] = alias
