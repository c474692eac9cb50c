"""``holdmq ping``: whether a gateway takes a message and gives it out again."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdmq.cli.options import CommandGroup, Given
from holdmq.errors import PeerError, StartupError, TransportError, UsageError

if TYPE_CHECKING:
    from holdmq.mqtt import Decoder, Packet

DEFAULT_PORT: Final = 1883
PACKET_MAX_BYTES: Final = 64 << 10
READ_BYTES: Final = 64 << 10
PACKET_ID: Final = 1


def register(app: CommandGroup) -> None:
    """Add the command to `app`."""
    app.add("ping", example="holdmq ping 127.0.0.1:1883")(ping)


def ping(
    given: Given,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[HOST:PORT]",
            help="An MQTT listener; gateway.bind and gateway.port if not given.",
            show_default=False,
        ),
    ] = "",
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Where the message goes and is received.")
    ] = "holdmq-ping",
    user: Annotated[str | None, typer.Option("--user", help="User name.", show_default=False)] = None,
    password: Annotated[
        str | None,
        typer.Option(envvar="HOLDMQ_PING_PASSWORD", help="Password; better in the variable."),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Over TLS.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", metavar="FILE", help="Authorities to trust; the system's if not given."),
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0.1, help="How long it may take.")] = 10.0,
) -> None:
    """Send a message through a gateway by MQTT, at QoS 1, and wait until it comes back."""
    section = given.configuration().gateway
    host, port = _place(target) if target else (section.bind, section.port)
    trust = (
        ssl.create_default_context(cafile=None if tls_ca is None else str(tls_ca)) if tls or tls_ca else None
    )
    probe = EchoProbe(topic, user, password)
    began = time.perf_counter()
    try:
        asyncio.run(_exchange(host, port, trust, probe, wait_s))
    except TimeoutError as error:
        raise TransportError(f"{host}:{port} {probe.waits_for} within {wait_s:g} s") from error
    except OSError as error:
        raise StartupError(f"no gateway answers at {host}:{port} ({error})") from error
    took_ms = (time.perf_counter() - began) * 1000
    given.tell(
        {"gateway": f"{host}:{port}", "topic": topic, "took_ms": round(took_ms, 1)},
        f"{host}:{port} took a message on {topic} and gave it out again, {took_ms:.0f} ms in all",
    )


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host:
        host, port = text, ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
        raise UsageError(f"{text!r} is no place; write HOST, HOST:PORT or [IPv6]:PORT")
    return host.strip("[]"), int(port or DEFAULT_PORT)


class EchoProbe:
    """One client's exchange, without IO: feed it what comes, send what it answers, until `is_done`."""

    def __init__(self, topic: str, user: str | None, password: str | None) -> None:
        self._topic = topic
        self._user = user
        self._password = password
        self._payload = secrets.token_hex(16).encode()
        self._decoder: Decoder[bytes] | None = None
        self._is_acknowledged = False
        self._has_come_back = False
        self.waits_for = "does not accept the connection"
        """What the gateway has not done yet."""

    @property
    def is_done(self) -> bool:
        """Whether the message was acknowledged and came back."""
        return self._is_acknowledged and self._has_come_back

    def begin(self) -> bytes:
        """Return CONNECT, which begins the exchange."""
        from holdmq.mqtt import MQTT_5, CheckedTopics, Connect, Decoder, encode
        from holdmq.mqtt.protocol import SERVER

        self._decoder = Decoder(CheckedTopics(bytes), PACKET_MAX_BYTES, sender=SERVER, version=MQTT_5)
        password = None if self._password is None else self._password.encode()
        client_id = f"holdmq-ping-{secrets.token_hex(6)}"
        connect = Connect(client_id, MQTT_5, clean_start=True, username=self._user, password=password)
        self.waits_for = "does not answer CONNECT"
        return encode(connect, MQTT_5)

    def receive(self, data: bytes) -> bytes:
        """Return the answers to `data`. Raises PeerError for a refusal, MqttError for what is no MQTT."""
        from holdmq.mqtt import AckRun, PublishRun, publishes
        from holdmq.mqtt.protocol import PUBACK

        assert self._decoder is not None
        answers = bytearray()
        for item in self._decoder.feed(data):
            if isinstance(item, PublishRun):
                self._has_come_back |= any(one.payload == self._payload for one in publishes(item))
            elif isinstance(item, AckRun):
                self._is_acknowledged |= item.packet_type == PUBACK
            else:
                answers += self._packet(item)
        if self._is_acknowledged:
            self.waits_for = "acknowledged the message and does not give it out"
        return bytes(answers)

    def _packet(self, packet: Packet) -> bytes:
        from holdmq.mqtt import (
            MQTT_5,
            ConnAck,
            Disconnect,
            PubAck,
            Publish,
            SubAck,
            Subscribe,
            Subscription,
            encode,
        )

        if isinstance(packet, ConnAck):
            _refuse_failure("CONNECT", packet.reason_code)
            self.waits_for = "does not answer SUBSCRIBE"
            return encode(Subscribe(PACKET_ID, [Subscription(self._topic, 1)]), MQTT_5)
        if isinstance(packet, SubAck):
            _refuse_failure("SUBSCRIBE", packet.reason_codes[0])
            self.waits_for = "does not acknowledge the message"
            return encode(Publish(self._topic, self._payload, 1, packet_id=PACKET_ID), MQTT_5)
        if isinstance(packet, PubAck):
            _refuse_failure("PUBLISH", packet.reason_code)
            self._is_acknowledged = True
        elif isinstance(packet, Disconnect):
            raise PeerError(f"the gateway ended the connection: {_reason(packet.reason_code)}")
        return b""


async def _exchange(
    host: str, port: int, trust: ssl.SSLContext | None, probe: EchoProbe, wait_s: float
) -> None:
    """Run `probe` over a connection. Raises TimeoutError, OSError, PeerError."""
    from holdmq.mqtt import MQTT_5, Disconnect, encode

    async with asyncio.timeout(wait_s):
        reader, writer = await asyncio.open_connection(host, port, ssl=trust)
        try:
            writer.write(probe.begin())
            while not probe.is_done:
                data = await reader.read(READ_BYTES)
                if not data:
                    raise PeerError(f"{host}:{port} {probe.waits_for}, and has closed the connection")
                writer.write(probe.receive(data))
            writer.write(encode(Disconnect(), MQTT_5))
            await writer.drain()
        finally:
            writer.close()


def _refuse_failure(packet: str, code: int) -> None:
    if code >= 0x80:
        raise PeerError(f"the gateway refuses {packet}: {_reason(code)}")


def _reason(code: int) -> str:
    from holdmq.mqtt.reasons import ReasonCode

    known = {int(one): one.name.replace("_", " ").lower() for one in ReasonCode}
    return f"{known.get(code, 'a reason that is not known')} (0x{code:02X})"
