from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdmq.errors import StartupError, UsageError
from holdmq.service.admin import AdminServer
from loadtest.gateway_memory import GatewayMemory, read_numbers


class Gateway:
    """What a gateway would tell of its workers."""

    def __init__(self) -> None:
        self.workers: dict[int, tuple[int, float]] = {}
        self.server = AdminServer(
            "127.0.0.1",
            0,
            started=lambda: (True, ""),
            ready=lambda: (True, ""),
            alive=lambda: (True, ""),
            collect=self.text,
        )
        self.admin = f"127.0.0.1:{self.server.port}"

    def text(self) -> bytes:
        lines = ["# HELP holdmq_gateway_worker_connections Connections open now, by worker."]
        for worker, (connections, memory) in self.workers.items():
            lines.append(f'holdmq_gateway_worker_connections{{worker="{worker}"}} {float(connections)}')
            lines.append(f'holdmq_gateway_worker_memory_bytes{{worker="{worker}"}} {memory:.1f}')
        return "\n".join([*lines, ""]).encode()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.server.close()


def test_memory_is_told_for_each_connection_that_came_meanwhile(gateway: Gateway) -> None:
    gateway.workers = {0: (5, 40e6), 1: (0, 41e6)}
    memory = GatewayMemory(gateway.admin)
    gateway.workers = {0: (1005, 42e6), 1: (1000, 43e6)}
    memory.look()
    assert memory.found() == {
        "workers": 2,
        "bytes_before": 81_000_000,
        "bytes": 85_000_000,
        "connections": 2005,
        "bytes_per_connection": 2000,
    }


def test_a_run_in_which_nobody_connected_costs_nothing_for_each(gateway: Gateway) -> None:
    gateway.workers = {0: (0, 40e6)}
    assert GatewayMemory(gateway.admin).found()["bytes_per_connection"] == 0


def test_it_looks_no_more_often_than_there_is_something_new(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.workers = {0: (0, 40e6)}
    memory = GatewayMemory(gateway.admin)
    memory.look()
    monkeypatch.setattr("loadtest.gateway_memory.EVERY_S", 3600.0)
    gateway.workers = {0: (10, 50e6)}
    memory.look()
    assert memory.found()["connections"] == 0


def test_what_is_no_gateway_is_said(gateway: Gateway) -> None:
    with pytest.raises(StartupError, match="no gateway, or its workers"):
        read_numbers(gateway.admin)
    with pytest.raises(StartupError, match="no gateway tells"):
        read_numbers("127.0.0.1:1")
    with pytest.raises(UsageError, match="HOST:PORT"):
        read_numbers("1883")
