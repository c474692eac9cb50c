"""CONFIG_RELOAD: a server reads its configuration again for an administrator who asks from afar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdmq.config.changes import Reloaded
from holdmq.errors import BusyError, HoldMQError
from holdmq.rpc.connection import Request
from holdmq.wire.config_headers import ERROR_MAX, ConfigReloadResponse, ReloadedRow

Reload = Callable[[], Awaitable[Reloaded]]
"""Reads, checks and applies; raises ConfigError, and then nothing has changed."""
RETRY_AFTER_MS = 500


class ConfigReload:
    """Answers for the process `name` of a service; one at a time, on the loop that serves."""

    def __init__(self, service: str, name: str, reload: Reload) -> None:
        self._service = service
        self._name = name
        self._reload = reload
        self._task: asyncio.Task[None] | None = None

    def handle(self, request: Request) -> None:
        """Answer with what changed, what waits for a restart, or what is wrong."""
        if self._task is not None and not self._task.done():
            raise BusyError("the configuration is being read already", RETRY_AFTER_MS)
        self._task = asyncio.get_running_loop().create_task(self._answer(request), name="reload from afar")

    async def _answer(self, request: Request) -> None:
        changed: list[str] = []
        waiting: list[str] = []
        error = ""
        try:
            changed, waiting = await self._reload()
        except HoldMQError as wrong:
            error = str(wrong)[:ERROR_MAX]
        request.reply(ConfigReloadResponse([ReloadedRow(self._service, self._name, changed, waiting, error)]))
