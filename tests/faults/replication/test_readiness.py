"""A leader that cannot serve is not ready and says why; what lasts is logged once, not with each attempt."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods_as_processes import metric_names
from processes import wait_until
from replica_processes import TTL_S, ReplicaStack, replica_stack

from broker.app.metric_help import REPLICATION, STORE
from holdmq.coordination.counted import HELP as COORDINATION

RULES = Path(__file__).parents[3] / "helm/holdmq/files/rules.yaml"

OF_COPIES = [name for name in STORE if name.startswith("replica_")]
WATCHED_S = 5.0
"""Several attempts to read the state, each of which fails."""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard")) as stack:
        yield stack


def readiness(shard: ReplicaStack, name: str) -> tuple[int, str]:
    """What a replica says on /readyz."""
    return shard.stacks[name].http("broker", "/readyz")


def lines_of(shard: ReplicaStack, name: str, text: str) -> int:
    """How many lines of its log have `text`."""
    return sum(text in line for line in shard.stacks[name].log("broker").splitlines())


def test_a_leader_without_its_lease_is_not_ready_and_what_lasts_is_logged_once(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    before = {name: lines_of(shard, name, "cannot be read") for name in shard.names}
    (etcd,) = shard.etcd.members
    etcd.pause()
    try:
        wait_until(lambda: readiness(shard, leader)[0] == 503, "its lease has run out")
        assert readiness(shard, leader)[1].startswith(
            "it leads, and hands nothing out: its lease of the lead has run out"
        )
        time.sleep(WATCHED_S)
        for name in shard.names:
            assert lines_of(shard, name, "cannot be read") == before[name] + 1, shard.logs()
    finally:
        etcd.resume()
    shard.wait_leader()
    for name in shard.names:
        wait_until(
            lambda name=name: lines_of(shard, name, "can be read again") == before[name] + 1,  # type: ignore[misc]
            f"{name} says that it can be read again",
        )


def test_a_leader_with_too_few_copies_is_not_ready_and_names_how_many(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    copies = [name for name in shard.names if name != leader]
    shard.kill(copies[0])
    wait_until(
        lambda: (status := shard.status(leader)) is not None and copies[0] not in status.in_sync,
        f"{copies[0]} is not in sync",
    )
    assert readiness(shard, leader) == (200, "ready\n"), "two of three are enough"
    shard.kill(copies[1])
    wait_until(
        lambda: readiness(shard, leader)[1].startswith(
            "it leads, and acknowledges nothing: 1 of the 2 replicas that replication.min_in_sync wants"
        ),
        "the leader is not ready",
    )
    assert readiness(shard, leader)[0] == 503
    for name in copies:
        shard.start_again(name)
    shard.wait_in_sync()
    assert shard.wait_leader()


def test_that_a_copy_has_everything_again_is_logged_once(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    copy = next(name for name in shard.names if name != leader)
    shard.kill(copy)
    shutil.rmtree(shard.stacks[copy].directory / "store")
    before = lines_of(shard, copy, "this copy has everything again")
    shard.start_again(copy)
    shard.wait_in_sync()
    wait_until(lambda: readiness(shard, copy)[0] == 200, f"{copy} is ready")
    assert lines_of(shard, copy, "this copy has everything again") == before + 1


def exported(shard: ReplicaStack, name: str) -> set[str]:
    """Metrics of a replica, by name."""
    return metric_names(shard.stacks[name].http("broker", "/metrics")[1])


def test_alerts_and_guides_name_what_replicas_export(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    copy = next(name for name in shard.names if name != leader)
    of_leader, of_copy = exported(shard, leader), exported(shard, copy)
    declared = {f"holdmq_replication_{name}" for name in REPLICATION}
    declared |= {f"holdmq_coordination_{name}" for name in COORDINATION}
    assert declared - of_leader == set()
    asked = set(re.findall(r"holdmq_replication_\w+", RULES.read_text()))
    assert len(asked) > 4
    assert asked - of_leader == set()
    # A copy says nothing of others: their leader does.
    own = {"holdmq_replication_is_leader", "holdmq_replication_is_leaderless", "holdmq_replication_is_whole"}
    assert asked & of_copy == own


def test_a_copys_own_log_is_in_its_metrics(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    copy = next(name for name in shard.names if name != leader)
    declared = {f"holdmq_store_{name}" for name in OF_COPIES}
    assert exported(shard, leader) >= exported(shard, copy) >= declared
    # The alert of a store that takes nothing leaves copies out by one of them.
    asked = set(re.findall(r"holdmq_store_replica_\w+", RULES.read_text()))
    assert asked == {"holdmq_store_replica_leads"} <= declared
    assert shard.stacks[copy].metric("broker", "holdmq_store_disk_used_percent") > 0
    for name, leads in ((leader, 1), (copy, 0)):
        assert shard.stacks[name].metric("broker", "holdmq_store_replica_leads") == leads
        assert shard.stacks[name].metric("broker", "holdmq_store_writable") == leads


def test_what_the_coordinator_does_not_answer_is_counted(shard: ReplicaStack) -> None:
    shard.wait_in_sync()
    leader = shard.wait_leader()
    stack = shard.stacks[leader]

    def number(name: str) -> float:
        return stack.metric("broker", f"holdmq_coordination_{name}")

    def leases_lost() -> float:
        lost = "holdmq_coordination_leases_lost_total"
        return sum(each.metric("broker", lost) for each in shard.stacks.values())

    assert number("calls_total") > 0
    assert number("renewal_age_seconds") < TTL_S
    before, lost = number("outcomes_unknown_total"), leases_lost()
    (etcd,) = shard.etcd.members
    etcd.pause()
    try:
        wait_until(lambda: number("renewal_age_seconds") > TTL_S + 1, "the lease is not renewed")
        assert number("calls_unanswered_total") >= number("outcomes_unknown_total") > before
    finally:
        etcd.resume()
    shard.wait_leader()
    wait_until(lambda: leases_lost() > lost, "the lease that ran out is counted")
