"""Enhanced authentication: AUTH packets around CONNECT, and later to authenticate again (3.15, 4.12).

::

    CONNECT with a method ──► AUTH 0x18 ◄──► AUTH 0x18 … ──► CONNACK          AUTHENTICATING, then OPENING
    AUTH 0x19             ──► AUTH 0x18 ◄──► AUTH 0x18 … ──► AUTH 0x00        CONNECTED all the time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from gateway.session.scram import ScramError
from holdmq.mqtt import Auth, Connect, MqttError, Properties, ReasonCode


class Exchange(Protocol):
    """The method's own messages; `user` is who it is once `is_done`."""

    is_done: bool
    user: str

    def receive(self, message: bytes) -> bytes:
        """Take the client's message, return the server's. Raises ScramError."""


Begin = Callable[[], Exchange]
BeginAt = Callable[[bytes], Exchange]
"""Begins an exchange with a client, whose BornHost it is told."""


class Answered(NamedTuple):
    """What the client is told, in AUTH or CONNACK; `user` is who it is, None = the exchange goes on."""

    told: Properties
    user: str | None


class Enhanced:
    """The method of a connection, for as long as it lasts, and the exchange under way."""

    __slots__ = ("begin", "exchange", "method")

    def __init__(self, method: str, begin: Begin) -> None:
        self.method = method
        self.begin = begin
        self.exchange: Exchange | None = begin()

    def first(self, data: bytes | None) -> Answered:
        """What CONNECT is answered with [MQTT-4.12.0-2]; without data the client wants to be asked first."""
        return self._told(None if data is None else self._receive(data))

    def take(self, data: bytes | None) -> Answered:
        """Answer the client's next message. Raises MqttError when it proves nothing."""
        exchange = self.exchange
        assert exchange is not None
        answer = self._told(self._receive(data))
        if not exchange.is_done:
            return answer
        self.exchange = None
        return answer._replace(user=exchange.user)

    def _receive(self, data: bytes | None) -> bytes:
        assert self.exchange is not None
        try:
            return self.exchange.receive(data or b"")
        except ScramError as error:  # [MQTT-4.12.0-4] [MQTT-4.12.1-2]
            raise MqttError(ReasonCode.NOT_AUTHORIZED, f"{self.method}: {error}") from error

    def _told(self, data: bytes | None) -> Answered:
        return Answered(Properties(authentication_method=self.method, authentication_data=data), None)


def begin(connect: Connect, methods: Mapping[str, BeginAt], born_host: bytes) -> Enhanced:
    """CONNECT names a method: have it begin. Raises MqttError when it cannot."""
    method = connect.properties.authentication_method or ""
    make = methods.get(method)
    if make is None:  # [MQTT-4.12.0-1]
        raise MqttError(ReasonCode.BAD_AUTHENTICATION_METHOD, f"the method {method[:64]!r} is not offered")
    return Enhanced(method, partial(make, born_host))


def take_before_connack(credentials: object, item: object) -> Answered:
    """Between CONNECT and CONNACK there is AUTH only [MQTT-3.1.2-30], which continues what CONNECT began."""
    if not isinstance(item, Auth):
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "a packet before authentication is over")
    enhanced = _enhanced(credentials, item)
    if item.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:  # [MQTT-4.12.0-3]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH that does not continue what CONNECT began")
    return enhanced.take(item.properties.authentication_data)


def take_again(credentials: object, principal: str, packet: object) -> Answered:
    """AUTH of a connected client: authenticate again, as the same user (4.12.1)."""
    if not isinstance(packet, Auth):
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "a packet that no client sends")
    enhanced = _enhanced(credentials, packet)
    if packet.reason_code == ReasonCode.RE_AUTHENTICATE:  # [MQTT-4.12.1-1]
        enhanced.exchange = enhanced.begin()
    if enhanced.exchange is None:
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH continues what was not begun")
    answer = enhanced.take(packet.properties.authentication_data)
    if answer.user is not None and answer.user != principal:
        raise MqttError(ReasonCode.NOT_AUTHORIZED, "a connection cannot become another user's")
    return answer


def with_authentication(connack: Properties | None, told: Properties) -> Properties:
    """CONNACK's properties with those of the method."""
    if connack is None:
        return told
    return replace(
        connack,
        authentication_method=told.authentication_method,
        authentication_data=told.authentication_data,
    )


def _enhanced(credentials: object, packet: Auth) -> Enhanced:
    if not isinstance(credentials, Enhanced):  # [MQTT-4.12.0-7]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
    if packet.properties.authentication_method != credentials.method:  # [MQTT-4.12.0-5]
        raise MqttError(ReasonCode.PROTOCOL_ERROR, "AUTH with another method than CONNECT's")
    return credentials
