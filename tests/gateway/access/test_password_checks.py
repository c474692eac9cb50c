"""Hashes wait by turns of addresses, so many at most, and only for who still waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from access_files import QUICK
from argon2 import PasswordHasher

from gateway.access.askers import AccessAnswer, AccessQuestion
from gateway.access.password_checks import BUSY, UNTRIED, PasswordChecks
from gateway.access.plugins import PluginClient
from gateway.access.user_file import write_users
from gateway.ground.counters import Counters
from holdmq.mqtt import MQTT_5, Connect, encode

Start = Callable[..., Awaitable[Any]]

ATTACKER, DEVICE, OTHER = b"\xc0\0\2\1", b"\xc0\0\2\2", b"\xc0\0\2\3"
PROXIED = {"proxy": True, "proxy_networks": ["127.0.0.0/8"]}
HASH = QUICK.hash("secret")


def question(password: bytes) -> AccessQuestion:
    client = PluginClient("c1", "ada", password, "192.0.2.1", 1000, None, "", True, 60)
    return AccessQuestion(client, hash_text=HASH, is_of_file=True)


class Asked:
    """Checks of a pool, and their answers in the order in which they came."""

    def __init__(self, **settings: Any) -> None:
        self.counters = Counters()
        fields = {"threads": 1, "waiting_max": 1000, "wait_s": 600.0, **settings}
        self.checks = PasswordChecks(self.counters, **fields)
        self.answers: list[tuple[str, AccessAnswer, int]] = []

    def ask(self, name: str, address: bytes, password: bytes = b"wrong", **fields: Any) -> None:
        asked = question(password)
        for field, value in fields.items():
            setattr(asked, field, value)

        def answered(answer: AccessAnswer) -> None:
            self.answers.append((name, answer, self.counters.password_checks_total))

        self.checks.ask(address, asked, answered)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(40):
            while not condition():
                await asyncio.sleep(0)

    def answer_of(self, name: str) -> AccessAnswer:
        return next(answer for who, answer, _ in self.answers if who == name)


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., Asked]]:
    pools: list[Asked] = []

    def make(**settings: Any) -> Asked:
        pools.append(Asked(**settings))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.checks.close()


async def test_one_address_s_checks_delay_another_s_by_the_one_under_way(made: Callable[..., Asked]) -> None:
    asked = made()
    for n in range(400):
        asked.ask(f"guess {n}", ATTACKER)
    asked.ask("device", DEVICE, b"secret")
    await asked.until(lambda: len(asked.answers) == 401)
    order = [name for name, _, _ in asked.answers]
    assert order.index("device") == 1
    _, answer, begun = asked.answers[1]
    assert answer.is_yes
    assert begun <= 3  # the attacker's, the device's, and the one that the thread has taken up since
    assert order[0] == "guess 0"
    assert order[2:] == [f"guess {n}" for n in range(1, 400)]


async def test_a_right_password_comes_in_before_the_guesses_of_another_address(
    start_worker: Start, tmp_path: Path
) -> None:
    slow = PasswordHasher(time_cost=4, memory_cost=8192, parallelism=1)
    path = tmp_path / "passwd"
    write_users(path, {"ada": slow.hash("secret")}, "")
    access = {"password_file": str(path), "ask_threads": 1, "ask_timeout_s": 60}
    running = await start_worker(PROXIED, access, login_failures_max=0)
    writers = []
    for n in range(200):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writers.append(writer)
        running.clients.append(type("Open", (), {"writer": writer}))
        connect = Connect(client_id=f"a{n}", username="ada", password=b"%d" % n, version=MQTT_5)
        writer.write(b"PROXY TCP4 192.0.2.66 127.0.0.1 1000 1883\r\n" + encode(connect, MQTT_5))
    counters = running.worker.counters
    await running.until(lambda: counters.password_checks_total + counters.password_checks_waiting == 200)
    header = b"PROXY TCP4 198.51.100.7 127.0.0.1 1000 1883\r\n"
    device = await running.client("d", MQTT_5, username="ada", password=b"secret", before=header)
    assert device.connack.reason_code == 0
    assert counters.password_checks_waiting > 0
    for writer in writers:
        writer.close()


async def test_past_the_bound_a_client_is_told_that_the_server_is_busy(
    start_worker: Start, tmp_path: Path
) -> None:
    slow = PasswordHasher(time_cost=4, memory_cost=8192, parallelism=1)
    path = tmp_path / "passwd"
    write_users(path, {"ada": slow.hash("secret")}, "")
    access = {"password_file": str(path), "ask_threads": 1, "password_checks_max": 4}
    running = await start_worker(access=access)
    answers = await asyncio.gather(
        *(
            running.client(f"c{n}", MQTT_5, username="ada", password=b"%d" % n, refused=True)
            for n in range(60)
        )
    )
    codes = {client.connack.reason_code for client in answers}
    assert codes == {0x86, 0x89}
    busy = sum(client.connack.reason_code == 0x89 for client in answers)
    assert running.worker.counters.password_checks_refused_total == busy


async def test_one_address_has_half_of_the_places(made: Callable[..., Asked]) -> None:
    asked = made(waiting_max=8)
    for n in range(20):
        asked.ask(f"guess {n}", ATTACKER)
    asked.ask("device", DEVICE, b"secret")
    asked.ask("other", OTHER, b"secret")
    await asked.until(lambda: len(asked.answers) == 22)
    assert sum(answer is BUSY for _, answer, _ in asked.answers) == 15  # one on the thread, four wait
    assert asked.counters.password_checks_refused_total == 15
    assert asked.answer_of("device").is_yes
    assert asked.answer_of("other").is_yes


async def test_nothing_is_computed_for_who_does_not_wait_any_more(made: Callable[..., Asked]) -> None:
    asked = made()
    for n in range(300):
        asked.ask(f"guess {n}", ATTACKER, is_wanted=lambda: False)
    asked.ask("device", DEVICE, b"secret")
    await asked.until(lambda: len(asked.answers) == 301)
    assert asked.counters.password_checks_total == 1
    assert sum(answer is UNTRIED for _, answer, _ in asked.answers) == 300
    assert asked.counters.password_checks_waiting == 0


async def test_what_waits_too_long_is_refused_and_what_is_under_way_is_not(
    made: Callable[..., Asked],
) -> None:
    asked = made(wait_s=5.0)
    now = asyncio.get_running_loop().time()
    for n in range(50):
        asked.ask(f"guess {n}", ATTACKER)
    asked.checks.tick(now + 6)
    assert len(asked.answers) == 49
    assert all(answer is BUSY for _, answer, _ in asked.answers)
    await asked.until(lambda: len(asked.answers) == 50)
    assert asked.answers[-1][0] == "guess 0"
    asked.ask("device", DEVICE, b"secret")
    await asked.until(lambda: len(asked.answers) == 51)
    assert asked.answers[-1][1].is_yes
    assert asked.counters.password_checks_total == 2
