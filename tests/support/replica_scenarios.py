"""Directed runs: moments so short that seeds seldom meet them."""

from __future__ import annotations

from collections.abc import Callable

from replica_history import Violation
from replica_world import Machine, Process, World

STEP_S = 0.01


def _world(replicas: int, min_in_sync: int, switch_s: float = 1.0, seed: int = 7) -> World:
    world = World(seed, replicas, min_in_sync, False)
    world.settings = world.settings._replace(switch_s=switch_s)
    for machine in world.machines.values():
        machine.start()
    _until(world, lambda: _is_level(world) and world.leader() is not None)
    return world


def _is_level(world: World) -> bool:
    return _members(world) == set(world.names) and all(p.log.view().is_whole for p in world.processes())


def _members(world: World) -> set[str]:
    state = world.coordinator.state
    return set() if state is None else set(state.in_sync)


def _until(world: World, condition: Callable[[], bool], bound_s: float = 60.0) -> None:
    if not world.run(bound_s, condition):
        raise Violation(f"a directed run does not get on: {world.coordinator.snapshot()}")


def _leader(world: World) -> Process:
    leader = world.leader()
    assert leader is not None
    return leader


def _write(process: Process, producer: int, first: int, count: int) -> None:
    for sequence in range(first, first + count):
        process.produce(producer, sequence, lambda is_stored: None)


def _separate(world: World, one: Machine) -> None:
    for name in world.names:
        if name != one.name:
            world.links.cut |= {(one.name, name), (name, one.name)}


def _leader_serves(world: World, but: str = "") -> bool:
    leader = world.leader()
    return leader is not None and leader.machine.name != but


def _ends_well(world: World) -> None:
    """Everybody comes back, and whatever was acknowledged is served."""
    world.links.cut.clear()
    world.links.is_slow = False
    world.coordinator.unreachable.clear()
    world.coordinator.unheard.clear()
    for machine in world.machines.values():
        machine.start()
    _until(world, lambda: _leader_serves(world) and _members(world) == set(world.names))
    leader = _leader(world)
    if leader.log.confirmed < world.history.acknowledged:
        raise Violation(f"{world.history.acknowledged} was acknowledged, {leader.log.confirmed} is there")


def diverged_copy() -> None:
    """A deposed leader with a longer log follows the next one: what it had does not count."""
    world = _world(2, 1)
    first = _leader(world)
    _write(first, 0, 0, 5)
    world.run(0.5)
    _separate(world, first.machine)
    world.coordinator.unreachable.add(first.machine.name)
    _write(first, 0, 5, 200)
    _until(world, lambda: any(p is not first and p.core.may_append for p in world.processes()))
    second = next(p for p in world.processes() if p is not first)
    world.coordinator.unreachable.clear()
    _until(world, lambda: first.core.leading is None)
    world.links.is_slow = True
    world.links.cut.clear()
    sequence = 0
    while sequence < 100 and _members(world) != set(world.names):
        _write(second, 1, sequence, 1)
        sequence += 1
        world.run(5 * STEP_S)
    _separate(world, first.machine)
    for following in range(sequence, sequence + 5):
        _write(second, 1, following, 1)
        world.run(STEP_S)
    second.machine.kill()
    world.run(20.0)
    _ends_well(world)


def copy_ahead() -> None:
    """A member has more than the new leader: it is cut to where the logs part, and not emptied."""
    world = _world(3, 1)
    first = _leader(world)
    second, third = [p for p in world.processes() if p is not first]
    _write(first, 0, 0, 50)
    world.run(0.5)
    world.links.cut |= {
        (first.machine.name, third.machine.name),
        (third.machine.name, first.machine.name),
    }
    _write(first, 0, 50, 10)
    world.run(0.2)
    first.machine.kill()
    world.coordinator.unreachable.add(second.machine.name)
    _until(world, lambda: third.core.leading is not None)
    world.links.is_slow = True
    world.coordinator.unreachable.clear()
    before = second.log.platter.end
    _until(world, lambda: second.log.platter.end < before)
    world.run(STEP_S)
    third.machine.kill()
    world.run(20.0)
    _ends_well(world)


def late_read() -> None:
    """A read of S that was under way while the set grew comes after the growth: it is no news."""
    world = _world(2, 1)
    first = _leader(world)
    second = next(p for p in world.processes() if p is not first)
    second.machine.kill()
    _until(world, lambda: _members(world) == {first.machine.name})
    world.run(2.0)
    world.coordinator.late_reads_s = 1.2
    world.run(2.0)
    second.machine.start()
    _until(world, lambda: _is_level(world))
    world.run(1.5)
    _separate(world, first.machine)
    world.coordinator.unreachable.add(first.machine.name)
    for sequence in range(20):
        _write(first, 0, sequence, 1)
        world.run(STEP_S)
    first.machine.kill()
    world.coordinator.late_reads_s = 0.0
    world.run(20.0)
    _ends_well(world)


def lease_taken_again() -> None:
    """A deposed leader takes the free lease before it has read who leads by now: it hands nothing out."""
    world = _world(3, 2)
    first = _leader(world)
    world.coordinator.unreachable.add(first.machine.name)
    _until(world, lambda: any(p is not first and p.core.may_append for p in world.processes()))
    world.coordinator.is_down = True
    world.run(12.0)
    world.coordinator.is_down = False
    world.coordinator.unreachable = {p.machine.name for p in world.processes() if p is not first}
    world.coordinator.late_reads_s = 3.0
    for _ in range(600):
        world.run(STEP_S)
        leading = first.core.leading
        if leading is not None and first.core.may_hand_out(first.now):
            world.history.hands_out(first.machine.name, leading.epoch, first.log.confirmed)
    world.coordinator.late_reads_s = 0.0
    _ends_well(world)


def cut_from_copies(is_idle: bool, switch_s: float, seed: int) -> None:
    """A leader reaches the coordinator and no copy: one of these leads within a bound, the old one follows.

    `is_idle`: nothing is written before the leader refuses records. `switch_s` is how long copies leave a
    free lease to somebody who was asked to lead.
    """
    world = _world(3, 2, switch_s, seed)
    first = _leader(world)
    _write(first, 0, 0, 5)
    world.run(0.5)
    _separate(world, first.machine)
    if not is_idle:
        _write(first, 0, 5, 5)
    _until(world, lambda: not first.core.may_append, 2 * world.settings.lag_s)
    _write(first, 0, 5 if is_idle else 10, 1)
    # An offer may fail, as the lease was renewed beside it.
    bound_s = 6 * world.settings.lag_s + 2 * (switch_s + world.settings.offer_s)
    _until(world, lambda: _leader_serves(world, first.machine.name), bound_s)
    _ends_well(world)


def left_alone() -> None:
    """All copies end: the leader goes on in its epoch, hands out what it has, and takes no record."""
    world = _world(3, 2)
    first = _leader(world)
    _write(first, 0, 0, 5)
    world.run(0.5)
    epoch = first.core.state.epoch  # type: ignore[union-attr]
    for process in world.processes():
        if process is not first:
            process.machine.kill()
    _write(first, 0, 5, 5)
    trusted = 0
    for _ in range(120):
        world.run(1.0)
        leading = first.core.leading
        if leading is None or leading.epoch != epoch:
            raise Violation(f"the leader gave up: {_members(world)}")
        trusted += first.core.may_hand_out(first.now)
    if trusted < 100 or first.core.may_append:
        raise Violation(f"the leader handed out in {trusted} of 120 seconds")
    _ends_well(world)


def unheard_growth() -> None:
    """The set has grown, and the leader does not hear of it: it counts the new member all the same."""
    world = _world(3, 1)
    first = _leader(world)
    second, third = [p for p in world.processes() if p is not first]
    third.machine.kill()
    _until(world, lambda: third.machine.name not in _members(world))
    world.links.is_slow = True
    third.machine.start()
    _until(world, lambda: third.machine.name in first.core.leading.membership.members())  # type: ignore[union-attr]
    world.coordinator.unheard.add(first.machine.name)
    _until(world, lambda: third.machine.name in _members(world))
    world.links.is_slow = False
    _separate(world, third.machine)
    for machine in world.machines.values():
        if machine is third.machine:
            machine.start()
    for sequence in range(50):
        _write(first, 0, sequence, 1)
        world.run(0.1)
    first.machine.kill()
    second.machine.kill()
    world.run(40.0)
    _ends_well(world)
