from __future__ import annotations

import pytest

from broker.retry.core.moves import (
    KnownMoves,
    RetryPolicy,
    copied_by,
    failed_copy,
    may_pull,
    resent_copy,
    retry_delay_ms,
)
from holdmq.record.codec import SYS_RETAIN, SYS_ROLLED, Record, decode_record, encode_record
from holdmq.record.origin import Origin, origin_of, value_in
from holdmq.record.properties import encode_properties
from holdmq.wire.move_headers import DELAY_LEVELS_MS, TO_DEAD_LETTERS

NOW = 1_700_000_000_000
POLICY = RetryPolicy()
OWN = encode_properties(
    [
        ("TAGS", "a/b"),
        ("KEYS", "k1"),
        ("KEYS", "k2"),
        ("UNIQ_KEY", "id-1"),
        ("PS", "1/2/3"),
        ("u.x", "\x01y"),
    ],
    b"\x02\x00\x00\x00\x10",
)


def message(
    topic: str = "t", queue_id: int = 3, offset: int = 7, properties: bytes = OWN, times: int = 0
) -> Record:
    """A record as a queue has it."""
    raw = encode_record(
        topic.encode(),
        queue_id,
        b"body",
        properties,
        NOW - 5,
        b"\x01" * 20,
        SYS_RETAIN | SYS_ROLLED,
        9,
        times,
    )
    record = decode_record(raw)
    record.queue_offset = offset
    return record


def test_the_levels_are_those_of_rocketmq_and_a_retry_begins_at_the_third() -> None:
    seconds = [1, 5, 10, 30, *(60 * m for m in range(1, 11)), 1200, 1800, 3600, 7200]
    assert [ms // 1000 for ms in DELAY_LEVELS_MS] == seconds
    assert [retry_delay_ms(n, 0, POLICY) // 1000 for n in range(16)] == seconds[2:]
    assert retry_delay_ms(40, 0, POLICY) == 7_200_000


def test_a_group_s_own_table_is_of_retries_and_its_last_delay_stays() -> None:
    own = RetryPolicy(delay_levels_ms=(100, 300))
    assert [retry_delay_ms(n, 0, own) for n in range(4)] == [100, 300, 300, 300]


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (18, 7_200_000), (99, 7_200_000)])
def test_a_level_that_the_consumer_names_goes_before_the_attempts(level: int, delay_ms: int) -> None:
    copy = failed_copy(message(), "t", "g", 5, None, level, POLICY, NOW)
    assert copy.due_ms == NOW + delay_ms


def test_a_retry_keeps_what_the_application_and_the_producer_gave_the_message() -> None:
    source = message()
    copy = failed_copy(source, "t", "g", 0, None, 0, RetryPolicy(retry_queue_nums=2), NOW)
    got = decode_record(copy.record)
    assert (copy.topic, copy.queue_id, copy.attempt, copy.due_ms) == ("%RETRY%g", 1, 1, NOW + 10_000)
    assert (got.topic, got.queue_id, got.reconsume_times) == (b"%RETRY%g", 1, 1)
    for name in ("body", "born_ms", "born_host", "flag", "tag"):
        assert getattr(got, name) == getattr(source, name)
    shown, before = got.to_message(), source.to_message()
    assert (shown.keys, shown.unique_id, shown.properties) == (("k1", "k2"), "id-1", before.properties)
    assert got.properties.endswith(b"\0\x02\x00\x00\x00\x10")
    assert got.sys_flag & SYS_RETAIN
    assert not got.sys_flag & SYS_ROLLED
    assert value_in(got.properties, "PS") is None
    assert value_in(got.properties, "REAL_TOPIC") == "t"
    assert origin_of(got.properties) == Origin("t", 3, 7, 1)


def test_a_retry_of_a_retry_names_the_first_place_and_not_the_timer_s() -> None:
    first = decode_record(failed_copy(message(), "t", "g", 0, None, 0, POLICY, NOW).record)
    waited = first.properties.partition(b"\0")[0] + b"DUE\x015\x02ORIGIN\x01%TIMER/0/11/1\x02"
    released = message("%RETRY%g", 0, 40, waited, times=1)
    copy = failed_copy(released, "%RETRY%g", "g", 0, None, 0, POLICY, NOW)
    properties = decode_record(copy.record).properties
    assert copy.key == ("g", "t", 3, 7)
    assert (copy.attempt, copy.due_ms) == (2, NOW + 30_000)
    assert origin_of(properties) == Origin("t", 3, 7, 2)
    assert properties.count(b"ORIGIN\x01") == properties.count(b"REAL_TOPIC\x01") == 1
    assert b"DUE\x01" not in properties


def test_the_sixteenth_retry_is_the_last_and_the_next_failure_a_dead_letter() -> None:
    last = failed_copy(message(times=15), "t", "g", 15, None, 0, POLICY, NOW)
    assert (last.topic, last.attempt, last.due_ms) == ("%RETRY%g", 16, NOW + 7_200_000)
    dead = failed_copy(message(times=16), "t", "g", 0, 500, 0, POLICY, NOW)
    assert (dead.topic, dead.queue_id, dead.attempt, dead.due_ms) == ("%DLQ%g", 0, 17, None)
    assert dead.is_dead
    assert decode_record(dead.record).reconsume_times == 16


def test_a_consumer_may_ask_for_no_more_retries() -> None:
    dead = failed_copy(message(), "t", "g", 0, None, TO_DEAD_LETTERS, POLICY, NOW)
    assert (dead.topic, dead.attempt) == ("%DLQ%g", 1)


def test_a_delay_goes_before_levels_and_a_retry_limit_of_0_means_none() -> None:
    assert failed_copy(message(), "t", "g", 0, 61_000, 0, POLICY, NOW).due_ms == NOW + 61_000
    assert failed_copy(message(), "t", "g", 0, 61_000, 0, RetryPolicy(1, 0), NOW).is_dead


def test_a_dead_letter_sent_again_is_a_new_message_that_names_the_letter() -> None:
    letter = decode_record(failed_copy(message(times=16), "t", "g", 16, None, 0, POLICY, NOW).record)
    letter.queue_offset = 4
    copy = resent_copy(letter, "g", "t", 3, NOW)
    got = decode_record(copy.record)
    assert (copy.topic, copy.queue_id, copy.due_ms, copy.key) == ("t", 3, NOW, ("g", "%DLQ%g", 0, 4))
    assert (got.topic, got.reconsume_times, got.body) == (b"t", 0, b"body")
    assert value_in(got.properties, "REAL_TOPIC") is None
    # Failed with again, it is another message: its place is the new one.
    got.queue_offset = 90
    again = failed_copy(got, "t", "g", 0, None, 0, POLICY, NOW)
    assert (again.key, again.attempt) == (("g", "t", 3, 90), 1)


def test_what_a_start_finds_in_the_log_is_what_was_moved() -> None:
    retry = failed_copy(message(), "t", "g", 2, None, 0, POLICY, NOW)
    waiting = decode_record(retry.record)
    waiting.properties = waiting.properties.partition(b"\0")[0] + b"DUE\x015\x02DEST\x01%RETRY%g/0\x02"
    assert copied_by(waiting, "%TIMER") == (retry.key, 3)
    dead = failed_copy(message(times=16), "t", "g", 16, None, 0, POLICY, NOW)
    assert copied_by(decode_record(dead.record), "%DLQ%g") == (dead.key, 17)
    resent = resent_copy(message(offset=5), "g", "t", 0, NOW)
    assert copied_by(decode_record(resent.record), "%TIMER") == (resent.key, 1)
    assert copied_by(message(), "%TIMER") is None
    foreign = message(properties=b"ORIGIN\x01t/0/1/1\x02DEST\x01t/0\x02")
    assert copied_by(foreign, "%TIMER") is None


@pytest.mark.parametrize("value", ["t/0/1", "t/0/1/x", "t//1/1", ""])
def test_an_origin_that_is_none_is_not_read(value: str) -> None:
    assert origin_of(b"ORIGIN\x01" + value.encode() + b"\x02") is None


def test_a_repeat_is_known_by_the_source_s_attempts_whatever_is_said_of_them() -> None:
    known = KnownMoves()
    key = ("g", "t", 0, 7)
    assert known.attempt_past(key, 0) == 0
    known.note(key, 4)
    assert known.attempt_past(key, 0) == 4
    assert known.attempt_past(key, 3) == 4
    assert known.attempt_past(key, 4) == 0
    known.note(key, 2)
    assert known.attempt_past(key, 3) == 4
    assert known.attempt_past(("other", "t", 0, 7), 0) == 0


def test_known_moves_are_bounded_and_the_oldest_go() -> None:
    known = KnownMoves(3)
    for offset in range(5):
        known.note(("g", "t", 0, offset), 1)
    assert (len(known), known.evicted) == (3, 2)
    assert known.attempt_past(("g", "t", 0, 1), 0) == 0
    assert known.attempt_past(("g", "t", 0, 2), 0) == 1


def test_a_group_that_begins_anew_has_moved_nothing_but_resent_letters() -> None:
    known = KnownMoves()
    for key in [("g", "t", 0, 1), ("g", "u", 0, 1), ("h", "t", 0, 1), ("g", "%DLQ%g", 0, 1)]:
        known.note(key, 1)
    assert known.forget("g", ["t"]) == 1
    assert known.attempt_past(("g", "u", 0, 1), 0) == 1
    assert known.forget("g", ["%RETRY%g"]) == 1
    known.note(("g", "u", 0, 1), 1)
    assert known.forget("g") == 1
    assert known.attempt_past(("g", "t", 0, 1), 0) == 0
    assert known.attempt_past(("h", "t", 0, 1), 0) == 1
    assert known.keys_of("%DLQ%") == [("g", "%DLQ%g", 0, 1)]


def test_retries_are_read_by_their_group_alone() -> None:
    assert may_pull("%RETRY%g", "g")
    assert not may_pull("%RETRY%g", "h")
    assert not may_pull("%RETRY%g", "")
    assert may_pull("%DLQ%g", "")
    assert may_pull("t", "h")
