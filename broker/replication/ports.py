"""What the replica's agent needs of the process around it."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from holdmq.errors import StorageError
from storage.api.replication import LogStart, ReplicatedLog


class LogHome(Protocol):
    """The directory of a replica's log: one log is open at a time.

    All raise HoldMQError. Whoever closes a log waits until no broker uses it any more.
    """

    async def open(self) -> ReplicatedLog:
        """Open the log as a copy."""

    async def open_again(self) -> ReplicatedLog:
        """Close the log, and open it as a copy."""

    async def cut(self, position: int, epochs_kept: int) -> ReplicatedLog:
        """Close the log, cut it at a position, keep its first epochs, and open it."""

    async def receive(self, data: bytes, offset: int) -> None:
        """Write bytes of a leader's snapshot of tables beside the log."""

    async def start_over(self, start: LogStart) -> ReplicatedLog:
        """Close the log, give it up, and open an empty one."""

    async def close(self) -> None:
        """Close the log, if one is open."""

    def failure(self) -> StorageError | None:
        """Say why the log takes nothing any more until the process is started again; None = it does."""

    @property
    def readers(self) -> Executor:
        """Threads for blocking reads of the log."""


class LeadEvents(Protocol):
    """Hears that this replica leads, and that it does so no more. `serve` and `cease` do not wait."""

    def serve(self, epoch: int) -> None:
        """Open the broker for clients."""

    async def settle(self) -> None:
        """Append what only memory has and a handover must not lose. Raises HoldMQError.

        Nothing is left when it returns, and the caller lets nothing come between.
        """

    def cease(self, reason: str) -> None:
        """Close: clients look for another leader."""
