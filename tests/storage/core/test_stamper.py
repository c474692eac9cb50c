"""A batch's stamps and hashes: the loop over small records says what numpy says of any."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdmq.record.batch import stamp, starts_of, tag_hashes
from holdmq.record.codec import VERIFY_ALL, decode_record, encode_host, encode_properties, encode_record
from holdmq.record.tags import PROPERTIES_CACHE_MAX
from storage.api.batches import Batch, BatchRun
from storage.core.stamper import Stamper
from storage.core.stamps import EACH_BYTES_MAX, TagHashes

STORE_ID = b"\xf0store\x00\xff"
HOSTS = [bytes(8), encode_host("10.0.0.1", 1883), encode_host("2001:db8::1", 1883)]

texts = st.text(st.characters(codec="utf-8", max_codepoint=0x3FF), max_size=12)
pairs = st.lists(
    st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "CLIENT_ID", "u.TAGS"]), texts), max_size=4
)
records = st.builds(
    lambda body, own, mqtt, host: encode_record(
        b"t", 0, body, encode_properties(own, mqtt=mqtt), 1, host, 0x10 if len(host) == 20 else 0
    ),
    st.binary(max_size=300),
    pairs,
    st.binary(max_size=9),
    st.sampled_from(HOSTS),
)


def batch_of(made: list[bytes], counts: list[int], levels: int = 1) -> Batch:
    sizes = np.array([len(record) for record in made], np.int64)
    runs = [BatchRun("t", 0, count, levels, base_offset=1_000 * n) for n, count in enumerate(counts)]
    return Batch(memoryview(bytearray(b"".join(made))), sizes, runs, (1 << 40) + 7, 1_700_000_000_123)


@given(st.lists(records, min_size=1, max_size=12), st.integers(0, 12), st.integers(1, 3))
def test_records_and_hashes_are_what_numpy_makes_of_them(made: list[bytes], second: int, levels: int) -> None:
    second = min(second, len(made) - 1)
    batch = batch_of(made, [len(made) - second, second] if second else [len(made)], levels)
    plain = bytearray(batch.records)
    starts = starts_of(batch.sizes)
    offsets = np.concatenate([np.arange(run.count) + run.base_offset for run in batch.runs])
    stamp(plain, starts, batch.sizes, offsets, batch.position, batch.store_ms, STORE_ID)
    Stamper().stamp(batch, STORE_ID)
    assert bytes(batch.records) == bytes(plain)
    first = 0
    for run in batch.runs:
        span = slice(first, first + run.count)
        assert run.size_bytes == batch.sizes[span].sum()
        expected = tag_hashes(plain, starts[span], batch.sizes[span], levels)
        assert (run.hashes is None) == (expected is None)
        assert run.hashes is None or run.hashes.tolist() == expected.tolist()
        first += run.count


def test_a_batch_longer_than_a_part_is_stamped_to_its_end() -> None:
    made = [encode_record(b"topic", 3, b"x" * (700 + n % 5), b"TAGS\x01%d\x02" % n, 1) for n in range(200)]
    batch = batch_of(made, [200])
    Stamper().stamp(batch, STORE_ID)
    for n, start in enumerate(batch.starts.tolist()):
        record = decode_record(batch.records, start, VERIFY_ALL)
        assert (record.queue_offset, record.physical_offset) == (n, batch.position + start)
        assert record.body == b"x" * (700 + n % 5)


def test_large_records_are_stamped_and_hashed_too() -> None:
    made = [encode_record(b"t", 0, b"x" * EACH_BYTES_MAX, b"TAGS\x01a\x02", 1) for _ in range(3)]
    batch = batch_of(made, [2, 1])
    Stamper().stamp(batch, STORE_ID)
    offsets = [decode_record(batch.records, s, VERIFY_ALL).queue_offset for s in batch.starts.tolist()]
    assert offsets == [0, 1, 1000]
    assert [run.hashes is not None for run in batch.runs] == [True, True]
    assert [run.size_bytes for run in batch.runs] == [2 * len(made[0]), len(made[0])]


def test_a_batch_knows_that_it_has_no_key() -> None:
    for own, has_keys in [(b"TAGS\x01a\x02", False), (b"UNIQ_KEY\x01a\x02", True), (b"KEYS\x01a\x02", True)]:
        batch = batch_of([encode_record(b"t", 0, b"KEYS\x01", own, 1)] * 2, [2])
        Stamper().stamp(batch, STORE_ID)
        assert batch.has_keys is has_keys


def test_the_appenders_hashes_and_what_it_says_of_keys_stay() -> None:
    for said in (True, False):
        batch = batch_of([encode_record(b"t", 0, b"", b"TAGS\x01a\x02", 1)] * 2, [1, 1])
        batch.has_keys = said
        batch.runs[0].is_hashed = True
        batch.runs[0].hashes = np.array([77], np.uint64)
        Stamper().stamp(batch, STORE_ID)
        assert batch.has_keys is said
        assert batch.runs[0].hashes.tolist() == [77]
        assert batch.runs[1].hashes is not None


def test_properties_are_remembered_up_to_a_bound_and_those_with_keys_never() -> None:
    known = TagHashes(1)
    for n in range(PROPERTIES_CACHE_MAX + 2):
        record = encode_record(b"t", 0, b"", b"TAGS\x01%d\x02" % n, 1)
        known.each(record, 0, 1)
    assert known.remembered == 2
    keyed = encode_record(b"t", 0, b"", b"TAGS\x01a\x02UNIQ_KEY\x011\x02", 1)
    assert known.each(keyed, 0, 1).has_keys
    assert known.remembered == 2
