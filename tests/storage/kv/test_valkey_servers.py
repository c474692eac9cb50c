"""The servers that the key-value engine is tested on do what its tests expect of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import valkey_servers
from cut_proxy import CutProxy
from processes import free_port, wait_until
from redis.exceptions import AskError, MovedError, OutOfMemoryError, RedisError, TryAgainError
from redis.exceptions import TimeoutError as NoAnswer
from valkey_servers import ValkeyCluster, ValkeyServer, client_of, slot_of

NewValkey = Callable[..., ValkeyServer]
SILENT_S = 0.2
KEY, BESIDE = "{shard}:a", "{shard}:b"

TESTER = """
import os, signal, sys
from pathlib import Path

from valkey_servers import ValkeyServer

server = ValkeyServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _fill(server: ValkeyServer) -> None:
    for number in range(100):
        server.command("SET", f"{number}", "x" * (1 << 20))


@pytest.mark.parametrize(("appendonly", "kept"), [("yes", "1"), ("no", None)])
def test_an_append_only_file_outlives_kill_9_and_memory_does_not(
    new_valkey: NewValkey, appendonly: str, kept: str | None
) -> None:
    server = new_valkey(appendonly=appendonly, appendfsync="always")
    server.command("SET", KEY, "1")
    server.restart(signal.SIGKILL)
    assert server.command("GET", KEY) == kept


def test_a_full_server_refuses_writes_and_answers_reads_until_it_has_room(new_valkey: NewValkey) -> None:
    server = new_valkey(maxmemory="4mb")
    server.command("SET", KEY, "1")
    with pytest.raises(OutOfMemoryError):
        _fill(server)
    assert server.command("GET", KEY) == "1"
    server.configure("maxmemory", "0")
    server.command("SET", KEY, "2")


def test_a_paused_server_says_nothing_and_goes_on_where_it_was(new_valkey: NewValkey) -> None:
    server = new_valkey()
    server.pause()
    with client_of(server.port, SILENT_S) as client:
        with pytest.raises(NoAnswer):
            client.set(KEY, "1")
        server.resume()
        assert client.ping()


def test_no_server_outlives_its_tester(tmp_path: Path) -> None:
    support, root = Path(valkey_servers.__file__).parent, Path(__file__).parents[3]
    told = subprocess.run(
        [sys.executable, "-c", TESTER, str(tmp_path / "server")],
        env={**os.environ, "PYTHONPATH": f"{support}:{root}"}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == -signal.SIGKILL
    pid = int(told.stdout)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "it has ended")


def test_a_cut_proxy_holds_what_is_sent_and_lets_it_through_when_it_is_healed(new_valkey: NewValkey) -> None:
    server = new_valkey()
    with CutProxy(server.port, free_port()) as proxy, client_of(proxy.port, SILENT_S) as client:
        assert client.set(KEY, "1")
        proxy.cut()
        with pytest.raises(NoAnswer):
            client.set(KEY, "2")
        assert server.command("GET", KEY) == "1"
        proxy.heal()
        wait_until(lambda: bool(server.command("GET", KEY) == "2"), "what was held arrives")
        assert client.get(KEY) == "2"


def test_a_proxy_breaks_the_connections_that_there_are(new_valkey: NewValkey) -> None:
    server = new_valkey()
    with (
        CutProxy(server.port, free_port()) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 10) as client,
    ):
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        proxy.drop()
        assert client.recv(100) == b""
        with client_of(proxy.port, 10) as other:
            assert other.ping()


def test_a_cluster_shares_the_slots_out_and_copies_each_master(valkey_cluster: ValkeyCluster) -> None:
    masters = {valkey_cluster.master_of_slot(slot) for slot in range(0, valkey_servers.SLOTS, 1000)}
    assert len(masters) == 3
    master = valkey_cluster.master_of(KEY)
    master.command("SET", KEY, "1")
    assert master.command("WAIT", 1, 10_000) == 1
    with pytest.raises(MovedError):
        valkey_cluster.other_master(master).command("GET", KEY)


def test_a_slot_moves_by_ask_try_again_and_moved(valkey_cluster: ValkeyCluster) -> None:
    source = valkey_cluster.master_of(KEY)
    target = valkey_cluster.other_master(source)
    source.command("MSET", KEY, "1", BESIDE, "2")
    seen: list[str] = []

    def look() -> None:
        try:
            source.command("MGET", KEY, BESIDE)
            seen.append("answer")
        except RedisError as error:
            seen.append(type(error).__name__)

    assert valkey_cluster.migrate_slot(slot_of(KEY), target, look) == 2
    look()
    assert seen == ["answer", TryAgainError.__name__, AskError.__name__, MovedError.__name__]
    assert valkey_cluster.master_of(KEY) is target
    assert target.command("MGET", KEY, BESIDE) == ["1", "2"]
    valkey_cluster.migrate_slot_at_once(slot_of(KEY), source)
    assert source.command("MGET", KEY, BESIDE) == ["1", "2"]


def test_a_killed_master_s_replica_takes_over_and_is_followed_by_the_dead_one(
    valkey_cluster: ValkeyCluster,
) -> None:
    master = valkey_cluster.master_of(KEY)
    replica = valkey_cluster.replica_of(master)
    master.command("SET", KEY, "1")
    assert master.command("WAIT", 1, 10_000) == 1
    assert valkey_cluster.kill_master_of(KEY) is master
    assert valkey_cluster.master_of(KEY) is replica
    assert replica.command("GET", KEY) == "1"
    valkey_cluster.restore()
    assert valkey_cluster.replica_of(replica) is master


def test_a_paused_master_that_wakes_follows_its_successor(valkey_cluster: ValkeyCluster) -> None:
    master = valkey_cluster.master_of(KEY)
    replica = valkey_cluster.replica_of(master)
    master.pause()
    valkey_cluster.wait_failover(KEY, master)
    replica.command("SET", KEY, "1")
    valkey_cluster.restore()
    with pytest.raises(MovedError):
        master.command("SET", KEY, "2")
    assert valkey_cluster.master_of(KEY) is replica


def test_clients_find_a_node_behind_its_proxy_and_nodes_do_not(valkey_cluster: ValkeyCluster) -> None:
    master = valkey_cluster.master_of(KEY)
    with CutProxy(master.port, free_port()) as proxy:
        valkey_cluster.proxied(master, proxy.port)
        with pytest.raises(MovedError) as moved:
            valkey_cluster.other_master(master).command("GET", KEY)
        assert moved.value.port == proxy.port
        proxy.cut()
        master.command("SET", KEY, "1")
        assert master.command("WAIT", 1, 10_000) == 1
