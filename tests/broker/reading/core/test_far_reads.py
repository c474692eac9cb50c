"""Who is sent to a replica, to which, and who goes back, by the distance to the log's end."""

from __future__ import annotations

import pytest

from broker.reading.core.far_reads import CopyReads, FarReads, ReadableCopy, ReadCounts, far_bytes_of
from holdmq.wire.replica_reads import ReplicaReads

ALLOW, PREFER, NEVER = ReplicaReads.ALLOW, ReplicaReads.PREFER, ReplicaReads.NEVER
COPIES = [ReadableCopy("b:1", 10_000), ReadableCopy("c:1", 10_000)]


def leader(copies: list[ReadableCopy] | None = None, end: int = 10_000) -> FarReads:
    return FarReads(lambda: COPIES if copies is None else copies, lambda: end, 4_000, ReadCounts())


def replica(counts: ReadCounts | None = None) -> CopyReads:
    return CopyReads("b:1", lambda: 10_000, 4_000, counts or ReadCounts())


def test_a_read_far_behind_the_end_is_sent_to_a_replica_and_a_near_one_is_not() -> None:
    counts = ReadCounts()
    reads = FarReads(lambda: COPIES, lambda: 10_000, 4_000, counts)
    assert reads.next_at(ALLOW, 1, 5_999) == "b:1"
    assert reads.next_at(ALLOW, 1, 6_000) == ""
    assert reads.next_at(NEVER, 1, 0) == ""
    assert counts.redirected == 1, "what was named is counted, and nothing else"


def test_the_place_says_which_of_those_in_sync_and_0_that_the_leader_answers() -> None:
    reads = leader()
    assert [reads.next_at(ALLOW, place, 0) for place in range(4)] == ["", "b:1", "c:1", "b:1"]


def test_a_replica_that_lacks_what_is_asked_for_is_not_named() -> None:
    behind = [ReadableCopy("b:1", 3_000), ReadableCopy("c:1", 9_000)]
    assert leader(behind).next_at(ALLOW, 1, 2_000) == "b:1"
    assert leader(behind).next_at(ALLOW, 1, 3_001) == "c:1"
    assert leader([]).next_at(ALLOW, 1, 0) == ""


def test_who_prefers_replicas_gets_one_that_has_everything_whatever_the_distance() -> None:
    assert leader().next_at(PREFER, 1, 9_999) == "b:1"
    assert leader().next_at(PREFER, 2, None) == "c:1"
    assert leader([ReadableCopy("b:1", 9_999)]).next_at(PREFER, 1, None) == ""


def test_where_a_read_lies_that_found_nothing_is_not_known_and_not_far_for_who_merely_allows() -> None:
    assert leader().next_at(ALLOW, 1, None) == ""


def test_a_replica_keeps_a_reader_until_it_is_at_half_the_distance() -> None:
    reads = replica()
    assert reads.next_at(ALLOW, 1, 7_999) == "b:1"
    assert reads.next_at(ALLOW, 1, 8_000) == ""
    assert reads.next_at(ALLOW, 1, None) == "b:1", "its filter passed nothing: it goes on"
    assert reads.next_at(PREFER, 1, 9_999) == "b:1"


def test_a_replica_sends_everybody_back_at_its_end() -> None:
    counts = ReadCounts()
    reads = replica(counts)
    assert reads.next_at(PREFER, 1, 9_000, is_at_end=True) == ""
    assert reads.next_at(ALLOW, 1, 0, is_at_end=True) == ""
    assert reads.next_at(NEVER, 1, 0) == ""
    assert counts.sent_back == 3


def test_far_is_two_fifths_of_the_memory_unless_it_is_configured() -> None:
    assert far_bytes_of(0, 10_000) == 4_000
    assert far_bytes_of(123, 10_000) == 123


def test_the_three_words() -> None:
    assert [ReplicaReads.of(word) for word in ("never", "allow", "prefer")] == [NEVER, ALLOW, PREFER]
    with pytest.raises(ValueError, match="'often' is not one of never, allow, prefer"):
        ReplicaReads.of("often")
