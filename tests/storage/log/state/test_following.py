"""State files in a real log: found again however the store was left, and known while the log is read."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from cut_log import cut_log, record_starts
from kept_store import MakeKept, killed

from holdmq.config.model import StorageSection
from holdmq.errors import StoreFormatError, StoreFullError, UsageError
from holdmq.record.batch import encode_batch, tag_hashes
from storage.api.queues import HashFilter
from storage.core.table_appends import TableAppends
from storage.log.state.core.files import CONFIG_TOPIC, LoggedFiles
from storage.log.state.following import LoggedState
from storage.log.store import open_store
from storage.log.tables.files import Applied

MIB = 1 << 20


def large(version: int) -> dict[str, Any]:
    return {f"key-{n}": {"value": n * version} for n in range(2_000)}


def test_files_are_found_again_after_a_clean_close(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.save("a.json", large(1), 1)
    kept.save("a.json", large(2), 2)
    kept.close()
    again = make_kept()
    assert again.file("a.json").load() == (large(2), 2, False)
    assert again.version("a.json.bak") == 1
    again.save("a.json", large(3), 3)
    assert again.version("a.json") == 3


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize(
    "lost", [(), ("tables",), ("consumequeue",), ("tables", "consumequeue", "keyindex", "timer", "config")]
)
def test_what_was_saved_is_there_after_a_kill_whatever_is_derived_was_deleted(
    make_kept: MakeKept, tmp_path: Path, flush: str, lost: tuple[str, ...]
) -> None:
    kept = make_kept(flush=flush)
    for version in range(1, 6):
        kept.save("a.json", large(version), version)
        kept.append("t", 50)
        kept.save("b.json", {"version": version}, version)
    left = killed(kept, tmp_path / "killed")
    for name in lost:
        shutil.rmtree(left / name, ignore_errors=True)
    again = make_kept(left, flush=flush)
    assert again.file("a.json").load() == (large(5), 5, False)
    assert again.file("b.json").load() == ({"version": 5}, 5, False)


def test_segments_that_went_took_nothing_of_it(make_kept: MakeKept) -> None:
    kept = make_kept(retention_segments=2, retention_interval_ms=20, delete="expired")
    kept.save("a.json", large(1), 1)
    for _ in range(60):
        kept.append("t", 500)
    deadline = threading.Event()
    for _ in range(600):
        if kept.store.first_position > 0:
            break
        deadline.wait(0.05)
    assert kept.store.first_position > 0
    assert kept.version("a.json") == 1
    kept.close()
    (kept.directory / "tables" / "current.mdb").unlink()
    shutil.rmtree(kept.directory / "consumequeue")
    again = make_kept()
    assert again.file("a.json").load() == (large(1), 1, False)


def test_a_log_that_is_cut_has_the_files_of_that_moment(make_kept: MakeKept, tmp_path: Path) -> None:
    kept = make_kept()
    ends: list[tuple[int, int, int]] = [(0, 0, 0)]
    for version in range(1, 5):
        kept.save("a.json", {"version": version, "more": {str(n): n for n in range(900)}}, version)
        ends.append((kept.store.confirmed_position, version, version - 1))
        kept.append("t", 2)
        kept.save("b.json", {"version": version}, version)
        ends.append((kept.store.confirmed_position, version, version))
    kept.close()
    starts = record_starts(kept.directory)
    assert len(starts) > 30
    for number, cut in enumerate(starts):
        left = killed(kept, tmp_path / f"cut-{number}")
        cut_log(left, cut)
        again = make_kept(left)
        assert again.store.confirmed_position == cut
        least = max((end, a, b) for end, a, b in ends if end <= cut)
        most = min((end, a, b) for end, a, b in ends if end >= cut)
        assert least[1] <= again.version("a.json") <= most[1]
        assert least[2] <= again.version("b.json") <= most[2]
        again.save("a.json", large(9), 9)
        again.close()
        last = make_kept(left)
        assert last.version("a.json") == 9
        last.close()
        shutil.rmtree(left)


def test_a_topic_is_indexed_as_its_file_says_that_the_same_scan_finds(
    make_kept: MakeKept, tmp_path: Path
) -> None:
    kept = make_kept()
    kept.save("levels.json", {"deep": 2}, 1)
    kept.append("deep", 5, b"42/temp/x")
    kept.append("deep", 5, b"42/wind/x")
    left = killed(kept, tmp_path / "killed")
    shutil.rmtree(left / "consumequeue", ignore_errors=True)
    shutil.rmtree(left / "tables")
    again = make_kept(left)
    assert again.levels == {"deep": 2}
    wanted = HashFilter(prefixes=[high_half(b"42/temp/x", 2)])
    read = again.store.read_queue_cold("deep", 0, 0, 0, MIB, 1000, wanted)
    assert read.count == 5
    assert read.next_offset == 10


def test_a_topic_is_indexed_as_its_file_says_below_a_checkpoint(make_kept: MakeKept, tmp_path: Path) -> None:
    kept = make_kept()
    kept.save("levels.json", {"deep": 2}, 1)
    kept.append("deep", 5, b"42/temp/x")
    kept.close()
    shutil.rmtree(kept.directory / "consumequeue")
    shutil.rmtree(kept.directory / "tables")
    again = make_kept()
    wanted = HashFilter(prefixes=[high_half(b"42/temp/x", 2)])
    assert again.store.read_queue_cold("deep", 0, 0, 0, MIB, 1000, wanted).count == 5


def high_half(tag: bytes, levels: int) -> int:
    raw, sizes = encode_batch(b"deep", 0, [b""], b"TAGS\x01" + tag + b"\x02", 5)
    hashes = tag_hashes(memoryview(raw), sizes * 0, sizes, levels)
    assert hashes is not None
    return int(hashes[0]) >> 32


def test_who_asks_is_told_of_each_file_that_changed(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.save("a.json", {"a": 1}, 1)
    kept.save("a.json", {"a": 2}, 2)
    assert kept.changed == ["config/a.json", "config/a.json.bak", "config/a.json"]
    kept.disk.unlink(kept.directory / "config" / "a.json.bak")
    kept.close()
    again = make_kept()
    assert set(again.changed) == {"config/a.json"}


def test_state_is_written_past_the_watermark_that_refuses_records(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.append("t", 1)
    kept.store._watermark_passed(StoreFullError("no space", operation="append"))
    assert isinstance(kept.append("t", 1), StoreFullError)
    kept.save("a.json", {"a": 1}, 1)
    assert kept.version("a.json") == 1


def test_state_of_a_newer_format_is_refused(make_kept: MakeKept, tmp_path: Path) -> None:
    kept = make_kept()
    rows = TableAppends(lambda _: True, kept.store.append_state)
    ended = threading.Event()
    kept.post(lambda: rows.put(CONFIG_TOPIC, "x", b"1", lambda *_: ended.set()))
    assert ended.wait(40)
    kept.close()
    with pytest.raises(StoreFormatError, match="newer HoldMQ"):
        make_kept()


def test_a_store_without_tables_cannot_have_it(tmp_path: Path) -> None:
    settings = StorageSection.model_validate({"data_dir": str(tmp_path / "store")})
    with pytest.raises(UsageError, match="tables"):
        open_store(
            settings, "b1", lambda _: 1, lambda _: None, state=LoggedState(LoggedFiles(), lambda _: None)
        )


def test_numbers_tell_what_it_costs(make_kept: MakeKept) -> None:
    kept = make_kept()
    before = kept.store.numbers()
    assert before["state_files"] == 0
    kept.save("a.json", {"a": 1}, 1)
    kept.save("a.json", {"a": 2}, 2)
    numbers = kept.store.numbers()
    assert (numbers["state_files"], numbers["state_changes_total"]) == (2, 3)
    assert numbers["state_log_bytes_total"] == kept.store.confirmed_position
    assert numbers["state_file_bytes"] > 0


def test_what_was_scanned_is_known_when_the_log_is_confirmed_to_less(make_kept: MakeKept) -> None:
    kept = make_kept()
    for version in range(1, 4):
        kept.save("a.json", large(version), version)
    expected = {name: kept.files.content(name) for name in kept.files.names()}
    batches = kept.store.read_log(0, MIB)
    changed: list[str] = []
    state = LoggedState(LoggedFiles(), changed.append)
    assert sum(map(state.scan, batches)) > 0
    # The tables know nothing, and the log is confirmed to nothing.
    state.load(lambda _: (Applied(0, 0), []), kept.store._reader, kept.store._files, (0, 0), 0)
    assert {name: state.files.content(name) for name in state.files.names()} == expected
    # Then it is confirmed: nothing of it comes twice.
    changed.clear()
    state.offer(batches)
    assert changed == []
    assert {name: state.files.content(name) for name in state.files.names()} == expected
    state.load(lambda _: (Applied(0, 0), []), kept.store._reader, kept.store._files, (0, 0), 0)
    assert state.files.names() == [], "only the start that scanned it counts it"
    assert state.files.position == 0
