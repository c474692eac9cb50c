"""The gateway's configuration while it runs: read by the parent alone, whose workers are told what changed.

So all workers have the same, whenever they look and whatever is in the file by then; one that starts later is
told what has changed since the parent started (`in_force`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

from gateway.access.checking import check_access
from holdmq.config.changes import GATEWAY, RELOADED, Adjustment, LiveSettings, Reloaded
from holdmq.config.model import Config
from holdmq.errors import HoldMQError
from holdmq.service.admin import ControlAnswer
from holdmq.service.reloading import (
    ANSWER_S,
    LOG_LEVEL,
    answer_of,
    applied,
    mistake,
    read_again,
    refused,
)


class GatewaySettings:
    """`wake` makes the supervisor call `take` soon, which reads: no thread of this process may be at work
    when it forks."""

    def __init__(self, config: Config, wake: Callable[[], None]) -> None:
        workers = Adjustment(RELOADED[GATEWAY] - LOG_LEVEL.keys, lambda _: None)
        self._settings = LiveSettings(GATEWAY, config, [workers, LOG_LEVEL])
        self._wake = wake
        self._asked: deque[Future[Reloaded]] = deque()
        self._values: dict[str, Any] = {}

    def control(self, method: str, _query: dict[str, str]) -> ControlAnswer:
        """POST: reload; called on a thread of the admin server."""
        if method != "POST":
            return mistake(HTTPStatus.METHOD_NOT_ALLOWED, "POST has the configuration read again")
        try:
            return answer_of(self.ask().result(ANSWER_S))
        except HoldMQError as error:
            return mistake(HTTPStatus.BAD_REQUEST, str(error))
        except TimeoutError:
            return mistake(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway is busy or ends; its log says more")

    def ask(self) -> Future[Reloaded]:
        """Have the configuration read again soon; any thread."""
        future: Future[Reloaded] = Future()
        self._asked.append(future)
        self._wake()
        return future

    # On the supervisor's thread

    def take(self) -> list[dict[str, object]]:
        """Do what was asked for; what all workers are to be told."""
        commands: list[dict[str, object]] = []
        while self._asked:
            future = self._asked.popleft()
            try:
                read = read_again(self._settings.in_force, _check)
            except HoldMQError as error:
                refused(error)
                future.set_exception(error)
                continue
            reloaded = self._settings.take_over(read)
            changed = {key: read.value_of(key) for key in reloaded.changed}
            if changed:
                self._values |= changed
                commands.append({"settings": changed})
            applied(reloaded)
            future.set_result(reloaded)
        return commands

    def in_force(self) -> list[dict[str, object]]:
        """What a worker that starts must be told."""
        return [{"settings": self._values}] if self._values else []


def _check(config: Config) -> None:
    """Refuse what a gateway does not start with."""
    config.access.anonymous_allowed(config.gateway)
    check_access(config)
