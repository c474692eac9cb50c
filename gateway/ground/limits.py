"""The named limits of a worker: configuration, and the constants that need no key."""

from __future__ import annotations

from typing import Final

from holdmq.config.model import GatewaySection
from holdmq.wire.session_will import WILL_BYTES_MAX

TOPIC_ALIAS_MAX: Final = 16
"""Topic aliases that one client may set: a device has few topics, and each costs a dictionary entry."""
TOPIC_ALIASES_OUT_MAX: Final = 32
"""Topic aliases set for one client that takes them: each is a dictionary entry, and most get few topics."""
PLANS_MAX: Final = 8
"""Record templates kept per connection: topics that a device repeats; one more costs 3 µs, not memory."""
REROUTE_S: Final = 10.0
"""How long a connection waits for its broker before it is closed (mqtt.md, Topics); one that has copies is
waited for longer (`RouteTable.patience_s`)."""
SUBACK_WAIT_S: Final = 2.0
"""How long a SUBACK waits for a silent broker (mqtt.md, Sessions)."""
TOPIC_WAIT_S: Final = 5.0
"""How long a connection waits for its topic to be created, if no broker has copies."""
TOPIC_WAITERS_MAX: Final = 10_000
"""Topics that are being created at a time; past it publishes to new ones are refused with 0x97."""
SOCKET_HIGH_BYTES: Final = 64 << 10
"""Unsent bytes at which a subscriber counts as slow: a round trip's worth of a fast link."""
SEND_STALLED_S: Final = 30.0
"""How long a client may take nothing of what is sent, not one byte: the dead seconds of a cell change."""
CONNECT_MAX_BYTES: Final = WILL_BYTES_MAX + (64 << 10)
"""The largest CONNECT: the largest will, and what a client id, names and tokens need. Until it is whole
nobody knows whose memory it is."""
LISTEN_BACKLOG: Final = 4096
"""Connections that the kernel holds for a worker: a reconnect storm's first second."""


class SessionLimits:
    """What sessions check, as plain attributes."""

    __slots__ = (
        "allow_anonymous",
        "authenticates",
        "client_id_max_bytes",
        "connect_max_bytes",
        "filters_max",
        "inflight_max",
        "keepalive_max_s",
        "packet_max_bytes",
        "plus_levels_max",
        "receive_max",
        "response_prefix",
        "server_reference",
        "session_expiry_max_s",
        "topic_levels_max",
        "topic_max_bytes",
        "unauthenticated_s",
    )

    def __init__(self, section: GatewaySection, allow_anonymous: bool, authenticates: bool = False) -> None:
        self.allow_anonymous = allow_anonymous
        self.authenticates = authenticates
        # Clients were told these, or what is remembered of topics was judged by them: they stay.
        self.connect_max_bytes = min(CONNECT_MAX_BYTES, section.packet_max_bytes)
        self.packet_max_bytes = section.packet_max_bytes
        self.receive_max = section.receive_max
        self.topic_levels_max = section.topic_levels_max
        self.topic_max_bytes = section.topic_max_bytes
        self.reconfigure(section)

    def reconfigure(self, section: GatewaySection) -> None:
        """Take the limits that sessions may meet from now on; what a CONNACK said stays as it was said."""
        self.client_id_max_bytes = section.client_id_max_bytes
        self.filters_max = section.filters_per_client_max
        self.inflight_max = section.inflight_max
        self.keepalive_max_s = section.keepalive_max_s
        self.plus_levels_max = section.plus_levels_per_client_max
        self.response_prefix = section.response_prefix
        self.server_reference = section.server_reference or None
        self.session_expiry_max_s = section.session_expiry_max_s
        self.unauthenticated_s = section.unauthenticated_s
