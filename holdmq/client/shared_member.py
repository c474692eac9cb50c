"""A shared consumer's membership at one broker: opened on each connection, one pull in hand, acks in batches.

Acknowledgements of one turn of the event loop leave in one request, and while one is on its way the next
ones gather behind it. What a lost connection had in flight is the broker's again: it comes to somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from holdmq.client.own_words import shorten
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.message import Message
from holdmq.record.codec import Record, decode_record
from holdmq.record.origin import RETRY_PREFIX, value_in
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.shared_headers import (
    SharedAckRequest,
    SharedCloseRequest,
    SharedDelivery,
    SharedExtendRequest,
    SharedNack,
    SharedNackRequest,
    SharedOpenRequest,
    SharedOpenResponse,
    SharedPullRequest,
    SharedPullResponse,
    SharedRange,
    SharedSettleResponse,
    SharedStart,
)

CALL_TIMEOUT_S: Final = 15.0
"""How long an answer may take: an acknowledgement waits for the disk, a pull perhaps for a cold read."""
PULL_MAX_BYTES: Final = 1 << 20
REST_S: Final = 0.2
"""Pause after a refusal that may pass."""
REFUSED_REST_S: Final = 5.0
"""Pause after a broker refused this member: somebody must change something first."""

log = structlog.get_logger("holdmq.client")


class DeliveryReceipt(NamedTuple):
    """Which delivery a message is of: the member and its opening, and the broker's receipt."""

    member: SharedMember
    opening: int
    number: int


@dataclass(slots=True, eq=False)
class SharedMessage(Message):
    """A message in flight here: acknowledge it, or it comes again, to any member.

    `reconsume_times` counts the deliveries of it that failed. `deadline` is the event loop's time at which
    the broker takes it back. `is_settled`: it was acknowledged, or given back.
    """

    receipt: DeliveryReceipt | None = field(default=None, repr=False)
    deadline: float = 0.0
    is_settled: bool = False


class _Acks(NamedTuple):
    ranges: list[SharedRange]
    waiting: list[asyncio.Future[None]]


class SharedMember:
    """One broker. `on_messages` gets what it hands out, `on_change` is called when its state changed.

    `tenant`: in whose words topics are said.
    """

    def __init__(
        self,
        broker: str,
        request: SharedOpenRequest,
        on_messages: Callable[[list[SharedMessage]], None],
        on_change: Callable[[], None],
        tenant: str = "",
    ) -> None:
        self.broker = broker
        self._tenant = tenant
        self.error: HoldMQError | None = None
        """Why it is not open, once a broker said so for good."""
        self.is_pulling = False
        self.rest_until = 0.0
        self.started: list[SharedStart] = []
        self.acknowledged = self.refused = self.undecodable = 0
        self._request = request
        self._on_messages = on_messages
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._opening = 0
        self._member_id: int | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._acks = _Acks([], [])
        self._is_flushing = False

    @property
    def is_open(self) -> bool:
        """Whether it can pull."""
        return self._member_id is not None

    def is_valid(self, message: SharedMessage) -> bool:
        """Whether a message may still be in flight here."""
        receipt = message.receipt
        return (
            receipt is not None
            and receipt.opening == self._opening
            and self._member_id is not None
            and not message.is_settled
            and self._loop.time() < message.deadline
        )

    # Opening

    def up(self, connection: Connection) -> None:
        """There is a connection: become a member on it."""
        self._connection = connection
        self._open()

    def down(self) -> None:
        """The connection is lost, and with it what was in flight on it."""
        self._forget()
        self._connection = None
        self._on_change()

    def _forget(self) -> None:
        self._opening += 1
        self._member_id = None
        self.is_pulling = False
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def _open(self) -> None:
        self._forget()
        opening, connection = self._opening, self._connection
        if connection is None:
            return

        def on_reply(reply: Reply | HoldMQError) -> None:
            if opening != self._opening:
                return
            if isinstance(reply, HoldMQError):
                self._refused(reply)
            else:
                answer = reply.header(SharedOpenResponse)
                self._member_id = answer.member_id
                self.started += rows(SharedStart, answer.started)
                self.error = None
            self._on_change()

        connection.request(RequestCode.SHARED_OPEN, self._request, on_reply, CALL_TIMEOUT_S)

    def _refused(self, error: HoldMQError) -> None:
        if isinstance(error, TransportError) and self._connection is None:
            return
        rest_s = REST_S
        if not error.retriable:
            rest_s = REFUSED_REST_S
            if str(self.error) != str(error):
                log.error("a broker refuses this member", broker=self.broker, reason=str(error))
            self.error = error
        self._reopening = self._loop.call_later(rest_s, self._open)

    def close(self) -> None:
        """Leave; what is in flight here goes to others at once. Acknowledgements on their way may be lost."""
        if self._connection is not None and self._member_id is not None:
            self._connection.send_one_way(RequestCode.SHARED_CLOSE, SharedCloseRequest(self._member_id))
        self._forget()

    # Pulling

    def pull(self, messages_max: int, hold_ms: int) -> bool:
        """Ask for messages, unless an answer is to come already; whether it was asked."""
        connection, member_id = self._connection, self._member_id
        now = self._loop.time()
        if connection is None or member_id is None or self.is_pulling or self.rest_until > now:
            return False
        opening = self._opening
        self.is_pulling = True

        def on_reply(reply: Reply | HoldMQError) -> None:
            if opening != self._opening:
                return
            self.is_pulling = False
            if isinstance(reply, HoldMQError):
                self._pull_failed(reply)
            else:
                messages = self._messages(reply)
                if messages:
                    self._on_messages(messages)
            self._on_change()

        header = SharedPullRequest(member_id, messages_max, PULL_MAX_BYTES, hold_ms)
        connection.request(RequestCode.SHARED_PULL, header, on_reply, hold_ms / 1000 + CALL_TIMEOUT_S)
        return True

    def _pull_failed(self, error: HoldMQError) -> None:
        self.rest_until = self._loop.time() + REST_S
        if isinstance(error, RemoteError) and error.code == Code.RECEIPT_UNKNOWN:
            self._open()  # the broker ended this member
        elif not isinstance(error, TransportError):
            log.warning("a broker does not answer a pull", broker=self.broker, reason=str(error))
        if isinstance(error, TransportError) and self._connection is not None:
            # The broker may have handed out what we did not get: a new member begins with nothing.
            self.close()
            self._open()

    def _messages(self, reply: Reply) -> list[SharedMessage]:
        answer = reply.header(SharedPullResponse)
        deadline = self._loop.time() + answer.invisible_ms / 1000
        found: list[SharedMessage] = []
        at = 0
        for row in rows(SharedDelivery, answer.deliveries):
            receipt = DeliveryReceipt(self, self._opening, row.receipt)
            end = at + row.length_bytes
            while at < end:
                size = int.from_bytes(reply.body[at : at + 4], "big")
                try:
                    record = decode_record(reply.body, at)
                    found.append(_message(record, self.broker, row, receipt, deadline, self._tenant))
                except HoldMQError as error:
                    # Left alone it comes again, and goes to the dead letters in the end.
                    self.undecodable += 1
                    log.error("a record cannot be decoded", topic=row.topic, reason=str(error))
                at += size
        return found

    # Settling

    def ack(self, messages: Iterable[SharedMessage]) -> asyncio.Future[None]:
        """Acknowledge messages of this broker; the future is done when its log has it.

        It fails with RemoteError or TransportError; RECEIPT_UNKNOWN: some were taken back before.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._take(messages, self._acks.ranges):
            self._acks.waiting.append(future)
        else:
            self.refused += 1
            future.set_exception(_unknown())
        self._schedule()
        return future

    def _take(self, messages: Iterable[SharedMessage], ranges: list[SharedRange]) -> bool:
        """Mark messages as settled and add them to `ranges`; False = some are not in flight here any more."""
        are_here = True
        for message in messages:
            receipt = message.receipt
            if receipt is None or receipt.opening != self._opening or message.is_settled:
                are_here = False
                continue
            message.is_settled = True
            _add(ranges, receipt.number, message.queue_offset)
        return are_here

    def _schedule(self) -> None:
        if not self._is_flushing and (self._acks.ranges or self._acks.waiting):
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        acks, self._acks = self._acks, _Acks([], [])
        connection, member_id = self._connection, self._member_id
        if connection is None or member_id is None:
            self._is_flushing = False
            _finish(acks, TransportError(f"broker {self.broker!r} is not connected: the messages come again"))
            return
        if not acks.ranges:
            self._is_flushing = False
            _finish(acks, None)
            return

        def on_reply(reply: Reply | HoldMQError) -> None:
            self._is_flushing = False
            error: HoldMQError | None = None
            if isinstance(reply, HoldMQError):
                error = reply
                self.refused += 1
            else:
                refused = rows(SharedRange, reply.header(SharedSettleResponse).refused)
                self.acknowledged += sum(row.messages for row in acks.ranges)
                if refused:
                    self.refused += len(refused)
                    error = _unknown()
            _finish(acks, error)
            self._schedule()

        header = SharedAckRequest(member_id, acks.ranges)
        connection.request(RequestCode.SHARED_ACK, header, on_reply, CALL_TIMEOUT_S)

    async def nack(self, messages: Iterable[SharedMessage], delay_ms: int) -> None:
        """Give messages back, to come again after `delay_ms`. Raises as `ack`."""
        ranges: list[SharedRange] = []
        are_here = self._take(messages, ranges)
        if ranges:
            nacks = [SharedNack(*row, delay_ms) for row in ranges]
            await self._settle(RequestCode.SHARED_NACK, lambda member_id: SharedNackRequest(member_id, nacks))
        if not are_here:
            raise _unknown()

    async def extend(self, messages: Iterable[SharedMessage], invisible_ms: int) -> None:
        """Let messages be in flight until `invisible_ms` from now. Raises as `ack`."""
        wanted = [message for message in messages if self.is_valid(message)]
        ranges: list[SharedRange] = []
        for message in wanted:
            assert message.receipt is not None
            _add(ranges, message.receipt.number, message.queue_offset)
        if not ranges:
            raise _unknown()
        deadline = self._loop.time() + invisible_ms / 1000
        await self._settle(
            RequestCode.SHARED_EXTEND,
            lambda member_id: SharedExtendRequest(member_id, ranges, invisible_ms),
        )
        for message in wanted:
            message.deadline = deadline

    async def _settle(self, code: RequestCode, header: Callable[[int], Header]) -> None:
        connection, member_id = self._connection, self._member_id
        if connection is None or member_id is None:
            raise TransportError(f"broker {self.broker!r} is not connected: the messages come again")
        reply = await connection.call(code, header(member_id), CALL_TIMEOUT_S)
        if reply.header(SharedSettleResponse).refused:
            raise _unknown()


def _finish(acks: _Acks, error: HoldMQError | None) -> None:
    for future in acks.waiting:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _unknown() -> RemoteError:
    return RemoteError(
        Code.RECEIPT_UNKNOWN, "some of the messages were taken back before, or settled: they may come again"
    )


def _add(ranges: list[SharedRange], receipt: int, offset: int) -> None:
    """Add one message; the one after the last makes it longer."""
    if ranges:
        last = ranges[-1]
        if last.receipt == receipt and last.offset + last.messages == offset:
            ranges[-1] = SharedRange(receipt, last.offset, last.messages + 1)
            return
    ranges.append(SharedRange(receipt, offset, 1))


def _message(
    record: Record,
    broker: str,
    row: SharedDelivery,
    receipt: DeliveryReceipt,
    deadline: float,
    tenant: str,
) -> SharedMessage:
    message = record.to_message(broker)
    if message.topic.startswith(RETRY_PREFIX):
        message.topic = value_in(record.properties, "REAL_TOPIC") or message.topic
    if tenant:
        shorten(tenant, message)
    return SharedMessage(
        message.topic,
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.flag,
        message.client_id,
        message.born_ms,
        message.queue_id,
        message.queue_offset,
        message.store_ms,
        row.attempts,
        message.unique_id,
        message.message_id,
        broker,
        receipt,
        deadline,
    )
