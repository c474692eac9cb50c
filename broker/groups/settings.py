"""subscriptionGroup.json: a group's settings are durable before anybody is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from broker.groups.core.settings import GroupSetting, GroupTable
from broker.kernel.events import Event
from broker.retry.core.moves import RETRY_MAX_TIMES
from broker.state.planned_changes import PlannedChanges
from broker.state.state_file import Done, StateFile
from holdmq.errors import HoldMQError, StorageError, StoreFormatError

CHANGES_MAX: Final = 1_000
"""Changes that wait for the file; past it BUSY."""

Plan = Callable[[dict[str, GroupSetting]], None]
"""Changes a copy of the groups; raises RemoteError when it must not."""

log = structlog.get_logger("holdmq.broker")


class GroupSettings:
    """The table of groups and its file. All methods but `load` and `close` are called on the loop."""

    def __init__(self, file: StateFile, table: GroupTable, changes_max: int = CHANGES_MAX) -> None:
        self.table = table
        self.created: Event[[str]] = Event()
        """Happens for each group that was not there before, when that is durable."""
        self._file = file
        self._changes = PlannedChanges(
            self._file, lambda: dict(table.groups), self._content_of, self._take, changes_max
        )

    @property
    def waiting(self) -> int:
        """Changes that wait for the file."""
        return self._changes.waiting

    @property
    def failures(self) -> int:
        """Writes of the file that failed."""
        return self._file.failures

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
            self._file.write(self.table.content({}), self.table.data_version)
        except StorageError as error:
            # No group is lost by it, and the first one that is created needs it again.
            log.warning("subscriptionGroup.json could not be begun", reason=str(error))

    def change(self, plan: Plan, done: Done) -> None:
        """Plan a change now or behind others, write it, take it, then call `done`.

        Raises BUSY when too many wait.
        """

        def whole(groups: dict[str, GroupSetting]) -> None:
            changed = dict(groups)
            plan(changed)
            groups.clear()
            groups.update(changed)

        self._changes.submit(whole, done)

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._changes.close()

    def _take(self, groups: dict[str, GroupSetting]) -> None:
        created = groups.keys() - self.table.groups.keys()
        self.table.take(groups)
        for name in created:
            self.created.happened(name)

    def _content_of(self, groups: dict[str, GroupSetting]) -> tuple[dict[str, Any], int] | None:
        return (
            None if groups == self.table.groups else (self.table.content(groups), self.table.data_version + 1)
        )


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
