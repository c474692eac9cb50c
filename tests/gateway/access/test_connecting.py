"""Who comes in: the password file, anonymous clients, certificates, and what a session belongs to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file, written

from gateway.access.checking import check_access
from holdmq.config.access import AccessSection
from holdmq.config.model import Config
from holdmq.errors import ConfigError
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Will

Start = Callable[..., Awaitable[Any]]


def break_file(path: str) -> None:
    Path(path).write_text("ada\n")


@pytest.fixture
def users(tmp_path: Path) -> str:
    return password_file(tmp_path / "passwd", ada="secret", eve="other")


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_a_user_of_the_password_file_comes_in_and_owns_the_connection(
    start_worker: Start, users: str, version: int
) -> None:
    running = await start_worker(access={"password_file": users})
    await running.client("c1", version, username="ada", password=b"secret")
    assert running.worker.clients.session("c1").principal == "ada"


@pytest.mark.parametrize(
    ("name", "word"),
    [("ada", b"other"), ("ada", b""), ("ada", None), ("nobody", b"secret"), ("ada", b"\xff" * 5000)],
)
async def test_wrong_credentials_are_refused_with_the_versions_code(
    start_worker: Start, users: str, name: str, word: bytes | None
) -> None:
    running = await start_worker(access={"password_file": users})
    refused = {"username": name, "password": word, "refused": True}
    assert (await running.client("c1", MQTT_5, **refused)).connack.reason_code == 0x86
    assert (await running.client("c1", MQTT_3_1_1, **refused)).connack.reason_code == 0x86  # return code 4
    assert running.worker.counters.refused["bad_user_name_or_password"] == 2
    assert running.worker.clients.session("c1") is None


async def test_who_says_nothing_is_refused_unless_anonymous_clients_are_allowed(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(access={"password_file": users})
    assert (await running.client("c1", MQTT_5, refused=True)).connack.reason_code == 0x86
    assert (await running.client("c1", MQTT_3_1_1, refused=True)).connack.reason_code == 0x87  # return code 5
    running = await start_worker(access={"password_file": users}, allow_anonymous=True)
    await running.client("c1", MQTT_5)
    assert running.worker.clients.session("c1").principal == ""
    wrong = await running.client("c2", MQTT_5, username="ada", password=b"no", refused=True)
    assert wrong.connack.reason_code == 0x86


async def test_a_second_connect_is_answered_from_memory(start_worker: Start, users: str) -> None:
    running = await start_worker(access={"password_file": users})
    counters = running.worker.counters
    for _ in range(3):
        await running.client("c1", username="ada", password=b"secret")
    assert counters.access_asks_total == 1
    assert counters.access_cached_total == 2
    await running.client("c2", username="ada", password=b"wrong", refused=True)
    assert counters.access_asks_total == 2


async def test_the_same_question_of_many_is_asked_once(start_worker: Start, users: str) -> None:
    running = await start_worker(access={"password_file": users})
    await asyncio.gather(*(running.client(f"c{n}", username="ada", password=b"secret") for n in range(20)))
    assert running.worker.counters.access_asks_total == 1
    assert running.worker.counters.sessions == 20


async def test_a_changed_file_counts_at_once_and_a_broken_one_never(
    start_worker: Start, users: str, tmp_path: Path
) -> None:
    running = await start_worker(access={"password_file": users, "reload_interval_s": 0.05})
    await running.client("c1", username="ada", password=b"secret")
    old = running.worker.access.files.passwords
    password_file(Path(users), ada="newer")
    await running.until(lambda: running.worker.access.files.passwords is not old)
    await running.client("c2", username="ada", password=b"newer")
    await running.client("c3", username="ada", password=b"secret", refused=True)
    break_file(users)
    await running.until(lambda: running.worker.counters.access_reloads_failed_total)
    await running.client("c4", username="ada", password=b"newer")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ada", "line 1 of .* is not of the form name:hash"),
        ("# users\nada:plain", r"line 2 of .*: the hash of user 'ada' is of no known kind"),
    ],
)
def test_a_file_of_no_use_is_named_at_the_start(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "passwd"
    written(path, text)
    config = Config(access=AccessSection(password_file=str(path)))
    with pytest.raises(ConfigError, match=what):
        check_access(config)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        check_access(config)


async def test_hashes_of_mosquitto_and_of_crypt_are_known(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    # mosquitto_passwd -b with the password "secret"; mkpasswd -m sha-512 with the same.
    written(path, f"mos:{mosquitto_hash(b'secret')}\nold:{CRYPT}\n")
    running = await start_worker(access={"password_file": str(path)})
    await running.client("c1", username="mos", password=b"secret")
    await running.client("c2", username="mos", password=b"Secret", refused=True)
    await running.client("c3", username="old", password=b"Hello world!")
    await running.client("c4", username="old", password=b"hello world!", refused=True)


CRYPT = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"
"""The first vector of Drepper's SHA-crypt."""


def mosquitto_hash(password: bytes) -> str:
    import base64
    import hashlib

    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


async def test_who_is_connected_keeps_the_client_id_from_other_users_while_no_owner_can_say(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(access={"password_file": users}, allow_anonymous=True)
    ada = await running.client("c1", MQTT_5, username="ada", password=b"secret")
    for credentials in ({"username": "eve", "password": b"other"}, {}):
        refused = await running.client("c1", MQTT_5, refused=True, **credentials)
        assert refused.connack.reason_code == 0x85
    again = await running.client("c1", MQTT_5, username="ada", password=b"secret")
    assert (await ada.next()).reason_code == 0x8E
    assert running.worker.clients.session("c1").principal == "ada"
    assert again.connack.reason_code == 0


async def test_without_any_configuration_nobody_is_asked(start_worker: Start) -> None:
    running = await start_worker()
    await running.client("c1", MQTT_5, username="whoever", password=b"x", will=Will("a/b", b"gone"))
    session = running.worker.clients.session("c1")
    assert (session.principal, session.permit, session.credentials) == ("", None, None)
    assert running.worker.counters.access_asks_total == 0


async def test_closed_doors_stay_closed_without_authentication(start_worker: Start) -> None:
    running = await start_worker(allow_anonymous=False)
    assert (await running.client("c1", MQTT_5, refused=True)).connack.reason_code == 0x86
    known = await running.client("c1", MQTT_5, username="ada", password=b"secret", refused=True)
    assert known.connack.reason_code == 0x86
