from __future__ import annotations

from gateway.session.cursor import SessionCursor


def test_what_waits_leaves_with_the_next_state_and_stays_if_that_fails() -> None:
    cursor = SessionCursor(1)
    assert not cursor.is_waiting
    cursor.hold(b"h", 1, b"t")
    cursor.release(7)
    assert cursor.is_waiting
    cursor.is_stale = True
    taken = cursor.begin_write()
    assert (taken.publishes, taken.released) == ([(b"h", 1, b"t")], [7])
    assert not cursor.is_stale
    assert not cursor.is_waiting
    cursor.hold(b"h", 2, b"t")
    cursor.failed(taken)
    again = cursor.begin_write()
    assert [packet_id for _, packet_id, _ in again.publishes] == [1, 2], "in the order of sending"
    assert again.released == [7]
