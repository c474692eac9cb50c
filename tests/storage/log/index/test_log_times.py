"""The place in the log for a moment, over segments, sizes, blanks and damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdmq.record.codec import MAGIC, decode_record

MakeDriver = Callable[..., Any]
MIB = 1 << 20


def records(d: Any) -> list[tuple[int, int]]:
    """Log position and store time of every record."""
    found: list[tuple[int, int]] = []
    position = d.store.first_position
    while position < d.store.confirmed_position:
        for batch in d.store.read_log(position, MIB):
            for start in batch.starts.tolist():
                record = decode_record(batch.records, start)
                found.append((record.physical_offset, record.store_ms))
            position = batch.end
    return found


def expected(known: list[tuple[int, int]], store_ms: int, end: int) -> int:
    return next((position for position, at in known if at >= store_ms), end)


def test_every_moment_of_a_log_of_several_segments_is_found(driver: MakeDriver) -> None:
    d = driver().open()
    chosen = random.Random(5)
    for _ in range(100):
        d.clock_ms += chosen.choice((0, 1, 5, 1000))
        d.append_and_wait(chosen.randrange(1, 40), body=bytes(chosen.choice((1, 200, 6000))))
    known = records(d)
    end = d.store.confirmed_position
    assert known[-1][0] > 2 * MIB
    at = d.store.index.position_at
    for moment in sorted({ms + by for _, ms in known for by in (-1, 0, 1)}):
        assert at(moment) == expected(known, moment, end), moment
    assert at(0) == d.store.first_position
    assert at(d.clock_ms + 1) == end
    d.append_and_wait(1)
    assert at(d.clock_ms + 1) == d.store.confirmed_position > end


def test_an_empty_log_begins_at_its_end(driver: MakeDriver) -> None:
    d = driver().open()
    assert d.store.index.position_at(0) == d.store.confirmed_position
    assert d.store.index.position_at(1) == d.store.confirmed_position


def test_records_larger_than_a_window_and_bodies_that_look_like_records_are_passed(
    driver: MakeDriver,
) -> None:
    d = driver(segment_size_bytes=16 * MIB).open()
    start = d.clock_ms
    likeness = b"xxxx" + MAGIC.to_bytes(4, "big")
    for second, body in enumerate((b"1", likeness * 5000, b"3", bytes(2 * MIB), bytes(20_000), b"6")):
        d.clock_ms = start + 1000 * second
        d.append_and_wait(1, body=body)
    known = records(d)
    for moment in range(start - 500, start + 6000, 500):
        assert d.store.index.position_at(moment) == expected(known, moment, d.store.confirmed_position)


def test_damaged_records_are_passed(driver: MakeDriver, tmp_path: Path) -> None:
    d = driver().open()
    start = d.clock_ms
    for second in range(40):
        d.clock_ms = start + 1000 * second
        d.append_and_wait(10, body=bytes(200))
    known = records(d)
    d.store.close()
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    broken = {known[200][0], known[210][0]}
    with log.open("r+b") as file:
        for position in broken:
            file.seek(position + 60)
            file.write(b"\xff\xff\xff")
    d.open()
    whole = [(position, ms) for position, ms in known if position not in broken]
    for second in range(40):
        moment = start + 1000 * second
        found = d.store.index.position_at(moment)
        assert found == expected(whole, moment, d.store.confirmed_position), second
