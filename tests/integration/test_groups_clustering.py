"""Clustering as a state machine: whatever members and broker do, every message is delivered, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

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

MEMBERS_MAX = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


class Clustering(RuleBasedStateMachine):
    cluster: Cluster

    def __init__(self) -> None:
        super().__init__()
        self.deliveries = Deliveries()
        self.members: dict[str, Consumer] = {}
        self.joined = 0
        self.kills = 0
        self.example: Example | None = None

    @initialize(queues=st.sampled_from([4, 6]), ordered=st.booleans())
    def begin(self, queues: int, ordered: bool) -> None:
        self.example = Example(self.cluster, queues)
        self.ordered = ordered
        self.example.run(self.example.begin())
        self.join(0.0)

    @precondition(lambda self: len(self.members) < MEMBERS_MAX)
    @rule(pause_s=st.sampled_from([0.0, 0.005, 0.1]))
    def join(self, pause_s: float) -> None:
        self.joined += 1
        name = f"m{self.joined}"
        member = Consumer(
            self.cluster.registries,
            self.example.group,
            self.deliveries.handler(name, pause_s),
            [self.example.topic],
            ordered=self.ordered,
            client_id=f"{self.example.group}-{name}",
            report_s=0.05,
        )
        self.members[name] = member
        self.example.run(member.start(START_S))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        self.example.run(member.close())

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        self.example.run(crash(member))

    @rule(count=st.integers(1, 80))
    def send(self, count: int) -> None:
        self.example.run(self.example.send(count))

    @rule()
    def pass_time(self) -> None:
        """Handlers are at work, and progress is reported."""
        self.example.run(asyncio.sleep(0.1))

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
            if not self.members:
                self.join(0.0)
            self.example.run(self.check())
        finally:
            for member in self.members.values():
                self.example.run(member.close())
            self.example.run(self.example.end())

    async def check(self) -> None:
        example = self.example
        await example.send(example.queues)
        sent = set(example.sent)
        await until(
            lambda: self.deliveries.bodies() >= sent,
            lambda: f"{len(sent - self.deliveries.bodies())} messages are lost or stuck",
        )
        await until(
            lambda: sum(len(example.queues_of(m)) for m in self.members.values()) == example.queues,
            lambda: "every queue has its member",
        )
        assert self.deliveries.shared_queues() == []
        if self.ordered:
            assert self.deliveries.disorder(may_go_back=True) == []


def test_every_message_is_delivered_whatever_members_and_broker_do(cluster: Cluster) -> None:
    Clustering.cluster = cluster
    run_state_machine_as_test(
        Clustering,
        settings=settings(
            max_examples=6,
            stateful_step_count=12,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
