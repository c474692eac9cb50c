from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from holdmq.service import telemetry
from holdmq.service.admin import (
    ADMIN_CONNECTIONS_MAX,
    ADMIN_HEADERS_MAX,
    ADMIN_REQUEST_MAX_BYTES,
    ADMIN_REQUEST_S,
    CONTROL_HEADER,
    AdminServer,
    ControlAnswer,
)
from holdmq.service.host_rule import AllowedHosts

HOST = "127.0.0.1"


class State:
    """What the two checks answer, as a test sets it."""

    def __init__(self) -> None:
        self.started = (True, "started")
        self.ready = (True, "ready")
        self.alive = (True, "ok")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[AdminServer]:
    admin = AdminServer(
        HOST, 0, started=lambda: state.started, ready=lambda: state.ready, alive=lambda: state.alive
    )
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


def test_start_readiness_and_liveness_answer_with_their_reason(server: AdminServer, state: State) -> None:
    assert get(server.port, "/startz") == (200, "started\n")
    assert get(server.port, "/readyz") == (200, "ready\n")
    assert get(server.port, "/healthz") == (200, "ok\n")
    state.started = (False, "starting")
    state.ready = (False, "no registry yet")
    state.alive = (False, "stuck")
    assert get(server.port, "/startz") == (503, "starting\n")
    assert get(server.port, "/readyz") == (503, "no registry yet\n")
    assert get(server.port, "/healthz?verbose") == (503, "stuck\n")


def test_metrics_are_those_of_the_process_unless_others_are_given(server: AdminServer) -> None:
    status, text = get(server.port, "/metrics")
    assert status == 200
    assert "holdmq_build_info" in text
    own = AdminServer(
        HOST,
        0,
        started=lambda: (True, ""),
        ready=lambda: (True, ""),
        alive=lambda: (True, ""),
        collect=lambda: b"mine 1\n",
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
    monkeypatch.setattr("holdmq.service.admin.ADMIN_REQUEST_S", 60.0)
    server = AdminServer(
        HOST, 0, started=lambda: state.started, ready=lambda: state.ready, alive=lambda: state.alive
    )
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
    first = AdminServer(
        HOST, 0, started=lambda: state.started, ready=lambda: state.ready, alive=lambda: state.alive
    )
    first.close()
    again = AdminServer(
        HOST, first.port, started=lambda: state.started, ready=lambda: state.ready, alive=lambda: state.alive
    )
    again.close()


def test_a_busy_port_is_an_os_error(server: AdminServer, state: State) -> None:
    with pytest.raises(OSError, match="in use"):
        AdminServer(
            HOST,
            server.port,
            started=lambda: state.started,
            ready=lambda: state.ready,
            alive=lambda: state.alive,
        )


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

    admin = AdminServer(
        HOST,
        0,
        started=lambda: (True, ""),
        ready=lambda: (True, ""),
        alive=lambda: (True, ""),
        controls={"/echo": echo},
    )
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
    monkeypatch.setattr("holdmq.service.admin.is_loopback", lambda host: host != HOST)
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


def exchanged(port: int, request: str) -> str:
    """What the server answers to these bytes, all of it."""
    with socket.create_connection((HOST, port), timeout=40) as connection:
        connection.sendall(request.encode("latin-1"))
        answer = b""
        while data := connection.recv(65_536):
            answer += data
    return answer.decode("latin-1")


def status_of(answer: str) -> int:
    return int(answer.split(" ", 2)[1])


REBOUND = "evil.example:10914"


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "ODD"]
)
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/echo", "/echo?a=1", "/none", "*"])
def test_whatever_is_asked_of_a_name_that_is_not_ours_is_refused(
    controlled: tuple[AdminServer, list[str]], method: str, path: str
) -> None:
    server, noted = controlled
    answer = exchanged(
        server.port, f"{method} {path} HTTP/1.1\r\nHost: {REBOUND}\r\n{CONTROL_HEADER}: 1\r\n\r\n"
    )
    head, _, body = answer.partition("\r\n\r\n")
    assert status_of(head) == 421
    assert ("security.hosts" in body) is (method != "HEAD")
    assert noted == []


@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        ("GET /healthz HTTP/1.1", [], 400),
        ("GET /healthz HTTP/1.0", [], 200),
        ("GET /healthz HTTP/1.0", [REBOUND], 421),
        ("GET /healthz", [], 400),
        ("GET /healthz HTTP/1.1", ["localhost", "localhost"], 400),
        ("GET /healthz HTTP/1.1", ["localhost", REBOUND], 400),
        ("GET /healthz HTTP/1.0", ["localhost", REBOUND], 400),
        ("GET /healthz HTTP/1.1", ["localhost\r\n evil.example"], 421),
        ("GET /healthz HTTP/1.1", ["10.1.2.3:10914"], 200),
        ("GET /healthz HTTP/1.1", ["[2001:db8::1]"], 200),
        ("GET /healthz HTTP/1.1", ["Localhost.:1"], 200),
        ("GET http://localhost:1/healthz?x HTTP/1.1", ["localhost"], 200),
        ("GET http://evil.example/healthz HTTP/1.1", ["localhost"], 421),
        ("GET http://localhost/healthz HTTP/1.1", [REBOUND], 421),
        ("GET http://evil.example/healthz HTTP/1.0", [], 421),
        ("CONNECT evil.example:443 HTTP/1.1", ["localhost"], 400),
        ("GET healthz HTTP/1.1", ["localhost"], 400),
    ],
)
def test_a_request_has_one_host_which_is_ours(
    server: AdminServer, line: str, hosts: list[str], status: int
) -> None:
    headers = "".join(f"Host: {host}\r\n" for host in hosts)
    assert status_of(exchanged(server.port, f"{line}\r\n{headers}\r\n")) == status


def test_a_line_that_is_no_header_does_not_hide_the_host(server: AdminServer) -> None:
    for line in ("no header", " folded: 1", "Host : localhost"):
        answer = exchanged(server.port, f"GET /healthz HTTP/1.0\r\n{line}\r\nHost: {REBOUND}\r\n\r\n")
        assert status_of(answer) == 400, line


def test_names_that_are_given_may_be_asked_for(state: State) -> None:
    def misdirected() -> float:
        return telemetry.METRICS.get_sample_value("holdmq_admin_misdirected_requests_total") or 0.0

    hosts = AllowedHosts(["holdmq-stats", "*.broker.example"])
    server = AdminServer(
        HOST,
        0,
        started=lambda: state.started,
        ready=lambda: state.ready,
        alive=lambda: state.alive,
        hosts=hosts,
    )
    before = misdirected()
    try:
        for host, status in (
            ("holdmq-stats:10915", 200),
            ("b0.broker.example", 200),
            ("broker.example", 421),
            (REBOUND, 421),
        ):
            answer = exchanged(server.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")
            assert status_of(answer) == status, host
        assert misdirected() == before + 2
    finally:
        server.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + "X: y\r\n" * (ADMIN_HEADERS_MAX - 1) + "\r\n", 200),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + "X: y\r\n" * ADMIN_HEADERS_MAX + "\r\n", 431),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + "y" * ADMIN_REQUEST_MAX_BYTES, 431),
        ("GET /" + "y" * ADMIN_REQUEST_MAX_BYTES, 431),
    ],
)
def test_headers_and_bytes_of_a_request_are_bounded(
    server: AdminServer, request_text: str, status: int
) -> None:
    with socket.create_connection((HOST, server.port), timeout=40) as connection:
        # As much as is read: what nobody reads would reset the connection, and take the answer with it.
        connection.sendall(request_text[:ADMIN_REQUEST_MAX_BYTES].encode())
        assert status_of(connection.recv(65_536).decode()) == status


def test_a_request_as_large_as_the_bound_is_answered(server: AdminServer) -> None:
    head, end = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", "\r\n\r\n"
    filling = "y" * (ADMIN_REQUEST_MAX_BYTES - len(head) - len(end))
    assert status_of(exchanged(server.port, head + filling + end)) == 200


def test_a_request_has_one_deadline_however_it_drips(state: State) -> None:
    """At each of the server's looks at its clock a second has passed and one more byte has come."""
    request = iter(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connected = threading.Event()
    sent: list[int] = []

    def look() -> float:
        assert connected.wait(40)
        sent.append(next(request))
        connection.sendall(bytes(sent[-1:]))
        return float(len(sent))

    admin = AdminServer(
        HOST,
        0,
        started=lambda: state.started,
        ready=lambda: state.ready,
        alive=lambda: state.alive,
        clock=look,
    )
    try:
        with socket.create_connection((HOST, admin.port), timeout=40) as connection:
            connected.set()
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    finally:
        admin.close()
    assert len(sent) == 1 + ADMIN_REQUEST_S
