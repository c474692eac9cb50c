"""What a worker says of itself: its numbers to the parent, its state to the brokers."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, Final

from gateway.protect.core.flapping import ban_of

if TYPE_CHECKING:
    from gateway.worker.worker import Worker

HEARTBEAT_S: Final = 5.0
MESSAGE_MAX_BYTES: Final = 64 << 10
"""A message between a worker and its parent, either way: who takes it reads so much at once, and no more."""


class Reporting:
    """Sends reports through `report`, the parent's socket (None = to nobody), and heartbeats.

    The parent sends commands the other way: bans, logins, who is to be traced (gateway.parent.control).
    """

    def __init__(self, worker: Worker, report: socket.socket | None) -> None:
        self._worker = worker
        self._report = report
        self._next_heartbeat = 0.0
        self._lag_max_s = 0.0

    def tick(self, now: float, late_s: float) -> None:
        """A tick of the worker's clock, `late_s` after its time."""
        self._lag_max_s = max(self._lag_max_s, late_s)
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            self.send_heartbeats()

    def send_heartbeats(self) -> None:
        """Tell the brokers what this worker does."""
        counters = self._worker.counters
        state: dict[str, object] = {
            "connections": counters.connections,
            "messages_in": counters.messages_in_qos0_total
            + counters.messages_in_qos1_total
            + counters.messages_in_qos2_total,
            "messages_out": counters.messages_out_qos0_total
            + counters.messages_out_qos1_total
            + counters.messages_out_qos2_total,
            "worker": self._worker.index,
        }
        for link in self._worker.links.values():
            link.heartbeat(state)

    def send_report(self) -> None:
        """Give the parent the numbers; one that does not read in time gets the next ones."""
        if self._report is None:
            return
        worker = self._worker
        counters = worker.counters
        producers = [link.producer for link in worker.links.values()]
        counters.brokers_up = sum(p.is_connected for p in producers)
        counters.produce_batches_total = sum(p.batches for p in producers)
        counters.produce_records_total = sum(p.records for p in producers)
        counters.messages_delayed_total = sum(p.delayed_records for p in producers)
        counters.produce_refused_records_total = sum(p.refused_records for p in producers)
        counters.produce_resent_batches_total = sum(p.resent_batches for p in producers)
        counters.produce_epochs_total = sum(p.epochs for p in producers)
        counters.produce_pending_bytes = sum(p.pending_bytes for p in producers)
        counters.catchup_readers = worker.catchup.readers
        counters.retained_slices_total = worker.retained.slices
        counters.retained_pending_bytes = worker.retained_puts.pending_bytes
        counters.catchup_turns_total = worker.catchup.turns
        counters.catchup_shared_total = worker.catchup.shared
        counters.loop_lag_ms_max = int(self._lag_max_s * 1000)
        self._lag_max_s = 0.0
        report = {
            "ready": worker.is_ready,
            "numbers": counters.snapshot(),
            "refused": counters.refused,
            "listeners": {listener.name: listener.numbers() for listener in worker.listeners},
        }
        self.tell(report)

    @property
    def has_parent(self) -> bool:
        """Whether there is somebody to tell."""
        return self._report is not None

    def listen(self) -> None:
        """Do what the parent says from now on."""
        if self._report is not None:
            asyncio.get_running_loop().add_reader(self._report.fileno(), self._told)

    def close(self) -> None:
        """Do not listen any more."""
        if self._report is not None:
            asyncio.get_running_loop().remove_reader(self._report.fileno())

    def _told(self) -> None:
        assert self._report is not None
        try:
            data = self._report.recv(MESSAGE_MAX_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()  # the parent is gone: a signal says so, too
            return
        self._obey(json.loads(data))

    def _obey(self, command: dict[str, Any]) -> None:
        worker = self._worker
        if "numbers" in command:
            worker.system.told(command)
        elif "ban" in command:
            worker.gate.bans.add(ban_of(command["ban"], worker.now()))
        elif "unban" in command:
            worker.gate.lift(command["unban"])
            worker.logins.forget(command["unban"])
        elif "login_failed" in command or "logins_known" in command:
            worker.logins.told(command)
        elif "trace" in command:
            worker.tracing.start(command["trace"], command["client"], command["topic"], command["seconds"])
        elif "untrace" in command:
            worker.tracing.stop(command["untrace"])

    def tell(self, message: dict[str, object]) -> bool:
        """Send the parent a message; False when it has no room for it now, or never will."""
        data = json.dumps(message).encode()
        if self._report is None or len(data) > MESSAGE_MAX_BYTES:
            return False
        try:
            self._report.send(data)
        except (BlockingIOError, ConnectionError):
            return False
        return True
