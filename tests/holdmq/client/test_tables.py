"""Where a table's keys are, the order they are in, and what answers may be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.client.tables import order_of, owner_of, with_values
from holdmq.errors import WireError
from holdmq.wire.table_headers import TableRow
from storage.log.tables.core.tables import row_key

KEYS = st.text(min_size=1, max_size=5) | st.sampled_from(["k" * 366, "k" * 367, "k" * 368, "k" * 369])


@given(KEYS, KEYS)
def test_keys_are_in_the_order_in_which_brokers_scan_them(one: str, other: str) -> None:
    raw = [row_key("t", key.encode()) for key in (one, other)]
    assert (order_of(one) < order_of(other)) == (raw[0] < raw[1])


def test_keys_spread_evenly_and_a_new_broker_takes_its_share_from_all() -> None:
    keys = [f"sensor/{i}" for i in range(6_000)]
    three = {key: owner_of(key, ["a", "b", "c"]) for key in keys}
    assert all(1_800 < count < 2_200 for count in Counter(three.values()).values())
    four = {key: owner_of(key, ["a", "b", "c", "d"]) for key in keys}
    assert {four[key] for key in keys if four[key] != three[key]} == {"d"}
    assert all(owner_of(key, ["c", "a", "b"]) == three[key] for key in keys[:100])
    assert owner_of("any", ["alone"]) == "alone"


def test_values_are_cut_from_a_body_in_the_order_of_the_rows() -> None:
    rows = [TableRow("a", 1, 2), TableRow("b", -1, -1), TableRow("c", 2, 0), TableRow("d", 3, 1)]
    assert [value for _, value in with_values(memoryview(b"xyz"), rows)] == [b"xy", None, b"", b"z"]


@pytest.mark.parametrize("rows", [[TableRow("a", 1, 2)], [TableRow("a", 1, 4)], [TableRow("a", 1, -2)], []])
def test_values_that_do_not_fit_their_body_break_the_protocol(rows: list[TableRow]) -> None:
    with pytest.raises(WireError):
        with_values(memoryview(b"xyz"), rows)
