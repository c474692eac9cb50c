"""The segments' files and their table say the same, whatever a power loss left of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_disk import SimDisk

from storage.log.core.names import name_of
from storage.log.segments import Segments

SEGMENT = 4096
COMMITLOG = Path("/store/commitlog")


@pytest.mark.parametrize("left_bytes", [0, 1, 11])
def test_a_segment_that_lost_its_room_before_anything_was_in_it_gets_it_again(left_bytes: int) -> None:
    disk = SimDisk()
    before = Segments(disk, COMMITLOG, SEGMENT)
    before.load()
    before.cut(0)
    before.prepare(SEGMENT)
    before.close()
    path = COMMITLOG / name_of(SEGMENT)
    file = disk.open(path)
    file.truncate(left_bytes)
    file.close()
    segments = Segments(disk, COMMITLOG, SEGMENT)
    segments.load()
    segments.cut(SEGMENT)
    assert [(segment.start, segment.end) for segment in segments.table] == [
        (0, SEGMENT),
        (SEGMENT, 2 * SEGMENT),
    ]
    assert disk.content(path) == bytes(SEGMENT)
    assert segments.locate(SEGMENT) is not None, "what is written there can be read"
    assert segments.current is not None
