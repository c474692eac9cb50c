"""Shared subscriptions of a worker: sessions are members of groups that brokers keep, as they have room.

A message of a group is this session's until it is acknowledged, or the connection ends; with QoS 2, once its
plan is in the session's row, it is the session's for good, as every other one. What cannot be sent at once
goes back, to whoever has room: nothing of a group waits in a worker's memory. Source: mqtt.md, Shared.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from gateway.deliver.delivery import UNDELIVERABLE, LiveDelivery, Outgoing
from gateway.deliver.share_link import ShareLink
from gateway.session.memberships import missing_credit, positions_of, room_of
from gateway.session.outbound import Granted, MemberSession, Membership, Planned
from gateway.session.session import CLOSED, Session
from holdmq.errors import Code
from holdmq.mqtt import MQTT_5, ReasonCode, plus_levels
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.wire.session_state import LogPlace

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters
    from holdmq.wire.share_headers import ShareGiven

SENT: Final = 0
SETTLED: Final = 1
RETURNED: Final = 2


class Waiter(Protocol):
    """A SUBACK that waits for brokers."""

    left: int
    codes: list[int]

    def in_effect(self) -> None:
        """One more broker has what it waits for."""


class Shares:
    """Members of share groups among one worker's sessions."""

    def __init__(
        self, brokers: Mapping[str, BrokerLink], counters: Counters, delivery: LiveDelivery, turn: Turn
    ) -> None:
        self._brokers = brokers
        self._counters = counters
        self._delivery = delivery
        self._turn = turn
        self._links: dict[str, ShareLink] = {}
        self._members: dict[int, Membership] = {}
        self._last_id = 0

    def _all(self) -> Iterable[ShareLink]:
        """The brokers that anybody knows of."""
        for name, link in self._brokers.items():
            if name not in self._links:
                self._links[name] = ShareLink(self, link)
            if not link.is_gone:
                yield self._links[name]

    # Brokers

    def link_up(self, link: BrokerLink) -> None:
        """A broker is connected (again)."""
        known = self._links.get(link.name)
        if known is None and self._members:
            known = self._links[link.name] = ShareLink(self, link)
        if known is not None:
            known.up(list(self._members.values()))

    def link_down(self, link: BrokerLink) -> None:
        """A broker's connection is gone."""
        known = self._links.get(link.name)
        if known is not None:
            known.down()

    # Subscribing

    def subscribe(self, session: Session, name: str, granted: Granted) -> Membership:
        """A session subscribes to `$share/…`, again or for the first time; `join` follows."""
        known = (session.outgoing().shared or {}).get(name)
        if known is not None:
            known.granted = granted
            # Brokers that know of less must not find more at the client.
            known.qos = min(known.qos, granted.qos)
            return known
        # Who is asked now begins where its log ends; who is away, as far as it was seen.
        starts = {
            broker: LogPlace(link.reader.log_epoch, link.reader.live_from)
            for broker, link in self._brokers.items()
            if link.connection is None and link.reader.position is not None
        }
        return self._make(session, name, granted, starts)

    def _make(self, session: Session, name: str, granted: Granted, starts: dict[str, LogPlace]) -> Membership:
        outbound = session.outgoing()
        if outbound.shared is None:
            outbound.shared = {}
        cursor = session.cursor
        uid = cursor.uid if cursor is not None and session.expiry_s else 0
        self._last_id += 1
        membership = Membership(
            self._last_id, name, uid or 1 + secrets.randbits(62), session, granted, self, starts
        )
        outbound.shared[name] = membership
        outbound.plus_levels += plus_levels(name)
        self._members[membership.member_id] = membership
        self._counters.shared_subscriptions = len(self._members)
        return membership

    def join(self, membership: Membership, waiter: Waiter, at: int) -> None:
        """Have the brokers know a member; `waiter` waits for all of them. `at` is its place in SUBACK."""
        for link in self._all():
            waiter.left += 1
            link.join(membership, partial(self._answered, membership, waiter, at))

    def _answered(self, membership: Membership, waiter: Waiter, at: int, code: int) -> None:
        if code != Code.OK and not membership.is_over:
            is_full = code == Code.LIMIT_EXCEEDED
            waiter.codes[at] = ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.UNSPECIFIED_ERROR
            self._counters.refused["subscribe_share_refused"] += 1
            self.unsubscribe(membership.session, membership.name)
        waiter.in_effect()

    def joined(self, membership: Membership) -> None:
        """A broker has answered."""
        if not any(link.is_joining(membership) for link in self._links.values() if link.is_up):
            membership.qos = membership.granted.qos

    def restore(
        self,
        session: Session,
        name: str,
        granted: Granted,
        begun: dict[str, LogPlace],
        places: dict[str, LogPlace],
    ) -> None:
        """A session that came back has this subscription from `begun` on; it left when it was at `places`."""
        starts = dict(begun)
        for broker, place in places.items():
            start = starts.get(broker)
            if start is None or start.position < place.position:
                starts[broker] = place
        membership = self._make(session, name, granted, starts)
        membership.is_restored = True
        for link in self._all():
            link.join(membership)

    def unsubscribe(self, session: MemberSession, name: str) -> bool:
        """A session leaves a group; whether it was in it. What is at its client may still be settled."""
        outbound = session.outbound
        if outbound is None or outbound.shared is None:
            return False
        membership = outbound.shared.pop(name, None)
        if membership is None:
            return False
        outbound.shared = outbound.shared or None
        outbound.plus_levels -= plus_levels(name)
        self._drop(membership)
        for link in self._all():
            link.leave(name, session.client_id, 0)
            link.left(membership)
        return True

    def forget(self, session: Session) -> None:
        """A connection ended: what is at it is for others, unless it is the session's for good."""
        outbound = session.outbound
        if outbound is None:
            return
        # Of groups that it has left, too, what it did not settle is for others.
        inflight = outbound.inflight or {}
        holders = {item.member for item in inflight.values() if item is not None and item.member is not None}
        shared, outbound.shared = outbound.shared or {}, None
        for membership in shared.values():
            self._drop(membership)
        for membership in holders.union(shared.values()):
            for link in self._links.values():
                link.offline(membership, session.expiry_s)

    def discarded(self, client_id: str, uid: int, filters: Iterable[str]) -> None:
        """A client began anew, as the session `uid`: its older one held these."""
        for name in filters:
            if name.startswith(SHARE_PREFIX):
                for link in self._all():
                    link.leave(name, client_id, uid)

    def _drop(self, membership: Membership) -> None:
        membership.is_over = True
        self._members.pop(membership.member_id, None)
        self._counters.shared_subscriptions = len(self._members)
        for link in self._links.values():
            link.drop(membership)

    # Room

    def ready(self, session: Session) -> None:
        """A session may have room (again)."""
        outbound = session.outbound
        for membership in ((outbound.shared if outbound is not None else None) or {}).values():
            for link in self._links.values():
                self.top_up(membership, link)

    def top_up(self, membership: Membership, link: ShareLink) -> None:
        """Tell a broker what room there is, if it is worth it."""
        session = membership.session
        outbound = session.outbound
        if not link.is_up or membership.member_id not in link.joined or session.state == CLOSED:
            return
        assert outbound is not None
        brokers = sum(1 for other in self._links.values() if other.is_up)
        credit = membership.credits.get(link.name, 0)
        missing = missing_credit(room_of(outbound), brokers * len(outbound.shared or ()), credit)
        if missing > 0:
            membership.credits[link.name] = credit + missing
            link.credit(membership.member_id, missing)

    # Messages

    def received(
        self, link: ShareLink, broker: BrokerLink, given: list[ShareGiven], body: memoryview
    ) -> None:
        """Messages of a broker for members here."""
        at = 0
        for row in given:
            records = bytes(body[at : at + row.length_bytes])
            at += row.length_bytes
            membership = self._members.get(row.member_id)
            if membership is None or membership.session.state == CLOSED:
                link.returned(row.member_id, positions_of(records))
                continue
            credit = membership.credits.get(broker.name, 0)
            membership.credits[broker.name] = max(0, credit - row.records)
            self._deliver(link, broker, membership, records)
            self.top_up(membership, link)
        self.settle()

    def _deliver(self, link: ShareLink, broker: BrokerLink, membership: Membership, records: bytes) -> None:
        left = dict.fromkeys(positions_of(records))
        returned: list[int] = []
        delivery = self._delivery
        for outgoing in delivery.records(broker, memoryview(records), keeps_expired=True):
            position = outgoing.record.physical_offset
            try:
                outcome = self._send(broker, membership, outgoing)
            except UNDELIVERABLE as error:
                delivery.malformed(broker, position, str(error))
                outcome = SETTLED
            if outcome == RETURNED:
                returned.append(position)
            if outcome != SETTLED or not outgoing.qos:
                left.pop(position, None)
        for position in left:
            link.settled(membership.member_id, position)
        if returned:
            self._counters.shared_messages_returned_total += len(returned)
            link.returned(membership.member_id, returned)

    def _send(self, broker: BrokerLink, membership: Membership, outgoing: Outgoing) -> int:
        """Send a message to a member: SENT, SETTLED without it, or RETURNED."""
        session, granted, counters = membership.session, membership.granted, self._counters
        outbound = session.outbound
        assert outbound is not None
        if outgoing.is_expired:
            counters.messages_expired_total += 1
            return SETTLED
        qos = min(outgoing.qos, membership.qos, granted.qos)  # [MQTT-3.8.4-8]
        flags = qos << 1 | (outgoing.retain and granted.retain_as_published)  # [MQTT-3.3.1-12], -13
        identifiers = () if granted.identifier is None else (granted.identifier,)  # [MQTT-3.3.4-3]
        head, tail, size = outgoing.variant(session.version == MQTT_5, flags, identifiers)
        if session.packet_max and size > session.packet_max:  # [MQTT-3.1.2-25]
            counters.messages_dropped_size_total += 1
            return SETTLED
        if not qos:
            if outbound.is_socket_full:
                counters.messages_dropped_slow_total += 1
            else:
                session.send(head)
                outbound.messages += 1
                counters.messages_out_qos0_total += 1
                counters.shared_messages_total += 1
            return SETTLED
        planned = Planned(broker.name, outgoing.record.physical_offset, flags, identifiers)
        planned.member = membership
        if outbound.is_socket_full or not session.push_planned(head, tail, planned):
            return RETURNED
        counters.shared_messages_total += 1
        if flags & 4:
            counters.messages_out_qos2_total += 1
        else:
            counters.messages_out_qos1_total += 1
        return SENT

    def settled(self, membership: Membership, broker: str, position: int) -> None:
        """A member has settled a message, or its session has it for good."""
        link = self._links.get(broker)
        if link is not None:
            link.settled(membership.member_id, position)

    def settle(self) -> None:
        """Have what became sendable written."""
        self._turn.settle()
