"""Subscriptions answered with retained messages, a slice at a time, as far as windows and sockets take them.

A session in line costs its places (gateway.session.owed_retained); a slice is sent at once or dropped, and
asked for again. Slices of many sessions travel together. A retained message that was replaced while its slice
was under way, by one that the session got live, is left out: the newest is never followed by an older one.
Logs of two brokers have no common order: what one's may have replaced is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.deliver.redelivery import is_due
from gateway.deliver.retained_delivery import RetainedDelivery
from gateway.session.outbound import Outbound
from gateway.session.owed_retained import OwedRetained, RetainedDue, restored
from gateway.session.session import CLOSED, Session
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.retained_headers import (
    RetainedFound,
    RetainedItem,
    RetainedRow,
    RetainedScanRequest,
    RetainedScanResponse,
    retained_owner,
    with_values,
)
from holdmq.wire.session_state import FilterOptions, RetainedState

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters
    from gateway.session.clients import Clients
    from gateway.session.session import SessionContext

SLICE_ROWS: Final = 128
"""Messages of one answer: two milliseconds of the loop."""
SLICE_BYTES: Final = 128 << 10
REQUESTS_MAX: Final = 2
"""RETAINED_SCANs on their way to a broker: one is answered while the other travels."""
ITEMS_MAX: Final = 256
"""Subscriptions of one request: most have one message, or none."""
ITEMS_PER_SESSION: Final = 64
TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.2

log = telemetry.get_logger()


class _AskedSubscription(NamedTuple):
    """A subscription that a request asks for."""

    session: Session
    due: RetainedDue
    answer: OwedRetained


class _Line:
    """Sessions that are owed something by one broker."""

    __slots__ = ("link", "requests", "sessions")

    def __init__(self, link: BrokerLink) -> None:
        self.link = link
        self.sessions: deque[Session] = deque()
        self.requests = 0


class RetainedAnswers:
    """Answers the subscriptions of one worker. `slices` counts requests; `brokers()` keep messages.

    `slice_over(session)` is called when one is: it decides what the session is served next.
    """

    def __init__(
        self,
        delivery: RetainedDelivery,
        links: Mapping[str, BrokerLink],
        clients: Clients,
        context: SessionContext,
        turn: Turn,
        brokers: Callable[[], list[str]],
        slice_over: Callable[[Session], None],
    ) -> None:
        self.slices = 0
        self._links = links
        self._clients = clients
        self._context = context
        self._counters: Counters = context.counters
        self._turn = turn
        self._slice_over = slice_over
        self._delivery = delivery
        self._brokers = brokers
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, _Line] = {}
        self._pump_due = False

    # What is owed

    def owe(self, session: Session, filters: Collection[str]) -> None:
        """These subscriptions are to be answered once `begin` is called."""
        outbound = session.outgoing()
        due = outbound.retained
        if due is None:
            due = outbound.retained = RetainedDue()
            self._counters.retained_owed += 1
        outbound.retained_number += 1
        for topic_filter in filters:
            due.owe(topic_filter, outbound.retained_number)

    @staticmethod
    def number_of(session: Session, topic_filter: str) -> int:
        """What a filter's row says, so that no crash makes its answer forgotten; 0 = nothing is owed."""
        due = _due_of(session)
        answers = () if due is None else due.answers
        return next((answer.number for answer in answers if answer.topic_filter == topic_filter), 0)

    def begin(self, session: Session, filters: Collection[str]) -> None:
        """The SUBACK of these is on its way: whatever is published from now on comes live."""
        due = _due_of(session)
        if due is not None:
            due.begin(filters, self._brokers())
            self.ready(session)

    def closed(self, session: Session) -> None:
        """The connection ended, and what it was owed is in its state."""
        outbound = session.outbound
        if outbound is not None and outbound.retained is not None:
            outbound.retained = None
            self._counters.retained_owed -= 1

    @staticmethod
    def state_of(session: Session) -> RetainedState | None:
        """What session state says of it."""
        outbound = session.outbound
        if outbound is None or not outbound.retained_number:
            return None
        due = outbound.retained
        return RetainedState(outbound.retained_number, [] if due is None else due.rest())

    def restore(
        self, session: Session, state: RetainedState | None, filters: Sequence[tuple[str, FilterOptions]]
    ) -> None:
        """A session came back: it is owed what it was; `resume` goes on with it."""
        if state is None and not filters:
            return
        outbound = session.outgoing()
        numbers = {name: options.number for name, options in filters}
        outbound.retained_number = max([0 if state is None else state.number, *numbers.values()])
        outbound.retained = restored(state, numbers)
        if outbound.retained is not None:
            self._counters.retained_owed += 1

    def resume(self, session: Session) -> None:
        """The filters of a session that came back are in effect."""
        due = _due_of(session)
        if due is not None and due.is_held:
            due.is_held = False
            due.begin([answer.topic_filter for answer in due.answers], self._brokers())
            self.ready(session)

    def _end_if_over(self, outbound: Outbound) -> None:
        if outbound.retained is not None and not outbound.retained.answers:
            outbound.retained = None
            self._counters.retained_owed -= 1

    # In line

    def ready(self, session: Session) -> bool:
        """A session may take more; whether it will, so that what lags behind waits for that."""
        due = _due_of(session)
        outbound = session.outbound
        if due is None or outbound is None or due.is_held:
            return False
        if due.is_asking:
            return True
        if not due.answers:
            self._end_if_over(outbound)
            return False
        if not _takes(outbound) or self._is_due(session):
            return False
        for broker in due.brokers():
            link = self._links.get(broker)
            if link is not None and link.connection is not None:
                due.is_asking = True
                self._line_of(link).sessions.append(session)
                self._pump_soon()
                return True
        return False

    def _is_due(self, session: Session) -> bool:
        """Whether something is to be sent again first by a broker that is there."""
        links = self._links
        return is_due(session) and any(
            is_due(session, broker) for broker, link in links.items() if link.connection is not None
        )

    def _line_of(self, link: BrokerLink) -> _Line:
        line = self._lines.get(link.name)
        if line is None:
            line = self._lines[link.name] = _Line(link)
        return line

    def brokers_known(self) -> None:
        """Brokers that keep messages came, or are connected (again): go on with whom they owe something."""
        brokers = self._brokers()
        for session in self._clients.sessions():
            if session.outbound is not None and session.outbound.retained is not None:
                session.outbound.retained.brokers_known(brokers)
                self.ready(session)

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        for line in list(self._lines.values()):
            while line.sessions and line.requests < REQUESTS_MAX:
                if line.link.connection is None:
                    sessions, line.sessions = line.sessions, deque()
                    self._go_on(sessions)
                    break
                self._ask(line)

    def _ask(self, line: _Line) -> None:
        asked: list[_AskedSubscription] = []
        items: list[RetainedItem] = []
        idle: list[Session] = []
        while line.sessions and len(items) < ITEMS_MAX:
            session = line.sessions.popleft()
            found = list(self._items_of(session, line.link.name))[:ITEMS_PER_SESSION]
            if not found:
                idle.append(session)
                continue
            found[0][0].due.ask()
            for one, item in found:
                asked.append(one)
                items.append(item)
        if items:
            connection = line.link.connection
            assert connection is not None
            line.requests += 1
            self.slices += 1
            connection.request(
                RequestCode.RETAINED_SCAN,
                RetainedScanRequest(items, SLICE_ROWS, SLICE_BYTES),
                partial(self._received, line, asked),
                TIMEOUT_S,
            )
        self._go_on(idle)

    def _items_of(self, session: Session, broker: str) -> Iterator[tuple[_AskedSubscription, RetainedItem]]:
        due, outbound = _due_of(session), session.outbound
        if due is None or outbound is None or not _takes(outbound):
            return
        free = outbound.window - len(outbound.inflight or ())
        if outbound.lag is not None:
            # What lags takes the other half: neither waits for all of the other.
            free = max(1, free // 2)
        for answer, place in list(due.at(broker)):
            granted = outbound.subscriptions.get(answer.topic_filter)
            if granted is None:
                due.forget(answer.topic_filter)
                continue
            count = SLICE_ROWS if not granted.qos else min(free, SLICE_ROWS)
            item = RetainedItem(answer.topic_filter, place.after, place.before, count)
            yield _AskedSubscription(session, due, answer), item

    def _go_on(self, sessions: Collection[Session]) -> None:
        """A slice of these is over, or never was."""
        for session in sessions:
            outbound = session.outbound
            if outbound is None or outbound.retained is None:
                continue
            outbound.retained.is_asking = False
            outbound.retained.met = None
            if session.state != CLOSED:
                self._end_if_over(outbound)
                self._slice_over(session)

    # Slices

    def _received(self, line: _Line, asked: list[_AskedSubscription], result: Reply | HoldMQError) -> None:
        line.requests -= 1
        sessions = dict.fromkeys(one.session for one in asked)
        if isinstance(result, Reply):
            try:
                self._deliver(line.link, asked, result)
            except HoldMQError as error:
                result = error
        if isinstance(result, HoldMQError):
            connection = line.link.connection
            if connection is not None:
                log.warning("retained messages cannot be read yet", broker=line.link.name, reason=str(result))
                self._loop.call_later(RETRY_S, self._again, list(sessions))
            else:
                self._go_on(sessions)
        else:
            self._go_on(sessions)
            self._turn.settle()
        self._pump_soon()

    def _again(self, sessions: list[Session]) -> None:
        self._go_on(sessions)
        self._turn.settle()

    def _deliver(self, link: BrokerLink, asked: list[_AskedSubscription], reply: Reply) -> None:
        """Send an answer, each subscription's part as far as its session takes it."""
        answer = reply.header(RetainedScanResponse)
        found = rows(RetainedFound, answer.found)
        taken = with_values(rows(RetainedRow, answer.rows), reply.body)
        for (session, due, one), told in zip(asked, found, strict=False):
            part = list(islice(taken, told.rows))
            if _due_of(session) is due and one in due.answers and not due.is_outdated:
                self._deliver_part(link, session, due, one, told, part)

    def _deliver_part(
        self,
        link: BrokerLink,
        session: Session,
        due: RetainedDue,
        answer: OwedRetained,
        told: RetainedFound,
        part: Sequence[tuple[RetainedRow, memoryview]],
    ) -> None:
        outbound = session.outbound
        assert outbound is not None
        granted = outbound.subscriptions.get(answer.topic_filter)
        if granted is None:
            return
        brokers = self._brokers()
        sent = 0
        is_in_doubt = False
        for row, value in part:
            is_ours = len(brokers) < 2 or retained_owner(row.topic, brokers) == link.name
            is_wanted = is_ours and not due.is_replaced(link.name, row)
            if is_wanted and due.is_in_doubt(link.name, row):
                is_in_doubt = True
                break
            if is_wanted and not self._delivery.send(link, session, granted, row, value):
                break
            sent += 1
        if part and not sent:
            if is_in_doubt:
                # Its end is fixed: a topic that is always published cannot be in doubt for ever.
                answer.hold_at(link.name, told.before)
                self._stale(session)
            return
        after = told.next_after if sent == len(part) else part[sent - 1][0].topic
        answer.advance(link.name, told.before, after)
        due.drop_finished()
        self._stale(session)

    def _stale(self, session: Session) -> None:
        """The row lags behind where the answer stands."""
        cursor = session.cursor
        if cursor is not None and not cursor.is_stale:
            cursor.is_stale = True
            self._context.stale.append(session)


def _due_of(session: Session) -> RetainedDue | None:
    outbound = session.outbound
    return None if outbound is None or session.state == CLOSED else outbound.retained


def _takes(outbound: Outbound) -> bool:
    return outbound.is_half_open and not outbound.is_socket_full
