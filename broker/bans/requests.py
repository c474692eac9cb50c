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
from broker.kernel.small_table import RequiresTopics, SmallTable
from holdmq.errors import Code, HoldMQError, RemoteError
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
from storage.api.store import OrderedStore

OPEN_PATTERNS_MAX: Final = 100
"""Patterns that begin with a wildcard: each costs every CONNECT a comparison, at every gateway."""
SWEEP_S: Final = 5.0
"""Between two looks for bans that have expired."""
SWEPT_MAX: Final = 500
"""Of them taken away at a time."""

log = structlog.get_logger("holdmq.broker")


class BanTable(RequestFamily):
    """The bans of one broker, at most `bans_max`; `connections` are all, with what they said in HELLO."""

    def __init__(
        self,
        store: OrderedStore,
        topics: RequiresTopics,
        connections: Mapping[Connection, HelloRequest | None],
        bans_max: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.table: SmallTable[BanRow] = SmallTable(
            store, topics, BAN_TOPIC, BAN_QUEUES, decode_ban, self._knows, clock_ms
        )
        self.refused = 0
        self.expired = 0
        self._connections = connections
        self._bans_max = bans_max
        self._clock_ms = clock_ms
        self._bans = self.table.rows
        self._adding: dict[str, BanRow] = {}
        """Those that are on their way to the disk and are not in force yet."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

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
            "ban_changes_total": self.table.changes,
            "bans_refused_total": self.refused,
            "bans_expired_total": self.expired,
        }

    # Life

    def start(self) -> None:
        """Have the table, and read it."""
        self.table.start()

    def release_all(self) -> None:
        self.table.close()
        if self._timer is not None:
            self._timer.cancel()

    def _knows(self, _rows: dict[str, BanRow]) -> None:
        self._sweep()

    # Requests

    def add(self, request: Request) -> None:
        """Answer BAN_ADD when the log has the ban; gateways are told then."""
        self.table.check_ready()
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
            self._tell([ban], [])
            log.info("a client is banned", by=ban.by, until_ms=ban.until_ms, **{ban.kind: ban.value})
            request.reply(BanAddResponse(list(ban)))

        self.table.put(key, encode_ban(ban), ban, done)

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
        self.table.check_ready()
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
            self._tell([], [key_of(ban)])
            log.info("a ban is lifted", by=header.by or request.connection.principal, **{ban.kind: ban.value})
            request.reply(BanRemoveResponse(True))

        self.table.drop([key], done)

    def list_(self, request: Request) -> None:
        """Answer BAN_LIST with a page of the bans that are in force."""
        self.table.check_open()
        header = request.header(BanListRequest)
        count = max(1, min(header.max_count, LIST_MAX))
        now_ms = self._clock_ms()
        keys = sorted(key for key, ban in self._bans.items() if key > header.after and _holds(ban, now_ms))
        shown = [self._bans[key] for key in keys[:count]]
        request.reply(BanListResponse(shown, keys[count - 1] if len(keys) > count else None))

    # Changes

    def _tell(self, made: list[BanRow], lifted: list[tuple[str, str]]) -> None:
        """Push what changed to every gateway worker."""
        push = BanChangedRequest(made, lifted)
        for connection, hello in self._connections.items():
            if hello is not None and hello.role == "gateway":
                connection.send_one_way(RequestCode.BAN_CHANGED, push)

    def _sweep(self) -> None:
        """Take away the rows of bans that have expired."""
        now_ms = self._clock_ms()
        expired = [key for key, ban in self._bans.items() if not _holds(ban, now_ms)]
        over = [key for key in expired if key not in self._adding][:SWEPT_MAX]
        gone = [key_of(self._bans[key]) for key in over]

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                return  # the log will say why, and the next look tries again
            self.expired += len(over)
            self._tell([], gone)

        if over:
            self.table.drop(over, done)
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)


def _holds(ban: BanRow, now_ms: int) -> bool:
    return not ban.until_ms or ban.until_ms > now_ms
