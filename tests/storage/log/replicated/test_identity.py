"""A copy knows whether it surely has all that it acknowledged, and a directory that is another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_copies import HOME, CopyOfLog, founded, joined
from sim_disk import SimDisk

from storage.log.replicated.identity import RealMachine


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_new_directory_is_not_whole_until_it_is_trusted(flush: str) -> None:
    copy = CopyOfLog(flush=flush)
    assert not copy.log.is_whole
    copy.kill()
    assert not copy.log.is_whole
    copy.trust()
    assert copy.log.is_whole
    copy.kill()
    assert copy.log.is_whole
    copy.trust(False)
    copy.kill()
    assert not copy.log.is_whole


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_machine_that_was_started_again_is_believed_only_what_is_fsynced(flush: str) -> None:
    leader = founded(flush=flush)
    leader.append(0, 3)
    leader.settle()
    incarnation = leader.log.incarnation
    leader.lose_power(1)
    assert leader.log.is_whole == (flush == "sync")
    leader.kill()
    assert leader.log.is_whole == (flush == "sync"), "what is lost stays lost on this start of the machine"
    leader.trust()
    leader.restart()
    leader.machine.boot += "+"
    leader.restart()
    assert leader.log.is_whole
    assert leader.log.incarnation == incarnation
    assert len(incarnation) == 16


@pytest.mark.parametrize(("before", "after"), [("sync", "async"), ("async", "sync")])
def test_what_was_acknowledged_counts_as_it_was_flushed_then(before: str, after: str) -> None:
    leader = founded(flush=before)
    leader.append(0, 3)
    leader.settle()
    leader.flush = after
    leader.lose_power(1)
    assert leader.log.is_whole == (before == "sync")
    leader.trust()
    leader.lose_power(2)
    assert leader.log.is_whole == (after == "sync")


def test_a_clean_close_is_believed_though_the_machine_was_started_again() -> None:
    leader = founded()
    leader.append(0, 3)
    leader.settle()
    leader.store.close()
    leader.disk = leader.disk.after_power_loss(3)
    leader.machine.boot += "+"
    leader._again()
    assert leader.log.is_whole


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_directory_from_a_backup_is_another_one_and_not_whole(flush: str) -> None:
    leader = founded(flush=flush)
    incarnation = leader.log.incarnation
    leader.settle()
    leader.store.close()
    leader.machine.inodes = {str(HOME / "format.json"): 77, str(HOME / "commitlog"): 78}
    leader._again()
    assert not leader.log.is_whole
    assert leader.log.incarnation != incarnation


def test_records_that_rot_behind_the_checkpoint_make_a_copy_less_than_whole() -> None:
    leader = founded(flush="sync")
    for _ in range(5):
        leader.append(0, 1)
        leader.settle()
    end = leader.log.written_position
    leader.disk.content(HOME / "commitlog" / f"{0:020d}")[end // 2] ^= 1
    leader.kill()
    assert leader.log.written_position < end
    assert not leader.log.is_whole


def test_a_torn_end_of_unacknowledged_bytes_leaves_a_copy_whole() -> None:
    leader = founded(flush="sync")
    for _ in range(5):
        leader.append(0, 1)
        leader.settle()
    end = leader.log.written_position
    leader.disk.content(HOME / "commitlog" / f"{0:020d}")[end : end + 7] = b"\0\0\1\0HMQ"
    leader.kill()
    assert leader.log.written_position == end
    assert leader.log.is_whole


def test_a_damaged_note_is_no_note() -> None:
    leader = founded()
    incarnation = leader.log.incarnation
    leader.settle()
    leader.store.close()
    leader.disk.content(HOME / "replica.json")[10] ^= 1
    leader._again()
    assert not leader.log.is_whole
    assert leader.log.incarnation != incarnation


def test_a_log_that_begins_anew_has_to_be_trusted_again() -> None:
    leader = founded()
    copy = CopyOfLog()
    copy.trust()
    copy.start_over(leader)
    assert copy.log.store_id == leader.log.store_id
    assert not copy.log.is_whole


def test_a_real_machine_tells_directories_and_starts(tmp_path: Path) -> None:
    machine = RealMachine()
    assert machine.boot_id() == machine.boot_id() != ""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert machine.inode_of(tmp_path / "a") != machine.inode_of(tmp_path / "b")


def test_copies_have_an_incarnation_each() -> None:
    leader = founded()
    assert (
        len({leader.log.incarnation, joined(leader).log.incarnation, CopyOfLog(SimDisk()).log.incarnation})
        == 3
    )
