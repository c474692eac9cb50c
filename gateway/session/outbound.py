"""The sending half of a session: packet ids and the in-flight window, and its places in share groups.

Made at the first SUBSCRIBE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdmq.mqtt import Subscription
from holdmq.wire.session_state import LogPlace

if TYPE_CHECKING:
    from gateway.session.aliases import Aliases
    from gateway.session.lag import Lag, Starts
    from gateway.session.owed_retained import RetainedDue


class Granted:
    """One subscription as granted: what delivery looks at.

    `starts` is None, or for a session that lags the log position per broker from which this
    subscription counts: what lies before it was published before it was made.
    """

    __slots__ = (
        "identifier",
        "left_out",
        "no_local",
        "qos",
        "retain_as_published",
        "retain_handling",
        "starts",
    )

    def __init__(self, subscription: Subscription, identifier: int | None) -> None:
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.retain_handling = subscription.retain_handling
        self.identifier = identifier
        self.starts: Starts | None = None
        self.left_out: tuple[str, ...] | None = None
        """Filters of topics that the client must not get (gateway.access.core.acl)."""


class Planned:
    """A delivery under way: the record at `position` of a broker, and the flags of its PUBLISH without DUP.

    `is_released`: PUBREC came, and PUBCOMP is waited for. `topic` is that of a retained message that was sent
    to who subscribed, else "". `member`: it is a shared subscription's, and the broker waits to hear of it.
    """

    __slots__ = ("broker", "flags", "identifiers", "is_released", "member", "position", "topic")

    def __init__(self, broker: str, position: int, flags: int, identifiers: tuple[int, ...]) -> None:
        self.broker = broker
        self.position = position
        self.flags = flags
        self.identifiers = identifiers
        self.is_released = False
        self.topic = ""
        self.member: Membership | None = None


class MemberSession(Protocol):
    """A session as the share groups see it that it is in."""

    client_id: str
    version: int
    state: int
    expiry_s: int
    packet_max: int
    outbound: Outbound | None

    def send(self, data: bytes) -> None:
        """Queue bytes for the client."""

    def push_planned(self, head: bytes, tail: bytes, planned: Planned) -> bool:
        """Queue a QoS 1 or 2 message, its packet id between `head` and `tail`; False: the window is full."""


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
        session: MemberSession,
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


class Outbound:
    """What a subscribed session needs.

    `window` is how many QoS 1 and 2 messages may be unacknowledged: the client's receive maximum and
    gateway.inflight_max, whichever is less [MQTT-3.3.4-9]. `inflight` has them by packet id, in the order of
    sending; None stands for QoS 1 of a session that ends with its connection. `lag` is set while the session
    is not fed live, `aliases` for a client that takes topic aliases, `retained` while subscriptions are owed
    retained messages; `retained_number` counts how often they were. `shared` are the shared subscriptions, by
    the whole `$share/<name>/<filter>`; `plus_levels` are the levels of all filters with `+` in both. `asked`
    are filters that were granted and are not in either yet, with their levels, and `asked_levels` their sum.
    `messages` were sent over this connection, of every QoS, what was sent again not counted.
    """

    __slots__ = (
        "aliases",
        "asked",
        "asked_levels",
        "inflight",
        "is_socket_full",
        "lag",
        "messages",
        "next_id",
        "plus_levels",
        "retained",
        "retained_number",
        "shared",
        "subscriptions",
        "window",
    )

    def __init__(self, window: int) -> None:
        self.window = window
        self.inflight: dict[int, Planned | None] | None = None
        self.next_id = 1
        self.messages = 0
        self.subscriptions: dict[str, Granted] = {}
        self.lag: Lag | None = None
        self.aliases: Aliases | None = None
        self.retained: RetainedDue | None = None
        self.retained_number = 0
        self.shared: dict[str, Membership] | None = None
        self.plus_levels = 0
        self.asked: dict[str, int] | None = None
        self.asked_levels = 0
        self.is_socket_full = False

    def granted(self, name: str) -> Granted | None:
        """The options of a subscription, shared or not; None = there is none."""
        shared = None if self.shared is None else self.shared.get(name)
        return self.subscriptions.get(name) if shared is None else shared.granted

    def decided(self, topic_filters: list[str]) -> None:
        """What was asked with one SUBSCRIBE is among the subscriptions now, or was refused."""
        asked = self.asked
        if asked is not None:
            for topic_filter in topic_filters:
                self.asked_levels -= asked.pop(topic_filter, 0)
            self.asked = asked or None

    def take_id(self, planned: Planned | None) -> int:
        """A packet id not in use, now in flight; 0 when the window is full."""
        inflight = self.inflight
        if inflight is None:
            inflight = self.inflight = {}
        if len(inflight) >= self.window:
            return 0
        packet_id = self.next_id
        while packet_id in inflight:
            packet_id = packet_id % 65_535 + 1
        inflight[packet_id] = planned
        self.messages += 1
        self.next_id = packet_id % 65_535 + 1
        return packet_id

    def settle(self, packet_ids: list[int]) -> None:
        """The client acknowledged these QoS 1 messages; unknown ids change nothing."""
        inflight = self.inflight
        if inflight is None:
            return
        for packet_id in packet_ids:
            planned = inflight.get(packet_id)
            if planned is None or not planned.flags & 4:
                inflight.pop(packet_id, None)
                if planned is not None and planned.member is not None:  # [MQTT-4.8.2-6]
                    planned.member.settled(planned)
        self._shrink()

    def receive(self, packet_id: int, *, is_refused: bool) -> Planned | None:
        """PUBREC: the client has this QoS 2 message, or refused it; None = the id is unknown."""
        planned = None if self.inflight is None else self.inflight.get(packet_id)
        if planned is None or not planned.flags & 4:
            return None
        planned.is_released = True
        if planned.member is not None:
            planned.member.settled(planned)
            planned.member = None
        if is_refused:  # [MQTT-4.3.3-4]: nothing follows, and the id is free
            self.complete(packet_id)
        return planned

    def complete(self, packet_id: int) -> None:
        """PUBCOMP: the id is free; an unknown one changes nothing."""
        inflight = self.inflight
        planned = None if inflight is None else inflight.get(packet_id)
        if inflight is not None and planned is not None and planned.is_released:
            del inflight[packet_id]
            self._shrink()

    def _shrink(self) -> None:
        if not self.inflight:
            self.inflight = None  # an empty dict is 64 bytes of every idle connection

    @property
    def is_half_open(self) -> bool:
        """Whether at least half of the window is free: smaller steps cost more than they gain."""
        return self.inflight is None or len(self.inflight) <= self.window // 2
