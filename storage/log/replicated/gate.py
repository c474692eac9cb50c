"""What of a replicated log readers may see: what is written here, up to what replication confirms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdmq.errors import ShardLostError, StorageError
from storage.core.tail import Tail
from storage.log.appends import CONFIRM_BATCHES_MAX
from storage.log.writer import Copied, Pending


class ReplicaGate:
    """`storage.log.appends.Gate` of a replicated log. Everything is called on the loop, but for `open`.

    `written_position`: everything below is in the disk's cache, so copies may have it; `durable_position`:
    under sync it is fsynced, too. `newest` has what was written since the start, confirmed or not, the
    very buffers: at least as far back as the log's tail.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.written_position = 0
        self.durable_position = 0
        self.newest = Tail(0, 0)
        self.failure: StorageError | None = None
        self._is_replaying = False
        self._watchers: list[Callable[[], object]] = []

    def open(self, confirmed: int, end: int) -> None:
        """Begin; what lies between is shown by somebody else, who calls `replayed`."""
        self.limit = confirmed
        self.written_position = self.durable_position = end
        self.newest = Tail(end, 0)
        self._is_replaying = confirmed < end

    def watch(self, moved: Callable[[], object]) -> None:
        """Call `moved` after each change of what is written, confirmed or refused."""
        self._watchers.append(moved)

    def moved(self) -> None:
        """Tell those who watch that something has moved."""
        for moved in self._watchers:
            moved()

    def replayed(self) -> None:
        """All that the start found is visible."""
        self._is_replaying = False

    def raise_limit(self, limit: int) -> bool:
        """Note that everything below `limit` is confirmed; False = that was known."""
        if limit <= self.limit:
            return False
        self.limit = limit
        return True

    # storage.log.appends.Gate

    def cached(self, group: list[Pending]) -> None:
        for item in group:
            self.newest.add(item.batch)
        self.written_position = group[-1].batch.end
        self.moved()

    def written(self, group: list[Pending]) -> None:
        if group[-1].batch.end > self.written_position:
            self.cached(group)
        self.durable_position = group[-1].batch.end
        for item in group:
            if isinstance(item, Copied):
                item.is_written = True
                item.written(None)
        self.moved()

    def free(self, waiting: deque[Pending]) -> int:
        if self._is_replaying:
            return 0
        limit = self.limit
        count = 0
        for item in waiting:
            if item.batch.end > limit or count > CONFIRM_BATCHES_MAX:
                break
            count += 1
        return count

    def shown(self, tail_start: int) -> None:
        self.newest.evict(tail_start)
        self.moved()

    def took_back(self, error: StorageError) -> None:
        if not error.retriable:
            self.failure = self.failure or error
        self.moved()

    def outcome(self, error: StorageError) -> StorageError:
        if error.retriable:
            return error
        return ShardLostError(
            f"copies may have it, or may not: {error}", operation="append", hint="send it again"
        )
