"""The receiving half of a session: receipts in order, QoS 2 exactly once. Made at the first publish."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.ground.receipts import PublishReceipt
from holdmq.mqtt import PUBREC, PublishRun

if TYPE_CHECKING:
    from gateway.ground.counters import Counters
    from gateway.ground.entries import TopicEntry
    from gateway.ground.targets import Target
    from gateway.session.plans import TopicPlan

RECORDED = True
PENDING = False


class Inbound:
    """What a publishing session needs.

    `count` is how many QoS 1 and 2 publishes are not acknowledged to the end (receive maximum),
    `unsettled` how many of them still wait for their broker. `messages` came over this connection, of every
    QoS, repeats not counted.
    `is_unanswerable`: a message of this session may or may not be in the log, so nothing later is answered.
    `unreleased` holds QoS 2 packet ids until PUBREL: RECORDED once the log has the message; `restored` are
    those of earlier connections among them, which take no part in this one's receive maximum.
    `kept` says of the next retained messages what became of them: 0, or the reason code to refuse with.
    `targets` is the queue chosen for each log topic, kept for the connection's life; `plans` are
    those of the topics that repeat, `plan` the one that was used last: most devices have one topic.
    """

    __slots__ = (
        "count",
        "head",
        "is_unanswerable",
        "kept",
        "messages",
        "plan",
        "plans",
        "restored",
        "tail",
        "targets",
        "unreleased",
        "unsettled",
    )

    def __init__(self) -> None:
        # What every publish touches comes first, so that it shares a cache line.
        self.plan: TopicPlan | None = None
        self.count = 0
        self.unsettled = 0
        self.messages = 0
        self.head: PublishReceipt | None = None
        self.tail: PublishReceipt | None = None
        self.is_unanswerable = False
        self.unreleased: dict[int, bool] | None = None
        self.restored: set[int] | None = None
        self.kept: deque[int] | None = None
        self.targets: dict[str, Target] = {}
        self.plans: dict[tuple[bytes, int], TopicPlan] = {}

    def expect(self, receipt: PublishReceipt) -> None:
        """Append a receipt: it is answered after all before it."""
        if self.tail is None:
            self.head = receipt
        else:
            self.tail.next = receipt
        self.tail = receipt

    def take_settled(self) -> PublishReceipt | None:
        """Take the receipt at the head if it is settled."""
        receipt = self.head
        if receipt is None or receipt.outcome is None:
            return None
        self.head = receipt.next
        if self.head is None:
            self.tail = None
        return receipt

    def plan_for(self, entry: TopicEntry, kind: int) -> TopicPlan | None:
        """The plan for publishes of this kind to this topic, if there is one whose queue is still used."""
        plan = self.plan
        if plan is None or plan.entry is not entry or plan.kind != kind:
            # By name: the table of topics may have forgotten the entry of one that repeats, and made another.
            plan = self.plans.get((entry.raw, kind))
            if plan is None:
                return None
            plan.entry = entry
            self.plan = plan
        return None if plan.target.is_retired else plan

    def forget_plans(self) -> None:
        """Work them out anew: what they were made from has changed, or they are too many."""
        self.plan = None
        self.plans.clear()

    def drop_receipts(self) -> None:
        """Answer no publish any more: receipts and their session would keep each other."""
        self.head = self.tail = None

    def is_repeat(self, packet_id: int) -> bool:
        """Whether this QoS 2 packet id is unreleased; one that is not becomes so (4.3.3)."""
        if self.unreleased is None:
            self.unreleased = {}
        if packet_id in self.unreleased:
            return True
        self.unreleased[packet_id] = PENDING
        return False

    def take_mixed(self, run: PublishRun[TopicEntry], counters: Counters) -> tuple[int, list[int]]:
        """Count publishes of mixed QoS, and take repeats of unreleased QoS 2 out of the run.

        Returns for how many of the run an answer is owed, and the packet ids of repeats that the log has:
        they are answered again without a second append [MQTT-4.3.3-9], -10. One that it does not have yet
        is answered when it has.
        """
        flags = [message[1] for message in run.messages]
        qos0 = sum(not flag & 6 for flag in flags)
        counters.messages_in_qos0_total += qos0
        qos2 = sum(flag & 6 == 4 for flag in flags)
        counters.messages_in_qos1_total += len(flags) - qos0 - qos2
        owed = len(flags) - qos0
        if not qos2:
            return owed, []
        messages, run.messages = run.messages, []
        repeats: list[int] = []
        for message in messages:
            if message[1] & 6 == 4 and self.is_repeat(message[2]):
                repeats.append(message[2])
            else:
                run.messages.append(message)
        counters.messages_repeated_total += len(repeats)
        counters.messages_in_qos2_total += qos2 - len(repeats)
        unreleased = self.unreleased or {}
        recorded = [packet_id for packet_id in repeats if unreleased.get(packet_id) == RECORDED]
        return owed - len(repeats), recorded

    def recorded(self, receipt: PublishReceipt) -> None:
        """The log has the QoS 2 messages of this receipt, or refused them (then their ids are free)."""
        assert receipt.packet_type == PUBREC
        if self.unreleased is not None:
            for packet_id in receipt.packet_ids:
                if receipt.outcome:
                    self.unreleased.pop(packet_id, None)
                elif packet_id in self.unreleased:  # or its PUBREL came before its PUBREC was sent
                    self.unreleased[packet_id] = RECORDED

    def release(self, packet_id: int) -> bool:
        """PUBREL: forget the id; False when it is not known."""
        if self.unreleased is None or self.unreleased.pop(packet_id, None) is None:
            return False
        if self.restored is not None and packet_id in self.restored:
            self.restored.discard(packet_id)
        else:
            self.count -= 1
        return True

    def restore(self, packet_ids: list[int]) -> None:
        """The log has these QoS 2 messages of an earlier connection, and PUBREL has not come."""
        self.restored = set(packet_ids)
        self.unreleased = dict.fromkeys(packet_ids, RECORDED)
