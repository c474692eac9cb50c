"""Weak hashes are made anew at a login: safely beside other writers, bounded, and no login pays for it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from access_files import QUICK, written
from structlog.testing import capture_logs

from gateway.access import rehash
from gateway.access.passwords import PasswordFile, is_weaker, verify
from gateway.access.rehash import WAITING_MAX, Rehash, why_not_written
from gateway.access.user_file import replace_secrets, write_users
from gateway.ground.counters import Counters
from holdmq.credentials.password_hash import hash_password

Start = Callable[..., Awaitable[Any]]

WEAK = QUICK.hash("word")
STRONG = hash_password(b"word")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    directory.mkdir()
    return Path(written(directory / "users", f"# people\nada:{WEAK}\n\neve:{STRONG}\n"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Passwords of which a hash is made, and which really is."""
    made: list[bytes] = []

    def count(password: bytes) -> str:
        made.append(password)
        return hash_password(password)

    monkeypatch.setattr(rehash, "hash_password", count)
    return made


async def settled(of: Rehash, counters: Counters, offers: int) -> None:
    """Run until so many offers have come to an end."""
    running = asyncio.get_running_loop().create_task(of.run())
    async with asyncio.timeout(40):
        while counters.access_rehashed_total + counters.access_rehashes_left_total < offers:
            await asyncio.sleep(0.001)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def beside(path: Path) -> list[str]:
    """Names of the files in its directory."""
    return [found.name for found in path.parent.iterdir()]


async def test_a_weak_hash_is_made_anew_when_its_user_logs_in(
    start_worker: Start, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.access.REHASH_INTERVAL_S", 0.0)
    running = await start_worker(access={"password_file": str(users), "reload_interval_s": 0.05})
    counters = running.worker.counters
    await running.client("c1", username="eve", password=b"word")
    await running.client("c2", username="ada", password=b"wrong", refused=True)
    await running.client("c3", username="ada", password=b"word")
    await running.until(lambda: counters.access_rehashed_total)
    comment, ada, empty, eve = lines_of(users)
    assert (comment, empty, eve) == ("# people", "", f"eve:{STRONG}")
    made = ada.removeprefix("ada:")
    assert not is_weaker(made)
    assert verify(made, b"word")
    assert mode_of(users) == 0o600
    await running.until(lambda: running.worker.access.files.passwords.hash_of("ada") == made)
    await running.client("c4", username="ada", password=b"word")
    await running.client("c5", username="ada", password=b"wrong", refused=True)
    assert (counters.access_rehashed_total, counters.access_rehashes_left_total) == (1, 0)
    assert beside(users) == ["users"]


async def test_the_key_switches_it_off(start_worker: Start, users: Path, hashed: list[bytes]) -> None:
    running = await start_worker(access={"password_file": str(users), "rehash": False})
    await running.client("c1", username="ada", password=b"word")
    assert running.worker.access._rehash is None
    assert hashed == []


async def test_a_password_that_was_changed_meanwhile_stays_changed(users: Path) -> None:
    counters = Counters()
    of = Rehash(users, counters, 0)
    of.offer("ada", WEAK, b"word")
    newer = QUICK.hash("newer")
    write_users(users, {"ada": newer, "joe": WEAK}, "")
    before = lines_of(users)
    await settled(of, counters, 1)
    assert lines_of(users) == before
    assert (counters.access_rehashed_total, counters.access_rehashes_left_total) == (0, 1)


async def test_of_two_workers_one_changes_the_line(users: Path) -> None:
    counters, others = Counters(), Counters()
    one, two = Rehash(users, counters, 0), Rehash(users, others, 0)
    one.offer("ada", WEAK, b"word")
    two.offer("ada", WEAK, b"word")
    await asyncio.gather(settled(one, counters, 1), settled(two, others, 1))
    assert counters.access_rehashed_total + others.access_rehashed_total == 1
    assert verify(PasswordFile.read(users).hash_of("ada"), b"word")


async def test_many_are_one_change_of_the_file_and_each_is_tried_once(
    users: Path, hashed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"u{n}" for n in range(WAITING_MAX + 10)]
    write_users(users, dict.fromkeys(names, WEAK), "")
    writes: list[int] = []

    def counted(path: Path, changes: dict[str, tuple[str, str]], what: str) -> int:
        writes.append(len(changes))
        return replace_secrets(path, changes, what)

    monkeypatch.setattr(rehash, "replace_secrets", counted)
    # What is counted is hashes: those of today would take seconds.
    monkeypatch.setattr("holdmq.credentials.password_hash._hasher", QUICK)
    counters = Counters()
    of = Rehash(users, counters, 0)
    for _ in range(2):
        for name in names[:WAITING_MAX]:
            of.offer(name, WEAK, b"word")
    for name in names[WAITING_MAX:]:
        of.offer(name, WEAK, b"word")
    await settled(of, counters, len(names))
    assert (writes, len(hashed)) == ([WAITING_MAX], WAITING_MAX)
    assert counters.access_rehashes_left_total == 10
    for name in names:
        of.offer(name, WEAK, b"word")
    await settled(of, counters, len(names) + 10)
    assert writes == [WAITING_MAX, 10]


@pytest.fixture
def read_only(users: Path) -> Path:
    users.chmod(0o400)
    return users


async def test_a_file_that_is_not_to_be_written_costs_no_hash_and_is_said_once(
    read_only: Path, hashed: list[bytes]
) -> None:
    before = lines_of(read_only)
    counters = Counters()
    of = Rehash(read_only, counters, 0)
    with capture_logs() as found:
        for n, name in enumerate(["ada", "joe"], 1):
            of.offer(name, WEAK, b"word")
            await settled(of, counters, n)
    assert (hashed, lines_of(read_only)) == ([], before)
    (said,) = found
    assert said["file"] == str(read_only)
    assert "nobody writes" in said["reason"]


async def test_a_file_that_cannot_be_replaced_is_said_once_and_logins_go_on(
    start_worker: Start, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.access.REHASH_INTERVAL_S", 0.0)
    monkeypatch.setattr("gateway.access.user_file.write_private", _disk_is_full)
    running = await start_worker(access={"password_file": str(users)})
    with capture_logs() as found:
        await running.client("c1", username="ada", password=b"word")
        await running.until(lambda: running.worker.counters.access_rehashes_left_total)
    assert "cannot be written: No space left on device" in str(found)
    await running.client("c2", username="ada", password=b"word")
    assert lines_of(users)[1] == f"ada:{WEAK}"


def _disk_is_full(path: Path, content: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_why_a_file_is_left_alone_is_said(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_written(users) == ""
    assert why_not_written(users.with_name("gone")) == "No such file or directory"
    users.chmod(0o400)
    assert why_not_written(users) == "its mode is that of a file that nobody writes"
    users.chmod(0o600)
    monkeypatch.setattr(rehash.os, "geteuid", lambda: users.stat().st_uid + 1)
    assert why_not_written(users) == "the file is another user's"


async def test_what_waits_is_forgotten_when_the_worker_ends(users: Path, hashed: list[bytes]) -> None:
    of = Rehash(users, Counters(), 0)
    of.offer("ada", WEAK, b"word")
    of.close()
    assert of._write([rehash._Offer("ada", WEAK, b"word")]) == 0
    assert hashed == []
    assert of._waiting == []
