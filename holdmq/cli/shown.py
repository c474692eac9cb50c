"""How messages and values are shown: as lines for people, as fields for programs."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import typer

from holdmq.names.visible_text import visible, visible_lines

if TYPE_CHECKING:
    from holdmq.message import Message


def content(name: str, raw: bytes) -> dict[str, str]:
    """Return a field `name` with the text, or `name`_base64 for what is no UTF-8."""
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def fields_of(message: Message) -> dict[str, Any]:
    """Return all that the log knows of a message."""
    return {
        "topic": message.topic,
        "tag": message.tag,
        **content("body", bytes(message.body)),
        "keys": list(message.keys),
        "properties": message.properties,
        "broker": message.broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "client_id": message.client_id,
        "unique_id": message.unique_id,
        "reconsume_times": message.reconsume_times,
        "message_id": None if message.message_id is None else str(message.message_id),
    }


def say(text: object, err: bool = False) -> None:
    """Write one line for people, to standard output or error; names in it cannot do more than be read."""
    typer.echo(visible(str(text)), err=err)


def write_line(*parts: str | bytes) -> None:
    """Write parts, with blanks between them, as one line of standard output, at once.

    Text is made visible. Bytes are as they are, for a program that reads them; a terminal gets them as text.
    """
    is_seen = sys.stdout.isatty()
    raw = (visible(part).encode() if isinstance(part, str) else _payload(part, is_seen) for part in parts)
    sys.stdout.buffer.write(b" ".join(raw) + b"\n")
    sys.stdout.buffer.flush()


def _payload(raw: bytes, is_seen: bool) -> bytes:
    return visible_lines(raw.decode("utf-8", "backslashreplace")).encode() if is_seen else raw


def name_of(message: Message) -> str:
    """Return topic and tag as an MQTT topic, or as topic/tag where MQTT cannot see them."""
    from holdmq.names.topics import join_mqtt_topic

    joined = join_mqtt_topic(message.topic, message.tag)
    if joined is not None:
        return joined
    return message.topic if message.tag is None else f"{message.topic}/{message.tag}"
