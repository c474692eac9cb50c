"""GATEWAY_RELOAD at a worker: the parent, which alone reads the configuration, is asked what comes of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from gateway.ground.parent_port import ParentPort
from gateway.ground.worker_name import WorkerName
from holdmq.config.changes import GATEWAY
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.names.patterns import pattern_of
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.config_headers import GatewayReloadRequest, GatewayReloadResponse, ReloadedRow

ASKING_MAX: Final = 16
"""Questions that wait for the parent; past it BUSY."""
ANSWER_S: Final = 10.0
"""How long the parent is waited for: it may read files of access as well."""


class GatewayReloads:
    """Answers for one worker; `told` hears what the parent says."""

    def __init__(self, name: WorkerName, parent: ParentPort) -> None:
        self._name = name
        self._parent = parent
        self._numbers = itertools.count(1)
        self._asked: dict[int, Request] = {}
        self._loop = asyncio.get_running_loop()

    def answer_in(self, answers: dict[int, Callable[[Request], None]]) -> None:
        """Take the request of brokers that is meant for it, by its code."""
        answers[RequestCode.GATEWAY_RELOAD] = self.reload

    def reload(self, request: Request) -> None:
        """Ask the parent, if this gateway is meant."""
        header = request.header(GatewayReloadRequest)
        try:
            fits = pattern_of(header.gateway).matcher()
        except ValueError as error:
            raise RemoteError(Code.LIMIT_EXCEEDED, str(error)) from error
        if self._name.worker_id in header.besides or not fits(self._name.gateway):
            request.reply(GatewayReloadResponse([], [self._name.worker_id], []))
            return
        if len(self._asked) >= ASKING_MAX:
            raise BusyError(f"{ASKING_MAX} questions wait for the parent of this gateway worker", 500)
        number = next(self._numbers)
        if not self._parent.tell({"reload": number}):
            raise BusyError("the parent of this gateway worker takes nothing now", 500)
        self._asked[number] = request
        self._loop.call_later(ANSWER_S, self._give_up, number)

    def told(self, message: dict[str, Any]) -> None:
        """The parent has read its configuration again, or says what is wrong."""
        request = self._asked.pop(message["reloaded"], None)
        if request is not None:
            row = ReloadedRow(
                GATEWAY, self._name.gateway, message["changed"], message["waiting"], message["error"]
            )
            request.reply(GatewayReloadResponse([row], [self._name.worker_id], []))

    def _give_up(self, number: int) -> None:
        request = self._asked.pop(number, None)
        if request is not None:
            request.refuse(BusyError(f"the parent says nothing for {ANSWER_S:g} s; its log says more", 500))
