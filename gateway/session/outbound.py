"""The sending half of a session: packet ids and the in-flight window. Made at the first SUBSCRIBE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdmq.mqtt import Subscription

if TYPE_CHECKING:
    from gateway.core.lag import Lag


class Granted:
    """One subscription as granted: what delivery looks at.

    `starts` is None, or for a session that lags the log position per broker from which this
    subscription counts: what lies before it was published before it was made.
    """

    __slots__ = ("identifier", "no_local", "qos", "retain_as_published", "starts")

    def __init__(self, subscription: Subscription, identifier: int | None) -> None:
        # QoS 2 is granted as 1 [MQTT-3.8.4-8].
        self.qos = min(subscription.qos, 1)
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifier = identifier
        self.starts: dict[str, int] | None = None


class Outbound:
    """What a subscribed session needs.

    `window` is how many QoS 1 messages may be unacknowledged: the client's receive maximum and
    gateway.inflight_max, whichever is less [MQTT-3.3.4-9]. `lag` is set while the session is not
    fed live.
    """

    __slots__ = ("inflight", "is_socket_full", "lag", "next_id", "subscriptions", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.inflight: set[int] | None = None
        self.next_id = 1
        self.subscriptions: dict[str, Granted] = {}
        self.lag: Lag | None = None
        self.is_socket_full = False

    def take_id(self) -> int:
        """A packet id not in use, now in flight; 0 when the window is full."""
        inflight = self.inflight
        if inflight is None:
            inflight = self.inflight = set()
        if len(inflight) >= self.window:
            return 0
        packet_id = self.next_id
        while packet_id in inflight:
            packet_id = packet_id % 65_535 + 1
        inflight.add(packet_id)
        self.next_id = packet_id % 65_535 + 1
        return packet_id

    def settle(self, packet_ids: list[int]) -> None:
        """The client acknowledged these; unknown ids change nothing."""
        if self.inflight is not None:
            self.inflight.difference_update(packet_ids)
            if not self.inflight:
                self.inflight = None  # an empty set is 216 bytes of every idle connection

    @property
    def is_half_open(self) -> bool:
        """Whether at least half of the window is free: smaller steps cost more than they gain."""
        return self.inflight is None or len(self.inflight) <= self.window // 2
