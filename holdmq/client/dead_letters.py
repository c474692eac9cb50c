"""Dead letters of consumer groups, over all brokers: listed, read, sent again, purged. See docs/retry.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.client.names import check_group
from holdmq.client.own_words import shorten
from holdmq.errors import Code, OffsetError, RecordError, RemoteError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.names.tenants import within
from holdmq.record.batch import split_records
from holdmq.record.codec import decode_record
from holdmq.record.origin import Origin, dlq_topic, origin_of, value_in
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import PulledQueue, PullQueue, PullRequest, PullResponse
from holdmq.wire.move_headers import (
    DeadLetterRow,
    DlqListRequest,
    DlqListResponse,
    DlqPurgeRequest,
    DlqPurgeResponse,
    DlqResendRequest,
    DlqResendResponse,
    ResendFailure,
    ResentLetters,
)

TIMEOUT_S: Final = 30.0
"""Deadline of one request, retries included: a broker's restart fits in. Every request may be repeated."""
PAGE_BYTES: Final = 1 << 20
RESEND_MAX: Final = 1_000
"""Dead letters of one request; more are sent, or asked about, in several."""

_STATUSES: Final = (Code.OFFSET_BEHIND, Code.CORRUPT)


class DeadLetters(AdminCalls):
    """Asks brokers for dead letters: `async with DeadLetters(["host:9876"]) as letters`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Every call raises TransportError when
    a broker does not answer within `timeout_s`, RemoteError when one refuses.
    """

    KIND = "dead-letters"
    TIMEOUT_S = TIMEOUT_S

    async def groups(self, group: str | None = None) -> dict[str, DeadLetterCount]:
        """Every group that has dead letters, by name, with their counts over all brokers.

        `group`: only this one, None = all.
        """
        found: dict[str, DeadLetterCount] = {}
        brokers = await self._live_brokers()
        for listed in await asyncio.gather(*(self._rows(broker, group) for broker in brokers)):
            for row in listed:
                known = found.setdefault(row.group, DeadLetterCount(0, 0))
                count = row.end_offset - row.first_offset
                found[row.group] = DeadLetterCount(known.messages + count, known.resent + row.resent)
        return {group: found[group] for group in sorted(found) if found[group].messages}

    async def read(self, group: str, after: Mapping[str, int] | None = None) -> AsyncIterator[ReadLetter]:
        """A group's dead letters, broker by broker, the oldest first.

        `after`: broker name to the offset of the last one that was read there, to go on behind it. Ends with
        what was there when it began. Raises OffsetError for one that cannot be read: go on after it.
        """
        check_group(group)
        for broker in await self._live_brokers():
            for row in await self._rows(broker, group):
                offset = max(row.first_offset, -1 if after is None else after.get(broker, -1) + 1)
                while offset < row.end_offset:
                    letters, offset = await self._page(broker, group, offset)
                    for at in range(0, len(letters), RESEND_MAX):
                        part = letters[at : at + RESEND_MAX]
                        if row.resent:
                            part = await self._with_resends(broker, group, part)
                        for letter in part:
                            if letter.offset < row.end_offset:
                                yield letter

    async def resend(
        self, group: str, letters: Iterable[tuple[str, int]] | None = None, *, topic: str = "", by: str = ""
    ) -> Resent:
        """Send dead letters again, each as a new message of the topic that it came from, or of `topic`.

        `letters`: (broker, offset) of each, None = all that were not sent again yet. What was sent again
        before is passed over, so that a repeat is harmless. Their dead letters stay, marked, until purged.
        `by`: who asks, up to 128 characters; `read` shows that name and the time with each of them.
        """
        check_group(group)
        by_broker: dict[str, list[int]] = {}
        for broker, offset in letters or ():
            by_broker.setdefault(broker, []).append(offset)
        resent, repeated = 0, 0
        failures: list[tuple[str, ResendFailure]] = []
        known = await self._live_brokers()
        brokers: Collection[str] = known if letters is None else by_broker
        for broker in brokers:
            if broker not in known:
                raise UsageError(f"there is no broker {broker!r}")
            if letters is None and not await self._rows(broker, group):
                continue
            offsets = by_broker.get(broker, []) if letters is not None else None
            requests = _requests(DlqResendRequest(group, topic=topic, by=by), offsets)
            while requests:
                reply = await self.call(RequestCode.DLQ_RESEND, broker, requests[0])
                answer = reply.header(DlqResendResponse)
                resent += answer.resent
                repeated += answer.repeated
                failures += [(broker, failure) for failure in rows(ResendFailure, answer.failures)]
                request = requests.pop(0)
                if answer.next_offset >= 0:
                    requests.append(replace(request, first_offset=answer.next_offset))
        return Resent(resent, repeated, failures)

    async def purge(self, group: str, until: Mapping[str, int] | None = None) -> int:
        """Give up a group's dead letters for good; how many.

        `until`: broker name to the offset below which they go; None = all of now, at every broker.
        """
        check_group(group)
        known = await self._live_brokers()
        purged = 0
        for broker in known if until is None else until:
            if broker not in known:
                raise UsageError(f"there is no broker {broker!r}")
            if not await self._rows(broker, group):
                continue
            request = DlqPurgeRequest(group, -1 if until is None else until[broker])
            reply = await self.call(RequestCode.DLQ_PURGE, broker, request)
            purged += reply.header(DlqPurgeResponse).purged
        return purged

    async def _rows(self, broker: str, group: str | None) -> list[DeadLetterRow]:
        reply = await self.call(RequestCode.DLQ_LIST, broker, DlqListRequest(group))
        return rows(DeadLetterRow, reply.header(DlqListResponse).groups)

    async def _with_resends(self, broker: str, group: str, letters: list[ReadLetter]) -> list[ReadLetter]:
        """These neighbours, at most RESEND_MAX, with what their broker knows of their sending again."""
        reply = await self.call(RequestCode.DLQ_LIST, broker, DlqListRequest(group, letters[0].offset))
        found: dict[int, LetterResend] = {}
        for row in rows(ResentLetters, reply.header(DlqListResponse).resends):
            resend = LetterResend(None if row.at_ms < 0 else row.at_ms, row.by)
            found.update(dict.fromkeys(range(row.first_offset, row.end_offset), resend))
        return [letter._replace(resent=found.get(letter.offset)) for letter in letters]

    async def _page(self, broker: str, group: str, offset: int) -> tuple[list[ReadLetter], int]:
        """The letters at an offset, as many as come in one answer, and the offset behind them."""
        topic = dlq_topic(group)
        reply = await self.call(
            RequestCode.PULL, broker, PullRequest([PullQueue(topic, 0, 0, offset)], PAGE_BYTES)
        )
        (queue,) = rows(PulledQueue, reply.header(PullResponse).queues)
        place = TopicQueue(topic, broker, 0)
        if queue.status in _STATUSES:
            raise OffsetError(Code(queue.status), str(place), offset, queue.next_offset)
        if queue.status != Code.OK:
            raise RemoteError(Code(queue.status), f"{place} at offset {offset}")
        letters: list[ReadLetter] = []
        at = 0
        for size in split_records(reply.body).tolist():
            letters.append(_letter(reply.body, at, group, broker, self.tenant))
            at += size
        if queue.next_offset <= offset:
            raise OffsetError(Code.OFFSET_AHEAD, str(place), offset, queue.next_offset)
        return letters, queue.next_offset


class DeadLetterCount(NamedTuple):
    """A group's dead letters: how many there are, and how many of them were sent again."""

    messages: int
    resent: int


class LetterResend(NamedTuple):
    """When a dead letter was sent again (None: not known any more), and for whom ("": nobody was named)."""

    at_ms: int | None
    by: str


class ReadLetter(NamedTuple):
    """A dead letter. `message` is as the group got it, its topic and `reconsume_times` (retries) included.

    It is at `offset` at `broker`, since `failed_ms`; `origin` says where the group first read it (None: the
    record does not say). `resent` is None until it is sent again.
    """

    broker: str
    offset: int
    failed_ms: int
    origin: Origin | None
    message: Message
    resent: LetterResend | None = None


class Resent(NamedTuple):
    """What `resend` did: sent now, sent before, and (broker, failure) for what could not be sent."""

    resent: int
    repeated: int
    failures: list[tuple[str, ResendFailure]]


def _requests(whole: DlqResendRequest, offsets: list[int] | None) -> list[DlqResendRequest]:
    """The requests for these offsets of one broker; None = for all, one that says how to go on."""
    if offsets is None:
        return [whole]
    parts = [offsets[at : at + RESEND_MAX] for at in range(0, len(offsets), RESEND_MAX)]
    return [replace(whole, offsets=part) for part in parts]


def _letter(records: memoryview, at: int, group: str, broker: str, tenant: str) -> ReadLetter:
    record = decode_record(records, at)
    origin = origin_of(record.properties)
    if origin is not None:
        origin = origin._replace(topic=within(tenant, origin.topic))
    try:
        message = record.to_message(broker)
    except RecordError:
        # It is shown all the same: that nobody can decode it may be why it is here.
        message = Message(dlq_topic(group), record.body, queue_offset=record.queue_offset)
    message.topic = value_in(record.properties, "REAL_TOPIC") or message.topic
    shorten(tenant, message)
    return ReadLetter(broker, record.queue_offset, record.store_ms, origin, message)
