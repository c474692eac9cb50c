"""Retained messages as a broker keeps them, in memory, over the real RPC; tests say when it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdmq.errors import HoldMQError
from holdmq.mqtt.filters import matches
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import RouteRow
from holdmq.wire.retained_headers import (
    RETAINED_QUEUES,
    RETAINED_TOPIC,
    RetainedFound,
    RetainedGetRequest,
    RetainedGetResponse,
    RetainedItem,
    RetainedPut,
    RetainedPutRequest,
    RetainedPutResponse,
    RetainedRow,
    RetainedScanRequest,
    RetainedScanResponse,
    RetainedVersion,
    stamp_retained,
)


class Held(NamedTuple):
    """A request that a test answers."""

    code: RequestCode
    answer: Callable[[], None]


class MemoryRetained:
    """`rows` by topic are (version, value), `old` has every version. `codes` are taken first, for the puts in
    their order; `errors` refuse whole requests. Requests of the codes in `holds` wait for `release`.
    """

    def __init__(
        self, end: Callable[[], int], put_row: Callable[[], int], clock_ms: Callable[[], int]
    ) -> None:
        self.rows: dict[str, tuple[int, bytes]] = {}
        self.old: dict[tuple[str, int], bytes] = {}
        self.codes: list[int] = []
        self.errors: list[HoldMQError] = []
        self.holds: set[RequestCode] = set()
        self.held: list[Held] = []
        self.asked: list[RetainedItem] = []
        self.requests = 0
        self._end = end
        self._put_row = put_row
        self._clock_ms = clock_ms

    @property
    def handlers(self) -> Mapping[RequestCode, Callable[[Request], None]]:
        """What a server is given."""
        work = {
            RequestCode.RETAINED_PUT: self._put,
            RequestCode.RETAINED_SCAN: self._scan,
            RequestCode.RETAINED_GET: self._get,
        }
        return {code: self._holding(code, handler) for code, handler in work.items()}

    @staticmethod
    def route(broker: str) -> RouteRow:
        """How a registry names the table."""
        return RouteRow(RETAINED_TOPIC, broker, RETAINED_QUEUES, RETAINED_QUEUES, 6, "table", 1)

    def release(self) -> None:
        """Answer what is held, and nothing later."""
        self.holds.clear()
        held, self.held = self.held, []
        for one in held:
            one.answer()

    def _holding(self, code: RequestCode, work: Callable[[Request], None]) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            self.requests += 1
            if self.errors:
                request.refuse(self.errors.pop(0))
            elif code in self.holds:
                self.held.append(Held(code, lambda: work(request)))
            else:
                work(request)

        return handle

    def keep(self, topic: str, value: bytes | None) -> None:
        """A topic's message from now on."""
        version = self._put_row()
        if value is None:
            self.rows.pop(topic, None)
        else:
            self.rows[topic] = version, value
            self.old[topic, version] = value

    def _put(self, request: Request) -> None:
        codes: list[int] = []
        at = 0
        for topic, expiry_s, length in rows(RetainedPut, request.header(RetainedPutRequest).puts):
            value = None
            if length >= 0:
                value = stamp_retained(request.body[at : at + length], self._clock_ms(), expiry_s)
                at += length
            codes.append(self.codes.pop(0) if self.codes else 0)
            if not codes[-1]:
                self.keep(topic, value)
        request.reply(RetainedPutResponse(codes))

    def _scan(self, request: Request) -> None:
        header = request.header(RetainedScanRequest)
        items = rows(RetainedItem, header.items)
        self.asked += items
        end = self._end()
        found: list[RetainedFound] = []
        taken: list[RetainedRow] = []
        values: list[bytes] = []
        for item in items:
            if found and len(taken) >= header.max_rows:
                break
            before = end if item.before < 0 else item.before
            wanted = [
                (topic, version, value)
                for topic, (version, value) in sorted(self.rows.items())
                if topic > item.after and version < before and matches(item.topic_filter, topic)
            ]
            part = wanted[: min(item.max_count, header.max_rows - len(taken))]
            taken += [RetainedRow(topic, version, len(value)) for topic, version, value in part]
            values += [value for _, _, value in part]
            next_after = (part[-1][0] if part else item.after) if len(part) < len(wanted) else None
            found.append(RetainedFound(len(part), next_after, before))
        request.reply(RetainedScanResponse(found, taken), values, sum(map(len, values)))

    def _get(self, request: Request) -> None:
        wanted = rows(RetainedVersion, request.header(RetainedGetRequest).wanted)
        found = [(one, self.old[one]) for one in wanted if one in self.old]
        taken = [RetainedRow(topic, version, len(value)) for (topic, version), value in found]
        body = b"".join(value for _, value in found)
        request.reply(RetainedGetResponse(len(wanted), taken), [body], len(body))
