from __future__ import annotations

import socket
import threading

import pytest

from holdmq.errors import StartupError
from loadtest.relay import Relay
from loadtest.swarm import payload_of, publish_run, swarm


def test_clients_take_what_others_publish_in_order(peer: tuple[str, int]) -> None:
    target = f"{peer[0]}:{peer[1]}"
    with swarm(target, "taker") as takers, swarm(target, "giver") as giver:
        assert takers.connect(3, subscribe="box/{id}", in_flight=2) > 0
        assert len({takers.client_id(n) for n in range(3)}) == 3
        assert {len(takers.client_id(n)) for n in range(3)} == {23}
        giver.connect(1)
        (publisher,) = giver.sockets()
        publisher.setblocking(True)
        payloads = [b"%d" % n + b"x" * 100 * (n % 3) for n in range(20)]
        publisher.sendall(publish_run(f"box/{takers.client_id(1)}", payloads, 1))
        got: list[tuple[int, bytes]] = []
        while len(got) < 20:
            for number, packet_type, body in takers.step(5):
                if packet_type == 3:
                    got.append((number, payload_of(body)))
        assert got == [(1, payload) for payload in payloads]
        takers.disconnect()
        assert len(takers) == 0


def test_what_waited_for_a_session_is_told_while_it_connects(peer: tuple[str, int]) -> None:
    target = f"{peer[0]}:{peer[1]}"
    with swarm(target, "taker") as taker, swarm(target, "giver") as giver:
        taker.connect(1, subscribe="box")
        taker.disconnect()
        giver.connect(1)
        (publisher,) = giver.sockets()
        publisher.setblocking(True)
        publisher.sendall(publish_run("box", [b"waits"], 1))
        while not any(packet_type == 4 for _, packet_type, _ in giver.step(5)):
            pass
        got: list[bytes] = []
        taker.connect(1, on_message=lambda _, body: got.append(payload_of(body)))
        while not got:
            got += [payload_of(body) for _, packet_type, body in taker.step(5) if packet_type == 3]
        assert got == [b"waits"]


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x05", b""])
def test_a_refusal_or_an_end_is_an_error_that_names_the_server(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(100)
                accepted.sendall(answer)

        thread = threading.Thread(target=refuse)
        thread.start()
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with swarm(target, "x") as refused, pytest.raises(StartupError, match=target):
            refused.connect(1)
        thread.join()


@pytest.mark.parametrize(("is_pairs", "expected"), [(True, 20), (False, 80)])
def test_a_relay_counts_what_came_and_how_long_it_took(
    peer: tuple[str, int], is_pairs: bool, expected: int
) -> None:
    relay = Relay(publishers=4, subscribers=4, is_pairs=is_pairs, rate=50.0, seconds=0.1)
    found = relay.measure(f"{peer[0]}:{peer[1]}")
    assert (found.came, found.expected) == (expected, expected)
    assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms
    assert found.seconds > 0
