from __future__ import annotations

import msgpack
import pytest

from broker.sessions.core.rows import (
    FoundSession,
    Meta,
    decode_meta,
    filter_key,
    meta_key,
    rows_of,
    state_key,
)
from holdmq.errors import RecordError

META = Meta(5, 60, "ada", 1 << 62, 1_000, 2_000)


def test_a_row_comes_back_as_it_was() -> None:
    assert decode_meta(META.encode()) == META


@pytest.mark.parametrize(
    "fields", [[2, *META], [1, 5, 60], [1, "5", 60, "", 1, 2, 3], [1, 5, 60, 7, 1, 2, 3], {"a": 1}]
)
def test_what_is_no_row_is_refused(fields: object) -> None:
    with pytest.raises(RecordError):
        decode_meta(msgpack.packb(fields))
    with pytest.raises(RecordError):
        decode_meta(msgpack.packb(fields)[:-1])


def test_a_client_id_that_begins_another_shares_no_row_with_it() -> None:
    assert not filter_key("ab", "c").startswith(filter_key("a", ""))
    assert len({meta_key("a"), state_key("a"), filter_key("a", "")}) == 3


def test_all_rows_of_a_session_go() -> None:
    gone = rows_of("a", FoundSession(META, b"s", [("x", b""), ("y", b"")]))
    assert [key for _, key, _ in gone] == [filter_key("a", "x"), filter_key("a", "y"), "sa", "ma"]
    assert {value for _, _, value in gone} == {None}


def test_expiry_counts_from_the_end_or_from_the_brokers_start() -> None:
    assert META.is_expired(62_000, 0)
    assert not META.is_expired(61_999, 0)
    online = META._replace(ended_ms=0)
    assert not online.is_expired(62_000, 50_000)
    assert online.is_expired(110_000, 50_000)
