"""Groups over real RPC: members, leases, pushes, fencing, settings, pausing."""

from __future__ import annotations

import asyncio
import time

import pytest
from broker_stack import Stack, Start, refused, until
from group_peer import GroupPeer, Join, groups

from broker.groups.requests import MEMBER_EXPIRY_S, STALL_S
from holdmq.errors import Code, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    BROADCAST,
    CLUSTERING,
    GroupJoinRequest,
    GroupMembersResponse,
    GroupRequest,
    GroupSubscription,
    GroupUpdateRequest,
    MemberRow,
    QueueLeaseRequest,
    QueueLeaseResponse,
    WantedQueue,
)
from holdmq.wire.header import rows

# Membership


async def test_members_hear_of_each_other(broker: Stack, member: Join) -> None:
    one, two = member(broker, "one"), member(broker, "two")
    first = await one.join()
    assert first.members == ["one"]
    second = await two.join()
    assert second.members == ["one", "two"]
    assert second.version > first.version
    pushed = await one.told()
    assert (pushed.members, pushed.version, pushed.freed) == (["one", "two"], second.version, False)
    await one.leave()
    left = await two.told()
    while left.members != ["two"]:
        left = await two.told()
    assert left.version > second.version


async def test_a_member_whose_connection_closes_is_none(broker: Stack, member: Join) -> None:
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    await two.join()
    await two.client.close()
    state = await one.told()
    while state.members != ["one"]:
        state = await one.told()


async def test_a_repeated_join_is_a_renewal_that_nobody_hears_of(broker: Stack, member: Join) -> None:
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    state = await two.join()
    await one.told()
    assert (await two.join()).version == state.version
    assert (await two.join("t", "u")).version > state.version
    assert (await one.told()).members == ["one", "two"]
    assert one.pushed == []


async def test_many_joins_of_one_turn_are_told_in_a_few_messages(broker: Stack, member: Join) -> None:
    one = member(broker, "one")
    await one.join()
    others = [member(broker, f"m{i}") for i in range(20)]
    await asyncio.gather(*(other.join() for other in others))
    state = await one.told()
    while len(state.members) < 21:
        state = await one.told()
    assert broker.server.groups.news.told <= 21 * 21


async def test_all_members_consume_in_one_mode(broker: Stack, member: Join) -> None:
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    assert await refused(two.join(mode=BROADCAST)) == Code.MODE_CONFLICT
    await one.leave()
    assert (await two.join(mode=BROADCAST)).members == ["two"]
    await until(lambda: broker.server.groups.settings.table.groups["g"].mode == BROADCAST)


async def test_of_two_modes_that_come_at_once_one_is_refused(broker: Stack, member: Join) -> None:
    joins = member(broker, "one").join(), member(broker, "two").join(mode=BROADCAST)
    answers = await asyncio.gather(*joins, return_exceptions=True)
    assert [a.code for a in answers if isinstance(a, RemoteError)] == [Code.MODE_CONFLICT]
    assert broker.server.groups.members.count("g") == 1


async def test_a_second_connection_of_a_client_takes_the_place_of_the_first(
    broker: Stack, member: Join
) -> None:
    await broker.create("t")
    first, second = member(broker, "same"), member(broker, "same")
    await first.join()
    await first.lease(0)
    assert (await second.join()).members == ["same"]
    assert (await first.pull((0, 0)))[0][0].status == Code.GROUP_FENCED
    assert (await second.lease(0))[0].generation > first.generations["t", 0]
    assert await refused(first.renew(0)) == Code.GROUP_UNKNOWN


@pytest.mark.parametrize("name", ["%RETRY%g", "a b", "x" * 121, "", "a@b", "a/b"])
async def test_names_that_no_group_may_have_are_refused(broker: Stack, member: Join, name: str) -> None:
    assert await refused(member(broker, "one", name).join()) == Code.GROUP_INVALID
    assert (
        await refused(broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(name)))
        == Code.GROUP_INVALID
    )


async def test_a_mode_that_is_none_is_refused(broker: Stack, member: Join) -> None:
    assert await refused(member(broker, "one").join(mode="sharded")) == Code.KIND_UNFIT


async def test_groups_members_and_subscriptions_are_bounded(start: Start, member: Join) -> None:
    broker = await start(groups_max=1, group_members_max=2)
    await member(broker, "one").join()
    await member(broker, "two").join()
    assert await refused(member(broker, "three").join()) == Code.LIMIT_EXCEEDED
    assert await refused(member(broker, "one", "h").join()) == Code.LIMIT_EXCEEDED
    many = GroupJoinRequest("g", CLUSTERING, [GroupSubscription(f"t{i}", "*") for i in range(1001)])
    assert await refused(broker.client.call(RequestCode.GROUP_JOIN, many)) == Code.LIMIT_EXCEEDED
    long = GroupJoinRequest("g", CLUSTERING, [GroupSubscription("t", "x" * 70_000)])
    assert await refused(broker.client.call(RequestCode.GROUP_JOIN, long)) == Code.LIMIT_EXCEEDED


async def test_groups_are_created_by_use_only_when_that_is_on(start: Start, member: Join) -> None:
    broker = await start(auto_create_groups=False)
    assert await refused(member(broker, "one").join()) == Code.GROUP_UNKNOWN
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    await member(broker, "one").join()
    await member(broker, "one", "g#tmp").join()


async def test_members_are_listed_with_what_they_do(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join("t", "u")
    await one.lease(0, 2)
    reply = await broker.client.call(RequestCode.GROUP_MEMBERS, GroupRequest("g"))
    listed = rows(MemberRow, reply.header(GroupMembersResponse).members)[0]
    assert (listed.client_id, listed.mode, listed.strategy, listed.queues) == (
        "one",
        CLUSTERING,
        "average",
        2,
    )
    assert [GroupSubscription(*s).topic for s in listed.subscriptions] == ["t", "u"]
    assert listed.language


async def test_a_temporary_group_goes_with_its_last_member(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    one = member(broker, "one", "g#tmp")
    await one.join()
    await one.lease(0)
    assert await one.report(0, 1) == []
    assert (await one.offsets("t"))[0].offset == 1
    assert (await groups(broker))["g#tmp"].members == 1
    assert await refused(one.report(0, 1, wait_for_disk=True)) == Code.KIND_UNFIT
    await one.leave()
    assert "g#tmp" not in await groups(broker)
    assert broker.server.groups.offsets.table.size == 0
    assert "g#tmp" not in broker.server.groups.settings.table.groups


def let_pass(stack: Stack, seconds: float) -> None:
    """All leases and memberships are so much older at once: none of it is what a busy machine took."""
    groups = stack.server.groups
    groups.leases.postpone(-seconds)
    groups.members.postpone(-seconds)
    groups._set_timer()
    # The timer is not late by it: this broker did not stand still.
    groups._timer_at = max(groups._timer_at, asyncio.get_running_loop().time())


async def test_a_silent_member_is_one_no_more(broker: Stack, member: Join) -> None:
    silent, other = member(broker, "silent"), member(broker, "other")
    await silent.join()
    await other.join()
    let_pass(broker, MEMBER_EXPIRY_S * 2 / 3)
    await other.join()
    let_pass(broker, MEMBER_EXPIRY_S / 2)
    await until(lambda: broker.server.groups.members.count("g") == 1)
    assert [m.client_id for m in broker.server.groups.members.of("g")] == ["other"]
    assert broker.server.groups.numbers()["group_members_expired_total"] == 1


# Leases


async def test_a_queue_is_leased_to_one_member_and_handed_over_at_release(
    broker: Stack, member: Join
) -> None:
    await broker.create("t")
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(5)))
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    await two.join()
    granted = (await one.lease(0))[0]
    assert (granted.status, granted.offset, granted.holder) == (Code.OK, -1, "one")
    held = (await two.lease(0))[0]
    assert (held.generation, held.holder, held.offset) == (0, "one", -1)
    assert (await one.pull((0, 0)))[1] == [b"0", b"1", b"2", b"3", b"4"]
    await one.release(0, offset=3)
    state = await two.told()
    while not state.freed:
        state = await two.told()
    taken = (await two.lease(0))[0]
    assert taken.offset == 3
    assert taken.generation > granted.generation
    assert (await two.pull((0, 3)))[1] == [b"3", b"4"]


async def test_older_generations_are_fenced_for_their_queue_only(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    await broker.produce("t", 1, (b"b", None))
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    await two.join()
    await one.lease(0, 1)
    await one.release(0)
    await two.lease(0)
    pulled, got = await one.pull((0, 0), (1, 0))
    assert [p.status for p in pulled] == [Code.GROUP_FENCED, Code.OK]
    assert got == [b"b"]
    assert [r.status for r in await one.report(0, 1)] == [Code.GROUP_FENCED]
    assert await two.report(0, 1) == []
    # A generation that is right, on a connection that has not the lease, is none.
    stolen = two.generations["t", 0]
    assert (await one.pull((0, 0), generations=[stolen]))[0][0].status == Code.GROUP_FENCED
    assert [r.status for r in await one.report(0, 1, generation=stolen)] == [Code.GROUP_FENCED]


async def test_a_clustering_pull_or_report_without_a_lease_is_fenced(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    one, tool = member(broker, "one"), member(broker, "tool")
    await one.join()
    await one.lease(0)
    assert (await one.pull((0, 0), generations=[]))[0][0].status == Code.GROUP_FENCED
    assert [r.status for r in await tool.report(0, 1)] == [Code.GROUP_FENCED]
    await one.release(0)
    assert await tool.report(0, 1) == []


async def test_a_broadcast_member_pulls_without_leases(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    for name in ("one", "two"):
        each = member(broker, name)
        await each.join(mode=BROADCAST)
        assert (await each.pull((0, 0), generations=[]))[1] == [b"a"]
        assert await refused(each.lease(0)) == Code.MODE_CONFLICT


async def test_a_closed_connection_frees_its_queues_at_once(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one, two = member(broker, "one"), member(broker, "two")
    await one.join()
    await two.join()
    await one.lease(0, 1, 2, 3)
    assert [row.holder for row in await two.lease(0, 1)] == ["one", "one"]
    await one.client.close()
    state = await two.told()
    while not state.freed:
        state = await two.told()
    assert all(row.generation for row in await two.lease(0, 1, 2, 3))
    assert broker.server.groups.leases.wants == 0


@pytest.mark.parametrize(("owned_for_s", "lease_ms"), [(float("inf"), 20_000), (30.0, 20_000), (1.5, 1_500)])
async def test_no_lease_lasts_longer_than_surely_nobody_else_serves(
    broker: Stack, member: Join, monkeypatch: pytest.MonkeyPatch, owned_for_s: float, lease_ms: int
) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    monkeypatch.setattr(broker.store, "owned_for_s", lambda: owned_for_s)
    wanted = QueueLeaseRequest("g", [WantedQueue("t", 0, 0)])
    reply = await one.client.call(RequestCode.QUEUE_LEASE, wanted)
    assert reply.header(QueueLeaseResponse).lease_ms == lease_ms


async def test_a_lease_that_is_not_renewed_is_free_and_its_member_is_none(
    broker: Stack, member: Join
) -> None:
    await broker.create("t")
    hangs, two = member(broker, "hangs"), member(broker, "two")
    await hangs.join()
    await two.join()
    await hangs.lease(0)
    waiting = asyncio.create_task(hangs.pull((0, 0), hold_ms=60_000))
    await until(lambda: broker.server.pull.hold.size)
    assert (await two.lease(0))[0].holder == "hangs"
    let_pass(broker, broker.server.groups.leases.lease_s)
    state = await two.told()
    while not (state.freed and state.members == ["two"]):
        state = await two.told()
    assert (await waiting)[0][0].status == Code.GROUP_FENCED
    assert (await two.lease(0))[0].generation > hangs.generations["t", 0]
    assert [r.status for r in await hangs.report(0, 0)] == [Code.GROUP_FENCED]
    assert await refused(hangs.renew(0)) == Code.GROUP_UNKNOWN


async def test_a_renewed_lease_outlives_its_time(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    for _ in range(3):
        let_pass(broker, broker.server.groups.leases.lease_s / 2)
        assert (await one.renew(0))[0].generation == one.generations["t", 0]
    assert broker.server.groups.leases.expired == 0


async def test_a_member_that_forgot_one_queue_keeps_the_others(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0, 1)
    let_pass(broker, broker.server.groups.leases.lease_s / 2)
    assert (await one.renew(0))[0].generation == one.generations["t", 0]
    let_pass(broker, broker.server.groups.leases.lease_s / 2)
    await until(lambda: broker.server.groups.leases.expired == 1)
    assert (await one.renew(0, 1))[0].generation == one.generations["t", 0]
    assert broker.server.groups.members.count("g") == 1


async def test_a_broker_that_stood_still_gives_its_members_the_time_back(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    let_pass(broker, broker.server.groups.leases.lease_s - 1.0)
    time.sleep(1.0 + STALL_S * 1.5)  # noqa: ASYNC251 - it is the event loop that stands still
    assert (await one.renew(0))[0].generation == one.generations["t", 0]
    assert broker.server.groups.leases.expired == 0


async def test_a_parked_pull_is_answered_when_its_lease_ends(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0, 1)
    waiting = asyncio.create_task(one.pull((0, 0), (1, 0), hold_ms=60_000))
    await until(lambda: broker.server.pull.hold.size)
    await one.release(0)
    assert [p.status for p in (await waiting)[0]] == [Code.GROUP_FENCED, Code.OK]


async def test_who_is_no_member_leases_nothing(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await member(broker, "one").join()
    assert await refused(member(broker, "two").lease(0)) == Code.GROUP_UNKNOWN


async def test_queues_that_are_not_there_or_not_the_groups_are_refused_each(
    broker: Stack, member: Join
) -> None:
    await broker.create("t", queues=1)
    one = member(broker, "one")
    await one.join()
    answered = await one.ask(WantedQueue("nowhere", 0, 0), WantedQueue("t", 1, 0), WantedQueue("t", 0, 0))
    assert [row.status for row in answered] == [Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN, Code.OK]
    assert [bool(row.generation) for row in answered] == [False, False, True]


async def test_one_request_names_a_bounded_number_of_queues(broker: Stack, member: Join) -> None:
    one = member(broker, "one")
    await one.join()
    many = [WantedQueue("t", q, 0) for q in range(16_385)]
    assert await refused(one.ask(*many)) == Code.LIMIT_EXCEEDED


async def test_a_generation_of_before_a_restart_is_never_valid_again(start: Start, member: Join) -> None:
    broker = await start()
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    old = one.generations["t", 0]
    broker = await start()
    again = member(broker, "one")
    await again.join()
    assert (await again.lease(0))[0].generation > old
    assert [r.status for r in await again.report(0, 0, generation=old)] == [Code.GROUP_FENCED]
    assert (await again.pull((0, 0), generations=[old]))[0][0].status == Code.GROUP_FENCED


async def test_a_deleted_queue_ends_its_lease_and_forgets_its_offsets(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    await one.report(0, 1)
    broker.server.groups.queue_deleted("t", 0)
    assert (await one.pull((0, 0)))[0][0].status == Code.GROUP_FENCED
    assert (await one.offsets("t"))[0].offset == -1


async def test_three_members_settle_on_24_queues_by_what_they_are_told(broker: Stack, member: Join) -> None:
    await broker.create("t", queues=24)
    members = [member(broker, f"m{i}") for i in range(3)]
    held: dict[int, str] = {}

    async def consume(one: GroupPeer) -> None:
        state = await one.join()
        wanted: set[int] = set()
        mine: set[int] = set()
        while True:
            at = state.members.index(one.client_id)
            wanted = set(range(at, 24, len(state.members)))
            for queue_id in sorted(mine - wanted):
                del held[queue_id]
                mine.discard(queue_id)
                await one.release(queue_id)
            if wanted - mine:
                for row in await one.lease(*sorted(wanted - mine)):
                    if row.generation:
                        assert row.queue_id not in held
                        held[row.queue_id] = one.client_id
                        mine.add(row.queue_id)
            state = await one.told()

    tasks = []
    for count, one in enumerate(members, 1):
        tasks.append(asyncio.create_task(consume(one)))
        share = 24 // count
        await until(
            lambda count=count, share=share: (  # type: ignore[misc]
                [list(held.values()).count(m.client_id) for m in members[:count]] == [share] * count
            )
        )
    for task in tasks:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
