"""SHARE_READs in hand: what share groups hand out in one turn of the loop leaves as one answer per gateway.

An answer with QoS 2 messages in it waits until the log has who they belong to; until then nothing more is put
together for its connection, so that its messages keep their order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from broker.mqtt_shares.core.groups import ShareGroup, ShareMember
from holdmq.rpc.connection import Connection, Request
from holdmq.wire.share_headers import ShareGiven, ShareReadResponse

READS_MAX: Final = 8
"""SHARE_READs in hand of one connection; a gateway sends two."""


class _Share:
    """One member's part of an answer."""

    __slots__ = ("member", "parts", "positions", "size_bytes")

    def __init__(self, member: ShareMember[Connection]) -> None:
        self.member = member
        self.parts: list[memoryview] = []
        self.positions: list[int] = []
        self.size_bytes = 0


class ShareAnswer:
    """What goes to one gateway together. `has_taken`: the log must have it first."""

    __slots__ = ("has_taken", "request", "shares", "size_bytes")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.shares: dict[int, _Share] = {}
        self.size_bytes = 0
        self.has_taken = False

    def add(
        self, member: ShareMember[Connection], position: int, record: memoryview, *, is_taken: bool
    ) -> None:
        """One message of a member's."""
        share = self.shares.get(member.member_id)
        if share is None:
            share = self.shares[member.member_id] = _Share(member)
        share.parts.append(record)
        share.positions.append(position)
        share.size_bytes += len(record)
        self.size_bytes += len(record)
        self.has_taken = self.has_taken or is_taken

    def send(self) -> None:
        """Answer the request with what was gathered."""
        given = [
            ShareGiven(member_id, len(share.positions), share.size_bytes)
            for member_id, share in self.shares.items()
        ]
        parts = [part for share in self.shares.values() for part in share.parts]
        self.request.reply(ShareReadResponse(given), parts, self.size_bytes)


class ShareFeed:
    """One gateway's connection: the SHARE_READs that it has sent, as (request, credit, deadline).

    `stalled` are groups that have something for it, or may have, while it can take nothing.
    """

    __slots__ = (
        "answer", "connection", "credit_bytes", "is_waiting", "opened_at", "reads", "seen_at", "stalled",
    )  # fmt: skip

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.opened_at = self.seen_at = now
        self.reads: deque[tuple[Request, int, float]] = deque()
        self.answer: ShareAnswer | None = None
        self.credit_bytes = 0
        self.stalled: dict[str, ShareGroup[Connection]] = {}
        self.is_waiting = False
        """Whether an answer waits for the log."""

    @property
    def can_take(self) -> bool:
        """Whether it may be given a message now; the last one of an answer may exceed its credit."""
        if self.is_waiting or not self.connection.is_writable or self.connection.is_closed:
            return False
        if self.answer is not None:
            return self.answer.size_bytes < self.credit_bytes
        return bool(self.reads)

    def open_answer(self) -> ShareAnswer:
        """The answer of this turn. `can_take` was asked."""
        if self.answer is None:
            request, self.credit_bytes, _ = self.reads.popleft()
            self.answer = ShareAnswer(request)
        return self.answer

    def take_answer(self) -> ShareAnswer | None:
        """What was put together in this turn."""
        answer, self.answer = self.answer, None
        return answer

    def held_until(self, now: float) -> list[Request]:
        """Take the requests whose hold is over."""
        over: list[Request] = []
        while self.reads and self.reads[0][2] <= now:
            over.append(self.reads.popleft()[0])
        return over
