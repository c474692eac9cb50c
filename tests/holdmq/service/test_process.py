from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdmq.config.model import Config
from holdmq.service.process import LOOP_STALL_LIMIT_S, Service, listen_error

HEAD = """
import asyncio, os, sys, time
from holdmq.config.model import Config, RegistrySection
from holdmq.errors import ConfigError, StartupError
from holdmq.service.process import *
config = Config(registry=RegistrySection(admin_port=int(sys.argv[1])))
"""
TAIL = """
sys.exit(run_service("registry", config, main))
"""
SERVES = """
async def main(config, service):
    service.ready(lambda: (True, ""))
    service.log.info("serves", port=service.admin_port)
    await service.stopping.wait()
    service.log.info("drained")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``main`` as the service "registry" in a process of its own; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(body: str, port: int = 0, tail: str = TAIL, **environ: str) -> subprocess.Popen[str]:
        script = tmp_path / f"service{len(started)}.py"
        script.write_text(HEAD + body + tail)
        process = subprocess.Popen(
            [sys.executable, script, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Read the log of `process` up to the event `name` and return it."""
    assert process.stderr is not None
    for line in process.stderr:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == name:
            return found
    raise AssertionError(f"the process ended before it logged {name!r}")


def status(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=40) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_service_and_it_exits_0(start: Start, number: signal.Signals) -> None:
    process = start(SERVES)
    event(process, "serves")
    process.send_signal(number)
    event(process, "drained")
    assert process.wait(40) == 0


def test_readiness_goes_from_starting_over_ready_to_draining(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    process = start(
        """
async def gate_opens():
    while not os.path.exists(os.environ["GATE"]):
        await asyncio.sleep(0.01)
    os.remove(os.environ["GATE"])

async def main(config, service):
    service.log.info("begun", port=service.admin_port)
    await gate_opens()
    service.ready(lambda: (True, ""))
    service.log.info("serves")
    await service.stopping.wait()
    await gate_opens()
""",
        GATE=str(gate),
    )
    port = event(process, "begun")["port"]
    assert status(port, "/startz") == (503, "starting\n")
    assert status(port, "/readyz") == (503, "starting\n")
    assert status(port, "/healthz") == (200, "ok\n")
    gate.touch()
    event(process, "serves")
    assert status(port, "/readyz") == (200, "ready\n")
    process.terminate()
    event(process, "draining")
    assert status(port, "/startz") == (200, "started\n")
    assert status(port, "/readyz") == (503, "draining\n")
    gate.touch()
    assert process.wait(40) == 0


def test_a_second_interrupt_ends_a_drain_that_hangs(start: Start) -> None:
    process = start(SERVES.replace('service.log.info("drained")', "await asyncio.sleep(60)"))
    event(process, "serves")
    process.send_signal(signal.SIGINT)
    event(process, "draining")
    process.send_signal(signal.SIGINT)
    said = event(process, "the process ends without having drained")
    assert said["reason"] == "interrupted a second time"
    assert process.wait(40) == 1


def test_a_drain_past_the_limit_ends_by_itself(start: Start) -> None:
    body = SERVES.replace('service.log.info("drained")', "await asyncio.sleep(60)")
    process = start(body, tail=TAIL.replace("main)", "main, stop_limit_s=0.2)"))
    event(process, "serves")
    process.terminate()
    event(process, "the process ends without having drained")
    assert process.wait(40) == 1


@pytest.mark.parametrize(
    ("raised", "code", "sentence"),
    [
        ("StartupError('the disk is gone; mount it')", 1, "the disk is gone; mount it"),
        ("ConfigError('gateway.port is wrong')", 2, "gateway.port is wrong"),
        ("ExceptionGroup('g', [StartupError('one thing')])", 1, "one thing"),
    ],
)
def test_an_error_that_can_be_mended_is_one_sentence(
    start: Start, raised: str, code: int, sentence: str
) -> None:
    process = start(f"async def main(config, service):\n    raise {raised}\n")
    assert process.stderr is not None
    (line,) = process.stderr.read().splitlines()
    assert json.loads(line)["event"] == sentence
    assert process.wait(40) == code


@pytest.mark.parametrize("raised", ["KeyError('x')", "ExceptionGroup('g', [KeyError('x')])"])
def test_any_other_error_is_logged_with_its_frames_and_exits_1(start: Start, raised: str) -> None:
    process = start(f"async def main(config, service):\n    raise {raised}\n")
    assert "KeyError" in json.dumps(event(process, "the process failed")["exception"])
    assert process.wait(40) == 1


def test_a_busy_admin_port_is_one_sentence_with_key_and_port(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(SERVES, port)
        assert process.stderr is not None
        said = json.loads(process.stderr.read())["event"]
        assert process.wait(40) == 1
    assert said.startswith(f"port {port} (registry.admin_port) on 127.0.0.1 is in use by another process")


def test_a_child_ends_when_its_supervisor_is_killed(start: Start, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(HEAD + SERVES + TAIL)
    supervisor = start(
        f"""
import subprocess
os.environ["HOLDMQ_PARENT_PID"] = str(os.getpid())
child = subprocess.Popen([sys.executable, {str(child)!r}, "0"])
sys.stdout.write(f"{{child.pid}}\\n")
sys.stdout.flush()
time.sleep(60)
""",
        tail="",
    )
    assert supervisor.stdout is not None
    child_pid = int(supervisor.stdout.readline())
    event(supervisor, "serves")
    supervisor.kill()
    with abandoned(child_pid):
        event(supervisor, "drained")


@contextlib.contextmanager
def abandoned(pid: int) -> Iterator[None]:
    """End process `pid`, which has no parent here any more, should it have survived the block."""
    watchdog = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def test_a_child_whose_supervisor_is_gone_does_not_start(start: Start) -> None:
    process = start(SERVES, HOLDMQ_PARENT_PID="1")
    assert process.stderr is not None
    assert "supervisor (process 1) is gone" in process.stderr.read()
    assert process.wait(40) == 1


def make_service() -> Service:
    return Service("registry", Config(), structlog.get_logger(), asyncio.Event())


async def test_a_service_is_ready_when_all_checks_hold() -> None:
    service = make_service()
    states = {"a": True, "b": False}
    service.ready(lambda: (states["a"], "a is missing"))
    service.ready(lambda: (states["b"], "b is missing"))
    assert service.readiness() == (False, "b is missing")
    states["b"] = True
    assert service.readiness() == (True, "ready")


async def test_a_loop_that_does_not_turn_is_not_alive() -> None:
    service = make_service()
    assert service.liveness() == (True, "ok")
    service._beat = time.monotonic() - LOOP_STALL_LIMIT_S - 1
    alive, reason = service.liveness()
    assert not alive
    assert re.search(r"has not turned for 3\d s", reason)
    beating = asyncio.create_task(service.beat())
    await asyncio.sleep(0)
    assert service.liveness() == (True, "ok")
    beating.cancel()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.EADDRINUSE,
            r"port 80 \(gateway\.port\) on h is in use by another process; .*--set gateway\.port=PORT",
        ),
        (errno.EADDRNOTAVAIL, "is no address of this machine"),
        (errno.EACCES, "choose a port above 1023"),
        (errno.EINVAL, "cannot be bound: Invalid argument"),
    ],
)
def test_a_failed_bind_says_what_to_do(number: int, words: str) -> None:
    error = listen_error(OSError(number, os.strerror(number)), "gateway.port", "h", 80)
    with pytest.raises(type(error), match=words):
        raise error
