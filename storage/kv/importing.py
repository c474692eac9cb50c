"""A stopped log engine's store, brought into a shard that has nothing: records stay as they were stamped.

Positions, queue offsets and the store's id are kept, so whatever names a place in the log goes on to mean it:
sessions, shared groups, message ids. Where the log has a blank between two segments the shard has a hole.

A shard whose import has not come to its end has a format of its own, which no broker opens, and says how far
it came: `import_end` is the end of the log that is imported, `import_rows` whether all rows are there. Every
batch goes in with what its records change, in one step that moves the log's end: who goes on begins there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
from redis.exceptions import RedisClusterException, RedisError

from holdmq.config.model import StorageSection
from holdmq.errors import ShardLostError, StorageError, StoreFormatError
from holdmq.record.batch import decode_columns
from storage.api.batches import Batch, BatchRun
from storage.api.tables import RowChanged
from storage.core.delayed import entries_in
from storage.core.scan import KeyLevels, part_of
from storage.core.table_records import changes_in
from storage.kv.core.layout import FORMAT, IMPORTING, RUN, ShardKeys, offset_in, queue_field, waiting_name
from storage.kv.index import KvIndex, ShardEnds
from storage.kv.owners import is_dead_here, this_process
from storage.kv.reading import ServerReader
from storage.kv.server import MOVING, UNKNOWN, FunctionCall, ShardServer
from storage.kv.tables import row_command

PART_RECORDS: Final = 1024
PART_BYTES: Final = 512 << 10
"""The largest batch: the server serves nobody else while it takes one."""
GROUP_CALLS: Final = 64
GROUP_BYTES: Final = 4 << 20
"""What one pipeline brings."""
ROWS_AT_ONCE: Final = 256
QUEUES_AT_ONCE: Final = 256
POLL_S: Final = 0.1
RENEWALS: Final = 3

log = structlog.get_logger("holdmq.storage")
Queues = Mapping[tuple[str, int], tuple[int, int]]
"""First and next offset of every queue."""


class ImportSource(NamedTuple):
    """What is imported: a store's identity, the bounds of its log, its queues, and how far its rows are."""

    store_id: bytes
    first_position: int
    end: int
    epochs: Mapping[str, Any]
    queues: Queues
    rows_applied: int


class ShardImport:
    """One import into the shard of a broker's name; every method blocks and raises StorageError.

    `open`, then `put_rows`, `put_log`, `put_files` and `finish`, in this order; `close` whatever happened.
    Counters are of this run.
    """

    def __init__(
        self,
        settings: StorageSection,
        shard: str,
        source: ImportSource,
        key_levels: KeyLevels,
        is_table: Callable[[str], bool],
        now_ms: int,
    ) -> None:
        kv = settings.kv
        keys = self._keys = ShardKeys(kv.prefix, shard)
        self._kv = kv
        self._source = source
        self._is_table = is_table
        self.server = ShardServer(kv, keys)
        self._index = KvIndex(
            self.server,
            keys,
            ServerReader(self.server, keys, key_levels),
            lambda _: None,
            lambda: source.store_id,
            lambda: ShardEnds(source.first_position, source.end),
            lambda: settings.retention_age_s * 1000,
            lambda: now_ms,
        )
        # What only consumers keep is theirs to give up, once the broker knows them.
        is_by_age = settings.delete != "consumed"
        self._kept_since_ms = now_ms - settings.retention_age_s * 1000 if is_by_age else 0
        self._term = b"0"
        self._renewed = 0.0
        self._end = source.first_position
        self._calls: list[_Call] = []
        self._calls_bytes = 0
        self.has_rows = self.is_continued = False
        self.records = self.expired = self.rows = 0

    @property
    def position(self) -> int:
        """The log position up to which everything is in the shard."""
        return self._end

    # Beginning

    def open(self) -> None:
        """Take the shard; go on in it when it is the same import that stopped. Refuses what has anything."""
        self.server.open()
        state = self._state()
        if state:
            self._check_is_ours(state)
            if state.get(b"import_end") != b"%d" % self._source.end:
                # The store went on meanwhile: what is there is a part of something older.
                self._take()
                self._empty()
                state = {}
        elif self._has_keys():
            raise self._refused("it has keys, but no state")
        self._check_is_ours(self._take())
        self.is_continued = bool(state)
        if not state:
            first, end = self._source.first_position, self._source.end
            epochs = json.dumps(dict(self._source.epochs))
            self._change(
                [["SET", self._keys.epochs, epochs],
                 ["HSET", self._keys.state, "end", first, "first", first, "import_end", end]],
                [self._keys.epochs],
            )  # fmt: skip
        state = self._state()
        self._end = int(state[b"end"])
        self.has_rows = b"import_rows" in state

    def _state(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.server.command("HGETALL", self._keys.state)
        return found

    def _check_is_ours(self, state: Mapping[bytes, bytes]) -> None:
        if int(state.get(b"format", b"0")) != IMPORTING:
            raise self._refused("it is not empty")
        if state.get(b"store_id") != self._source.store_id.hex().encode():
            raise self._refused("an import of another store into it has not come to its end")

    def _refused(self, why: str) -> StoreFormatError:
        return StoreFormatError(
            f"broker {self._keys.shard}: {why}",
            operation="import",
            path=self._keys.tag,
            hint="a store is imported where there is nothing: another storage.kv.prefix, or delete its keys",
        )

    def _has_keys(self) -> bool:
        keys = self._keys
        named = (keys.epochs, keys.log, keys.ends, keys.files, keys.due, keys.sizes)
        return bool(self.server.command("EXISTS", *named))

    def _take(self) -> dict[bytes, bytes]:
        """Own the shard; the state that it is in. Waits for another process's lease, if that has one."""
        until = monotonic() + 2 * self._kv.lease_ms / 1e3
        is_forced = "0"
        while True:
            answer = self.server.run(
                "own", [self._keys.state], this_process(), self._kv.lease_ms, self.server.run_id(), is_forced,
                self._source.store_id.hex(), IMPORTING, 0,
            )  # fmt: skip
            if answer[0] < 0:
                raise self._refused(f"its format is {int(answer[1])}, of a newer release")
            if answer[0]:
                state = dict(zip(answer[1::2], answer[2::2], strict=True))
                self._term = state[b"term"]
                self._renewed = monotonic()
                return state
            other = answer[1].decode()
            if is_dead_here(other):
                is_forced = "1"
            elif monotonic() > until:
                raise self._refused(f"another process has it ({other})")
            else:
                sleep(POLL_S)

    def _empty(self) -> None:
        """Delete all keys of the shard: an import of an older state of the same store."""
        node = self.server.node()
        cursor = 0
        while True:
            cursor, found = node.execute_command(
                "SCAN", cursor, "MATCH", f"{self._keys.tag}:*", "COUNT", 1000
            )
            if found:
                self.server.command("UNLINK", *found)
            if not int(cursor):
                return

    def _change(self, commands: Sequence[Sequence[Any]], keys: Sequence[str] = ()) -> None:
        words: list[Any] = []
        for command in commands:
            words += (len(command), *command)
        self._renew()
        self.server.run("change", [self._keys.state, *keys], self._term, *words)

    def _renew(self) -> None:
        if monotonic() - self._renewed > self._kv.lease_ms / 1e3 / RENEWALS:
            self.server.run("renew", [self._keys.state], self._term, self._kv.lease_ms)
            self._renewed = monotonic()

    # What is imported

    def put_rows(self, rows: Iterator[RowChanged]) -> None:
        """Put the rows of all tables; again from the first one if that stopped half-way."""
        commands: list[Sequence[Any]] = []
        size = 0
        for row in rows:
            commands.append(row_command(self._keys, row))
            size += len(row.key) + len(row.value or b"")
            self.rows += 1
            if len(commands) >= ROWS_AT_ONCE or size >= PART_BYTES:
                self._change(commands)
                commands, size = [], 0
        self._change([*commands, ["HSET", self._keys.state, "import_rows", self._source.rows_applied]])
        self.has_rows = True

    def put_log(self, walk: Callable[[int], Iterator[Batch]], report: Callable[[int, int], object]) -> None:
        """Put what the log has from `position` on; `walk` gives the batches from a position on, in order.

        What a server did not answer is asked of it: the log's end says what it has.
        """
        first = self._source.first_position
        until = monotonic() + self._kv.timeout_ms / 1e3
        while self._end < self._source.end:
            before = self._end
            try:
                for batch in walk(self._end):
                    self._put(batch)
                    report(self._end - first, self._source.end - first)
                self._flush()
                if self._end < self._source.end:
                    raise StorageError(
                        f"the log ends at {self._end}, not at {self._source.end}", operation="import"
                    )
            except (*UNKNOWN, *MOVING, RedisClusterException) as error:
                if self._end > before:
                    until = monotonic() + self._kv.timeout_ms / 1e3
                elif monotonic() > until:
                    raise self.server.failure(error, "import") from error
                sleep(POLL_S)
                self.server.look_up()
                self._go_on()
            except RedisError as error:
                raise self.server.failure(error, "import") from error

    def _go_on(self) -> None:
        self._calls.clear()
        self._calls_bytes = 0
        term, end = self.server.command("HMGET", self._keys.state, "term", "end")
        if term != self._term:
            raise ShardLostError("another process took it", operation="import", path=self._keys.tag)
        self._end = int(end)

    def _put(self, batch: Batch) -> None:
        times = decode_columns(batch.records, batch.starts, batch.sizes).store_ms
        count = len(times)
        expired = int(np.searchsorted(times, self._kept_since_ms))
        if expired:
            self._pass_over(part_of(batch, 0, expired))
        # Batches are as they were stamped, of one time each: searches by time find what they found.
        changes = (np.flatnonzero(times[1:] != times[:-1]) + 1).tolist()
        bounds = [expired, *(at for at in changes if at > expired), count]
        for first, last in pairwise(bounds):
            while first < last:
                room = int(np.searchsorted(batch.starts, int(batch.starts[first]) + PART_BYTES))
                stop = min(last, first + PART_RECORDS, max(first + 1, room - 1))
                part = part_of(batch, first, stop)
                part.store_ms = int(times[first])
                self._append(part)
                first = stop

    def _append(self, batch: Batch) -> None:
        """Queue the call that puts a batch behind what is there."""
        keys = self._keys
        expected = self._calls[-1].end if self._calls else self._end
        names = [keys.state, keys.log, keys.ends]
        runs: list[Any] = []
        commands: list[Any] = []
        at, first, count = batch.position, 0, 0
        for run in batch.runs:
            sizes = batch.sizes[first : first + run.count]
            given_up = min(run.count, max(0, self._first_of(run) - run.base_offset))
            size, before = int(sizes.sum()), int(sizes[:given_up].sum())
            if given_up < run.count:
                names.append(keys.queue(run.topic, run.queue_id))
                packed = RUN.pack(at + before, batch.store_ms, size - before, run.count - given_up)
                runs += (queue_field(run.topic, run.queue_id), run.base_offset + run.count, packed)
                count += 1
            at += size
            first += run.count
        if batch.position > expected:
            commands += (4, "HSET", keys.holes, expected, batch.position)
            names.append(keys.holes)
        self._index.commands_of(batch, commands, names)
        for change in self._changes_of(batch):
            commands += (len(change), *change)
        head = (self._term, expected, batch.end, batch.store_ms, bytes(batch.records), count)
        call = FunctionCall("append", names, [*head, *runs, *commands])
        self._calls.append(_Call(call, batch.end, len(batch.sizes)))
        self._calls_bytes += len(batch.records)
        if len(self._calls) >= GROUP_CALLS or self._calls_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Send what is queued. Raises RedisError: what came before the answer is in."""
        if not self._calls:
            return
        self._renew()
        calls, self._calls, self._calls_bytes = self._calls, [], 0
        answers = self.server.pipeline([call.call for call in calls])
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            self._end = call.end
            self.records += call.records

    def _pass_over(self, batch: Batch) -> None:
        """Leave out what retention would give up at once; what it did to rows and timers stays."""
        commands = self._changes_of(batch)
        for run in batch.runs:
            field = queue_field(run.topic, run.queue_id)
            commands.append(["HSET", self._keys.ends, field, run.base_offset + run.count])
        place = ["end", batch.end, "first", batch.end, "store_ms", batch.store_ms]
        self._change([*commands, ["HSET", self._keys.state, *place]])
        self._end = batch.end
        self.expired += len(batch.sizes)

    def _changes_of(self, batch: Batch) -> list[Sequence[Any]]:
        """What a batch's records change beside the log: rows that are newer than those put, and timers."""
        keys = self._keys
        tables = {run.topic for run in batch.runs if self._is_table(run.topic)}
        changes = changes_in(batch, tables)[0] if tables else []
        applied = self._source.rows_applied
        found: list[Sequence[Any]] = [
            row_command(keys, change) for change in changes if change.version >= applied
        ]
        for due_ms, first, position, size in entries_in(batch, True):
            begin, name = position - batch.position, waiting_name(first)
            if size:
                found.append(("ZADD", keys.due, due_ms, name))
                found.append(("HSET", keys.waiting, name, bytes(batch.records[begin : begin + size])))
            else:
                found += (("ZREM", keys.due, name), ("HDEL", keys.waiting, name))
        return found

    def _first_of(self, run: BatchRun) -> int:
        return self._source.queues.get((run.topic, run.queue_id), (0, 0))[0]

    def put_files(self, files: Iterator[tuple[str, bytes]]) -> int:
        """Put the state files of the broker's rooms, by their path; how many there are."""
        count = 0
        for name, content in files:
            self._change([["HSET", self._keys.files, name, content]], [self._keys.files])
            count += 1
        return count

    # Ending

    def finish(self) -> None:
        """Say where each queue begins and ends, and let brokers have the shard."""
        keys = self._keys
        queues = sorted(self._source.queues.items())
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            self._bound(queues[at : at + QUEUES_AT_ONCE])
        oldest, last = self._stream(keys.log)
        first = self._source.end if oldest is None else offset_in(oldest[0]) - len(oldest[1][b"r"])
        end = self._source.end
        commands: list[Sequence[Any]] = [["HSET", keys.state, "first", first]]
        if last < end:
            commands.append(["XADD", keys.log, f"0-{end}", "r", "", "t", 0])
            commands.append(["XTRIM", keys.log, "MINID", f"0-{end + 1}"])
        self._change(commands)
        self._await_replicas()
        self.server.keyed("SADD", keys.shards, keys.shard)
        self._change(
            [["HDEL", keys.state, "import_end", "import_rows"], ["HSET", keys.state, "format", FORMAT]]
        )

    def _bound(self, queues: Sequence[tuple[tuple[str, int], tuple[int, int]]]) -> None:
        commands: list[Sequence[Any]] = []
        for (topic, queue_id), (_, following) in queues:
            stream, field = self._keys.queue(topic, queue_id), queue_field(topic, queue_id)
            oldest, last = self._stream(stream)
            # Of what is not in the log any more the queue has nothing.
            first = following
            if oldest is not None:
                first = offset_in(oldest[0]) - RUN.unpack(oldest[1][b"p"])[3]
            if last < following:
                commands.append(["XADD", stream, f"0-{following}", "p", RUN.pack(self._source.end, 0, 0, 0)])
                commands.append(["XTRIM", stream, "MINID", f"0-{following + 1}"])
            commands.append(["HSET", self._keys.ends, field, following])
            if first:
                commands.append(["HSET", self._keys.firsts, field, first])
        self._change(commands)

    def _stream(self, name: str) -> tuple[Any, int]:
        """The first entry of a stream, and the last id that it was given; (None, 0) when there is none."""
        if not self.server.command("EXISTS", name):
            return None, 0
        found = self.server.command("XRANGE", name, "-", "+", "COUNT", 1)
        told = self.server.command("XREVRANGE", name, "+", "-", "COUNT", 1)
        if not found:
            facts = self.server.command("XINFO", "STREAM", name)
            return None, offset_in(facts["last-generated-id"])
        return found[0], offset_in(told[0][0])

    def _await_replicas(self) -> None:
        """Wait until as many replicas have all of it as each message wants."""
        wanted = self._kv.min_replicas
        touch = FunctionCall("touch", [self._keys.state], [self._term])
        if not wanted:
            return
        timeout_ms = min(self._kv.replica_timeout_ms, self._kv.timeout_ms // 2)
        copies = self.server.attempt(lambda: self.server.pipeline([touch], (wanted, timeout_ms)))[-1]
        if isinstance(copies, Exception) or copies < wanted:
            raise StorageError(
                f"fewer than {wanted} replicas have what was imported",
                operation="import",
                path=self.server.where,
                hint="storage.kv.min_replicas says how many must: start them, then run the import again",
            )

    def close(self) -> None:
        """Give the shard up, and the connections."""
        try:
            if self._term != b"0":
                self.server.run("release", [self._keys.state], self._term)
        except StorageError:
            log.warning("the shard could not be given up: it is free when its lease ends")
        finally:
            self.server.close()


class _Call(NamedTuple):
    """A batch on its way: what puts it, where the log ends behind it, and its records."""

    call: FunctionCall
    end: int
    records: int
