"""One device: an MQTT client as an asyncio Protocol, over `holdmq.mqtt`.

A device has no task, timer or queue of its own: its fleet drives it, and what it receives is answered
inside `data_received`, one write for all of it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from time import perf_counter
from typing import Final, Protocol, cast

from holdmq.mqtt import (
    MQTT_5,
    AckRun,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    Properties,
    PublishRun,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
    encode_publish,
    encode_pubrels,
)
from holdmq.mqtt.properties import NO_PROPERTIES
from holdmq.mqtt.protocol import PUBACK, PUBCOMP, PUBREC, SERVER
from loadtest.plan import FleetPlan, PublishPlan

PACKET_MAX_BYTES: Final = 64 * 1024
"""What a device takes from a server: what it subscribes to is for small devices."""

SUBSCRIBE_ID: Final = 65_535
"""Packet id of its SUBSCRIBE: publishes use those from 1 on."""

OWED_MAX: Final = 1000
"""Messages that may wait for a place in one device's window; later ones are skipped and counted."""

_IDS: Final = [number.to_bytes(2, "big") for number in range(65_536)]
_topics: CheckedTopics[bytes] = CheckedTopics(bytes)


class DeviceOwner(Protocol):
    """What a device tells its fleet."""

    def device_connected(self, device: Device, took_s: float) -> None:
        """The server accepted the device."""

    def device_failed(self, device: Device, reason: str) -> None:
        """The device could not connect, or was connected and is not any more."""


class Device(asyncio.Protocol):
    """An idle device: connects, subscribes if told, answers nothing, pings when told.

    It is connected once it is subscribed. A session that was there (`is_resumed`) has its subscription.
    """

    __slots__ = (
        "_began",
        "_decoder",
        "_owner",
        "_plan",
        "_transport",
        "is_connected",
        "is_over",
        "is_resumed",
        "number",
        "server_keep_alive_s",
    )

    def __init__(self, owner: DeviceOwner, plan: FleetPlan, number: int, began: float) -> None:
        self.number = number
        self.is_connected = False
        self.is_over = False
        self.is_resumed = False
        self.server_keep_alive_s: int | None = None
        """The keep alive that the server wants instead of ours (MQTT 5)."""
        self._owner = owner
        self._plan = plan
        self._began = began
        self._decoder: Decoder[bytes] = Decoder(_topics, PACKET_MAX_BYTES, sender=SERVER, version=plan.level)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        plan = self._plan
        is_v5 = plan.level == MQTT_5
        connect = Connect(
            plan.client_id(self.number),
            plan.level,
            clean_start=not plan.expiry_s,
            keep_alive=plan.keep_alive_s,
            username=plan.username,
            password=None if plan.password is None else plan.password.encode(),
            properties=Properties(session_expiry_interval=plan.expiry_s or None) if is_v5 else NO_PROPERTIES,
        )
        if plan.will:
            delay = Properties(will_delay_interval=plan.will_delay_s or None) if is_v5 else NO_PROPERTIES
            connect.will = Will(plan.will_of(self.number), b"gone", 1, properties=delay)
        self._transport.write(encode(connect, plan.level))

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        try:
            items = self._decoder.feed(data)
        except MqttError as error:
            self.fail(f"the server broke MQTT: {error}")
            return
        for item in items:
            if isinstance(item, ConnAck):
                self._connack(item, now)
            elif isinstance(item, SubAck):
                self._suback(item, now)
            elif isinstance(item, Disconnect):
                self.fail(f"DISCONNECT 0x{item.reason_code:02X}")
            else:
                self.received(item, now)
        self.answered(now)

    def _connack(self, packet: ConnAck, now: float) -> None:
        if packet.reason_code:
            self.fail(f"CONNACK 0x{packet.reason_code:02X}")
            return
        self.is_resumed = packet.session_present
        self.server_keep_alive_s = packet.properties.server_keep_alive
        plan = self._plan
        if plan.subscribe and not packet.session_present and self._transport is not None:
            wanted = [Subscription(plan.filter_of(self.number), 1)]
            self._transport.write(encode(Subscribe(SUBSCRIBE_ID, wanted), plan.level))
            return
        self._is_in(now)

    def _suback(self, packet: SubAck, now: float) -> None:
        code = packet.reason_codes[0]
        if code >= 0x80:
            self.fail(f"SUBACK 0x{code:02X}")
            return
        self._is_in(now)

    def _is_in(self, now: float) -> None:
        self.is_connected = True
        self._owner.device_connected(self, now - self._began)

    def received(self, item: PublishRun[bytes] | AckRun | Packet, now: float) -> None:
        """Take a packet other than CONNACK and DISCONNECT."""

    def answered(self, now: float) -> None:
        """Everything of one read has been taken."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc}" if exc is not None else "closed by the server")

    def fail(self, reason: str) -> None:
        """Tell the fleet once, and close."""
        if not self.is_over:
            self.is_over = True
            self._owner.device_failed(self, reason)
        self.is_connected = False
        if self._transport is not None:
            self._transport.abort()

    def ping(self) -> None:
        """Send PINGREQ when it is connected."""
        if self.is_connected and self._transport is not None:
            self._transport.write(encode(PingReq(), self._plan.level))

    def cut(self) -> None:
        """Reset the connection without a word, as a network does that fails; the fleet is not told."""
        self.is_over = True
        self.is_connected = False
        transport = self._transport
        if transport is not None and not transport.is_closing():
            # Linger 0: a reset at once, and no port that waits for two minutes.
            handle = transport.get_extra_info("socket")
            with socket.socket(fileno=os.dup(handle.fileno())) as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

    def leave(self) -> None:
        """Disconnect in good order; what comes after is not told to the fleet."""
        self.is_over = True
        if self._transport is not None and not self._transport.is_closing():
            if self.is_connected:
                self._transport.write(encode(Disconnect(), self._plan.level))
            self._transport.close()
        self.is_connected = False


class Source(DeviceOwner, Protocol):
    """What a publishing device asks and tells its fleet."""

    is_running: bool
    is_paced: bool

    def claim(self, wanted: int) -> int:
        """Return how many of `wanted` messages may be sent still."""

    def sent(self, messages: int) -> None:
        """So many were written."""

    def settled(self, started: float, now: float, messages: int) -> None:
        """So many, begun at `started`, are acknowledged now."""

    def refused(self, reason: str) -> None:
        """The server answered a message with an error."""

    def skipped(self, messages: int) -> None:
        """So many were due and did not fit: the server is slower than the rate."""


class Publisher(Device):
    """A device that publishes inside a window. Latency counts from when a message was due."""

    __slots__ = ("_fleet", "_free", "_head", "_is_clogged", "_owed", "_qos", "_started", "_tail")

    def __init__(self, fleet: Source, plan: PublishPlan, number: int, began: float) -> None:
        super().__init__(fleet, plan.fleet, number, began)
        self._fleet = fleet
        self._qos = plan.qos
        self._head, self._tail = encode_publish(
            plan.fleet.level, plan.topic_of(number).encode(), b"x" * plan.payload_bytes, plan.qos << 1
        )
        # Packet identifiers 1 … window, the same ones again and again; 0.0 = not on its way.
        self._free = list(range(plan.window, 0, -1))
        self._started = [0.0] * (plan.window + 1)
        self._owed: deque[float] = deque()
        self._is_clogged = False

    @property
    def in_flight(self) -> int:
        """Messages that were sent and are not acknowledged."""
        return len(self._started) - 1 - len(self._free)

    @property
    def owed(self) -> int:
        """Messages that were due and wait for a place in the window."""
        return len(self._owed)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def due(self, now: float) -> None:
        """A message is due: send it, or remember since when it waits."""
        if len(self._owed) >= OWED_MAX:
            self._fleet.skipped(1)
            return
        self._owed.append(now)
        self._pay()

    def fill(self, now: float) -> None:
        """Send as many as the window has places for."""
        if self._is_clogged or not self.is_connected:
            return
        room = self._fleet.claim(len(self._free))
        if room:
            self._write([now] * room)

    def _pay(self) -> None:
        owed = self._owed
        if owed and self._free and self.is_connected and not self._is_clogged:
            room = self._fleet.claim(min(len(owed), len(self._free)))
            self._write([owed.popleft() for _ in range(room)])

    def _write(self, starts: list[float]) -> None:
        if not starts or self._transport is None:
            return
        head, tail = self._head, self._tail
        if not self._qos:
            self._transport.write(head * len(starts))
        else:
            pieces: list[bytes] = []
            for started in starts:
                packet_id = self._free.pop()
                self._started[packet_id] = started
                pieces += (head, _IDS[packet_id], tail)
            self._transport.write(b"".join(pieces))
        self._fleet.sent(len(starts))

    def received(self, item: PublishRun[bytes] | AckRun | Packet, now: float) -> None:
        if isinstance(item, AckRun):
            if item.packet_type == PUBREC and self._qos == 2:
                if self._transport is not None:
                    self._transport.write(encode_pubrels(item.packet_ids))
            elif item.packet_type == (PUBACK if self._qos == 1 else PUBCOMP):
                self._settle(item.packet_ids, now)
        elif item.packet_type in (PUBACK, PUBREC, PUBCOMP):
            self._long_answer(item, now)

    def _long_answer(self, item: PublishRun[bytes] | AckRun | Packet, now: float) -> None:
        """An acknowledgement with a reason: below 0x80 it is one like the others."""
        packet_id: int = getattr(item, "packet_id", 0)
        code: int = getattr(item, "reason_code", 0)
        if code >= 0x80:
            self._fleet.refused(f"0x{code:02X}")
            self._release(packet_id)
        elif item.packet_type == PUBREC:
            if self._transport is not None:
                self._transport.write(encode_pubrels([packet_id]))
        else:
            self._settle([packet_id], now)

    def _settle(self, packet_ids: list[int], now: float) -> None:
        starts, free, settled = self._started, self._free, self._fleet.settled
        last = len(starts)
        began, messages = 0.0, 0
        for packet_id in packet_ids:
            started = starts[packet_id] if packet_id < last else 0.0
            if not started:
                self.fail(f"the server acknowledged packet {packet_id}, which was not on its way")
                return
            starts[packet_id] = 0.0
            free.append(packet_id)
            # Neighbours were mostly written together: one entry of the histogram for all of them.
            if started == began:
                messages += 1
            else:
                if messages:
                    settled(began, now, messages)
                began, messages = started, 1
        if messages:
            settled(began, now, messages)

    def _release(self, packet_id: int) -> None:
        if 0 < packet_id < len(self._started) and self._started[packet_id]:
            self._started[packet_id] = 0.0
            self._free.append(packet_id)

    def answered(self, now: float) -> None:
        if self._fleet.is_running:
            if self._fleet.is_paced:
                self._pay()
            elif self._qos:
                self.fill(now)

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self.answered(perf_counter())
