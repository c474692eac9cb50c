"""CONNECT decided: accepted with what, or refused with which reason code (3.1, 3.2)."""

from __future__ import annotations

from gateway.ground.limits import TOPIC_ALIAS_MAX, SessionLimits
from holdmq.mqtt import MQTT_5, Connect, MqttError, Properties, ReasonCode
from holdmq.names.tenants import MOUNT


def check_connect(connect: Connect, limits: SessionLimits) -> None:
    """Raise MqttError with the CONNACK's reason code when this client cannot be admitted."""
    if not limits.allow_anonymous and not limits.authenticates:
        # No authentication is configured, so no credentials can be right.
        code = (
            ReasonCode.BAD_USER_NAME_OR_PASSWORD if connect.version == MQTT_5 else ReasonCode.NOT_AUTHORIZED
        )
        raise MqttError(code, "anonymous access is off and no credentials are known here")
    if len(connect.client_id.encode()) > limits.client_id_max_bytes:  # [MQTT-3.1.3-8]
        raise MqttError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            f"a client identifier of more than gateway.client_id_max_bytes ({limits.client_id_max_bytes})",
        )
    if connect.client_id.startswith(MOUNT):
        # Whose sessions and connections these are would be read from it: nobody may say so for himself.
        raise MqttError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            f"a client identifier that begins with {MOUNT} says whose it is, which no client may; "
            "one of a tenant's users gives its own id alone",
        )
    if connect.will is not None:
        check_will(connect, limits)


def check_will(connect: Connect, limits: SessionLimits) -> None:
    """Refuse a will that could never be published."""
    will = connect.will
    assert will is not None
    topic = will.topic.encode()
    if (
        topic[:1] == b"$"
        or len(topic) > limits.topic_max_bytes
        or topic.count(b"/") >= limits.topic_levels_max
    ):
        raise MqttError(
            ReasonCode.TOPIC_NAME_INVALID, f"the will topic {will.topic[:64]!r} cannot be published"
        )


def keep_alive_of(connect: Connect, limits: SessionLimits) -> int:
    """The keep alive in force, seconds; 0 = none. Only MQTT 5 lets a server shorten it (3.2.2.3.14)."""
    if connect.version != MQTT_5:
        return connect.keep_alive
    if not connect.keep_alive or connect.keep_alive > limits.keepalive_max_s:
        return limits.keepalive_max_s
    return connect.keep_alive


def expiry_of(connect: Connect, limits: SessionLimits) -> int:
    """How long the session outlives its connection, seconds; 0 = it ends with it.

    An MQTT 3 session without clean session has no end of its own: it gets the longest.
    """
    if connect.version != MQTT_5:
        return 0 if connect.clean_start else limits.session_expiry_max_s
    return min(connect.properties.session_expiry_interval or 0, limits.session_expiry_max_s)


def response_information(connect: Connect, client_id: str, limits: SessionLimits) -> str | None:
    """Where the client may have answers sent to, if it asks for it and there is a place [MQTT-3.1.2-28]."""
    if not connect.properties.request_response_information or not limits.response_prefix:
        return None
    # What is told is to be used as a topic name.
    return None if "+" in client_id or "#" in client_id else f"{limits.response_prefix}/{client_id}"


def connack_properties(
    connect: Connect, limits: SessionLimits, client_id: str, assigned_id: str | None
) -> Properties:
    """What CONNACK tells an MQTT 5 client; whatever is not offered is said."""
    keep_alive = keep_alive_of(connect, limits)
    expiry_s = expiry_of(connect, limits)
    asked_s = connect.properties.session_expiry_interval or 0
    return Properties(
        session_expiry_interval=expiry_s if expiry_s != asked_s else None,  # 3.2.2.3.2
        receive_maximum=limits.receive_max if limits.receive_max < 65_535 else None,
        maximum_packet_size=limits.packet_max_bytes,
        assigned_client_identifier=assigned_id,  # [MQTT-3.1.3-7]
        topic_alias_maximum=TOPIC_ALIAS_MAX,
        response_information=response_information(connect, client_id, limits),
        server_keep_alive=keep_alive if keep_alive != connect.keep_alive else None,  # [MQTT-3.2.2-21]
    )
