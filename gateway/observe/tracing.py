"""What one client sends and is sent, told to the parent while somebody asks for it.

A session is looked at only then; without a trace a read or a write costs a test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from gateway.ground.counters import Counters
from gateway.ground.limits import TOPIC_ALIASES_OUT_MAX
from gateway.ground.parent_port import ParentPort
from gateway.observe.core.tracing import View, views
from gateway.session.clients import Clients
from gateway.session.events import Closed
from gateway.session.session import Session, SessionContext
from holdmq.mqtt import (
    MAX_PACKET_SIZE,
    MQTT_3_1_1,
    SERVER,
    CheckedTopics,
    Connect,
    Decoder,
    MqttError,
    matches,
)

LINES_PER_S: Final = 500
"""Packets shown per second of one trace and worker: more than a person reads, less than a worker notices."""
LINE_BYTES_MAX: Final = 16 << 10
"""What one packet may take, as the parent is told it; of a longer one only the kind is."""
MESSAGE_BYTES: Final = 32 << 10
"""Lines told at a time: half of what the parent reads at once."""
_OF_LONG_ONES: Final = ("at_ms", "worker", "direction", "packet", "packet_id")

_topics: CheckedTopics[bytes] = CheckedTopics(bytes)


class Trace:
    """One trace in one worker: lines that are not told yet, and how many were left out."""

    __slots__ = ("client_id", "left_out", "lines", "number", "room", "topic_filter", "until")

    def __init__(self, number: int, client_id: str, topic_filter: str | None, until: float) -> None:
        self.number = number
        self.client_id = client_id
        self.topic_filter = topic_filter
        self.until = until
        self.lines: list[tuple[int, View]] = []
        """Each with its bytes, as the parent is told it."""
        self.left_out = 0
        self.room = LINES_PER_S

    def wants(self, view: View) -> bool:
        """Whether a packet is asked for: all are, or PUBLISH of some topics."""
        if self.topic_filter is None:
            return True
        topic = view.get("topic")
        return bool(topic) and matches(self.topic_filter, str(topic))


class Tracing:
    """The traces of one worker; `is_on` while there are any."""

    def __init__(
        self,
        worker: int,
        context: SessionContext,
        clients: Clients,
        counters: Counters,
        now: Callable[[], float],
        parent: ParentPort,
    ) -> None:
        self._worker = worker
        self._context = context
        self._clients = clients
        self._counters = counters
        self._now = now
        self._parent = parent
        self.is_on = False
        self._traces: dict[int, Trace] = {}
        self._second_ends = 0.0

    def start(self, number: int, client_id: str, topic_filter: str | None, seconds: float) -> None:
        """Trace a client for so long."""
        trace = Trace(number, client_id, topic_filter, self._now() + seconds)
        self._traces[number] = trace
        self._look()
        session = self._clients.session(client_id)
        if session is not None:
            self._add(trace, {"event": "is connected here", "mqtt": session.version})

    def stop(self, number: int) -> None:
        """End a trace; one that is not known changes nothing."""
        self._traces.pop(number, None)
        self._look()

    def __len__(self) -> int:
        return len(self._traces)

    # What happens

    def received(self, session: Session, items: list[object]) -> None:
        """A client sent these packets, which are not handled yet."""
        first = items[0] if items else None
        client_id = first.client_id if isinstance(first, Connect) else session.client_id
        for trace in self._of(client_id):
            for item in items:
                self._show(trace, "in", item)

    def sent(self, session: Session, data: bytes) -> None:
        """These bytes, whole packets, are written to a client."""
        traces = self._of(session.client_id)
        if not traces:
            return
        decoder: Decoder[bytes] = Decoder(
            _topics, MAX_PACKET_SIZE, sender=SERVER, version=session.version or MQTT_3_1_1
        )
        aliases = None if session.outbound is None else session.outbound.aliases
        if aliases is not None:
            decoder.allow_topic_aliases(TOPIC_ALIASES_OUT_MAX, aliases.by_number())
        try:
            items: list[object] = list(decoder.feed(data))
        except MqttError as error:
            items = [*error.decoded, error]
        for trace in traces:
            for item in items:
                self._show(trace, "out", item)

    def closed(self, session: Session, event: Closed) -> None:
        """A session is over."""
        for trace in self._of(session.client_id):
            self._add(trace, {"event": "closed", "reason": event.reason, "why": event.sentence})

    def tick(self, now: float) -> None:
        """Tell what there is, forget traces whose time is over."""
        is_new_second = now >= self._second_ends
        if is_new_second:
            self._second_ends = now + 1.0
        for trace in list(self._traces.values()):
            self._tell(trace)
            if is_new_second:
                trace.room = LINES_PER_S
            if trace.until <= now:
                del self._traces[trace.number]
                self._look()

    def _look(self) -> None:
        """Have packets shown as long as there are traces."""
        self.is_on = bool(self._traces)
        self._counters.traces = len(self._traces)
        self._context.traced = self.received if self.is_on else None

    def _of(self, client_id: str) -> list[Trace]:
        return [trace for trace in self._traces.values() if trace.client_id == client_id]

    def _show(self, trace: Trace, direction: str, item: object) -> None:
        if isinstance(item, MqttError):
            self._add(trace, {"direction": direction, "event": f"cannot be shown: {item}"})
            return
        for view in views(item):
            if trace.wants(view):
                self._add(trace, {"direction": direction, **view})

    def _add(self, trace: Trace, view: View) -> None:
        if trace.room <= 0:
            trace.left_out += 1
            return
        trace.room -= 1
        line = {"at_ms": time.time_ns() // 1_000_000, "worker": self._worker, **view}
        size = len(json.dumps(line))
        if size > LINE_BYTES_MAX:
            line = {name: line[name] for name in _OF_LONG_ONES if name in line} | {"too_long_bytes": size}
            size = len(json.dumps(line))
        trace.lines.append((size, line))

    def _tell(self, trace: Trace) -> None:
        """Tell the parent the lines that fit into some messages; what it has no room for is left out."""
        lines, trace.lines = trace.lines, []
        some: list[View] = []
        room = MESSAGE_BYTES
        for size, line in lines:
            if size > room:
                self._tell_lines(trace, some)
                some = []
                room = MESSAGE_BYTES
            some.append(line)
            room -= size
        if some:
            self._tell_lines(trace, some)
        if trace.left_out and self._parent.tell(
            {"trace": trace.number, "lines": [], "left_out": trace.left_out}
        ):
            trace.left_out = 0

    def _tell_lines(self, trace: Trace, lines: list[View]) -> None:
        if not self._parent.tell({"trace": trace.number, "lines": lines}):
            trace.left_out += len(lines)
