"""The room of sessions in share groups, and what they hold at each broker. Sans-IO."""

from __future__ import annotations

from gateway.session.outbound import Membership, Outbound
from holdmq.record.codec import PHYSICAL_OFFSET_AT


def room_of(outbound: Outbound | None) -> int:
    """How many messages a session could be sent now."""
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
