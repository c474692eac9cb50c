"""The console over three replicas as processes: who has what, the lead handed over, and nobody that leads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from processes import free_port, wait_until
from replica_processes import SHARD, ReplicaStack, replica_stack

from console.identity.accounts import AccountFile

PASSWORD = "correct horse battery"


class ConsoleOfShard:
    """A shard, and an operator who has signed in at its console."""

    def __init__(self, shard: ReplicaStack, client: httpx.Client) -> None:
        self.shard = shard
        self.client = client

    def row(self) -> dict[str, Any]:
        """What the console says of the shard."""
        answer = self.client.get("replicas")
        assert answer.status_code == 200, answer.text
        (row,) = answer.json()["shards"]
        assert isinstance(row, dict)
        return row

    def roles(self) -> dict[str, str]:
        """Role of each replica."""
        return {one["replica"]: one["role"] for one in self.row()["replicas"]}

    def switch(self, to: str) -> httpx.Response:
        return self.client.post(f"replicas/{SHARD}/switch", json={"to": to})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleOfShard]:
    port, admin_port = free_port(), free_port()
    settings = {"console.port": port, "console.admin_port": admin_port, "console.auth": "accounts"}
    with replica_stack(tmp_path_factory.mktemp("shard"), **settings) as shard:
        accounts = AccountFile(shard.first.directory / "console")
        for name, role in (("otto", "operator"), ("vera", "viewer"), ("ada", "admin")):
            accounts.add(name, role, PASSWORD)
        shard.first.admin_ports["console"] = admin_port
        shard.first.start("console")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1/", timeout=60) as client:
            sign_in(client, "otto")
            yield ConsoleOfShard(shard, client)


def sign_in(client: httpx.Client, name: str) -> None:
    """Sign in as somebody."""
    client.cookies.clear()
    answer = client.post("session", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    client.headers["X-HoldMQ-CSRF"] = answer.json()["csrf"]


def test_each_replica_is_a_row_and_the_broker_has_its_epoch(place: ConsoleOfShard) -> None:
    place.shard.wait_in_sync()
    leader = place.shard.wait_leader()
    wait_until(lambda: sorted(place.roles().values()) == ["in sync", "in sync", "leader"], "all are in sync")
    row = place.row()
    assert (row["broker"], row["copies"], row["leader"], row["ok"]) == (SHARD, 3, leader, True)
    for one in row["replicas"]:
        leads = one["replica"] == leader
        assert one["address"] == f"127.0.0.1:{place.shard.ports[one['replica']]}"
        assert (one["does"], one["serves"], one["may_lead"]) == (
            ("leading", True, False) if leads else ("copying", False, True)
        )
        assert (one["in_sync"], one["whole"], one["reason"]) == (True, True, "")
        assert 0 <= one["confirmed"] <= one["end"]
        assert (one["behind_ms"] is None, one["behind_bytes"] is None) == (leads, leads)
        assert (one["lease_ms"] is not None) == leads
        assert one["epoch"] <= row["epoch"]

    def broker_epochs() -> list[int]:
        return [one["epoch"] for one in place.client.get("brokers").json()["brokers"]]

    wait_until(lambda: broker_epochs() == [place.row()["epoch"]], "the broker's row has the epoch")


def test_an_operator_hands_the_lead_over_and_it_is_written_down(place: ConsoleOfShard) -> None:
    place.shard.wait_in_sync()
    leader = place.shard.wait_leader()
    to = next(name for name in place.shard.names if name != leader)
    sign_in(place.client, "vera")
    assert place.switch(to).status_code == 403
    sign_in(place.client, "otto")
    done = place.switch(to)
    assert (done.status_code, done.json()) == (200, {"leader": to})
    assert place.shard.wait_leader(leader) == to
    assert place.roles()[to] == "leader", "what is shown is not older than the switch"
    refused = place.switch("d")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "to")
    sign_in(place.client, "ada")
    written = place.client.get("audit").json()["rows"]
    sign_in(place.client, "otto")
    path = f"/api/v1/replicas/{SHARD}/switch"
    found = [(one["account"], one["status"], one["what"]) for one in written if one["path"] == path]
    assert found[1:] == [
        ("otto", 200, f'Hand the lead to another replica in sync. {{"to": "{to}"}}'),
        ("vera", 403, "Hand the lead to another replica in sync."),
    ]


def test_a_replica_that_is_gone_is_missing_and_cannot_lead(place: ConsoleOfShard) -> None:
    place.shard.wait_in_sync()
    leader = place.shard.wait_leader()
    gone = next(name for name in place.shard.names if name != leader)
    place.shard.kill(gone)
    try:
        wait_until(lambda: place.roles()[gone] == "missing", f"{gone} is missing")
        row = place.row()
        assert not row["ok"]
        one = next(one for one in row["replicas"] if one["replica"] == gone)
        assert str(place.shard.ports[gone]) in one["reason"]
        assert (one["may_lead"], one["end"], one["does"]) == (False, None, "")
        assert one["behind_ms"] is not None, "the leader knows how long ago it had everything"
        wait_until(
            lambda: (status := place.shard.status(leader)) is not None and gone not in status.in_sync,
            "it is not in sync",
        )
        refused = place.switch(gone)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "NOT_ENOUGH_REPLICAS")
    finally:
        place.shard.start_again(gone)
    place.shard.wait_in_sync()


def test_a_shard_that_nobody_leads_is_shown_and_switching_it_is_refused(place: ConsoleOfShard) -> None:
    place.shard.wait_in_sync()
    leader = place.shard.wait_leader()
    assert place.roles()[leader] == "leader"
    gone = [next(name for name in place.shard.names if name != leader), leader]
    left = next(name for name in place.shard.names if name not in gone)
    for name in gone:
        place.shard.kill(name)
    try:
        wait_until(lambda: place.row()["leader"] == "" and not place.row()["ok"], "nobody leads")
        roles = place.roles()
        assert [roles[name] for name in gone] == ["missing", "missing"]
        assert roles[left] != "missing"
        began = time.monotonic()
        refused = place.switch(left)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "NOT_LEADER")
        assert time.monotonic() - began < 10
    finally:
        for name in gone:
            place.shard.start_again(name)
    place.shard.wait_in_sync()
    wait_until(lambda: place.row()["ok"], "all is well again")
