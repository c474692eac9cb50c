"""The one order that all records of a store have, for engines that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from storage.api.batches import Batch

TAIL_READ_BYTES: Final = 8 << 20
"""What one `tail` call gives at most: more than any answer carries."""


class LogOrder(Protocol):
    """Positions in the log of all queues; batches of temporary topics are not in it.

    Positions are log offsets; (`epoch`, position) stays meaningful across restarts.
    """

    @property
    def first_position(self) -> int:
        """The log offset of the oldest record that is kept."""

    @property
    def confirmed_position(self) -> int:
        """The log offset up to which records are visible."""

    @property
    def synced_position(self) -> int:
        """Everything below is on disk: saved positions never exceed it."""

    def epoch_limit(self, epoch: int) -> int | None:
        """Where positions learnt in `epoch` end: what lay past it was taken back. None = no limit.

        0 is no claim about an epoch.
        """

    def tail(self, position: int, max_bytes: int = TAIL_READ_BYTES) -> Sequence[Batch] | None:
        """Visible batches from `position` on, until `max_bytes` is reached; None = not in memory.

        `position` is a batch's or a record's start, or the confirmed position (then empty). The
        first batch may begin before it.
        """

    def read_log(self, position: int, max_bytes: int) -> list[Batch]:
        """Blocking: read whole records from `position` on as batches; call it on a reader pool.

        At least one record, unless `position` is the confirmed one (then empty). The batches are as
        they were stamped, but for their bounds. Raises CorruptRecordError when nothing can be read
        at the position; its `resume_at` is the next record that is whole. Raises BehindError when
        retention has passed it; `resume_at` is then the log's first position.
        """
