from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.parent import supervisor
from gateway.parent.supervisor import SILENT_KILL_S, SILENT_UNREADY_S, WorkerSupervisor
from holdmq.config.model import Config


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def parent(child: subprocess.Popen[bytes]) -> Iterator[tuple[WorkerSupervisor, Any]]:
    """A supervisor with one worker, which reported just now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    now = time.monotonic()
    made = WorkerSupervisor(Config())
    worker = supervisor._WorkerProcess(0, child.pid, ours, now, now)
    made._children[child.pid] = worker
    made._reports.received(0, {"ready": True, "numbers": {"connections": 3}, "refused": {}})
    yield made, worker
    made._selector.close()
    ours.close()
    theirs.close()


def test_a_worker_that_is_silent_makes_the_gateway_unready_and_is_killed_in_the_end(
    parent: tuple[WorkerSupervisor, Any], child: subprocess.Popen[bytes]
) -> None:
    made, worker = parent
    made._end_silent(worker.heard_at + SILENT_UNREADY_S)
    assert made._reports.readiness() == (True, "ready")
    made._end_silent(worker.heard_at + SILENT_UNREADY_S + 1)
    assert made._reports.readiness() == (False, "worker 0 does not answer")
    assert child.poll() is None
    made._end_silent(worker.heard_at + SILENT_KILL_S + 1)
    assert child.wait(40) == -signal.SIGKILL
    made._end_silent(worker.heard_at + SILENT_KILL_S + 2)


def test_workers_are_not_blamed_for_a_time_in_which_their_parent_did_not_run_either(
    parent: tuple[WorkerSupervisor, Any], child: subprocess.Popen[bytes]
) -> None:
    made, worker = parent
    wake, other = socket.socketpair()
    made._beat = worker.heard_at = time.monotonic() - 2 * SILENT_KILL_S
    made._selector.register(wake, supervisor.selectors.EVENT_READ, None)
    other.send(b"x")
    made._turn(wake)
    assert child.poll() is None
    assert made._reports.readiness() == (True, "ready")
    wake.close()
    other.close()


def test_a_signal_is_only_noted_by_its_handler_and_passed_on_by_the_next_turn(
    parent: tuple[WorkerSupervisor, Any], child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = parent
    said: list[str] = []
    monkeypatch.setattr(supervisor.log, "info", lambda event, **_: said.append(event))
    made._signalled(signal.SIGTERM, None)
    assert not said
    assert child.poll() is None
    wake, other = socket.socketpair()
    made._selector.register(wake, supervisor.selectors.EVENT_READ, None)
    other.send(b"x")
    made._turn(wake)
    assert child.wait(40) == -signal.SIGTERM
    assert said == ["draining"]
    assert made._reports.readiness() == (False, "draining")
    wake.close()
    other.close()


def test_connections_are_told_by_worker(parent: tuple[WorkerSupervisor, Any]) -> None:
    made, _ = parent
    family = next(f for f in made._reports.families() if f.name == "holdmq_gateway_worker_connections")
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"worker": "0"}, 3)]
