"""A shard whose log may hold what only a newer release reads: this one is no replica of it, and says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from processes import wait_until
from replica_processes import SHARD, ReplicaStack, replica_stack

from holdmq.coordination.etcd import EtcdCoordinator
from holdmq.coordination.etcd_gateway import EtcdAccess
from holdmq.errors import Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.replica_headers import ReplicaPromoteRequest

FOLDER = "/holdmq/holdmq/"
SAYS = "what format level 9 has added, and this release reads level 1"
WAIT_S = 30.0


async def set_level(urls: list[str], level: int) -> None:
    """Say up to which level the shard's log may hold what releases add."""
    coordinator = EtcdCoordinator(EtcdAccess(tuple(urls)), FOLDER, SHARD, "test", 5.0)
    try:
        found = await coordinator.read()
        assert found.state is not None
        state = replace(found.state, format_level=level)
        assert await coordinator.compare_and_set(found.version, state) is not None
    finally:
        await coordinator.close()


async def promote(shard: ReplicaStack, name: str) -> None:
    client = Client(f"127.0.0.1:{shard.ports[name]}", "client", "test")
    try:
        await client.call(RequestCode.REPLICA_PROMOTE, ReplicaPromoteRequest(SHARD, True))
    finally:
        await client.close()


def test_an_older_release_neither_leads_nor_follows_and_says_which_one_it_needs(tmp_path: Path) -> None:
    with replica_stack(tmp_path, replicas=2, min_in_sync=1) as shard:
        for name in shard.names:
            shard.stacks[name].stop("broker")
        asyncio.run(set_level(shard.etcd.urls, 9))
        for name in shard.names:
            shard.start_again(name)
        for name in shard.names:
            stack = shard.stacks[name]
            wait_until(lambda stack=stack: SAYS in stack.http("broker", "/readyz")[1], "it says so", WAIT_S)
            assert stack.metric("broker", "holdmq_replication_is_outdated") == 1
            assert stack.metric("broker", "holdmq_replication_format_level") == 9
            assert SAYS in stack.log("broker")
            with pytest.raises(RemoteError) as refused:
                asyncio.run(promote(shard, name))
            assert refused.value.code == Code.VERSION_UNSUPPORTED
        assert shard.leader() == ""
        # As if the newer release had never led.
        asyncio.run(set_level(shard.etcd.urls, 1))
        shard.wait_in_sync()
        assert shard.first.metric("broker", "holdmq_replication_is_outdated") == 0
