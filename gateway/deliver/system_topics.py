"""`$SYS/…` for clients: the numbers of the gateway, sent by the worker of the client, never stored.

A worker knows its own numbers only; the parent has those of all. It is asked when somebody subscribes, and
each `gateway.sys_interval_s` as long as somebody is subscribed, and answers over the socket of the reports.
Then what has changed is sent with QoS 0, some at each tick.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from gateway.deliver.delivery import Outgoing
from gateway.ground.system_topics import Totals, is_system_filter, system_messages
from gateway.session.outbound import Granted
from gateway.session.session import CLOSED, Session
from holdmq import __version__
from holdmq.mqtt import matches
from holdmq.record.codec import SYS_RETAIN, decode_record, encode_record

if TYPE_CHECKING:
    from gateway.brokers.turn import Turn
    from gateway.deliver.delivery import LiveDelivery
    from gateway.deliver.wanted import WantedFilters
    from gateway.ground.counters import Counters
    from gateway.ground.parent_port import ParentPort

SENT_PER_TICK: Final = 1_000
"""Messages sent in one go: a few milliseconds of the loop."""
WAITING_MAX: Final = 10_000
"""Subscriptions that wait for their first values; past it they get them with the next ones."""


class SystemTopics:
    """Answers the `$SYS` subscriptions of one worker."""

    def __init__(
        self,
        interval_s: float,
        wanted: WantedFilters,
        delivery: LiveDelivery,
        counters: Counters,
        now: Callable[[], float],
        parent: ParentPort,
        turn: Turn,
    ) -> None:
        self._wanted = wanted
        self._delivery = delivery
        self._counters = counters
        self._now = now
        self._parent = parent
        self._turn = turn
        self._interval_s = interval_s
        self._began_at = now()
        self._due_at = 0.0
        self._is_due = False
        self._fresh: list[tuple[Session, str]] = []
        self._said: dict[str, str] = {}
        self._rounds: deque[Iterator[None]] = deque()

    def reconfigure(self, interval_s: float) -> None:
        """Send at another interval, the next time at once."""
        self._interval_s = interval_s
        self._due_at = 0.0

    def subscribed(self, session: Session, filters: Mapping[str, bool]) -> None:
        """SUBACK was sent for these filters (True: it is new); those that are ours get their first values."""
        known = session.outbound.subscriptions if session.outbound is not None else {}
        for name, is_new in filters.items():
            if not is_system_filter(name) or name not in known or len(self._fresh) >= WAITING_MAX:
                continue
            handling = known[name].retain_handling
            if handling == 0 or (handling == 1 and is_new):  # [MQTT-3.3.1-9] to -11
                if not self._fresh:
                    self._ask()
                self._fresh.append((session, name))

    def tick(self, now: float) -> None:
        """Send what is due, and more of what was begun."""
        if self._rounds:
            self._send_some()
        elif now >= self._due_at:
            self._due_at = now + self._interval_s
            if self._wanted.system_filters:
                self._is_due = True
                self._ask()
            else:
                self._said.clear()

    def _ask(self) -> None:
        """Have the parent say the totals; a worker without one has none but its own."""
        if not self._parent.has_parent:
            uptime_s = int(self._now() - self._began_at)
            numbers = self._counters.snapshot()
            totals = {"numbers": numbers, "workers": 1, "uptime_s": uptime_s}
            asyncio.get_running_loop().call_soon(self.told, totals)
            return
        # One that has no room for the question gets the next one.
        self._parent.tell({"totals": True})

    def told(self, totals: Mapping[str, Any]) -> None:
        """The totals have come."""
        said = system_messages(Totals(totals["numbers"], totals["workers"], totals["uptime_s"]), __version__)
        fresh, self._fresh = self._fresh, []
        changed: list[str] = []
        if self._is_due and not self._rounds:
            self._is_due = False
            changed = [topic for topic, value in said.items() if self._said.get(topic) != value]
        if changed or not self._said:
            self._said = said
        if fresh or changed:
            self._rounds.append(self._each(said, fresh, changed))
            self._send_some()

    def _send_some(self) -> None:
        left = SENT_PER_TICK
        while self._rounds and left:
            left -= sum(1 for _ in islice(self._rounds[0], left))
            if left:
                self._rounds.popleft()
        self._turn.settle()

    def _each(
        self, said: Mapping[str, str], fresh: list[tuple[Session, str]], changed: Collection[str]
    ) -> Iterator[None]:
        """Send first values, then what has changed; a step is a message, or a filter that is done."""
        match = self._wanted.trie.match

        @cache
        def outgoing(topic: str) -> Outgoing:
            return _outgoing(topic, said[topic])

        for session, name in fresh:
            outbound = session.outbound
            for topic in said:
                granted = outbound.subscriptions.get(name) if outbound is not None else None
                if granted is not None and matches(name, topic):
                    self._send(outgoing(topic), session, [granted], is_first=True)
                    yield
            yield  # a filter that matches nothing takes its time, too
        for topic in changed:
            merged: dict[Session, list[Granted]] = {}
            for session, granted in match(topic.encode()):
                merged.setdefault(session, []).append(granted)
            for session, several in merged.items():
                self._send(outgoing(topic), session, several, is_first=False)
                yield

    def _send(self, outgoing: Outgoing, session: Session, several: list[Granted], *, is_first: bool) -> None:
        if session.state != CLOSED and session.outbound is not None:
            self._delivery.own(outgoing, session, several, is_first)


def _outgoing(topic: str, value: str) -> Outgoing:
    """A value as a message: what it says is the topic's, and so it is retained."""
    record = decode_record(encode_record(b"$", 0, value.encode(), b"", 0, sys_flag=SYS_RETAIN))
    return Outgoing(record, topic.encode(), 0)
