"""Events: what happens in one room of the broker, for rooms above it that have to act on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """One kind of event, owned by the room where it happens.

    Who subscribes is called on the loop, at once, in the order of subscription; the broker's composition
    subscribes everybody before the first request.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        """Call this, too, each time it happens."""
        self._subscribers.append(subscriber)

    def happened(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell everybody who subscribed."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)

    @property
    def is_heard(self) -> bool:
        """Whether there is a subscriber."""
        return bool(self._subscribers)
