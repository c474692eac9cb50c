"""Retained MQTT messages over all brokers: listed, shown, dropped. See docs/retained.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls, known
from holdmq.mqtt.filters import check_filter
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
    RetainedRow,
    RetainedScanRequest,
    RetainedScanResponse,
    RetainedVersion,
    decode_retained,
    with_values,
)

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""
PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 1 << 20


class RetainedView(NamedTuple):
    """A topic's retained message at the broker that keeps it; `version` is its place in that broker's log."""

    topic: str
    broker: str
    version: int
    message: RetainedMessage


class RetainedAdmin(AdminCalls):
    """Asks brokers for retained messages: `async with RetainedAdmin(["host:9876"]) as retained`, on one loop.

    `routes`: share this RouteTable, which the caller starts and closes. Every call raises TransportError when
    a broker does not answer within `timeout_s`, RemoteError when one refuses.
    """

    KIND = "retained"
    TIMEOUT_S = TIMEOUT_S

    async def list(self, topic_filter: str = "#") -> AsyncIterator[RetainedView]:
        """Messages whose topics match an MQTT filter, broker by broker, by topic. MqttError: it is none."""
        check_filter(topic_filter)
        for broker in await self._live_brokers():
            after: str | None = ""
            before = LOG_END
            while after is not None:
                item = RetainedItem(topic_filter, after, before, PAGE_ROWS)
                header = RetainedScanRequest([item], PAGE_ROWS, PAGE_BYTES)
                reply = await self.call(RequestCode.RETAINED_SCAN, broker, header)
                answer = reply.header(RetainedScanResponse)
                (found,) = rows(RetainedFound, answer.found)
                for view in _views(broker, rows(RetainedRow, answer.rows), reply.body):
                    yield view
                after, before = found.next_after, found.before

    async def show(self, topic: str) -> RetainedView | None:
        """A topic's message; None if it has none."""
        header = RetainedGetRequest([RetainedVersion(topic, NEVER)])
        found: list[RetainedView] = []
        for broker, reply in known(await self._ask_all(RequestCode.RETAINED_GET, header)).items():
            answer = reply.header(RetainedGetResponse)
            found += _views(broker, rows(RetainedRow, answer.rows), reply.body)
        # After brokers were added one may be left behind; the newest counts.
        return max(found, key=lambda view: view.message.published_ms, default=None)

    async def drop(self, topic: str) -> bool:
        """Take a topic's message away, durably; whether it had one."""
        was_there = await self.show(topic) is not None
        if was_there:
            header = RetainedPutRequest([RetainedPut(topic, NEVER, NEVER)])
            known(await self._ask_all(RequestCode.RETAINED_PUT, header))
        return was_there


def _views(broker: str, found: Sequence[RetainedRow], body: memoryview) -> list[RetainedView]:
    return [
        RetainedView(row.topic, broker, row.version, decode_retained(value))
        for row, value in with_values(found, body)
    ]
