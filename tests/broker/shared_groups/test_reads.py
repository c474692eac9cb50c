"""What a read of a shared queue gives to a member."""

from __future__ import annotations

from broker.shared_groups.core.queue import Claim, SharedQueue
from broker.shared_groups.core.subscriptions import SubscriptionFilter
from broker.shared_groups.reads import Looked, choose
from storage.api.queues import QueueRead, ReadStatus


def test_a_read_that_found_nothing_yet_hands_out_nothing_and_looks_no_further() -> None:
    queue = SharedQueue.__new__(SharedQueue)
    claim = Claim(queue, 7, 17, 10, 0, True)
    for filter_text in ("*", "a"):
        wanted = SubscriptionFilter(filter_text)
        # The disk's index ends where the claim begins: what follows is in memory only.
        read = QueueRead(ReadStatus.FOUND, 7, 0, 17)
        assert choose(claim, read, wanted, is_retry=False) == Looked(7, [])
    passed_by = QueueRead(ReadStatus.FOUND, 12, 0, 17)
    assert choose(claim, passed_by, SubscriptionFilter("a"), is_retry=True) == Looked(12, [])
