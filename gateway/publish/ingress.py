"""Publishes to records: the loop that every inbound message runs through."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.ground.delayed import DELAYED_ROOM_BYTES
from gateway.ground.entries import TopicEntry, record_properties
from gateway.ground.limits import PLANS_MAX
from gateway.ground.receipts import PublishReceipt
from gateway.ground.smallest import SmallestMessage
from gateway.ground.targets import RecordProducer, Target
from gateway.session.inbound import Inbound
from gateway.session.permit import ALLOWED, UNASKED
from gateway.session.plans import NotedRecords, TopicPlan
from gateway.session.received import Queue
from gateway.session.session import Session
from holdmq.errors import RecordError
from holdmq.mqtt import MQTT_5, PUBACK, PUBREC, RETAIN, PublishRun, ReasonCode, read_lone_publish
from holdmq.names.topics import is_other
from holdmq.produce import PRODUCE_MAX_BYTES
from holdmq.record.codec import PROPERTIES_BYTES_MAX
from holdmq.record.once import ONCE_BYTES_MAX

_ANSWERS: Final = (0, PUBACK, PUBREC)
Refusal = int
MissingTopic = str

Locate = Callable[[str, str, Queue | None], "Target | Refusal | None"]
"""(log topic, client id, its queue so far) → the queue of this client, a reason code, or None when the topic
is not known."""


class Unbound(NamedTuple):
    """The session's row must say first that its QoS 2 publishes to this log topic go to this queue."""

    topic: str
    queue: Queue


class Keep(NamedTuple):
    """Retained messages at the head of the run must be put first: (topic, QoS, payload, properties)."""

    messages: list[tuple[str, int, bytes, bytes]]


UsesOther = Callable[[str, str], bool]
Missing = MissingTopic | Unbound | TopicEntry | Keep
"""What a publish has to wait for."""


class Ingress:
    """Turns publishes into records of the brokers' open batches.

    `locate` finds a queue; `uses_other(topic, client_id)` says that a topic does not exist and may not
    be created, so that the shared one is used; `smallest` is what brokers take; `now` is the loop's clock.
    """

    __slots__ = ("_locate", "_mark", "_now", "_smallest", "_uses_other", "full")

    def __init__(
        self, locate: Locate, uses_other: UsesOther, smallest: SmallestMessage, now: Callable[[], float]
    ) -> None:
        self._locate = locate
        # Made here and not at import: each forked worker has its own.
        self._mark = secrets.randbits(62) | 1
        self._uses_other = uses_other
        self._smallest = smallest
        self._now = now
        self.full: RecordProducer | None = None
        """A producer that the last `publish` gave messages and that must not get more (`must_hold`)."""

    @property
    def mark(self) -> int:
        """What the records of this worker have in common."""
        return self._mark

    def publish(self, session: Session, run: PublishRun[TopicEntry]) -> Missing | None:
        """Add the run's messages, in order, to the batches of their brokers.

        Returns None when all are added or refused; else the log topic that must be created first, the queue
        that must be written down, the topic whose permission must be asked for, or the retained messages that
        must be put, and `run.messages` are then those that wait for it. What became of retained messages is
        left in `inbound.kept`.
        """
        inbound = session.inbound
        assert inbound is not None
        self.full = None
        buffer = run.buffer
        born_ms = time.time_ns() // 1_000_000
        last_entry: TopicEntry | None = None
        last_kind = -1
        size = 0
        record_max = 0
        is_delayed = False
        producer: RecordProducer | None = None
        records: list[bytes] | None = None
        plan: TopicPlan | None = None
        least = self._smallest.bytes_min
        noting: NotedRecords | None = None
        for at, (entry, flags, packet_id, start, end, properties) in enumerate(run.messages):
            kind = flags & 7
            if end - start < least and self._is_too_small(session, entry, kind, end - start):
                last_entry = None
                if kind & RETAIN and inbound.kept:
                    inbound.kept.popleft()
                self._refuse(session, kind, packet_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "too_small")
                continue
            if entry is not last_entry or kind != last_kind or properties:
                if size and producer is not None:
                    self._added(producer, size)
                    size = 0
                plan = None if properties else inbound.plan_for(entry, kind)
                if plan is None:
                    found = self._plan(session, inbound, entry, kind, properties)
                    if isinstance(found, MissingTopic | Unbound | TopicEntry):
                        run.messages = run.messages[at:]
                        return found
                    if isinstance(found, Refusal):
                        last_entry = None
                        if kind & RETAIN and inbound.kept:
                            inbound.kept.popleft()
                        self._refuse(session, kind, packet_id, found)
                        continue
                    plan = found
                if kind & RETAIN:
                    if not inbound.kept:
                        run.messages = run.messages[at:]
                        return _to_keep(session, run, least)
                    kept = inbound.kept.popleft()
                    if kept:
                        last_entry = None
                        self._refuse(session, kind, packet_id, kept)
                        continue
                template, noting = plan, plan.noting
                target = plan.target
                producer = target.producer
                record_max = producer.record_max_bytes or PRODUCE_MAX_BYTES
                is_delayed = plan.is_delayed
                if is_delayed:
                    record_max -= DELAYED_ROOM_BYTES
                packet_type = plan.packet_type
                records = None
                last_entry = None if properties or kind & RETAIN else entry
                last_kind = kind
            body = buffer[start:end]
            if noting is None:
                record = template.encode(body, born_ms)
            else:
                record = noting.encode(body, born_ms, packet_id)
            length = len(record)
            if length > record_max:
                last_entry = None
                self._refuse(session, kind, packet_id, ReasonCode.QUOTA_EXCEEDED)
                continue
            if records is None:
                # Only now: a run or a receipt without a message would never be settled.
                assert producer is not None
                batch_run = target.delayed_run if is_delayed else target.run
                if batch_run is None:
                    batch_run = producer.open_run(target, self._now(), is_delayed)
                records = batch_run.records
                if noting is not None:
                    batch_run.is_noted = True
                if packet_type:
                    receipt = PublishReceipt(session, packet_type, packet_id)
                    batch_run.receipts.append(receipt)
                    inbound.expect(receipt)
            elif packet_type:
                receipt.add(packet_id)
            records.append(record)
            size += length
            if size >= PRODUCE_MAX_BYTES:
                assert producer is not None
                self._added(producer, size)
                size = 0
                last_entry = None
        if size and producer is not None:
            self._added(producer, size)
        return None

    def publish_like_last(self, session: Session, data: bytes, now: float) -> bool:
        """Take a read that is exactly one publish like the session's last one: same topic, same QoS (0 or 1),
        no properties.

        Nearly all reads are, and decoder, events and `publish` would cost them several times as much. False:
        it is anything else, or would be refused; nothing has changed then.
        """
        inbound = session.inbound
        plan = None if inbound is None else inbound.plan
        if inbound is None or plan is None or not plan.raw or plan.target.is_retired:
            return False
        kind = plan.kind
        stop = read_lone_publish(data, kind, plan.raw, session.version)
        if not stop or not session.takes_publish(data):
            return False
        target = plan.target
        producer = target.producer
        packet_id = 0
        start = stop
        if kind:
            if inbound.count >= session.context.limits.receive_max and session.version == MQTT_5:
                return False
            packet_id = data[stop] << 8 | data[stop + 1]
            start += 2
        if session.version == MQTT_5:
            start += 1
        if len(data) - start < self._smallest.bytes_min:
            return False
        record = plan.encode(data[start:], time.time_ns() // 1_000_000)
        length = len(record)
        if length > (producer.record_max_bytes or PRODUCE_MAX_BYTES):
            return False
        self.full = None
        session.heard_at = now
        run = target.run
        if run is None:
            run = producer.open_run(target, now)
        run.records.append(record)
        inbound.messages += 1
        counters = session.context.counters
        if kind:
            counters.messages_in_qos1_total += 1
            inbound.count += 1
            inbound.unsettled += 1
            receipt = PublishReceipt(session, PUBACK, packet_id)
            run.receipts.append(receipt)
            inbound.expect(receipt)
        else:
            counters.messages_in_qos0_total += 1
        self._added(producer, length)
        return True

    def _added(self, producer: RecordProducer, size_bytes: int) -> None:
        producer.link.added(size_bytes)
        if producer.must_hold:
            self.full = producer

    def _plan(
        self,
        session: Session,
        inbound: Inbound,
        entry: TopicEntry,
        kind: int,
        properties: bytes,
    ) -> TopicPlan | Refusal | MissingTopic | Unbound | TopicEntry:
        if entry.refusal:
            return entry.refusal
        if session.permit is not None:
            verdict = session.permit.verdict(entry)
            if verdict != ALLOWED:
                return entry if verdict == UNASKED else verdict
        delay_s = entry.delay_s
        if delay_s is not None and kind & RETAIN:
            # When it is due nobody would be there to keep it as the topic's retained message.
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        topic, tag = entry.own
        is_first = topic not in inbound.targets and not is_other(topic)
        if is_first and self._uses_other(topic, session.client_id):
            topic, tag = entry.other
        target = inbound.targets.get(topic)
        if target is not None and target.is_retired:
            if target.runs:
                return topic  # what was sent there comes first
            del inbound.targets[topic]
            inbound.forget_plans()
            target = None
        received = None if session.cursor is None else session.cursor.received
        if target is None:
            bound = None if received is None else received.queues.get(topic)
            located = self._locate(topic, session.client_id, bound)
            if located is None:
                return topic
            if isinstance(located, Refusal):
                return located
            target = inbound.targets[topic] = located
        qos = kind >> 1
        is_noted = qos == 2 and session.cursor is not None
        queue = (target.producer.link.name, target.queue_id) if is_noted else None
        if queue is not None and (received is None or received.queues.get(topic) != queue):
            return Unbound(topic, queue)
        try:
            encoded = record_properties(tag, session.client_id, properties, delay_s)
            room = ONCE_BYTES_MAX + (0 if delay_s is None else DELAYED_ROOM_BYTES)
            if len(encoded) > PROPERTIES_BYTES_MAX - room:
                return ReasonCode.QUOTA_EXCEEDED  # the broker would refuse all that travels with it
            host = session.born_host
            plan = TopicPlan(entry, kind, _ANSWERS[qos], target, encoded, host, self._mark)
        except RecordError:
            return ReasonCode.QUOTA_EXCEEDED  # tag and properties are over 32 KiB (storage.md, The record)
        if is_noted:
            assert received is not None
            plan.noting = NotedRecords(received, kind, target, encoded, host, self._mark)
        if not properties:
            if len(inbound.plans) >= PLANS_MAX:
                inbound.forget_plans()
            inbound.plans[entry.raw, kind] = inbound.plan = plan
        return plan

    def _is_too_small(self, session: Session, entry: TopicEntry, kind: int, size_bytes: int) -> bool:
        """Whether a message below the least size is refused for that: an empty retained one deletes, and
        where the topic is not the client's own affair, that is what is said."""
        if kind & RETAIN and not size_bytes:
            return False
        permit = session.permit
        return not entry.refusal and (permit is None or permit.verdict(entry) == ALLOWED)

    def _refuse(
        self, session: Session, kind: int, packet_id: int, reason_code: int, reason: str = ""
    ) -> None:
        session.context.counters.refused[f"publish_{reason or ReasonCode(reason_code).name.lower()}"] += 1
        if kind & 6:
            receipt = PublishReceipt(session, _ANSWERS[kind >> 1], packet_id)
            session.expect(receipt)
            receipt.settle(reason_code)


def _to_keep(session: Session, run: PublishRun[TopicEntry], least: int) -> Keep:
    """The retained messages at the head of a run, as far as it is known that they may be published."""
    permit, buffer = session.permit, run.buffer
    found: list[tuple[str, int, bytes, bytes]] = []
    for entry, flags, _, start, end, properties in run.messages:
        if not flags & RETAIN:
            break
        if found and start < end < start + least:
            break
        if found and (entry.refusal or entry.delay_s is not None):
            break
        if found and permit is not None and permit.verdict(entry) != ALLOWED:
            break
        found.append((entry.mqtt_topic, flags >> 1 & 3, buffer[start:end], properties))
    return Keep(found)
