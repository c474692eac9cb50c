"""What a read gives of a claim: which of its messages go to the member, with which attempts."""

from __future__ import annotations

from typing import NamedTuple

from broker.shared_groups.core.acknowledged import bits
from broker.shared_groups.core.queue import Claim
from broker.shared_groups.core.subscriptions import SubscriptionFilter
from holdmq.record.batch import split_records
from holdmq.record.codec import (
    IPV6_EXTRA,
    QUEUE_OFFSET_AT,
    RECONSUME_AT,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    tag_of_record,
)
from storage.api.queues import QueueRead, ReadStatus


class Chosen(NamedTuple):
    """Messages of one claim that make one delivery: their bits (bit 0 is the claim's first) and records."""

    mask: int
    attempts: int
    parts: list[memoryview]
    records: int
    size_bytes: int


class Looked(NamedTuple):
    """Offsets below `upto` were looked at; what of them is in no `chosen` is passed by."""

    upto: int
    chosen: list[Chosen]


def choose(claim: Claim, read: QueueRead, wanted: SubscriptionFilter, is_retry: bool) -> Looked:
    """Choose from a read that began at the claim's first offset.

    A retry topic's records carry the attempts that they had before; those of other topics do not count.
    """
    if read.status is not ReadStatus.FOUND:
        # At the end: nothing was looked at. Damaged, or taken by retention: it goes on behind that.
        return Looked(claim.first if read.status is ReadStatus.AHEAD else read.next_offset, [])
    if not read.count:
        # What only memory knows yet was not looked at; what a filter's hashes rule out is passed by.
        return Looked(read.next_offset, [])
    is_dense = read.next_offset - claim.first == read.count and read.next_offset <= claim.end
    if wanted.is_all and not is_retry and is_dense:
        chosen = Chosen(bits(read.count), claim.attempts, read.parts, read.count, read.size_bytes)
        return Looked(read.next_offset, [chosen])
    return Looked(read.next_offset, _choose_each(claim, read, wanted, is_retry))


def _choose_each(claim: Claim, read: QueueRead, wanted: SubscriptionFilter, is_retry: bool) -> list[Chosen]:
    masks: dict[int, int] = {}
    slices: dict[int, list[memoryview]] = {}
    for part in read.parts:
        at = 0
        for size in split_records(part).tolist():
            record = part[at : at + size]
            at += size
            offset = int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")
            if offset >= claim.end or not (wanted.is_all or wanted.passes(tag_of_record(record))):
                continue
            attempts = max(claim.attempts, _reconsumed(record)) if is_retry else claim.attempts
            masks[attempts] = masks.get(attempts, 0) | 1 << (offset - claim.first)
            slices.setdefault(attempts, []).append(record)
    return [
        Chosen(mask, attempts, slices[attempts], len(slices[attempts]), sum(map(len, slices[attempts])))
        for attempts, mask in masks.items()
    ]


def _reconsumed(record: memoryview) -> int:
    at = RECONSUME_AT + (IPV6_EXTRA if record[SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0)
    return int.from_bytes(record[at : at + 4], "big")
