"""A broker joins its cluster: it looks who is there before it registers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from broker.joining.cluster import ClusterInquiry
from broker.joining.keeping import LOOK_AGAIN_S, Keeping

OTHERS_S: Final = 0.2
"""How long a broker that knows its place waits for a second registry, when the first has answered."""
FOUNDING_OTHERS_S: Final = 1.5
"""How long one that does not waits: a registry that is up may know of keepers that the first one does not."""
TABLES_OPEN_S: Final = 5.0
"""How long a new keeper waits for its tables before it registers."""

log = structlog.get_logger("holdmq.broker")


class Joining:
    """The way of one broker into its cluster; `run` it as a task, once it can be asked."""

    def __init__(self, cluster: ClusterInquiry, keeping: Keeping) -> None:
        self._cluster = cluster
        self._keeping = keeping

    async def run(
        self, tables_opened: Callable[[], Awaitable[object]], register: Callable[[], None], is_failover: bool
    ) -> None:
        """Find out who is there, then `register`; until a registry answers nobody could be told anyway.

        `tables_opened` waits until the tables that this broker keeps can be used: who gets the first route
        gets theirs, too. `is_failover`: it goes on where another process was, so that clients wait for it.
        """
        is_registered = is_failover
        if is_failover:
            register()
        while True:
            is_decided = self._keeping.is_keeper is not None
            found = await self._cluster.look(OTHERS_S if is_decided else FOUNDING_OTHERS_S)
            if found is not None:
                if not is_decided and await self._keeping.decide(self._cluster, found):
                    is_decided = True
                    with contextlib.suppress(TimeoutError):  # a disk that is full now may not be later
                        async with asyncio.timeout(TABLES_OPEN_S):
                            await tables_opened()
                if not is_registered:
                    is_registered = True
                    register()
                if is_decided:
                    return
            await asyncio.sleep(LOOK_AGAIN_S)
