"""A shard on a real Valkey, alone or a cluster, under load, while everything breaks that may.

Whatever happens, what was acknowledged is there, in its place and order, once; losses are those that a rise
of the epoch reported, with their number; whoever lost the shard is told so and serves nothing any more.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from cut_proxy import CutProxy
from processes import free_port, wait_until
from shard_owner import ShardOwner, judged
from store_history import StoreHistory
from valkey_servers import ValkeyCluster, ValkeyServer, slot_of

NewValkey = Callable[..., ValkeyServer]
Own = Callable[..., ShardOwner]

LEASE_MS = 3000
TIMEOUT_MS = 1000
TAKEOVER_S = LEASE_MS / 1e3 + 2
PREFIX = "t"
BATCHES = 100
"""Batches that are acknowledged between two faults: a load worth the name."""


def plan_of(url: str, shard: str, number: int = 1, **kv: Any) -> dict[str, Any]:
    """What an owner of a shard needs to know."""
    settings = {"url": url, "prefix": PREFIX, "lease_ms": LEASE_MS, "timeout_ms": TIMEOUT_MS, **kv}
    return {"shard": shard, "seed": number, "kv": settings, "storage": {"tail_cache_bytes": 1 << 20}}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    """A function that starts an owner of a shard; all are ended with the test."""
    with ExitStack() as ending:

        def start(plan: dict[str, Any]) -> ShardOwner:
            name = f"owner {plan['seed']}"
            owner = ShardOwner(name, plan, tmp_path / name)
            ending.callback(owner.end)
            return owner

        yield start


@pytest.fixture
def shard(request: pytest.FixtureRequest) -> str:
    """A shard of the test's own, that no other test has written to."""
    return f"b{crc32(request.node.nodeid.encode())}"


def key_of(shard: str) -> str:
    return f"{{{PREFIX}:{shard}}}:s"


def proven(plan: dict[str, Any], *owners: ShardOwner, is_lossless: bool = True) -> StoreHistory:
    """The history of owners that kept the promise; `is_lossless`: no rise of the epoch reported a loss."""
    for owner in owners:
        if owner.runs:
            owner.stop()
    history = judged(plan, owners)
    counts = history.counts()
    assert counts["seen"] >= counts["acknowledged"] > BATCHES
    if is_lossless:
        assert history.reported_losses() == 0
    return history


# A master dies.


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_kill_9_of_a_master_under_load_loses_what_is_reported_and_with_a_copy_nothing(
    valkey_cluster: ValkeyCluster, own: Own, shard: str, min_replicas: int
) -> None:
    plan = plan_of(valkey_cluster.url, shard, min_replicas=min_replicas)
    owner = own(plan)
    for _ in range(2):
        owner.wait_more("ack", BATCHES)
        valkey_cluster.kill_master_of(key_of(shard))
        if not min_replicas:
            owner.wait_more("ack", BATCHES)
        valkey_cluster.restore()
    proven(plan, owner, is_lossless=min_replicas > 0)


def test_a_master_that_is_paused_until_its_replica_took_over_confirms_nothing_when_it_wakes(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    plan = plan_of(valkey_cluster.url, shard)
    owner = own(plan)
    owner.wait_more("ack", BATCHES)
    master = valkey_cluster.master_of(key_of(shard))
    master.pause()
    valkey_cluster.wait_failover(key_of(shard), master)
    owner.wait_more("ack", BATCHES)
    master.resume()
    owner.wait_more("ack", BATCHES)
    proven(plan, owner, is_lossless=False)


def test_kill_9_of_a_single_server_that_syncs_each_append_loses_nothing(
    new_valkey: NewValkey, own: Own, shard: str
) -> None:
    server = new_valkey(appendonly="yes", appendfsync="always")
    plan = plan_of(server.url, shard)
    owner = own(plan)
    for _ in range(3):
        owner.wait_more("ack", BATCHES)
        server.restart(signal.SIGKILL)
    owner.wait_more("ack", BATCHES)
    proven(plan, owner)


def test_a_server_that_comes_back_empty_has_lost_all_and_every_record_of_it_is_reported(
    new_valkey: NewValkey, own: Own, shard: str
) -> None:
    server = new_valkey()
    plan = plan_of(server.url, shard)
    owner = own(plan)
    owner.wait_more("ack", BATCHES)
    server.restart(signal.SIGKILL)
    owner.wait_more("ack", BATCHES)
    history = proven(plan, owner, is_lossless=False)
    assert history.reported_losses() >= BATCHES


def test_a_failover_that_forgets_a_takeover_gives_no_term_and_no_epoch_twice(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    key = key_of(shard)
    first = own(plan_of(valkey_cluster.url, shard))
    first.wait_more("ack", BATCHES)
    first.kill()
    valkey_cluster.stop_replication(valkey_cluster.master_of(key))
    plan = plan_of(valkey_cluster.url, shard, 2)
    owner = own(plan)
    owner.wait_more("ack", BATCHES)
    valkey_cluster.kill_master_of(key)
    wait_until(lambda: owner.count("counted") > 0, "the loss is counted")
    owner.wait_more("ack", BATCHES)
    valkey_cluster.restore()
    history = proven(plan, first, owner, is_lossless=False)
    assert history.reported_losses() >= BATCHES


def test_what_a_failover_loses_is_reported_to_the_record(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    plan = plan_of(valkey_cluster.url, shard)
    owner = own(plan)
    owner.wait_more("ack", BATCHES)
    valkey_cluster.stop_replication(valkey_cluster.master_of(key_of(shard)))
    owner.wait_more("ack", BATCHES)
    valkey_cluster.kill_master_of(key_of(shard))
    wait_until(lambda: owner.count("counted") > 0, "the loss is counted")
    owner.wait_more("ack", BATCHES)
    valkey_cluster.restore()
    history = proven(plan, owner, is_lossless=False)
    assert history.reported_losses() == history.missing() >= BATCHES


# A slot moves.


def test_a_slot_that_moves_key_by_key_under_load_loses_nothing(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    plan = plan_of(valkey_cluster.url, shard)
    owner = own(plan)
    for _ in range(2):
        owner.wait_more("ack", BATCHES)
        target = valkey_cluster.other_master(valkey_cluster.master_of(key_of(shard)))
        moved = valkey_cluster.migrate_slot(slot_of(key_of(shard)), target, lambda: time.sleep(0.1))
        assert moved > 3
    owner.wait_more("ack", BATCHES)
    proven(plan, owner)
    assert owner.count("refused") == 0


def test_a_slot_that_the_servers_hand_over_under_load_loses_nothing(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    plan = plan_of(valkey_cluster.url, shard)
    owner = own(plan)
    for _ in range(3):
        owner.wait_more("ack", BATCHES)
        target = valkey_cluster.other_master(valkey_cluster.master_of(key_of(shard)))
        valkey_cluster.migrate_slot_at_once(slot_of(key_of(shard)), target)
    owner.wait_more("ack", BATCHES)
    proven(plan, owner)
    assert owner.count("refused") == 0


# No memory is left.


def test_a_full_server_refuses_appends_and_gives_reads_and_is_used_again_once_it_has_room(
    new_valkey: NewValkey, own: Own, shard: str
) -> None:
    server = new_valkey()
    owner = own(plan_of(server.url, shard))
    for _ in range(2):
        owner.wait_more("ack", BATCHES)
        server.configure("maxmemory", "1mb")
        owner.wait_more("refused", BATCHES)
        server.configure("maxmemory", "0")
        owner.wait_more("ack", BATCHES)
    server.configure("maxmemory", "1mb")
    owner.wait_more("refused", BATCHES)
    owner.stop()
    plan = plan_of(server.url, shard, 2)
    reader = own(plan)
    reader.wait_more("refused", BATCHES)
    assert all(each.count("unread") == 0 for each in (owner, reader))
    assert sum(len(told.rest[-1]) for told in reader.told if told.what == "read") > BATCHES
    server.configure("maxmemory", "0")
    reader.wait_more("ack", BATCHES)
    proven(plan, owner, reader)
    assert owner.count("open") == reader.count("open") == 1, "who is refused keeps the shard"


# An owner and its server are parted.


def test_a_short_partition_from_the_server_is_a_pause(new_valkey: NewValkey, own: Own, shard: str) -> None:
    server = new_valkey()
    with CutProxy(server.port, free_port()) as proxy:
        plan = plan_of(f"redis://127.0.0.1:{proxy.port}", shard)
        owner = own(plan)
        for _ in range(3):
            owner.wait_more("ack", BATCHES)
            proxy.cut()
            time.sleep(0.3)
            proxy.heal()
            owner.wait_more("ack", BATCHES)
            proxy.drop()
        owner.wait_more("ack", BATCHES)
        proven(plan, owner)
    assert owner.count("open") == 1


def test_a_partition_from_one_master_of_a_cluster_ends_without_a_loss(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    master = valkey_cluster.master_of(key_of(shard))
    with CutProxy(master.port, free_port()) as proxy:
        valkey_cluster.proxied(master, proxy.port)
        plan = plan_of(valkey_cluster.url, shard)
        owner = own(plan)
        owner.wait_more("ack", BATCHES)
        proxy.cut()
        time.sleep(2 * TIMEOUT_MS / 1e3)
        proxy.heal()
        owner.wait_more("ack", BATCHES)
        proven(plan, owner)


def test_an_owner_that_is_cut_off_past_its_lease_serves_nothing_after_another_took_over(
    new_valkey: NewValkey, own: Own, shard: str
) -> None:
    server = new_valkey()
    with CutProxy(server.port, free_port()) as proxy:
        late = own(plan_of(f"redis://127.0.0.1:{proxy.port}", shard))
        late.wait_more("ack", BATCHES)
        proxy.cut()
        cut_s = time.monotonic()
        plan = plan_of(server.url, shard, 2)
        owner = own(plan)
        owner.wait_more("ack", BATCHES)
        opened_s = owner.times_of("ack")[0]
        assert opened_s < cut_s + TAKEOVER_S + 2
        proxy.heal()
        owner.wait_more("ack", BATCHES)
        wait_until(lambda: late.count("shut") > 0, "the late owner is told that the shard is another's")
        serves_nothing_after(opened_s, late)
        proven(plan, owner, late)


# An owner is paused or dies.


def serves_nothing_after(taken_s: float, late: ShardOwner) -> None:
    """Nothing that was asked of an owner after another had the shard was confirmed or read."""
    for told in late.told:
        if told.when_s > taken_s:
            assert told.what not in ("read", "sent"), told
    late_firsts = {told.rest[0] for told in late.told if told.what == "try" and told.when_s > taken_s}
    assert not late_firsts & {told.rest[0] for told in late.told if told.what == "ack"}


def test_a_paused_owner_that_wakes_after_another_took_over_serves_nothing(
    new_valkey: NewValkey, own: Own, shard: str
) -> None:
    server = new_valkey()
    late = own(plan_of(server.url, shard))
    late.wait_more("ack", BATCHES)
    late.send(signal.SIGSTOP)
    plan = plan_of(server.url, shard, 2)
    owner = own(plan)
    owner.wait_more("ack", BATCHES)
    taken_s = owner.times_of("ack")[0]
    late.send(signal.SIGCONT)
    owner.wait_more("ack", BATCHES)
    wait_until(lambda: late.count("shut") > 0, "the late owner is told that the shard is another's")
    serves_nothing_after(taken_s, late)
    proven(plan, owner, late)


def test_a_shard_goes_from_one_killed_owner_to_the_next_without_a_loss(
    valkey_cluster: ValkeyCluster, own: Own, shard: str
) -> None:
    owners = [own(plan_of(valkey_cluster.url, shard))]
    for number in (2, 3):
        owners[-1].wait_more("ack", BATCHES)
        owners[-1].kill()
        killed_s = time.monotonic()
        owners.append(own(plan_of(valkey_cluster.url, shard, number)))
        owners[-1].wait_more("ack", BATCHES)
        assert owners[-1].times_of("ack")[0] < killed_s + TAKEOVER_S + 2
    owners[-1].stop()
    assert judged(plan_of(valkey_cluster.url, shard, 9), owners).reported_losses() == 0
