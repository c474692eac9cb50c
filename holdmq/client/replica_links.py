"""Connections to replicas that do not lead, for reads alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header
from holdmq.wire.headers import HelloResponse
from holdmq.wire.tenant_words import TenantWords

CONNECT_S: Final = 1.0
"""How long a connection is waited for; the leader is there meanwhile."""
IDLE_S: Final = 60.0
"""How long a connection stays that nobody uses: a reader that comes and goes has it still."""


class ReplicaLink:
    """One replica by its address. `waits_until`: before that it may just not be connected yet."""

    __slots__ = ("client", "filter_ids", "name", "used_at", "waits_until")

    def __init__(self, address: str, client: Client, now: float) -> None:
        self.name = f"replica {address}"
        self.client = client
        self.filter_ids = itertools.count(1)
        self.used_at = now
        self.waits_until = now + CONNECT_S

    def is_failing(self, now: float) -> bool:
        """Whether there is no connection, and will not be one soon."""
        client = self.client
        return client.connection is None and (client.last_error is not None or now >= self.waits_until)


class ReplicaLinks:
    """Links by address, made with their first use. `on_up` is called when one is connected."""

    def __init__(
        self,
        role: str,
        client_id: str,
        software: str = "",
        security: Security | None = None,
        words: TenantWords | None = None,
    ) -> None:
        self.on_up: list[Callable[[], None]] = []
        self._role = role
        self._client_id = client_id
        self._software = software
        self._security = security
        self._words = words
        self._links: dict[str, ReplicaLink] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def link(self, address: str) -> ReplicaLink:
        """The link to a replica, connecting if it was not."""
        now = asyncio.get_running_loop().time()
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._make(address, now)
            self._close_idle(now)
        link.used_at = now
        link.client.start()
        return link

    async def call(self, address: str, code: RequestCode, header: Header, timeout_s: float) -> Reply:
        """Ask a replica once. Raises TransportError, soon if it cannot be reached, and RemoteError."""
        link = self.link(address)
        if link.is_failing(asyncio.get_running_loop().time()):
            raise TransportError(f"no connection to {link.name}: {link.client.last_error}")
        connection = await link.client.connected(CONNECT_S)
        return await connection.call(code, header, timeout_s)

    async def close(self) -> None:
        """Close every connection to a replica."""
        for address in list(self._links):
            self._close(address)
        if self._closing:
            await asyncio.wait(self._closing)

    def _make(self, address: str, now: float) -> ReplicaLink:
        def up(_connection: Connection, _hello: HelloResponse) -> None:
            for callback in self.on_up:
                callback()

        def down(_reason: HoldMQError) -> None:
            link.waits_until = asyncio.get_running_loop().time()

        client = Client(
            address,
            self._role,
            self._client_id,
            software=self._software,
            on_up=up,
            on_down=down,
            security=self._security,
            reads_replica=True,
            words=self._words,
        )
        link = ReplicaLink(address, client, now)
        return link

    def _close_idle(self, now: float) -> None:
        for address, link in list(self._links.items()):
            if now - link.used_at >= IDLE_S:
                self._close(address)

    def _close(self, address: str) -> None:
        closing = asyncio.get_running_loop().create_task(self._links.pop(address).client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
