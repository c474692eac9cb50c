"""What the check of a password costs, counted in hashes: the same for every name, and never too much."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import QUICK, written
from argon2 import PasswordHasher
from structlog.testing import capture_logs

from gateway.access import passwords
from gateway.access.checking import check_access
from gateway.access.passwords import SHAPES_MAX, PasswordFile, Shape, decoy_of, is_weaker, verify
from holdmq.config.access import AccessSection
from holdmq.config.model import Config
from holdmq.errors import ConfigError
from holdmq.mqtt import MQTT_5

Start = Callable[..., Awaitable[Any]]

DEARER = PasswordHasher(time_cost=3, memory_cost=128, parallelism=2)


def mosquitto_hash(password: bytes, iterations: int = 101) -> str:
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    return f"$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


CRYPT = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"
"""The first vector of Drepper's SHA-crypt: "Hello world!"."""
KINDS = {
    "quick": QUICK.hash("word", salt=b"sixteen bytes ok"),
    "dear": DEARER.hash("word", salt=b"sixteen bytes ok"),
    "mos": mosquitto_hash(b"word"),
    "old": CRYPT,
}


def file_of(path: Path, users: dict[str, str]) -> Path:
    return Path(written(path, "".join(f"{name}:{text}\n" for name, text in users.items())))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is computed from here on: each hash by its kind and parameters. It is computed all the same."""
    done: list[str] = []

    def counted(name: str, shown: Callable[..., str]) -> None:
        real = getattr(passwords, name)

        def count(*arguments: Any) -> Any:
            done.append(shown(*arguments))
            return real(*arguments)

        monkeypatch.setattr(passwords, name, count)

    counted("is_argon2_of", lambda text, _: text.rpartition("$")[0].rpartition("$")[0])
    counted("_crypt_is", lambda text, _: "crypt")
    pbkdf2 = hashlib.pbkdf2_hmac

    def of_pbkdf2(*arguments: Any) -> bytes:
        done.append(f"pbkdf2 {arguments[3]}")
        return pbkdf2(*arguments)

    monkeypatch.setattr("gateway.access.passwords.hashlib.pbkdf2_hmac", of_pbkdf2)
    return done


async def test_a_wrong_password_costs_the_same_for_every_name_whatever_its_kind(
    start_worker: Start, tmp_path: Path, work: list[str]
) -> None:
    path = file_of(tmp_path / "users", KINDS)
    running = await start_worker(access={"password_file": str(path)})
    costs: dict[str, list[str]] = {}
    for name in [*KINDS, "nobody", "somebody-else"]:
        work.clear()
        refused = await running.client("c", MQTT_5, username=name, password=b"wrong", refused=True)
        assert refused.connack.reason_code == 0x86
        costs[name] = sorted(work)
    assert costs["nobody"] == [
        "$argon2id$v=19$m=128,t=3,p=2",
        "$argon2id$v=19$m=64,t=1,p=1",
        "crypt",
        "pbkdf2 101",
    ]
    assert all(cost == costs["nobody"] for cost in costs.values())


async def test_while_nobody_is_in_the_file_a_check_costs_what_it_will(
    start_worker: Start, tmp_path: Path, work: list[str]
) -> None:
    path = file_of(tmp_path / "users", {})
    running = await start_worker(access={"password_file": str(path)})
    await running.client("c", MQTT_5, username="nobody", password=b"x", refused=True)
    assert work == ["$argon2id$v=19$m=19456,t=2,p=1"]
    work.clear()
    await running.client("c", MQTT_5, username="nobody", password=b"x" * 5000, refused=True)
    assert work == []


def test_right_passwords_are_right_and_cost_no_less(tmp_path: Path, work: list[str]) -> None:
    file = PasswordFile.read(file_of(tmp_path / "users", KINDS))
    for name in KINDS:
        work.clear()
        text = file.hash_of(name)
        assert verify(text, b"Hello world!" if name == "old" else b"word", file.beside(text))
        assert len(work) == len(KINDS)


def test_of_many_kinds_the_dearest_are_computed_and_the_others_are_told_of(
    tmp_path: Path, work: list[str]
) -> None:
    users = {f"u{n}": mosquitto_hash(b"word", n) for n in range(1, SHAPES_MAX + 4)}
    path = file_of(tmp_path / "users", {**users, "again": users["u1"]})
    file = PasswordFile.read(path)
    work.clear()
    assert not verify(None, b"x", file.beside(None))
    assert work == [f"pbkdf2 {n}" for n in range(SHAPES_MAX + 3, 3, -1)]
    work.clear()
    assert verify(file.hash_of("u1"), b"word", file.beside(file.hash_of("u1")))
    assert len(work) == SHAPES_MAX + 1
    assert "tells of the other 4 users" in file.warning


async def test_a_file_of_many_kinds_is_warned_of_once(start_worker: Start, tmp_path: Path) -> None:
    path = file_of(tmp_path / "users", {f"u{n}": mosquitto_hash(b"word", n) for n in range(1, 9)})
    with capture_logs() as found:
        await start_worker(access={"password_file": str(path)})
    assert [line["event"] for line in found].count("a file of users is not as it should be") == 1


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_a_decoy_is_of_the_same_shape_and_has_no_password(text: str) -> None:
    decoy = decoy_of(text)
    assert decoy != text
    assert (Shape.of(decoy), len(decoy)) == (Shape.of(text), len(text))
    assert not verify(decoy, b"word")
    assert decoy_of(text) != decoy


def argon2(m: int = 64, t: int = 1, p: int = 1) -> str:
    return KINDS["quick"].replace("m=64,t=1,p=1", f"m={m},t={t},p={p}")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (argon2(m=262_145), "262,145 KiB memory of argon2, of which 262,144 KiB are allowed"),
        (argon2(m=9_999_999_999), "9,999,999,999 KiB memory of argon2"),
        (
            argon2(m=262_144, t=5),
            "1,310,720 KiB memory × passes of argon2, of which 1,048,576 KiB are allowed",
        ),
        (argon2(t=9_999_999), "memory × passes of argon2, of which 1,048,576 KiB are allowed"),
        (argon2(m=1024, p=17), "17 lanes of argon2, of which 16 are allowed"),
        (argon2(t=0), "t and p ≥ 1, and m ≥ 8·p are needed"),
        (argon2(m=7), "t and p ≥ 1, and m ≥ 8·p are needed"),
        (argon2().rpartition("$")[0] + "$!", "no base64 of an argon2 salt and digest"),
        (
            mosquitto_hash(b"x").replace("101", "1000001"),
            "1,000,001 iterations of PBKDF2, of which 1,000,000 are",
        ),
        (mosquitto_hash(b"x").replace("101", "0"), "of 0 iterations of PBKDF2"),
        ("$7$101$c2FsdA==$" + "A" * 88, "no base64 of a salt and of 1 to 64 bytes of PBKDF2"),
        (
            CRYPT.replace("$6$", "$6$rounds=1000001$"),
            "1,000,001 rounds of crypt, of which 1,000,000 are allowed",
        ),
    ],
)
def test_a_hash_that_would_take_too_much_is_refused_by_line_and_bound(
    tmp_path: Path, text: str, bound: str
) -> None:
    path = file_of(tmp_path / "users", {"ada": KINDS["mos"], "eve": text})
    with pytest.raises(ConfigError) as raised:
        check_access(Config(access=AccessSection(password_file=str(path))))
    assert f"line 2 of {path} (access.password_file): the hash of user 'eve' is " in str(raised.value)
    assert bound in str(raised.value)


def test_what_is_at_the_bounds_is_taken() -> None:
    for text in (argon2(m=262_144, t=4), argon2(m=1024, p=16), CRYPT.replace("$6$", "$6$rounds=1000000$")):
        Shape.of(text)


@pytest.mark.parametrize(
    ("text", "weaker"),
    [
        (argon2(m=19_456, t=2), False),
        (argon2(m=65_536, t=3, p=4), False),
        (argon2(m=65_536, t=1), False),
        (argon2(m=19_455, t=9), True),
        (argon2(m=19_456, t=1), True),
        (argon2(m=65_536, t=3).replace("argon2id", "argon2i"), True),
        (argon2(m=65_536, t=3).replace("v=19", "v=16"), True),
        (KINDS["mos"], True),
        (CRYPT, True),
    ],
)
def test_weaker_is_what_is_easier_to_guess_than_todays(text: str, weaker: bool) -> None:
    assert is_weaker(text) is weaker


@pytest.mark.parametrize("key", ["password_file", "scram_file"])
def test_a_file_that_others_can_read_is_refused_at_the_start(tmp_path: Path, key: str) -> None:
    path = Path(written(tmp_path / "users", "# nobody\n"))
    config = Config(access=AccessSection(**{key: str(path)}))
    check_access(config)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"access.{key}: {path} has mode 0644.*chmod 600 {path}"):
        check_access(config)


async def test_a_file_that_is_laid_open_changes_nothing_and_counts_again_once_it_is_closed(
    start_worker: Start, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "users", {"ada": KINDS["quick"]})
    running = await start_worker(access={"password_file": str(path), "reload_interval_s": 0.05})
    old = running.worker.access.files.passwords
    new = tmp_path / "new"
    new.write_text(f"ada:{QUICK.hash('newer')}\n")
    new.chmod(0o644)
    new.replace(path)
    await running.until(lambda: running.worker.counters.access_reloads_failed_total == 1)
    await running.client("c1", username="ada", password=b"word")
    path.chmod(0o600)
    await running.until(lambda: running.worker.access.files.passwords is not old)
    await running.client("c2", username="ada", password=b"newer")
