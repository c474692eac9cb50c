"""Retained messages on their way to their owners: before the message itself goes into the log.

A publish with RETAIN is a row of `%RETAIN` first, and then a message: who subscribes between the two gets the
row, who subscribed before gets the message, so that nobody gets neither. The connection waits meanwhile, and
is closed unanswered when the owner cannot be reached for long. Source: mqtt.md, Retained.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.ground.limits import REROUTE_S
from gateway.ground.receipts import CLOSE
from gateway.publish.ingress import Keep
from gateway.session.session import Session
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, RequestTimeout, TransportError, WireError
from holdmq.mqtt import ReasonCode, decode_publish_properties
from holdmq.rpc.connection import Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.retained_headers import (
    NEVER,
    RETAINED_TOPIC,
    RetainedMessage,
    RetainedPut,
    RetainedPutRequest,
    RetainedPutResponse,
    retained_owner,
)

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters
    from holdmq.client.route import RouteTable
    from holdmq.rpc.connection import Connection

IN_FLIGHT_MAX: Final = 2
"""RETAINED_PUTs on their way to a broker: while they are, the next one grows."""
REQUEST_MAX_BYTES: Final = 1 << 20
REQUEST_MAX_PUTS: Final = 250
"""Some milliseconds of the broker's loop, which makes a record of each."""
TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.1

REFUSALS: Final[dict[Code, int]] = {
    Code.LIMIT_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
    Code.RECORD_TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
}
"""Refusals that are the message's own: it is answered. All others end the connection unanswered."""
UNKNOWN: Final = CLOSE | ReasonCode.SERVER_BUSY

Kept = Callable[[list[int]], None]
"""Told one outcome for each put: 0, a reason code, or UNKNOWN: nobody knows whether it is there."""

log = telemetry.get_logger()


class RetainedValue(NamedTuple):
    """A topic's retained message from now on; `value` None = it has none. `expiry_s` NEVER = for ever."""

    topic: str
    value: bytes | None
    expiry_s: int


def retained_put(topic: str, qos: int, payload: bytes, block: bytes, client_id: str) -> RetainedValue:
    """What a publish with RETAIN makes of its topic; no payload: nothing is kept [MQTT-3.3.1-6], -7."""
    if not payload:
        return RetainedValue(topic, None, NEVER)
    expiry_s = decode_publish_properties(block).message_expiry_interval if block else None
    value = RetainedMessage(qos, client_id, block, payload).encode()
    return RetainedValue(topic, value, NEVER if expiry_s is None else expiry_s)


class _PutJob:
    """Puts that are told together, and given up together at `until`."""

    __slots__ = ("is_over", "kept", "left", "outcomes", "until")

    def __init__(self, count: int, kept: Kept, until: float) -> None:
        self.outcomes = [0] * count
        self.left = count
        self.kept = kept
        self.until = until
        self.is_over = False

    def settle(self, at: int, outcome: int) -> None:
        """One put is decided."""
        self.outcomes[at] = outcome
        self.left -= 1
        if not self.left and not self.is_over:
            self.is_over = True
            self.kept(self.outcomes)

    def give_up(self) -> None:
        """Nobody waits any longer."""
        if not self.is_over:
            self.is_over = True
            self.kept([UNKNOWN] * len(self.outcomes))


class _WaitingPut(NamedTuple):
    put: RetainedValue
    job: _PutJob
    at: int


class _Owner:
    """What goes to one broker. Puts keep their order: what comes back goes first again."""

    __slots__ = ("in_flight", "link", "retry", "waiting")

    def __init__(self, link: BrokerLink) -> None:
        self.link = link
        self.waiting: deque[_WaitingPut] = deque()
        self.in_flight = 0
        self.retry: asyncio.TimerHandle | None = None


class RetainedPuts:
    """Tells owners of topics what is retained. `pending_bytes` wait for them."""

    def __init__(
        self, routes: RouteTable, links: Mapping[str, BrokerLink], counters: Counters, turn: Turn
    ) -> None:
        self.brokers: list[str] = []
        self.pending_bytes = 0
        self._routes = routes
        self._links = links
        self._counters = counters
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._owners: dict[str, _Owner] = {}
        self._jobs: dict[_PutJob, None] = {}
        self._flush_due = False

    # Brokers

    def routes_changed(self, topics: Iterable[str]) -> bool:
        """Whether other brokers keep retained messages now; those that are away stay."""
        if RETAINED_TOPIC not in topics:
            return False
        route, before = self._routes.get(RETAINED_TOPIC), self.brokers
        self.brokers = [] if route is None else sorted({q.broker for q in route.write_queues})
        if self.brokers == before:
            return False
        if self.brokers:
            for name in before:
                if name not in self.brokers and name in self._owners:
                    self._move(self._owners[name])
        return True

    def _move(self, lost: _Owner) -> None:
        """What waits for a broker that keeps none any more goes to those that do, in the same order."""
        moved, lost.waiting = lost.waiting, deque()
        for waiting in moved:
            owner = self._owner_of(waiting.put.topic)
            if owner is None:
                self.pending_bytes -= _size_of(waiting.put)
                self._decided(waiting.job, waiting.at, UNKNOWN)
            else:
                owner.waiting.append(waiting)
        self._flush_soon()

    def link_up(self, _link: BrokerLink) -> None:
        """A broker is connected (again)."""
        self._flush_soon()

    @property
    def is_idle(self) -> bool:
        """Whether no put waits."""
        return not self._jobs

    # Putting

    def publish(
        self, session: Session, keep: Keep, on_kept: Callable[[], None], on_failed: Callable[[], None]
    ) -> None:
        """Put what ingress found at the head of a run; then it may go on, or nobody knows what is kept."""

        def kept(outcomes: list[int]) -> None:
            inbound = session.inbound
            if inbound is None or any(outcome & CLOSE for outcome in outcomes):
                on_failed()
                return
            inbound.kept = deque(outcomes)
            on_kept()

        client_id = session.client_id
        self.put([retained_put(*message, client_id) for message in keep.messages], kept)

    def put(self, puts: Sequence[RetainedValue], kept: Kept) -> None:
        """Have topics keep these messages; `kept` is called once, later: owners are waited for as long as the
        route table is patient with them."""
        now = self._loop.time()
        job = _PutJob(len(puts), kept, now)
        self._jobs[job] = None
        for at, put in enumerate(puts):
            owner = self._owner_of(put.topic)
            if owner is None:
                self._loop.call_soon(self._decided, job, at, UNKNOWN)
                continue
            job.until = max(job.until, now + REROUTE_S, now + self._routes.patience_s(owner.link.name))
            self.pending_bytes += _size_of(put)
            owner.waiting.append(_WaitingPut(put, job, at))
        self._flush_soon()

    def _owner_of(self, topic: str) -> _Owner | None:
        if not self.brokers:
            return None
        name = retained_owner(topic, self.brokers)
        owner = self._owners.get(name)
        if owner is None:
            link = self._links.get(name)
            if link is None:
                return None
            owner = self._owners[name] = _Owner(link)
        return owner

    def _decided(self, job: _PutJob, at: int, outcome: int) -> None:
        job.settle(at, outcome)
        if job.is_over:
            self._jobs.pop(job, None)

    # Sending

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        for owner in self._owners.values():
            connection = owner.link.connection
            if connection is None or owner.retry is not None:
                continue
            while owner.waiting and owner.in_flight < IN_FLIGHT_MAX:
                self._send(owner, connection)

    def _send(self, owner: _Owner, connection: Connection) -> None:
        part: list[_WaitingPut] = []
        size = 0
        while owner.waiting and len(part) < REQUEST_MAX_PUTS:
            waiting = owner.waiting[0]
            added = _size_of(waiting.put)
            if part and size + added > REQUEST_MAX_BYTES:
                break
            owner.waiting.popleft()
            part.append(waiting)
            size += added
        puts = [
            RetainedPut(put.topic, put.expiry_s, NEVER if put.value is None else len(put.value))
            for put, _, _ in part
        ]
        body = [put.value for put, _, _ in part if put.value is not None]
        owner.in_flight += 1
        connection.request(
            RequestCode.RETAINED_PUT,
            RetainedPutRequest(puts),
            partial(self._answered, owner, connection, part),
            TIMEOUT_S,
            body,
            sum(map(len, body)),
        )

    def _answered(
        self, owner: _Owner, connection: Connection, part: list[_WaitingPut], result: Reply | HoldMQError
    ) -> None:
        owner.in_flight -= 1
        codes: list[int] | None = None
        if isinstance(result, Reply):
            try:
                codes = result.header(RetainedPutResponse).codes
                if len(codes) != len(part):
                    raise WireError(f"{len(codes)} codes for {len(part)} retained messages")
            except WireError as error:
                codes = None
                self._connect_again(owner, connection, error)
        elif isinstance(result, RemoteError) and not result.retriable:
            log.error("retained messages are refused", broker=owner.link.name, reason=str(result))
            codes = [int(result.code)] * len(part)
        elif isinstance(result, RequestTimeout):
            self._connect_again(owner, connection, result)
        if codes is None:
            self._send_again(owner, part, result)
        else:
            for (put, job, at), code in zip(part, codes, strict=True):
                self.pending_bytes -= _size_of(put)
                if not code:
                    self._counters.retained_in_total += 1
                self._decided(job, at, _outcome_of(code))
            self._turn.settle()
        self._flush_soon()

    def _connect_again(self, owner: _Owner, connection: Connection, error: HoldMQError) -> None:
        log.warning("a broker does not answer RETAINED_PUT", broker=owner.link.name, reason=str(error))
        connection.close(TransportError(str(error)))

    def _send_again(self, owner: _Owner, part: list[_WaitingPut], result: Reply | HoldMQError) -> None:
        """Before all that is newer; nobody waits any more for what was given up."""
        for waiting in reversed(part):
            if waiting.job.is_over:
                self.pending_bytes -= _size_of(waiting.put)
            else:
                owner.waiting.appendleft(waiting)
        if self.brokers and owner.link.name not in self.brokers:
            self._move(owner)
            return
        if owner.link.connection is not None and owner.retry is None:
            wait_s = result.retry_after_ms / 1e3 if isinstance(result, BusyError) else RETRY_S
            owner.retry = self._loop.call_later(wait_s, self._retry, owner)

    def _retry(self, owner: _Owner) -> None:
        owner.retry = None
        self._flush_soon()

    def each_second(self, now: float) -> None:
        """Give up what has waited too long: its connections end unanswered, and their clients try again."""
        given_up = [job for job in self._jobs if now > job.until]
        for job in given_up:
            del self._jobs[job]
            job.give_up()
        if given_up:
            for owner in self._owners.values():
                left: deque[_WaitingPut] = deque()
                for waiting in owner.waiting:
                    if waiting.job.is_over:
                        self.pending_bytes -= _size_of(waiting.put)
                    else:
                        left.append(waiting)
                owner.waiting = left
            log.warning("the owners of retained messages take nothing", publishers=len(given_up))


def _size_of(put: RetainedValue) -> int:
    return len(put.topic) + len(put.value or b"") + 16


def _outcome_of(code: int) -> int:
    if not code:
        return 0
    try:
        return REFUSALS.get(Code(code), UNKNOWN)
    except ValueError:
        return UNKNOWN
