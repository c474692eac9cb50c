"""Accounts and tokens: made, changed, removed, and what of them is on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.identity.accounts import (
    FILE,
    AccountFile,
    ExistsError,
    LastAdminError,
    NotFoundError,
)
from holdmq.credentials.password_hash import is_argon2_of
from holdmq.errors import StoreFormatError, UsageError


def test_the_first_account_is_an_admin_whose_password_is_told_once(tmp_path: Path) -> None:
    file = AccountFile(tmp_path / "console")
    password = file.begin()
    assert password is not None
    assert file.begin() is None
    account = file.load().accounts["admin"]
    assert (account.role, account.must_change_password) == ("admin", True)
    assert is_argon2_of(account.password_hash, password.encode())
    assert password not in (tmp_path / "console" / FILE).read_text()


def test_accounts_are_added_changed_and_removed(tmp_path: Path) -> None:
    file = AccountFile(tmp_path)
    file.begin()
    account, password = file.add("ann", "viewer")
    assert is_argon2_of(account.password_hash, password.encode())
    with pytest.raises(ExistsError, match="ann"):
        file.add("ann", "admin")
    assert file.change("ann", role="operator").role == "operator"
    changed, _ = file.set_password("ann", "correct horse", by_owner=True)
    assert not changed.must_change_password
    assert not is_argon2_of(changed.password_hash, password.encode())
    file.remove("ann")
    with pytest.raises(NotFoundError, match="ann"):
        file.change("ann", disabled=True)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "-x", "x" * 65, "ä"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name"):
        AccountFile(tmp_path).add(name, "viewer")


def test_a_short_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 10"):
        AccountFile(tmp_path).add("ann", "viewer", "123456789")


def test_an_admin_stays(tmp_path: Path) -> None:
    file = AccountFile(tmp_path)
    file.begin()
    for change in (
        lambda: file.remove("admin"),
        lambda: file.change("admin", role="viewer"),
        lambda: file.change("admin", disabled=True),
    ):
        with pytest.raises(LastAdminError):
            change()
    file.add("ann", "admin")
    file.remove("admin")
    assert list(file.load().accounts) == ["ann"]


def test_a_token_counts_until_it_ends_and_its_secret_is_not_kept(tmp_path: Path) -> None:
    now_ms = 1_000_000
    file = AccountFile(tmp_path, lambda: now_ms)
    token, secret = file.add_token("ci", "operator", 1, "admin")
    known = AccountFile(tmp_path).load()
    assert known.token_of(secret, now_ms) == token
    assert known.token_of(secret, now_ms + 86_400_000) is None
    assert known.token_of(secret[:-1], now_ms) is None
    assert secret not in (tmp_path / FILE).read_text()
    file.remove_token("ci")
    assert file.load().token_of(secret, now_ms) is None


def test_a_damaged_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    file = AccountFile(tmp_path)
    file.begin()
    (tmp_path / FILE).write_text("{")
    with pytest.raises(StoreFormatError, match=FILE):
        file.begin()
    assert (tmp_path / FILE).read_text() == "{"
