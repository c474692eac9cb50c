"""What a load test is to do: the parameters, checked, and printed with every report."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from holdmq.errors import UsageError
from holdmq.mqtt import MqttError, check_filter, is_topic_name
from holdmq.mqtt.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5

LEVELS: Final = {"3.1": MQTT_3_1, "3.1.1": MQTT_3_1_1, "5": MQTT_5}
PACKET_IDS: Final = 65_535


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Devices and how they connect. `first` is the number of the first one in this process."""

    host: str
    port: int
    devices: int
    ramp_s: float = 1.0
    """Seconds over which the devices connect, evenly."""
    keep_alive_s: int = 60
    mqtt: str = "3.1.1"
    client_prefix: str = "load"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    first: int = 0
    total: int = 0
    """Devices of all processes; 0 = `devices`."""
    client_id_bytes: int = 0
    """Length that client ids are brought to with zeros before the number; 0 = as short as they are."""
    expiry_s: int = 0
    """How long sessions outlive their connections (MQTT 3: any but 0 = clean session 0)."""
    subscribe: str = ""
    """Filter that each device subscribes to with QoS 1, `{i}` is its number; "" = none."""
    will: str = ""
    """Topic of each device's will, `{i}` is its number; "" = none."""
    will_delay_s: int = 0
    """MQTT 5: how long the server waits with it for the device to come back."""

    @property
    def in_all(self) -> int:
        """Devices of all processes."""
        return self.total or self.devices

    def check(self) -> None:
        """Raise UsageError for what no fleet can be."""
        if self.devices < 1:
            raise UsageError("a fleet needs at least one device")
        if self.ramp_s < 0:
            raise UsageError("the ramp cannot be shorter than 0 s")
        if not 0 <= self.keep_alive_s <= PACKET_IDS:
            raise UsageError("MQTT's keep alive is 0 (off) to 65535 seconds")
        if self.mqtt not in LEVELS:
            raise UsageError(f"MQTT {self.mqtt!r} does not exist; choose {', '.join(LEVELS)}")
        if self.password is not None and self.username is None:
            raise UsageError("a password needs a user name")
        if not 0 <= self.expiry_s <= 0xFFFFFFFF:
            raise UsageError("a session's expiry is 0 to 4294967295 seconds")
        if self.will_delay_s and self.mqtt != "5":
            raise UsageError("only MQTT 5 can delay a will")
        if self.will and not is_topic_name(self.will_of(0)):
            raise UsageError(f"{self.will!r} makes no topic name: it is empty or has + or # in it")
        if self.subscribe:
            try:
                check_filter(self.filter_of(0))
            except MqttError as error:
                raise UsageError(f"{self.subscribe!r} makes no topic filter: {error}") from error

    def client_id(self, number: int) -> str:
        """The client id of device `number`."""
        width = self.client_id_bytes - len(self.client_prefix.encode()) - 1
        return f"{self.client_prefix}-{number:0{max(width, 1)}}"

    def filter_of(self, number: int) -> str:
        """What device `number` subscribes to."""
        return self.subscribe.replace("{i}", str(number))

    def will_of(self, number: int) -> str:
        """The topic of device `number`'s will."""
        return self.will.replace("{i}", str(number))

    @property
    def level(self) -> int:
        """The protocol level that CONNECT carries."""
        return LEVELS[self.mqtt]


@dataclass(frozen=True, slots=True)
class ConnectPlan:
    """Idle connections: connect, stay, leave."""

    fleet: FleetPlan
    hold_s: float = 10.0
    """Seconds that all connections stay after the last one was made."""
    admin: str = ""
    """HOST:PORT of the gateway's admin server, whose memory is then measured; "" = it is not."""

    def check(self) -> None:
        """Raise UsageError for a plan that cannot be."""
        self.fleet.check()
        if self.hold_s < 0:
            raise UsageError("connections cannot be held for less than 0 s")


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """Devices that publish, until `seconds` have passed or `count` messages are sent."""

    fleet: FleetPlan
    topic: str = "devices/{i}/telemetry"
    """`{i}` is the device's number."""
    qos: int = 1
    payload_bytes: int = 100
    rate: float = 0.0
    """Messages per second of the whole fleet; 0 = as fast as they are acknowledged."""
    window: int = 10
    """Messages of one device that are not acknowledged yet."""
    seconds: float = 10.0
    count: int = 0
    """Messages to send in all; 0 = as many as fit into `seconds`."""

    def check(self) -> None:
        """Raise UsageError for a plan that cannot be."""
        self.fleet.check()
        if self.qos not in (0, 1, 2):
            raise UsageError(f"QoS {self.qos} does not exist; choose 0, 1 or 2")
        if not 1 <= self.window <= PACKET_IDS:
            raise UsageError(
                f"a window has 1 to {PACKET_IDS} messages, as many as there are packet identifiers"
            )
        if self.payload_bytes < 0 or self.rate < 0 or self.count < 0 or self.seconds <= 0:
            raise UsageError("payload, rate and count cannot be below 0, and seconds must be above")
        if not is_topic_name(self.topic_of(0)):
            raise UsageError(f"{self.topic!r} makes no topic name: it is empty or has + or # in it")

    def topic_of(self, number: int) -> str:
        """Return the topic of device `number`."""
        return self.topic.replace("{i}", str(number))


def parameters(plan: ConnectPlan | PublishPlan) -> dict[str, Any]:
    """Return the plan as a report shows it, without the password."""
    shown = asdict(plan)
    fleet: dict[str, Any] = shown.pop("fleet")
    for hidden in ("password", "first", "total"):
        fleet.pop(hidden)
    return {**fleet, **shown}


def parse_target(text: str, allow_remote: bool) -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]`` (1883 if not given, IPv6 in brackets).

    Raises UsageError when it is no address, or one beyond this machine without `allow_remote`.
    """
    host, bracket, tail = text[1:].partition("]") if text.startswith("[") else (text, "", "")
    if not bracket:
        host, colon, port_text = text.partition(":")
    else:
        colon, port_text = tail[:1], tail[1:]
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else 1883 if not colon else 0
    if not host or not 1 <= port <= 65535 or (bracket and colon not in ("", ":")):
        raise UsageError(f"{text!r} is no target; write HOST, HOST:PORT or [IPv6]:PORT")
    if not allow_remote and not _is_here(host):
        raise UsageError(
            f"{host} is not this machine; a load test can take a server down: "
            "add --allow-remote if it is yours and may be loaded"
        )
    return host, port


def _is_here(host: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"{host} has no address: {error.strerror or error}") from error
    return bool(found) and all(ipaddress.ip_address(str(a).partition("%")[0]).is_loopback for a in found)
