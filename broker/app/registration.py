"""Registration: tell every registry what this broker has, at intervals and on every change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from broker.alerts.core.registry_sight import RegistrySight
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import FORGOTTEN_MAX, ForgottenRow, newest_of
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    BrokerRegisterRequest,
    BrokerRegisterResponse,
    BrokerRow,
    BrokerUnregisterRequest,
    RouteGetRequest,
    RouteGetResponse,
)

CALL_TIMEOUT_S: Final = 3.0
ASKED_MAX: Final = 32
"""Brokers whose life is looked for when no registry answers: of so many one lives."""

log = structlog.get_logger("holdmq.broker")


class Registration:
    """Keeps one connection per registry; `current` gives what to register now.

    `heard` is called after each registration with the number of brokers that the registry knows. Registries
    hear here of brokers that were given up while they were away. A broker that was given up itself is
    registered nowhere any more: `refusal` says why, "" = it was not.
    """

    def __init__(
        self,
        registries: list[str],
        name: str,
        interval_s: float,
        current: Callable[[], BrokerRegisterRequest],
        heard: Callable[[int], None],
        security: Security | None = None,
        sight: RegistrySight | None = None,
    ) -> None:
        """`sight` is told whether registries answer."""
        self._name = name
        self._sight = RegistrySight() if sight is None else sight
        self.brokers: list[BrokerRow] = []
        """All live brokers, as a registry said last."""
        self.was_registered = asyncio.Event()
        self.interval_s = interval_s
        self.refusal = ""
        self._forgotten: dict[str, ForgottenRow] = {}
        self.registered: dict[str, bool] = dict.fromkeys(registries, False)
        self._current = current
        self._heard = heard
        self._changed = asyncio.Event()
        self._clients = [
            Client(
                address,
                "broker",
                name,
                on_up=self._up,
                on_down=self._down,
                on_request=partial(self._told, address),
                security=security,
            )
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
        self.interval_s = interval_s
        self._changed.set()

    @property
    def is_registered(self) -> bool:
        """Whether a registry has this broker."""
        return any(self.registered.values())

    def state(self) -> tuple[bool, str]:
        """Readiness: registered with at least one registry."""
        if self.is_registered:
            return True, "registered"
        if self.refusal:
            return False, self.refusal
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
            if unregister and not self.refusal and client.connection is not None:
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
            self._changed.set()

    def _told(self, address: str, request: Request) -> None:
        if request.command.code != RequestCode.REGISTRY_LEAVES:
            raise RemoteError(Code.UNKNOWN_REQUEST, "registries tell brokers of their end, and nothing else")
        self._sight.left(address)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            await asyncio.gather(*(self._register(client) for client in self._clients))
            if self.refusal:
                await self._leave()
                return
            if not self.is_registered:
                self._sight.none_answers(asyncio.get_running_loop().time())
                self._sight.is_first = await self._is_first()
            # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_s):
                    await self._changed.wait()

    async def _is_first(self) -> bool:
        """Whether no broker that comes before this one by name lives, of those that registries knew last."""
        others = {row.broker: row.address for row in self.brokers}
        before = sorted(name for name in others if name < self._name)[:ASKED_MAX]
        return not any(await asyncio.gather(*(_lives(others[name]) for name in before)))

    async def _register(self, client: Client) -> None:
        if client.connection is None:
            self.registered[client.address] = False
            return  # `_up` comes when it is connected
        try:
            now = self._current()
            told = replace(now, forgotten=list(self._forgotten.values()))
            reply = await client.call(RequestCode.BROKER_REGISTER, told, CALL_TIMEOUT_S)
            answer = reply.header(BrokerRegisterResponse)
            self._learn(rows(ForgottenRow, answer.forgotten))
        except HoldMQError as e:
            self.registered[client.address] = False
            if isinstance(e, RemoteError) and e.code == Code.BROKER_FORGOTTEN:
                self.refusal = e.remark
                log.error("this broker was given up", registry=client.address, reason=e.remark)
                return
            log.warning("not registered", registry=client.address, reason=str(e))
            return
        self._sight.answered(client.address)
        try:
            asked = RouteGetRequest([], cluster=now.cluster)
            known = await client.call(RequestCode.ROUTE_GET, asked, CALL_TIMEOUT_S)
            others = rows(BrokerRow, known.header(RouteGetResponse).brokers)
            # A registry that does not know the word tells of the brokers of other clusters, too.
            self.brokers = [row for row in others if row.cluster == now.cluster]
        except HoldMQError as e:
            log.debug("other brokers are not known", registry=client.address, reason=str(e))
        if not self.registered[client.address]:
            log.info("registered", registry=client.address)
        self.registered[client.address] = True
        self.was_registered.set()
        if answer.brokers:
            self._heard(answer.brokers)

    def _learn(self, found: list[ForgottenRow]) -> None:
        """Take what a registry says of brokers that were given up: the others hear it now."""
        newest = newest_of([*self._forgotten.values(), *found])
        latest = sorted(newest.values(), key=lambda row: row.forgotten_ms)[-FORGOTTEN_MAX:]
        known = {row.broker: row for row in latest}
        if known != self._forgotten:
            self._forgotten = known
            self._changed.set()

    async def _leave(self) -> None:
        """Take this broker out of registries that have not heard yet that it was given up."""
        now = self._current()
        request = BrokerUnregisterRequest(now.cluster, now.broker, now.broker_id, now.epoch)
        for client in self._clients:
            self.registered[client.address] = False
            if client.connection is not None:
                try:
                    await client.call(RequestCode.BROKER_UNREGISTER, request, CALL_TIMEOUT_S)
                except HoldMQError as e:
                    log.warning("not unregistered", registry=client.address, reason=str(e))


async def _lives(address: str) -> bool:
    """Whether somebody listens at a broker's address."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    return True
