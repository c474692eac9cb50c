"""`holdmq passwd`: what it writes, the gateway and amqtt can use; nothing is lost beside it."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gateway.access.passwords import PasswordFile, verify
from gateway.access.scram_file import ScramFile, make_verifier
from gateway.access.user_file import write_users
from gateway.session.scram import Verifier
from holdmq.files.private_file import locked, write_private

Holdmq = Callable[..., Any]


def set_password(holdmq: Holdmq, path: Path, user: str, word: str, *flags: str) -> Any:
    return holdmq("passwd", str(path), user, "--batch", *flags, stdin=word + "\n")


def test_a_password_is_hashed_into_a_private_file_and_changed_in_its_place(
    holdmq: Holdmq, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "users"
    assert set_password(holdmq, path, "ada", "one").stdout == f"user ada is in {path}: 1 new, 0 changed\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"# people\n{path.read_text()}\n# devices\n")
    set_password(holdmq, path, "meter 1", "two")
    assert set_password(holdmq, path, "ada", "three").stdout.endswith("0 new, 1 changed\n")
    lines = path.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["# people", "ada", "", "# devices", "meter 1"]
    users = PasswordFile.read(path)
    assert verify(users.hash_of("ada"), b"three")
    assert not verify(users.hash_of("ada"), b"one")
    assert verify(users.hash_of("meter 1"), b"two")


def test_many_users_come_from_standard_input(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "users"
    done = holdmq("passwd", str(path), "--batch", "--json", stdin="a:1\nb:2:3\n")
    assert json.loads(done.stdout) == {"file": str(path), "added": 2, "changed": 0}
    assert verify(PasswordFile.read(path).hash_of("b"), b"2:3")


def test_a_file_that_others_could_read_is_its_owners_alone_after_a_change(
    holdmq: Holdmq, tmp_path: Path
) -> None:
    path = tmp_path / "users"
    set_password(holdmq, path, "ada", "one")
    path.chmod(0o644)
    assert set_password(holdmq, path, "eve", "two").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_who_write_at_once_lose_nobody(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.touch()
    words = {f"u{n}": str(make_verifier("x")) for n in range(4)}
    with locked(path):
        threads = [
            threading.Thread(target=write_users, args=(path, {name: text}, ""))
            for name, text in words.items()
        ]
        for thread in threads:
            thread.start()
        # Each of them, who read it without a lock, would have read the file as it is now.
        write_private(path, b"first:x\n")
    for thread in threads:
        thread.join()
    assert {line.partition(":")[0] for line in path.read_text().splitlines()} == {"first", *words}


def test_the_key_of_unknown_scram_users_is_made_once(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "scram"
    set_password(holdmq, path, "ada", "one", "--scram")
    made = ScramFile.read(path).invented("nobody")
    set_password(holdmq, path, "eve", "two", "--scram")
    holdmq("passwd", str(path), "ada", "--delete", "--scram")
    file = ScramFile.read(path)
    assert (file.invented("nobody"), file.warning) == (made, "")
    assert path.read_text().count("decoy-key") == 1


def test_a_user_is_taken_away(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "users"
    holdmq("passwd", str(path), "--batch", stdin="a:1\nb:2\n")
    done = holdmq("passwd", str(path), "a", "--delete")
    assert done.stdout == f"user a is no longer in {path}\n"
    assert PasswordFile.read(path).hash_of("a") is None
    again = holdmq("passwd", str(path), "a", "--delete")
    assert (again.returncode, again.stderr) == (2, f"error: {path} has no user 'a'\n")


def test_a_scram_verifier_is_no_password_and_stays_out_of_a_password_file(
    holdmq: Holdmq, tmp_path: Path
) -> None:
    path = tmp_path / "scram"
    assert set_password(holdmq, path, "ada", "pencil", "--scram").returncode == 0
    assert "pencil" not in path.read_text()
    verifier = ScramFile.read(path).verifier_of("ada")
    assert verifier == Verifier.of("pencil", verifier.salt)
    mixed = set_password(holdmq, path, "eve", "x")
    assert mixed.returncode == 2
    assert "of no known kind" in mixed.stderr
    assert "nothing was changed" in mixed.stderr
    assert path.read_text().splitlines()[1:] == [f"ada:{verifier}"]
    with mock.patch("holdmq.credentials.password_hash.hash_password") as hashed:
        assert set_password(holdmq, path, "eve", "x").returncode == 2
    hashed.assert_not_called()  # a batch would take an hour to be refused


@pytest.mark.parametrize(
    ("arguments", "stdin", "what"),
    [
        (("a:b", "--batch"), "x\n", "is no user name for a file"),
        (("#a", "--batch"), "x\n", "is no user name for a file"),
        (("a", "--batch"), "", "no password in the first line"),
        (("a", "--batch"), "x" * 5000, "has to have 1 to 4096 bytes"),
        (("--batch",), "a\n", "line 1 of standard input is not of the form user:password"),
        (("--batch",), "", "a batch has 1 to 100000 users"),
        ((), "", "whose password"),
        (("--delete",), "", "--delete takes a file and a user"),
        (("\u2168", "--batch", "--scram"), "x\n", "use that name"),
        (("a", "--batch", "--scram"), "\x07\n", "characters that names and passwords cannot have"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    holdmq: Holdmq, tmp_path: Path, arguments: tuple[str, ...], stdin: str, what: str
) -> None:
    path = tmp_path / "users"
    done = holdmq("passwd", str(path), *arguments, stdin=stdin)
    assert done.returncode == 2
    assert what in done.stderr
    assert not path.exists()


def test_without_batch_the_password_is_asked_for(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "users"
    with mock.patch("typer.prompt", return_value="typed") as asked:
        assert holdmq("passwd", str(path), "ada").returncode == 0
    assert asked.call_args.kwargs["hide_input"]
    assert asked.call_args.kwargs["confirmation_prompt"]
    assert verify(PasswordFile.read(path).hash_of("ada"), b"typed")


def test_a_file_that_cannot_be_read_is_named(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"\xff:x\n")
    done = set_password(holdmq, path, "ada", "x")
    assert done.returncode == 2
    assert f"{path} (access.password_file) is not UTF-8" in done.stderr


def test_a_file_that_cannot_be_written_is_named(holdmq: Holdmq, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "users"
    done = set_password(holdmq, path, "ada", "x")
    assert done.returncode == 2
    assert f"{path} (access.password_file) cannot be written: " in done.stderr


def test_the_hash_does_not_slow_the_help_down(holdmq: Holdmq) -> None:
    import subprocess
    import sys

    code = (
        "import sys, holdmq.cli.app as app; app.command_line(); "
        "print([name for name in ('argon2', 'amqtt') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[]\n"
