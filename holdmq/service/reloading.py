"""Has a running process read its configuration again: on SIGHUP, and for ``holdmq config reload``.

The sources are read and checked whole on a thread; what can change is then applied on the event loop, all of
it in one turn. A configuration that is wrong changes nothing, and the answer says what is wrong, by key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Final

from prometheus_client import Counter, Gauge

from holdmq.config.changes import Adjustment, LiveSettings, Reloaded
from holdmq.config.model import Config
from holdmq.config.sources import load_again
from holdmq.errors import HoldMQError
from holdmq.service import telemetry
from holdmq.service.admin import ControlAnswer

PATH: Final = "/reload"
"""Where an admin port is asked to reload, with POST (a control: from this machine only)."""
ANSWER_S: Final = 8.0
"""How long the admin port waits for the event loop: less than its client does."""

RELOADS: Final = Counter(
    "holdmq_config_reloads_total",
    "Configurations read again while the process ran, by result (applied, refused).",
    ["result"],
    registry=telemetry.METRICS,
)
WAITING: Final = Gauge(
    "holdmq_config_keys_waiting",
    "Keys of the configuration that had other values than those in force when it was last read.",
    registry=telemetry.METRICS,
)

log = telemetry.get_logger()

Check = Callable[[Config], object]
"""Raises ConfigError for what a start would refuse; may wait for files."""


class Reloading:
    """Reads and applies the configuration of one process, on whose loop it is made; one at a time.

    `check` refuses what a start of the service would; `adjustments` are of all its keys but ``log.level``.
    """

    def __init__(self, service: str, config: Config, adjustments: Sequence[Adjustment], check: Check) -> None:
        self._settings = LiveSettings(service, config, [*adjustments, LOG_LEVEL])
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def in_force(self) -> Config:
        """The configuration in force."""
        return self._settings.in_force

    async def reload(self) -> Reloaded:
        """Read, check and apply; raises ConfigError, and then nothing has changed."""
        async with self._lock:
            try:
                read = await asyncio.to_thread(read_again, self._settings.in_force, self._check)
            except HoldMQError as error:
                refused(error)
                raise
            reloaded = self._settings.take_over(read)
            applied(reloaded)
            return reloaded

    def soon(self) -> None:
        """Reload, and let the log say what came of it (SIGHUP)."""
        self._task = self._loop.create_task(self._quietly(), name="reload")

    async def _quietly(self) -> None:
        try:
            await self.reload()
        except HoldMQError:
            return  # said already

    def control(self, method: str, _query: dict[str, str]) -> ControlAnswer:
        """POST: reload; called on a thread of the admin server."""
        if method != "POST":
            return mistake(HTTPStatus.METHOD_NOT_ALLOWED, "POST has the configuration read again")
        future = asyncio.run_coroutine_threadsafe(self.reload(), self._loop)
        try:
            return answer_of(future.result(ANSWER_S))
        except HoldMQError as error:
            return mistake(HTTPStatus.BAD_REQUEST, str(error))
        except (TimeoutError, CancelledError):
            return mistake(HTTPStatus.SERVICE_UNAVAILABLE, "the process is busy or ends; its log says more")


def read_again(in_force: Config, check: Check) -> Config:
    """Read the sources of `in_force` and check them whole (blocking). Raises ConfigError."""
    read = load_again(in_force)
    check(read)
    return read


def answer_of(reloaded: Reloaded) -> ControlAnswer:
    """The line that says which keys changed, and which wait."""
    return ControlAnswer(HTTPStatus.OK, [json.dumps(reloaded._asdict()).encode() + b"\n"])


def mistake(status: int, sentence: str) -> ControlAnswer:
    """The line that says why nothing has changed."""
    return ControlAnswer(status, [json.dumps({"error": sentence}).encode() + b"\n"])


def applied(reloaded: Reloaded) -> None:
    """Count and log a configuration that was taken over."""
    RELOADS.labels("applied").inc()
    WAITING.set(len(reloaded.waiting))
    log.info("the configuration was read again", changed=reloaded.changed, waiting=reloaded.waiting)


def refused(error: HoldMQError) -> None:
    """Count and log a configuration that is wrong."""
    RELOADS.labels("refused").inc()
    log.error("the configuration is wrong, and nothing was changed", reason=str(error))


LOG_LEVEL: Final = Adjustment.of("log", "level", lambda config: telemetry.set_level(config.log))
