"""``holdmq console user``: accounts beside a console that runs, or before it first does."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from console.identity.accounts import AccountFile
from holdmq.cli.console import app
from holdmq.credentials.password_hash import is_argon2_of
from holdmq.errors import UsageError


def run(directory: Path, *words: str, typed: str = "") -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, ["user", *words, "--set", f"console.data_dir={directory}"], input=typed)
    return done.exit_code, done.stdout, done.exception


def test_accounts_are_added_listed_changed_and_removed(tmp_path: Path) -> None:
    code, said, _ = run(tmp_path, "add", "ann", "--role", "admin", "--json")
    assert code == 0
    password = json.loads(said)["password"]
    known = AccountFile(tmp_path).load().accounts["ann"]
    assert is_argon2_of(known.password_hash, password.encode())
    assert run(tmp_path, "add", "bob", "--batch", typed="correct horse\n")[0] == 0
    assert "correct horse" not in run(tmp_path, "passwd", "bob", "--batch", typed="correct horse\n")[1]
    assert run(tmp_path, "role", "bob", "--role", "operator")[0] == 0
    rows = json.loads(run(tmp_path, "list", "--json")[1])
    assert [(row["name"], row["role"]) for row in rows] == [("ann", "admin"), ("bob", "operator")]
    assert run(tmp_path, "remove", "bob", "--yes")[0] == 0
    assert list(AccountFile(tmp_path).load().accounts) == ["ann"]


def test_what_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    run(tmp_path, "add", "ann", "--role", "admin")
    for words in (
        ("add", "ann"),
        ("remove", "ann", "--yes"),
        ("passwd", "nobody"),
        ("add", "bob", "--batch"),
    ):
        _, _, error = run(tmp_path, *words)
        assert isinstance(error, UsageError), words
