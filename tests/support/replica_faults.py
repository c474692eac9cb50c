"""One simulated run by seed: clients, faults, then healing, and what must hold at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_log import Produced
from replica_history import ReplicaHistory, Violation
from replica_world import Machine, Process, World

from broker.replication.core.replica import Replica, ReplicaRole

FAULTS_S = 60.0
HEAL_S = 90.0
OPERATOR_AFTER_S = 40.0
PROGRESS_RECORDS = 20


class Producer:
    """Sends one record after the other, each again until it is acknowledged."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.sequence = 0
        self._attempt = 0
        self.acked = 0
        self._send()

    def restart_at(self, sequence: int) -> None:
        """An operator accepted a loss: what was acknowledged and is gone is not sent again."""
        self.sequence = sequence
        self._attempt += 1

    def _send(self) -> None:
        world = self._world
        self._attempt += 1
        attempt = self._attempt
        processes = world.processes()
        process = world.random.choice(processes) if processes else None
        leader = None if process is None else world.machines.get(process.core.leader)
        if leader is not None and leader.process is not None and world.random.random() < 0.8:
            process = leader.process

        def done(is_stored: bool) -> None:
            world.later(world.delay(), lambda: self._answered(attempt, is_stored))

        if process is not None:
            target = process
            sequence = self.sequence
            world.later(
                world.delay(), lambda: target._run(lambda: target.produce(self._number, sequence, done))
            )
        world.later(1.0, lambda: self._again(attempt))

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._send()

    def _answered(self, attempt: int, is_stored: bool) -> None:
        if attempt != self._attempt:
            return
        if is_stored:
            self.acked += 1
            self.sequence += 1
            self._attempt += 1
            self._world.later(0.01 + self._world.random.random() * 0.1, self._send)
        else:
            self._attempt += 1
            self._world.later(0.05, self._send)


class Poller:
    """Asks every process now and then for what needs no write: a read, or the lease of a queue."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._poll()

    def _poll(self) -> None:
        for process in self._world.processes():
            process._run(lambda process=process: self._ask(process))
        self._world.later(0.05, self._poll)

    def _ask(self, process: Process) -> None:
        leading = process.core.leading
        if process.core.may_hand_out(process.now) and leading is not None:
            self._world.history.hands_out(process.machine.name, leading.epoch, process.log.confirmed)


class Faults:
    """Does things to a world, by name, and heals it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill the leader": lambda: self._kill(self._leader()),
            "stop": self._stop,
            "pause": self._pause,
            "pause the leader": lambda: self._pause(self._leader()),
            "partition": self._partition,
            "one-way": self._one_way,
            "bridge": self._bridge,
            "cut from the coordinator": self._cut_off,
            "the leader cut from the coordinator": lambda: self._cut_off(self._leader()),
            "unheard by the leader": lambda: self.world.coordinator.unheard.add(self._leader().name),
            "lossy links": lambda: self._flag(self.world.links, "is_lossy"),
            "slow links": lambda: self._flag(self.world.links, "is_slow"),
            "slow coordinator": lambda: self._flag(self.world.coordinator, "is_slow"),
            "lossy coordinator": lambda: self._flag(self.world.coordinator, "is_lossy"),
            "coordinator down": lambda: self._flag(self.world.coordinator, "is_down"),
            "slow disk": lambda: self._disk("is_slow"),
            "full disk": lambda: self._disk("is_full"),
            "stuck disk": lambda: self._disk("is_stuck"),
            "failed disk": self._fail_disk,
            "power": self._power,
            "power of all": self._power_of_all,
            "swap": self._swap,
            "bit flip": self._flip,
            "old copy": self._old_copy,
            "emptied disk": self._empty,
            "switch": self._switch,
            "switch storm": self._switch_storm,
            "clock rate": self._clock_rate,
            "retention": self._retention,
        }
        self.lonely: dict[str, Callable[[], None]] = {
            "coordinator wiped": lambda: self._lose_state(False),
            "coordinator restored": lambda: self._lose_state(True),
        }
        self.done: list[str] = []

    def some(self, only: Sequence[str]) -> None:
        """Do one or two things."""
        random = self.world.random
        kinds = [kind for kind in self.kinds if not only or kind in only]
        for _ in range(random.randint(1, 2)):
            if kinds:
                self.do(random.choice(kinds))

    def do(self, kind: str) -> None:
        """Do one thing."""
        self.done.append(f"{self.world.now:.1f} {kind}")
        (self.kinds.get(kind) or self.lonely[kind])()

    def heal(self) -> None:
        """Everything works again, and every machine has a process."""
        world = self.world
        world.links.cut.clear()
        world.links.is_lossy = world.links.is_slow = False
        world.coordinator.is_slow = world.coordinator.is_lossy = world.coordinator.is_down = False
        world.coordinator.unreachable.clear()
        world.coordinator.unheard.clear()
        for machine in world.machines.values():
            process = machine.process
            if process is not None:
                process.log.is_slow = process.log.is_full = process.log.is_stuck = False
                if process.is_paused:
                    process.resume()
                if process.core.role is ReplicaRole.ENDED:
                    machine.kill()
            machine.start()

    def _any(self) -> Machine:
        return self.world.random.choice(list(self.world.machines.values()))

    def _leader(self) -> Machine:
        leader = self.world.leader()
        return self._any() if leader is None else leader.machine

    def _kill(self, machine: Machine | None = None) -> None:
        machine = machine or self._any()
        machine.kill()
        self.world.later(self.world.random.choice((0.1, 3, 14)), machine.start)

    def _stop(self) -> None:
        machine = self._leader()
        self._hand_over(machine)
        self.world.later(1.5, lambda: self._kill(machine))

    def _pause(self, machine: Machine | None = None) -> None:
        machine = machine or self._any()
        process = machine.process
        if process is not None:
            process.is_paused = True
            self.world.later(self.world.random.choice((1, 4, 8, 12, 16)), process.resume)

    def _partition(self) -> None:
        one = self._any().name
        for name in self.world.names:
            if name != one:
                self.world.links.cut |= {(one, name), (name, one)}
        if self.world.random.random() < 0.5:
            self.world.coordinator.unreachable.add(one)

    def _one_way(self) -> None:
        one, other = self.world.random.sample(self.world.names, 2)
        self.world.links.cut.add((one, other))

    def _bridge(self) -> None:
        one, other = self.world.random.sample(self.world.names, 2)
        self.world.links.cut |= {(one, other), (other, one)}

    def _cut_off(self, machine: Machine | None = None) -> None:
        self.world.coordinator.unreachable.add((machine or self._any()).name)

    def _flag(self, of: object, name: str) -> None:
        setattr(of, name, True)

    def _disk(self, name: str) -> None:
        process = self._any().process
        if process is not None:
            setattr(process.log, name, True)

    def _fail_disk(self) -> None:
        machine = self._any()
        process = machine.process
        if process is not None:
            process.do(process.core.failed(process.now, "EIO"))
            self.world.later(2.0, machine.kill)
            self.world.later(4.0, machine.start)

    def _power(self) -> None:
        machine = self._any()
        machine.lose_power()
        self.world.later(self.world.random.choice((1, 5, 12)), machine.start)

    def _power_of_all(self) -> None:
        for machine in self.world.machines.values():
            machine.lose_power()
            self.world.later(1 + self.world.random.random() * 5, machine.start)

    def _swap(self) -> None:
        one, other = self.world.random.sample(list(self.world.machines.values()), 2)
        process = one.process
        if process is not None:
            process.is_paused = True
            self.world.later(7.0, process.resume)
        other.kill()
        self.world.later(7.0, lambda: self._pause(other) if other.process else other.start())

    def _flip(self) -> None:
        """A record is damaged while the process is down: recovery finds records behind it, and says so."""
        machine = self._any()
        machine.kill()
        platter = machine.platter
        if platter.end > platter.checkpoint:
            platter.cut(self.world.random.randint(platter.checkpoint, platter.end))
            platter.whole_in = None
        self.world.later(2.0, machine.start)

    def _old_copy(self) -> None:
        """A backup of the directory is put in its place: other files, so another incarnation."""
        machine = self._any()
        machine.backups.append(machine.platter.copy())
        if len(machine.backups) > 1:
            machine.kill()
            machine.platter = machine.backups.pop(0)
            machine.platter.whole_in = None
            self.world.later(1.0, machine.start)

    def _empty(self) -> None:
        machine = self._any()
        machine.empty()
        self.world.later(self.world.random.choice((0.5, 6)), machine.start)

    def _hand_over(self, machine: Machine) -> None:
        process = machine.process
        if process is None or process.core.leading is None:
            return
        others = [name for name in process.core.leading.membership.state.in_sync if name != machine.name]
        if others:
            process.do(process.core.switch(process.now, self.world.random.choice(others)))

    def _switch(self) -> None:
        self._hand_over(self._leader())

    def _switch_storm(self) -> None:
        for number in range(6):
            self.world.later(number * 0.7, self._switch)

    def _clock_rate(self) -> None:
        machine = self._any()
        now = machine.clock()
        machine.rate = self.world.random.uniform(0.95, 1.05)
        machine._offset = now - self.world.now * machine.rate

    def _retention(self) -> None:
        leader = self.world.leader()
        if leader is not None:
            leader.log.drop_below(leader.log.confirmed - self.world.random.randint(0, 60))
            leader.do(leader.core.log_moved(leader.now, leader.log.view()))

    def _lose_state(self, is_restored: bool) -> None:
        """All of the coordinator goes, for longer than a lease lasts: what is restored knows no leases."""
        coordinator, world = self.world.coordinator, self.world
        coordinator.is_down = True

        def come_back() -> None:
            if is_restored:
                coordinator.restore(world.random)
            else:
                coordinator.wipe()
            coordinator.is_down = False

        world.later(world.settings.ttl_s * 1.2, come_back)


class Run:
    """What a run came to."""

    def __init__(self, history: ReplicaHistory, faults: list[str]) -> None:
        self.history = history
        self.faults = faults


def run_world(
    seed: int, is_sync: bool, only: Sequence[str] = (), replica_class: type[Replica] = Replica
) -> Run:
    """One run; Violation when something happened that must not. Every third seed has two copies."""
    has_two = seed % 3 == 0
    world = World(seed, 2 if has_two else 3, 1 if has_two else 2, is_sync)
    world.replica_class = replica_class
    faults = Faults(world)
    try:
        _run(world, faults, only)
    except Violation as violation:
        violation.add_note(f"seed {seed}, {'sync' if is_sync else 'async'}: {'; '.join(faults.done)}")
        raise
    return Run(world.history, faults.done)


def _run(world: World, faults: Faults, only: Sequence[str]) -> None:
    random = world.random
    for machine in world.machines.values():
        machine.start()
    world.run(3.0)
    producers = [Producer(world, number) for number in range(3)]
    Poller(world)
    world.run(2.0)
    stop = world.now + FAULTS_S
    while world.now < stop:
        if random.random() < 0.1 and (not only or set(only) & set(faults.lonely)):
            faults.heal()
            if world.run(30.0, lambda: world.leader() is not None and _is_level(world)):
                faults.do(random.choice([kind for kind in faults.lonely if not only or kind in only]))
                world.run(world.settings.ttl_s * 1.2 + 8.0)
        else:
            faults.some(only)
            world.run(random.choice((0.3, 2.0, 5.0, 14.0)))
        if random.random() < 0.6:
            faults.heal()
            world.run(random.choice((0.5, 3.0, 10.0)))
    world.run(16.0)  # what was begun (pauses, restarts) ends
    faults.heal()
    left_out = random.choice(world.names) if random.random() < 0.5 else ""
    if left_out and _may_do_without(world, left_out):
        faults.done.append(f"{world.now:.1f} without {left_out}")
        world.machines[left_out].kill()
        _make_progress(world, producers, faults)
        faults.heal()
    _make_progress(world, producers, faults)
    if not world.run(HEAL_S, lambda: _is_level(world)):
        raise Violation(f"not all in sync after healing: {world.coordinator.snapshot()} {_roles(world)}")
    _compare(world)


def _may_do_without(world: World, name: str) -> bool:
    """Whether a shard goes on without a replica: enough intact members are left."""
    state = world.coordinator.state
    if state is None:
        return False
    left = [member for member in state.in_sync if member != name]
    whole = [m for m in left if world.machines[m].platter.whole_in is not None]
    return bool(whole) and len(left) >= world.settings.min_in_sync


def _make_progress(world: World, producers: list[Producer], faults: Faults) -> None:
    """Records are taken again within a bound; what only an operator may decide is decided by one."""
    before = world.history.acks

    def has_progress() -> bool:
        return world.history.acks >= before + PROGRESS_RECORDS

    if world.run(OPERATOR_AFTER_S, has_progress):
        return
    state = world.coordinator.state
    members = world.names if state is None else state.in_sync
    intact = [
        p.machine.name
        for p in world.processes()
        if p.machine.name in members and p.log.view().is_whole and state is not None
    ]
    highest = max(p.log.view().last_epoch for p in world.processes())
    if intact and state is not None and state.epoch >= highest:
        raise Violation(
            f"no progress though {intact} could lead: {world.coordinator.snapshot()} {_roles(world)}"
        )
    best = max(world.processes(), key=lambda p: (p.log.view().last_epoch, p.log.view().written))
    world.history.forgive(best.log.platter.first, best.log.platter.records)
    faults.done.append(f"{world.now:.1f} promote {best.machine.name}")
    windows: dict[int, int] = {}
    for record in best.log.platter.records:
        windows[record.producer] = record.sequence
    below = world.windows_below(best.log.platter.first)
    for number, producer in enumerate(producers):
        known = windows.get(number, below.get(number, (-1, 0))[0])
        producer.restart_at(known + 1)
    for machine in world.machines.values():
        machine.backups.clear()
    best.do(best.core.promote(best.now))
    for producer in producers:
        producer._send()
    before = world.history.acks
    if not world.run(HEAL_S, has_progress):
        raise Violation(f"no progress after promotion: {world.coordinator.snapshot()} {_roles(world)}")


def _is_level(world: World) -> bool:
    state = world.coordinator.state
    return (
        state is not None
        and set(state.in_sync) == set(world.names)
        and len(world.processes()) == len(world.names)
        and all(process.log.view().is_whole for process in world.processes())
        and world.leader() is not None
    )


def _compare(world: World) -> None:
    """Logs are equal up to the lower confirmed position; each producer's records are in order and once."""
    logs = [process.log for process in world.processes()]
    confirmed = min(log.confirmed for log in logs)
    first = max(log.platter.first for log in logs)
    reference: list[Produced] | None = None
    for log in logs:
        part = log.platter.records[first - log.platter.first : confirmed - log.platter.first]
        if reference is not None and part != reference:
            raise Violation("logs differ below their confirmed positions")
        reference = part
        world.history.in_order(log.platter.records[: log.confirmed - log.platter.first])
    leader = world.leader()
    if leader is not None and leader.log.confirmed < world.history.acknowledged:
        raise Violation(f"{world.history.acknowledged} was acknowledged, {leader.log.confirmed} is there")
    if leader is not None:
        for position in range(leader.log.platter.first, leader.log.confirmed):
            world.history.confirmed("the end", position, leader.log.platter.at(position))


def _roles(world: World) -> list[tuple[object, ...]]:
    return [
        (
            p.machine.name,
            p.core.role.value,
            p.log.platter.end,
            p.log.confirmed,
            p.log.platter.epochs[-1],
            p.log.view().is_whole,
        )
        for p in world.processes()
    ]
