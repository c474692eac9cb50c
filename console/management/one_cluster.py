"""What the API asks of the brokers of one cluster, or of all that the registries know."""

from __future__ import annotations

from contextlib import AsyncExitStack

from console.live.cluster import Cluster
from console.live.shards import Shards
from console.management.clients import ClusterClients
from holdmq.rpc.security import Security


class OneCluster:
    """Asks over connections of its own, from `open` until `close`. `name` "" = brokers of all clusters."""

    def __init__(self, registries: list[str], security: Security | None, name: str = "") -> None:
        self.name = name
        self.cluster = Cluster(registries, security, name)
        self.clients = ClusterClients(self.cluster.admin)
        self.shards = Shards(self.cluster.admin, self.cluster.client_id, security)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Begin connecting; returns at once."""
        await self.cluster.open()
        self._stack.push_async_callback(self.cluster.close)
        await self.clients.open()
        self._stack.push_async_callback(self.clients.close)

    async def close(self) -> None:
        """End what is under way, and close every connection."""
        await self._stack.aclose()
