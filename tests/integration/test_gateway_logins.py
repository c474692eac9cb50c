"""A gateway of several workers at which somebody guesses passwords: he has to wait at all of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from access_files import password_file
from command_line import run_process
from mqtt_client import MqttClient
from processes import Stack, running_stack, wait_until

FREE = 3


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("logins")
    settings = {
        "access.password_file": password_file(directory / "users", ada="secret"),
        "access.cache_refused_age_s": 0,
        "gateway.login_failures_max": FREE,
        "gateway.login_delay_s": 3600,
        "gateway.login_delay_max_s": 3600,
        "gateway.login_loopback_counted": True,
    }
    with running_stack(directory, **settings) as stack:
        yield stack


def number(stack: Stack, name: str) -> int:
    return int(stack.metric("gateway", f"holdmq_gateway_{name}"))


def come(stack: Stack, client_id: str, word: str) -> int:
    client = MqttClient(
        stack.mqtt_port, client_id, clean=True, expiry_s=0, username="ada", password=word.encode()
    )
    client.close()
    return client.connack.reason_code


def are_counted(stack: Stack, guesses: int) -> bool:
    return number(stack, "login_failures_total") + number(stack, "logins_held_total") == guesses


def test_who_guesses_waits_at_every_worker_and_at_those_that_start(stack: Stack) -> None:
    guesses = 0
    while not number(stack, "login_holds_total"):
        guesses += 1
        assert come(stack, "c", f"guess {guesses}") == 0x86
        wait_until(partial(are_counted, stack, guesses), "the guess is counted")
    wait_until(lambda: number(stack, "login_holds") == 2, "the workers know the address and the name")
    assert guesses == FREE + 1
    assert number(stack, "password_checks_total") == FREE + 1

    for n in range(40):  # the kernel chooses the worker; 2⁻⁴⁰ that it is always the same
        assert come(stack, "c", "secret" if n % 2 else f"another {n}") == 0x86
    wait_until(lambda: number(stack, "logins_held_total") == 40, "both workers have refused")
    assert number(stack, "password_checks_total") == FREE + 1

    os.kill(stack.workers()[0], signal.SIGKILL)
    wait_until(lambda: number(stack, "worker_restarts_total") == 1, "the worker is started again")
    wait_until(lambda: number(stack, "workers") == 2, "both workers report")
    for n in range(40):
        assert come(stack, "c", f"once more {n}") == 0x86
    wait_until(lambda: number(stack, "logins_held_total") == 80, "both workers have refused")
    assert number(stack, "password_checks_total") == FREE + 1

    admin = f"127.0.0.1:{stack.admin_ports['gateway']}"
    done = run_process("ban", "clear", "--all", "--json", "--admin", admin)
    assert json.loads(done.stdout) == {"lifted": 2}
    wait_until(lambda: number(stack, "login_holds") == 0, "every worker lets it try again")
    assert come(stack, "c", "secret") == 0
