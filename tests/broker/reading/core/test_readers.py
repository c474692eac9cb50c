"""Scanning confirmed batches for a reader: order, credit, positions."""

from __future__ import annotations

import numpy as np
import pytest

from broker.kernel.core.filters import FilterSet
from broker.reading.core.readers import SERVE_AT_BYTES, SERVE_INTERVAL_S, SERVES_AHEAD_MAX, BulkReader, scan
from holdmq.record.batch import starts_of, tag_hashes
from holdmq.record.codec import encode_record
from holdmq.record.properties import encode_properties
from holdmq.record.tags import tag_hash
from holdmq.wire.headers import FilterTerm, TermKind
from storage.api.batches import Batch, BatchRun


def batch(position: int, *runs: tuple[str, list[str | None]]) -> Batch:
    records: list[bytes] = []
    made: list[BatchRun] = []
    for topic, tags in runs:
        encoded = [
            encode_record(
                topic.encode(),
                0,
                b"body",
                encode_properties([("TAGS", t)] if t is not None else []),
                0,
                bytes(8),
            )
            for t in tags
        ]
        sizes = np.array([len(r) for r in encoded], dtype=np.int64)
        run = BatchRun(topic, 0, len(tags))
        run.hashes = tag_hashes(memoryview(b"".join(encoded)), starts_of(sizes), sizes)
        made.append(run)
        records += encoded
    sizes = np.array([len(r) for r in records], dtype=np.int64)
    out = Batch(memoryview(bytearray(b"".join(records))), sizes, made)
    out.position = position
    return out


def wanted(*terms: FilterTerm) -> FilterSet:
    filters = FilterSet()
    filters.change(terms, ())
    return filters


def all_of(topic: str) -> FilterTerm:
    return FilterTerm(TermKind.TOPIC, topic, 0, "")


def tag(topic: str, value: str) -> FilterTerm:
    return FilterTerm(TermKind.TAG, topic, tag_hash(value.encode()), "")


def test_a_whole_run_leaves_as_one_piece() -> None:
    b = batch(100, ("t", ["a", "b"]), ("u", ["c"]))
    picked = scan(wanted(all_of("t")), [b], 100, 1 << 20)
    assert len(picked.parts) == 1
    assert picked.count == 2
    assert picked.parts[0] == b.records[: int(b.sizes[:2].sum())]
    assert picked.position == 100 + len(b.records)


def test_exact_tags_pick_single_records_in_log_order() -> None:
    b = batch(0, ("t", ["a", "b", "a"]))
    picked = scan(wanted(tag("t", "a")), [b], 0, 1 << 20)
    assert picked.count == 2
    assert picked.parts[1] == b.records[int(b.starts[2]) :]


def test_mqtt_filters_are_tested_on_the_tag() -> None:
    b = batch(0, ("t", ["x/1", "y/1", None]))
    picked = scan(wanted(FilterTerm(TermKind.MQTT, "t", 0, "+/1")), [b], 0, 1 << 20)
    assert picked.count == 2


def test_what_does_not_match_moves_the_position() -> None:
    b = batch(0, ("t", ["a"]))
    picked = scan(wanted(tag("t", "zzz")), [b], 0, 1 << 20)
    assert picked.count == 0
    assert picked.position == len(b.records)


def test_credit_stops_at_a_record_and_the_next_scan_goes_on_there() -> None:
    batches = [batch(0, ("t", ["a", "b", "c"]), ("u", ["d", "e"]))]
    batches.append(batch(len(batches[0].records), ("t", ["f", "g"])))
    filters = wanted(all_of("t"), all_of("u"))
    whole = b"".join(bytes(b.records) for b in batches)
    size = int(batches[0].sizes[0])
    for credit in (1, size, size + 1, 3 * size, 1 << 20):
        position, got, rounds = 0, b"", 0
        while position < len(whole):
            picked = scan(filters, batches, position, credit)
            assert picked.count >= 1
            assert picked.size_bytes <= max(credit, size)
            got += b"".join(bytes(p) for p in picked.parts)
            position, rounds = picked.position, rounds + 1
        assert got == whole
        assert (rounds == 1) == (credit == 1 << 20)


@pytest.mark.parametrize("tests_max", [1, 2, 3, 7])
@pytest.mark.parametrize("credit", [1, 1 << 20])
def test_a_scan_compares_so_many_tags_and_the_next_one_goes_on_there(tests_max: int, credit: int) -> None:
    batches = [batch(0, ("t", ["x/1", "y/2", "x/1", "exact"]), ("u", ["x/1"]))]
    batches.append(batch(len(batches[0].records), ("t", ["y/2", "y/2", "x/1"])))
    filters = wanted(FilterTerm(TermKind.MQTT, "t", 0, "+/1"), tag("t", "exact"))
    whole = scan(filters, batches, 0, 1 << 20)
    assert (whole.count, whole.is_cut) == (4, False)
    end = whole.position
    position, got, cuts = 0, b"", 0
    while position < end:
        picked = scan(filters, batches, position, credit, tag_tests_max=tests_max)
        assert picked.position > position
        got += b"".join(bytes(p) for p in picked.parts)
        position, cuts = picked.position, cuts + picked.is_cut
    assert got == b"".join(bytes(p) for p in whole.parts)
    assert cuts if tests_max == 1 else credit == 1 or bool(cuts) == (tests_max < 6)


def test_tags_that_many_filters_nearly_match_count_as_several() -> None:
    deep = "/".join("x" * 40)
    (lot,) = batches = [batch(0, ("t", [deep] * 10))]
    filters = wanted(FilterTerm(TermKind.MQTT, "t", 0, "/".join(["+"] * 39 + ["y"])))
    picked = scan(filters, batches, 0, 1 << 20, tag_tests_max=6)
    assert (picked.count, picked.is_cut) == (0, True)
    assert picked.position == int(lot.starts[2])  # each counted as 1 + 42 // STEPS_PER_TAG
    assert scan(filters, batches, 0, 1 << 20, tag_tests_max=30).is_cut is False


def test_a_position_inside_a_run_skips_what_lies_below() -> None:
    b = batch(1000, ("t", ["a", "b", "a"]))
    picked = scan(wanted(tag("t", "a")), [b], 1000 + int(b.starts[1]), 1 << 20)
    assert picked.count == 1
    assert picked.parts[0] == b.records[int(b.starts[2]) :]


def test_a_reader_is_served_at_once_a_few_times_and_then_at_intervals_unless_much_waits() -> None:
    reader = BulkReader(1, 0)
    for _ in range(SERVES_AHEAD_MAX + 1):
        assert reader.due_at(100, 10.0) == pytest.approx(10.0, abs=1e-9)
        reader.served(10.0)
    assert reader.due_at(100, 10.0) == pytest.approx(10.0 + SERVE_INTERVAL_S, abs=1e-9)
    assert reader.due_at(SERVE_AT_BYTES, 10.0) == 10.0
    assert reader.due_at(100, 11.0) == 11.0


def test_a_reader_that_is_always_busy_is_served_once_per_interval_on_average() -> None:
    reader = BulkReader(1, 0)
    now, end, served = 10.0, 10.0 + 1_000 * SERVE_INTERVAL_S, 0
    while now < end:
        reader.served(now)
        served += 1
        now = reader.due_at(100, now)
    assert 1_000 <= served <= 1_000 + SERVES_AHEAD_MAX + 1
