"""Real replicas tell when they have too few copies, and when nobody leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from receivers import HookServer
from replica_processes import SHARD, replica_stack

NOTICES_MAX = 20
"""More than one failure makes."""


@pytest.fixture
def hook() -> Iterator[HookServer]:
    server = HookServer()
    yield server
    server.close()


def told(hook: HookServer, kind: str, state: str) -> dict[str, Any]:
    """The next notice of this kind and state, with who told it."""
    for _ in range(NOTICES_MAX):
        posted = hook.next()
        for alarm in posted["alarms"]:
            if (alarm["kind"], alarm["state"]) == (kind, state):
                return {**alarm, "broker": posted["broker"]}
    raise AssertionError(f"nobody told {kind} {state} in {NOTICES_MAX} documents")


def test_replicas_tell_that_one_copy_is_left_and_that_nobody_leads(tmp_path: Path, hook: HookServer) -> None:
    alarms = {
        "alarms.interval_s": 0.2,
        "alarms.webhook_url": hook.url,
        "alarms.replica_lag_s": 2,
        "alarms.copies_missing_s": 2,
    }
    with replica_stack(tmp_path, replicas=2, min_in_sync=1, **alarms) as shard:
        leader = shard.wait_leader()
        copy = next(name for name in shard.names if name != leader)
        wait_until(lambda: shard.stacks[copy].http("broker", "/readyz")[0] == 200, "the copy is ready")
        shard.kill(copy)
        left = told(hook, "one_copy_left", "raised")
        assert (left["broker"], left["name"]) == (SHARD, SHARD)
        assert told(hook, "copies_missing", "raised")["text"].endswith(f"{copy}; start them")
        shard.start_again(copy)
        shard.wait_in_sync()
        assert told(hook, "copies_missing", "over")["name"] == SHARD
        # Its notices are within the cool-down of the first ones; what is told next is another thing.
        shard.kill(copy)
        wait_until(
            lambda: (status := shard.status(leader)) is not None and list(status.in_sync) == [leader],
            "the leader waits for nobody",
        )
        shard.kill(leader)
        shard.start_again(copy)
        nobody = told(hook, "no_leader", "raised")
        assert (nobody["broker"], nobody["name"]) == (f"{SHARD}/{copy}", SHARD)
        # One that is not in sync must not have clients, nor let another one be stopped.
        assert shard.stacks[copy].http("broker", "/readyz")[0] == 503
        shard.start_again(leader)
        shard.wait_leader()
        assert told(hook, "no_leader", "over")["name"] == SHARD


def test_replicas_tell_that_the_leader_is_alone_and_that_the_last_one_may_not_serve(
    tmp_path: Path, hook: HookServer
) -> None:
    alarms = {"alarms.interval_s": 0.2, "alarms.webhook_url": hook.url, "alarms.copies_missing_s": 1}
    with replica_stack(tmp_path, **alarms) as shard:
        leader = shard.wait_leader()
        gone, silent = (name for name in shard.names if name != leader)
        shard.kill(gone)
        assert told(hook, "copies_missing", "raised")["text"].endswith(f": {gone}; start them")
        shard.kill(silent)
        # The leader goes on waiting for it, as min_in_sync is 2, and is alone all the same.
        left = told(hook, "one_copy_left", "raised")
        assert (left["broker"], left["name"]) == (SHARD, SHARD)
        assert shard.stacks[leader].http("broker", "/readyz")[0] == 503
        shard.kill(leader)
        shard.start_again(silent)
        # It takes the lease, and must not serve without a second one.
        nobody = told(hook, "no_leader", "raised")
        assert nobody["broker"] == f"{SHARD}/{silent}"
        status = shard.status(silent)
        assert status is not None
        assert (status.role, status.is_serving) == ("leading", False)
        shard.start_again(gone)
        shard.start_again(leader)
        shard.wait_leader()
        assert told(hook, "no_leader", "over")["broker"] == f"{SHARD}/{silent}"
