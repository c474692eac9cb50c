"""`python -m holdmq.service.health` against the admin server that services have."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.service import health
from holdmq.service.admin import AdminServer

HOST = "127.0.0.1"


@contextmanager
def service(alive: tuple[bool, str] = (True, "ok"), bind: str = HOST) -> Iterator[int]:
    admin = AdminServer(
        bind, 0, started=lambda: (True, ""), ready=lambda: (False, "starting"), alive=lambda: alive
    )
    try:
        yield admin.port
    finally:
        admin.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs tests may take its time."""
    monkeypatch.setattr(health, "ANSWER_S", 40.0)


@pytest.fixture
def absent() -> Iterator[int]:
    """A port on which nothing listens, and nobody else comes to listen."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield held.getsockname()[1]


def config_of(absent: int, **ports: int) -> Config:
    return load(sets=[f"{name}.admin_port={ports.get(name, absent)}" for name in health.SERVICES], environ={})


def test_every_service_that_listens_is_asked_and_the_others_are_none_of_this_machines(absent: int) -> None:
    with service() as broker, service((False, "the event loop has not turned for 31 s")) as gateway:
        assert health.faults_of(config_of(absent, broker=broker), []) == []
        assert health.faults_of(config_of(absent, broker=broker, gateway=gateway), []) == [
            "gateway is not healthy: the event loop has not turned for 31 s"
        ]


def test_a_machine_without_any_service_is_not_healthy(absent: int) -> None:
    assert health.faults_of(config_of(absent), []) == ["no service listens at its admin port here"]


def test_a_service_that_is_named_has_to_listen(absent: int) -> None:
    with service() as broker:
        config = config_of(absent, broker=broker)
        assert health.faults_of(config, ["broker"]) == []
        assert health.faults_of(config, ["broker", "stats"]) == [
            f"stats does not listen on port {absent} (stats.admin_port)"
        ]


def test_something_that_never_answers_is_not_healthy(absent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_S", 0.1)
    # It listens: the kernel takes the connection, and nobody reads it.
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        assert health.faults_of(config_of(absent, stats=port), ["stats"]) == [
            f"stats does not answer on port {port}: timed out"
        ]


def test_a_service_on_all_addresses_is_asked_here() -> None:
    with service(bind="0.0.0.0") as port:
        config = load(sets=[f"stats.admin_port={port}", "stats.admin_bind=0.0.0.0"], environ={})
        assert health.faults_of(config, ["stats"]) == []


def test_the_exit_code_says_it_and_ports_come_from_the_environment(
    absent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service() as port:
        monkeypatch.setenv("HOLDMQ_STATS__ADMIN_PORT", str(port))
        assert health.main(["stats"]) == 0
    away = subprocess.run(
        [sys.executable, "-m", "holdmq.service.health", "broker"],
        env={"HOLDMQ_BROKER__ADMIN_PORT": str(absent)}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert away.returncode == 1
    assert away.stderr == f"broker does not listen on port {absent} (broker.admin_port)\n"


def test_a_name_that_is_no_service_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["statistics"]) == 1
    assert capsys.readouterr().err.startswith("statistics: no such service; there are registry, broker")
