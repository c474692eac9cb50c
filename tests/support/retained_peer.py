"""A gateway as the owner of retained messages sees one."""

from __future__ import annotations

from typing import NamedTuple

from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.retained_headers import (
    LOG_END,
    NEVER,
    RetainedFound,
    RetainedGetRequest,
    RetainedGetResponse,
    RetainedItem,
    RetainedMessage,
    RetainedPut,
    RetainedPutRequest,
    RetainedPutResponse,
    RetainedRow,
    RetainedScanRequest,
    RetainedScanResponse,
    RetainedVersion,
    decode_retained,
)


class Kept(NamedTuple):
    """A retained message as an answer has it."""

    topic: str
    version: int
    message: RetainedMessage


class RetainedPeer:
    """One gateway's connection."""

    def __init__(self, port: int) -> None:
        self.client = Client(f"127.0.0.1:{port}", "gateway", "gateway-1")

    async def put(self, payloads: dict[str, bytes | None], expiry_s: int = NEVER, qos: int = 1) -> list[int]:
        """Put messages, None = take them away; the codes."""
        puts: list[RetainedPut] = []
        body: list[bytes] = []
        for topic, payload in payloads.items():
            value = b"" if payload is None else RetainedMessage(qos, "pub", b"", payload).encode()
            puts.append(RetainedPut(topic, expiry_s, NEVER if payload is None else len(value)))
            body.append(value)
        joined = b"".join(body)
        reply = await self.client.call(
            RequestCode.RETAINED_PUT, RetainedPutRequest(puts), 40.0, [joined], len(joined)
        )
        return reply.header(RetainedPutResponse).codes

    async def ask(
        self, *items: RetainedItem, max_rows: int = 256, max_bytes: int = 256 << 10
    ) -> tuple[list[RetainedFound], list[Kept]]:
        """One RETAINED_SCAN."""
        header = RetainedScanRequest(list(items), max_rows, max_bytes)
        reply = await self.client.call(RequestCode.RETAINED_SCAN, header)
        answer = reply.header(RetainedScanResponse)
        return rows(RetainedFound, answer.found), kept(rows(RetainedRow, answer.rows), reply.body)

    async def scan(self, topic_filter: str, max_rows: int = 256, before: int = LOG_END) -> list[Kept]:
        """All that a filter matches, slice by slice."""
        found: list[Kept] = []
        after: str | None = ""
        while after is not None:
            item = RetainedItem(topic_filter, after, before, 1_000_000)
            (told,), taken = await self.ask(item, max_rows=max_rows)
            assert told.rows == len(taken)
            found += taken
            after, before = told.next_after, told.before
        return found

    async def bodies(self, topic_filter: str) -> dict[str, bytes]:
        """The payloads of what a filter matches, by topic."""
        return {topic: message.payload for topic, _, message in await self.scan(topic_filter)}

    async def get(self, *wanted: tuple[str, int]) -> tuple[int, list[Kept]]:
        """One RETAINED_GET: how many are answered, and what there is of them."""
        header = RetainedGetRequest([RetainedVersion(*each) for each in wanted])
        reply = await self.client.call(RequestCode.RETAINED_GET, header)
        answer = reply.header(RetainedGetResponse)
        return answer.answered, kept(rows(RetainedRow, answer.rows), reply.body)


def kept(found: list[RetainedRow], body: memoryview) -> list[Kept]:
    """The rows of an answer with their values."""
    taken: list[Kept] = []
    at = 0
    for topic, version, length in found:
        taken.append(Kept(topic, version, decode_retained(body[at : at + length])))
        at += length
    assert at == len(body)
    return taken
