"""Any order of steps of a share group beside a model that knows every message by itself.

The shell's part is played here: news is durable when it is flushed, QoS 2 leaves only then, a snapshot may be
of any moment, and a crash leaves a snapshot and the records behind it. Clients plan QoS 2 in their rows, as
gateways have them do.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.mqtt_shares.core.groups import ShareGroups
from broker.mqtt_shares.core.records import RestoredShares
from holdmq.errors import Code
from holdmq.wire.share_headers import ShareJoin

GROUP = "$share/g/t/#"
CLIENTS = 4
STEP = 10
EXPIRY_S = 100
EXAMPLES = int(os.environ.get("HOLDMQ_SHARE_EXAMPLES", "80"))
"""Runs of the machine, some seconds; after a change of share_groups.py, some thousand are worth it."""


class Client:
    """A client and its session. `at` are messages that were given to it: position → is taken."""

    def __init__(self, number: int) -> None:
        self.name = f"c{number}"
        self.uid = number + 1
        self.is_persistent = number % 2 == 0
        self.holds = False
        self.owner = ""
        """The connection of its gateway, "" = it is not connected."""
        self.is_known = False
        """Whether the broker knows this connection."""
        self.member_id = 0
        self.at: dict[int, bool] = {}
        self.rows: set[int] = set()
        self.settled: set[int] = set()
        """What its gateway has said as settled, and does not know to be durable."""

    @property
    def expiry_s(self) -> int:
        return EXPIRY_S if self.is_persistent else 0

    def begin_anew(self) -> None:
        self.uid += 100
        self.holds = False
        self.owner = ""
        self.is_known = False
        self.at = {}
        self.rows = set()
        self.settled = set()


class ShareMachine(RuleBasedStateMachine):
    """Members come, go, die and come back; they acknowledge, give back, plan; the broker is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.log: list[int] = []
        """The QoS of each message; its position is STEP times its number."""
        self.owed: set[int] = set()
        """QoS 1 and 2 that the group has and nobody has settled."""
        self.sent: dict[int, set[tuple[str, int]]] = {}
        """Sessions that were sent a QoS 2 message."""
        self.durable: list[bytes] = []
        self.snapshot: tuple[int, str] = (0, "[]")
        self.waiting_for_log: list[tuple[Client, str, int]] = []
        self.core: ShareGroups[str] = ShareGroups()
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.connections = 0
        for number in range(2):
            self.join(number)
        self.publish([1, 2, 0, 2, 1, 2], set())

    # Pieces of the shell

    @property
    def end(self) -> int:
        return STEP * len(self.log)

    def flush(self) -> None:
        """The log has the news; QoS 2 leaves."""
        bodies = list(self.core.news.bodies())
        self.core.news.__init__()  # type: ignore[misc]
        self.durable += bodies
        for client, owner, position in self.waiting_for_log:
            if client.owner == owner and client.is_known:
                client.at[position] = True
                if not client.is_persistent:
                    self.was_sent(client, position)
        self.waiting_for_log = []
        for client in self.clients:
            if client.is_known:
                client.settled = set()

    def was_sent(self, client: Client, position: int) -> None:
        self.sent.setdefault(position, set()).add((client.name, client.uid))
        assert len(self.sent[position]) == 1, f"QoS 2 at {self.sent[position]}"

    def holders(self) -> list[Client]:
        return [client for client in self.clients if client.holds]

    def end_session(self, client: Client) -> None:
        """What it was sent with QoS 2 goes to nobody; the group goes with the last one."""
        self.owed -= {p for p, is_taken in client.at.items() if is_taken}
        group = self.core.groups.get(GROUP)
        member = None if group is None else group.members.get(client.name)
        if member is not None and member.uid == client.uid:
            # What the broker thinks that it has goes with it, too.
            self.owed -= {p for p, is_taken in member.out.items() if is_taken}
        client.begin_anew()
        if not self.holders():
            self.owed = set()

    # Members

    @rule(number=st.integers(0, CLIENTS - 1), credit=st.integers(0, 5))
    def join(self, number: int, credit: int = 3) -> None:
        """Connect and subscribe, or tell a broker again that lost the connection."""
        client = self.clients[number]
        if client.owner and client.is_known:
            return
        if not client.owner:
            client.at = {}
        self.connections += 1
        client.owner = f"{client.name}-{self.connections}"
        client.member_id = self.connections
        group = self.core.groups.get(GROUP)
        if group is None or not group.members:
            self.owed = set()
        planned, held = list(client.rows | client.settled), list(client.at)
        row = ShareJoin(
            client.member_id, GROUP, client.name, client.uid, client.expiry_s, 2, 0, -1, planned, held
        )
        assert self.core.join(client.owner, row, self.end, self.end)[0] == Code.OK
        client.holds = client.is_known = True
        self.core.done(client.owner, client.member_id, list(client.settled))
        self.flush()
        self.core.credit(client.owner, client.member_id, credit)

    @rule(number=st.integers(0, CLIENTS - 1), credit=st.integers(1, 5))
    def give_room(self, number: int, credit: int) -> None:
        client = self.clients[number]
        if client.is_known:
            self.core.credit(client.owner, client.member_id, credit)
            self.serve(set())

    @rule(number=st.integers(0, CLIENTS - 1))
    def disconnect(self, number: int) -> None:
        client = self.clients[number]
        if not client.is_known:
            return
        begun = [position for position in client.at if client.is_persistent or position in self.sent]
        owner = client.owner
        # Its gateway knows first: what is on its way to the client then, or waits for the log, is not sent.
        self.gone(client)
        self.core.offline(owner, client.member_id, client.expiry_s, self.now_ms, begun)
        self.flush()
        if not client.is_persistent:
            self.end_session(client)

    def gone(self, client: Client) -> None:
        """Its connection ended: what it had with QoS 1, and what was not planned, is not its any more."""
        client.owner, client.is_known = "", False
        client.settled = set()
        if client.is_persistent:
            client.at = {}

    @rule(number=st.integers(0, CLIENTS - 1), is_worker=st.booleans())
    def lose(self, number: int, is_worker: bool) -> None:
        """The connection to the broker breaks, with or without the gateway and its client."""
        client = self.clients[number]
        if not client.is_known:
            return
        self.core.owner_gone(client.owner, self.now_ms)
        client.is_known = False
        if is_worker and client.is_persistent:
            self.gone(client)
        elif is_worker:
            self.end_session(client)  # the broker hears of that when it comes back, or after a while

    @rule(number=st.integers(0, CLIENTS - 1))
    def unsubscribe(self, number: int) -> None:
        """All that it has is settled first: what is sent later is another matter."""
        client = self.clients[number]
        if not client.is_known:
            return
        for position in list(client.at):
            self.settle(client, position)
        before = dict(self.core.groups[GROUP].members[client.name].out)
        # What is on its way to it goes back when it comes.
        self.waiting_for_log = [item for item in self.waiting_for_log if item[0] is not client]
        self.core.back(client.owner, client.member_id, list(before))
        self.core.leave(GROUP, client.name, 0)
        self.flush()
        client.begin_anew()
        if not self.holders():
            self.owed = set()

    @rule(seconds=st.sampled_from([1, 61, 200]))
    def wait(self, seconds: int) -> None:
        """Time passes: sessions that are away end."""
        self.now_ms += 1000 * seconds
        before = {m.client_id: m for g in self.core.groups.values() for m in g.members.values()}
        taken = {name: [p for p, is_taken in m.out.items() if is_taken] for name, m in before.items()}
        nobody = self.core.counts.nobody
        self.core.expire(self.now_ms)
        group = self.core.groups.get(GROUP)
        left = set() if group is None else set(group.members)
        lost = [name for name in before if name not in left]
        assert self.core.counts.nobody - nobody == sum(len(taken[name]) for name in lost)
        for client in self.clients:
            if client.name in lost and before[client.name].uid == client.uid:
                assert not client.is_known
                self.owed -= set(taken[client.name])
                self.end_session(client)
        self.flush()

    # Messages

    @rule(
        kinds=st.lists(st.integers(0, 2), min_size=1, max_size=6),
        blocked=st.sets(st.integers(0, CLIENTS - 1), max_size=2),
    )
    def publish(self, kinds: list[int], blocked: set[int]) -> None:
        for qos in kinds:
            # A session that is over, which the broker has not heard yet, keeps the group but is owed nothing.
            if qos and GROUP in self.core.groups and self.holders():
                self.owed.add(self.end)
            self.log.append(qos)
        self.serve(blocked)

    def serve(self, blocked: set[int]) -> None:
        """What the shell does when somebody has room; some connections may not take anything now."""
        group = self.core.groups.get(GROUP)
        if group is None:
            return
        takes = {
            client.owner for n, client in enumerate(self.clients) if client.is_known and n not in blocked
        }
        for position in self.core.next_waiting(group, 3):
            if not self.give(position, takes):
                break
        while group.position < self.end:
            position = group.position
            qos = self.log[position // STEP]
            is_wanted = not group.is_known(position) and (qos or position >= group.qos0_from)
            if is_wanted and not self.give(position, takes):
                return
            group.position = position + STEP

    def give(self, position: int, takes: set[str]) -> bool:
        group = self.core.groups[GROUP]
        qos = self.log[position // STEP]
        member = self.core.give(group, position, qos, lambda owner: owner in takes)
        if member is None:
            return False
        client = next(client for client in self.clients if client.name == member.client_id)
        assert client.owner == member.owner
        assert member.credit >= 0
        if qos == 2:
            self.waiting_for_log.append((client, client.owner, position))
        elif qos:
            client.at[position] = False
        return True

    @precondition(lambda self: any(client.at for client in self.clients))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.at]))
        self.settle(client, data.draw(st.sampled_from(sorted(client.at))))

    def settle(self, client: Client, position: int) -> None:
        """PUBACK; or the plan of a QoS 2 message is in the session's row, and its PUBLISH leaves."""
        if client.at.pop(position):
            self.was_sent(client, position)
            if client.is_persistent:
                client.rows.add(position)
        client.settled.add(position)
        self.owed.discard(position)
        if client.is_known:
            self.core.done(client.owner, client.member_id, [position])

    @precondition(lambda self: any(client.at for client in self.clients))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """The window was full when it came: nothing of it was sent."""
        client = data.draw(st.sampled_from([client for client in self.clients if client.at]))
        position = data.draw(st.sampled_from(sorted(client.at)))
        if client.is_known and position not in self.sent:
            del client.at[position]
            self.core.back(client.owner, client.member_id, [position])

    # The log

    @rule()
    def flushed(self) -> None:
        self.flush()

    @rule()
    def save(self) -> None:
        """A snapshot: it may know what the log does not yet."""
        self.snapshot = len(self.durable), json.dumps(list(self.core.entries(self.end)))

    @rule()
    def crash(self) -> None:
        """kill -9 of the broker: what is not durable is forgotten, and every connection is lost."""
        offset, entries = self.snapshot
        restored = RestoredShares()
        restored.apply(json.loads(entries))
        for body in self.durable[offset:]:
            restored.apply_body(body)
        self.core = ShareGroups()
        self.core.restore(restored, self.now_ms, self.end)
        self.waiting_for_log = []
        for client in self.clients:
            client.is_known = False

    # What must always hold

    @invariant()
    def counts_agree(self) -> None:
        groups = list(self.core.groups.values())
        assert self.core.in_hand == sum(len(g.out) + len(g.waits) for g in groups)
        assert self.core.members == sum(len(g.members) for g in groups)
        for group in groups:
            assert group.members
            assert group.online == sum(m.owner is not None for m in group.members.values())
            assert not group.waits & group.out.keys()
            for member in group.members.values():
                assert all(group.out[p] is member for p in member.out)
            assert {p for m in (*group.members.values(), *group.leaving) for p in m.out} == group.out.keys()

    @invariant()
    def nothing_is_lost(self) -> None:
        """What is owed is at a member, waits, or lies ahead."""
        group = self.core.groups.get(GROUP)
        if group is None:
            assert not self.owed
            return
        for position in self.owed:
            is_ahead = position >= group.position and position not in group.settled
            assert is_ahead or position in group.out or position in group.waits, position

    def teardown(self) -> None:
        """Everything comes in the end: those that are there take and settle what is owed."""
        if not self.holders():
            return
        for number, client in enumerate(self.clients):
            if client.holds and not client.is_known:
                self.join(number)
        for _ in range(3):
            for client in self.clients:
                if client.is_known:
                    self.core.credit(client.owner, client.member_id, 1_000)
            group = self.core.groups[GROUP]
            owners = {m.owner for m in group.members.values() if m.owner}
            for position in self.core.next_waiting(group, 10_000):
                assert self.give(position, owners)
            while group.position < self.end:
                position = group.position
                if not group.is_known(position) and self.log[position // STEP]:
                    assert self.give(position, owners)
                group.position = position + STEP
            self.flush()
            for client in self.clients:
                for position in list(client.at):
                    self.settle(client, position)
        assert not self.owed


TestShareMachine = ShareMachine.TestCase
TestShareMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_qos_2_on_its_way_to_a_session_that_ends_is_for_the_clients_next_session() -> None:
    machine = ShareMachine()
    machine.disconnect(number=1)
    machine.nothing_is_lost()
    machine.join(number=1, credit=1)
    machine.publish(kinds=[0], blocked=set())
    machine.flushed()
    assert machine.sent == {10: {("c1", 102)}}
    machine.teardown()
    assert machine.core.counts.nobody == 0


def test_qos_2_on_its_way_to_a_session_that_ends_is_for_other_members() -> None:
    machine = ShareMachine()
    machine.disconnect(number=1)
    machine.nothing_is_lost()
    machine.teardown()
    assert machine.sent == {position: {("c0", 1)} for position in (10, 30, 50)}
    assert machine.core.counts.nobody == 0


def test_qos_2_that_a_session_has_begun_is_for_nobody_after_it() -> None:
    machine = ShareMachine()
    machine.flushed()
    machine.disconnect(number=1)
    machine.nothing_is_lost()
    machine.teardown()
    assert machine.sent == {position: {("c1", 2)} for position in (10, 30, 50)}
    assert machine.core.counts.nobody == 3


def entries_of(*entries: list[Any]) -> RestoredShares:
    restored = RestoredShares()
    restored.apply([list(entry) for entry in entries])
    return restored


@pytest.mark.parametrize("times", [1, 2])
def test_entries_may_be_done_twice(times: int) -> None:
    entries = [
        [0, "g", 100],
        [1, "g", "c", 7, 60, 0],
        [3, "g", "c", [100, 110]],
        [4, "g", [110]],
        [5, "g", [120]],
    ]
    group = entries_of(*(entries * times)).groups["g"]
    assert (group.position, group.taken, group.waiting, group.settled) == (100, {100: "c"}, {110}, {120})
