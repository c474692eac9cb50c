"""The thread that brings batches to the shard's log: `kv-writer`.

It takes what has come since its last pipeline and sends it as the next one, before the last one is
answered: so the server has work while this process reads answers and packs batches. Each append says where it
expects the log to end, so a batch cannot be stored twice, nor behind one that is missing: when an answer is
lost, the log's end says which batches of the pipeline are in it, and the rest is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from time import monotonic
from typing import Any, Final

import structlog
from redis.exceptions import AskError, RedisClusterException, RedisError

from holdmq.errors import ShardLostError, StorageError
from storage.api.batches import Appended, Batch
from storage.api.tables import RowChanged
from storage.core.queues import Queue
from storage.kv.core.layout import RUN, ShardKeys, queue_field
from storage.kv.server import MOVING, UNKNOWN, CallLine, FunctionCall, ShardServer

GROUP_BATCHES: Final = 64
GROUP_BYTES: Final = 4 << 20
"""What one pipeline brings: an answer comes back every few milliseconds on a usual network."""
PIPELINES: Final = 2
"""Under way at a time: one that the server runs, and one that it finds when it is done."""
PAUSE_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
WAIT_PAUSE_S: Final = 0.1
"""Between two questions for how many replicas have what is stored."""

log = structlog.get_logger("holdmq.storage")


class PendingBatch:
    """A stamped batch on its way.

    `commands` are run in the same step as the append, `keys` are those that they name; `changes` of tables
    and the first time that something in it is due (0 = nothing is delayed) are told once it is stored.
    """

    __slots__ = ("batch", "changes", "commands", "done", "due_ms", "generation", "keys", "queues", "since")

    def __init__(
        self,
        batch: Batch,
        done: Appended,
        queues: list[Queue],
        generation: int,
        since: float,
        commands: list[Any],
        keys: list[str],
        changes: list[RowChanged],
        due_ms: int,
    ) -> None:
        self.batch = batch
        self.done = done
        self.queues = queues
        self.generation = generation
        self.since = since
        self.commands = commands
        self.keys = keys
        self.changes = changes
        self.due_ms = due_ms


class ShardWriter:
    """Sends batches in the order of `put`; what became of them is told on its thread.

    `written` gets stored batches in order; `failed` an error and the generation whose batches are all
    refused from then on; `lost` an error after which nothing is stored any more. `end` is where the log
    ends in the server.
    """

    def __init__(
        self,
        server: ShardServer,
        keys: ShardKeys,
        min_replicas: int,
        replica_timeout_ms: int,
        written: Callable[[list[PendingBatch]], None],
        failed: Callable[[StorageError, int], None],
        lost: Callable[[ShardLostError], None],
    ) -> None:
        self.end = 0
        self.term = b"0"
        self.trouble: StorageError | None = None
        """Why nothing is stored at the moment; None = all is well."""
        self.trouble_since = 0.0
        self.pipelines = self.reconciled = self.short_waits = 0
        self._server = server
        self._keys = keys
        self._wait = (min_replicas, replica_timeout_ms) if min_replicas else None
        self._written = written
        self._failed = failed
        self._lost = lost
        self._items: deque[PendingBatch] = deque()
        self._gate = Condition()
        self._refused_generation = -1
        self._stopping = False
        self._is_idle = False
        self._line: CallLine | None = None
        self._under_way: deque[list[PendingBatch]] = deque()
        self._recovering = -1
        """The generation of what is brought to the log after trouble."""
        self._is_lost = False
        self._pausing = Event()
        self._thread = Thread(target=self._run, name="kv-writer", daemon=True)

    def start(self, term: int, end: int) -> None:
        """Begin: the log ends at `end`, and the shard is this process's in `term`."""
        self.term = b"%d" % term
        self.end = end
        self._thread.start()

    def put(self, item: PendingBatch) -> None:
        """Send a batch behind those before it."""
        self._items.append(item)
        # Only a writer that has nothing to do is woken: taking the gate for each batch made both wait.
        if self._is_idle:
            with self._gate:
                self._gate.notify()

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s` when the server is away, and end. Blocking."""
        with self._gate:
            self._stopping = True
            self._gate.notify()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        self._pausing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            if not self._items and not self._under_way:
                with self._gate:
                    # Before the last look: who puts something behind that look sees it.
                    self._is_idle = True
                    while not self._items and not self._stopping:
                        self._gate.wait()
                    self._is_idle = False
            group = self._take()
            if not group and not self._under_way:
                if self._stopping and not self._items:
                    return
                continue
            try:
                self._go_on(group)
            except ShardLostError as error:
                self._end_with(error)
                return
            except StorageError as error:
                self._refuse(error)
                if self._pausing.is_set():
                    return

    def _take(self) -> list[PendingBatch]:
        group: list[PendingBatch] = []
        size = 0
        items = self._items
        while items and len(group) < GROUP_BATCHES and size < GROUP_BYTES:
            item = items.popleft()
            if item.generation <= self._refused_generation:
                continue  # refused with the one before it
            group.append(item)
            size += len(item.batch.records)
        return group

    def _go_on(self, group: list[PendingBatch]) -> None:
        """Send a group, and take the oldest answers once enough is under way or nothing is left to send.

        Raises StorageError: the first batch that is not in the log is refused.
        """
        try:
            if group:
                self._under_way.append(group)
                if self._line is None:
                    self._line = self._server.line()
                self._line.send([self._call(item) for item in group], self._wait)
                if len(self._under_way) < PIPELINES and self._items:
                    return
            assert self._line is not None
            answers = self._line.receive()
        except RedisError as error:
            self._recover(error, True)
            return
        self.pipelines += 1
        problem = self._judge(self._under_way[0], answers)
        if problem is not None:
            self._recover(problem, not self._hear_out())
            return
        self._under_way.popleft()
        self._is_well()
        if not self._under_way:
            self._hang_up()

    def _hear_out(self) -> bool:
        """Wait for what the server says of all that is under way; False = it may still do something of it.

        It is behind a gap. Were it not waited for, it could come behind what takes the gap's place.
        """
        assert self._line is not None
        try:
            for _ in range(len(self._under_way) - 1):
                self._line.receive()
        except RedisError:
            return False
        return True

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _recover(self, problem: Exception, is_in_doubt: bool) -> None:
        """Bring all that is under way to the log, a pipeline at a time. Raises StorageError.

        What may be in the log without an answer is in doubt, and never refused: the log's end will tell.
        """
        self._hang_up()
        group = [item for each in self._under_way for item in each]
        self._under_way.clear()
        self._recovering = group[0].generation
        pause_s = PAUSE_S
        was_in_doubt = False
        while True:
            if isinstance(problem, (*UNKNOWN, StorageError)):
                is_in_doubt = True
            was_in_doubt |= is_in_doubt
            if not was_in_doubt and not self._is_passing(problem):
                raise self._server.failure(problem, "append")
            self._is_in_trouble(problem)
            if self._pausing.wait(pause_s) or (self._stopping and monotonic() - self.trouble_since > 5):
                raise self._server.failure(problem, "append")
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if self._settle(group, is_in_doubt):
                is_in_doubt = False
            if not group:
                break
            try:
                answers = self._server.pipeline([self._call(item) for item in group], self._wait)
            except RedisError as error:
                problem, is_in_doubt = error, True
                continue
            self.pipelines += 1
            answer = self._judge(group, answers)
            if answer is None:
                break
            problem = answer
        self._is_well()

    def _judge(self, group: list[PendingBatch], answers: list[Any]) -> Exception | None:
        """Take away what is stored; the reason why the rest is to be sent again, None = nothing is left."""
        stored = 0
        problem: Exception | None = None
        for item, answer in zip(group, answers, strict=False):
            if isinstance(answer, AskError):
                try:
                    answer = self._server.ask(answer, self._call(item))
                except RedisError as error:
                    answer = error
            if isinstance(answer, Exception):
                problem = answer
                break
            stored += 1
        if self._wait is not None and stored:
            copies = answers[-1]
            if isinstance(copies, Exception) or copies < self._wait[0]:
                self.short_waits += 1
                lost = self._await_replicas(group[stored - 1].batch.end)
                if lost is not None:
                    return lost
        if stored:
            self._confirm(group, stored)
        return problem if group else None

    def _confirm(self, group: list[PendingBatch], count: int) -> None:
        """Tell that the first batches of a group are stored, and take them away."""
        self.end = group[count - 1].batch.end
        self._written(group[:count])
        del group[:count]

    def _is_passing(self, problem: Exception) -> bool:
        """Whether a batch that was answered so, and is not in the log, is sent again rather than refused."""
        text = str(problem)
        if "Function not found" in text:
            self._server.load_functions()
            return True
        return text.startswith("GAP") or isinstance(problem, (*MOVING, RedisClusterException))

    def _await_replicas(self, end: int) -> Exception | None:
        """Wait until enough replicas have the log up to `end`: it is confirmed late rather than refused.

        Returns why it is to be stored again, when the servers lost it before that; raises ShardLostError.
        """
        assert self._wait is not None
        # WAIT counts what has its own connection's writes: one more write is behind all of them.
        touch = FunctionCall("touch", [self._keys.state], [self.term])
        while True:
            problem: Exception
            try:
                reached, copies = self._server.pipeline([touch], self._wait)
                if not isinstance(reached, Exception) and int(reached) < end:
                    return StorageError(
                        "the servers lost a batch before enough replicas had it",
                        operation="append",
                        path=self._server.where,
                    )
                if isinstance(reached, Exception) or isinstance(copies, Exception):
                    problem = reached if isinstance(reached, Exception) else copies
                elif copies >= self._wait[0]:
                    return None
                else:
                    problem = StorageError(
                        f"{copies} of {self._wait[0]} replicas have it",
                        operation="append",
                        path=self._server.where,
                        hint="start the replicas again, or lower storage.kv.min_replicas",
                    )
            except RedisError as error:
                problem = error
            if isinstance(problem, RedisError):
                failure = self._server.failure(problem, "append")
                if isinstance(failure, ShardLostError):
                    raise failure
                self._server.look_up()
            self._is_in_trouble(problem)
            if self._pausing.wait(WAIT_PAUSE_S):
                raise StorageError("too few replicas have it", operation="append", path=self._server.where)

    def _settle(self, group: list[PendingBatch], is_in_doubt: bool) -> bool:
        """Ask where the log ends, False = nobody says: what was in doubt and is below is stored."""
        try:
            self._server.look_up()
            term, end = self._server.command("HMGET", self._keys.state, "term", "end")
        except StorageError as error:
            self._is_in_trouble(error)
            return False
        if term != self.term:
            is_forgotten = term is None or int(term) < int(self.term)
            raise ShardLostError(
                f"it is in term {_text(term)}, not {_text(self.term)}",
                operation="append",
                path=self._keys.tag,
                hint="the servers lost writes" if is_forgotten else "another broker took it over",
            )
        end = int(end)
        if end < self.end:
            raise ShardLostError(
                f"the servers lost what was confirmed: the log ended at {self.end} and ends at {end}",
                operation="append",
                path=self._keys.tag,
                hint="it goes on from there in a new epoch; a master failed over before its replica had all",
            )
        stored = 0
        while stored < len(group) and group[stored].batch.end <= end:
            stored += 1
        if end != (group[stored - 1].batch.end if stored else self.end) or (stored and not is_in_doubt):
            raise ShardLostError(
                f"the log ends at {end}, which is no end of a batch that this process has on its way",
                operation="append",
                path=self._keys.tag,
                hint="it goes on from there",
            )
        if stored:
            if self._wait is not None and self._await_replicas(end) is not None:
                return True
            self.reconciled += stored
            self._confirm(group, stored)
        return True

    def _call(self, item: PendingBatch) -> FunctionCall:
        batch = item.batch
        keys = [self._keys.state, self._keys.log, self._keys.ends]
        args: list[Any] = [
            self.term,
            batch.position,
            batch.end,
            batch.store_ms,
            batch.records,
            len(batch.runs),
        ]
        at = batch.position
        for run in batch.runs:
            keys.append(self._keys.queue(run.topic, run.queue_id))
            args += (
                queue_field(run.topic, run.queue_id),
                run.base_offset + run.count,
                RUN.pack(at, batch.store_ms, run.size_bytes, run.count),
            )
            at += run.size_bytes
        return FunctionCall("append", keys + item.keys, args + item.commands)

    def _is_well(self) -> None:
        if self.trouble is not None:
            log.info("the key-value server stores again", server=self._server.where)
            self.trouble = None

    def _is_in_trouble(self, problem: Exception) -> None:
        if self.trouble is None:
            self.trouble_since = monotonic()
            log.warning("the key-value server does not store", server=self._server.where, reason=str(problem))
        self.trouble = (
            problem if isinstance(problem, StorageError) else self._server.failure(problem, "append")
        )

    def _refuse(self, error: StorageError) -> None:
        self._refused_generation = self._recovering
        self._failed(error, self._recovering)

    def _end_with(self, error: ShardLostError) -> None:
        self._is_lost = True
        self._refused_generation = 1 << 62
        self._lost(error)


def _text(term: bytes | None) -> str:
    return "none" if term is None else term.decode()
