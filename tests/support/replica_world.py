"""Replicas of one shard, their disks, links, clocks and coordinator in one process and without threads.

Everything that happens is an event of one heap, and every choice comes from one generator of random
numbers: a seed replays exactly. What decides is the product's own `broker.replication.core`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from model_log import ModelLog, Platter, Produced
from replica_history import ReplicaHistory, Violation

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
from broker.replication.core.levels import LEVELS
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome
from broker.replication.core.replica import Replica, ReplicaRole
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState

TICK_S = 0.2
GRANT_RECORDS = 40
Event = Callable[[], None]


class SimCoordinator:
    """S and L, with everything that a coordinator can do to its clients."""

    has_timeouts = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.state: ShardState | None = None
        self.version = 0
        self._holder = ""
        self._until = 0.0
        self._acquisitions = 0
        self.is_down = False
        self.down_since = 0.0
        self.unreachable: set[str] = set()
        self.unheard: set[str] = set()
        self.is_lossy = False
        self.is_slow = False
        self.late_reads_s = 0.0
        self.kept: list[tuple[ShardState | None, int]] = []

    @property
    def holder(self) -> str:
        """Who holds L now."""
        if self._world.now >= self._until:
            self._holder = ""
        return self._holder

    def snapshot(self) -> ShardSnapshot:
        """S and L."""
        return ShardSnapshot(self.state, self.version, self.holder)

    def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Replace S if its version is still that."""
        if version != self.version:
            return None
        self.kept.append((self.state, self.version))
        self.state, self.version = state, self.version + 1
        self._world.coordinator_changed()
        return self.version

    def hold(self, replica: str, ttl_s: float) -> str:
        """Take or renew L; the acquisition, "" = somebody else has it."""
        if self.holder not in ("", replica):
            return ""
        if not self._holder:
            self._acquisitions += 1
            self._world.coordinator_changed()
        self._holder, self._until = replica, self._world.now + ttl_s
        self._world.later(ttl_s + 0.01, self._expire)
        return f"{replica}{self._acquisitions}"

    def _expire(self) -> None:
        if self._holder and self._world.now >= self._until:
            self._holder = ""
            self._world.coordinator_changed()

    def release(self, replica: str) -> None:
        """End L if that replica holds it."""
        if self.holder == replica:
            self._holder = ""
            self._world.coordinator_changed()

    def wipe(self) -> None:
        """Nothing is left, as after the loss of all its members."""
        self.state, self.version, self._holder = None, 0, ""

    def restore(self, random: Random) -> None:
        """A backup takes its place."""
        if self.kept:
            self.state, self.version = self.kept[-random.randint(1, min(3, len(self.kept)))]
            self._holder = ""

    def call(self, process: Process, operation: Callable[[], Any], done: Callable[[Any, bool], None]) -> None:
        """Do `operation` some time later; `done(answer, is_known)`: unanswered in time is not known."""
        world = self._world
        answered: list[bool] = []
        replica = process.machine.name

        def finish(answer: object, is_known: bool) -> None:
            if not answered:
                answered.append(True)
                done(answer, is_known)

        def arrive() -> None:
            if self.is_down:
                return
            answer = operation()
            if replica not in self.unreachable | self.unheard and not self._loses():
                late = self.late_reads_s if operation == self.snapshot else 0.0
                process.later(late + self._delay(), lambda: finish(answer, True), is_local=False)

        if replica not in self.unreachable and not self._loses():
            world.later(self._delay(), arrive)
        if self.has_timeouts:
            process.later(process.settings.timeout_s, lambda: finish(None, False))

    def _delay(self) -> float:
        """Calls may pass each other on their way, so that answers come in another order."""
        longest = 6.0 if self.is_lossy else 1.5 if self.is_slow else 0.0
        return self._world.delay() + self._world.random.random() * longest

    def _loses(self) -> bool:
        return self.is_lossy and self._world.random.random() < 0.3


class Links:
    """The network between replicas: in order per pair, with delay, loss and cuts, one-way too."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut: set[tuple[str, str]] = set()
        self.is_lossy = False
        self.is_slow = False
        self._last: dict[tuple[str, str], float] = {}

    def carry(self, source: str, target: str, deliver: Event) -> None:
        """Deliver some time later, or never."""
        world = self._world
        if (source, target) in self.cut or (self.is_lossy and world.random.random() < 0.1):
            return
        delay = world.delay() * (60 if self.is_slow else 1)
        at = max(world.now + delay, self._last.get((source, target), 0.0) + 1e-6)
        self._last[source, target] = at
        world.later(at - world.now, lambda: None if (source, target) in self.cut else deliver())


class Process:
    """A replica's process: the shell around the core."""

    def __init__(self, machine: Machine) -> None:
        world = machine.world
        self.machine = machine
        self.world = world
        self.settings = world.settings
        self.is_alive = True
        self.is_paused = False
        self._mailbox: list[Event] = []
        self.log = ModelLog(machine.platter, world.is_sync, machine.boot, self.later, self._log_moved)
        self.core = world.make_replica(machine.name, self.log)
        self.windows: dict[int, tuple[int, int]] = {}
        self.waiting: list[tuple[int, Produced, Callable[[bool], None]]] = []
        self._data: list[Produced] = []
        self._welcome: CopyWelcome | None = None
        self._fetches: dict[tuple[str, int], Callable[[object, list[Produced]], None]] = {}
        self._numbers = count(1)
        self.later(world.random.random() * TICK_S, self._tick)
        self.later(world.random.random() * 0.5, self._sync)

    @property
    def now(self) -> float:
        """This machine's clock."""
        return self.machine.clock()

    def later(self, delay: float, event: Event, *, is_local: bool = True) -> None:
        """Do something after `delay` seconds of this machine's clock."""
        real = delay / self.machine.rate if is_local else delay
        self.world.later(real, lambda: self._run(event))

    def _run(self, event: Event) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._mailbox.append(event)
            return
        event()

    def resume(self) -> None:
        """What came meanwhile is handled now, in order."""
        self.is_paused = False
        for event in self._mailbox:
            self.world.later(0.0, lambda event=event: self._run(event))
        self._mailbox = []

    def kill(self) -> None:
        """The process ends; what is written stays."""
        self.is_alive = False

    def _tick(self) -> None:
        if self.log.view().is_stuck:
            self.do(self.core.log_moved(self.now, self.log.view()))
        self.do(self.core.tick(self.now))
        self.later(TICK_S, self._tick)

    def _sync(self) -> None:
        self.log.sync_sometimes()
        self.later(0.5, self._sync)

    def _log_moved(self) -> None:
        self.do(self.core.log_moved(self.now, self.log.view()))
        end = self.log.appended_end
        for position, record, done in [item for item in self.waiting if item[0] >= end]:
            # Taken back: nothing of it is stored.
            self.waiting.remove((position, record, done))
            self.windows.pop(record.producer, None)
            self._rebuild_windows()
            done(False)
        if self.log.has_refused:
            self.log.has_refused = False
            self.do(self.core.bytes_refused(self.now, "the disk is full"))

    # Actions

    def do(self, actions: list[Action]) -> None:
        """Carry out what the core wants."""
        for action in actions:
            if self.is_alive:
                self._do(action)

    def _do(self, action: Action) -> None:
        coordinator = self.world.coordinator
        core, name = self.core, self.machine.name
        match action:
            case ReadState():
                coordinator.call(
                    self,
                    coordinator.snapshot,
                    lambda found, is_known: self.do(core.was_read(self.now, found if is_known else None)),
                )
            case Propose(version, state):
                coordinator.call(
                    self,
                    lambda: coordinator.compare_and_set(version, state),
                    lambda found, is_known: self.do(core.was_proposed(self.now, state, found, is_known)),
                )
            case HoldLease():
                sent_at = self.now
                coordinator.call(
                    self,
                    lambda: coordinator.hold(name, self.settings.ttl_s),
                    lambda found, is_known: self.do(
                        core.was_held(self.now, sent_at, found if is_known else "")
                    ),
                )
            case GiveUpLease():
                self._release()
            case BeginEpoch(epoch):
                self.later(0.01 + self.world.random.random() * 0.1, lambda: self._begin_epoch(epoch))
            case CutLog(position, epochs_kept):
                self._check_cut(position)
                self.log.cut(position, epochs_kept)
                self.later(
                    0.01 + self.world.random.random() * 2,
                    lambda: self.do(core.was_cut(self.now, self.log.view())),
                )
            case StartOver(store_id, position):
                epochs = [] if self._welcome is None else list(self._welcome.epochs)
                begun = (
                    [epoch for epoch in epochs if epoch.start <= position][:1]
                    if position == 0
                    else [epoch for epoch in epochs if epoch.start <= position]
                )
                self.log.start_over(store_id, position, begun)
                self.later(
                    0.01 + self.world.random.random() * 2,
                    lambda: self.do(core.was_cut(self.now, self.log.view())),
                )
            case Say(peer, message):
                self.world.ask(self, peer, message)
            case AnswerFetch(peer, number, grant):
                answer = self._fetches.pop((peer, number), None)
                if answer is not None:
                    platter = self.log.platter
                    begin = grant.position - platter.first
                    end = min(grant.limit, grant.position + GRANT_RECORDS) - platter.first
                    answer(grant, platter.records[begin:end] if end > begin >= 0 else [])
            case TakeBytes(position):
                if position != self.log.appended_end:
                    raise Violation(f"{name} appends at {position}, its log ends at {self.log.appended_end}")
                highest = self.machine.levels[-1].level
                if any(record.level > highest for record in self._data):
                    raise Violation(f"{name} takes records above its level {highest}")
                self.log.append(self._data)
            case ConfirmTo(limit):
                self._confirm(limit)
            case Serve(epoch):
                self._serve(epoch)
            case EndLeading():
                self.later(
                    0.01 + self.world.random.random(),
                    lambda: self.do(core.was_cut(self.now, self.log.view())),
                )
            case Cease():
                for _, _, done in self.waiting:
                    done(False)
                self.waiting.clear()
            case StopAppends() | RefuseAppends() | TakeAppends():
                pass  # `may_append` says it
            case Trust():
                self._trust(True)
            case Distrust():
                self._trust(False)

    def _trust(self, is_whole: bool) -> None:
        self.log.trust(is_whole)
        self.do(self.core.log_moved(self.now, self.log.view()))

    def _release(self) -> None:
        coordinator, name = self.world.coordinator, self.machine.name
        if name not in coordinator.unreachable and not coordinator.is_down:
            held = coordinator._until
            self.world.later(
                self.world.delay(),
                lambda: coordinator.release(name) if coordinator._until == held else None,
            )

    def _begin_epoch(self, epoch: int) -> None:
        if self.log.is_full:
            self.do(self.core.epoch_refused(self.now, "the disk is full"))
            return
        if epoch <= self.log.view().last_epoch:
            raise Violation(f"{self.machine.name} begins epoch {epoch} a second time")
        if self.core.role is ReplicaRole.PROMOTING:
            self.world.history.leads(self.machine.name, epoch)
        self.log.begin_epoch(epoch)
        self.do(self.core.epoch_begun(self.now, self.log.view()))

    def _check_cut(self, position: int) -> None:
        if position < self.log.confirmed:
            raise Violation(f"{self.machine.name} cuts {position}, below its confirmed {self.log.confirmed}")

    def _confirm(self, limit: int) -> None:
        log, history, name = self.log, self.world.history, self.machine.name
        for position in range(max(log.confirmed, log.platter.first), limit):
            history.confirmed(name, position, log.platter.at(position))
        log.confirm_to(limit)
        ready = [item for item in self.waiting if item[0] < log.confirmed]
        self.waiting = [item for item in self.waiting if item[0] >= log.confirmed]
        for position, record, done in ready:
            history.acked(name, position, record)
            done(True)

    def _serve(self, epoch: int) -> None:
        highest = self.machine.levels[-1].level
        if any(record.level > highest for record in self.log.platter.records):
            raise Violation(f"{self.machine.name} leads with records above its level {highest}")
        self.world.history.serves_from(self.machine.name, epoch, self.log.confirmed)
        self.world.served_at = self.world.now
        self._rebuild_windows()

    def _rebuild_windows(self) -> None:
        platter = self.log.platter
        self.windows = dict(self.machine.world.windows_below(platter.first))
        for index, record in enumerate(platter.records):
            self.windows[record.producer] = (record.sequence, platter.first + index)
        for offset, record in enumerate(self.log._queued):
            self.windows[record.producer] = (record.sequence, platter.end + offset)

    # Clients

    def produce(self, producer: int, sequence: int, done: Callable[[bool], None]) -> None:
        """Take a PRODUCE; `done(True)` acknowledges it, `done(False)` says nothing of what is stored."""
        leading = self.core.leading
        if leading is None or not leading.is_serving or leading.switching_to:
            done(False)
            return
        known = self.windows.get(producer)
        if known is not None and sequence <= known[0]:
            position = known[1]
            if position < self.log.confirmed:
                if position >= self.log.platter.first:
                    self.world.history.acked(self.machine.name, position, self.log.platter.at(position))
                done(True)
            else:
                self.waiting.append((position, Produced(producer, sequence, 0), done))
                self._same_record(position)
            return
        if known is not None and sequence != known[0] + 1:
            if not self.core.may_hand_out(self.now):
                # Deposed without knowing it: the producer has gone on with the next leader.
                done(False)
                return
            raise Violation(
                f"producer {producer} sends {sequence}, its window ends at {known[0]}: a write is lost"
            )
        if leading.is_short:
            self.log.refused += 1
            self.do(self.core.log_moved(self.now, self.log.view()))
            done(False)
            return
        record = Produced(producer, sequence, leading.epoch, leading.format_level)
        position = self.log.appended_end
        self.windows[producer] = (sequence, position)
        self.waiting.append((position, record, done))
        self.log.append([record])
        self.do(self.core.log_moved(self.now, self.log.view()))

    def _same_record(self, position: int) -> None:
        """A repeat waits for the record that the first one appended."""
        platter = self.log.platter
        item = self.waiting[-1]
        if position < platter.end:
            self.waiting[-1] = (position, platter.at(position), item[2])
        else:
            self.waiting[-1] = (position, self.log._queued[position - platter.end], item[2])

    # Peers

    def hear(self, peer: str, message: object, answer: Callable[[object, list[Produced]], None]) -> None:
        """Another replica says something."""
        if isinstance(message, CopyHello):
            found, actions = self.core.hello(self.now, peer, message)
            answer(found, [])
        elif isinstance(message, CopyFetch):
            number = next(self._numbers)
            self._fetches[peer, number] = answer
            refused, actions = self.core.fetch(self.now, peer, number, message)
            if refused is not None:
                del self._fetches[peer, number]
                answer(refused, [])
        else:
            actions = []
            answer(self.core.report(), [])
        self.do(actions)

    def answered(self, peer: str, answer: Any, data: list[Produced]) -> None:
        """A peer answers, or does not."""
        self._data = data
        if isinstance(answer, CopyWelcome):
            self._welcome = answer
        self.do(self.core.answered(self.now, peer, answer, len(data)))


class Machine:
    """A machine of the shard: a disk, a clock, and a process or none."""

    def __init__(self, world: World, name: str, offset: float, rate: float) -> None:
        self.world = world
        self.name = name
        self.boot = 1
        self.rate = rate
        self._offset = offset
        self.platter = Platter(world.new_store_id())
        self.process: Process | None = None
        self.backups: list[Platter] = []
        self.levels = LEVELS
        """What the release that is installed there can read."""

    def clock(self) -> float:
        """Its clock, in seconds."""
        return self._offset + self.world.now * self.rate

    def start(self) -> None:
        """Start a process if none runs."""
        if self.process is None:
            self.process = Process(self)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def lose_power(self) -> None:
        """The machine goes down, and what its disk's cache had."""
        self.kill()
        self.platter.lose_power(self.world.random)
        self.boot += 1

    def empty(self) -> None:
        """Its disk is replaced."""
        self.kill()
        self.platter = Platter(self.world.new_store_id())


class World:
    """Everything of one run."""

    def __init__(self, seed: int, replicas: int, min_in_sync: int, is_sync: bool) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.is_sync = is_sync
        self.settings = ReplicaSettings(min_in_sync)
        self.history = ReplicaHistory()
        self.coordinator = SimCoordinator(self)
        self.links = Links(self)
        self.served_at = 0.0
        self.replica_class: type[Replica] = Replica
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()
        self._sessions = count(1)
        self._stores = count(1)
        self._windows: dict[int, tuple[int, int]] = {}
        self._windows_to = 0
        self.names = [chr(ord("a") + index) for index in range(replicas)]
        self.machines = {
            name: Machine(self, name, self.random.random() * 1000, self.random.uniform(0.97, 1.03))
            for name in self.names
        }

    def new_store_id(self) -> bytes:
        """An id for a store that is made."""
        return b"store%d" % next(self._stores)

    def make_replica(self, name: str, log: ModelLog) -> Replica:
        """A replica's core."""
        settings = self.settings._replace(levels=self.machines[name].levels)
        return self.replica_class(settings, name, self.names, log.view(), lambda: next(self._sessions))

    def delay(self) -> float:
        """How long a message is under way."""
        return 0.0005 + self.random.random() * 0.004

    def later(self, delay: float, event: Event) -> None:
        """Do something after `delay` seconds of true time."""
        heappush(self._heap, (self.now + delay, next(self._order), event))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; whether `until` came true."""
        stop = self.now + seconds
        while self._heap and self._heap[0][0] <= stop:
            self.now, _, event = heappop(self._heap)
            event()
            if until is not None and until():
                return True
        self.now = stop
        return until is not None and until()

    def processes(self) -> list[Process]:
        """All that run."""
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def leader(self) -> Process | None:
        """A process that takes records, if there is one."""
        found = [p for p in self.processes() if p.core.may_append and not p.is_paused]
        return found[-1] if found else None

    def windows_below(self, position: int) -> dict[int, tuple[int, int]]:
        """The producers' windows as a snapshot in the log has them, of records that retention took."""
        values = self.history.values
        while self._windows_to < position and self._windows_to in values:
            record = values[self._windows_to]
            self._windows[record.producer] = (record.sequence, self._windows_to)
            self._windows_to += 1
        return {producer: window for producer, window in self._windows.items() if window[1] < position}

    def coordinator_changed(self) -> None:
        """Watches tell, mostly."""
        for process in self.processes():
            if process.machine.name not in self.coordinator.unreachable and self.random.random() < 0.9:
                process.later(
                    self.delay(),
                    lambda process=process: process.do(process.core.state_changed(process.now)),
                    is_local=False,
                )

    def ask(self, process: Process, peer: str, message: object) -> None:
        """Carry a message and its answer; unanswered in time is None."""
        source = process.machine.name
        answered: list[bool] = []

        def finish(answer: object, data: list[Produced]) -> None:
            if not answered and process.is_alive:
                answered.append(True)
                process.answered(peer, answer, data)

        def answer(found: object, data: list[Produced]) -> None:
            data = list(data)
            self.links.carry(peer, source, lambda: process._run(lambda: finish(found, data)))

        def deliver() -> None:
            target = self.machines[peer].process
            if target is not None:
                target._run(lambda: target.hear(source, message, answer))

        self.links.carry(source, peer, deliver)
        limit = self.settings.timeout_s + (self.settings.hold_s if isinstance(message, CopyFetch) else 0)
        process.later(limit, lambda: finish(None, []))
