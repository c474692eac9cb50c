"""Enhanced authentication: AUTH packets around CONNECT, and later to authenticate again (3.15, 4.12).

::

    CONNECT with a method ──► AUTH 0x18 ◄──► AUTH 0x18 … ──► CONNACK          AUTHENTICATING, then OPENING
    AUTH 0x19             ──► AUTH 0x18 ◄──► AUTH 0x18 … ──► AUTH 0x00        CONNECTED all the time
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.session.events import CONNECTED, Event
from gateway.session.scram import ScramError
from holdmq.mqtt import Auth, Connect, Disconnect, MqttError, Packet, Properties, ReasonCode, encode

if TYPE_CHECKING:
    from gateway.session.session import Session


class Exchange(Protocol):
    """The method's own messages; `user` is who it is once `is_done`."""

    is_done: bool
    user: str

    def receive(self, message: bytes) -> bytes:
        """Take the client's message, return the server's. Raises ScramError."""


Begin = Callable[[], Exchange]
BeginAt = Callable[[bytes], Exchange]
"""Begins an exchange with a client, whose BornHost it is told."""


class Enhanced:
    """The method of a connection, for as long as it lasts, and the exchange under way."""

    __slots__ = ("begin", "exchange", "method")

    def __init__(self, method: str, begin: Begin) -> None:
        self.method = method
        self.begin = begin
        self.exchange: Exchange | None = begin()


def begin(session: Session, connect: Connect) -> None:
    """CONNECT names a method: answer with the first AUTH. Raises MqttError when it cannot be."""
    method = connect.properties.authentication_method or ""
    make = session.context.methods.get(method)
    if make is None:  # [MQTT-4.12.0-1]
        raise MqttError(ReasonCode.BAD_AUTHENTICATION_METHOD, f"the method {method[:64]!r} is not offered")
    session.credentials = enhanced = Enhanced(method, partial(make, session.born_host))
    data = connect.properties.authentication_data
    # Without data the client wants to be asked first (4.12).
    answer = None if data is None else _receive(enhanced, data)
    _send(session, enhanced, ReasonCode.CONTINUE_AUTHENTICATION, answer)  # [MQTT-4.12.0-2]


def take_while_authenticating(session: Session, items: list[object], events: list[Event]) -> list[object]:
    """What comes between CONNECT and CONNACK: AUTH and DISCONNECT only [MQTT-3.1.2-30].

    Returns what is left when the client is known: it waits for CONNACK, as behind any CONNECT.
    """
    for at, item in enumerate(items):
        if isinstance(item, Disconnect):
            events += session.connection_lost()
            return []
        if not isinstance(item, Auth):
            raise MqttError(ReasonCode.PROTOCOL_ERROR, "a packet before authentication is over")
        enhanced = _enhanced(session, item)
        if item.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:  # [MQTT-4.12.0-3]
            raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH that does not continue what CONNECT began")
        exchange = enhanced.exchange
        answer = _receive(enhanced, item.properties.authentication_data)
        if exchange is None or not exchange.is_done:
            _send(session, enhanced, ReasonCode.CONTINUE_AUTHENTICATION, answer)
            continue
        enhanced.exchange = None
        session.principal = exchange.user
        told = Properties(authentication_method=enhanced.method, authentication_data=answer)
        session.identified(told)  # [MQTT-4.12.0-5]
        events.append(CONNECTED)
        return items[at + 1 :]
    return []


def take_auth(session: Session, packet: Packet) -> None:
    """AUTH of a connected client: authenticate again (4.12.1)."""
    if not isinstance(packet, Auth):
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "a packet that no client sends")
    enhanced = _enhanced(session, packet)
    if packet.reason_code == ReasonCode.RE_AUTHENTICATE:  # [MQTT-4.12.1-1]
        enhanced.exchange = enhanced.begin()
    exchange = enhanced.exchange
    if exchange is None:
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH continues what was not begun")
    answer = _receive(enhanced, packet.properties.authentication_data)
    if not exchange.is_done:
        _send(session, enhanced, ReasonCode.CONTINUE_AUTHENTICATION, answer)
        return
    enhanced.exchange = None
    if exchange.user != session.principal:
        raise MqttError(ReasonCode.NOT_AUTHORIZED, "a connection cannot become another user's")
    _send(session, enhanced, ReasonCode.SUCCESS, answer)


def with_authentication(connack: Properties | None, told: Properties) -> Properties:
    """CONNACK's properties with those of the method."""
    if connack is None:
        return told
    return replace(
        connack,
        authentication_method=told.authentication_method,
        authentication_data=told.authentication_data,
    )


def _enhanced(session: Session, packet: Auth) -> Enhanced:
    enhanced = session.credentials
    if not isinstance(enhanced, Enhanced):  # [MQTT-4.12.0-7]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
    if packet.properties.authentication_method != enhanced.method:  # [MQTT-4.12.0-5]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH with another method than CONNECT's")
    return enhanced


def _receive(enhanced: Enhanced, data: bytes | None) -> bytes:
    assert enhanced.exchange is not None
    try:
        return enhanced.exchange.receive(data or b"")
    except ScramError as error:  # [MQTT-4.12.0-4] [MQTT-4.12.1-2]
        raise MqttError(ReasonCode.NOT_AUTHORIZED, f"{enhanced.method}: {error}") from error


def _send(session: Session, enhanced: Enhanced, code: ReasonCode, data: bytes | None) -> None:
    properties = Properties(authentication_method=enhanced.method, authentication_data=data)
    session.send(encode(Auth(code, properties), session.version))
