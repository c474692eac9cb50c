"""What a worker says of itself: its numbers to the parent, its state to the brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gateway.brokers.link import BrokerLink
from gateway.edge.listeners import Listener
from gateway.ground.counters import Counters
from gateway.ground.parent_port import ParentPort

if TYPE_CHECKING:
    from gateway.deliver.past_delivery import PastDelivery
    from gateway.persistent.retained_puts import RetainedPuts
    from gateway.worker.roster import BrokerRoster

HEARTBEAT_S: Final = 5.0


class Reporting:
    """Sends reports to the parent, each time it is asked to, and heartbeats to the brokers."""

    def __init__(
        self,
        index: int,
        parent: ParentPort,
        links: Mapping[str, BrokerLink],
        roster: BrokerRoster,
        listeners: Sequence[Listener],
        past: PastDelivery,
        retained_puts: RetainedPuts,
        counters: Counters,
    ) -> None:
        self._index = index
        self._parent = parent
        self._links = links
        self._roster = roster
        self._listeners = listeners
        self._past = past
        self._retained_puts = retained_puts
        self._counters = counters
        self._next_heartbeat = 0.0
        self._lag_max_s = 0.0

    def late(self, late_s: float) -> None:
        """Note that the worker's clock ticked `late_s` after its time."""
        self._lag_max_s = max(self._lag_max_s, late_s)

    def tick(self, now: float) -> None:
        """Send heartbeats when it is time."""
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            self.send_heartbeats()

    def send_heartbeats(self) -> None:
        """Tell the brokers what this worker does."""
        counters = self._counters
        state: dict[str, object] = {
            "connections": counters.connections,
            "messages_in": counters.messages_in_qos0_total
            + counters.messages_in_qos1_total
            + counters.messages_in_qos2_total,
            "messages_out": counters.messages_out_qos0_total
            + counters.messages_out_qos1_total
            + counters.messages_out_qos2_total,
            "worker": self._index,
        }
        for link in self._links.values():
            link.heartbeat(state)

    def each_second(self, _now: float) -> None:
        """Give the parent the numbers; one that does not read in time gets the next ones."""
        self.send_report()

    def send_report(self) -> None:
        """Give the parent the numbers as they are now."""
        if not self._parent.has_parent:
            return
        counters = self._counters
        producers = [link.producer for link in self._links.values()]
        counters.brokers_up = sum(p.is_connected for p in producers)
        counters.produce_batches_total = sum(p.batches for p in producers)
        counters.produce_records_total = sum(p.records for p in producers)
        counters.messages_delayed_total = sum(p.delayed_records for p in producers)
        counters.produce_refused_records_total = sum(p.refused_records for p in producers)
        counters.produce_resent_batches_total = sum(p.resent_batches for p in producers)
        counters.produce_epochs_total = sum(p.epochs for p in producers)
        counters.produce_pending_bytes = sum(p.pending_bytes for p in producers)
        counters.catchup_readers = self._past.catchup.readers
        counters.catchup_turns_total = self._past.catchup.turns
        counters.catchup_shared_total = self._past.catchup.shared
        counters.retained_slices_total = self._past.retained.slices
        counters.retained_pending_bytes = self._retained_puts.pending_bytes
        counters.loop_lag_ms_max = int(self._lag_max_s * 1000)
        self._lag_max_s = 0.0
        report = {
            "ready": self._roster.is_ready,
            "numbers": counters.snapshot(),
            "refused": counters.refused,
            "listeners": {listener.name: listener.numbers() for listener in self._listeners},
        }
        self._parent.tell(report)
