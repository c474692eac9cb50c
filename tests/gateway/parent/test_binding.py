from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.parent.binding import BoundListener, bind
from holdmq.config.listeners import ListenerSettings
from holdmq.errors import StartupError


@pytest.fixture
def places() -> Iterator[list[BoundListener]]:
    made: list[BoundListener] = []
    yield made
    for place in made:
        place.close()


def unix(path: Path, **settings: Any) -> ListenerSettings:
    return ListenerSettings(name="local", kind="unix", path=str(path), **settings)


def tcp(port: int, name: str = "devices", **settings: Any) -> ListenerSettings:
    return ListenerSettings(name=name, kind="tcp", port=port, **settings)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# TCP


def test_every_worker_has_a_socket_of_its_own_on_one_port(places: list[BoundListener]) -> None:
    places.append(bind(tcp(0), 3))
    sockets = [places[0].of_worker(index) for index in range(3)]
    assert len({s.fileno() for s in sockets}) == 3
    assert len({s.getsockname() for s in sockets}) == 1
    assert places[0].where == f"127.0.0.1:{sockets[0].getsockname()[1]}"
    assert places[0].keep_only(1) is sockets[1]
    assert [s.fileno() >= 0 for s in sockets] == [False, True, False]


def test_a_busy_port_is_said_with_the_listener_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError) as raised:
            bind(tcp(port), 2)
        assert str(raised.value) == (
            f"the listener 'devices' cannot listen at 127.0.0.1:{port}: the port is in use by another "
            "process; stop it, or choose another port"
        )
        with pytest.raises(StartupError, match=rf"port {port} \(gateway\.port\) on 127\.0\.0\.1 is in use"):
            bind(tcp(port, "default"), 2)


def test_a_second_gateway_on_the_port_is_not_let_in_beside_the_first(places: list[BoundListener]) -> None:
    places.append(bind(tcp(0), 1))
    port = places[0].of_worker(0).getsockname()[1]
    with pytest.raises(StartupError, match="in use"):
        bind(tcp(port), 1)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("192.0.2.1", "'devices' cannot listen at 192.0.2.1:1: that is no address of this machine"),
        ("no host", r"no host \(bind of the listener 'devices'\) is no address"),
    ],
)
def test_an_address_that_is_none_is_said_with_the_listener(host: str, sentence: str) -> None:
    with pytest.raises(StartupError, match=sentence):
        bind(tcp(1, bind=host), 1)


# UNIX sockets


def test_all_workers_share_a_unix_socket_whose_file_has_the_mode_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    place = bind(unix(path, mode="0600"), 3)
    assert place.of_worker(0) is place.of_worker(2)
    assert place.where == str(path)
    assert mode_of(path) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    place.close()
    assert not path.exists()
    place.close()


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, places: list[BoundListener]) -> None:
    before = os.umask(0o077)
    try:
        places.append(bind(unix(tmp_path / "mqtt.sock"), 1))
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "mqtt.sock") == 0o660


def test_the_file_of_a_gateway_that_was_killed_is_replaced(
    tmp_path: Path, places: list[BoundListener]
) -> None:
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.exists()
    places.append(bind(unix(path), 1))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_where_somebody_listens_is_left_alone(tmp_path: Path, places: list[BoundListener]) -> None:
    path = tmp_path / "mqtt.sock"
    places.append(bind(unix(path), 1))
    with pytest.raises(StartupError, match=r"another process listens at .*mqtt\.sock .*'local'"):
        bind(unix(path), 1)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_whose_queue_is_full_counts_as_somebodys(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    waiting = []
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        while True:
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(StartupError, match="another process listens"):
            bind(unix(path), 1)
        for client in waiting:
            client.close()
    assert path.exists()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StartupError, match=r"precious \(path of .*'local'\) exists and is no socket"):
        bind(unix(path), 1)
    assert path.read_text() == "data"


def test_a_directory_that_is_not_there_is_said_with_the_listener(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"'local' cannot listen at .*: its directory does not exist"):
        bind(unix(tmp_path / "absent" / "mqtt.sock"), 1)


def test_a_file_that_another_gateway_put_there_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    place = bind(unix(path), 1)
    path.unlink()
    other = bind(unix(path), 1)
    place.close()
    assert path.exists()
    other.close()
    assert not path.exists()


def test_a_client_that_is_gone_is_noticed_by_the_kernel_whatever_its_keep_alive() -> None:
    place = bind(ListenerSettings(name="tcp", kind="tcp", port=0), 1)
    listening = place.of_worker(0)
    with socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, every, count = (
                accepted.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
    assert idle + every * count == 900
    place.close()
