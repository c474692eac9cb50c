"""subscriptionGroup.json: a group's settings are durable before anybody is told of them.

Changes are written by one thread, one file after the other; what is asked for while a write is under
way goes into the next one together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from broker.groups.core.settings import (
    GroupSetting,
    GroupTable,
)
from broker.retry.core.moves import RETRY_MAX_TIMES
from holdmq.errors import Code, HoldMQError, RemoteError, StorageError, StoreFormatError
from holdmq.files.atomic_file import AtomicFile

CHANGES_MAX: Final = 1_000
"""Changes that wait for the file; past it BUSY."""

Plan = Callable[[dict[str, GroupSetting]], None]
"""Changes a copy of the groups; raises RemoteError when it must not."""
Done = Callable[[HoldMQError | None], None]
"""Called once: None = the change is durable and in the table."""

log = structlog.get_logger("holdmq.broker")


class _SettingChange(NamedTuple):
    plan: Plan
    done: Done


class GroupSettings:
    """The table of groups and its file. All methods but `load` and `close` are called on the loop."""

    def __init__(self, path: Path, table: GroupTable, changes_max: int = CHANGES_MAX) -> None:
        self.table = table
        self.failures = 0
        self._file = AtomicFile(path)
        self._changes_max = changes_max
        self._thread = ThreadPoolExecutor(1, "groups")
        self._waiting: list[_SettingChange] = []
        self._writing: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """Changes that wait for the file."""
        return len(self._waiting)

    def retry_max_times(self, name: str) -> int:
        """How often a group gets a message again, before it is a dead letter."""
        group = self.table.groups.get(name)
        return RETRY_MAX_TIMES if group is None else group.retry_max_times

    def load(self, has_records: bool, accept_backup: bool) -> None:
        """Read the file (blocking), or begin it. StoreFormatError if it is damaged, or missing though
        the store has records; `accept_backup` takes its .bak, and none at all if there is none."""
        path = self._file.path
        loaded = self._file.load(accept_backup)
        if loaded is not None:
            self.table.load(loaded.content, loaded.data_version, str(path))
            if loaded.from_backup:
                log.error("subscriptionGroup.json cannot be used; its backup is", path=str(path))
            return
        if has_records and not accept_backup:
            raise StoreFormatError(
                "it is missing, but the log has records",
                operation="open",
                path=str(path),
                hint="restore it from a backup, or start once with --accept-backup: every group then has the "
                "default settings",
            )
        if has_records:
            log.error("subscriptionGroup.json is missing: groups have the default settings", path=str(path))
        try:
            self._file.save(self.table.content({}), self.table.data_version)
        except StorageError as error:
            # No group is lost by it, and the first one that is created needs it again.
            log.warning("subscriptionGroup.json could not be begun", reason=str(error))

    def change(self, plan: Plan, done: Done) -> None:
        """Plan a change now or behind others, write it, take it, then call `done`.

        Raises BUSY when too many wait.
        """
        if len(self._waiting) >= self._changes_max:
            raise RemoteError(Code.BUSY, f"{self._changes_max} changes of groups wait to be written")
        self._waiting.append(_SettingChange(plan, done))
        if self._writing is None:
            self._write_next()

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._thread.shutdown(wait=True)

    def _write_next(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups = dict(self.table.groups)
        planned: list[_SettingChange] = []
        refused: list[tuple[_SettingChange, HoldMQError]] = []
        for change in waiting:
            before = dict(groups)
            try:
                change.plan(groups)
            except HoldMQError as refusal:
                groups = before
                refused.append((change, refusal))
            else:
                planned.append(change)
        if groups != self.table.groups:
            self._write(groups, planned)
        else:
            for change in planned:
                change.done(None)
        for change, why in refused:
            change.done(why)

    def _write(self, groups: dict[str, GroupSetting], planned: list[_SettingChange]) -> None:
        loop = asyncio.get_running_loop()
        content = self.table.content(groups)
        future = loop.run_in_executor(self._thread, self._file.save, content, self.table.data_version + 1)
        self._writing = future

        def written(finished: asyncio.Future[None]) -> None:
            self._writing = None
            if finished.cancelled():
                return
            raised = finished.exception()
            failure: HoldMQError | None = None
            if raised is None:
                self.table.take(groups)
            else:
                self.failures += 1
                log.error("subscriptionGroup.json could not be written", reason=str(raised))
                failure = (
                    raised
                    if isinstance(raised, HoldMQError)
                    else RemoteError(Code.SYSTEM_ERROR, f"subscriptionGroup.json: {raised}")
                )
            for change in planned:
                change.done(failure)
            if self._waiting and self._writing is None:
                self._write_next()

        future.add_done_callback(written)


def unless_failed(
    then: Callable[[], None], failed: Callable[[HoldMQError], None]
) -> Callable[[HoldMQError | None], None]:
    """Return what goes on with `then` after a step that was done, or tells `failed` why one was not."""

    def told(error: HoldMQError | None) -> None:
        try:
            if error is not None:
                raise error
            then()
        except HoldMQError as refusal:
            failed(refusal)

    return told
