from __future__ import annotations

import datasketches
import pytest

from holdmq.analytics.sketches import Union, merge_sketches


def sketch(*devices: int) -> bytes:
    made = datasketches.hll_sketch(12, datasketches.tgt_hll_type.HLL_8)
    for device in devices:
        made.update(f"device-{device}")
    return bytes(made.serialize_compact())


def test_merged_sketches_count_what_several_have_once() -> None:
    merged = merge_sketches([sketch(1, 2, 3), sketch(3, 4), sketch()])
    union = Union()
    union.add(merged)
    assert union.estimate() == 4
    assert Union().estimate() == 0


def test_a_merged_sketch_stays_small() -> None:
    merged = merge_sketches([sketch(*range(n, n + 20_000)) for n in (0, 10_000)])
    assert len(merged) <= 4096 + 64


def test_bytes_that_are_no_sketch_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown object type"):
        merge_sketches([b"\x00" * 8])
