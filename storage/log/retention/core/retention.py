"""Which segment goes, and why: pure decisions of retention.

The oldest segment is *due* by age, size or count. Disk use above the early watermark makes it due
before that, one segment per pass; above the forced one it goes whatever a reader still needs, and
the next with it, until there is room. Source: storage.md, Retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from storage.api.retention import LogNeed, Need

Key = tuple[str, int]


class RetentionLimits(NamedTuple):
    """What is kept: ms, bytes and segments (0 = no limit), watermarks in percent of the file system.

    `keeps_needed`: a due segment goes only when no reader needs it. Readers not seen for
    `group_expiry_ms` need nothing.
    """

    age_ms: int
    size_bytes: int
    segments: int
    early_percent: float
    forced_percent: float
    refuse_percent: float
    keeps_needed: bool
    group_expiry_ms: int


class Reason(Enum):
    """Why a segment goes."""

    AGE = "its newest record is older than storage.retention_age_s"
    BYTES = "the log is larger than storage.retention_bytes"
    COUNT = "there are more segments than storage.retention_segments"
    EARLY = "the disk is filled above storage.disk_early_percent"
    LEADER = "the leader's log begins behind it"
    FORCED = "the disk is filled above storage.disk_forced_percent"


class Oldest(NamedTuple):
    """The oldest segment and the log around it: `newest_ms` is the store time of its last record."""

    newest_ms: int
    log_bytes: int
    segments: int


def reasons_to_delete(
    oldest: Oldest, now_ms: int, used_percent: float, limits: RetentionLimits
) -> list[Reason]:
    """Everything that makes the oldest segment due, the mildest first; empty = it stays."""
    found: list[Reason] = []
    if oldest.newest_ms + limits.age_ms <= now_ms:
        found.append(Reason.AGE)
    if 0 < limits.size_bytes < oldest.log_bytes:
        found.append(Reason.BYTES)
    if 0 < limits.segments < oldest.segments:
        found.append(Reason.COUNT)
    if _is_above(limits.early_percent, used_percent):
        found.append(Reason.EARLY)
    if _is_above(limits.forced_percent, used_percent):
        found.append(Reason.FORCED)
    return found


def _is_above(watermark: float, used_percent: float) -> bool:
    """Whether a disk is filled up to a watermark; 100 is none, also for a disk that is full."""
    return watermark <= used_percent and watermark < 100


def who_needs(
    needs: Iterable[Need], end: int, firsts: Mapping[Key, int], now_ms: int, group_expiry_ms: int
) -> str | None:
    """A reader that needs the log below `end`; None = nobody does.

    `firsts` has each queue's first offset if everything below `end` went.
    """
    for need in needs:
        if need.seen_ms + group_expiry_ms <= now_ms:
            continue
        if isinstance(need, LogNeed):
            if need.position < end:
                return need.reader
        elif need.offset < firsts.get((need.topic, need.queue_id), 0):
            return need.reader
    return None


def percent_used(total: int, free: int) -> float:
    """How full a file system is; 0 when it does not say."""
    return 100.0 * (total - free) / total if total > 0 else 0.0
