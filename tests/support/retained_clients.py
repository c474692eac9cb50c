"""What clients of a worker do with retained messages."""

from __future__ import annotations

from typing import Any

from holdmq.mqtt import PingReq, PingResp, PubAck, Publish
from holdmq.wire.retained_headers import RetainedMessage, stamp_retained


async def keep(
    running: Any, payloads: dict[str, bytes], qos: int = 1, client_id: str = "old", **fields: Any
) -> None:
    """Have topics keep messages, as if they had been published long ago."""
    for topic, payload in payloads.items():
        message = RetainedMessage(qos, client_id, fields.get("block", b""), payload)
        await running.broker.retained.keep(topic, stamp_retained(message.encode(), 1, -1))


async def silent(client: Any) -> bool:
    """Whether nothing but the answer to a ping comes."""
    client.send(PingReq())
    return isinstance(await client.next(), PingResp)


async def take(client: Any, count: int) -> list[Publish]:
    """Messages, acknowledged as they come."""
    taken: list[Publish] = []
    while len(taken) < count:
        message = await client.next()
        assert isinstance(message, Publish), message
        taken.append(message)
        if message.qos == 1:
            client.send(PubAck(message.packet_id or 0))
    return taken
