"""`holdmq replica` over three replicas as processes: who has what, who leads, who is to, at what price."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, examples_of, run_here
from processes import wait_until
from replica_processes import SHARD, ReplicaStack, replica_stack

from holdmq.cli.replica import app as commands
from holdmq.client.producer import Producer
from holdmq.message import Message

Replica = Callable[..., Any]
EXAMPLES = examples_of(commands)


def command_of(stack: ReplicaStack) -> Replica:
    """Runs `holdmq replica …` for a shard."""
    listed = ",".join(f"{name}=127.0.0.1:{port}" for name, port in stack.ports.items())
    sets = [f"--set=replication.replicas={listed}", f"--set=broker.name={SHARD}"]
    return lambda *arguments: run_here("replica", *arguments, *sets)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard")) as stack:
        yield stack


@pytest.fixture
def replica(shard: ReplicaStack) -> Replica:
    shard.wait_in_sync()
    return command_of(shard)


def test_a_shard_that_is_well_is_a_row_for_each_replica(shard: ReplicaStack, replica: Replica) -> None:
    done = replica("list")
    assert done.returncode == 0, done.stderr
    rows = {cells[1].strip(): cells for line in done.stdout.splitlines() if len(cells := line.split("│")) > 2}
    leader = shard.leader()
    assert set(rows) == {"a", "b", "c"}
    for name, cells in rows.items():
        assert [cell.strip() for cell in cells[2:5]] == [
            "leading" if name == leader else "copying", "yes", "yes",
        ]  # fmt: skip
        assert bool(cells[8].strip()) == (name != leader), "how far behind copies are"

    found = json.loads(replica("list", "--json").stdout)
    assert (found["shard"], found["ok"]) == (SHARD, True)
    for row in found["replicas"]:
        is_leader = row["replica"] == leader
        assert (row["role"], row["serves"]) == (("leading", True) if is_leader else ("copying", False))
        assert (row["leader"], row["in_sync"], row["whole"]) == (leader, True, True)
        assert (row["behind_ms"] is None) == (row["behind_bytes"] is None) == is_leader
        assert (row["lease_ms"] is not None) == is_leader
        assert 0 <= row["first"] <= row["confirmed"] <= row["end"]


def test_the_lead_goes_to_the_replica_that_is_named(shard: ReplicaStack, replica: Replica) -> None:
    leader = shard.leader()
    to = next(name for name in shard.names if name != leader)
    before = json.loads(replica("list", "--json").stdout)["replicas"][0]["epoch"]
    done = replica("switch", "--to", to)
    assert (done.returncode, done.stdout) == (0, f"{to} leads {SHARD}\n"), done.stderr
    assert shard.leader() == to
    assert json.loads(replica("list", "--json").stdout)["replicas"][0]["epoch"] > before
    again = replica("switch", "--to", to, "--json")
    assert json.loads(again.stdout) == {"shard": SHARD, "leader": to}, "it is no error to ask for what is"


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", ["list", "switch"])
def test_the_example_of_a_command_works(
    shard: ReplicaStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, as_json: bool
) -> None:
    shard.wait_in_sync()
    listed = [f"{replica}=127.0.0.1:{port}" for replica, port in shard.ports.items()]
    text = f'[broker]\nname = "{SHARD}"\n[replication]\nreplicas = {json.dumps(listed)}\n'
    (tmp_path / "broker.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDMQ_CONFIG", "broker.toml")
    words = shlex.split(EXAMPLES[name])
    done = run_here(*words[1:], *(["--json"] if as_json else []))
    assert done.returncode == 0, done.stderr
    assert bool(json.loads(done.stdout)) if as_json else SHARD in done.stdout or "leading" in done.stdout


def test_without_a_name_the_lead_goes_to_any_other(shard: ReplicaStack, replica: Replica) -> None:
    before = shard.leader()
    done = replica("switch", "--json")
    assert done.returncode == 0, done.stderr
    to = json.loads(done.stdout)["leader"]
    assert to in shard.names
    assert to != before
    assert shard.leader() == to


@pytest.mark.parametrize("words", [("switch", "--to", "d"), ("promote", "d", "--accept-loss")])
def test_a_replica_that_there_is_not_is_refused(replica: Replica, words: tuple[str, ...]) -> None:
    done = replica(*words)
    assert (done.returncode, done.stderr) == (2, "error: replication.replicas has no 'd', but a, b, c\n")


def test_nobody_is_promoted_while_one_leads(shard: ReplicaStack, replica: Replica) -> None:
    leader = shard.leader()
    done = replica("promote", next(name for name in shard.names if name != leader), "--accept-loss")
    assert done.returncode == 2
    assert done.stderr == f"error: {leader} leads {SHARD}: use holdmq replica switch\n"


def test_a_replica_that_does_not_answer_is_said_and_is_no_success(
    shard: ReplicaStack, replica: Replica
) -> None:
    leader = shard.leader()
    silent = next(name for name in shard.names if name != leader)
    shard.kill(silent)
    try:
        done = replica("list", "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["ok"]) == (1, False)
        rows = {row["replica"]: row for row in found["replicas"]}
        assert rows[silent]["role"] == "unreachable"
        assert f"{silent} does not answer: no connection to " in replica("list").stdout
        assert str(shard.ports[silent]) in rows[silent]["reason"]
        assert rows[leader]["serves"] is True
        wait_until(lambda: not is_in_sync(replica, silent), f"{silent} is out of sync")
        refused = replica("switch", "--to", silent)
        assert refused.returncode == 1
        assert f"{silent} can take the lead now: only another member in sync can" in refused.stderr
    finally:
        shard.start_again(silent)


def test_a_leader_whose_lease_has_run_out_is_no_success(shard: ReplicaStack, replica: Replica) -> None:
    leader = shard.leader()
    (etcd,) = shard.etcd.members
    etcd.pause()
    try:
        wait_until(lambda: replica("list").returncode == 1, "the lease has run out")
        said = replica("list").stdout
        assert f"{leader} hands nothing out: its lease of the lead has run out" in said
        assert not any(row["serves"] for row in json.loads(replica("list", "--json").stdout)["replicas"])
    finally:
        etcd.resume()
    wait_until(lambda: replica("list").returncode == 0, "the leader has its lease again")


def is_in_sync(replica: Replica, name: str) -> bool:
    """Whether the leader counts `name`, which need not answer."""
    rows = json.loads(replica("list", "--json").stdout)["replicas"]
    return next(bool(row["in_sync"]) for row in rows if row["replica"] == name)


def test_a_replica_that_lacks_messages_leads_only_at_the_price_that_is_said(tmp_path: Path) -> None:
    with replica_stack(tmp_path) as stack:
        replica = command_of(stack)
        leader = stack.leader()
        other, lacking = (name for name in stack.names if name != leader)
        stack.kill(lacking)
        wait_until(lambda: not is_in_sync(replica, lacking), f"{lacking} is out of sync")
        asyncio.run(produce(stack, b"lost"))
        for name in (other, leader):
            stack.kill(name)
            for directory in tmp_path.glob(f"{name}/store"):
                shutil.rmtree(directory)
        stack.start_again(lacking)
        wait_until(lambda: role_of(replica, lacking) in ("waiting", "copying"), f"{lacking} answers")

        done = replica("switch")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: nobody leads {SHARD}: ")
        done = replica("promote", lacking)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: whatever lies behind the end of {lacking} is lost; ")
        assert role_of(replica, lacking) in ("waiting", "copying")
        words = shlex.split(EXAMPLES["promote"].replace(" c ", f" {lacking} "))
        done = replica(*words[2:], "--json")
        assert done.returncode == 0, done.stderr
        promoted = json.loads(done.stdout)
        assert (promoted["shard"], promoted["leader"]) == (SHARD, lacking)
        wait_until(lambda: role_of(replica, lacking) == "leading", f"{lacking} leads")
        assert not stack.leader(), "and serves only when min_in_sync replicas have what it has"

        for name in (leader, other):
            stack.start_again(name)
        stack.wait_in_sync()
        assert stack.leader() == lacking
        asyncio.run(produce(stack, b"new"))
        rows = json.loads(replica("list", "--json").stdout)["replicas"]
        assert min(row["end"] for row in rows) > promoted["end"]


async def produce(stack: ReplicaStack, body: bytes) -> None:
    """Have one message acknowledged."""
    async with Producer(stack.registries) as producer:
        await producer.send(Message("orders", body), key="k")


def role_of(replica: Replica, name: str) -> str:
    """What a replica says that it does."""
    rows = json.loads(replica("list", "--json").stdout)["replicas"]
    return next(str(row["role"]) for row in rows if row["replica"] == name)


def test_a_broker_with_one_copy_has_no_replicas(holdmq: Cli) -> None:
    for words in (("list",), ("switch",), ("promote", "a")):
        done = holdmq("replica", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: replication.replicas is empty, for a broker with one copy: ")
