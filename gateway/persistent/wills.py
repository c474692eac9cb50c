"""Wills: given to the owner of the session with CONNECT, and published when it says that they are due.

Publishing is as of every message (topic, queue, retained), but for its record, which says what it is known
by: the owner tells another gateway if this one dies, and the log has the will once. A will whose session no
owner knows (none was there) is published by its own gateway when the connection ends. Source: mqtt.md, Wills.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import xxhash

from gateway.ground.entries import TopicEntry, record_properties
from gateway.ground.receipts import CLOSE, PublishReceipt, ReceiptOwner
from gateway.persistent.retained_puts import retained_put
from gateway.session.events import Closed
from gateway.session.plans import sys_flag_of
from gateway.session.session import Session
from holdmq.errors import RecordError, WireError
from holdmq.mqtt import PUBLISH, RETAIN, ReasonCode, Will, encode_block
from holdmq.names.topics import is_other
from holdmq.produce import PRODUCE_MAX_BYTES
from holdmq.record.codec import encode_record
from holdmq.record.once import WILL_UID, Once
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import DueWill, SessionWillsRequest
from holdmq.wire.session_will import DELETE_WILL, DRAIN_WILL, NO_WILL, PUBLISH_WILL, SessionWill, decode_will

if TYPE_CHECKING:
    from gateway.brokers.turn import Turn
    from gateway.ground.counters import Counters
    from gateway.ground.smallest import SmallestMessage
    from gateway.ground.targets import Target
    from gateway.persistent.retained_puts import RetainedPuts
    from gateway.publish.ingress import Ingress
    from gateway.publish.topics import ClientTopics
    from holdmq.client.route import Link
    from holdmq.rpc.connection import Request

IN_HAND_MAX: Final = 10_000
"""Wills that are being published; the owner tells others of what comes beyond it."""

AT_OWNER: Final = Will("", b"")
"""In the place of a will that the owner of its session has: few are ever needed, and none twice."""

Done = Callable[[int], None]
"""Told 0, the reason code of a refusal, or with CLOSE: nobody knows whether the log has it."""

log = telemetry.get_logger()


def will_of(session: Session) -> bytes:
    """What a session's owner is given with CONNECT; b"" = it has no will."""
    will = session.will
    if will is None:
        return b""
    return _session_will(will, session.expiry_s, session.born_host).encode()


def what_becomes_of_it(event: Closed, drain_will_min_s: float) -> str:
    """What the END of a connection says of its will."""
    if not event.had_will:
        return NO_WILL
    if event.will is None:
        return DELETE_WILL
    return f"{DRAIN_WILL}{drain_will_min_s:g}" if event.reason == "draining" else PUBLISH_WILL


def _session_will(will: Will, expiry_s: int, born_host: bytes) -> SessionWill:
    return SessionWill(
        will.properties.will_delay_interval or 0,
        expiry_s,
        will.topic,
        will.qos << 1 | (RETAIN if will.retain else 0),
        # The will delay is the will's own and no property of its PUBLISH (3.1.3.2.2).
        encode_block(replace(will.properties, will_delay_interval=None), PUBLISH),
        will.payload,
        born_host,
    )


class WillPublisher:
    """Publishes the wills that owners say are due; `will_done` tells an owner what became of one.

    `find_entry` knows MQTT topics, below their tenant's mount; `topics` are those of the log; `smallest` is
    what brokers take.
    """

    def __init__(
        self,
        find_entry: Callable[[str], TopicEntry],
        topics: ClientTopics,
        ingress: Ingress,
        smallest: SmallestMessage,
        retained_puts: RetainedPuts,
        will_done: Callable[[str, str, int], None],
        counters: Counters,
        turn: Turn,
        now: Callable[[], float],
    ) -> None:
        self._find_entry = find_entry
        self._topics = topics
        self._ingress = ingress
        self._smallest = smallest
        self._retained_puts = retained_puts
        self._will_done = will_done
        self._counters = counters
        self._turn = turn
        self._now = now
        self.in_hand = 0

    def pushed(self, link: Link, request: Request) -> bool:
        """A broker sent something by itself: SESSION_WILLS is ours."""
        if request.command.code != RequestCode.SESSION_WILLS:
            return False
        for due in rows(DueWill, request.header(SessionWillsRequest).wills):
            try:
                will = decode_will(due.will)
            except WireError as error:
                log.error("a will cannot be published", client=due.client_id, reason=str(error))
                self._told(link.name, due, ReasonCode.UNSPECIFIED_ERROR)
                continue
            if self.in_hand >= IN_HAND_MAX:
                break
            self._publish_due(link.name, due, will)
        self._turn.settle()
        return True

    def _publish_due(self, owner: str, due: DueWill, will: SessionWill) -> None:
        self.in_hand += 1
        uid = WILL_UID | xxhash.xxh3_64_intdigest(b"%s\0%d" % (due.client_id.encode(), due.epoch))

        def done(outcome: int) -> None:
            self.in_hand -= 1
            self._told(owner, due, outcome)

        self.publish(due.client_id, will, Once(uid, 0, (1, 1), 1, 0).pair(), done)

    def _told(self, owner: str, due: DueWill, outcome: int) -> None:
        if outcome & CLOSE:
            self._counters.refused["will_put_off"] += 1
            return  # its owner waits for a while, and tells another gateway, or this one again
        self._will_done(owner, due.client_id, due.epoch)

    def ended(self, session: Session, will: Will) -> None:
        """A connection that no owner knows of ended: its will is due now, as its session ends with it."""
        self.publish(
            session.client_id, _session_will(will, session.expiry_s, session.born_host), b"", _nobody_waits
        )

    def publish(self, client_id: str, will: SessionWill, pair: bytes, done: Done) -> None:
        """Publish a will whose record gets the property `pair`; `done` is called once."""
        is_deletion = will.flags & RETAIN and not will.payload
        if len(will.payload) < self._smallest.bytes_min and not is_deletion:
            self.settled(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, done, "too_small")
            return
        if not will.flags & RETAIN:
            self._publish(client_id, will, pair, done)
            return

        def kept(outcomes: list[int]) -> None:
            if outcomes[0]:
                self.settled(outcomes[0], done, "not_retained")
            else:
                self._publish(client_id, will, pair, done)

        put = retained_put(will.topic, will.flags >> 1, will.payload, will.block, client_id)
        self._retained_puts.put([put], kept)

    def _publish(self, client_id: str, will: SessionWill, pair: bytes, done: Done) -> None:
        topics = self._topics
        entry = self._find_entry(will.topic)
        if entry.refusal:
            self.settled(entry.refusal, done)
            return
        topic, tag = entry.own
        if not is_other(topic) and topics.uses_other(topic, client_id):
            topic, tag = entry.other
        target = topics.locate(topic, client_id)
        if target is None:
            topics.create(
                topic,
                partial(self._publish, client_id, will, pair, done),
                partial(done, CLOSE | ReasonCode.SERVER_BUSY),
            )
            return
        if isinstance(target, int):
            self.settled(target, done)
            return
        try:
            pairs, separator, mqtt = record_properties(tag, client_id, will.block).partition(b"\0")
            record = encode_record(
                topic.encode(),
                target.queue_id,
                will.payload,
                b"".join((pairs, pair, separator, mqtt)),
                time.time_ns() // 1_000_000,
                will.born_host,
                sys_flag_of(will.flags),
                prepared=self._ingress.mark,
            )
        except RecordError:
            self.settled(ReasonCode.QUOTA_EXCEEDED, done)
            return
        self._add(target, record, pair, done)

    def _add(self, target: Target, record: bytes, pair: bytes, done: Done) -> None:
        producer = target.producer
        if len(record) > (producer.record_max_bytes or PRODUCE_MAX_BYTES):
            self.settled(ReasonCode.QUOTA_EXCEEDED, done)
            return
        run = producer.open_run(target, self._now())
        run.records.append(record)
        run.is_noted = run.is_noted or bool(pair)
        run.receipts.append(PublishReceipt(_WaitingWill(self, done), 0, 0))
        producer.link.added(len(record))

    def settled(self, outcome: int, done: Done, reason: str = "") -> None:
        """A will is in the log, or refused, or nobody knows; refusals count under `reason`, or their own."""
        if not outcome:
            self._counters.wills_total += 1
        elif not outcome & CLOSE:
            self._counters.refused[f"will_{reason or ReasonCode(outcome).name.lower()}"] += 1
        done(outcome)


class _WaitingWill(ReceiptOwner):
    """Who is owed for one will."""

    __slots__ = ("_done", "_wills")

    def __init__(self, wills: WillPublisher, done: Done) -> None:
        self._wills = wills
        self._done = done

    def receipt_settled(self, receipt: PublishReceipt) -> None:
        """`receipt.outcome` is known now."""
        self._wills.settled(receipt.outcome or 0, self._done)


def _nobody_waits(_outcome: int) -> None:
    """Its connection is gone, and no owner has it."""
