"""What one MQTT client may have and send: keys of ``[gateway]``."""

from __future__ import annotations

from pydantic import Field

from holdmq.config.section import Section


class MqttLimits(Section):
    """Limits that clients meet; what they are told is in docs/mqtt.md."""

    packet_max_bytes: int = Field(
        4 << 20, ge=256, le=12 << 20, description="Largest MQTT packet accepted: record_max_bytes' default."
    )
    connections_max: int = Field(
        100_000, ge=1, le=1_000_000, description="Connections of one worker: about 300 MiB of session memory."
    )
    unauthenticated_s: float = Field(
        10,
        gt=0,
        le=300,
        description="Time from accept to a complete CONNECT: slow links need seconds, scanners wait.",
    )
    unauthenticated_max_bytes: int = Field(
        64 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="What a worker holds of clients that it has not admitted yet: 200 of the largest CONNECT "
        "(320 KiB), 200,000 of the usual 300 bytes. Beyond it who holds most is cut off.",
    )
    keepalive_max_s: int = Field(
        60,
        ge=1,
        le=65535,
        description="Longest keep alive granted to MQTT 5 clients (Server Keep Alive), which is what most "
        "ask for by themselves: a dead device is known after 1.5 times this.",
    )
    receive_max: int = Field(
        1024,
        ge=1,
        le=65535,
        description="Unacknowledged QoS 1 and 2 publishes that one client may have sent.",
    )
    inflight_max: int = Field(
        64,
        ge=1,
        le=65535,
        description="Unacknowledged deliveries to one client: small devices have small buffers.",
    )
    filters_per_client_max: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Subscriptions of one client: each costs trie memory in the worker.",
    )
    plus_levels_per_client_max: int = Field(
        8192,
        ge=1,
        le=10_000_000,
        description="Levels of all filters with + of one client: a publish is compared with so many "
        "at worst. Enough for 1,000 filters of 8 levels, the most that AWS IoT takes.",
    )
    client_id_max_bytes: int = Field(
        1024, ge=23, le=65535, description="Longest client id: it is a key in tables and logs."
    )
    topic_max_bytes: int = Field(
        4096,
        ge=64,
        le=65535,
        description="Longest MQTT topic or filter: it travels in every record's properties.",
    )
    topic_levels_max: int = Field(
        128, ge=2, le=1024, description="Levels of an MQTT topic or filter: bounds the depth of the trie."
    )
    mqtt_topics_max: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Log topics that MQTT may create; other first levels share the topic mqtt-other.",
    )
    session_expiry_max_s: int = Field(
        30 * 86_400,
        ge=0,
        le=0xFFFFFFFE,
        description="Longest time that a session outlives its connection, 0 = none does: rows of devices "
        "that never come back must go.",
    )
    session_span_max: int = Field(
        1000, ge=1, le=65535, description="Deliveries past the lowest unsettled one, then sending stops."
    )
