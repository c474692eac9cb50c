"""Messages in a tenant's words: records have whole names, and client ids with the tenant's mount."""

from __future__ import annotations

from dataclasses import replace

from holdmq.message import Message
from holdmq.names.tenants import mount_of, within


def shorten(tenant: str, message: Message) -> None:
    """Have a message that was read name topic and MQTT client as its tenant does; "" = as they are."""
    if not tenant:
        return
    message.topic = within(tenant, message.topic)
    if message.client_id is not None:
        message.client_id = message.client_id.removeprefix(mount_of(tenant))


def with_mount(tenant: str, message: Message) -> Message:
    """Return a message that its tenant sends with the MQTT client that it names below the tenant's mount."""
    if message.client_id is None:
        return message
    return replace(message, client_id=mount_of(tenant) + message.client_id)
