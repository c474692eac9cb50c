"""What is confirmed is read by whoever reads from disk, too, before it is in the consume queues' files."""

from __future__ import annotations

from sim_disk import SimDisk
from stepped_store import Stepped

from storage.api.queues import QueueRead, ReadStatus


def read_on(stepped: Stepped, offset: int) -> tuple[bytes, QueueRead]:
    """All that a reader from disk gets, and its last answer."""
    found = b""
    while True:
        read = stepped.store.read_queue_cold("devices", 0, 0, offset, 1 << 20, 1000)
        if read.next_offset == offset:
            return found, read
        found += b"".join(bytes(part) for part in read.parts)
        offset = read.next_offset


def test_a_reader_from_disk_gets_all_that_is_confirmed_whatever_is_indexed() -> None:
    stepped = Stepped(SimDisk())
    records = stepped.append(0, 3)
    found, last = read_on(stepped, 0)
    assert (found, last.status, last.next_offset) == (records, ReadStatus.AT_END, 3)
    stepped.retain()
    assert stepped.store.flusher.indexed == stepped.store.confirmed_position
    records += stepped.append(0, 2)
    assert stepped.store.flusher.indexed < stepped.store.confirmed_position
    found, last = read_on(stepped, 0)
    assert (found, last.status, last.next_offset) == (records, ReadStatus.AT_END, 5)
