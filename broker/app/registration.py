"""Registration: tell every registry what this broker has, at intervals and on every change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BrokerRegisterRequest, BrokerRegisterResponse, BrokerUnregisterRequest

CALL_TIMEOUT_S: Final = 3.0

log = structlog.get_logger("holdmq.broker")


class Registration:
    """Keeps one connection per registry; `current` gives what to register now.

    `heard` is called after each registration with the number of brokers that the registry knows.
    """

    def __init__(
        self,
        registries: list[str],
        name: str,
        interval_s: float,
        current: Callable[[], BrokerRegisterRequest],
        heard: Callable[[int], None],
        security: Security | None = None,
    ) -> None:
        self.registered: dict[str, bool] = dict.fromkeys(registries, False)
        self._current = current
        self._heard = heard
        self._interval_s = interval_s
        self._changed = asyncio.Event()
        self._clients = [
            Client(address, "broker", name, on_up=self._up, on_down=self._down, security=security)
            for address in registries
        ]
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        """Connect and register in the background."""
        for client in self._clients:
            client.start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="registration")

    def reconfigure(self, interval_s: float) -> None:
        """Register now, and then at another interval."""
        self._interval_s = interval_s
        self._changed.set()

    def state(self) -> tuple[bool, str]:
        """Readiness: registered with at least one registry."""
        if any(self.registered.values()):
            return True, "registered"
        return False, f"not registered with any of {', '.join(self.registered)}"

    def changed(self) -> None:
        """Something to register changed: do it now."""
        self._changed.set()

    async def close(self, unregister: bool = True) -> None:
        """Take this broker out of every registry that answers, then disconnect.

        Without `unregister` it stays there: another process has registered its name.
        """
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        now = self._current()
        request = BrokerUnregisterRequest(now.cluster, now.broker, now.broker_id, now.epoch)
        for client in self._clients:
            if unregister and client.connection is not None:
                try:
                    await client.call(RequestCode.BROKER_UNREGISTER, request, CALL_TIMEOUT_S)
                except HoldMQError as e:
                    log.warning("not unregistered", registry=client.address, reason=str(e))
            await client.close()

    def _up(self, *_: object) -> None:
        self._changed.set()

    def _down(self, reason: HoldMQError) -> None:
        if not self._is_closing:
            log.warning("registry lost", reason=str(reason))

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            await asyncio.gather(*(self._register(client) for client in self._clients))
            # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()

    async def _register(self, client: Client) -> None:
        if client.connection is None:
            self.registered[client.address] = False
            return  # `_up` comes when it is connected
        try:
            reply = await client.call(RequestCode.BROKER_REGISTER, self._current(), CALL_TIMEOUT_S)
            brokers = reply.header(BrokerRegisterResponse).brokers
        except HoldMQError as e:
            self.registered[client.address] = False
            log.warning("not registered", registry=client.address, reason=str(e))
            return
        if not self.registered[client.address]:
            log.info("registered", registry=client.address)
        self.registered[client.address] = True
        if brokers:
            self._heard(brokers)
