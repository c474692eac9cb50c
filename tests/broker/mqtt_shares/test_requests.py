"""MQTT's share groups over a real store and real RPC: who gets what, and what a restart leaves."""

from __future__ import annotations

import pytest
from broker_stack import Stack, Start, until
from share_peer import GROUP, Gateway, Given, publish

from broker.mqtt_shares import requests as share_mode
from broker.mqtt_shares import serving as share_serving
from holdmq.errors import Code, RemoteError, StorageError, StoreFullError
from holdmq.wire.codes import RequestCode
from holdmq.wire.topic_headers import TopicPauseRequest
from storage.api.batches import Batch


def bodies(messages: list[Given]) -> list[bytes]:
    return [message.body for message in messages]


def share_mode_of(stack: Stack) -> share_mode.ShareMode:
    assert stack.server.share is not None
    return stack.server.share


async def test_each_message_goes_to_one_member_in_turn(broker: Stack, gateway: Gateway) -> None:
    first, second = gateway(broker), gateway(broker)
    assert (await first.join(1, "a")).code == Code.OK
    await first.join(2, "b")
    await second.join(7, "c")
    await broker.create("t", 1)
    await publish(broker, *(b"%d" % n for n in range(9)))
    got = [*await first.take(6), *await second.take(3)]
    assert sorted(bodies(got)) == [b"%d" % n for n in range(9)]
    assert sorted(message.member_id for message in got) == [1, 1, 1, 2, 2, 2, 7, 7, 7]
    for member in (1, 2, 7):
        own = [message.position for message in got if message.member_id == member]
        assert own == sorted(own)


async def test_a_group_begins_where_it_was_made_and_reads_only_what_its_filter_says(
    broker: Stack, gateway: Gateway
) -> None:
    await broker.create("t", 1)
    await publish(broker, b"before")
    peer = gateway(broker)
    await peer.join(1, "a", group="$share/g/+/1")
    await broker.create("u", 1)
    await publish(broker, b"t/2", tag="2")
    await publish(broker, b"t/1")
    await publish(broker, b"u/1", topic="u")
    assert bodies(await peer.take(2)) == [b"t/1", b"u/1"]
    assert await peer.is_silent()


async def test_a_group_over_all_of_a_tenant_gets_what_is_published_to_it_and_nothing_else(
    broker: Stack, gateway: Gateway
) -> None:
    for topic in ("acme%t", "beta%t", "t"):
        await broker.create(topic, 1)
    peer = gateway(broker)
    await peer.join(1, "a", group="$share/g/$%acme/#")
    await peer.join(2, "b", group="$share/g/$%acme/+/1")
    await peer.join(3, "c", group="$share/g/#")
    # Behind the end of the log that the groups have seen: each batch is looked at as it comes.
    for round_ in (b"1", b"2"):
        for topic in ("acme%t", "beta%t", "t"):
            await publish(broker, topic.encode() + round_, topic=topic)
    got = await peer.take(6)
    assert sorted((m.member_id, m.body) for m in got) == [
        (1, b"acme%t1"), (1, b"acme%t2"), (2, b"acme%t1"), (2, b"acme%t2"), (3, b"t1"), (3, b"t2"),
    ]  # fmt: skip
    assert await peer.is_silent()


async def test_a_member_gets_no_more_than_it_has_room_for(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer, other = gateway(broker), gateway(broker)
    await peer.join(1, "a", credit=2)
    await publish(broker, *(b"%d" % n for n in range(5)))
    got = await peer.take(2)
    assert await peer.is_silent()
    await peer.done(*got)
    await peer.credit(1, 1)
    assert bodies(await peer.take(1)) == [b"2"]
    await other.join(1, "b", credit=10)
    assert bodies(await other.take(2)) == [b"3", b"4"]


async def test_what_a_lost_connection_had_goes_to_others(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    dying, living = gateway(broker), gateway(broker)
    await dying.join(1, "a")
    await publish(broker, b"done", b"not done")
    done, _ = await dying.take(2)
    await living.join(1, "b")
    await dying.done(done)
    await dying.close()
    assert bodies(await living.take(1)) == [b"not done"]
    assert (await living.groups())[GROUP]._replace(behind_bytes=0) == (GROUP, 2, 1, 1, 0, 0)


async def test_all_that_a_lost_connection_had_goes_to_who_has_room(broker: Stack, gateway: Gateway) -> None:
    count = share_serving.WAITING_READ_MAX + 50
    await broker.create("t", 1)
    dying, living = gateway(broker), gateway(broker)
    await dying.join(1, "a", credit=count)
    await publish(broker, *(b"%d" % n for n in range(count)))
    await dying.take(count)
    await living.join(1, "b", credit=count)
    await dying.close()
    assert bodies(await living.take(count)) == [b"%d" % n for n in range(count)]


async def test_what_is_given_back_comes_to_who_has_room(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer, other = gateway(broker), gateway(broker)
    await peer.join(1, "a", credit=1)
    await publish(broker, b"x")
    await peer.back(*await peer.take(1))
    assert await peer.is_silent()
    await other.join(1, "b", credit=1)
    assert bodies(await other.take(1)) == [b"x"]


async def test_messages_wait_while_nobody_is_there_but_for_qos_0(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await peer.offline(1)
    await publish(broker, b"0", qos=0)
    await publish(broker, b"1")
    await publish(broker, b"2", qos=2)
    await peer.join(2, "a", qos=2)
    assert bodies(await peer.take(2)) == [b"1", b"2"]
    await publish(broker, b"0", qos=0)
    assert bodies(await peer.take(1)) == [b"0"]
    assert broker.server.share is not None
    assert broker.server.share.core.in_hand == 2


@pytest.mark.mqtt("MQTT-4.8.2-5")
async def test_qos_2_stays_with_its_session_until_that_ends(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer, other = gateway(broker), gateway(broker)
    await peer.join(1, "a", qos=2)
    await publish(broker, b"planned", b"lost", b"not planned", qos=2)
    planned, _, _ = await peer.take(3)
    await peer.close()
    await other.join(1, "b", qos=2)
    assert await other.is_silent()
    back = gateway(broker)
    await back.join(5, "a", qos=2, planned=[planned.position], credit=0)
    again = await other.take(2)
    assert sorted(bodies(again)) == [b"lost", b"not planned"]
    await other.offline(1, expiry_s=0, begun=[message.position for message in again])
    share = share_mode_of(broker)
    assert share.core.counts.nobody == 2
    await back.credit(5, 10)
    assert await back.is_silent()
    assert share.core.in_hand == 0


async def test_what_was_on_its_way_to_a_session_that_left_is_for_others(
    broker: Stack, gateway: Gateway
) -> None:
    await broker.create("t", 1)
    peer, other = gateway(broker), gateway(broker)
    await peer.join(1, "a", qos=2)
    await publish(broker, b"begun", b"on its way", qos=2)
    begun, _ = await peer.take(2)
    await other.join(1, "b", qos=2)
    await peer.offline(1, begun=[begun.position])
    assert bodies(await other.take(1)) == [b"on its way"]
    assert await other.is_silent()


async def test_a_group_goes_with_the_last_session_that_holds_it(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await peer.join(2, "b")
    await peer.offline(2)
    await publish(broker, b"x", b"y")
    (held, _) = await peer.take(2)
    await peer.leave("a")
    assert (await peer.groups())[GROUP].sessions == 1
    await peer.done(held)
    await peer.leave("b", keep_uid=1)
    assert (await peer.groups())[GROUP].in_flight == 1
    await peer.leave("b", keep_uid=2)
    assert await peer.groups() == {}
    share = share_mode_of(broker)
    assert (share.core.in_hand, share.core.members, share.serving._by_topic) == (0, 0, {})


async def test_a_session_that_does_not_come_back_holds_nothing_in_the_end(
    start: Start, gateway: Gateway
) -> None:
    now = [1_000_000]
    broker = await start(clock_ms=lambda: now[0])
    peer = gateway(broker)
    await peer.join(1, "a", expiry_s=10)
    await peer.join(2, "b", expiry_s=100)
    await peer.offline(1, expiry_s=10)
    await peer.offline(2, expiry_s=100)
    share = share_mode_of(broker)
    now[0] += 69_000
    share.core.expire(now[0])
    assert share.core.members == 2
    now[0] += 1_000
    share.core.expire(now[0])
    assert share.core.members == 1
    now[0] += 91_000
    share.core.expire(now[0])
    assert not share.core.groups


async def test_a_restart_knows_what_was_settled_and_who_has_what(start: Start, gateway: Gateway) -> None:
    broker = await start()
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a", qos=2, credit=5)
    await publish(broker, b"one", b"two", b"three")
    await publish(broker, b"qos 2", qos=2)
    await publish(broker, b"at nobody")
    one, two, three, taken = await peer.take(4)
    await peer.done(two)
    await peer.close()
    broker = await start()
    peer, other = gateway(broker), gateway(broker)
    await other.join(1, "b", credit=3)
    assert sorted(bodies(await other.take(3))) == sorted([b"one", b"three", b"at nobody"])
    assert {one.body, three.body} == {b"one", b"three"}
    await peer.join(1, "a", qos=2)
    again = await peer.take(1)
    assert (again[0].body, again[0].position) == (b"qos 2", taken.position)


async def test_a_start_from_a_snapshot_goes_on_where_it_was(start: Start, gateway: Gateway) -> None:
    broker = await start()
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await publish(broker, *(b"%d" % n for n in range(4)))
    got = await peer.take(4)
    await peer.done(*got[:3])
    share = share_mode_of(broker)
    journal = share.journal
    saved = journal.snapshots
    journal.save_snapshot()
    await until(lambda: (journal.save_snapshot(), journal.snapshots > saved)[1])
    await publish(broker, b"4", b"5")
    later = await peer.take(2)
    await peer.done(later[0])
    await peer.close()
    broker = await start()
    peer = gateway(broker)
    await peer.join(1, "a")
    assert bodies(await peer.take(2)) == [b"3", b"5"]
    assert await peer.is_silent()


async def test_who_was_connected_over_a_restart_keeps_what_it_holds_and_has_settled(
    start: Start, gateway: Gateway
) -> None:
    broker = await start()
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await publish(broker, b"held", b"settled meanwhile", b"told as settled", b"lost")
    held, settled, told, _ = await peer.take(4)
    await peer.close()
    broker = await start()
    again, other = gateway(broker), gateway(broker)
    await again.join(1, "a", held=[held.position], planned=[told.position], credit=0)
    await again.done(settled._replace(member_id=1))
    await other.join(1, "b")
    assert bodies(await other.take(1)) == [b"lost"]
    await again.credit(1, 10)
    assert await again.is_silent()
    await again.close()
    assert bodies(await other.take(1)) == [b"held"]
    assert await other.is_silent()


async def test_a_connection_that_comes_back_keeps_what_it_holds(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer, again = gateway(broker), gateway(broker)
    await peer.join(1, "a")
    await publish(broker, b"held", b"settled meanwhile", b"lost")
    held, settled, _ = await peer.take(3)
    await peer.close()
    await again.join(1, "a", held=[held.position], credit=0)
    await again.done(settled._replace(member_id=1))
    await again.credit(1, 10)
    assert bodies(await again.take(1)) == [b"lost"]
    assert await again.is_silent()


async def test_who_leaves_and_comes_again_settles_what_it_had_under_its_old_number(
    broker: Stack, gateway: Gateway
) -> None:
    await broker.create("t", 1)
    peer, other = gateway(broker), gateway(broker)
    await peer.join(1, "a", qos=2)
    await other.join(1, "b", qos=2, credit=0)
    await publish(broker, b"x", qos=2)
    got = await peer.take(1)
    await peer.join(2, "a", qos=2)
    await peer.done(*got)
    group = (await peer.groups())[GROUP]
    assert (group.sessions, group.online, group.in_flight) == (2, 2, 0)
    await peer.offline(2, expiry_s=0)
    await other.credit(1, 10)
    assert await other.is_silent()


async def test_what_the_log_refuses_to_be_taken_is_handed_out_when_it_does_not(
    broker: Stack, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_mode, "RETRY_S", 0.01)
    share = share_mode_of(broker)
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a", qos=2, credit=0)
    await publish(broker, b"0", qos=0)
    await publish(broker, b"2", qos=2)
    broker.store._watermark_passed(StoreFullError("no space", operation="write"))
    await peer.credit(1, 2)
    await until(lambda: share.journal.refused > 0)
    assert not peer.got
    broker.store._watermark_passed(None)
    assert bodies(await peer.take(1)) == [b"2"]
    await publish(broker, b"3", qos=1)
    assert bodies(await peer.take(1)) == [b"3"]


async def test_what_the_log_refused_of_settled_messages_is_written_when_it_is_said_again(
    start: Start, gateway: Gateway
) -> None:
    broker = await start()
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a", qos=2)
    await publish(broker, b"1")
    await publish(broker, b"2", qos=2)
    got = await peer.take(2)
    broker.store._watermark_passed(StoreFullError("no space", operation="write"))
    with pytest.raises(RemoteError):
        await peer.done(*got)
    broker.store._watermark_passed(None)
    await peer.done(*got)
    await peer.close()
    broker = await start()
    peer = gateway(broker)
    await peer.join(1, "a", qos=2)
    await publish(broker, b"3")
    assert bodies(await peer.take(1)) == [b"3"]
    assert await peer.is_silent()


async def test_a_read_from_disk_that_fails_is_tried_again(
    broker: Stack, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_serving, "RETRY_S", 0.01)
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a", credit=0)
    await publish(broker, b"x")
    failures = [StorageError("Input/output error", operation="read")]
    read_log = broker.store.read_log

    def read(position: int, max_bytes: int) -> list[Batch]:
        if failures:
            raise failures.pop()
        return read_log(position, max_bytes)

    monkeypatch.setattr(broker.store, "read_log", read)
    monkeypatch.setattr(broker.store, "tail", lambda position, max_bytes=0: None)
    await peer.credit(1, 1)
    assert bodies(await peer.take(1)) == [b"x"]
    assert not failures


async def test_a_paused_topic_holds_the_group_until_it_is_resumed(broker: Stack, gateway: Gateway) -> None:
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await broker.client.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("t", True))
    await publish(broker, b"x")
    assert await peer.is_silent()
    await broker.client.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("t", False))
    assert bodies(await peer.take(1)) == [b"x"]


async def test_memory_and_disk_give_the_same(
    broker: Stack, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create("t", 1)
    await broker.create("other", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await peer.offline(1)
    wanted = [b"%d" % n for n in range(300)]
    for at in range(0, 300, 10):
        await publish(broker, *wanted[at : at + 10])
        await publish(broker, b"x" * 9000, topic="other")
    monkeypatch.setattr(broker.store, "tail", lambda position, max_bytes=0: None)
    await peer.join(2, "a", credit=7)
    got = []
    while len(got) < 300:
        got += await peer.take(1)
        await peer.done(got[-1])
        await peer.credit(2, 1)
    assert bodies(got) == wanted
    await publish(broker, b"y")
    await publish(broker, b"z")
    (again, _) = await peer.take(2)
    await peer.back(again)
    await peer.credit(2, 1)
    assert await peer.take(1) == [again]


@pytest.mark.parametrize(
    "name", ["t/#", "$share/g", "$share//t", "$share/+/t", "$share/g/", "$share/g/a/#/b"]
)
async def test_what_is_no_shared_filter_is_refused(broker: Stack, gateway: Gateway, name: str) -> None:
    assert (await gateway(broker).join(1, "a", group=name, credit=0)).code == Code.GROUP_INVALID


async def test_groups_and_their_sessions_are_bounded(broker: Stack, gateway: Gateway) -> None:
    share = share_mode_of(broker)
    share.core.groups_max, share.core.members_max = 2, 3
    peer = gateway(broker)
    assert (await peer.join(1, "a")).code == (await peer.join(2, "a", group="$share/h/t")).code == Code.OK
    assert (await peer.join(3, "a", group="$share/i/t", credit=0)).code == Code.LIMIT_EXCEEDED
    assert (await peer.join(4, "b")).code == Code.OK
    refused = await peer.join(5, "c", credit=0)
    assert refused.code == Code.LIMIT_EXCEEDED
    assert "3 sessions" in refused.reason
    assert share.numbers()["share_joins_refused_total"] == 2


async def test_at_the_bound_of_messages_in_hand_nothing_more_is_handed_out(
    broker: Stack, gateway: Gateway
) -> None:
    share = share_mode_of(broker)
    share.core.out_max = 2
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a")
    await publish(broker, b"0")
    await publish(broker, b"1")
    await publish(broker, b"2")
    got = await peer.take(2)
    assert await peer.is_silent()
    assert share.numbers()["share_is_full"] == 1
    await peer.done(*got)
    await peer.credit(1, 1)
    assert bodies(await peer.take(1)) == [b"2"]


async def test_at_the_bound_what_waits_is_handed_out_and_other_groups_go_on_when_there_is_place(
    broker: Stack, gateway: Gateway
) -> None:
    share = share_mode_of(broker)
    share.core.out_max = 2
    await broker.create("t", 1)
    dying, peer, other = gateway(broker), gateway(broker), gateway(broker)
    await dying.join(1, "a")
    await other.join(1, "b", group="$share/h/t/#")
    await publish(broker, b"0")
    await publish(broker, b"1")
    await dying.take(1)
    held = await other.take(1)
    await dying.close()
    await peer.join(1, "c")
    again = await peer.take(1)
    assert bodies(again) == [b"0"]
    assert await peer.is_silent()
    await other.done(*held)
    await peer.done(*again)
    assert bodies(await peer.take(1)) == bodies(await other.take(1)) == [b"1"]
    assert share.core.in_hand == 2


async def test_topics_of_routing_rules_are_read_whenever_they_come(broker: Stack, gateway: Gateway) -> None:
    await broker.create("mqtt-tree-old", 1)
    peer = gateway(broker)
    await peer.join(1, "a", group="$share/g/t/+")
    await broker.create("mqtt-tree-new", 1)
    await publish(broker, b"old", topic="mqtt-tree-old", tag="t/1")
    await publish(broker, b"no", topic="mqtt-tree-old", tag="u/1")
    await publish(broker, b"new", topic="mqtt-tree-new", tag="t/2")
    assert bodies(await peer.take(2)) == [b"old", b"new"]
    assert await peer.is_silent()


async def test_a_wildcard_is_compared_with_some_tags_at_a_time_and_misses_none(
    broker: Stack, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_serving, "TAG_TESTS_MAX", 3)
    serving = share_mode_of(broker).serving
    await broker.create("t", 1)
    peer = gateway(broker)
    await peer.join(1, "a", group="$share/g/t/+/7", credit=0)
    for n in range(50):
        await publish(broker, b"%d" % n, tag=f"x/{n % 10}")
    scans = serving.scans
    await peer.credit(1, 10)
    assert bodies(await peer.take(5)) == [b"7", b"17", b"27", b"37", b"47"]
    assert serving.scans - scans >= 48 // 3
    assert await peer.is_silent()
