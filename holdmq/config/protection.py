"""What protects a gateway from its clients, and its clients from each other: keys of ``[gateway]``."""

from __future__ import annotations

from pydantic import Field

from holdmq.config.section import Section


class ProtectionSettings(Section):
    """Limits by address and client, bans, overload, draining, logs of connections (docs/protection.md)."""

    connections_per_address_max: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Connections of one address (IPv6: of one /64) at a worker; 0 = no limit, as carriers "
        "put thousands of devices behind one address.",
    )
    connect_rate_max: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="New connections that a worker takes per second; 0 = as many as it can, for whoever is "
        "refused comes again at once, and overload is noticed anyway.",
    )
    publish_rate_max: float = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Messages per second of one client, with a burst of one second's; over it the client's "
        "socket is not read for the time owed. 0 = no limit: what a device may send is its owner's affair.",
    )
    publish_bytes_rate_max: int = Field(
        0,
        ge=0,
        le=1 << 30,
        description="Bytes per second of one client that publishes, as publish_rate_max; 0 = no limit.",
    )
    topic_creates_per_minute_max: int = Field(
        60,
        ge=1,
        le=100_000,
        description="Log topics that one client may create in a minute; messages to more new ones go to "
        "mqtt-other. A device has a few first levels: one with random ones must not use up mqtt_topics_max.",
    )
    flapping_connects_max: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Connects of one client from one address at one worker within flapping_window_s, after "
        "which it is banned; 0 = nobody is, as a bad radio link makes good devices come again and again.",
    )
    flapping_window_s: float = Field(
        60, gt=0, le=86_400, description="Over which time connects are counted for flapping_connects_max."
    )
    flapping_ban_s: float = Field(
        300,
        gt=0,
        le=30 * 86_400,
        description="How long such a client is refused: five minutes in which somebody may look at it.",
    )
    login_failures_max: int = Field(
        10,
        ge=0,
        le=100_000,
        description="Wrong passwords of an address (IPv6: of a /64; one more for each user known there), and "
        "of a user name, after which logins have to wait: a person's typing errors. 0 = nobody has to.",
    )
    login_delay_s: float = Field(
        1,
        gt=0,
        le=3600,
        description="How long the next login then has to wait; until that time it is refused without being "
        "tried. Twice as long after each further wrong password.",
    )
    login_delay_max_s: float = Field(
        60,
        gt=0,
        le=86_400,
        description="The longest such time: 1,440 guesses a day, and what a device whose password was just "
        "put right waits at most.",
    )
    login_forget_s: float = Field(
        3600,
        gt=0,
        le=30 * 86_400,
        description="Time without a wrong password after which those before it are forgotten.",
    )
    login_loopback_counted: bool = Field(
        False,
        description="Count wrong passwords from loopback addresses and UNIX sockets as well: for a proxy on "
        "this machine that does not tell its clients' addresses; they then wait together.",
    )
    overload_lag_ms: int = Field(
        500,
        ge=0,
        le=60_000,
        description="Delay of a worker's event loop that lasts, above which it refuses new connections and "
        "then reads less: half a second is what a device notices. 0 = not looked at.",
    )
    overload_memory_bytes: int = Field(
        0,
        ge=0,
        description="Resident memory of a worker above which it does the same; 0 = its share of four fifths "
        "of what the cgroup, or the machine, has: beyond that the kernel kills.",
    )
    drain_rate: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Clients that a worker disconnects per second after SIGTERM, so that the rest of the "
        "fleet is not stormed; 0 = at least 1,000, and all within half of drain_s.",
    )
    server_reference: str = Field(
        "",
        max_length=1024,
        description="Where MQTT 5 clients are sent when this gateway drains (0x9C, as host:port, several "
        "with spaces); empty = they are told 0x8B, and find a gateway as they found this one.",
    )
    drain_is_final: bool = Field(
        False,
        description="Whether a gateway that has drained does not come back, as a pod does not: with "
        "server_reference, MQTT 5 clients are then told to stay there (0x9D, not 0x9C).",
    )
    shed_above: int = Field(
        0,
        ge=0,
        description="Clients of a worker above which it sends clients to other gateways, which were "
        "added and have room (MQTT 5: 0x9C); 0 = never.",
    )
    shed_rate: int = Field(
        10,
        ge=1,
        le=10_000,
        description="Clients that it sends away per second; a minute that has not helped is followed by ten "
        "of rest.",
    )
    log_connections: bool = Field(
        True,
        description="Log who connects and who leaves, each at most 20 lines a second and worker, with the "
        "number of those that were left out. Who is refused is logged in any case.",
    )
