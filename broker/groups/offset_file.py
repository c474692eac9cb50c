"""consumerOffset.json: saved every few seconds, and at once for who waits for it.

An offset is saved only when the log up to it is on disk: a group must not come back from a crash
behind messages that the log has lost. Its .bak may be older, but only by offsets that were raised
since: a group's first offsets, resets and deletions are written twice, so that both have them before
they count, and no group jumps ahead when the broker has to go on with the .bak. The file also has the
generation above which this start grants leases, and when each group was last seen (for retention).
Source: broker.md, Offsets; storage.md, Recovery.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from broker.groups.core.offsets import GENERATION, SEEN, TABLE, Content, OffsetTable, clamp, positions
from broker.state.state_file import Done, StateFile
from holdmq.errors import Code, HoldMQError, RemoteError, StorageError, StoreFormatError
from storage.api.retention import QueueNeed
from storage.api.store import OrderedStore

WAITERS_MAX: Final = 10_000
"""Reports that wait for the file: one for each of 10,000 connections; past it BUSY."""
SYNC_WAIT_S: Final = 10.0
"""How long a save waits for the log's fsync: many flush intervals. Then it is tried again later."""
SYNC_LOOK_S: Final = 0.02
SEEN_SAVE_S: Final = 3_600.0
"""When nothing else changes, the file is written this often, so that it says who was there: a
fraction of any group_expiry."""
GENERATION_SHIFT: Final = 28
"""A start's generations begin at its seconds since the epoch times 2^28: more than are granted in one."""

log = structlog.get_logger("holdmq.broker")


class _Save(NamedTuple):
    content: Content
    change: int
    is_twice: bool
    seen_ms: dict[str, int]
    position: int
    waiters: list[Done]
    give_up_at: float


class OffsetFile:
    """Loads and saves an OffsetTable. `live_groups` says which groups have members now.

    `is_in_log`: the file is in the store's own log, behind whatever it knows of it.
    """

    def __init__(
        self,
        file: StateFile,
        table: OffsetTable,
        store: OrderedStore,
        interval_s: float,
        live_groups: Callable[[], Iterable[str]],
        is_in_log: bool,
        waiters_max: int = WAITERS_MAX,
    ) -> None:
        self.generation = 0
        """Leases of this start have generations above it."""
        self.saves = self.failures = self.moved = 0
        self._path = file.path
        self._file = file
        self._table = table
        self._store = store
        self._interval_s = interval_s
        self._live_groups = live_groups
        self._is_in_log = is_in_log
        self._waiters_max = waiters_max
        self._saved_change = 0
        self._backed_change = 0
        """Of the last save that the .bak has too."""
        self._saved_at = 0.0
        self._seen_ms: dict[str, int] = {}
        self._saved_seen_ms: dict[str, int] = {}
        self._needed: tuple[Content, dict[str, int]] = ({}, {})
        self._waiters: list[Done] = []
        self._is_saving = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_failure = ""

    @property
    def waiting(self) -> int:
        """Reports that wait for the file."""
        return len(self._waiters)

    # At the start, blocking

    def load(self, has_records: bool, accept_backup: bool) -> None:
        """Read the file, or begin it; the store is open.

        A file that is damaged, or missing while its .bak is there, is replaced by the .bak, loudly. With
        neither, StoreFormatError if the store has records, but for `accept_backup`: then no group has an
        offset.
        """
        content = self._read(has_records, accept_backup)
        saved = content.get(GENERATION, 0)
        if not isinstance(saved, int) or not isinstance(content.get(SEEN, {}), dict):
            raise StoreFormatError(
                "its generation is no number", operation="read", path=str(self._path), hint="restore the file"
            )
        self._table.load(content.get(TABLE, {}), str(self._path))
        self._seen_ms = {g: ms for g, ms in content.get(SEEN, {}).items() if isinstance(ms, int)}
        # The clock alone may go back, and the file alone may be an older one.
        now = int(time.time()) << GENERATION_SHIFT
        self.generation = max(saved + (1 << GENERATION_SHIFT), now)
        self._move_inside()
        self._refresh_needed()
        try:
            content = self._whole(self._table.snapshot(), self._seen_ms)
            self._file.write(content, self._file.data_version + 1, times=2)
        except StorageError as error:
            log.warning("consumerOffset.json could not be written at the start", reason=str(error))
        else:
            self._table.saved = self._table.snapshot()
            self._saved_seen_ms = dict(self._seen_ms)
            self._saved_change = self._backed_change = self._table.change

    def _read(self, has_records: bool, accept_backup: bool) -> dict[str, Any]:
        try:
            loaded = self._file.load()
        except StoreFormatError as problem:
            loaded = self._file.load(accept_backup=True)  # raises when the backup cannot be used either
            assert loaded is not None
            log.error(
                "consumerOffset.json cannot be used; its backup is: groups go on a little further back",
                reason=str(problem),
                backup=str(self._file.backup_path),
                entries=len(loaded.content.get(TABLE, {})),
            )
        if loaded is not None:
            return loaded.content
        if not has_records:
            return {}
        if not accept_backup:
            raise StoreFormatError(
                "it is missing and so is its .bak, but the log has records",
                operation="open",
                path=str(self._path),
                hint="restore it from a backup, or start once with --accept-backup: then no group has an "
                "offset, and each begins where its consumers say",
            )
        log.error(
            "consumerOffset.json is missing and so is its backup: no group has an offset",
            path=str(self._path),
        )
        return {}

    def _move_inside(self) -> None:
        """Offsets that are outside of their queues go to the nearer bound, and are told of."""
        for at in list(self._table):
            first, end = self._store.bounds(at.topic, at.queue_id)
            inside = clamp(at.offset, first, end)
            if inside != at.offset:
                self.moved += 1
                self._table.reset(at.group, at.topic, at.queue_id, inside)
                log.warning(
                    "a saved offset is outside of its queue and was moved",
                    **at._asdict(),
                    moved_to=inside,
                    why="retention passed it" if at.offset < first else "the log lost what was behind it",
                )

    # On the loop

    def start(self) -> None:
        """Begin to save at intervals."""
        self._saved_at = asyncio.get_running_loop().time()
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def reconfigure(self, interval_s: float) -> None:
        """Save at another interval, counted from now."""
        self._interval_s = interval_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._tick)

    async def close(self) -> None:
        """Save what changed, then stop; the store must still be open."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        if self._is_dirty or self._is_saving or self._seen_ms != self._saved_seen_ms:
            saved: asyncio.Future[None] = loop.create_future()
            self._add_waiter(lambda _: saved.set_result(None))
            await saved
        await loop.run_in_executor(None, self._file.close)

    async def settle(self) -> None:
        """Save until nothing is left that is not saved, at this moment; raises HoldMQError when it cannot be.

        Who stops the log's appends right after it loses no offset that was reported.
        """
        loop = asyncio.get_running_loop()
        while self._is_dirty or self._is_saving:
            saved: asyncio.Future[HoldMQError | None] = loop.create_future()
            self._add_waiter(partial(_tell, saved))
            error = await saved
            if error is not None:
                raise error

    def wait(self, done: Done) -> None:
        """Call `done` when the file has everything of this moment; raises BUSY when too many wait."""
        if not self._is_dirty and not self._is_saving:
            done(None)
            return
        if len(self._waiters) >= self._waiters_max:
            raise RemoteError(Code.BUSY, f"{self._waiters_max} reports wait for consumerOffset.json")
        self._add_waiter(done)

    def forget(self, group: str) -> None:
        """A group was deleted."""
        self._seen_ms.pop(group, None)

    def needs(self) -> Iterator[QueueNeed]:
        """What groups have yet to consume, as saved; on any thread."""
        content, seen_ms = self._needed
        for at in positions(content):
            yield QueueNeed(f"group {at.group}", seen_ms.get(at.group, 0), at.topic, at.queue_id, at.offset)

    @property
    def _is_dirty(self) -> bool:
        return self._table.change != self._saved_change

    def _add_waiter(self, done: Done) -> None:
        self._waiters.append(done)
        if not self._is_saving:
            self._begin()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._tick)
        self._refresh_needed()
        is_old = self._seen_ms and loop.time() - self._saved_at > SEEN_SAVE_S
        if not self._is_saving and (self._is_dirty or is_old):
            self._begin()

    def _refresh_needed(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for group in self._live_groups():
            self._seen_ms[group] = now_ms
        kept = {name.rpartition("@")[2] for name in self._table.snapshot()}
        self._seen_ms = {group: ms for group, ms in self._seen_ms.items() if group in kept}
        for group in kept:
            self._seen_ms.setdefault(group, now_ms)
        self._needed = (self._table.saved, dict(self._seen_ms))

    def _begin(self) -> None:
        self._is_saving = True
        waiters, self._waiters = self._waiters, []
        loop = asyncio.get_running_loop()
        self._write_when_synced(
            _Save(
                self._table.snapshot(),
                self._table.change,
                self._table.ground > self._backed_change,
                dict(self._seen_ms),
                self._store.confirmed_position,
                waiters,
                loop.time() + SYNC_WAIT_S,
            )
        )

    def _write_when_synced(self, save: _Save) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_in_log and self._store.synced_position < save.position:
            if loop.time() < save.give_up_at:
                loop.call_later(SYNC_LOOK_S, self._write_when_synced, save)
                return
            reason = f"the log is not on disk up to {save.position}"
            self._ended(save, StorageError(reason, operation="write", path=str(self._path)))
            return
        # The second write makes the first the .bak.
        self._file.save(
            self._whole(save.content, save.seen_ms),
            self._file.data_version + 1,
            partial(self._ended, save),
            times=1 + save.is_twice,
        )

    def _whole(self, content: Content, seen_ms: dict[str, int]) -> dict[str, Any]:
        return {TABLE: content, GENERATION: self.generation, SEEN: seen_ms}

    def _ended(self, save: _Save, error: HoldMQError | None) -> None:
        self._is_saving = False
        if error is None:
            self.saves += 1
            self._table.saved = save.content
            self._saved_seen_ms = save.seen_ms
            self._saved_change = save.change
            if save.is_twice:
                self._backed_change = save.change
            self._saved_at = asyncio.get_running_loop().time()
            self._last_failure = ""
        else:
            self.failures += 1
            if str(error) != self._last_failure:
                self._last_failure = str(error)
                log.error("consumerOffset.json could not be written; it is tried again", reason=str(error))
        for done in save.waiters:
            done(error)
        if self._waiters and not self._is_saving:
            self._begin()


def _tell(saved: asyncio.Future[HoldMQError | None], error: HoldMQError | None) -> None:
    if not saved.done():
        saved.set_result(error)
