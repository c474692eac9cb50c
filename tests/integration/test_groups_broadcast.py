"""Broadcast as a state machine: every member gets every message; its progress is in its file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deliveries import Deliveries
from group_machine import START_S, Cluster, Example, crash, until
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdmq.client import Consumer
from holdmq.client.offset_store import OffsetStore

NAMES = ("east", "north", "west")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


class Broadcast(RuleBasedStateMachine):
    cluster: Cluster

    def __init__(self) -> None:
        super().__init__()
        self.deliveries = Deliveries()
        self.members: dict[str, Consumer] = {}
        self.expected: dict[str, set[bytes]] = {}
        self.directory = tempfile.TemporaryDirectory()
        self.kills = 0
        self.example: Example | None = None

    @initialize(queues=st.sampled_from([4, 6]), ordered=st.booleans())
    def begin(self, queues: int, ordered: bool) -> None:
        self.example = Example(self.cluster, queues)
        self.ordered = ordered
        self.example.run(self.example.begin())
        self.start("east", 0.0)

    @rule(name=st.sampled_from(NAMES), pause_s=st.sampled_from([0.0, 0.005, 0.05]))
    def start(self, name: str, pause_s: float) -> None:
        if name in self.members:
            return
        member = self.members[name] = Consumer(
            self.cluster.registries,
            self.example.group,
            self.deliveries.handler(name, pause_s),
            [self.example.topic],
            mode="broadcast",
            ordered=self.ordered,
            client_id=name,
            offsets_directory=self.directory.name,
            report_s=0.2,
        )
        self.example.run(member.start(START_S))
        self.expected.setdefault(name, set())

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        self.example.run(member.close())
        done = {queue: position.offset for queue, position in member.positions().items()}
        store = OffsetStore(self.directory.name, member.client_id, member.group)
        saved = {queue: position.offset for queue, position in store.open().items()}
        store.close()
        assert done.items() <= saved.items()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        self.example.run(crash(member))

    @rule(count=st.integers(1, 200))
    def send(self, count: int) -> None:
        sent = self.example.run(self.example.send(count))
        for expected in self.expected.values():
            expected.update(sent)

    @precondition(lambda self: self.kills < 1)
    @rule()
    def kill_broker(self) -> None:
        self.kills += 1
        self.example.run(self.example.kill_broker())

    @precondition(lambda self: self.example.queues < 9)
    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        self.example.run(self.example.grow(self.example.queues + more))

    def teardown(self) -> None:
        if self.example is None:
            return
        try:
            for name in self.expected:
                self.start(name, 0.0)
            self.send(self.example.queues)
            self.example.run(self.check())
        finally:
            for member in self.members.values():
                self.example.run(member.close())
            self.example.run(self.example.end())
            self.directory.cleanup()

    async def check(self) -> None:
        for name, expected in self.expected.items():
            await until(
                lambda: self.deliveries.bodies(name) >= expected,  # noqa: B023
                lambda: f"{name} lacks {len(expected - self.deliveries.bodies(name))} messages",  # noqa: B023
            )
            if self.ordered:
                own = Deliveries()
                own.all = [d for d in self.deliveries.all if d.member == name]
                assert own.disorder(may_go_back=True) == []


def test_every_member_gets_every_message_whatever_happens(cluster: Cluster) -> None:
    Broadcast.cluster = cluster
    run_state_machine_as_test(
        Broadcast,
        settings=settings(
            max_examples=6,
            stateful_step_count=12,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_where_a_member_began_survives_a_crash_right_after_its_start(
    cluster: Cluster, tmp_path: Path
) -> None:
    example = Example(cluster, 4)
    deliveries = Deliveries()

    def member() -> Consumer:
        return Consumer(
            cluster.registries,
            example.group,
            deliveries.handler("m"),
            [example.topic],
            mode="broadcast",
            client_id="m",
            offsets_directory=tmp_path,
        )

    async def scenario() -> None:
        await example.begin()
        first = member()
        await first.start()
        await crash(first)
        sent = set(await example.send(20))
        async with member():
            await until(lambda: deliveries.bodies() >= sent, lambda: "what came meanwhile is delivered")
        count = len(deliveries.all)
        last = set(await example.send(4))
        async with member():
            await until(lambda: deliveries.bodies() >= last, lambda: "what came meanwhile is delivered")
        assert len(deliveries.all) == count + 4
        await example.end()

    example.run(scenario())
