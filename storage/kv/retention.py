"""What of a shard goes, and when: batches by age, runs of queues with them. Called on the keeper's thread.

Rows of tables and delayed messages are beside the log: nothing is appended again to keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from holdmq.config.model import StorageSection
from holdmq.errors import UsageError
from storage.api.retention import LogNeed, Need
from storage.core.queues import Queue
from storage.kv.core.layout import ShardKeys, queue_field
from storage.kv.reading import ServerReader
from storage.kv.server import ShardServer

QUEUES_AT_ONCE: Final = 64
"""Queues that one call trims: the server serves nobody else meanwhile."""

log = structlog.get_logger("holdmq.storage")


class KvRetention:
    """`storage.api.retention.MessageRetention` on a shard."""

    def __init__(
        self,
        settings: StorageSection,
        server: ShardServer,
        keys: ShardKeys,
        reader: ServerReader,
        term: Callable[[], bytes],
        clock_ms: Callable[[], int],
    ) -> None:
        self.first_position = 0
        self.trimmed_total = 0
        self.reconfigure(settings)
        self._server = server
        self._keys = keys
        self._reader = reader
        self._term = term
        self._clock_ms = clock_ms
        self._needs: Callable[[], Iterable[Need]] = tuple
        self._topic_ages: dict[str, int] = {}

    def keep_for(self, needs: Callable[[], Iterable[Need]]) -> None:
        """Keep what these need from now on, when consumed messages alone may go."""
        self._needs = needs

    def reconfigure(self, settings: StorageSection) -> None:
        """Keep by other rules from the next round on, and look for what is due at another interval."""
        self.interval_s = settings.retention_interval_ms / 1e3
        self.age_ms = settings.retention_age_s * 1000
        self._is_kept_for_readers = settings.delete == "consumed"
        self._expiry_ms = settings.group_expiry_s * 1000

    def set_topic_age(self, topic: str, age_ms: int | None) -> None:
        """Keep a topic's messages for so long only; UsageError when the log itself keeps them shorter."""
        if age_ms is None:
            self._topic_ages.pop(topic, None)
            return
        if not 0 < age_ms <= self.age_ms:
            raise UsageError(
                f"topic {topic!r} cannot keep messages for {age_ms} ms: the shard keeps them for "
                f"{self.age_ms} ms; choose less, or raise storage.retention_age_s"
            )
        self._topic_ages[topic] = age_ms

    def round(self, queues: list[Queue], confirmed: int) -> list[tuple[Queue, int]]:
        """Give up what is due; queues and their first kept offsets. Blocking. Raises StorageError."""
        now_ms = self._clock_ms()
        floor = self._floor(queues, now_ms, confirmed)
        changed: list[tuple[Queue, int]] = []
        if floor > self.first_position:
            changed += self._trim_queues(queues, floor)
            before = self.first_position
            self.first_position = int(
                self._server.run("trim", [self._keys.state, self._keys.log], self._term(), floor)
            )
            self.trimmed_total += self.first_position - before
        for topic, age_ms in list(self._topic_ages.items()):
            own = [queue for queue in queues if queue.topic == topic]
            until = self._reader.position_at(now_ms - age_ms, self.first_position, confirmed)
            if own and until > self.first_position:
                changed += self._trim_queues(own, min(until, floor) if self._is_kept_for_readers else until)
        return changed

    def _floor(self, queues: list[Queue], now_ms: int, confirmed: int) -> int:
        """The position below which everything may go."""
        floor = self._reader.position_at(now_ms - self.age_ms, self.first_position, confirmed)
        if not self._is_kept_for_readers or floor <= self.first_position:
            return floor
        by_name = {(queue.topic, queue.queue_id): queue for queue in queues}
        for need in self._needs():
            if now_ms - need.seen_ms > self._expiry_ms:
                continue
            if isinstance(need, LogNeed):
                floor = min(floor, need.position)
                continue
            queue = by_name.get((need.topic, need.queue_id))
            if queue is not None and need.offset < queue.confirmed:
                run = self._reader.run_holding(queue, max(need.offset, queue.first_offset))
                if run is not None:
                    floor = min(floor, run.position)
        return floor

    def _trim_queues(self, queues: list[Queue], floor: int) -> list[tuple[Queue, int]]:
        changed: list[tuple[Queue, int]] = []
        waiting = [queue for queue in queues if queue.first_offset < queue.confirmed]
        for at in range(0, len(waiting), QUEUES_AT_ONCE):
            some = waiting[at : at + QUEUES_AT_ONCE]
            names = [self._keys.queue(queue.topic, queue.queue_id) for queue in some]
            fields = [queue_field(queue.topic, queue.queue_id) for queue in some]
            firsts = self._server.run(
                "trim_queues", [self._keys.state, self._keys.firsts, *names], self._term(), floor, *fields
            )
            changed += [(queue, first) for queue, first in zip(some, firsts, strict=True) if first >= 0]
        return changed
