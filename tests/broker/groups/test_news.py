"""What is said of groups whose members want different things."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from broker_stack import Stack
from group_peer import GroupPeer
from structlog.testing import capture_logs

from holdmq.errors import RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import BROADCAST, CLUSTERING, GroupJoinRequest, GroupState, GroupSubscription

Join = Callable[[str], GroupPeer]
DIFFER = "members of a group differ"
T, U = GroupSubscription("t", "*"), GroupSubscription("u", "*")


@pytest.fixture
def member(broker: Stack, member: Callable[..., GroupPeer]) -> Join:
    """Make members at the one broker."""
    return partial(member, broker)


async def join(
    peer: GroupPeer, wanted: list[GroupSubscription], strategy: str, mode: str = CLUSTERING
) -> None:
    await peer.client.call(RequestCode.GROUP_JOIN, GroupJoinRequest("g", mode, wanted, strategy))


@pytest.mark.parametrize(
    ("wanted", "strategy"),
    [([T, U], "average"), ([T], "circle"), ([GroupSubscription("t", "a")], "average")],
    ids=["topics", "strategy", "filter"],
)
async def test_members_that_differ_are_named_with_what_they_want(
    member: Join, wanted: list[GroupSubscription], strategy: str
) -> None:
    await join(member("one"), [T], "average")
    two = member("two")
    with capture_logs() as logs:
        await join(two, wanted, strategy)
        await join(two, wanted, strategy)
    (told,) = [entry for entry in logs if entry["event"].startswith(DIFFER)]
    assert told["log_level"] == "warning"
    assert (told["client_id"], told["other_client_id"]) == ("two", "one")
    assert told["other_wants"] == "average (t: *)"
    assert told["wants"].startswith(f"{strategy} (t: ")


async def test_what_a_member_says_of_itself_is_bounded(member: Join) -> None:
    with pytest.raises(RemoteError, match=r"LIMIT_EXCEEDED: a strategy of 121 characters; 120"):
        await join(member("one"), [T], "x" * 121)
    await join(member("one"), [T], "x" * 120)


async def test_the_rooms_of_members_are_told_to_all_and_checked(member: Join) -> None:
    async def state(peer: GroupPeer, room: str) -> GroupState:
        request = GroupJoinRequest("g", CLUSTERING, [T], "machine_room", room)
        return (await peer.client.call(RequestCode.GROUP_JOIN, request)).header(GroupState)

    one, two = member("one"), member("two")
    assert (await state(one, "east")).rooms == {"one": "east"}
    assert (await state(two, "")).rooms == {"one": "east"}
    moved = await state(two, "west")
    assert moved.rooms == {"one": "east", "two": "west"}
    again = await state(one, "east")
    assert (again.rooms, again.version) == (moved.rooms, moved.version)
    with pytest.raises(RemoteError, match="MISSING_FIELD: machine room 'a/b' must be 1 to 64 letters"):
        await state(two, "a/b")


async def test_members_that_are_alike_are_not(member: Join) -> None:
    with capture_logs() as logs:
        await join(member("one"), [T, U], "average")
        await join(member("two"), [U, T], "average")
    assert not [entry for entry in logs if entry["event"].startswith(DIFFER)]


async def test_broadcast_members_may_want_what_they_like(member: Join) -> None:
    with capture_logs() as logs:
        await join(member("one"), [T], "average", BROADCAST)
        await join(member("two"), [U], "average", BROADCAST)
    assert not [entry for entry in logs if entry["event"].startswith(DIFFER)]
