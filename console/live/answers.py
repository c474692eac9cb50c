"""The shapes of the API's answers: what JSON they are made of. The OpenAPI document describes the same."""

from __future__ import annotations

import time
from typing import Any

from console.live.core.window import Count, TpsWindow, busiest, total


def second_text(second: int) -> str:
    """Return a second since the epoch as RFC 3339 in UTC: ``2026-01-31T23:59:59Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def tps_answer(
    window: TpsWindow, now: float, seconds: int, top: int | None, notice: str | None
) -> dict[str, Any]:
    """Return the counts of the last `seconds`, by topic, oldest first; a second without messages is left out.

    `top`: only that many topics, the busiest of these seconds (None = all); `total` counts all topics in
    any case. `current` is the rate at `now`, seconds since the epoch.
    """
    rows = window.since(int(now) - seconds)
    shown = busiest(rows, top)
    topics: dict[str, list[dict[str, Any]]] = {topic: [] for topic in shown}
    totals: list[dict[str, Any]] = []
    for second, counts in rows:
        text = second_text(second)
        totals.append(_cell(text, total(counts)))
        for topic, count in counts.items():
            if topic in topics:
                topics[topic].append(_cell(text, count))
    current = window.current(now)
    answer: dict[str, Any] = {
        "now": second_text(int(now)),
        "seconds": seconds,
        "topics": topics,
        "total": totals,
        "current": {
            "second": None if current.second is None else second_text(current.second),
            "messages": current.total.messages,
            "bytes": current.total.bytes,
            "topics": {
                topic: {"messages": count.messages, "bytes": count.bytes}
                for topic, count in current.topics.items()
                if topic in topics
            },
        },
    }
    if notice is not None:
        answer["notice"] = notice
    return answer


def _cell(second: str, count: Count) -> dict[str, Any]:
    return {"second": second, "messages": count.messages, "bytes": count.bytes}
