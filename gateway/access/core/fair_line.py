"""A line in which who has much to ask does not make others wait. Sans-IO.

::

    put(a) ──► fresh   a b c      keys of which nothing was taken since they had nothing here
                 │
    take ◄───────┤  the first key's oldest; while both have some, from both by turns, fresh first
                 │
               again   x y        keys with more: each goes behind the others of this ring

Who comes first after a while waits for what is being done and nothing else, however long the line of another
is; who comes again and again in small pieces gets half of all at most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    """A line of at most `places`; one key may have as many as are free: half of all while it is alone."""

    __slots__ = ("_again", "_count", "_fresh", "_last", "_owes_again", "_places")

    def __init__(self, places: int) -> None:
        self._places = places
        self._count = 0
        self._fresh: OrderedDict[bytes, deque[T]] = OrderedDict()
        self._again: OrderedDict[bytes, deque[T]] = OrderedDict()
        self._last: bytes | None = None
        self._owes_again = False

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, item: T) -> bool:
        """Put something at the end of this key's; False = there is no place for it."""
        items = self._fresh.get(key) or self._again.get(key)
        if (0 if items is None else len(items)) >= self._places - self._count:
            return False
        if items is None:
            # Of whom something is being done now is not new here.
            (self._again if key == self._last else self._fresh)[key] = deque((item,))
        else:
            items.append(item)
        self._count += 1
        return True

    def take(self) -> T | None:
        """Take what is next; None = nothing waits."""
        is_again = bool(self._again) and (self._owes_again or not self._fresh)
        ring = self._again if is_again else self._fresh
        if not ring:
            return None
        self._owes_again = not is_again and bool(self._again)
        key, items = ring.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        self._last = key
        if items:
            self._again[key] = items
        return item
