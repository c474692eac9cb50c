"""What a worker knows of one shared subscription of one session: its room at each broker. Sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdmq.record.codec import PHYSICAL_OFFSET_AT
from holdmq.wire.session_state import LogPlace

if TYPE_CHECKING:
    from gateway.session.outbound import Granted, Planned
    from gateway.session.session import Session


class ShareSettling(Protocol):
    """Tells brokers what members have settled."""

    def settled(self, membership: Membership, broker: str, position: int) -> None:
        """A message of a broker is settled."""


class Membership:
    """A session in the group of `name`, the whole `$share/<name>/<filter>`.

    `qos` is what the brokers know of: at most that of `granted`. `credits` are messages, by broker, that it
    has room for and that have not come. `starts`: where a group that is new begins; brokers not named there
    begin at their end, or at 0 if the session had the subscription before (`is_restored`).
    """

    __slots__ = (
        "credits",
        "granted",
        "is_over",
        "is_restored",
        "member_id",
        "name",
        "qos",
        "session",
        "settling",
        "starts",
        "uid",
    )

    def __init__(
        self,
        member_id: int,
        name: str,
        uid: int,
        session: Session,
        granted: Granted,
        settling: ShareSettling,
        starts: dict[str, LogPlace],
    ) -> None:
        self.member_id = member_id
        self.name = name
        self.uid = uid
        self.session = session
        self.granted = granted
        self.qos = granted.qos
        self.settling = settling
        self.starts = starts
        self.credits: dict[str, int] = {}
        self.is_restored = False
        self.is_over = False

    def settled(self, planned: Planned) -> None:
        """The client has acknowledged a message to the end, or its session has it for good."""
        self.settling.settled(self, planned.broker, planned.position)


def room_of(session: Session) -> int:
    """How many messages a session could be sent now."""
    outbound = session.outbound
    if outbound is None or outbound.is_socket_full:
        return 0
    return max(0, outbound.window - len(outbound.inflight or ()))


def missing_credit(room: int, shares: int, credit: int) -> int:
    """What a broker should be given, where `credit` is left of what it had: a part of the room of a session.

    `shares` are the places where it could be used: one message at each is asked for while there is any room,
    as else a broker with messages might wait for ever for those without. Little is not worth a word.
    """
    wanted = max(room // max(1, shares), 1) if room else 0
    return wanted - credit if credit <= wanted // 2 else 0


def held_at(membership: Membership, broker: str) -> tuple[list[int], list[int]]:
    """The positions at a broker that its session has: planned in its row, and held as this member."""
    outbound = membership.session.outbound
    planned: list[int] = []
    held: list[int] = []
    for item in ((outbound.inflight if outbound is not None else None) or {}).values():
        if item is None or item.broker != broker:
            continue
        if item.member is membership:
            held.append(item.position)
        elif item.member is None and item.flags & 4:
            planned.append(item.position)
    return planned, held


def positions_of(records: bytes) -> list[int]:
    """The log positions of whole records, one after the other."""
    found: list[int] = []
    at = 0
    while (place := at + PHYSICAL_OFFSET_AT) + 8 <= len(records):
        found.append(int.from_bytes(records[place : place + 8], "big"))
        size = int.from_bytes(records[at : at + 4], "big")
        if size <= 0:
            break
        at += size
    return found
