"""Every flipped byte of a store is found, and said where; the repair cuts there and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sim_disk import SimDisk
from stepped_store import Stepped

from holdmq.errors import StorageError, StoreFormatError
from storage.log.offline.repair import truncate
from storage.log.offline.store import Finding, OfflineStore
from storage.log.offline.verify import LogSums, Verification, sums_of

# Each is seconds of computing: minutes on a machine that has others to serve.
pytestmark = pytest.mark.timeout(900)

HOME = Path("/store")


def quiet(_done: int, _total: int) -> None:
    return None


def one_level(_topic: str) -> int:
    return 1


def verified(disk: SimDisk, key_levels: Any = one_level) -> list[Finding]:
    store = OfflineStore(HOME, disk)
    store.open()
    try:
        return list(Verification(store, key_levels).run(quiet))
    finally:
        store.close()


def counted(disk: SimDisk) -> LogSums:
    store = OfflineStore(HOME, disk)
    store.open()
    try:
        return sums_of(store, quiet)
    finally:
        store.close()


@pytest.fixture(scope="module")
def written() -> SimDisk:
    """A store of three segments and two queues, closed cleanly."""
    disk = SimDisk()
    stepped = Stepped(disk, 1024)
    for i in range(8):
        stepped.append(i % 2, 2, b"TAGS\x0142/t\x02KEYS\x01k%d\x02" % i, b"21" * i)
        stepped.retain()
    stepped.store.close()
    return disk


def files(disk: SimDisk, directory: str) -> list[Path]:
    return [HOME / directory / name for name in sorted(disk.list(HOME / directory))]


def test_a_whole_store_has_no_findings(written: SimDisk) -> None:
    assert verified(written) == []
    assert verified(written, None) == []
    sums = counted(written)
    assert sums.findings == 0
    assert {key: (q.messages, q.first_offset, q.end_offset) for key, q in sums.queues.items()} == {
        ("devices", 0): (8, 0, 8),
        ("devices", 1): (8, 0, 8),
    }
    assert sums.queues["devices", 0].body_bytes == 2 * 2 * (0 + 2 + 4 + 6)


def test_every_flipped_byte_of_the_log_is_found_in_its_file_at_or_before_it(written: SimDisk) -> None:
    segments = files(written, "commitlog")
    assert len(segments) >= 3
    for path in segments:
        content = written.content(path)
        for at in range(len(content)):
            content[at] ^= 0x10
            found = verified(written)
            assert found, (path, at)
            assert found[0].path == str(path), (at, found)
            assert found[0].offset <= at, (at, found)
            content[at] ^= 0x10
    assert verified(written) == []


@pytest.mark.parametrize("queue_id", [0, 1])
def test_every_flipped_byte_of_a_consume_queue_is_found_at_its_entry(written: SimDisk, queue_id: int) -> None:
    for path in files(written, f"consumequeue/devices/{queue_id}"):
        content = written.content(path)
        for at in range(len(content)):
            content[at] ^= 1
            found = verified(written)
            assert [(f.path, f.offset) for f in found] == [(str(path), at // 20 * 20)], (at, found)
            content[at] ^= 1
    assert verified(written) == []


def test_every_flipped_byte_of_a_json_file_is_found(written: SimDisk) -> None:
    names = [name for name in written.list(HOME) if ".json" in name]
    assert {"format.json", "epoch.json", "checkpoint.json", "checkpoint.json.bak"} <= set(names)
    for name in names:
        path = HOME / name
        content = written.content(path)
        for at in range(len(content)):
            content[at] ^= 1
            try:
                found = verified(written)
            except StoreFormatError as error:
                found = [Finding(error.path, 0, "")]
            assert str(path) in [finding.path for finding in found], (at, found)
            content[at] ^= 1
    clean = written.content(HOME / "clean")
    for at in range(len(clean)):
        clean[at] ^= 1
        assert [finding.path for finding in verified(written)] == [str(HOME / "clean")]
        clean[at] ^= 1


def test_missing_and_extra_entries_are_found(written: SimDisk) -> None:
    disk = written.copy()
    path = files(disk, "consumequeue/devices/0")[-1]
    content = disk.content(path)
    entry = bytes(content[-20:])
    content += entry
    (extra,) = verified(disk)
    assert "no record has this entry" in extra.what
    del content[-40:]
    (missing,) = verified(disk)
    assert "missing" in missing.what
    assert "devices/0 offset 7" in missing.what


def test_a_store_that_crashed_is_whole_up_to_its_torn_end() -> None:
    disk = SimDisk()
    stepped = Stepped(disk, 4096)
    stepped.append(0, 3)
    stepped.retain(20)
    stepped.append(0, 2)
    after = disk.after_kill()
    assert verified(after) == [], "entries behind the checkpoint are written by the next start"
    content = after.content(files(after, "commitlog")[0])
    content[108 * 4 + 30] ^= 1
    (finding,) = verified(after)
    assert finding.position == 108 * 4


def test_the_repair_cuts_at_the_first_damage_and_keeps_what_it_cut(written: SimDisk) -> None:
    disk = written.copy()
    segments = files(disk, "commitlog")
    content = disk.content(segments[1])
    whole = bytes(disk.content(segments[0])) + bytes(content)
    content[200] ^= 1
    (finding,) = verified(disk)
    store = OfflineStore(HOME, disk)
    store.open()
    cut = truncate(store, one_level)
    store.close()
    assert cut.end == finding.position
    assert cut.cut_bytes > 0
    assert disk.list(HOME / "cut")
    assert verified(disk) == []
    assert counted(disk).end == cut.end
    opened = Stepped(disk, 1024)
    assert opened.store.confirmed_position == cut.end
    assert opened.store.epoch > 1
    (batch, *_) = opened.store.read_log(0, 1 << 20)
    assert bytes(batch.records) == whole[: len(batch.records)]
    opened.append(0, 1)
    opened.store.close()


def test_a_store_in_use_and_no_store_at_all_are_refused() -> None:
    disk = SimDisk()
    stepped = Stepped(disk)
    with pytest.raises(StoreFormatError, match="stop that broker"):
        OfflineStore(HOME, disk).open()
    stepped.store.close()
    with pytest.raises(StoreFormatError, match="no store"):
        OfflineStore(Path("/elsewhere"), disk).open()


def test_a_store_that_cannot_be_written_is_read_but_not_repaired(written: SimDisk) -> None:
    disk = written.copy()
    real_open = disk.open

    def open_(path: Path, create: bool = False) -> Any:
        if path.name == "lock":
            raise OSError(30, "Read-only file system", str(path))
        return real_open(path, create)

    disk.open = open_  # type: ignore[method-assign]
    assert verified(disk) == []
    store = OfflineStore(HOME, disk)
    store.open()
    with pytest.raises(StorageError, match="cannot be written"):
        truncate(store, one_level)
    store.close()
