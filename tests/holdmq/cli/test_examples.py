"""Every command's example, as its --help shows it, run against one cluster: for people, and with --json.

What an example needs is in `NEEDS`, what makes it fit a test (ports, a shorter run) in `ADDED`: options that
come after its own. A command that runs until Ctrl-C is a process that gets one, once it has said something.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from command_line import WIDTH, examples_of, run_here
from kv_shards import add_to_shards, write_shard
from mqtt_client import MqttClient
from processes import Stack, free_port, running_stack, wait_until
from valkey_servers import ValkeyServer

from holdmq.cli.app import command_line
from holdmq.client import Consumer, DeadLetters, Message, Producer
from holdmq.mqtt import PubAck, Publish
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.headers import BrokerRegisterRequest, TopicRow
from loadtest.cli import app as loadtest

END_S: Final = 50.0
SERVICES: Final = ("up", "registry", "broker", "gateway", "stats", "console")
FOLLOWING: Final = ("sub", "trace", "table watch")
"""Commands that print until Ctrl-C."""


LEAVES: Final = examples_of(command_line()) | {
    f"loadtest {name}": example for name, example in examples_of(loadtest).items()
}
LEAVES.pop("loadtest", None)
OF_REPLICAS: Final = tuple(name for name in LEAVES if name.startswith("replica "))
"""Run where there are some: test_replica.py."""
ONCE: Final = [name for name in LEAVES if name not in (*SERVICES, *FOLLOWING, *OF_REPLICAS)]


class World:
    """A cluster with something of everything in it, in the working directory of the examples."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.message_id = ""
        self.client: MqttClient | None = None

    def run(self, line: str, *more: str, stdin: str = "y\n") -> subprocess.CompletedProcess[str]:
        """Run a command line as a shell would: without what is behind > or <."""
        words = shlex.split(line)
        assert words[0] == "holdmq"
        if ">" in words:
            words = words[: words.index(">")]
        return run_here(*words[1:], *more, stdin=stdin)

    def do(self, line: str) -> str:
        """Run a command line that has to succeed."""
        done = self.run(line)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    def connect(self) -> MqttClient:
        """Connect meter-42, which has a session, a share and a retained message."""
        client = MqttClient(self.stack.mqtt_port, "meter-42")
        client.subscribe("devices/#", "$share/billing/orders/#")
        client.send(Publish("devices/42/state", b"on", 1, retain=True, packet_id=1))
        assert client.wait_for(PubAck).reason_code < 0x80
        self.client = client
        return client


def _added(stack: Stack) -> dict[str, tuple[str, ...]]:
    """What comes after an example's own options."""
    at = ("--target", f"127.0.0.1:{stack.mqtt_port}")
    here = [f"--set={name}.{key}={free_port()}" for name in SERVICES[1:] for key in ("admin_port",)]
    ports = [f"--set={name}.port={free_port()}" for name in ("registry", "broker", "gateway", "console")]
    alone = (*here, *ports, "--set=registry.data_dir=alone", "--set=gateway.workers=1")
    return {
        "up": ("--without", "stats", "--without", "console", *alone),
        "registry": ("--set=registry.bind=127.0.0.1", *alone),
        "broker": ("--set=broker.name=alone", "--set=storage.data_dir=alone-store", *here, *ports[1:]),
        "gateway": (*here, *ports[1:], "--set=gateway.workers=1"),
        "stats": ("--set=stats.data_dir=stats", "--set=stats.devices=false"),
        "console": (*here, *ports[1:]),
        "log verify": ("--truncate",),
        # An import is made where there is nothing.
        "kv import": (f"--set=storage.kv.prefix=imported-{free_port()}",),
        "topic delete": ("--force",),
        "loadtest connect": (*at, "--devices", "20", "--ramp-s", "0", "--hold-s", "0.1"),
        "loadtest publish": (*at, "--devices", "5", "--ramp-s", "0", "--rate", "0", "--count", "100"),
        "loadtest deliver": (*at, "--seconds", "0.2"),
        "loadtest queue": ("--messages", "500"),
        "loadtest compare": ("--work", "deliver", "--rounds", "1", "--seconds", "0.2", "--devices", "2"),
    }


async def _make_dead_letter(registry: str) -> None:
    async def fail(_message: Message) -> bool:
        return False

    async with Producer([registry]) as producer, DeadLetters([registry]) as letters:
        await producer.routes.refresh()
        link = producer.routes.link("broker-0").client
        once = GroupUpdateRequest("billing", delay_levels_ms=[1], retry_max_times=1)
        await link.call(RequestCode.GROUP_UPDATE, once)
        before = (await letters.groups()).get("billing", (0, 0))[0]
        async with Consumer([registry], "billing", fail, ["orders"], start="latest"):
            await producer.send(Message("orders", b"twelve", keys=("4711",)))
            async with asyncio.timeout(END_S):
                while (await letters.groups()).get("billing", (0, 0))[0] == before:
                    await asyncio.sleep(0.02)


def _dead_letter(world: World) -> None:
    asyncio.run(_make_dead_letter(world.stack.registry))


def _away(*names: str) -> Callable[[World], None]:
    def remove(_world: World) -> None:
        for name in names:
            if Path(name).is_dir():
                shutil.rmtree(name)
            else:
                Path(name).unlink(missing_ok=True)

    return remove


def _runs(*lines: str) -> Callable[[World], None]:
    def run(world: World) -> None:
        for line in lines:
            world.do(line)

    return run


def _each(*steps: Callable[[World], None]) -> Callable[[World], None]:
    def run(world: World) -> None:
        for step in steps:
            step(world)

    return run


def _connected(world: World) -> None:
    world.connect()


def _with_key(_world: World) -> None:
    Path("keys.toml").write_text('[keys.orders]\nsecret = "one that nobody has but this test, long enough"\n')
    Path("keys.toml").chmod(0o600)


def _published(world: World) -> None:
    world.message_id = json.loads(world.do("holdmq pub devices/42/temp -m 21 --json"))["message_id"]


_billing = _runs("holdmq group create billing")
_placed = _runs(
    "holdmq group create billing",
    "holdmq group create billing-test",
    "holdmq group reset billing orders --to earliest --yes",
)


_accounts = _each(
    _away("holdmq-data/console"),
    _runs(
        "holdmq console user add admin --role admin",
        "holdmq console user add ann",
    ),
)


def _lost(world: World) -> None:
    """A broker comes with a new store and an ordered topic, and is gone."""

    async def come_and_go() -> None:
        client = Client(world.stack.registry, "broker", "broker-1")
        row = TopicRow("of-the-lost", 4, 4, 6, "log", 1, True)
        made_ms = time.time_ns() // 1_000_000
        registered = BrokerRegisterRequest("holdmq", "broker-1", 0, "127.0.0.1:1", 1, [row], made_ms=made_ms)
        try:
            await client.call(RequestCode.BROKER_REGISTER, registered)
        finally:
            await client.close()

    asyncio.run(come_and_go())
    wait_until(lambda: "broker-1" not in world.do("holdmq cluster brokers --json"), "it is gone")


NEEDS: Final[dict[str, Callable[[World], None]]] = {
    "topic create": _runs("holdmq topic delete devices --yes --force"),
    "message get": _published,
    "message tail": _published,
    "message replay": _published,
    "sub": _published,
    "topic update": _runs("holdmq topic update devices --perm rw"),
    "topic resume": _runs("holdmq topic pause devices"),
    "topic pause": _runs("holdmq topic resume devices"),
    "topic delete": _published,
    "group delete": _billing,
    "group reset": _billing,
    "group clients": _billing,
    "group pause": _billing,
    "group resume": _billing,
    "group clone": _placed,
    "group lag": _placed,
    "table delete": _runs("holdmq table put settings sensor/42 1"),
    "table get": _runs("holdmq table put settings sensor/42 1"),
    "table scan": _runs("holdmq table put settings sensor/42 1"),
    "table watch": _runs("holdmq table put settings sensor/42 1"),
    "dlq read": _dead_letter,
    "dlq resend": _each(_runs("holdmq pub billing-again/x -m first"), _dead_letter),
    "dlq purge": _dead_letter,
    "broker forget": _lost,
    "ban remove": _runs("holdmq ban add --address 192.0.2.0/24"),
    "quota show": _runs("holdmq quota set user:depot-7 --publish-rate 100"),
    "quota remove": _runs("holdmq quota set user:depot-7 --publish-rate 100"),
    "tenant show": _runs("holdmq topic create orders --tenant acme"),
    "tenant remove": _runs("holdmq topic create orders --tenant acme"),
    "client show": _connected,
    "session show": _connected,
    "session kick": _connected,
    "session drop": _connected,
    "session list": _connected,
    "session shares": _connected,
    "retained show": _connected,
    "retained drop": _connected,
    "retained list": _connected,
    "key create": _away("keys.toml", "gateway.secret"),
    "key list": _with_key,
    "key delete": _with_key,
    "console user add": _away("holdmq-data/console"),
    "console user list": _accounts,
    "console user passwd": _accounts,
    "console user role": _accounts,
    "console user remove": _accounts,
    "cert ca": _away("holdmq-certs"),
    "cert issue": _each(_away("holdmq-certs"), _runs("holdmq cert ca")),
    "cert show": _each(_away("holdmq-certs"), _runs("holdmq cert ca", "holdmq cert issue broker-0")),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("examples")
    before = Path.cwd()
    valkey = ValkeyServer(directory / "valkey")
    with running_stack(directory, **{"gateway.workers": 1}) as stack:
        os.chdir(directory)
        try:
            (directory / "holdmq.toml").write_text(
                f"[registry]\nport = {stack.registry_port}\n[gateway]\nport = {stack.mqtt_port}\n"
                f"admin_port = {stack.admin_ports['gateway']}\n"
                f"[broker]\nadmin_port = {stack.admin_ports['broker']}\n"
                f'[storage.kv]\nurl = "{valkey.url}"\n'
            )
            valkey.start()
            with valkey.client() as client:
                write_shard(client)
                add_to_shards(client)
            os.environ["HOLDMQ_CONFIG"] = str(directory / "holdmq.toml")
            made = World(stack)
            made.do("holdmq topic create devices --queues 4")
            made.do("holdmq topic create orders")
            made.do("holdmq table create settings")
            made.do("holdmq group create billing")
            _published(made)
            asyncio.run(_make_dead_letter(stack.registry))
            _offline_store(stack, directory)
            yield made
        finally:
            MqttClient.close_all()
            valkey.end()
            os.environ.pop("HOLDMQ_CONFIG", None)
            os.chdir(before)


def _offline_store(stack: Stack, directory: Path) -> None:
    """Copy the broker's store as it is while no broker has it open."""
    stack.stop("broker")
    shutil.copytree(directory / "store", directory / "holdmq-data" / "store")
    stack.start("broker")
    wait_until(lambda: stack.http("gateway", "/readyz")[0] == 200, "the gateway has its broker again")


@pytest.fixture(autouse=True)
def _configuration_and_password(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDMQ_CONFIG", str(world.stack.directory / "holdmq.toml"))
    monkeypatch.setattr("typer._click.termui.hidden_prompt_func", lambda _prompt: "a password")


def example_of(name: str, world: World) -> str:
    """The example, with the cluster's ports and a message's id for those that it shows."""
    line = LEAVES[name].replace("127.0.0.1:1883", f"127.0.0.1:{world.stack.mqtt_port}")
    line = line.replace("127.0.0.1:1884", f"localhost:{world.stack.mqtt_port}")
    return line.replace("3f0c5a9d11e2b7640000000000001a2c", world.message_id)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", ONCE)
def test_the_example_of_a_command_works(name: str, as_json: bool, world: World) -> None:
    NEEDS.get(name, lambda _: None)(world)
    line = example_of(name, world)
    asked = "--json" in shlex.split(line)
    more = _added(world.stack).get(name, ())
    done = world.run(line, *more, *(["--json"] if as_json and not asked else []))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if as_json or asked:
        found = [json.loads(text) for text in done.stdout.splitlines()]
        assert found, "a program is told something"
    else:
        assert done.stdout.strip(), "people are told something"


def _process(name: str, world: World, *more: str) -> subprocess.Popen[str]:
    words = shlex.split(example_of(name, world))[1:]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "holdmq.cli", *words, *_added(world.stack).get(name, ()), *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **WIDTH},
    )


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_the_example_of_a_command_that_follows_prints_until_it_is_interrupted(
    name: str, as_json: bool, world: World
) -> None:
    NEEDS.get(name, lambda _: None)(world)
    process = _process(name, world, *(["--json"] if as_json else []))
    try:
        assert process.stdout is not None
        client = world.connect()
        os.set_blocking(process.stdout.fileno(), False)
        deadline, line = time.monotonic() + END_S, ""
        while not line:
            assert time.monotonic() < deadline, f"{name} prints nothing"
            assert process.poll() is None, process.communicate()
            client.publish("meters/42", b"7", qos=1)
            line = process.stdout.readline()
            time.sleep(0.05)
        if as_json:
            assert json.loads(line)
    finally:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=END_S)
    assert (process.returncode, errors) == (0, "")


def test_the_example_of_the_job_counts_what_is_there_and_ends(world: World) -> None:
    process = _process("stats", world, "--json")
    _, errors = process.communicate(timeout=END_S)
    assert process.returncode == 0, errors
    assert all(json.loads(line)["service"] == "stats" for line in errors.splitlines())


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "stats"])
def test_the_example_of_a_service_runs_until_it_is_told_to_stop(name: str, world: World) -> None:
    process = _process(name, world, "--json")
    # A registry that runs elsewhere is not waited for: each says that it serves, or that all does.
    said: list[str] = []
    try:
        stream = process.stdout if name == "up" else process.stderr
        assert stream is not None
        for line in stream:
            said.append(line)
            row = json.loads(line)
            if row["event"] == "ready" or "serves" in row["event"] or "ready" in row["event"]:
                break
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=END_S)
    assert process.returncode == 0, (said, errors)


def test_no_example_is_left_out() -> None:
    assert {*ONCE, *FOLLOWING, *SERVICES, *OF_REPLICAS} == LEAVES.keys()
    assert OF_REPLICAS == ("replica list", "replica switch", "replica promote")
    assert not NEEDS.keys() - LEAVES.keys()
