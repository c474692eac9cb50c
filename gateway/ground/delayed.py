"""`$delayed/<seconds>/<topic>`: publishes that the log keeps until their time. Sans-IO."""

from __future__ import annotations

from typing import Final, NamedTuple

DELAYED_PREFIX: Final = b"$delayed/"
DELAY_MAX_S: Final = 30 * 86_400
"""30 days: as long as a session may outlive its connection by default."""
DELAYED_ROOM_BYTES: Final = 512
"""Kept free in a record that waits, and in its properties, for what the timer adds: due time, the topic and
queue that it leaves for, and its origin."""
_DIGITS_MAX: Final = 10
"""Longer texts are no delays, and need not be read as numbers."""


class DelayedTopic(NamedTuple):
    """Where a delayed publish goes, and how long after the broker has taken it, in seconds."""

    delay_s: int
    topic: bytes


def split_delayed(raw: bytes) -> DelayedTopic | None:
    """What a topic name that begins with DELAYED_PREFIX asks for; None if it is malformed.

    The seconds are 0 to DELAY_MAX_S in decimal digits; the topic is not empty, and does not begin with `$`.
    """
    seconds, slash, topic = raw[len(DELAYED_PREFIX) :].partition(b"/")
    if not slash or not topic or topic[:1] == b"$":
        return None
    if not seconds.isdigit() or len(seconds) > _DIGITS_MAX or int(seconds) > DELAY_MAX_S:
        return None
    return DelayedTopic(int(seconds), topic)
