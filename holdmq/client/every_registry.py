"""Connections to every registry, for what each of them has to be asked or told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from holdmq.client.route import SOFTWARE
from holdmq.errors import UsageError
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.tenant_words import TenantWords


class EveryRegistry:
    """A client of each registry by its address, made when it is first used; leave it to disconnect."""

    def __init__(
        self,
        registries: Sequence[str],
        client_id: str,
        security: Security | None,
        words: TenantWords | None = None,
    ) -> None:
        if isinstance(registries, str) or not registries:
            raise UsageError("registries must be a list of at least one host:port")
        self._clients = {
            address: Client(address, "client", client_id, software=SOFTWARE, security=security, words=words)
            for address in dict.fromkeys(registries)
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from the registries."""
        for client in self._clients.values():
            await client.close()
