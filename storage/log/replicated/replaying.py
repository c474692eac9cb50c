"""What a start found behind the checkpoint becomes visible as it is confirmed, read from the files again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from holdmq.errors import StorageError
from storage.api.batches import Batch, ForeignBatch
from storage.core.scan import part_of
from storage.log.appends import LogAppends, Post
from storage.log.reading.reader import ColdReader
from storage.log.replicated.gate import ReplicaGate
from storage.log.writer import Pending

READ_BYTES: Final = 4 << 20
"""One read: a disk's full speed in little memory."""


class Replaying:
    """Shows the log from the checkpoint to where it ended when it was opened, up to the gate's limit.

    `run` does blocking work off the loop; `failed` is called there when the files cannot be read any more.
    """

    def __init__(
        self,
        reader: ColdReader,
        appends: LogAppends,
        gate: ReplicaGate,
        run: Callable[[Callable[[], object]], object],
        post: Post,
        failed: Callable[[StorageError], object],
    ) -> None:
        self._reader = reader
        self._appends = appends
        self._gate = gate
        self._run = run
        self._post = post
        self._failed = failed
        self._position = self._end = 0
        self._too_low = -1
        self._is_reading = False

    def open(self, confirmed: int, end: int) -> None:
        """Begin at what is confirmed; the start found the log up to `end`."""
        self._position, self._end = confirmed, end

    def go_on(self) -> None:
        """Show what the gate's limit allows by now. On the loop."""
        limit = min(self._gate.limit, self._end)
        if not self._is_reading and self._position < limit != self._too_low:
            self._is_reading = True
            self._run(partial(self._read, self._position, limit))

    def _read(self, position: int, limit: int) -> None:
        size = min(READ_BYTES, limit - position)
        try:
            found = self._reader.read_log(position, size, self._end, keep=False)
        except StorageError as error:
            self._failed(error)
            return
        batches = _up_to(found, limit)
        end = batches[-1].end if batches else position
        if not found and limit == self._end:
            end = limit  # only the blank that closes a segment lies between
        self._post(partial(self._show, batches, end, limit))

    def _show(self, batches: list[Batch], end: int, limit: int) -> None:
        if end == self._position:
            self._too_low = limit  # it lies in the record that comes next
        queues = self._appends.queues
        group = [
            Pending(
                ForeignBatch.of(batch),
                _told,
                [queues[run.topic, run.queue_id] for run in batch.runs],
                0,
                0,
                0,
                0.0,
            )
            for batch in batches
        ]
        self._is_reading = False
        self._position = end
        self._appends.show(group, end)
        if end == self._end:
            self._gate.replayed()
            self._appends.go_on()
        self._gate.shown(self._appends.tail.first_position)
        self.go_on()


def _up_to(batches: list[Batch], limit: int) -> list[Batch]:
    """The records that end at or below `limit`."""
    fitting: list[Batch] = []
    for batch in batches:
        count = int(np.searchsorted(batch.starts + batch.sizes, limit - batch.position, "right"))
        if count:
            fitting.append(part_of(batch, 0, count))
        if count < len(batch.sizes):
            break
    return fitting


def _told(_batch: Batch, _error: StorageError | None) -> None:
    """Whoever appended it was told in another life."""
