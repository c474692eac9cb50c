"""Two releases side by side: a shard writes what its members can read, and an older release is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from replica_faults import Producer
from replica_world import Process, World

from broker.replication.core.levels import LEVELS, FormatLevel, release_of
from broker.replication.core.replica import ReplicaRole

NEW = (*LEVELS, FormatLevel(2, "0.9.0", "a kind of record that only this test knows"))
SETTLE_S = 60.0


def began(new: str = "", seed: int = 3) -> World:
    """Three replicas in sync, of which those named in `new` run the newer release."""
    world = World(seed, 3, 2, is_sync=True)
    for name, machine in world.machines.items():
        machine.levels = NEW if name in new else LEVELS
        machine.start()
    settle(world, lambda: members(world) == set("abc") and world.leader() is not None)
    return world


def settle(world: World, holds: object) -> None:
    assert callable(holds)
    assert world.run(SETTLE_S, holds), f"{world.coordinator.snapshot()}"


def members(world: World) -> set[str]:
    state = world.coordinator.state
    return set() if state is None else set(state.in_sync)


def level(world: World) -> int:
    state = world.coordinator.state
    assert state is not None
    return state.format_level


def leads_at(world: World) -> int:
    """The level up to which the leader writes: it has to hear first that S has risen."""
    found = leader(world).core.leading
    assert found is not None
    return found.format_level


def leader(world: World) -> Process:
    found = world.leader()
    assert found is not None
    return found


def process(world: World, name: str) -> Process:
    found = world.machines[name].process
    assert found is not None
    return found


def restart(world: World, name: str, levels: tuple[FormatLevel, ...]) -> None:
    machine = world.machines[name]
    machine.kill()
    machine.levels = levels
    machine.start()


def write(world: World, producer: int, sequence: int) -> None:
    """Have a record stored by who leads."""
    stored: list[bool] = []

    def is_stored() -> bool:
        found = world.leader()
        if not any(stored) and found is not None:
            found.produce(producer, sequence, stored.append)
        return any(stored)

    settle(world, is_stored)


def switch(world: World, to: str) -> None:
    found = leader(world)
    found.do(found.core.switch(found.now, to))
    settle(world, lambda: world.leader() is not None and leader(world).machine.name == to)


def upgraded() -> World:
    """All replicas run the newer release since their upgrade, one after the other."""
    world = began()
    first = leader(world).machine.name
    others = [name for name in world.names if name != first]
    for name in others:
        restart(world, name, NEW)
        settle(world, lambda: members(world) == set("abc"))
        world.run(5.0)
        assert level(world) == 1
        write(world, 0, others.index(name))
    switch(world, others[0])
    world.run(5.0)
    assert level(world) == 1, "one member reads no more yet"
    restart(world, first, NEW)
    settle(world, lambda: level(world) == 2 and leads_at(world) == 2)
    return world


def test_the_level_rises_when_the_last_member_can_read_it_and_is_written_from_then_on() -> None:
    world = upgraded()
    write(world, 0, 2)
    levels = [record.level for record in leader(world).log.platter.records]
    assert levels == [1, 1, 2]
    settle(world, lambda: members(world) == set("abc"))


def test_a_member_that_goes_back_to_the_older_release_is_refused_and_says_which_one_it_needs() -> None:
    world = upgraded()
    write(world, 0, 2)
    back = next(name for name in world.names if name != leader(world).machine.name)
    restart(world, back, LEVELS)
    settle(world, lambda: "HoldMQ 0.9.0 or newer" in process(world, back).core.outdated)
    assert "format level 2" in process(world, back).core.outdated
    settle(world, lambda: back not in members(world))
    write(world, 0, 3)
    assert level(world) == 2, "it never falls"
    restart(world, back, NEW)
    settle(world, lambda: members(world) == set("abc"))
    assert process(world, back).core.outdated == ""


def test_the_older_release_never_leads_however_long_nobody_else_does() -> None:
    world = upgraded()
    write(world, 0, 2)
    for machine in world.machines.values():
        machine.kill()
        machine.levels = LEVELS
        machine.start()
    world.run(60.0)
    for name in world.names:
        core = process(world, name).core
        assert core.role is ReplicaRole.WAITING
        assert "the release that" in core.outdated, "nobody who knows leads"
        assert core.promote(0.0) == []
    restart(world, "b", NEW)
    restart(world, "c", NEW)
    settle(world, lambda: world.leader() is not None)
    assert leader(world).log.confirmed == 3


def test_a_copy_that_is_no_member_holds_nobody_back_and_is_parted_from() -> None:
    world = began("ab")
    world.links.cut |= {("c", "a"), ("c", "b"), ("a", "c"), ("b", "c")}
    settle(world, lambda: members(world) == set("ab"))
    settle(world, lambda: level(world) == 2)
    world.links.cut.clear()
    write(world, 0, 0)
    settle(world, lambda: "0.9.0" in process(world, "c").core.outdated)
    assert process(world, "c").core.role is ReplicaRole.WAITING
    assert "c" not in members(world)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_release_is_started_where_nobody_gets_what_it_cannot_read(seed: int) -> None:
    """The world looks at the level of each record that a replica takes or leads with."""
    world, random = began(seed=seed), Random(seed)
    producers = [Producer(world, number) for number in range(2)]
    highest = 1
    for _ in range(25):
        name = random.choice(world.names)
        restart(world, name, random.choice((LEVELS, NEW, NEW)))
        if random.random() < 0.3:
            world.links.cut |= {(name, other) for other in world.names if other != name}
        world.run(random.choice((1.0, 4.0, 12.0)))
        world.links.cut.clear()
        assert level(world) >= highest
        highest = level(world)
    for name in world.names:
        restart(world, name, NEW)
    acked = sum(producer.acked for producer in producers)
    settle(world, lambda: level(world) == 2 and members(world) == set("abc"))
    settle(world, lambda: sum(producer.acked for producer in producers) > acked + 10)
    assert leader(world).log.confirmed >= world.history.acknowledged


def test_the_guide_lists_the_levels() -> None:
    guide = (Path(__file__).parents[3] / "docs/replication.md").read_text()
    for known in LEVELS:
        assert f"| {known.level} | {known.release} | {known.adds} |" in guide


def test_levels_ascend_and_name_the_release_that_brought_them() -> None:
    assert [known.level for known in LEVELS] == list(range(1, len(LEVELS) + 1))
    assert all(known.release and known.adds for known in LEVELS)
    assert release_of(NEW, 2) == "0.9.0"
    assert release_of(LEVELS, 2) == ""
