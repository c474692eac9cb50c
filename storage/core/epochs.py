"""Log epochs: which positions that were learnt before a cut still mean something.

The epoch rises at every start after which the log may be shorter than readers saw it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from holdmq.errors import StoreFormatError
from storage.api.replication import Epoch


class Epochs:
    """All epochs of a log, ascending."""

    __slots__ = ("_epochs",)

    def __init__(self, epochs: list[Epoch]) -> None:
        self._epochs = epochs or [Epoch(1, 0)]

    @property
    def current(self) -> int:
        return self._epochs[-1].epoch

    @property
    def all(self) -> Sequence[Epoch]:
        return tuple(self._epochs)

    def rise(self, end: int) -> None:
        """Begin the next epoch at the log's end after a cut. What began behind the cut has nothing left."""
        kept = [Epoch(epoch, min(start, end)) for epoch, start in self._epochs]
        self._epochs = [*kept, Epoch(self.current + 1, end)]

    def begin(self, epoch: int, end: int) -> None:
        """Begin an epoch at the log's end. What began behind it, before that was lost, has nothing left."""
        self._epochs = [*(Epoch(known, min(start, end)) for known, start in self._epochs), Epoch(epoch, end)]

    def limit_of(self, epoch: int) -> int | None:
        """The log offset past which nothing of this epoch survived; None = all of it did."""
        for later in self._epochs:
            if later.epoch > epoch:
                return later.start
        return None

    def content(self) -> dict[str, Any]:
        """The content of epoch.json."""
        return {"epochs": [[e.epoch, e.start] for e in self._epochs]}

    @classmethod
    def of_content(cls, content: dict[str, Any], path: str) -> Epochs:
        """Read `content`; StoreFormatError when it is no list of rising epochs."""
        try:
            epochs = [Epoch(int(epoch), int(start)) for epoch, start in content["epochs"]]
        except (KeyError, TypeError, ValueError):
            epochs = []
        rising = all(a.epoch < b.epoch and a.start <= b.start for a, b in pairwise(epochs))
        if not epochs or not rising:
            raise StoreFormatError("it has no list of rising epochs", operation="open", path=path)
        return cls(epochs)
