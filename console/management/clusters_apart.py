"""Requests about one of several clusters, each with connections and endpoints made when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from console.api.endpoint import Endpoint, Handler
from console.api.refusals import RefusedRequest
from console.management.one_cluster import OneCluster

CLUSTERS_MAX: Final = 16
"""Clusters that are asked apart: each costs a connection to every one of its brokers."""

MakeEndpoints = Callable[[OneCluster], Sequence[Endpoint]]


class ClustersApart:
    """Finds who answers for a cluster. `whole` is asked when none is named, and knows which there are.

    `make` gives a cluster that is not open yet, `endpoints` what is answered with it.
    """

    def __init__(
        self, whole: OneCluster, make: Callable[[str], OneCluster], endpoints: MakeEndpoints
    ) -> None:
        self._whole = whole
        self._make = make
        self._endpoints = endpoints
        self._opened: dict[str, OneCluster] = {}
        self._handlers: dict[str, dict[tuple[str, str], Handler]] = {}
        self._turn = asyncio.Lock()

    async def handler(self, endpoint: Endpoint, cluster: str) -> Handler:
        """Return what answers this endpoint for a cluster, by its name.

        Raises RefusedRequest for one that has no broker or is not this console's, HoldMQError when no
        registry says which there are.
        """
        if cluster == self._whole.name:
            return endpoint.handler
        async with self._turn:
            if cluster not in self._handlers:
                await self._open(cluster)
        return self._handlers[cluster][endpoint.method, endpoint.path]

    async def _open(self, name: str) -> None:
        known = await self._whole.cluster.names()
        if name not in known:
            raise RefusedRequest(
                404,
                "CLUSTER_UNKNOWN",
                f"no broker of cluster {name[:80]!r} is registered; there are: {', '.join(known) or 'none'}",
                "cluster",
            )
        if len(self._opened) >= CLUSTERS_MAX:
            raise RefusedRequest(
                503, "BUSY", f"{CLUSTERS_MAX} clusters are asked apart: start a console for this one"
            )
        opened = self._make(name)
        await opened.open()
        self._opened[name] = opened
        self._handlers[name] = {(one.method, one.path): one.handler for one in self._endpoints(opened)}

    async def close(self) -> None:
        """Close the connections of all that were asked for."""
        for one in self._opened.values():
            await one.close()
        self._opened.clear()
        self._handlers.clear()
