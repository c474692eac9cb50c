"""`$SYS/…`: what a gateway says of itself, by topic. Sans-IO.

`$SYS/broker/…` are the names that Mosquitto has for these numbers; `$SYS/gateway/<name>` is every number that
the gateway counts, under the name of its metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

SYSTEM_LEVEL: Final = "$SYS"

_RECEIVED: Final = ("messages_in_qos0_total", "messages_in_qos1_total", "messages_in_qos2_total")
_SENT: Final = ("messages_out_qos0_total", "messages_out_qos1_total", "messages_out_qos2_total")
_MOSQUITTO: Final[dict[str, tuple[str, ...]]] = {
    "clients/connected": ("sessions",),
    "subscriptions/count": ("subscriptions",),
    "messages/received": _RECEIVED,
    "messages/sent": _SENT,
    "publish/messages/received": _RECEIVED,
    "publish/messages/sent": _SENT,
    "publish/messages/dropped": (
        "messages_dropped_slow_total",
        "messages_dropped_size_total",
        "messages_expired_total",
    ),
    "bytes/received": ("bytes_in_total",),
    "bytes/sent": ("bytes_out_total",),
}
"""Topic below `$SYS/broker` → the numbers that add up to it."""


class Totals(NamedTuple):
    """The numbers of all workers of a gateway by their metric's name, how many these are, and since when."""

    numbers: Mapping[str, int]
    workers: int
    uptime_s: int


def is_system_filter(topic_filter: str) -> bool:
    """Whether a filter can match nothing but what the gateway itself says: no wildcard matches `$`."""
    return topic_filter.startswith(SYSTEM_LEVEL) and topic_filter[len(SYSTEM_LEVEL) :][:1] in ("", "/")


def system_messages(totals: Totals, version: str) -> dict[str, str]:
    """Topic → what it says."""
    numbers = totals.numbers
    said = {
        "$SYS/broker/version": f"HoldMQ {version}",
        "$SYS/broker/uptime": f"{totals.uptime_s} seconds",
    }
    for name, parts in _MOSQUITTO.items():
        said[f"$SYS/broker/{name}"] = str(sum(numbers.get(part, 0) for part in parts))
    said["$SYS/gateway/workers"] = str(totals.workers)
    for name, value in numbers.items():
        said[f"$SYS/gateway/{name}"] = str(value)
    return said
