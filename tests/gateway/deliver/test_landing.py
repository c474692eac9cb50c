"""Sessions that caught up are wholly live once the feed is there, a bounded number of them in a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.deliver.landing import AwaitingLiveFeed


class Feed:
    """A broker's live feed: how far it is known to be."""

    def __init__(self) -> None:
        self.name = "b"
        self.reader = self
        self.position: int | None = None


async def test_who_waits_for_a_position_is_live_when_the_feed_is_there() -> None:
    relaxed: list[Any] = []
    feed: Any = Feed()
    landing = AwaitingLiveFeed(relaxed.append)
    for position, session in ((100, "a"), (100, "b"), (200, "c")):
        landing.land("b", position, session)  # type: ignore[arg-type]
    landing.land("other", 10, "d")  # type: ignore[arg-type]
    landing.fed(feed)
    feed.position = 99
    landing.fed(feed)
    assert relaxed == []
    feed.position = 150
    landing.fed(feed)
    assert sorted(relaxed) == ["a", "b"]
    feed.position = 200
    landing.fed(feed)
    landing.fed(feed)
    assert sorted(relaxed) == ["a", "b", "c"]


async def test_a_crowd_is_live_after_some_turns_of_the_loop_without_more_from_the_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.deliver.landing.RELAXED_PER_TURN", 10)
    relaxed: list[Any] = []
    feed: Any = Feed()
    feed.position = 100
    landing = AwaitingLiveFeed(relaxed.append)
    for number in range(35):
        landing.land("b", number, number)  # type: ignore[arg-type]
    landing.fed(feed)
    landing.fed(feed)
    seen = [len(relaxed)]
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(len(relaxed))
    assert seen == [20, 30, 35, 35]
    assert sorted(relaxed) == list(range(35))
