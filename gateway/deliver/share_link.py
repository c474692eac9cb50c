"""One broker as the keeper of share groups: what members say leaves once a turn, messages come by held reads.

What is told keeps this order within a turn: who leaves, who joins, what is settled. After a lost connection
everybody joins again, and says what it holds; what clients settled meanwhile is told then.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gateway.session.memberships import held_at
from gateway.session.outbound import Membership
from gateway.session.session import CLOSED
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Reply
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_state import LogPlace
from holdmq.wire.share_headers import (
    AT_END,
    ShareCredit,
    ShareGiven,
    ShareJoin,
    ShareJoined,
    ShareJoinRequest,
    ShareJoinResponse,
    ShareLeave,
    ShareLeaveRequest,
    ShareOffline,
    SharePositions,
    ShareReadRequest,
    ShareReadResponse,
    ShareSettleRequest,
)

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.deliver.shares import Shares

JOINS_PER_REQUEST: Final = 500
JOIN_BYTES: Final = 1 << 20
"""What one SHARE_JOIN says, about: a frame's header holds 4 MiB."""
POSITIONS_PER_REQUEST: Final = 30_000
"""And those of one member more: far below what a broker takes."""
POSITION_BYTES: Final = 9
LEAVES_MAX: Final = 10_000
"""Sessions that left and are told to a broker that is away; of more of them it finds out by their expiry."""
READS_OUTSTANDING: Final = 2
READ_CREDIT_BYTES: Final = 256 << 10
READ_HOLD_MS: Final = 20_000
CALL_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5

OnJoined = Callable[[int], None]
"""Told the code with which a broker answered: OK, or why it does not take the member."""

log = telemetry.get_logger()


class ShareLink:
    """The members of one worker at one broker."""

    __slots__ = (
        "_credits",
        "_done",
        "_done_out",
        "_flush_due",
        "_generation",
        "_is_leaving",
        "_joins",
        "_leaves",
        "_link",
        "_loop",
        "_offline",
        "_reads",
        "_returned",
        "_shares",
        "_waiting",
        "joined",
    )

    def __init__(self, shares: Shares, link: BrokerLink) -> None:
        self._shares = shares
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.joined: dict[int, Membership] = {}
        """Members that this connection's broker knows, or is about to."""
        self._joins: dict[Membership, None] = {}
        self._waiting: dict[Membership, list[OnJoined]] = {}
        self._leaves: dict[tuple[str, str], int] = {}
        self._done: dict[int, list[int]] = {}
        self._done_out: list[dict[int, list[int]]] = []
        """What was told as done, and is not durable yet."""
        self._returned: dict[int, list[int]] = {}
        self._offline: dict[int, ShareOffline] = {}
        self._credits: dict[int, int] = {}
        self._is_leaving = False
        self._flush_due = False
        self._reads = 0
        self._generation = 0

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._link.name

    @property
    def is_up(self) -> bool:
        """Whether the broker can be asked."""
        return self._link.connection is not None

    # What members say

    def join(self, membership: Membership, on_joined: OnJoined | None = None) -> None:
        """Have a session be a member, or its options changed; `on_joined` is told when the broker has it."""
        self._joins[membership] = None
        # Its older session, if there is one, ends by this.
        self._leaves.pop((membership.name, membership.session.client_id), None)
        if on_joined is not None:
            self._waiting.setdefault(membership, []).append(on_joined)
        self._flush_soon()

    def is_joining(self, membership: Membership) -> bool:
        """Whether the broker has not answered yet."""
        return membership in self._joins or membership in self._waiting

    def leave(self, name: str, client_id: str, keep_uid: int) -> None:
        """Have a session leave a group, unless it is the one with this number."""
        if len(self._leaves) < LEAVES_MAX:
            self._leaves[name, client_id] = keep_uid
            self._flush_soon()

    def left(self, membership: Membership) -> None:
        """A session has left its group: the end of its connection is told only if it still has something."""
        if not held_at(membership, self._link.name)[1]:
            self.joined.pop(membership.member_id, None)

    def drop(self, membership: Membership) -> None:
        """A session is no member any more: what was asked for it is not waited for."""
        self._joins.pop(membership, None)
        self._credits.pop(membership.member_id, None)
        for on_joined in self._waiting.pop(membership, ()):
            on_joined(Code.OK)

    def offline(self, membership: Membership, expiry_s: int) -> None:
        """A member's connection ended."""
        if self.joined.pop(membership.member_id, None) is not None:
            begun = held_at(membership, self._link.name)[1]
            self._offline[membership.member_id] = ShareOffline(membership.member_id, expiry_s, begun)
            self._flush_soon()

    def settled(self, member_id: int, position: int) -> None:
        """A member has settled a message."""
        self._done.setdefault(member_id, []).append(position)
        self._flush_soon()

    def returned(self, member_id: int, positions: list[int]) -> None:
        """Messages that could not be sent to a member."""
        self._returned.setdefault(member_id, []).extend(positions)
        self._flush_soon()

    def credit(self, member_id: int, messages: int) -> None:
        """A member has room for so many messages more."""
        self._credits[member_id] = self._credits.get(member_id, 0) + messages
        self._flush_soon()

    # Connection

    def up(self, memberships: list[Membership]) -> None:
        """The broker is there (again): all join."""
        self._generation += 1
        self._reads = 0
        self._is_leaving = False
        self.joined.clear()
        self._returned.clear()
        self._offline.clear()
        self._credits.clear()
        known = {membership.member_id for membership in memberships}
        untold, self._done, self._done_out = [*self._done_out, self._done], {}, []
        for told in untold:
            for member_id in told.keys() & known:
                self._done.setdefault(member_id, []).extend(told[member_id])
        for membership in memberships:
            membership.credits.pop(self._link.name, None)
            self._joins[membership] = None
        self._flush_soon()

    def down(self) -> None:
        """The connection is gone; its requests have failed."""
        self._generation += 1

    # Sending

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        connection = self._link.connection
        if connection is None:
            return
        if self._leaves and not self._is_leaving:
            self._send_leaves(connection)
        joining, self._joins = list(self._joins), {}
        joining = [m for m in joining if not m.is_over and m.session.state != CLOSED]
        for some in self._parts(joining):
            self._send_joins(connection, some)
        for membership in joining:
            self._shares.top_up(membership, self)
        self._send_settled(connection)
        while self.joined and self._reads < READS_OUTSTANDING:
            self._read(connection)

    def _send_leaves(self, connection: Connection) -> None:
        some = list(self._leaves.items())[:JOINS_PER_REQUEST]
        self._is_leaving = True
        generation = self._generation

        def left(result: Reply | HoldMQError) -> None:
            if generation != self._generation:
                return
            self._is_leaving = False
            if isinstance(result, Reply):
                for key, keep_uid in some:
                    if self._leaves.get(key) == keep_uid:
                        del self._leaves[key]
                if self._leaves:
                    self._flush_soon()
            else:
                self._loop.call_later(RETRY_S, self._flush_soon)

        wanted = [ShareLeave(name, client_id, keep_uid) for (name, client_id), keep_uid in some]
        connection.request(RequestCode.SHARE_LEAVE, ShareLeaveRequest(wanted), left, CALL_TIMEOUT_S)

    def _parts(self, joining: list[Membership]) -> Iterator[list[tuple[Membership, ShareJoin]]]:
        """What joins, with its rows, in parts that fit a request."""
        part: list[tuple[Membership, ShareJoin]] = []
        size = 0
        for membership in joining:
            row = self._row(membership)
            part.append((membership, row))
            size += len(row.name) + POSITION_BYTES * (len(row.planned) + len(row.held)) + 100
            if size >= JOIN_BYTES or len(part) == JOINS_PER_REQUEST:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _send_joins(self, connection: Connection, part: list[tuple[Membership, ShareJoin]]) -> None:
        some = [membership for membership, _ in part]
        for membership in some:
            self.joined[membership.member_id] = membership
        connection.request(
            RequestCode.SHARE_JOIN,
            ShareJoinRequest([row for _, row in part]),
            functools.partial(self._joined, self._generation, some),
            CALL_TIMEOUT_S,
        )

    def _row(self, membership: Membership) -> ShareJoin:
        session, reader = membership.session, self._link.reader
        start = membership.starts.get(self._link.name)
        if start is None:
            start = LogPlace(0, 0 if membership.is_restored else AT_END)
        planned, held = held_at(membership, self._link.name)
        return ShareJoin(
            membership.member_id,
            membership.name,
            session.client_id,
            membership.uid,
            session.expiry_s,
            membership.granted.qos,
            start.log_epoch or reader.log_epoch,
            start.position,
            planned + self._done.get(membership.member_id, []),
            held,
        )

    def _joined(self, generation: int, some: list[Membership], result: Reply | HoldMQError) -> None:
        if generation != self._generation:
            return
        if isinstance(result, HoldMQError):
            if self._link.connection is None or self._link.connection.is_closed:
                return  # `up` has all join
            log.warning("share groups cannot be joined yet", broker=self._link.name, reason=str(result))
            for membership in some:
                if not membership.is_over and membership.member_id in self.joined:
                    self._joins[membership] = None
            self._loop.call_later(RETRY_S, self._flush_soon)
            return
        answers = rows(ShareJoined, result.header(ShareJoinResponse).joined)
        for membership, answer in zip(some, answers, strict=False):
            if answer.code != Code.OK:
                self.joined.pop(membership.member_id, None)
                error = RemoteError(Code(answer.code), answer.reason)
                log.warning("a broker takes no member", broker=self._link.name, reason=str(error))
            for on_joined in self._waiting.pop(membership, ()):
                on_joined(answer.code)
            self._shares.joined(membership)
        self._shares.settle()

    def _send_settled(self, connection: Connection) -> None:
        done, returned = _some_of(self._done), _some_of(self._returned)
        offline: dict[int, ShareOffline] = {}
        if self._done or self._returned:
            self._flush_soon()
        else:
            # Behind all that they settled: what a member has when it goes is free, or the session's for good.
            offline, self._offline = self._offline, offline
        room, self._credits = self._credits, {}
        if not (done or returned or offline or room):
            return
        if done:
            self._done_out.append(done)
        connection.request(
            RequestCode.SHARE_SETTLE,
            ShareSettleRequest(
                [SharePositions(member_id, positions) for member_id, positions in done.items()],
                [SharePositions(member_id, positions) for member_id, positions in returned.items()],
                list(offline.values()),
                [ShareCredit(member_id, messages) for member_id, messages in room.items()],
            ),
            functools.partial(self._settled, self._generation, done),
            CALL_TIMEOUT_S,
        )

    def _settled(self, generation: int, done: dict[int, list[int]], result: Reply | HoldMQError) -> None:
        if generation != self._generation or not done:
            return
        self._done_out.remove(done)
        if isinstance(result, HoldMQError):
            # It is told again; what the broker knows already changes nothing.
            for member_id, positions in done.items():
                self._done.setdefault(member_id, []).extend(positions)
            self._loop.call_later(RETRY_S, self._flush_soon)

    # Receiving

    def _read(self, connection: Connection) -> None:
        self._reads += 1
        connection.request(
            RequestCode.SHARE_READ,
            ShareReadRequest(READ_CREDIT_BYTES, READ_HOLD_MS),
            functools.partial(self._received, self._generation, connection),
            READ_HOLD_MS / 1000 + CALL_TIMEOUT_S,
        )

    def _received(self, generation: int, connection: Connection, result: Reply | HoldMQError) -> None:
        if generation != self._generation:
            return
        self._reads -= 1
        if isinstance(result, HoldMQError):
            if connection.is_closed:
                return  # `up` begins anew
            log.warning("reading for shared subscriptions failed", broker=self._link.name, reason=str(result))
            self._loop.call_later(RETRY_S, self._flush_soon)
            return
        if self.joined:
            self._read(connection)
        given = rows(ShareGiven, result.header(ShareReadResponse).given)
        if given:
            self._shares.received(self, self._link, given, result.body)


def _some_of(waiting: dict[int, list[int]]) -> dict[int, list[int]]:
    """Take members' positions out, about as many as one request says."""
    taken: dict[int, list[int]] = {}
    left = POSITIONS_PER_REQUEST
    while waiting and left > 0:
        member_id = next(iter(waiting))
        taken[member_id] = waiting.pop(member_id)
        left -= len(taken[member_id])
    return taken
