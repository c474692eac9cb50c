"""SCRAM-SHA-256 over a socket, with the file that `holdmq passwd --scram` writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file, written
from scram_client import ScramClient

from gateway.access.checking import check_access
from gateway.access.scram_file import make_verifier
from gateway.access.user_file import write_users
from gateway.core.scram import METHOD
from holdmq.config import Config
from holdmq.config_access import AccessSection
from holdmq.errors import ConfigError
from holdmq.mqtt import MQTT_5, SERVER, Auth, Connect, Decoder, Properties, Publish, TopicTable, Will, encode

Start = Callable[..., Awaitable[Any]]


def scram_file(path: Path, **users: str) -> str:
    write_users(path, {name: str(make_verifier(word)) for name, word in users.items()}, "")
    return str(path)


class Device:
    """An MQTT 5 client that authenticates with SCRAM."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder: Decoder[bytes] = Decoder(TopicTable(bytes), 1 << 20, sender=SERVER, version=5)
        self.got: list[Any] = []

    def send(self, packet: Any) -> None:
        self.writer.write(encode(packet, 5))

    async def next(self) -> Any:
        while not self.got:
            data = await asyncio.wait_for(self.reader.read(65_536), 40)
            if not data:
                raise EOFError
            self.got += self.decoder.feed(data)
        return self.got.pop(0)


async def connect(
    running: Any, user: str, word: str, client_id: str = "c1", **fields: Any
) -> tuple[Device, Any]:
    """A device and the answer to its CONNECT, after AUTH."""
    device = Device(*await asyncio.open_connection("127.0.0.1", running.port))
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
    assert running.worker.session("c1").principal == "ada"
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
    with pytest.raises(ConfigError, match=r"user 'ada' in .* has no SCRAM-SHA-256 verifier"):
        check_access(Config(access=AccessSection(scram_file=path)))
