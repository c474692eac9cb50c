"""Replicas of one broker as real processes, with a real etcd, a registry and a gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etcd_members import EtcdCluster, etcd_cluster
from processes import Stack, end_all, free_port, wait_until

from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.replica_headers import (
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaSwitchRequest,
    ReplicaSwitchResponse,
)

TTL_S = 3
SHARD = "broker-0"
LEADS_S = 30.0
TIMES: dict[str, Any] = {
    "coordination.ttl_s": TTL_S,
    "coordination.renew_s": 0.5,
    "coordination.timeout_s": 0.7,
    "coordination.margin_s": 0.5,
    "replication.lag_ms": 1500,
}
"""Shorter than what is the default, so that a failover takes three seconds."""


class ReplicaStack:
    """Replicas of one broker, each with a directory and ports of its own; the first has the registry."""

    def __init__(
        self, directory: Path, etcd: EtcdCluster, replicas: int, min_in_sync: int, **overrides: Any
    ) -> None:
        self.etcd = etcd
        self.names = [chr(ord("a") + index) for index in range(replicas)]
        self.ports = {name: free_port() for name in self.names}
        self.stacks: dict[str, Stack] = {}
        listed = ",".join(f"{name}=127.0.0.1:{self.ports[name]}" for name in self.names)
        registry: int | None = None
        for name in self.names:
            (directory / name).mkdir(parents=True)
            settings: dict[str, Any] = {
                "broker.name": SHARD,
                "replication.replicas": listed,
                "replication.replica": name,
                "replication.min_in_sync": min_in_sync,
                "replication.port": self.ports[name],
                "coordination.kind": "etcd",
                "coordination.etcd.urls": ",".join(etcd.urls),
                "storage.engine": "log",
                **TIMES,
                **overrides,
            }
            if registry is not None:
                settings["registry.port"] = registry
            stack = self.stacks[name] = Stack(directory / name, settings)
            registry = registry or stack.registry_port
        self.first = self.stacks[self.names[0]]
        self.registries = [self.first.registry]

    def start(self, *services: str) -> None:
        """Start everything: the registry, all replicas, then `services` beside the first one."""
        self.first.start("registry")
        self.start_replicas()
        for name in services:
            self.first.start(name)

    def start_replicas(self) -> None:
        """Start all replicas, and wait until one leads."""
        for stack in self.stacks.values():
            stack.start("broker", wait=False)
        self.wait_leader()

    def status(self, name: str) -> ReplicaStatusResponse | None:
        """What a replica says of itself; None = nothing."""

        async def ask() -> ReplicaStatusResponse:
            client = Client(f"127.0.0.1:{self.ports[name]}", "client", "test")
            try:
                header = ReplicaStatusRequest(SHARD)
                return (await client.call(RequestCode.REPLICA_STATUS, header, 1.0)).header(
                    ReplicaStatusResponse
                )
            finally:
                await client.close()

        try:
            return asyncio.run(ask())
        except HoldMQError:
            return None

    def leader(self) -> str:
        """The replica that serves now; "" = none."""
        for name in self.names:
            if "broker" in self.stacks[name].processes:
                status = self.status(name)
                if status is not None and status.is_serving:
                    return name
        return ""

    def wait_leader(self, but: str = "") -> str:
        """Wait until a replica (another one than `but`) serves and is registered; its name."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [self.leader()]
            if found[0] in ("", but):
                return False
            # Serving begins before the registry has heard of it.
            return self.stacks[found[0]].http("broker", "/readyz")[0] == 200

        try:
            wait_until(is_there, "a replica leads", LEADS_S)
        except AssertionError:
            raise AssertionError(f"nobody leads:\n{self.logs()}") from None
        return found[0]

    def wait_in_sync(self) -> None:
        """Wait until every replica is a member, and whole."""

        def is_level() -> bool:
            statuses = [self.status(name) for name in self.names]
            return all(status is not None and status.is_whole for status in statuses) and any(
                status is not None and len(status.in_sync) == len(self.names) and status.is_serving
                for status in statuses
            )

        try:
            wait_until(is_level, "all replicas are in sync", LEADS_S)
        except AssertionError:
            raise AssertionError(f"not all are in sync:\n{self.logs()}") from None

    def wait_confirmed(self) -> None:
        """Wait until all that the leader has appended is confirmed, and all replicas have it."""

        def is_level() -> bool:
            status = self.status(self.leader())
            return status is not None and status.confirmed == status.end

        self.wait_in_sync()
        wait_until(is_level, "all is confirmed", LEADS_S)

    @contextmanager
    def paused_copies(self) -> Iterator[str]:
        """Stop every replica but the leader, which this names: it takes what comes and confirms nothing."""
        leader = self.leader()
        copies = [self.stacks[name].processes["broker"] for name in self.names if name != leader]
        try:
            for copy in copies:
                copy.send_signal(signal.SIGSTOP)
            yield leader
        finally:
            for copy in copies:
                copy.send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """kill -9 of a replica."""
        self.stacks[name].stop("broker", signal.SIGKILL)

    def start_again(self, name: str) -> None:
        """Start a replica that was ended."""
        self.stacks[name].start("broker", wait=False)

    def switch(self, leader: str, to: str) -> None:
        """Ask the leader to hand the lead over."""

        async def ask() -> None:
            client = Client(f"127.0.0.1:{self.ports[leader]}", "client", "test")
            try:
                header = ReplicaSwitchRequest(SHARD, to)
                (await client.call(RequestCode.REPLICA_SWITCH, header, 3.0)).header(ReplicaSwitchResponse)
            finally:
                await client.close()

        asyncio.run(ask())

    def logs(self) -> str:
        """The last lines of each replica."""
        return "\n".join(
            f"== {name}\n" + "\n".join(stack.log("broker").splitlines()[-25:])
            for name, stack in self.stacks.items()
        )

    def end(self) -> None:
        """End every process, gateways while they have brokers; AssertionError if one had ended by itself."""
        end_all([self.stacks[name] for name in reversed(self.names)], "gateway")


@contextmanager
def replica_stack(
    directory: Path, *services: str, replicas: int = 3, min_in_sync: int = 2, etcds: int = 1, **overrides: Any
) -> Iterator[ReplicaStack]:
    """Replicas that are all in sync, and services beside them."""
    with etcd_cluster(directory / "etcd", etcds) as etcd:
        stack = ReplicaStack(directory, etcd, replicas, min_in_sync, **overrides)
        try:
            stack.start(*services)
            stack.wait_in_sync()
            yield stack
        finally:
            stack.end()
