"""The shell of a replica: carries out what its core decides, and tells it what came of it.

One event loop: nothing here waits but calls to the coordinator and changes of a closed log, each in a task of
its own. What the core wants is done in the order in which it wanted it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from random import SystemRandom
from typing import Any, Final

import structlog

from broker.replication.core.actions import (
    Action,
    AnswerFetch,
    BeginEpoch,
    Cease,
    ConfirmTo,
    CutLog,
    Distrust,
    EndLeading,
    GiveUpLease,
    HoldLease,
    Propose,
    ReadState,
    RefuseAppends,
    Say,
    Serve,
    StartOver,
    StopAppends,
    TakeAppends,
    TakeBytes,
    Trust,
)
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome, FetchGrant, Refused
from broker.replication.core.recurring_fault import RecurringFault
from broker.replication.core.replica import Replica, ReplicaRole
from broker.replication.core.settings import ReplicaSettings
from broker.replication.fetched import FetchedPositions
from broker.replication.peers import NO_BYTES, PeerAnswer, Peers
from broker.replication.ports import LeadEvents, LogHome
from holdmq.coordination.api import Coordinator, ShardSnapshot, ShardState
from holdmq.errors import BehindError, Code, FewReplicasError, HoldMQError, RemoteError, StorageError
from holdmq.rpc.connection import Request
from holdmq.wire.replica_headers import ReplicaFetchResponse, ReplicaTablesResponse
from storage.api.replication import LogBytes, LogStart, QueueEnds, ReplicatedLog, TableSnapshot

TICK_S: Final = 0.05
"""How often deadlines are looked at: a tenth of the shortest, a switch-over's."""
WATCH_S: Final = 30.0
"""How long one watch of the coordinator lasts; the state is read each second anyway."""
WATCH_PAUSE_S: Final = 1.0
FULL_PAUSE_S: Final = 1.0
"""How long a disk that was full is left alone."""

log = structlog.get_logger("holdmq.replication")


def boot_time() -> float:
    """Seconds on a clock that never goes back, and counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ReplicaAgent:
    """One replica of a shard. `run` is its life; all other methods belong on its loop.

    `read_address`: where clients may read while another replica leads.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        replica: str,
        replicas: Sequence[str],
        home: LogHome,
        coordinator: Coordinator,
        peers: Peers,
        lead: LeadEvents,
        fetch_max_bytes: int,
        cold_bytes_per_s: int,
        read_address: str,
    ) -> None:
        self.replica = replica
        self._read_address = read_address
        self._settings = settings
        self._replicas = tuple(replicas)
        self._home = home
        self._coordinator = coordinator
        self._peers = peers
        self._lead = lead
        self._fetch_max_bytes = fetch_max_bytes
        self._cold_bytes_per_s = cold_bytes_per_s
        self._cold_free_at = 0.0
        self._core: Replica | None = None
        self._log: ReplicatedLog | None = None
        self._queue: deque[Action] = deque()
        self._is_doing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, Request] = {}
        self._fetched = FetchedPositions()
        self._number = 0
        self._data: memoryview = NO_BYTES
        self._data_end = 0
        self._welcome: CopyWelcome | None = None
        self._welcome_ends: QueueEnds = {}
        self._acquisition = ""
        self._lease_lock = asyncio.Lock()
        self._failure: HoldMQError | None = None
        self._failed = asyncio.Event()
        self._role: ReplicaRole | None = None
        self._random = SystemRandom()
        self._unreadable, self._unheld = RecurringFault(), RecurringFault()
        self._outdated, self._older = RecurringFault(), RecurringFault()
        self._unwritten = RecurringFault()
        self._is_doubted = self._is_noting = False
        self._note_doubt_at = 0.0
        self.failovers = 0
        self.bytes_copied = self.bytes_served = 0

    # Life

    async def run(self, stopping: asyncio.Event) -> None:
        """Replicate until `stopping`; hand the lead over then. Raises HoldMQError when the log fails."""
        loop = asyncio.get_running_loop()
        self._take_log(await self._home.open())
        self._core = Replica(
            self._settings,
            self.replica,
            self._replicas,
            self.view(),
            partial(self._random.getrandbits, 62),
            self._read_address,
        )
        self._peers.start()
        watching = loop.create_task(self._watch(), name="coordinator watch")
        stop = loop.create_task(stopping.wait(), name="stopping")
        failed = loop.create_task(self._failed.wait(), name="failed")
        try:
            while not stop.done() and not failed.done():
                self._tick()
                await asyncio.wait((stop, failed), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
            if self._failure is None:
                await self._hand_over()
        finally:
            for task in (watching, stop, failed):
                task.cancel()
            await self._end()
        if self._failure is not None:
            raise self._failure

    async def _hand_over(self) -> None:
        """Let another member lead before this one stops: clients see a pause of a second at most."""
        core = self._core
        assert core is not None
        if core.leading is None:
            return
        to = core.leading.best_member()
        if to:
            await self._settle()
            self._do(core.switch(boot_time(), to))
            until = boot_time() + 2 * self._settings.switch_s
            # Also after it was handed over: the next leader hears of it by an answer to its fetch.
            while core.role is ReplicaRole.LEADING and boot_time() < until:
                self._tick()
                await asyncio.sleep(TICK_S / 10)

    async def _settle(self) -> None:
        """Let the broker append what it knows, right before it may append nothing any more."""
        try:
            async with asyncio.timeout(self._settings.switch_s):
                await self._lead.settle()
        except (TimeoutError, HoldMQError) as error:
            log.warning(
                "the lead is handed over before all was saved: groups may get a few seconds again",
                replica=self.replica,
                reason=str(error) or "it took too long",
            )

    async def _end(self) -> None:
        core = self._core
        if core is not None:
            self._do(core.failed(boot_time(), "this process stops"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.timeout_s)
        for task in list(self._tasks):
            task.cancel()
        for request in self._fetches.values():
            request.refuse(refusal_of(Refused(0, "")))
        self._fetches.clear()
        await self._peers.close()
        await self._home.close()

    def _tick(self) -> None:
        core = self._core
        assert core is not None
        failure = self._home.failure()
        if failure is not None:
            self._fail(failure)
            return
        self._log_moved()
        self._keep_for_copies()
        if self._is_doubted and self._log is not None and boot_time() >= self._note_doubt_at:
            self._doubt(self._log)
        self._do(core.tick(boot_time()))

    def _fail(self, error: HoldMQError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()
            log.error("this replica cannot go on", replica=self.replica, reason=str(error))
            if self._core is not None:
                self._do(self._core.failed(boot_time(), str(error)))

    # The log

    def view(self) -> LogView:
        """What the core is told of the log."""
        found = self._log
        assert found is not None
        return LogView(
            found.store_id,
            found.first_position,
            found.appended_position,
            found.written_position,
            found.durable_position,
            found.confirmed_position,
            tuple(found.epochs),
            found.is_whole and not self._is_doubted,
            found.writing_ms > self._settings.lag_s * 1e3,
            found.refused_for_copies,
        )

    def _take_log(self, found: ReplicatedLog) -> None:
        self._log = found
        found.watch(self._log_moved)

    def _log_moved(self) -> None:
        if self._core is not None and self._log is not None:
            self._do(self._core.log_moved(boot_time(), self.view()))

    def owned_for_s(self) -> float:
        """For how long surely no other replica serves; 0 = what needs no write may not leave now."""
        return 0.0 if self._core is None else self._core.owned_for_s(boot_time())

    @property
    def core(self) -> Replica | None:
        """What decides; None = the log is not open yet."""
        return self._core

    def _keep_for_copies(self) -> None:
        """Tell a log that leads from where on copies fetch it now."""
        found, core = self._log, self._core
        if found is None or core is None:
            return
        if core.leading is None:
            self._fetched.clear()
        found.keep_from(self._fetched.lowest(boot_time()))

    def numbers(self) -> dict[str, int | float]:
        """Gauges and counters (names end in `_total`); read on any thread."""
        core = self._core
        found: dict[str, int | float] = {
            "leads_total": self.failovers,
            "bytes_copied_total": self.bytes_copied,
            "bytes_served_total": self.bytes_served,
        }
        if core is None:
            return found
        view, state, leading, now = core.log, core.state, core.leading, boot_time()
        found["refused_total"] = view.refused
        found |= {
            "is_leader": int(core.owned_for_s(now) > 0),
            "is_whole": int(view.is_whole),
            "epoch": 0 if state is None else state.epoch,
            "in_sync": 0 if state is None else len(state.in_sync),
            "format_level": 0 if state is None else state.format_level,
            "is_outdated": int(bool(core.outdated)),
            "is_leaderless": int(core.is_leaderless(now)),
            "position": view.appended,
            "confirmed_position": view.confirmed,
        }
        if leading is not None:
            copies = list(leading.copies.values())
            found["lease_seconds"] = max(0.0, core.lease.valid_until - now)
            found["lag_seconds"] = max((max(0.0, now - copy.level_at) for copy in copies), default=0.0)
            found["lag_bytes"] = max((view.written - max(0, copy.acknowledged) for copy in copies), default=0)
            found["following"] = len(leading.followers(now))
            found["missing"] = len(self._replicas) - found["following"]
        return found

    # What the core wants

    def _do(self, actions: Sequence[Action]) -> None:
        self._queue.extend(actions)
        if self._is_doing:
            return
        self._is_doing = True
        try:
            while self._queue:
                self._carry_out(self._queue.popleft())
        finally:
            self._is_doing = False
        core = self._core
        if core is not None and core.role is not self._role:
            self._role = core.role
            log.debug("role", replica=self.replica, role=core.role.value, leader=core.leader)

    def _carry_out(self, action: Action) -> None:
        found = self._log
        match action:
            case ReadState():
                self._spawn(self._read(), "read state")
            case Propose(version, state):
                self._spawn(self._propose(version, state), "propose state")
            case HoldLease():
                self._spawn(self._hold(), "hold lease")
            case GiveUpLease():
                self._spawn(self._release(), "release lease")
            case Say(peer, message):
                self._peers.say(peer, message, self._answered)
            case AnswerFetch(_, number, grant):
                self._answer_fetch(number, grant)
            case Serve(epoch):
                if found is not None:
                    found.begin_leading()
                self.failovers += 1
                log.info("leads", replica=self.replica, epoch=epoch)
                self._lead.serve(epoch)
            case Cease(reason):
                if found is not None:
                    found.stop_appends()
                log.warning("leads no more", replica=self.replica, reason=reason)
                self._lead.cease(reason)
            case CutLog(position, epochs_kept):
                log.warning("the log is cut to the leader's", replica=self.replica, position=position)
                self._spawn(self._change_log(self._home.cut(position, epochs_kept)), "cut log")
            case StartOver(store_id, position):
                self._start_over(store_id, position)
            case EndLeading():
                if found is not None:
                    found.end_leading()
                self._spawn(self._change_log(self._home.open_again()), "end leading")
            case _ if found is not None:
                self._tell_log(found, action)

    def _tell_log(self, found: ReplicatedLog, action: Action) -> None:
        match action:
            case ConfirmTo(limit):
                found.confirm_to(limit)
            case TakeBytes(position):
                self._append(found, position)
            case BeginEpoch(epoch):
                try:
                    found.begin_epoch(epoch, self._epoch_begun)
                except StorageError as error:
                    self._epoch_begun(error)
            case StopAppends():
                found.stop_appends()
            case RefuseAppends(following):
                why = (
                    f"{following} of the {self._settings.min_in_sync} replicas that "
                    "replication.min_in_sync wants have what the leader has"
                )
                log.error("records are refused", replica=self.replica, reason=why)
                hint = "start the others, or wait for them: holdmq replica list says which are missing"
                found.refuse_appends(FewReplicasError(why, operation="append", hint=hint))
            case TakeAppends():
                log.info("enough replicas follow: records are taken again", replica=self.replica)
                found.take_appends()
            case Trust():
                log.info("this copy has everything again", replica=self.replica)
                self._is_doubted = False
                found.trust(True, self._trusted)
            case Distrust(reason):
                log.error("this copy does not trust itself", replica=self.replica, reason=reason)
                self._is_doubted = True
                self._doubt(found)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _append(self, found: ReplicatedLog, position: int) -> None:
        core = self._core
        assert core is not None
        data, self._data = self._data, NO_BYTES
        self.bytes_copied += len(data)
        try:
            found.append_copied(data, position, self._copied)
        except HoldMQError as error:
            log.warning("bytes of the leader are refused", replica=self.replica, reason=str(error))
            self._do(core.bytes_refused(boot_time(), str(error)))

    def _copied(self, error: StorageError | None) -> None:
        core = self._core
        if error is None or core is None:
            return  # the log's own news say how far it is
        if not error.retriable:
            self._fail(error)
            return
        log.warning("a copy could not be written", replica=self.replica, reason=str(error))
        self._do(core.log_moved(boot_time(), self.view()))
        self._do(core.bytes_refused(boot_time(), str(error)))

    def _epoch_begun(self, error: StorageError | None) -> None:
        core = self._core
        assert core is not None
        if error is None:
            self._is_over(self._unwritten, "epochs can be written again")
            self._do(core.epoch_begun(boot_time(), self.view()))
        elif error.retriable:
            self._failed_again(self._unwritten, "an epoch could not be written", str(error))
            self._do(core.epoch_refused(boot_time(), str(error)))
        else:
            self._fail(error)

    def _trusted(self, error: StorageError | None) -> None:
        core = self._core
        assert core is not None
        if error is None:
            self._log_moved()
        elif error.retriable:
            log.warning("it could not be noted that this copy has everything", reason=str(error))
            self._do(core.bytes_refused(boot_time(), str(error)))
        else:
            self._fail(error)

    def _doubt(self, found: ReplicatedLog) -> None:
        """Note that this copy may lack something. It is one that may, from now on, noted or not."""
        if not self._is_noting:
            self._is_noting = True
            found.trust(False, self._doubted)

    def _doubted(self, error: StorageError | None) -> None:
        self._is_noting = False
        if error is None:
            self._is_over(self._unwritten, "it is noted that this copy does not trust itself")
            self._is_doubted = False
            self._log_moved()
        elif error.retriable:
            self._failed_again(
                self._unwritten, "it is not noted that a copy does not trust itself", str(error)
            )
            self._note_doubt_at = boot_time() + FULL_PAUSE_S
        else:
            self._fail(error)

    def _start_over(self, store_id: bytes, position: int) -> None:
        welcome = self._welcome
        epochs = () if welcome is None else welcome.epochs
        begun = tuple(epoch for epoch in epochs if epoch.start <= position)
        if position == 0:
            # An epoch that begins at the first byte is noted as every other one: before an acknowledgement.
            begun = begun[:1]
        log.warning("the log is given up, and begins anew", replica=self.replica, position=position)
        start = LogStart(store_id, position, begun, self._welcome_ends)
        leader = "" if self._core is None or self._core.copying is None else self._core.copying.leader
        self._spawn(self._change_log(self._begin_anew(start, leader)), "start over")

    async def _begin_anew(self, start: LogStart, leader: str) -> ReplicatedLog:
        """Give the log up. The leader's tables come first, whose records its log may have given up.

        They say as well which topics there are: a log of one copy has that behind its first records only.
        """
        try:
            tables = await self._receive_tables(leader)
        except HoldMQError as error:
            log.warning("the leader's tables did not come", replica=self.replica, reason=str(error))
            return await self._home.open_again()  # and once more from its hello on
        return await self._home.start_over(start._replace(tables=tables))

    async def _receive_tables(self, leader: str) -> TableSnapshot | None:
        answer, data = await self._peers.tables(leader, "", 0)
        if not answer.name:
            return None
        snapshot = TableSnapshot(answer.name, answer.position, answer.size)
        offset = 0
        while True:
            await self._home.receive(data, offset)
            offset += len(data)
            if offset >= snapshot.size:
                return snapshot
            answer, data = await self._peers.tables(leader, snapshot.name, offset)
            if not data:
                raise StorageError("the leader's tables end too soon", operation="receive", offset=offset)

    async def _change_log(self, change: Coroutine[Any, Any, ReplicatedLog]) -> None:
        self._log = None
        try:
            found = await self._changed(change)
        except HoldMQError as error:
            self._fail(error)
            return
        self._take_log(found)
        assert self._core is not None
        self._do(self._core.was_cut(boot_time(), self.view()))

    async def _changed(self, change: Coroutine[Any, Any, ReplicatedLog]) -> ReplicatedLog:
        """The log after a change; a full disk is waited for, and the change then wanted anew."""
        try:
            return await change
        except StorageError as error:
            if not error.retriable:
                raise
            self._failed_again(self._unwritten, "the log could not be changed", str(error))
            assert self._core is not None
            self._do(self._core.bytes_refused(boot_time(), str(error)))
        while True:
            await asyncio.sleep(FULL_PAUSE_S)
            try:
                found = await self._home.open_again()
            except StorageError as error:
                if not error.retriable:
                    raise
                self._failed_again(self._unwritten, "the log could not be opened", str(error))
            else:
                self._is_over(self._unwritten, "the log is open again")
                return found

    # The coordinator

    async def _read(self) -> None:
        try:
            snapshot: ShardSnapshot | None = await self._coordinator.read()
        except HoldMQError as error:
            self._failed_again(self._unreadable, "the shard's state cannot be read", str(error))
            snapshot = None
        else:
            self._is_over(self._unreadable, "the shard's state can be read again")
        core = self._core
        assert core is not None
        self._log_moved()
        self._do(core.was_read(boot_time(), snapshot))
        if core.outdated:
            self._failed_again(self._outdated, "this replica is of an older release", core.outdated)
        else:
            self._is_over(self._outdated, "this release can be a replica")

    async def _propose(self, version: int, state: ShardState) -> None:
        is_known = True
        try:
            found = await self._coordinator.compare_and_set(version, state)
        except HoldMQError as error:
            log.warning("a proposal has no answer", replica=self.replica, reason=str(error))
            found, is_known = None, False
        else:
            if found is not None:
                log.info(
                    "the shard's state",
                    epoch=state.epoch,
                    leader=state.leader,
                    in_sync=state.in_sync,
                    format_level=state.format_level,
                )
        assert self._core is not None
        self._do(self._core.was_proposed(boot_time(), state, found, is_known))

    async def _hold(self) -> None:
        async with self._lease_lock:
            sent_at = boot_time()
            try:
                acquisition = await self._coordinator.hold(self._settings.ttl_s) or ""
            except HoldMQError as error:
                self._failed_again(self._unheld, "the lease of the lead has no answer", str(error))
                acquisition = ""
            else:
                self._is_over(self._unheld, "the lease of the lead has answers again")
                self._acquisition = acquisition
        assert self._core is not None
        self._do(self._core.was_held(boot_time(), sent_at, acquisition))

    async def _release(self) -> None:
        async with self._lease_lock:
            acquisition, self._acquisition = self._acquisition, ""
            if not acquisition:
                return
            try:
                await self._coordinator.release(acquisition)
            except HoldMQError as error:
                log.warning("the lease of the lead ends by itself", replica=self.replica, reason=str(error))

    def _failed_again(self, fault: RecurringFault, what: str, reason: str) -> None:
        """Log an attempt that failed, unless the one before did a moment ago."""
        news = fault.failed(boot_time())
        if news is not None:
            for_s = round(news.lasted_s, 1)
            log.warning(what, replica=self.replica, reason=reason, failures=news.failures, for_s=for_s)

    def _is_over(self, fault: RecurringFault, what: str) -> None:
        """Log an attempt that succeeded, if the one before failed."""
        news = fault.succeeded(boot_time())
        if news is not None:
            after_s = round(news.lasted_s, 1)
            log.info(what, replica=self.replica, failures=news.failures, after_s=after_s)

    async def _watch(self) -> None:
        seen = ShardSnapshot(None, 0, "")
        while True:
            try:
                found = await self._coordinator.changed(seen, WATCH_S)
            except HoldMQError:
                # Reads say what is wrong.
                await asyncio.sleep(WATCH_PAUSE_S)
                continue
            if found != seen and self._core is not None:
                seen = found
                self._do(self._core.state_changed(boot_time()))

    # Other replicas

    def _answered(self, peer: str, answer: PeerAnswer) -> None:
        core = self._core
        if core is None or self._failure is not None:
            return
        message = answer.message
        size = 0
        if isinstance(message, CopyWelcome):
            self._welcome, self._welcome_ends = message, answer.queue_ends
        elif isinstance(message, FetchGrant):
            self._data = answer.body
            size = answer.end - message.position
            if self._log is not None:
                self._log.drop_below(message.first)
        self._do(core.answered(boot_time(), peer, message, size))

    def hello(self, peer: str, hello: CopyHello) -> tuple[CopyWelcome | Refused, QueueEnds]:
        """Answer a copy's hello; the queues' ends are there only if it must begin anew."""
        core = self._core
        if core is None:
            return Refused(0, ""), {}
        answer, actions = core.hello(boot_time(), peer, hello)
        self._do(actions)
        if isinstance(answer, Refused) and answer.needs:
            reason = f"{peer} reads format level {hello.format_level}; upgrade it to {answer.needs} or newer"
            self._failed_again(self._older, "a replica of an older release is refused", reason)
        ends: QueueEnds = {}
        if isinstance(answer, CopyWelcome) and self._log is not None:
            is_other = hello.store_id != answer.store_id
            begins_anew = is_other or hello.end < answer.first
            if begins_anew:
                ends = self._log.queue_ends()
            self._fetched.fetched(peer, answer.first if begins_anew else hello.end, boot_time())
            self._keep_for_copies()
        return answer, ends

    def fetch(self, peer: str, fetch: CopyFetch, request: Request) -> None:
        """Answer a copy's fetch, now or when there is something."""
        core = self._core
        if core is None:
            request.refuse(refusal_of(Refused(0, "")))
            return
        self._number += 1
        number = self._number
        self._fetches[number] = request
        request.let_go()
        refused, actions = core.fetch(boot_time(), peer, number, fetch)
        if refused is not None:
            del self._fetches[number]
            request.refuse(refusal_of(refused))
        else:
            self._fetched.fetched(peer, fetch.position, boot_time())
        self._do(actions)

    def _answer_fetch(self, number: int, grant: FetchGrant) -> None:
        request = self._fetches.pop(number, None)
        if request is None or request.connection.is_closed:
            return
        found = self._log
        if grant.limit <= grant.position or found is None:
            self._send(request, grant, LogBytes(grant.position, grant.position, ()))
            return
        size = min(self._fetch_max_bytes, grant.limit - grant.position)
        read = found.read_bytes(grant.position, size)
        if read is not None:
            self._send(request, grant, read)
            return
        self._spawn(self._read_cold(found, request, grant, size), "cold read for a copy")

    async def _read_cold(self, found: ReplicatedLog, request: Request, grant: FetchGrant, size: int) -> None:
        loop = asyncio.get_running_loop()
        await self._wait_for_disk(size)
        try:
            read = await loop.run_in_executor(self._home.readers, found.read_bytes_cold, grant.position, size)
        except BehindError as error:
            grant = grant._replace(first=error.resume_at)
            read = LogBytes(grant.position, grant.position, ())
        except (HoldMQError, RuntimeError) as error:
            log.error("a copy cannot be served", replica=self.replica, reason=str(error))
            request.refuse(refusal_of(Refused(0, "")))
            return
        self._send(request, grant, read)

    def _send(self, request: Request, grant: FetchGrant, read: LogBytes) -> None:
        length = sum(map(len, read.parts))
        self.bytes_served += length
        header = ReplicaFetchResponse(
            grant.session,
            grant.position,
            read.end,
            grant.confirmed,
            grant.first,
            grant.is_whole,
            grant.take_over,
        )
        request.reply(header, read.parts, length)

    def send_tables(self, peer: str, name: str, offset: int, request: Request) -> None:
        """Answer a copy that asks for the newest snapshot of tables, or for more of it."""
        core, found = self._core, self._log
        if core is None or core.leading is None or found is None:
            raise refusal_of(Refused(0, "" if core is None else core.leader))
        # Whoever receives tables fetches the log next: it may take longer than a copy may be silent.
        self._fetched.is_busy(peer, boot_time())
        self._spawn(self._read_tables(found, name, offset, request), "tables for a copy")

    async def _read_tables(self, found: ReplicatedLog, name: str, offset: int, request: Request) -> None:
        loop = asyncio.get_running_loop()
        await self._wait_for_disk(self._fetch_max_bytes)
        try:
            newest = await loop.run_in_executor(self._home.readers, found.table_snapshot)
            if newest is None:
                request.reply(ReplicaTablesResponse("", 0, 0, 0))
                return
            data = await loop.run_in_executor(
                self._home.readers, found.read_snapshot, name or newest.name, offset, self._fetch_max_bytes
            )
        except HoldMQError as error:
            request.refuse(error)
            return
        answer = ReplicaTablesResponse(newest.name, newest.position, newest.size, offset)
        request.reply(answer, [data], len(data))

    async def _wait_for_disk(self, size: int) -> None:
        """Keep all copies together below their rate: producers share the disk with those that catch up."""
        now = asyncio.get_running_loop().time()
        wait_s = self._cold_free_at - now
        self._cold_free_at = max(self._cold_free_at, now) + size / self._cold_bytes_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    # People

    async def switch(self, to: str) -> str:
        """Hand the lead to a member ("" = to the one that has most); who it is, "" = this replica cannot."""
        await self._settle()
        core = self._core
        if core is None or core.leading is None:
            return ""
        to = to or core.leading.best_member()
        self._log_moved()
        actions = core.switch(boot_time(), to) if to else []
        self._do(actions)
        return to if actions else ""

    def promote(self) -> int:
        """Lead whatever may be lost; the end of this replica's log."""
        core, found = self._core, self._log
        if core is None or found is None:
            return -1
        self._do(core.promote(boot_time()))
        return found.appended_position


def refusal_of(refused: Refused) -> RemoteError:
    """What a replica that does not lead answers on the wire."""
    who = f"{refused.leader} leads" if refused.leader else "it is not known who leads"
    return RemoteError(
        Code.NOT_LEADER,
        f"this replica does not lead the shard; {who} in epoch {refused.epoch}",
        {"epoch": refused.epoch, "leader": refused.leader, "needs": refused.needs},
    )
