"""Requests to whichever registry answers: one is kept, and when it fails all are tried at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header

REGISTRY_TIMEOUT_S: Final = 2.0
"""How long one registry may take: it answers from memory."""


class Registries:
    """The registries of one cluster; any of them will do."""

    def __init__(
        self,
        addresses: Sequence[str],
        role: str,
        client_id: str,
        software: str,
        security: Security | None = None,
    ) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._role = role
        self._client_id = client_id
        self._software = software
        self._security = security
        self._current: Client | None = None

    async def call(self, code: RequestCode, header: Header) -> Reply:
        """The first answer; RemoteError if it is a refusal, TransportError if none answers (and why)."""
        current = self._current
        if current is not None:
            try:
                return await current.call(code, header, REGISTRY_TIMEOUT_S)
            except TransportError:
                if self._current is current:
                    self._current = None
                    await current.close()
        return await self._try_all(code, header)

    async def close(self) -> None:
        """Close the connection that is kept."""
        if self._current is not None:
            await self._current.close()
            self._current = None

    async def _try_all(self, code: RequestCode, header: Header) -> Reply:
        clients = [
            Client(
                address, self._role, self._client_id, software=self._software, security=self._security
            )
            for address in self._addresses
        ]
        loop = asyncio.get_running_loop()
        calls = {loop.create_task(c.call(code, header, REGISTRY_TIMEOUT_S)): c for c in clients}
        kept: Client | None = None
        failures: list[HoldMQError] = []
        try:
            pending = set(calls)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        kept = calls[task]
                        return task.result()
                    if not isinstance(error, TransportError):
                        raise error
                    failures.append(error)
            raise TransportError(f"no registry answers: {'; '.join(map(str, failures))}")
        finally:
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            if kept is not None and self._current is None:
                self._current = kept
            for client in clients:
                if client is not self._current:
                    await client.close()
