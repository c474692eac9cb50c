"""`holdmq key`: what it writes, a server can use, and it shows a secret once."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdmq.credentials.access_keys import load_keys
from holdmq.credentials.permissions import Role

Holdmq = Callable[..., Any]


def create(holdmq: Holdmq, path: Path, name: str, *args: str) -> dict[str, str]:
    result = holdmq("key", "create", name, "--file", str(path), "--json", *args)
    assert result.returncode == 0, result.stderr
    made: dict[str, str] = json.loads(result.stdout)
    return made


def test_a_created_key_is_in_a_private_file_with_its_permissions(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "conf" / "keys.toml"
    made = create(
        holdmq, path, "orders", "--produce", "a*", "--produce", "b", "--consume", "c", "--group", "g",
        "--certificate", "orders.example",
    )  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = load_keys(path)["orders"]
    assert key.secret == made["secret"]
    assert len(key.secret) == 43
    assert (key.produce, key.consume, key.groups) == (("a*", "b"), ("c",), ("g",))
    assert key.certificates == ("orders.example",)


def test_a_secret_file_takes_the_secret_off_the_screen(holdmq: Holdmq, tmp_path: Path) -> None:
    path, secret_file = tmp_path / "keys.toml", tmp_path / "secret"
    made = create(holdmq, path, "svc.1", "--role", "service", "--secret-file", str(secret_file))
    assert "secret" not in made
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    key = load_keys(path)["svc.1"]
    assert key.roles == {Role.SERVICE}
    assert secret_file.read_text() == key.secret + "\n"


def test_a_key_may_have_several_roles_and_the_list_shows_them(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    create(holdmq, path, "all-in-one", "--role", "service", "--role", "broker")
    assert load_keys(path)["all-in-one"].roles == {Role.SERVICE, Role.BROKER}
    (row,) = json.loads(holdmq("key", "list", "--file", str(path), "--json").stdout)
    assert row["roles"] == ["broker", "service"]
    assert holdmq("key", "create", "x", "--file", str(path), "--role", "root").returncode == 2


def test_comments_and_other_keys_stay_when_keys_come_and_go(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    create(holdmq, path, "one")
    path.write_text("# ours\n" + path.read_text())
    create(holdmq, path, "two.x")
    create(holdmq, path, "three")
    before = load_keys(path)
    result = holdmq("key", "delete", "two.x", "--file", str(path))
    assert result.returncode == 0, result.stderr
    assert load_keys(path) == {name: before[name] for name in ("one", "three")}
    assert path.read_text().startswith("# ours\n")


def test_a_list_shows_no_secret(holdmq: Holdmq, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secret = create(holdmq, path, "orders", "--produce", "orders")["secret"]
    for args in (["--json"], []):
        result = holdmq("key", "list", "--file", str(path), *args)
        assert result.returncode == 0
        assert "orders" in result.stdout
        assert secret not in result.stdout


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["create", "orders"], "delete it first"),
        (["create", "with space"], "no name for an access key"),
        (["delete", "nobody"], "no access key 'nobody'"),
        (["delete", "inline"], "by hand"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    holdmq: Holdmq, tmp_path: Path, args: list[str], problem: str
) -> None:
    path = tmp_path / "keys.toml"
    create(holdmq, path, "orders")
    path.write_text('keys.inline = { secret = "' + "s" * 43 + '" }\n' + path.read_text())
    before = path.read_text()
    result = holdmq("key", *args, "--file", str(path))
    assert result.returncode == 2
    assert problem in result.stderr
    assert path.read_text() == before


def test_without_a_file_the_command_says_what_to_set(holdmq_process: Holdmq) -> None:
    result = holdmq_process("key", "list")
    assert result.returncode == 2
    assert "security.keys_file" in result.stderr
