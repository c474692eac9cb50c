"""The socket between a worker and its parent, and what the parent has the worker do."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.ground.parent_port import ParentPort
from gateway.protect.core.flapping import ban_of

if TYPE_CHECKING:
    from gateway.access.logins import Logins
    from gateway.deliver.system_topics import SystemTopics
    from gateway.observe.tracing import Tracing
    from gateway.protect.gate import AdmissionGate
    from gateway.worker.reloads import GatewayReloads
    from holdmq.config.changes import LiveSettings

MESSAGE_MAX_BYTES: Final = 64 << 10
"""A message between a worker and its parent, either way: who takes it reads so much at once, and no more."""


class ParentSocket(ParentPort):
    """Carries messages to and from the parent; `own` is this worker's end, None = there is no parent."""

    def __init__(self, own: socket.socket | None) -> None:
        self._own = own

    @property
    def has_parent(self) -> bool:
        """Whether there is somebody to tell."""
        return self._own is not None

    def tell(self, message: dict[str, object]) -> bool:
        """Send the parent a message; False when it has no room for it now, or never will."""
        data = json.dumps(message).encode()
        if self._own is None or len(data) > MESSAGE_MAX_BYTES:
            return False
        try:
            self._own.send(data)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def listen(self, obey: Callable[[dict[str, Any]], None]) -> None:
        """Call `obey` with each message of the parent from now on."""
        if self._own is not None:
            asyncio.get_running_loop().add_reader(self._own.fileno(), self._told, self._own, obey)

    def close(self) -> None:
        """Do not listen any more."""
        if self._own is not None:
            asyncio.get_running_loop().remove_reader(self._own.fileno())

    def _told(self, own: socket.socket, obey: Callable[[dict[str, Any]], None]) -> None:
        try:
            data = own.recv(MESSAGE_MAX_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()  # the parent is gone: a signal says so, too
            return
        obey(json.loads(data))


class ParentCommands:
    """Does what the parent says: bans, logins, settings, whom to trace, all workers' numbers for `$SYS`."""

    def __init__(
        self,
        gate: AdmissionGate,
        logins: Logins,
        tracing: Tracing,
        system: SystemTopics,
        settings: LiveSettings,
        reloads: GatewayReloads,
        now: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._logins = logins
        self._tracing = tracing
        self._system = system
        self._settings = settings
        self._reloads = reloads
        self._now = now

    def obey(self, command: dict[str, Any]) -> None:
        """Do what one message says (gateway.parent.control)."""
        if "numbers" in command:
            self._system.told(command)
        elif "ban" in command:
            self._gate.bans.add(ban_of(command["ban"], self._now()))
        elif "unban" in command:
            self._gate.lift(command["unban"])
            self._logins.forget(command["unban"])
        elif "login_failed" in command or "logins_known" in command:
            self._logins.told(command)
        elif "reloaded" in command:
            self._reloads.told(command)
        elif "settings" in command:
            self._settings.apply(command["settings"])
        elif "trace" in command:
            self._tracing.start(command["trace"], command["client"], command["topic"], command["seconds"])
        elif "untrace" in command:
            self._tracing.stop(command["untrace"])
