"""The registry as a watcher of processes: asks the other registries, raises alarms, and tells people.

What decides is registry.core.watch. What was told is kept in a file, so that a registry that is started
again tells what is over, and twice only what was on its way when it died.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from holdmq.alarms.channels import Channel, channels
from holdmq.alarms.core.alarms import AlarmKey, Alarms, Reading
from holdmq.alarms.listing import alarm_list
from holdmq.alarms.notices import log_notice
from holdmq.config.alarms import AlarmsSection
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.files.atomic_file import AtomicFile
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.security import Security
from holdmq.rpc.server import OnRequest
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.process_headers import (
    ProcessHereRequest,
    ProcessLeaveRequest,
    ProcessRow,
    RegistryViewResponse,
    ToldRow,
)
from registry.core.roster import KINDS, NAME_MAX_CHARS, ProcessKey, Roster
from registry.core.watch import ClusterWatch, RegistryView, Told

ASK_S: Final = 3.0
"""How long another registry may take: it answers from memory."""

HELP: Final = {
    "processes": "Processes that this registry watches and sees.",
    "processes_lost": "Processes that are gone without a goodbye.",
    "processes_refused_total": "Times that a process was not watched, as there were too many.",
    "watch_on_duty": "Whether this registry tells of lost processes: one of them does.",
    "watch_write_failures_total": "Times that what was told could not be written.",
    "alarms": "Alarms now.",
    "alarms_raised_total": "Alarms raised.",
    "alarm_notices_waiting": "Notices of alarms that are to be sent.",
    "alarm_notices_sent_total": "Notices sent by mail or webhook.",
    "alarm_notices_dropped_total": "Notices given up.",
    "alarm_delivery_failures_total": "Attempts to send a notice that failed.",
}
"""The meaning of each of ProcessWatch's numbers."""

log = telemetry.get_logger()


class ProcessWatch:
    """Watches the processes in `roster`, from `start` on until `close`.

    `registries`: all of the cluster, this one too. `file`: what was told, None = in memory alone.
    """

    def __init__(
        self,
        section: AlarmsSection,
        registries: Sequence[str],
        own_address: str,
        security: Security | None,
        file: AtomicFile | None,
    ) -> None:
        self.roster = Roster()
        self.alarms = Alarms(section.cooldown_s, is_repeated=False)
        self.channels: list[Channel] = []
        self._write_failures = 0
        self._raised_before = 0
        self._section = section
        self._name = f"registry {own_address}"
        self._registry_id = secrets.token_bytes(16)
        self._started_ms = time.time_ns() // 1_000_000
        self.watch = ClusterWatch(
            self.roster,
            self._registry_id,
            self._started_ms,
            time.monotonic(),
            section.lost_after_s,
            section.lost_forget_s,
        )
        self._peers = {
            address: Client(
                address,
                "registry",
                self._name,
                security=security,
                on_request=partial(self._peer_said, address),
            )
            for address in registries
            if len(registries) > 1
        }
        self._file = file
        self._kept: tuple[Told, ...] = ()
        self._version = 0
        self._task: asyncio.Task[None] | None = None
        self._reconfigured = asyncio.Event()

    def load(self, accept_backup: bool = False) -> None:
        """Read what was told before (blocking); StorageError if the file is damaged."""
        loaded = None if self._file is None else self._file.load(accept_backup)
        if loaded is not None:
            self._version = loaded.data_version
            self._kept = tuple(_read(loaded.content.get("told")))
            self.watch.told = {(one.kind, one.name): one for one in self._kept}

    def start(self) -> None:
        """Look at intervals from now on, and tell by the channels that are configured."""
        self.channels = channels(self._section, self._name)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="process watch")

    def reconfigure(self, section: AlarmsSection) -> None:
        """Take other times; the channels stay as they are."""
        self._section = section
        self.alarms.cooldown_s = section.cooldown_s
        self.watch.lost_after_s = section.lost_after_s
        self.watch.forget_s = section.lost_forget_s
        self._reconfigured.set()

    async def close(self, connections: Sequence[Connection]) -> None:
        """Say goodbye over these connections, and end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for connection in connections:
            connection.send_one_way(RequestCode.REGISTRY_LEAVES, Empty())
        for client in self._peers.values():
            await client.close()
        for channel in self.channels:
            await asyncio.to_thread(channel.close)
        if self._task is not None and self.watch.is_on_duty:
            self._count_as_told()
            await self._keep_or_log()

    def numbers(self) -> dict[str, int | float]:
        """Gauges and counters by metric name (without `holdmq_registry_`); read on any thread."""
        rows_of = [channel.row() for channel in self.channels]
        return {
            "processes": len(self.roster.present),
            "processes_lost": len(self.roster.lost),
            "processes_refused_total": self.roster.refused,
            "watch_on_duty": int(self.watch.is_on_duty),
            "watch_write_failures_total": self._write_failures,
            "alarms": len(self.alarms.raised),
            "alarms_raised_total": self._raised_before + self.alarms.raised_total,
            "alarm_notices_waiting": sum(row.waiting for row in rows_of),
            "alarm_notices_sent_total": sum(row.sent for row in rows_of),
            "alarm_notices_dropped_total": sum(row.dropped for row in rows_of),
            "alarm_delivery_failures_total": sum(row.failed for row in rows_of),
        }

    # Requests

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        """Return the handlers of the requests about processes."""
        return {
            RequestCode.PROCESS_HERE: self.here,
            RequestCode.PROCESS_LEAVE: self.leave,
            RequestCode.REGISTRY_VIEW: self.view,
            RequestCode.ALARM_LIST: self.list_alarms,
        }

    def here(self, request: Request) -> None:
        """Take PROCESS_HERE: a process is to be watched."""
        header = request.header(ProcessHereRequest)
        key = _key(header.kind, header.name)
        self.roster.here(key, request.connection, time.monotonic())
        request.reply(Empty())

    def leave(self, request: Request) -> None:
        """Take PROCESS_LEAVE: a process ends in order."""
        header = request.header(ProcessLeaveRequest)
        self.roster.leave(_key(header.kind, header.name), request.connection)
        request.reply(Empty())

    def view(self, request: Request) -> None:
        """Answer REGISTRY_VIEW with whom this registry sees."""
        request.reply(
            RegistryViewResponse(
                self._registry_id,
                self._started_ms,
                self.watch.is_on_duty,
                [ProcessRow(*key) for key in sorted(self.roster.present)],
                [ToldRow(*one) for one in self.watch.told.values()],
            )
        )

    def list_alarms(self, request: Request) -> None:
        """Answer ALARM_LIST with what this registry has raised."""
        request.reply(alarm_list(self.alarms, self.channels))

    def _peer_said(self, address: str, request: Request) -> None:
        if request.command.code != RequestCode.REGISTRY_LEAVES:
            raise RemoteError(
                Code.UNKNOWN_REQUEST, "registries tell each other of their end, and nothing else"
            )
        self.watch.peer_left(address)

    # Rounds

    async def _run(self) -> None:
        for client in self._peers.values():
            client.start()
        while True:
            self._reconfigured.clear()
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.interval_s):
                    await self._reconfigured.wait()

    async def _look(self) -> None:
        views = await asyncio.gather(*(self._ask(client) for client in self._peers.values()))
        now = time.monotonic()
        was_on_duty = self.watch.is_on_duty
        for one in self.watch.peers_heard(dict(zip(self._peers, views, strict=True)), now):
            if (one.kind, one.name) not in self.alarms.raised:
                self.alarms.resume(Reading(AlarmKey(one.kind, one.name), 1, 1, one.text), one.since_ms)
        if self.watch.is_on_duty:
            if not was_on_duty:
                log.info("this registry tells of lost processes", told=len(self.watch.told))
            self._tell(now)
        elif was_on_duty:
            log.info("another registry tells of lost processes")
            self._raised_before += self.alarms.raised_total
            self.alarms = Alarms(self._section.cooldown_s, is_repeated=False)
        await self._keep_or_log()

    def _tell(self, now: float) -> None:
        readings = list(self.watch.readings(self.alarms.raised, now))
        notices = self.alarms.update(readings, now, time.time_ns() // 1_000_000)
        if notices:
            for notice in notices:
                log_notice(notice)
            for channel in self.channels:
                channel.put(notices)
        self._count_as_told()

    def _count_as_told(self) -> None:
        """Take what a way to people has had; after a crash here the rest is told again."""
        ways = [channel.undelivered() for channel in self.channels]
        pending = set.intersection(*ways) if ways else set()
        before = self.watch.told
        told = {
            (alarm.key.kind, alarm.key.name): Told(*alarm.key, alarm.since_ms, alarm.reading.text)
            for alarm in self.alarms.raised.values()
            if alarm.is_told and alarm.key not in pending
        }
        # That one is over is told again as well, if its first notice was.
        self.watch.told = told | {key: before[key] for key in pending if key in before}

    async def _keep_or_log(self) -> None:
        try:
            await self._keep()
        except HoldMQError as error:
            self._write_failures += 1
            log.error("what was told of lost processes is not kept", reason=str(error))

    async def _keep(self) -> None:
        """Write what was told, if that is other than what the file says."""
        told = tuple(sorted(self.watch.told.values()))
        if self._file is None or told == self._kept:
            return
        self._version += 1
        content: dict[str, Any] = {"told": [list(one) for one in told]}
        await asyncio.to_thread(self._file.save, content, self._version)
        self._kept = told

    async def _ask(self, client: Client) -> RegistryView | None:
        try:
            reply = await client.call(RequestCode.REGISTRY_VIEW, Empty(), ASK_S)
            answer = reply.header(RegistryViewResponse)
            return RegistryView(
                answer.started_ms,
                answer.registry_id,
                answer.on_duty,
                frozenset(ProcessKey(*row) for row in rows(ProcessRow, answer.present)),
                [Told(*row) for row in rows(ToldRow, answer.told)],
            )
        except RemoteError as error:
            # It lives, whatever it does not permit or, of an older version, does not know.
            log.warning("a registry does not say whom it sees", registry=client.address, reason=str(error))
            return RegistryView(1 << 62, client.address.encode(), False, frozenset(), ())
        except HoldMQError:
            return None


def _key(kind: str, name: str) -> ProcessKey:
    if kind not in KINDS or not 0 < len(name) <= NAME_MAX_CHARS:
        raise WireError(
            f"process {kind[:20]!r} {name[:20]!r}: a kind is one of {', '.join(KINDS)}, a name has 1 to "
            f"{NAME_MAX_CHARS} characters",
            Code.MISSING_FIELD,
        )
    return ProcessKey(kind, name)


def _read(found: object) -> list[Told]:
    rows_found = found if isinstance(found, list) else []
    return [Told(str(kind), str(name), int(since_ms), str(text)) for kind, name, since_ms, text in rows_found]
