"""SCRAM-SHA-256 over a socket, with the file that `holdmq passwd --scram` writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file, written
from packet_stream import PacketStream
from scram_client import ScramClient

from gateway.access.checking import check_access
from gateway.access.scram_file import ScramFile, make_verifier, with_key
from gateway.access.user_file import write_users
from gateway.session.scram import ITERATIONS, METHOD, SALT_BYTES, Verifier
from holdmq.config.access import AccessSection
from holdmq.config.model import Config
from holdmq.errors import ConfigError
from holdmq.mqtt import MQTT_5, Auth, Connect, Properties, Publish, Will

Start = Callable[..., Awaitable[Any]]


def scram_file(path: Path, **users: str) -> str:
    write_users(path, {name: str(make_verifier(word)) for name, word in users.items()}, "")
    return str(path)


async def connect(
    running: Any, user: str, word: str, client_id: str = "c1", **fields: Any
) -> tuple[PacketStream, Any]:
    """A device and the answer to its CONNECT, after AUTH."""
    device = PacketStream(*await asyncio.open_connection("127.0.0.1", running.port))
    running.clients.append(type("Open", (), {"writer": device.writer}))
    client = ScramClient(user, word)
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    device.send(Connect(client_id=client_id, version=MQTT_5, properties=properties, **fields))
    challenge = await device.next()
    assert isinstance(challenge, Auth)
    final = client.final(challenge.properties.authentication_data or b"")
    device.send(Auth(0x18, Properties(authentication_method=METHOD, authentication_data=final)))
    answer = await device.next()
    if answer.reason_code == 0:
        assert client.verify(answer.properties.authentication_data)
    return device, answer


async def test_a_user_comes_in_with_scram_only_and_owns_the_connection(
    start_worker: Start, tmp_path: Path
) -> None:
    acl = written(tmp_path / "acl", "user ada\ntopic readwrite a/#\n")
    users = scram_file(tmp_path / "scram", ada="pencil")
    running = await start_worker(access={"scram_file": users, "acl_file": acl})
    device, answer = await connect(running, "ada", "pencil", will=Will("a/gone", b"x"))
    assert answer.reason_code == 0
    assert running.worker.clients.session("c1").principal == "ada"
    device.send(Publish("b", b"x", 1, packet_id=1))
    assert (await device.next()).reason_code == 0x87
    _, refused = await connect(running, "ada", "pencil", "c2", will=Will("b/gone", b"x"))
    assert refused.reason_code == 0x87
    _, refused = await connect(running, "ada", "crayon")
    assert refused.reason_code == 0x87
    plain = await running.client("c3", MQTT_5, username="ada", password=b"pencil", refused=True)
    assert plain.connack.reason_code == 0x86


async def test_a_client_id_of_another_user_is_refused_once_it_is_known_who_asks(
    start_worker: Start, tmp_path: Path
) -> None:
    acl = written(tmp_path / "acl", "pattern clientid %u:*\n")
    users = scram_file(tmp_path / "scram", ada="pencil", eve="pen")
    running = await start_worker(access={"scram_file": users, "acl_file": acl})
    _, refused = await connect(running, "eve", "pen", "ada:1")
    assert refused.reason_code == 0x85
    _, answer = await connect(running, "ada", "pencil", "ada:1")
    assert answer.reason_code == 0


async def test_the_method_is_not_offered_without_a_file(start_worker: Start, tmp_path: Path) -> None:
    running = await start_worker(access={"password_file": password_file(tmp_path / "p", ada="x")})
    properties = Properties(authentication_method=METHOD, authentication_data=b"n,,n=ada,r=x")
    refused = await running.client("c1", MQTT_5, properties=properties, refused=True)
    assert refused.connack.reason_code == 0x8C


async def test_a_new_verifier_counts_without_a_restart(start_worker: Start, tmp_path: Path) -> None:
    path = scram_file(tmp_path / "scram", ada="pencil")
    running = await start_worker(access={"scram_file": path, "reload_interval_s": 0.05})
    old = running.worker.access.files.scram
    scram_file(Path(path), ada="crayon")
    await running.until(lambda: running.worker.access.files.scram is not old)
    async with asyncio.timeout(40):
        while (await connect(running, "ada", "crayon"))[1].reason_code:
            await asyncio.sleep(0.01)
    assert (await connect(running, "ada", "pencil"))[1].reason_code == 0x87


def test_a_file_of_no_use_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "scram", "ada:$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$aGFzaA\n")
    with pytest.raises(ConfigError, match=r"line 1 of .*: user 'ada' has no SCRAM-SHA-256 verifier"):
        check_access(Config(access=AccessSection(scram_file=path)))


async def challenge(running: Any, user: str) -> dict[str, str]:
    """What a user is asked, known or not."""
    device = PacketStream(*await asyncio.open_connection("127.0.0.1", running.port))
    running.clients.append(type("Open", (), {"writer": device.writer}))
    first = ScramClient(user, "x").first()
    properties = Properties(authentication_method=METHOD, authentication_data=first)
    device.send(Connect(client_id=user, version=MQTT_5, properties=properties))
    asked = (await device.next()).properties.authentication_data.decode()
    return dict(field.split("=", 1) for field in asked.split(","))


@pytest.mark.parametrize("finish", [with_key, str])
async def test_all_workers_ask_an_unknown_user_the_same(
    start_worker: Start, tmp_path: Path, finish: Callable[[str], str]
) -> None:
    path = tmp_path / "scram"
    write_users(path, {"ada": str(make_verifier("pencil"))}, "", finish)
    one, two = [await start_worker(access={"scram_file": str(path)}) for _ in range(2)]
    for user in ("ada", "nobody", "somebody"):
        asked, again = await challenge(one, user), await challenge(two, user)
        assert (asked["s"], asked["i"]) == (again["s"], again["i"])
        assert len(asked["s"]) == 24
    assert (await challenge(one, "nobody"))["s"] != (await challenge(one, "somebody"))["s"]


def invented_of(path: Path, names: list[str]) -> list[tuple[int, bytes]]:
    file = ScramFile.read(path)
    return [(made.iterations, made.salt) for made in map(file.invented, names)]


NAMES = [f"nobody-{n}" for n in range(1000)]


def with_iterations(verifier: Verifier, iterations: int) -> Verifier:
    return verifier._replace(iterations=iterations)


def test_the_salts_of_unknown_users_stay_when_the_file_is_edited(tmp_path: Path) -> None:
    path = tmp_path / "scram"
    verifier = make_verifier("pencil")
    users: dict[str, str | None] = {
        f"user-{n}": str(with_iterations(verifier, 4096 if n % 4 else 20_000)) for n in range(100)
    }
    write_users(path, users, "", with_key)
    before = invented_of(path, NAMES)
    write_users(path, {"user-1": None, "eve": str(make_verifier("x"))}, "", with_key)
    after = invented_of(path, NAMES)
    assert [salt for _, salt in after] == [salt for _, salt in before]
    assert after == before
    write_users(path, {"joe": str(verifier)}, "", with_key)
    # 75 of 100 have few iterations, then 76 of 101: for 2.5 of 1000 names it is another number now.
    assert sum(a != b for a, b in zip(invented_of(path, NAMES), before, strict=True)) <= 10


def test_unknown_users_have_iterations_and_salts_as_real_ones_do(tmp_path: Path) -> None:
    path = tmp_path / "scram"
    verifier = make_verifier("pencil")
    longer = with_iterations(verifier, 20_000)._replace(salt=b"\1" * 32)
    users: dict[str, str | None] = {f"user-{n}": str(verifier if n % 4 else longer) for n in range(40)}
    write_users(path, users, "", with_key)
    found = Counter((iterations, len(salt)) for iterations, salt in invented_of(path, NAMES))
    assert set(found) == {(4096, 16), (20_000, 32)}
    assert 180 < found[20_000, 32] < 320
    write_users(path, dict.fromkeys(users), "", with_key)
    assert {(i, len(salt)) for i, salt in invented_of(path, NAMES)} == {(ITERATIONS, SALT_BYTES)}


def test_a_file_without_a_key_is_warned_of_and_the_key_changes_nothing_else(tmp_path: Path) -> None:
    path = Path(scram_file(tmp_path / "scram", ada="pencil"))
    file = ScramFile.read(path)
    assert "it has no decoy-key" in file.warning
    text = path.read_text()
    write_users(path, {}, "", with_key)
    key, *lines = path.read_text().splitlines()
    assert key.startswith("# decoy-key: ")
    assert lines == text.splitlines()
    assert ScramFile.read(path).warning == ""
    assert ScramFile.read(path).verifier_of("ada") == file.verifier_of("ada")
    write_users(path, {}, "", with_key)
    assert path.read_text().splitlines() == [key, *lines]


@pytest.mark.parametrize("key", ["", "AAAA", "no base64", "A" * 43])
def test_a_key_that_is_none_is_named(tmp_path: Path, key: str) -> None:
    path = written(tmp_path / "scram", f"# users\n# decoy-key: {key.replace(' ', '-')}\n")
    with pytest.raises(ConfigError, match=r"line 2 of .* \(access.scram_file\): the decoy-key is no base64"):
        check_access(Config(access=AccessSection(scram_file=path)))


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({"iterations": 4095}, "4,095 iterations; 4,096 to 1,000,000 are allowed"),
        ({"iterations": 9_999_999_999}, "9,999,999,999 iterations; 4,096 to 1,000,000 are allowed"),
        ({"salt": b"x" * 65}, "a salt that has not 1 to 64"),
        ({"server_key": b"x"}, "keys that have not 32 bytes"),
    ],
)
def test_a_verifier_beyond_the_bounds_is_refused_by_line_and_bound(
    tmp_path: Path, change: dict[str, Any], bound: str
) -> None:
    verifier = make_verifier("pencil")
    path = written(tmp_path / "scram", f"ada:{verifier}\neve:{verifier._replace(**change)}\n")
    with pytest.raises(ConfigError, match=rf"line 2 of .* \(access.scram_file\): user 'eve' has .*{bound}"):
        check_access(Config(access=AccessSection(scram_file=path)))
