"""Who guesses passwords has to wait, over real sockets; who does not is not made to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from access_files import password_file
from odd_plugins import Gated
from packet_stream import PacketStream
from scram_client import ScramClient
from structlog.testing import capture_logs

from gateway.access import logins
from gateway.access.scram_file import make_verifier
from gateway.access.user_file import write_users
from gateway.session.scram import METHOD
from holdmq.mqtt import MQTT_5, Auth, Connect, Properties, encode

Start = Callable[..., Awaitable[Any]]

PROXIED = {"proxy": True, "proxy_networks": ["127.0.0.0/8"]}
ATTACKER, DEVICE = "192.0.2.66", "198.51.100.7"
QUICKLY = {"login_failures_max": 3, "login_delay_s": 600, "login_delay_max_s": 600}
"""Who is held back stays so for the test."""


@pytest.fixture
def users(tmp_path: Path) -> str:
    return password_file(tmp_path / "passwd", **{"ada": "secret", "eve": "other", "meter-1": "m1"})


@pytest.fixture
def parent() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def header(address: str) -> bytes:
    kind, local = ("TCP6", "::1") if ":" in address else ("TCP4", "127.0.0.1")
    return f"PROXY {kind} {address} {local} 1000 1883\r\n".encode()


async def come(
    running: Any, address: str, user: str, word: str, *, refused: bool = False, **fields: Any
) -> Any:
    """A client at an address, and what its CONNACK says."""
    if address:
        fields["before"] = header(address)
    client = await running.client(
        f"{user}-{len(running.clients)}",
        MQTT_5,
        refused=refused,
        username=user,
        password=word.encode(),
        **fields,
    )
    return client.connack


async def guess(running: Any, address: str, user: str, times: int) -> list[Any]:
    return [await come(running, address, user, f"guess {n} {address}", refused=True) for n in range(times)]


async def test_after_some_wrong_passwords_no_hash_is_computed_for_the_address(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    counters = running.worker.counters
    answers = await guess(running, ATTACKER, "ada", 12)
    assert counters.password_checks_total == 4
    assert (counters.login_failures_total, counters.logins_held_total) == (4, 8)
    assert {(answer.reason_code, answer.properties.reason_string) for answer in answers} == {
        (0x86, answers[0].properties.reason_string)
    }
    await running.until(lambda: counters.login_holds == 2)  # the address, and ada's name
    assert counters.login_holds_total == 2


async def test_what_is_held_back_is_answered_the_same_whatever_it_says(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    await come(running, DEVICE, "ada", "secret")  # so that the right answer is in memory
    wrong = (await guess(running, ATTACKER, "nobody", 4))[0]
    checks = running.worker.counters.password_checks_total
    for user, word in (("ada", "secret"), ("eve", "other"), ("eve", "wrong"), ("unheard-of", "x")):
        told = await come(running, ATTACKER, user, word, refused=True)
        assert told == wrong, (user, word)
    assert running.worker.counters.password_checks_total == checks


async def test_a_name_that_many_addresses_guess_at_is_held_back_though_nobody_has_it(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    for user in ("eve", "unheard-of"):
        for n in range(6):
            await guess(running, f"203.0.113.{n}", user, 1)
        assert (await come(running, DEVICE, user, "other", refused=True)).reason_code == 0x86
    assert running.worker.counters.password_checks_total == 8


async def test_a_device_that_came_in_lately_comes_in_while_others_guess_at_its_name_and_beside_it(
    start_worker: Start, users: str
) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    await come(running, DEVICE, "meter-1", "m1")
    for n in range(6):
        await guess(running, f"203.0.113.{n}", "meter-1", 1)
    await guess(running, DEVICE, "eve", 6)
    await come(running, DEVICE, "meter-1", "m1")
    assert (await come(running, ATTACKER, "meter-1", "m1", refused=True)).reason_code == 0x86
    # Not even there its password can be guessed at.
    checks = running.worker.counters.password_checks_total
    await guess(running, DEVICE, "meter-1", 12)
    assert running.worker.counters.password_checks_total == checks + 4


async def test_addresses_of_one_64_guess_together(start_worker: Start, users: str) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    for n in range(10):
        await guess(running, f"2001:db8:1:2::{n:x}", f"user-{n}", 1)
    assert running.worker.counters.password_checks_total == 4
    await come(running, "2001:db8:1:3::1", "ada", "secret")


async def test_a_device_with_an_old_password_does_not_hold_its_site_back(
    start_worker: Start, users: str
) -> None:
    access = {"password_file": users, "cache_refused_age_s": 0}
    running = await start_worker(PROXIED, access, **QUICKLY)
    for _ in range(20):
        await come(running, DEVICE, "meter-1", "old password", refused=True)
    await come(running, DEVICE, "ada", "secret")


async def test_guesses_that_come_at_once_are_not_all_tried(start_worker: Start, users: str) -> None:
    running = await start_worker(PROXIED, {"password_file": users, "ask_threads": 1}, **QUICKLY)
    refused = [come(running, ATTACKER, "ada", f"guess {n}", refused=True) for n in range(100)]
    answers = await asyncio.gather(*refused)
    assert {answer.reason_code for answer in answers} == {0x86}
    counters = running.worker.counters
    # The fourth failure is told while the fifth is on the thread.
    assert counters.password_checks_total <= 5
    assert counters.login_failures_total == 4
    assert counters.logins_held_total == 96


async def test_this_machine_is_not_counted_unless_it_is_configured(start_worker: Start, users: str) -> None:
    running = await start_worker(access={"password_file": users}, **QUICKLY)
    await guess(running, "", "ada", 8)
    await come(running, "", "ada", "secret")
    assert running.worker.counters.login_failures_total == 8
    running = await start_worker(access={"password_file": users}, login_loopback_counted=True, **QUICKLY)
    await guess(running, "", "ada", 8)
    assert running.worker.counters.password_checks_total == 4
    assert (await come(running, "", "ada", "secret", refused=True)).reason_code == 0x86


async def test_nobody_has_to_wait_where_that_is_configured(start_worker: Start, users: str) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, login_failures_max=0)
    await guess(running, ATTACKER, "ada", 20)
    await come(running, ATTACKER, "ada", "secret")


async def test_the_wait_ends(start_worker: Start, users: str) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    await guess(running, ATTACKER, "eve", 6)
    worker, now = running.worker, running.worker.now
    worker.logins._now = lambda: now() + 599
    assert (await come(running, ATTACKER, "ada", "secret", refused=True)).reason_code == 0x86
    worker.logins._now = lambda: now() + 601
    await come(running, ATTACKER, "ada", "secret")


async def test_plug_ins_are_not_asked_either(start_worker: Start) -> None:
    Gated.reset(eve=False)
    access = {"plugins": [{"class_path": "odd_plugins.Gated"}], "cache_refused_age_s": 0}
    running = await start_worker(PROXIED, access, **QUICKLY)
    await guess(running, ATTACKER, "eve", 10)
    assert Gated.asked == ["eve"] * 4
    Gated.reset()


async def test_what_waits_for_a_plug_in_is_not_asked_once_enough_have_failed(start_worker: Start) -> None:
    Gated.reset(is_open=False, eve=False)
    access = {"plugins": [{"class_path": "odd_plugins.Gated"}], "ask_threads": 1, "ask_timeout_s": 60}
    running = await start_worker(PROXIED, access, **QUICKLY)
    counters = running.worker.counters
    guesses = [come(running, ATTACKER, "eve", f"guess {n}", refused=True) for n in range(60)]
    coming = asyncio.gather(*guesses)
    await running.until(lambda: counters.access_asks_waiting == 60 and len(Gated.asked) == 16)
    Gated.gate.set()
    assert {answer.reason_code for answer in await coming} == {0x86}
    assert len(Gated.asked) <= 20  # as many as were asked, and one for each failure that was free
    assert (counters.login_failures_total, counters.logins_held_total) == (4, 56)
    Gated.reset()


async def scram(running: Any, address: str, user: str, word: str) -> Any:
    """The answer to the last message of a SCRAM exchange."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    client = ScramClient(user, word)
    device = PacketStream(reader, writer)
    running.clients.append(device)
    properties = Properties(authentication_method=METHOD, authentication_data=client.first())
    connect = Connect(client_id=f"scram-{len(running.clients)}", version=MQTT_5, properties=properties)
    writer.write(header(address) + encode(connect, MQTT_5))
    challenge = await device.next()
    assert isinstance(challenge, Auth)
    final = client.final(challenge.properties.authentication_data or b"")
    writer.write(
        encode(Auth(0x18, Properties(authentication_method=METHOD, authentication_data=final)), MQTT_5)
    )
    return await device.next()


async def test_scram_is_counted_as_passwords_are_and_answered_alike(
    start_worker: Start, users: str, tmp_path: Path
) -> None:
    write_users(tmp_path / "scram", {"ada": str(make_verifier("pencil"))}, "")
    access = {"scram_file": str(tmp_path / "scram"), "password_file": users}
    running = await start_worker(PROXIED, access, **QUICKLY)
    counters = running.worker.counters
    assert (await scram(running, DEVICE, "ada", "pencil")).reason_code == 0
    wrong = [await scram(running, ATTACKER, "ada", "crayon") for _ in range(6)]
    assert all(answer == wrong[0] for answer in wrong)
    assert wrong[0].reason_code == 0x87
    assert (counters.login_failures_total, counters.logins_held_total) == (4, 2)
    assert await scram(running, ATTACKER, "ada", "pencil") == wrong[0]
    # One count for both ways in.
    assert (await come(running, ATTACKER, "eve", "other", refused=True)).reason_code == 0x86
    assert (await scram(running, DEVICE, "ada", "pencil")).reason_code == 0
    assert counters.password_checks_total == 0


async def test_what_others_saw_counts_here_and_they_are_told_what_is_seen_here(
    parent: tuple[socket.socket, socket.socket], start_worker: Start, users: str
) -> None:
    running = await start_worker(PROXIED, {"password_file": users}, report=parent[1], **QUICKLY)
    other = await start_worker(PROXIED, {"password_file": users}, **QUICKLY)
    await come(running, DEVICE, "meter-1", "m1")
    await guess(running, ATTACKER, "meter-1", 4)
    messages: list[dict[str, Any]] = []

    def is_told() -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                message = json.loads(parent[0].recv(1 << 16))
                if "login_failed" in message or "logins_known" in message:
                    messages.append(message)
        return len(messages) == 5

    await running.until(is_told)
    for message in messages:
        other.worker.commands.obey(message)
    await come(other, DEVICE, "meter-1", "m1")
    assert (await come(other, ATTACKER, "ada", "secret", refused=True)).reason_code == 0x86
    assert (await come(other, "203.0.113.1", "meter-1", "m1", refused=True)).reason_code == 0x86
    assert other.worker.counters.password_checks_total == 1
    other.worker.commands.obey({"unban": "meter-1"})
    await come(other, "203.0.113.1", "meter-1", "m1")


async def test_who_is_held_back_is_logged_once_and_so_many_lines_a_second(
    start_worker: Start, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "LINES_PER_S", 3)
    settings = {**QUICKLY, "login_failures_max": 1}
    running = await start_worker(PROXIED, {"password_file": users}, **settings)
    worker = running.worker
    worker.clock._next_second = float("inf")  # no second passes
    with capture_logs() as found:
        for n in range(4):
            await guess(running, f"203.0.113.{n}", f"user-{n}", 6)
        worker.logins.each_second(worker.now())
    lines = [line for line in found if line["event"].startswith("too many logins have failed")]
    assert [(line["held_back"], line["address"], line.get("user")) for line in lines] == [
        ("address", "203.0.113.0", None),
        ("user", "203.0.113.0", "user-0"),
        ("address", "203.0.113.1", None),
    ]
    assert [line["not_logged"] for line in found if "not_logged" in line] == [5]
