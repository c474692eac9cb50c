"""BAN_ADD, BAN_REMOVE, BAN_LIST: bans in the table `%BAN` and in memory, pushed to gateways when changed.

They are few and every worker has them all, so that a CONNECT waits for nobody. A ban that has expired is not
in force at once, and its row goes with the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from broker.kernel.request_family import RequestFamily
from broker.kernel.table_pages import TablePages
from broker.sessions.requests import TopicsLike
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, StorageError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.ban_headers import (
    BAN_QUEUES,
    BAN_TOPIC,
    LIST_MAX,
    BanAddRequest,
    BanAddResponse,
    BanChangedRequest,
    BanListRequest,
    BanListResponse,
    BanRemoveRequest,
    BanRemoveResponse,
    BanRow,
)
from holdmq.wire.bans import checked, decode_ban, encode_ban, is_open_pattern, key_of, row_key
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloRequest
from storage.api.batches import Batch
from storage.api.store import OrderedStore
from storage.api.tables import KeyChange, TableStore, VersionedRow

OPEN_PATTERNS_MAX: Final = 100
"""Patterns that begin with a wildcard: each costs every CONNECT a comparison, at every gateway."""
CHANGES_MAX: Final = 1_000
"""Changes that wait for the disk; past it BUSY."""
SWEEP_S: Final = 5.0
"""Between two looks for bans that have expired."""
SWEPT_MAX: Final = 500
"""Of them taken away at a time."""
RETRY_S: Final = 1.0
"""How often a start tries to have the table, and to read it."""
RETRY_AFTER_MS: Final = 100

log = structlog.get_logger("holdmq.broker")


class BanTable(RequestFamily):
    """The bans of one broker, at most `bans_max`; `connections` are all, with what they said in HELLO."""

    def __init__(
        self,
        store: OrderedStore,
        topics: TopicsLike,
        connections: Mapping[Connection, HelloRequest | None],
        bans_max: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.opened = asyncio.Event()
        """Set when the bans of before are known."""
        self.changes = 0
        self.refused = 0
        self.expired = 0
        self._store = store
        self._topics = topics
        self._connections = connections
        self._bans_max = bans_max
        self._clock_ms = clock_ms
        self._bans: dict[str, BanRow] = {}
        """By the key of their row."""
        self._adding: dict[str, BanRow] = {}
        """Those that are on their way to the disk and are not in force yet."""
        self._in_hand = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pages = TablePages(store, self._read_page, self._took, self._was_read)

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.BAN_ADD: self.add,
            RequestCode.BAN_REMOVE: self.remove,
            RequestCode.BAN_LIST: self.list_,
        }

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "bans": len(self._bans),
            "bans_max": self._bans_max,
            "ban_changes_total": self.changes,
            "bans_refused_total": self.refused,
            "bans_expired_total": self.expired,
        }

    # Life

    def start(self) -> None:
        """Have the table, and read it."""
        self._topics.require(BAN_TOPIC, BAN_QUEUES, self._have_table, is_table=True)

    def release_all(self) -> None:
        self._is_closed = True
        self._pages.close()
        if self._timer is not None:
            self._timer.cancel()

    def _have_table(self, error: HoldMQError | None) -> None:
        if error is not None:
            self._failed(error)
        elif not self._is_closed:
            self._bans.clear()
            self._pages.begin()

    def _failed(self, error: HoldMQError) -> None:
        if not self._is_closed:
            log.error("the table of bans cannot be read; trying again", reason=str(error))
            self._timer = self._loop.call_later(RETRY_S, self.start)

    def _read_page(self, after: str | None) -> tuple[list[VersionedRow], str | None]:
        """On the reader pool."""
        page = self._tables.scan(BAN_TOPIC, "", after, LIST_MAX)
        return page.rows, page.next_after

    def _took(self, found: list[VersionedRow]) -> None:
        for row in found:
            try:
                self._bans[row.key] = decode_ban(row.value)
            except HoldMQError as failure:
                log.error("a ban cannot be used", ban=row.key, reason=str(failure))

    def _was_read(self, error: HoldMQError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        self.opened.set()
        self._sweep()

    @property
    def _tables(self) -> TableStore:
        tables = self._store.tables
        assert tables is not None
        return tables

    def _check_ready(self) -> None:
        if not self.opened.is_set() or self._is_closed:
            raise BusyError("the table of bans is not open", RETRY_AFTER_MS)
        if self._in_hand >= CHANGES_MAX:
            raise BusyError("changes of bans wait for the disk", RETRY_AFTER_MS)

    # Requests

    def add(self, request: Request) -> None:
        """Answer BAN_ADD when the log has the ban; gateways are told then."""
        self._check_ready()
        (wanted,) = rows(BanRow, [request.header(BanAddRequest).ban])
        now_ms = self._clock_ms()
        ban = checked(wanted)._replace(made_ms=now_ms, by=wanted.by or request.connection.principal)
        if ban.until_ms and ban.until_ms <= now_ms:
            raise RemoteError(Code.LIMIT_EXCEEDED, "the end of a ban lies in the future")
        key = row_key(key_of(ban))
        self._check_room(key, ban)
        self._adding[key] = ban

        def done(error: HoldMQError | None) -> None:
            if self._adding.get(key) is ban:
                del self._adding[key]
            if error is not None:
                request.refuse(error)
                return
            self._bans[key] = ban
            self._tell([ban], [])
            log.info("a client is banned", by=ban.by, until_ms=ban.until_ms, **{ban.kind: ban.value})
            request.reply(BanAddResponse(list(ban)))

        self._change([KeyChange(0, key, encode_ban(ban))], done)

    def _check_room(self, key: str, ban: BanRow) -> None:
        """Raise the RemoteError of a ban too many."""
        if key in self._bans or key in self._adding:
            return
        if len(self._bans) + len(self._adding) >= self._bans_max:
            self.refused += 1
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"there are broker.bans_max ({self._bans_max}) bans; lift some first"
            )
        if is_open_pattern(ban):
            found = sum(map(is_open_pattern, (*self._bans.values(), *self._adding.values())))
            if found >= OPEN_PATTERNS_MAX:
                self.refused += 1
                raise RemoteError(
                    Code.LIMIT_EXCEEDED,
                    f"there are {OPEN_PATTERNS_MAX} patterns that begin with * or ?; lift some first",
                )

    def remove(self, request: Request) -> None:
        """Answer BAN_REMOVE when the log has it."""
        self._check_ready()
        header = request.header(BanRemoveRequest)
        ban = checked(BanRow(header.kind, header.value))
        key = row_key(key_of(ban))
        if key not in self._bans and key not in self._adding:
            request.reply(BanRemoveResponse(False))
            return

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            was_present = self._bans.pop(key, None) is not None
            self._tell([], [key_of(ban)])
            log.info("a ban is lifted", by=header.by or request.connection.principal, **{ban.kind: ban.value})
            request.reply(BanRemoveResponse(was_present))

        self._change([KeyChange(0, key, None)], done)

    def list_(self, request: Request) -> None:
        """Answer BAN_LIST with a page of the bans that are in force."""
        if not self.opened.is_set():
            raise BusyError("the table of bans is not open", RETRY_AFTER_MS)
        header = request.header(BanListRequest)
        count = max(1, min(header.max_count, LIST_MAX))
        now_ms = self._clock_ms()
        keys = sorted(key for key, ban in self._bans.items() if key > header.after and _holds(ban, now_ms))
        shown = [self._bans[key] for key in keys[:count]]
        request.reply(BanListResponse(shown, keys[count - 1] if len(keys) > count else None))

    # Changes

    def _change(self, changes: list[KeyChange], done: Callable[[HoldMQError | None], None]) -> None:
        def settled(_batch: Batch, error: StorageError | None) -> None:
            self._in_hand -= 1
            done(error)

        self.changes += len(changes)
        self._in_hand += 1
        try:
            self._tables.change_many(BAN_TOPIC, changes, settled, self._clock_ms())
        except HoldMQError as error:
            self._in_hand -= 1
            done(error)

    def _tell(self, made: list[BanRow], lifted: list[tuple[str, str]]) -> None:
        """Push what changed to every gateway worker."""
        push = BanChangedRequest(made, lifted)
        for connection, hello in self._connections.items():
            if hello is not None and hello.role == "gateway":
                connection.send_one_way(RequestCode.BAN_CHANGED, push)

    def _sweep(self) -> None:
        """Take away the rows of bans that have expired."""
        if self._is_closed:
            return
        now_ms = self._clock_ms()
        expired = [key for key, ban in self._bans.items() if not _holds(ban, now_ms)]
        over = [key for key in expired if key not in self._adding][:SWEPT_MAX]

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                return  # the log will say why, and the next look tries again
            # One may have been made anew meanwhile, or lifted.
            known = [(key, self._bans.get(key)) for key in over]
            gone = [ban for _, ban in known if ban is not None and not _holds(ban, now_ms)]
            for ban in gone:
                del self._bans[row_key(key_of(ban))]
            self.expired += len(gone)
            self._tell([], [key_of(ban) for ban in gone])

        if over:
            self._change([KeyChange(0, key, None) for key in over], done)
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)


def _holds(ban: BanRow, now_ms: int) -> bool:
    return not ban.until_ms or ban.until_ms > now_ms
