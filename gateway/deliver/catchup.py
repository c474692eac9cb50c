"""Catching up: sessions that left the live feed, or come back, read the log from their own positions.

A bounded number of readers serves them in turns: a turn opens a reader at the lowest position of some
neighbouring sessions, with the filters of all of them, delivers to each from its own position until its
window or socket is full, and closes the reader when all have left it or the live feed is reached. The last
one in a turn may rest in it: it goes on where it was, from what was read already, once its client has
acknowledged enough. It gives the reader up after a second, or at once if others wait for one: a subscriber
that does not read holds no reader and no message.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.deliver.delivery import LiveDelivery, Outgoing, Records
from gateway.deliver.landing import AwaitingLiveFeed
from gateway.deliver.redelivery import Redelivery, is_due
from gateway.deliver.retained_again import RetainedAgain
from gateway.session.lag import Lag
from gateway.session.session import CLOSED, Session
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    FilterTerm,
    ReadCloseRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
)

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.deliver.retained_delivery import RetainedDelivery
    from gateway.deliver.wanted import WantedFilters
    from gateway.ground.counters import Counters

CATCHUP_READERS_MAX: Final = 64
"""Catch-up readers per worker (mqtt.md, Sessions): with two answers each, 8 MiB at most."""
CATCHUP_CREDIT_BYTES: Final = 64 << 10
ANSWERS_PER_TURN: Final = 2
"""One is delivered while the next one is read."""
REST_S: Final = 1.0
"""How long a full session keeps its reader: a round trip over a bad link."""
NEIGHBOUR_BYTES: Final = 16 << 20
"""Sessions so near to each other share a reader: what one of them reads in vain is read once."""
FAR_BYTES: Final = 16 << 20
"""A session so far back makes its broker read much of the log."""
FAR_READERS_MAX: Final = 4
"""Readers for those: while they are busy others of them gather, and then share."""
GATHER_S: Final = 0.25
GATHER_MAX_S: Final = 4.0
"""Sessions far back are waited for while they come, so that a storm reads the log once: until none came for
GATHER_S, but no longer than this."""
SESSIONS_PER_READER: Final = 5_000
"""Each answer is told to all of them, which takes a millisecond or two; fewer read the log more often."""
LIVE_PER_ANSWER: Final = 500
"""Sessions that one answer sends back to the live feed: some milliseconds; the rest goes with the next."""
TERMS_PER_READER: Final = 40_000
"""Filter terms that one reader is opened with: 1 MB of a request."""
MANY_SESSIONS: Final = 100
MANY_CREDIT_BYTES: Final = 512 << 10
"""Asked for at a time for so many sessions: looking after all of them costs more than a message."""
DELIVERED_PER_STEP: Final = 200
"""Messages given to many sessions before the loop's other work has its turn: some milliseconds."""
LOOKED_AT_MAX: Final = 10_000
"""Waiting sessions that are looked at for neighbours: a millisecond or two."""
CALL_TIMEOUT_S: Final = 10.0

log = telemetry.get_logger()


class _Turn:
    """Sessions being served from one broker.

    `sessions` have, each, how many of its filters the reader knows (`Lag.filters_added`); `terms_version` is
    that of what those mean. `answers` have come and are not delivered to the end: up to which position each
    leads, and its records. `rests_until` is set while the only session is full, `goes_on` while the loop's
    other work has its turn.
    """

    __slots__ = (
        "answers",
        "connection",
        "goes_on",
        "is_far",
        "is_reading",
        "link",
        "reader_id",
        "rests_until",
        "sessions",
        "terms_version",
    )

    def __init__(
        self, link: BrokerLink, connection: Connection, reader_id: int, is_far: bool, terms_version: int
    ) -> None:
        self.link = link
        self.connection = connection
        self.reader_id = reader_id
        self.is_far = is_far
        self.terms_version = terms_version
        self.sessions: dict[Session, int] = {}
        self.answers: deque[tuple[int, Records]] = deque()
        self.is_reading = False
        self.rests_until = 0.0
        self.goes_on = False


class CatchUp:
    """Gives lagging sessions their turns. `shared` counts sessions that were served beside another.

    `turn_over(session)` is called when one is over: it decides what the session is served next.
    """

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        wanted: WantedFilters,
        delivery: LiveDelivery,
        retained_delivery: RetainedDelivery,
        counters: Counters,
        turn: Turn,
        now: Callable[[], float],
        turn_over: Callable[[Session], None],
    ) -> None:
        self.turns = 0
        self.shared = 0
        self._links = links
        self._wanted = wanted
        self._turn_over = turn_over
        self._counters = counters
        self._turn = turn
        self._now = now
        self._delivery = delivery
        again = RetainedAgain(retained_delivery, counters, turn.settle)
        self._redelivery = Redelivery(delivery, again, turn.settle, self._again)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Session] = deque()
        self._far_queue: deque[Session] = deque()
        self._pump_due = False
        self._landing = AwaitingLiveFeed(self.relax)
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_until = self._gather_at_most = 0.0
        self._far = 0
        self._resting: dict[Session, _Turn] = {}
        # Reader 0 is the live one.
        self._free = list(range(CATCHUP_READERS_MAX, 0, -1))

    @property
    def readers(self) -> int:
        """Catch-up readers open now."""
        return CATCHUP_READERS_MAX - len(self._free)

    def ready(self, session: Session) -> None:
        """A session's window or socket opened, or a broker came back: serve it when a reader is free."""
        outbound = session.outbound
        if outbound is None or outbound.lag is None or session.state == CLOSED:
            return
        lag = outbound.lag
        resting = self._resting.get(session)
        if resting is not None:
            if _takes(session):
                del self._resting[session]
                self._serve(resting)
            return
        if lag.is_queued or lag.holds or not lag.is_behind:
            return
        if not (outbound.is_half_open and not outbound.is_socket_full) and not is_due(session):
            return
        lag.is_queued = True
        self._queue.append(session)
        self._pump_soon()

    def _again(self, session: Session) -> None:
        """A turn of this session is over; it may want another one."""
        outbound = session.outbound
        if outbound is not None and outbound.lag is not None:
            outbound.lag.is_queued = False
        self._turn_over(session)

    def each_second(self, now: float) -> None:
        """Whoever has rested for long, or is gone, gives up its reader."""
        for turn in [turn for turn in self._resting.values() if turn.rests_until <= now]:
            self._end(turn)

    # Beginning

    def _pump_soon(self) -> None:
        """Open readers when this turn of the loop is over: sessions that become ready in it share them."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        waiting = len(self._queue)
        if waiting and not self._free:
            self._end_longest_rest(is_far=False)
        while self._free and waiting and self._queue:
            waiting -= 1
            session = self._queue.popleft()
            lag = _lag_of(session)
            if lag is not None:
                self._begin(session, lag)

    def _begin(self, session: Session, lag: Lag, *, is_gathered: bool = False) -> None:
        """Serve a session from a broker of its, or put it in line if only far readers would do.

        Without a broker it waits for `reader_opened`, which makes it ready again.
        """
        is_waiting = False
        up = [
            (link, link.connection, position)
            for broker, position in lag.positions.items()
            if (link := self._links.get(broker)) is not None
            and link.connection is not None
            and link.reader.is_open
        ]
        for link, connection, _ in up:
            if is_due(session, link.name):
                self._redelivery.begin(session, link, connection)
                return
        for link, connection, position in up:
            if not _takes(session):
                break
            is_far = link.reader.live_from - position > FAR_BYTES
            if is_far and not is_gathered:
                is_waiting = True
                continue
            self._open(session, lag, link, connection, is_far)
            return
        if is_waiting:
            self._far_queue.append(session)
            self._gather()
        else:
            lag.is_queued = False

    def _gather(self) -> None:
        """One more session far back waits: wait for those that come with it."""
        now = self._now()
        if self._gathering is None:
            self._gather_at_most = now + GATHER_MAX_S
            self._gathering = self._loop.call_later(GATHER_S, self._gathered)
        self._gather_until = min(now + GATHER_S, self._gather_at_most)

    def _gathered(self) -> None:
        if self._now() < self._gather_until:
            self._gathering = self._loop.call_at(self._gather_until, self._gathered)
            return
        self._gathering = None
        self._pump_far()

    def _pump_far(self) -> None:
        """Open readers for sessions far back, as many as there may be."""
        if self._gathering is not None:
            return
        waiting = len(self._far_queue)
        if waiting and (not self._free or self._far >= FAR_READERS_MAX):
            self._end_longest_rest(is_far=True)
        while self._far_queue and waiting and self._free and self._far < FAR_READERS_MAX:
            waiting -= 1
            session = self._far_queue.popleft()
            lag = _lag_of(session)
            if lag is not None:
                self._begin(session, lag, is_gathered=True)

    def _open(
        self, session: Session, lag: Lag, link: BrokerLink, connection: Connection, is_far: bool
    ) -> None:
        broker = link.name
        version = self._wanted.terms_version
        turn = _Turn(link, connection, self._free.pop(), is_far, version)
        self._far += is_far
        self.turns += 1
        log_epoch = lag.log_epoch_at(broker, link.reader.log_epoch)
        turn.sessions[session] = lag.filters_added
        terms = self._wanted.terms_of(session)
        position = self._join_neighbours(turn, lag.position_at(broker) or 0, log_epoch, terms)
        connection.request(
            RequestCode.READ_OPEN,
            ReadOpenRequest(turn.reader_id, log_epoch, position, terms),
            functools.partial(self._opened, turn),
            CALL_TIMEOUT_S,
        )
        self._read(turn)

    def _join_neighbours(self, turn: _Turn, position: int, log_epoch: int, terms: list[FilterTerm]) -> int:
        """Take waiting sessions that are near into a turn, and their terms; the lowest position of all."""
        queue = self._far_queue if turn.is_far else self._queue
        if not queue:
            return position
        broker = turn.link.name
        lowest = position
        for other in list(itertools.islice(queue, LOOKED_AT_MAX)):
            lag = _lag_of(other)
            own = None if lag is None else lag.position_at(broker)
            if lag is None or own is None or abs(own - position) > NEIGHBOUR_BYTES:
                continue
            if lag.log_epoch_at(broker, turn.link.reader.log_epoch) != log_epoch:
                continue
            if is_due(other) or not _takes(other):
                continue
            turn.sessions[other] = lag.filters_added
            terms += self._wanted.terms_of(other)
            lowest = min(lowest, own)
            if len(turn.sessions) >= SESSIONS_PER_READER or len(terms) >= TERMS_PER_READER:
                break
        if len(turn.sessions) > 1:
            self.shared += len(turn.sessions)
            left = [waiting for waiting in queue if waiting not in turn.sessions]
            queue.clear()
            queue.extend(left)
            terms[:] = set(terms)
        return lowest

    def _opened(self, turn: _Turn, result: Reply | HoldMQError) -> None:
        if turn.reader_id < 0:
            return
        broker = turn.link.name
        lags = [
            (session, lag)
            for session, filters in turn.sessions.items()
            # Who has gone back meanwhile begins anew.
            if (lag := _lag_of(session, broker)) is not None and lag.filters_added == filters
        ]
        if isinstance(result, Reply):
            opened = result.header(ReadPosition)
            for _, lag in lags:
                lag.opened_in(broker, opened.log_epoch)
                if opened.position > (lag.position_at(broker) or 0):
                    # Retention has passed the session: it goes on at the log's beginning.
                    self._counters.sessions_behind_total += 1
                    lag.reach(broker, opened.position)
        elif isinstance(result, RemoteError) and result.code == Code.OFFSET_AHEAD:
            # The log was cut below this position: what comes now is new, wherever it lies.
            self._counters.offset_ahead_total += 1
            position, log_epoch = result.ext_fields.get("position"), result.ext_fields.get("log_epoch")
            if not isinstance(position, int) or not isinstance(log_epoch, int):
                position, log_epoch = turn.link.reader.position or 0, turn.link.reader.log_epoch
            for session, lag in lags:
                lag.begin_at(broker, min(position, lag.position_at(broker) or 0), log_epoch)
                for granted in session.outbound.subscriptions.values() if session.outbound else ():
                    if granted.starts is not None:
                        granted.starts.forget(broker)
            self._end(turn)

    # Reading

    def _read(self, turn: _Turn) -> None:
        turn.is_reading = True
        credit_bytes = CATCHUP_CREDIT_BYTES if len(turn.sessions) < MANY_SESSIONS else MANY_CREDIT_BYTES
        turn.connection.request(
            RequestCode.READ,
            ReadRequest(turn.reader_id, credit_bytes, 0),
            functools.partial(self._received, turn),
            CALL_TIMEOUT_S,
        )

    def _received(self, turn: _Turn, result: Reply | HoldMQError) -> None:
        if turn.reader_id < 0:
            return  # the turn ended meanwhile
        turn.is_reading = False
        if isinstance(result, HoldMQError):
            self._leave_out_changed(turn)
            if turn.connection.is_closed:
                for session in turn.sessions:
                    lag = _lag_of(session)
                    if lag is not None:
                        lag.is_queued = False  # `reader_opened` makes it ready again
                self._let_go(turn)
            elif turn.sessions:
                log.warning("a catch-up read failed", broker=turn.link.name, reason=str(result))
            self._end(turn)
            return
        answer = result.header(ReadResponse)
        self._counters.catchup_records_total += answer.records
        turn.answers.append((answer.position, self._delivery.answer(turn.link, result.body)))
        if not turn.rests_until and not turn.goes_on:
            self._serve(turn)
            self._turn.settle()

    def _go_on(self, turn: _Turn) -> None:
        turn.goes_on = False
        if turn.reader_id >= 0:
            self._serve(turn)
            self._turn.settle()

    def _serve(self, turn: _Turn) -> None:
        """Deliver what has come, and ask for more while somebody takes it. The caller settles."""
        turn.rests_until = 0.0
        link = turn.link
        while turn.answers:
            self._leave_out_changed(turn)
            if not turn.sessions:
                break
            position, records = turn.answers[0]
            is_live = position >= link.reader.live_from
            if not is_live and not turn.is_reading and len(turn.answers) < ANSWERS_PER_TURN:
                self._read(turn)
            if not self._deliver_all(turn, records):
                if not turn.goes_on:
                    self._rest(turn)
                return
            turn.answers.popleft()
            going_live = LIVE_PER_ANSWER if is_live else 0
            for session in list(turn.sessions):
                lag = _lag_of(session, link.name)
                if lag is not None:
                    lag.reach(link.name, position)
                    if going_live:
                        going_live -= 1
                        self._caught_up(turn, session, lag.position_at(link.name) or 0)
            if not turn.sessions:
                break
        else:
            if not turn.is_reading:
                self._read(turn)
            return
        self._end(turn)

    def _deliver_all(self, turn: _Turn, records: Records) -> bool:
        """Give records to who wants them; False when the turn's only session is full, or it `goes_on`."""
        if len(turn.sessions) == 1:
            (session,) = turn.sessions
            lag = _lag_of(session, turn.link.name)
            return lag is None or self._delivery.again_all(turn.link, records, session, lag)
        left = DELIVERED_PER_STEP
        given: set[Session] = set()
        while (outgoing := records.next()) is not None:
            if not left:
                records.back()
                self._pause(turn, given, outgoing.record.physical_offset)
                return False
            left -= 1
            if not self._deliver(turn, outgoing, given):
                records.back()
                return False
            if not turn.sessions:
                break
        return True

    def _pause(self, turn: _Turn, given: set[Session], position: int) -> None:
        """Go on from `position` when others had their turn: who was given something may leave by then."""
        for session in given:
            lag = _lag_of(session, turn.link.name)
            if lag is not None:
                lag.reach(turn.link.name, position)
        turn.goes_on = True
        self._loop.call_soon(self._go_on, turn)

    def _rest(self, turn: _Turn) -> None:
        (session,) = turn.sessions
        turn.rests_until = self._now() + REST_S
        self._resting[session] = turn
        is_scarce = not self._free or (turn.is_far and self._far >= FAR_READERS_MAX)
        if is_scarce and (self._far_queue if turn.is_far else self._queue):
            self._end(turn)

    def _end_longest_rest(self, *, is_far: bool) -> None:
        """Have a reader free for others; the session that had it is served again when it is ready."""
        for turn in self._resting.values():
            if turn.is_far or not is_far:
                self._end(turn)
                return

    def _leave_out_changed(self, turn: _Turn) -> None:
        """Sessions that ended leave the turn; those with filters that the reader does not know begin anew.

        The answer may lack what such a filter wants, and the live feed leaves it to us.
        """
        is_old = turn.terms_version != self._wanted.terms_version
        for session, filters in list(turn.sessions.items()):
            lag = _lag_of(session, turn.link.name)
            if lag is None or is_old or lag.filters_added != filters:
                del turn.sessions[session]
                self._resting.pop(session, None)
                self._again(session)

    def _deliver(self, turn: _Turn, outgoing: Outgoing, given: set[Session]) -> bool:
        """Give a record to who wants it; who cannot take it leaves, but for the last one (False)."""
        wanting = turn.sessions
        if len(wanting) > 1:
            matched = self._wanted.trie.match(outgoing.mqtt_topic)
            wanting = {session: 0 for session, _ in matched if session in turn.sessions}
        broker, position = turn.link.name, outgoing.record.physical_offset
        for session in list(wanting):
            lag = _lag_of(session, broker)
            if lag is None or position < (lag.position_at(broker) or 0):
                continue
            if not self._delivery.again(turn.link, outgoing, session):
                lag.reach(broker, position)
                if len(turn.sessions) == 1:
                    return False
                lag.is_queued = False
                del turn.sessions[session]
                given.discard(session)
            else:
                given.add(session)
        return True

    # Ending

    def fed(self, link: BrokerLink) -> None:
        """The live feed is further: sessions that waited for it where they had caught up need no Lag."""
        self._landing.fed(link)

    def relax(self, session: Session) -> None:
        """Forget what the live feed has passed by now: a session that gets nothing needs no Lag."""
        lag = _lag_of(session)
        if lag is None or lag.is_behind:
            return
        for broker, link in self._links.items():
            lag.relax(broker, link.reader.position or 0)
        self._end_lag(session, lag)

    def _end_lag(self, session: Session, lag: Lag) -> None:
        outbound = session.outbound
        if lag.is_over and outbound is not None:
            outbound.lag = None
            self._counters.lagging_sessions -= 1
            for granted in outbound.subscriptions.values():
                granted.starts = None

    def _caught_up(self, turn: _Turn, session: Session, position: int) -> None:
        """From here on the live feed serves this session from this broker."""
        del turn.sessions[session]
        outbound = session.outbound
        assert outbound is not None
        lag = outbound.lag
        assert lag is not None
        lag.caught_up(turn.link.name, position)
        if (turn.link.reader.position or 0) >= position:
            lag.relax(turn.link.name, position)
        else:
            self._landing.land(turn.link.name, position, session)
        self._end_lag(session, lag)
        self._again(session)

    def _end(self, turn: _Turn) -> None:
        """Close the turn's reader; sessions that are still in it want another turn."""
        if turn.reader_id < 0:
            return
        turn.connection.request(
            RequestCode.READ_CLOSE, ReadCloseRequest(turn.reader_id), _closed, CALL_TIMEOUT_S
        )
        self._free.append(turn.reader_id)
        self._far -= turn.is_far
        turn.reader_id = -1
        for session in self._let_go(turn):
            self._again(session)
        self._pump_soon()
        self._pump_far()

    def _let_go(self, turn: _Turn) -> list[Session]:
        """The sessions of a turn, which has them no more."""
        sessions = list(turn.sessions)
        turn.sessions.clear()
        turn.answers.clear()
        for session in sessions:
            self._resting.pop(session, None)
        return sessions


def _lag_of(session: Session, broker: str | None = None) -> Lag | None:
    """A session's lag, if it still lags (behind this broker)."""
    outbound = session.outbound
    if outbound is None or outbound.lag is None or session.state == CLOSED:
        return None
    return outbound.lag if broker is None or outbound.lag.position_at(broker) is not None else None


def _takes(session: Session) -> bool:
    """Whether a session has room for a stretch of messages."""
    outbound = session.outbound
    return outbound is not None and outbound.is_half_open and not outbound.is_socket_full


def _closed(_result: Reply | HoldMQError) -> None:
    """Whether it was still open does not matter: its id is opened anew when it is used again."""
