"""Says to every registry that a process is here, so that its death is noticed, and at its end goodbye."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.process_headers import ProcessHereRequest, ProcessLeaveRequest

BEAT_S: Final = 20.0
"""How often it is said again: a sixth of registry.broker_expiry_s, after which it is taken for lost."""
ANSWER_S: Final = 2.0
"""How long a registry may take, at the end too: it answers from memory."""

log = telemetry.get_logger()


class Presence:
    """Keeps a connection to each registry while the process is here. `start`, then `leave` or `close`.

    `kind` and `name` as in PROCESS_HERE; `client_id` is this connection's own.
    """

    def __init__(
        self,
        registries: Sequence[str],
        role: str,
        kind: str,
        name: str,
        client_id: str,
        security: Security | None,
    ) -> None:
        self._here = ProcessHereRequest(kind, name)
        self._clients = [
            Client(address, role, client_id, security=security, on_up=lambda *_: self._changed.set())
            for address in dict.fromkeys(registries)
        ]
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Say so in the background, to each registry as soon as it is there."""
        for client in self._clients:
            client.start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="presence")

    async def leave(self) -> None:
        """Say goodbye to every registry that answers, then disconnect."""
        await self._end_task()
        leaving = ProcessLeaveRequest(self._here.kind, self._here.name)
        await asyncio.gather(
            *(self._say(client, RequestCode.PROCESS_LEAVE, leaving) for client in self._clients)
        )
        await self.close()

    async def close(self) -> None:
        """Disconnect without a word: what has failed is to be noticed."""
        await self._end_task()
        for client in self._clients:
            await client.close()

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            await asyncio.gather(
                *(self._say(client, RequestCode.PROCESS_HERE, self._here) for client in self._clients)
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._changed.wait()

    async def _say(
        self, client: Client, code: RequestCode, header: ProcessHereRequest | ProcessLeaveRequest
    ) -> None:
        if client.connection is None:
            return
        try:
            await client.connection.call(code, header, ANSWER_S)
        except HoldMQError as error:
            log.debug("a registry did not hear of this process", registry=client.address, reason=str(error))
