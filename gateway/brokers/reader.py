"""The live reader: what a worker's subscribers may want, in log order, from one broker."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    FilterTerm,
    ReadFilterRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
)

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters

LIVE_READER_ID: Final = 0
READS_OUTSTANDING: Final = 2
"""One is being answered while the other travels (wire.md, Readers)."""
READ_CREDIT_BYTES: Final = 256 << 10
"""Bytes of one answer: matched in a few milliseconds, so that the loop turns."""
READ_HOLD_MS: Final = 2_000
"""How often a feed without a message tells how far it is: until then a session that caught up has a Lag."""
CALL_TIMEOUT_S: Final = 10.0
REOPEN_S: Final = 0.2
TERMS_PER_REQUEST: Final = 20_000
"""Half a MB of a request's header, which holds 4 MiB."""
FILTERS_PER_STEP: Final = 1_000
"""Filters whose terms are made and sent in one turn while a reader is opened: some milliseconds."""
WAITING_MAX: Final = 10_000
"""SUBACKs that wait for one broker; more are sent without waiting: it has been away for long."""

log = telemetry.get_logger()


class FilterSource(Protocol):
    """The filters that a worker's subscribers have; `terms_version` counts changes of what they mean."""

    terms_version: int

    def filters(self) -> Iterator[str]:
        """Every filter that brokers must know, once; nothing may change meanwhile."""

    def terms_of_filters(self, topic_filters: Iterable[str]) -> list[FilterTerm]:
        """The terms of some filters, with their repeats: brokers count them."""


class LiveFeed(Protocol):
    """Takes what live readers get."""

    def live(
        self, link: BrokerLink, body: memoryview, position: int, records: int, is_late: bool = False
    ) -> None:
        """A live reader got records up to `position`; `is_late`: from below it, kept by paused topics."""

    def reader_opened(self) -> None:
        """A live reader is open (again): sessions that lag may go on."""


class _Opening:
    """A reader that is being opened: at the first answer it has a position, at the last one all filters."""

    __slots__ = ("at", "connection", "filters", "generation", "terms_version", "waiting")

    def __init__(
        self,
        generation: int,
        connection: Connection,
        waiting: list[Callable[[], None]],
        filters: list[str],
        terms_version: int,
    ) -> None:
        self.generation = generation
        self.connection = connection
        self.waiting = waiting
        self.filters = filters
        self.terms_version = terms_version
        self.at = 0


class LiveReader:
    """The reader of one broker and its filter set.

    The broker counts terms, as filters share them; here they are only on their way: kept, they would be half
    a KiB of every idle connection. Changes of one loop turn travel together. `position` is how far the log
    has been scanned for this worker, None before the reader was ever open.

    Each opening is a generation: answers to an earlier one's requests count no more, or one that was
    lost would be jumped over by the next. Each has READS_OUTSTANDING reads, as the broker answers an
    earlier one's when it opens.
    """

    __slots__ = (
        "_add",
        "_change_due",
        "_connection",
        "_counters",
        "_feed",
        "_filters",
        "_generation",
        "_is_open",
        "_link",
        "_loop",
        "_remove",
        "_turn",
        "_unanswered",
        "_waiting",
        "in_effect_from",
        "log_epoch",
        "position",
    )

    def __init__(
        self, link: BrokerLink, turn: Turn, filters: FilterSource, feed: LiveFeed, counters: Counters
    ) -> None:
        self._link = link
        self._turn = turn
        self._filters = filters
        self._feed = feed
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._add: list[FilterTerm] = []
        self._remove: list[FilterTerm] = []
        self._waiting: list[Callable[[], None]] = []
        self._change_due = False
        self._unanswered = 0
        self._is_open = False
        self._generation = 0
        self._connection: Connection | None = None
        self.position: int | None = None
        self.in_effect_from = 0
        self.log_epoch = 0

    @property
    def is_open(self) -> bool:
        """Whether the broker feeds this worker."""
        return self._is_open

    @property
    def live_from(self) -> int:
        """From this log position on the feed has all that the terms so far let pass.

        The broker scans further than it answers: what lies below was judged without terms that came since.
        """
        return max(self.position or 0, self.in_effect_from)

    # Filters

    def add(self, terms: Iterable[FilterTerm]) -> None:
        """Want these terms, once more each."""
        if self._connection is not None:  # else opening gives all of them
            self._add += terms
            self._change_soon()

    def when_in_effect(self, on_effect: Callable[[], None]) -> bool:
        """Call `on_effect` when the broker has every term added so far; False: it has, or too many wait."""
        if self._is_open and not self._unanswered and not self._add:
            return False
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(on_effect)
        self._change_soon()
        return True

    def remove(self, terms: Iterable[FilterTerm]) -> None:
        """These terms are wanted once less."""
        if self._connection is not None:
            self._remove += terms
            self._change_soon()

    def _change_soon(self) -> None:
        if not self._change_due:
            self._change_due = True
            self._loop.call_soon(self._send_change)

    def _send_change(self) -> None:
        self._change_due = False
        if not self._is_open or self._connection is None:
            # Opening begins with all filters, and sends what came since at its end.
            return
        add, self._add = self._add, []
        remove, self._remove = self._remove, []
        waiting, self._waiting = self._waiting, []
        while len(add) + len(remove) > TERMS_PER_REQUEST:
            # Terms are added before any is removed: one that is not there cannot be taken away.
            self._send_terms(add[:TERMS_PER_REQUEST], [] if add else remove[:TERMS_PER_REQUEST], [])
            if not add:
                del remove[:TERMS_PER_REQUEST]
            del add[:TERMS_PER_REQUEST]
        self._send_terms(add, remove, waiting)

    def _send_terms(
        self, add: list[FilterTerm], remove: list[FilterTerm], waiting: list[Callable[[], None]]
    ) -> None:
        assert self._connection is not None
        self._unanswered += 1
        self._connection.request(
            RequestCode.READ_FILTER,
            ReadFilterRequest(LIVE_READER_ID, add, remove),
            functools.partial(self._changed, self._generation, waiting),
            CALL_TIMEOUT_S,
        )

    def _changed(
        self, generation: int, waiting: list[Callable[[], None]], result: Reply | HoldMQError
    ) -> None:
        self._unanswered -= 1
        if isinstance(result, HoldMQError):
            # Opening again sends every term, and calls those who wait.
            self._waiting += waiting
            if self._is_open and generation != self._generation:
                self._change_soon()  # it has opened again meanwhile
            self._failed(generation, "READ_FILTER", result)
            return
        if generation == self._generation:
            self.in_effect_from = max(self.in_effect_from, result.header(ReadPosition).position)
        for on_effect in waiting:
            on_effect()
        self._turn.settle()

    # Life

    def connected(self, connection: Connection) -> None:
        """Open the reader on a new connection, where the last one ended."""
        self._connection = connection
        self._open()

    def disconnected(self) -> None:
        """The connection is gone; the position stays."""
        self._connection = None
        self._is_open = False
        self._generation += 1

    def _open_again(self, generation: int) -> None:
        if generation == self._generation:
            self._open()

    def _open(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._generation += 1
        self._add.clear()
        self._remove.clear()
        waiting, self._waiting = self._waiting, []
        opening = _Opening(
            self._generation, connection, waiting, list(self._filters.filters()), self._filters.terms_version
        )
        connection.request(
            RequestCode.READ_OPEN,
            ReadOpenRequest(LIVE_READER_ID, self.log_epoch, self.position, self._next_terms(opening)),
            functools.partial(self._opened, opening),
            CALL_TIMEOUT_S,
        )

    def _next_terms(self, opening: _Opening) -> list[FilterTerm]:
        part = opening.filters[opening.at : opening.at + FILTERS_PER_STEP]
        opening.at += FILTERS_PER_STEP
        return self._filters.terms_of_filters(part)

    def _opened(self, opening: _Opening, result: Reply | HoldMQError) -> None:
        if opening.generation != self._generation:
            self._waiting += opening.waiting
            return
        if isinstance(result, HoldMQError):
            if isinstance(result, RemoteError) and result.code == Code.OFFSET_AHEAD:
                self._go_back(result)
            self._waiting += opening.waiting
            self._failed(opening.generation, "READ_OPEN", result)
            return
        answer = result.header(ReadPosition)
        self.log_epoch = answer.log_epoch
        self.in_effect_from = answer.position
        if self.position is None or answer.position > self.position:
            self.position = answer.position
        self._open_on(opening)

    def _open_on(self, opening: _Opening) -> None:
        """Give the broker more filters, or begin to read: nothing was scanned for this reader until then."""
        if opening.terms_version != self._filters.terms_version:
            # What is sent already means something else now.
            self._waiting += opening.waiting
            self._open()
            return
        if opening.at < len(opening.filters):
            opening.connection.request(
                RequestCode.READ_FILTER,
                ReadFilterRequest(LIVE_READER_ID, self._next_terms(opening), []),
                functools.partial(self._opened_further, opening),
                CALL_TIMEOUT_S,
            )
            return
        self._is_open = True
        for on_effect in opening.waiting:
            on_effect()
        for _ in range(READS_OUTSTANDING):
            self._read(opening.generation, opening.connection)
        if self._add or self._remove or self._waiting:
            self._change_soon()
        self._feed.reader_opened()
        self._turn.settle()

    def _opened_further(self, opening: _Opening, result: Reply | HoldMQError) -> None:
        if opening.generation != self._generation or isinstance(result, HoldMQError):
            self._waiting += opening.waiting
            if isinstance(result, HoldMQError):
                self._failed(opening.generation, "READ_FILTER", result)
            return
        self._open_on(opening)

    def _go_back(self, error: RemoteError) -> None:
        """The log was cut, what was delivered from beyond it is gone: go on where the broker says."""
        log.warning("the broker's log ends before our position", broker=self._link.name, reason=str(error))
        self._counters.offset_ahead_total += 1
        position = error.ext_fields.get("position")
        log_epoch = error.ext_fields.get("log_epoch")
        self.position = position if isinstance(position, int) else None
        self.log_epoch = log_epoch if isinstance(log_epoch, int) else 0

    def _read(self, generation: int, connection: Connection) -> None:
        connection.request(
            RequestCode.READ,
            ReadRequest(LIVE_READER_ID, READ_CREDIT_BYTES, READ_HOLD_MS),
            functools.partial(self._received, generation, connection),
            READ_HOLD_MS / 1000 + CALL_TIMEOUT_S,
        )

    def _received(self, generation: int, connection: Connection, result: Reply | HoldMQError) -> None:
        if generation != self._generation:
            return
        if isinstance(result, HoldMQError):
            self._failed(generation, "READ", result)
            return
        answer = result.header(ReadResponse)
        # Asked for before the answer is handled, so that the broker fills it meanwhile.
        self._read(generation, connection)
        self.log_epoch = answer.log_epoch
        self._feed.live(self._link, result.body, answer.position, answer.records, answer.is_late)

    def _failed(self, generation: int, what: str, error: HoldMQError) -> None:
        """A lost connection opens the reader by itself; after any other failure open it again soon."""
        if generation != self._generation or self._connection is None or self._connection.is_closed:
            return
        log.warning(
            "a reader failed; opening it again", request=what, broker=self._link.name, reason=str(error)
        )
        self._is_open = False
        self._generation += 1
        self._loop.call_later(REOPEN_S, self._open_again, self._generation)
