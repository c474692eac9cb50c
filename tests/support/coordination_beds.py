"""What the conformance suite of `holdmq.coordination` runs on: a shard at some coordinator, and its time."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Protocol

from etcd_members import EtcdCluster
from kubernetes_leases import NAMESPACE, Lease, LeaseServer, kubeconfig

from holdmq.coordination.api import Coordinator
from holdmq.coordination.etcd import EtcdCoordinator
from holdmq.coordination.etcd_gateway import EtcdAccess
from holdmq.coordination.kubernetes import KubernetesCoordinator
from holdmq.coordination.kubernetes_api import KubernetesAccess
from holdmq.coordination.lease_object import SHARD, STATE, STATE_VERSION, name_of
from holdmq.coordination.memory import MemoryShard


class Bed(Protocol):
    """One shard that nobody has used.

    `ttl_s` is the shortest lease that a test can wait for, `settle_s` the real time until a call that was
    begun has come to where it waits.
    """

    ttl_s: float
    settle_s: float

    def coordinator(self, replica_id: str) -> Coordinator:
        """A new client, as a new process of this replica would have; closed with the bed."""
        ...

    async def pass_time(self, by_s: float) -> None:
        """Wait."""
        ...

    async def put_raw(self, text: str) -> None:
        """Write `text` where S is, as somebody who does not know better."""
        ...

    async def close(self) -> None:
        """Close all clients."""
        ...


class MemoryBed:
    """A shard in memory, whose time the test moves."""

    ttl_s = 9.0
    settle_s = 0.01

    def __init__(self) -> None:
        self.shard = MemoryShard()

    def coordinator(self, replica_id: str) -> Coordinator:
        return self.shard.coordinator(replica_id)

    async def pass_time(self, by_s: float) -> None:
        self.shard.advance(by_s)

    async def put_raw(self, text: str) -> None:
        self.shard.register.put_raw(text.encode())

    async def close(self) -> None:
        """Nothing is open in memory."""


class EtcdBed:
    """A shard at a real etcd, and real time."""

    ttl_s = 3.0
    settle_s = 0.2

    def __init__(self, cluster: EtcdCluster, shard: str, timeout_s: float = 5.0) -> None:
        self._cluster = cluster
        self._shard = shard
        self._timeout_s = timeout_s
        self._made: list[EtcdCoordinator] = []

    def coordinator(self, replica_id: str) -> EtcdCoordinator:
        access = EtcdAccess(self._cluster.urls)
        made = EtcdCoordinator(access, "/holdmq/", self._shard, replica_id, self._timeout_s)
        self._made.append(made)
        return made

    async def pass_time(self, by_s: float) -> None:
        await asyncio.sleep(by_s)

    async def put_raw(self, text: str) -> None:
        key = base64.b64encode(f"/holdmq/{self._shard}/state".encode()).decode()
        value = base64.b64encode(text.encode()).decode()
        await asyncio.to_thread(self._cluster.members[0].ask, "/v3/kv/put", {"key": key, "value": value})

    async def close(self) -> None:
        for each in self._made:
            await each.close()


class KubernetesBed:
    """A shard at an API server of the test's own, and real time."""

    ttl_s = 3.0
    settle_s = 0.2

    def __init__(self, server: LeaseServer, directory: Path, timeout_s: float = 5.0) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._kubeconfig = directory / "kubeconfig"
        self._kubeconfig.write_text(kubeconfig(server))
        self._made: list[KubernetesCoordinator] = []

    def coordinator(self, replica_id: str) -> KubernetesCoordinator:
        access = KubernetesAccess(str(self._kubeconfig), NAMESPACE)
        made = KubernetesCoordinator(access, "holdmq", "shard", replica_id, self._timeout_s)
        self._made.append(made)
        return made

    async def pass_time(self, by_s: float) -> None:
        await asyncio.sleep(by_s)

    async def put_raw(self, text: str) -> None:
        def change(lease: Lease) -> None:
            lease["metadata"]["annotations"] |= {SHARD: "holdmq/shard", STATE: text, STATE_VERSION: "7"}

        self._server.edit(name_of("holdmq", "shard"), change)

    async def close(self) -> None:
        for each in self._made:
            await each.close()
