from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from holdmq import telemetry
from holdmq.admin import ADMIN_CONNECTIONS_MAX, CONTROL_HEADER, AdminServer, ControlAnswer

HOST = "127.0.0.1"


class State:
    """What the two checks answer, as a test sets it."""

    def __init__(self) -> None:
        self.ready = (True, "ready")
        self.alive = (True, "ok")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[AdminServer]:
    admin = AdminServer(HOST, 0, ready=lambda: state.ready, alive=lambda: state.alive)
    yield admin
    admin.close()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=40)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_readiness_and_liveness_answer_with_their_reason(server: AdminServer, state: State) -> None:
    assert get(server.port, "/readyz") == (200, "ready\n")
    assert get(server.port, "/healthz") == (200, "ok\n")
    state.ready = (False, "no registry yet")
    state.alive = (False, "stuck")
    assert get(server.port, "/readyz") == (503, "no registry yet\n")
    assert get(server.port, "/healthz?verbose") == (503, "stuck\n")


def test_metrics_are_those_of_the_process_unless_others_are_given(server: AdminServer) -> None:
    status, text = get(server.port, "/metrics")
    assert status == 200
    assert "holdmq_build_info" in text
    own = AdminServer(
        HOST, 0, ready=lambda: (True, ""), alive=lambda: (True, ""), collect=lambda: b"mine 1\n"
    )
    try:
        assert get(own.port, "/metrics") == (200, "mine 1\n")
    finally:
        own.close()


def test_other_paths_say_what_there_is(server: AdminServer) -> None:
    status, text = get(server.port, "/etc/passwd")
    assert status == 404
    assert "/readyz" in text


def test_more_connections_than_the_bound_are_closed_and_counted(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> float:
        return telemetry.METRICS.get_sample_value("holdmq_admin_refused_total") or 0.0

    # None of them is given up while the others come.
    monkeypatch.setattr("holdmq.admin.ADMIN_REQUEST_S", 60.0)
    server = AdminServer(HOST, 0, ready=lambda: state.ready, alive=lambda: state.alive)
    before = refused()
    idle = [socket.create_connection((HOST, server.port), timeout=40) for _ in range(ADMIN_CONNECTIONS_MAX)]
    try:
        with socket.create_connection((HOST, server.port), timeout=40) as extra:
            assert extra.recv(1) == b""
        assert refused() == before + 1
    finally:
        for connection in idle:
            connection.close()
        server.close()


def test_a_closed_server_frees_its_port(state: State) -> None:
    first = AdminServer(HOST, 0, ready=lambda: state.ready, alive=lambda: state.alive)
    first.close()
    again = AdminServer(HOST, first.port, ready=lambda: state.ready, alive=lambda: state.alive)
    again.close()


def test_a_busy_port_is_an_os_error(server: AdminServer, state: State) -> None:
    with pytest.raises(OSError, match="in use"):
        AdminServer(HOST, server.port, ready=lambda: state.ready, alive=lambda: state.alive)


def asked(port: int, method: str, path: str, *, as_command: bool = True) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=40)
    try:
        connection.request(method, path, headers={CONTROL_HEADER: "1"} if as_command else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def controlled() -> Iterator[tuple[AdminServer, list[str]]]:
    """A server with a control that answers what it was asked, and notes when its answer was read or left."""
    noted: list[str] = []

    def echo(method: str, query: dict[str, str]) -> ControlAnswer:
        def pieces() -> Iterator[bytes]:
            try:
                yield f"{method} {query}\n".encode()
                while "forever" in query:
                    yield b"x" * 65_536
            finally:
                noted.append("ended")

        return ControlAnswer(200, pieces())

    admin = AdminServer(HOST, 0, ready=lambda: (True, ""), alive=lambda: (True, ""), controls={"/echo": echo})
    yield admin, noted
    admin.close()


def test_a_control_is_called_with_method_and_query(controlled: tuple[AdminServer, list[str]]) -> None:
    port = controlled[0].port
    assert asked(port, "GET", "/echo?a=1&b=x%2Fy") == (200, "GET {'a': '1', 'b': 'x/y'}\n")
    assert asked(port, "POST", "/echo?a=1") == (200, "POST {'a': '1'}\n")
    assert asked(port, "GET", "/other")[0] == 404
    assert asked(port, "POST", "/metrics")[0] == 404


def test_a_web_page_cannot_reach_a_control(controlled: tuple[AdminServer, list[str]]) -> None:
    assert asked(controlled[0].port, "POST", "/echo", as_command=False)[0] == 403
    assert controlled[1] == []


def test_other_machines_cannot_reach_a_control(
    controlled: tuple[AdminServer, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdmq.admin.is_loopback", lambda host: host != HOST)
    assert asked(controlled[0].port, "GET", "/echo")[0] == 403
    assert get(controlled[0].port, "/healthz")[0] == 200


def test_an_answer_whose_reader_is_gone_ends(controlled: tuple[AdminServer, list[str]]) -> None:
    server, noted = controlled
    with socket.create_connection((HOST, server.port)) as connection:
        connection.sendall(f"GET /echo?forever=1 HTTP/1.0\r\n{CONTROL_HEADER}: 1\r\n\r\n".encode())
        assert connection.recv(100)
    deadline = time.monotonic() + 40
    while not noted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert noted == ["ended"]
