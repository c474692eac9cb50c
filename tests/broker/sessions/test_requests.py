"""Sessions at their owner: what a gateway is answered, over the real store and RPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from broker_stack import Stack, Start, broker, refused, start, until
from broker_stack import bodies as bodies_of
from session_peer import SessionPeer, change

from broker.sessions import queries
from broker.sessions import requests as sessions_module
from broker.sessions.core import sessions
from broker.sessions.core.sessions import WAITING_MAX
from broker.sessions.requests import SessionTable
from holdmq.errors import Code, StorageError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import (
    DROP_FILTER,
    PUT_STATE,
    SessionChange,
    SessionDropRequest,
    SessionDropResponse,
    SessionKickRequest,
    SessionKickResponse,
    SessionListRequest,
    SessionListResponse,
    SessionOpening,
    SessionRecordsRequest,
    SessionRecordsResponse,
    SessionRow,
    SessionWriteRequest,
)

__all__ = ["broker", "start"]

Connect = Callable[..., Awaitable[SessionPeer]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A function that connects one more gateway to a broker."""
    peers: list[SessionPeer] = []

    async def run(stack: Stack, name: str = "gateway-1") -> SessionPeer:
        await until(lambda: stack.server.sessions.swept)
        peers.append(SessionPeer(stack.server.rpc.port, name))
        return peers[-1]

    yield run
    for peer in peers:
        await peer.client.close()


class Clock:
    """A broker's clock, ms."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def test_a_session_has_what_was_written_to_it_when_it_comes_back(
    broker: Stack, connect: Connect
) -> None:
    gateway = await connect(broker)
    first = await gateway.open("c1")
    assert (first.code, first.is_present, first.state, first.filters) == (Code.OK, False, b"", [])
    assert await gateway.put_filter("c1", first.epoch, "a/+", b"1") == []
    assert await gateway.put_filter("c1", first.epoch, "b/#", b"2") == []
    assert await gateway.write(change("c1", first.epoch, DROP_FILTER, "a/+")) == []
    assert await gateway.end("c1", first.epoch, state=b"position") == []
    other = await connect(broker, "gateway-2")
    again = await other.open("c1")
    assert again.is_present
    assert again.epoch > first.epoch
    assert again.uid == first.uid
    assert (again.state, [tuple(f) for f in again.filters]) == (b"position", [("b/#", b"2")])


async def test_sessions_outlive_their_broker(start: Start, connect: Connect) -> None:
    stack = await start()
    gateway = await connect(stack)
    first = await gateway.open("c1")
    await gateway.put_filter("c1", first.epoch, "a")
    await gateway.put_state("c1", first.epoch, b"here")
    again = await (await connect(await start())).open("c1")
    assert (again.is_present, again.state, again.filters[0][0]) == (True, b"here", "a")
    assert again.epoch > first.epoch


@pytest.mark.mqtt("MQTT-3.1.2-4")
async def test_a_clean_start_drops_all_that_was_there(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    first = await gateway.open("c1")
    await gateway.put_filter("c1", first.epoch, "a")
    await gateway.end("c1", first.epoch, state=b"s")
    clean = await gateway.open("c1", is_clean=True)
    assert not clean.is_present
    assert clean.uid != first.uid
    await gateway.end("c1", clean.epoch)
    again = await gateway.open("c1")
    assert (again.is_present, again.state, again.filters) == (True, b"", [])


async def test_a_session_without_expiry_is_never_written_down(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1", 0)
    assert await gateway.put_filter("c1", opened.epoch, "a") == []
    assert [row.is_stored for row in await gateway.list()] == [False]
    await gateway.end("c1", opened.epoch, 0)
    assert await gateway.list() == []
    assert not (await gateway.open("c1")).is_present
    assert broker.server.sessions.rows.changes == 1


async def test_an_end_without_expiry_takes_the_rows_away(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1")
    await gateway.put_filter("c1", opened.epoch, "a")
    assert await gateway.end("c1", opened.epoch, 0) == []
    again = await gateway.open("c1")
    assert not again.is_present
    assert again.filters == []


async def test_an_older_epoch_writes_nothing(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    older = await gateway.open("c1")
    gateway.on_taken = lambda taken: None
    other = await connect(broker, "gateway-2")
    newer = await other.open("c1")
    assert [(t.client_id, t.epoch) for t in gateway.taken] == [("c1", older.epoch)]
    assert await gateway.put_state("c1", older.epoch, b"old") == [0]
    assert await gateway.put_state("c1", newer.epoch, b"stolen") == [0], "the epoch is another connection's"
    assert await other.put_state("c1", newer.epoch + 1, b"lie") == [0]
    assert await other.put_state("c1", newer.epoch, b"new") == []
    assert (await other.show("c1"))[1].state == b"new"
    assert broker.server.sessions.core.counts.takeover_timeouts == 1


async def test_a_takeover_waits_for_the_last_words_of_the_older_connection(
    broker: Stack, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TAKEOVER_S", 60.0)
    gateway, other = await connect(broker), await connect(broker, "gateway-2")
    older = await gateway.open("c1")
    farewells: set[asyncio.Task[list[int]]] = set()
    gateway.on_taken = lambda taken: farewells.add(
        asyncio.ensure_future(gateway.end("c1", taken.epoch, state=b"last words"))
    )
    newer = await other.open("c1")
    assert (newer.is_present, newer.state) == (True, b"last words")
    assert await asyncio.gather(*farewells) == [[]]
    assert newer.epoch > older.epoch
    assert broker.server.sessions.core.counts.takeover_timeouts == 0


async def test_a_taken_session_without_expiry_is_not_resumed(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1")
    await gateway.put_filter("c1", opened.epoch, "a")
    await gateway.end("c1", opened.epoch)
    assert (await gateway.open("c1", 0)).is_present
    again = await gateway.open("c1")
    assert (again.is_present, again.filters) == (False, [])


async def test_openings_of_one_client_id_have_it_one_after_the_other(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    farewells: set[asyncio.Task[list[int]]] = set()
    gateway.on_taken = lambda taken: farewells.add(
        asyncio.ensure_future(gateway.end(taken.client_id, taken.epoch))
    )
    opened = await asyncio.gather(*(gateway.open("c1") for _ in range(5)))
    epochs = [session.epoch for session in opened]
    assert epochs == sorted(set(epochs))
    assert [session.is_present for session in opened] == [False, True, True, True, True]
    assert await gateway.put_state("c1", epochs[-1], b"x") == []
    await asyncio.gather(*farewells)


async def test_a_client_that_connects_in_a_circle_is_told_to_wait(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    wanted = [SessionOpening("c1", False, 60, "", 0)] * (WAITING_MAX + 2)
    gateway.on_taken = lambda taken: asyncio.ensure_future(  # type: ignore[assignment]
        gateway.end(taken.client_id, taken.epoch)
    )
    opened = await gateway.open_all(*wanted)
    assert [session.code for session in opened] == [Code.OK] * (WAITING_MAX + 1) + [Code.BUSY]


async def test_a_session_belongs_to_its_principal(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1", principal="ada")
    assert (await gateway.open("c1", principal="eve")).code == Code.NOT_PERMITTED
    assert gateway.taken == [], "nobody else's connection is closed"
    await gateway.end("c1", opened.epoch)
    assert (await gateway.open("c1", principal="eve", is_clean=True)).code == Code.NOT_PERMITTED
    assert (await gateway.open("c1", principal="ada")).is_present


async def test_an_anonymous_session_is_taken_by_the_first_user_who_comes(
    broker: Stack, connect: Connect
) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1")
    await gateway.end("c1", opened.epoch)
    assert (await gateway.open("c1", principal="ada")).is_present
    assert (await gateway.open("c1", principal="eve")).code == Code.NOT_PERMITTED
    assert (await gateway.open("c1")).code == Code.NOT_PERMITTED


async def test_anothers_session_ends_for_whom_the_client_id_belongs_to(
    broker: Stack, connect: Connect
) -> None:
    gateway, other = await connect(broker), await connect(broker, "gateway-2")
    eve = await gateway.open("c1", principal="eve")
    await gateway.put_filter("c1", eve.epoch, "spied/#")
    await gateway.put_state("c1", eve.epoch, b"secret")
    ada = await other.open("c1", principal="ada", owns_id=True)
    assert [(taken.client_id, taken.epoch) for taken in gateway.taken] == [("c1", eve.epoch)]
    assert (ada.code, ada.is_present, ada.state, ada.filters) == (Code.OK, False, b"", [])
    assert ada.uid != eve.uid
    assert await gateway.put_filter("c1", eve.epoch, "spied/#") == [0]
    shown, content = await other.show("c1")
    assert [row.principal for row in shown] == ["ada"]
    assert content == (b"", [])
    assert broker.server.numbers()["session_foreign_ended_total"] == 1


async def test_a_user_has_so_many_sessions_also_after_a_start(start: Start, connect: Connect) -> None:
    """Rows that a start found are counted, however they change meanwhile."""
    stack = await start()
    stack.server.sessions.core.user_max = 3
    gateway = await connect(stack)
    for n in range(3):
        opened = await gateway.open(f"c{n}", principal="ada")
        await gateway.end(f"c{n}", opened.epoch)
    assert (await gateway.open("c3", principal="ada")).code == Code.LIMIT_EXCEEDED
    stack = await start(sessions_per_user_max=3)
    gateway = await connect(stack)
    core = stack.server.sessions.core
    assert core.use.users.is_complete
    assert (await gateway.open("c3", principal="ada")).code == Code.LIMIT_EXCEEDED
    assert (await gateway.open("c3", principal="eve")).code == Code.OK
    assert (await gateway.open("c0", principal="ada")).is_present
    assert stack.server.numbers()["session_user_full_total"] == 1
    assert stack.server.numbers()["session_users"] == 2
    await gateway.client.call(RequestCode.SESSION_DROP, SessionDropRequest("c0"))
    assert (await gateway.open("c4", principal="ada")).code == Code.OK


async def test_a_count_that_is_interrupted_goes_on_and_counts_nobody_twice(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await connect(await start())
    for n in range(5):
        opened = await gateway.open(f"c{n}", principal="ada")
        await gateway.end(f"c{n}", opened.epoch)
    monkeypatch.setattr(sessions_module, "SWEEP_ROWS", 2)
    really = SessionTable._sweep_page
    asked: list[str | None] = []

    def page(table: SessionTable, after: str | None) -> object:
        asked.append(after)
        if len(asked) == 2:
            raise StorageError("a disk that fails once", operation="read")
        return really(table, after)

    monkeypatch.setattr(SessionTable, "_sweep_page", page)
    stack = await start()
    stack.server.sessions.sweep_interval_s = 0.05
    await until(lambda: stack.server.sessions.swept)
    assert asked[:4] == [None, "mc1", "mc1", "mc3"]
    core = stack.server.sessions.core
    assert (core.use.users.of("ada"), core.stored) == (5, 5)


async def test_open_sessions_alone_are_listed_page_by_page(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "IDS_PER_TURN", 3)
    gateway = await connect(await start())
    for n in range(9):
        opened = await gateway.open(f"c{n}")
        if n % 2:
            await gateway.end(f"c{n}", opened.epoch)
    await gateway.open("d")
    seen: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        reply = await gateway.client.call(RequestCode.SESSION_LIST, SessionListRequest("c", after, 2, True))
        answer = reply.header(SessionListResponse)
        seen.append([row.client_id for row in rows(SessionRow, answer.sessions)])
        after = answer.next_after
    assert seen == [["c0", "c2"], ["c4", "c6"], ["c8"]]
    every = [f"c{n}" for n in range(9)]
    # Those that have ended are in the list once the table has them.
    async with asyncio.timeout(40):
        while [row.client_id for row in await gateway.list("c")] != every:
            await asyncio.sleep(0.01)
    assert [row.client_id for row in await gateway.list("c", "c2", 4)] == every[3:7]


async def test_a_lost_gateway_ends_its_sessions(start: Start, connect: Connect) -> None:
    clock = Clock()
    stack = await start(clock_ms=clock)
    gateway = await connect(stack)
    await gateway.open("short", 10)
    await gateway.open("long", 100)
    await gateway.open("none", 0)
    await gateway.client.close()
    other = await connect(stack, "gateway-2")
    await until(lambda: len(stack.server.sessions.core) == 0)
    # The list is of what the table shows, a moment after the log has it.
    async with asyncio.timeout(40):
        while [(row.client_id, row.ended_ms) for row in await other.list()] != [
            ("long", clock.now_ms),
            ("short", clock.now_ms),
        ]:
            await asyncio.sleep(0.01)
    clock.now_ms += 10_000
    assert not (await other.open("short", 10)).is_present
    assert (await other.open("long", 100)).is_present
    assert not (await other.open("none", 0)).is_present


async def test_expiry_counts_from_the_brokers_start_if_it_ended_first(start: Start, connect: Connect) -> None:
    clock = Clock()
    gateway = await connect(await start(clock_ms=clock))
    await gateway.open("c1", 10)
    clock.now_ms += 100_000
    other = await connect(await start(clock_ms=clock))
    clock.now_ms += 9_000
    assert (await other.open("c1", 10)).is_present


@pytest.mark.mqtt("MQTT-4.1.0-2")
async def test_expired_sessions_are_removed(start: Start, connect: Connect) -> None:
    clock = Clock()
    stack = await start(clock_ms=clock)
    gateway = await connect(stack)
    owner = stack.server.sessions
    owner.sweep_interval_s = 0.01
    for n in range(5):
        opened = await gateway.open(f"c{n}", 10 if n else 1000)
        await gateway.put_filter(f"c{n}", opened.epoch, "a")
        if n != 4:
            await gateway.end(f"c{n}", opened.epoch, 10 if n else 1000)
    clock.now_ms += 10_000
    owner._sweep(None)
    await until(lambda: owner.core.counts.expired == 3)
    tables = stack.store.tables
    assert tables is not None
    await until(lambda: len(tables.scan("%SESSION", "m").rows) == 2)
    await until(lambda: len(tables.scan("%SESSION", "f").rows) == 2)
    assert [row.key for row in tables.scan("%SESSION", "f").rows] == ["fc0\0a", "fc4\0a"]
    assert [row.client_id for row in await gateway.list()] == ["c0", "c4"]
    await until(lambda: owner.core.stored == 2)


async def test_a_gateway_claims_its_sessions_again_after_the_broker_was_away(
    start: Start, connect: Connect
) -> None:
    gateway = await connect(await start())
    kept, memory, lost = (
        await gateway.open("kept"),
        await gateway.open("memory", 0),
        await gateway.open("lost"),
    )
    stack = await start()
    other, again = await connect(stack, "gateway-2"), await connect(stack)
    assert await again.put_state("kept", kept.epoch, b"x") == [0], "it is not claimed yet"
    assert (await other.open("lost")).is_present
    claimed = [
        await again.open("kept", epoch=kept.epoch),
        await again.open("memory", 0, epoch=memory.epoch),
        await again.open("lost", epoch=lost.epoch),
        await again.open("never", 0, epoch=1 << 62),
    ]
    assert [session.code for session in claimed] == [
        Code.OK,
        Code.OK,
        Code.SESSION_FENCED,
        Code.SESSION_FENCED,
    ]
    assert [session.epoch for session in claimed[:2]] == [kept.epoch, memory.epoch]
    assert await again.put_state("kept", kept.epoch, b"x") == []


async def test_a_repeated_write_changes_nothing_more(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1")
    for _ in range(2):
        assert await gateway.put_state("c1", opened.epoch, b"s") == []
        assert await gateway.put_filter("c1", opened.epoch, "a") == []
    assert await gateway.end("c1", opened.epoch) == []
    assert await gateway.end("c1", opened.epoch) == [0]
    assert len((await gateway.open("c1")).filters) == 1


async def test_sessions_are_bounded(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    core = broker.server.sessions.core
    core.open_max, core.stored_max = 3, 1
    assert (await gateway.open("c1")).code == Code.OK
    assert (await gateway.open("c2")).code == Code.LIMIT_EXCEEDED
    assert (await gateway.open("c2", 0)).code == Code.OK
    assert (await gateway.open("c3", 0)).code == Code.OK
    assert (await gateway.open("c4", 0)).code == Code.LIMIT_EXCEEDED
    assert broker.server.numbers()["session_refused_total"] == 2
    assert broker.server.numbers()["sessions_open"] == 3


async def test_what_has_no_room_in_the_answer_is_shown(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    names = ["a", "b", "c"]
    for name in names:
        opened = await gateway.open(name)
        await gateway.end(name, opened.epoch, state=name.encode() * 400_000)
    again = await gateway.open_all(*[SessionOpening(name, False, 60, "", 0) for name in names])
    assert [session.state for session in again] == [name.encode() * 400_000 for name in names]


async def test_what_is_no_session_is_refused(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    assert await refused(gateway.open("")) == Code.LIMIT_EXCEEDED
    assert await refused(gateway.open("a\0b")) == Code.LIMIT_EXCEEDED
    assert await refused(gateway.open_all()) == Code.LIMIT_EXCEEDED
    assert await refused(gateway.write(SessionChange("c", 1, "what", "", b"", 0))) == Code.MISSING_FIELD
    big = SessionChange("c", 1, PUT_STATE, "", bytes(1 << 20), 0)
    assert await refused(gateway.write(big)) == Code.RECORD_TOO_LARGE
    call = gateway.client.call(RequestCode.SESSION_WRITE, SessionWriteRequest([]))
    assert await refused(call) == Code.LIMIT_EXCEEDED


async def test_an_end_that_the_log_refuses_counts_all_the_same(start: Start, connect: Connect) -> None:
    clock = Clock()
    stack = await start(clock_ms=clock)
    gateway = await connect(stack)
    opened = await gateway.open("c1", 10)
    rows = stack.server.sessions.rows
    append = rows._change_many
    rows._change_many = lambda changes, done: stack.server.sessions._loop.call_soon(  # type: ignore[method-assign]
        done, None, StorageError("no space", operation="write")
    )
    assert await refused(gateway.end("c1", opened.epoch, 10)) == Code.STORE_FAILED
    clock.now_ms += 9_000
    assert (await gateway.show("c1"))[0][0].ended_ms == clock.now_ms - 9_000
    rows._change_many = append  # type: ignore[method-assign]
    await until(lambda: not rows.owed)
    clock.now_ms += 1_000
    assert not (await gateway.open("c1", 10)).is_present


async def test_a_dropped_session_is_gone_and_its_client_disconnected(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1")
    await gateway.put_filter("c1", opened.epoch, "a")

    async def drop() -> bool:
        reply = await broker.client.call(RequestCode.SESSION_DROP, SessionDropRequest("c1"))
        return reply.header(SessionDropResponse).was_present

    assert await drop()
    assert [taken.epoch for taken in gateway.taken] == [opened.epoch]
    assert not await drop()
    assert (await gateway.show("c1"))[0] == []
    assert not (await gateway.open("c1")).is_present


async def test_a_kicked_client_is_disconnected_and_its_session_stays(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    opened = await gateway.open("c1", 60)

    async def kick() -> bool:
        reply = await broker.client.call(RequestCode.SESSION_KICK, SessionKickRequest("c1"))
        return reply.header(SessionKickResponse).was_connected

    assert await kick()
    assert [(taken.epoch, taken.by_operator) for taken in gateway.taken] == [(opened.epoch, True)]
    assert await gateway.end("c1", opened.epoch, 60) == [], "its gateway writes its last"
    assert not await kick()
    assert (await gateway.open("c1", 60)).is_present


async def test_sessions_are_listed_in_pages(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    await gateway.open_all(
        *[SessionOpening(f"d{n}", False, 60 * (n % 2), "", 0) for n in range(10)],
        SessionOpening("other", False, 60, "", 0),
    )
    listed: list[str] = []
    after = ""
    while page := await gateway.list("d", after, 3):
        listed += [row.client_id for row in page]
        after = listed[-1]
    assert listed == [f"d{n}" for n in range(10)]
    row = (await gateway.list("other"))[0]
    assert (row.owner, row.is_stored, row.ended_ms) == ("gateway-1", True, 0)


async def test_records_are_given_by_their_positions(broker: Stack, connect: Connect) -> None:
    gateway = await connect(broker)
    await broker.create("d")
    positions: list[int] = []
    await broker.produce("d", 0, (b"what begins a producer's window comes first", None))
    for n in range(3):
        positions.append(broker.store.confirmed_position)
        await broker.produce("d", 0, (b"%d" % n, None))

    async def bodies(*wanted: int) -> list[bytes]:
        header = SessionRecordsRequest(broker.store.epoch, list(wanted))
        reply = await gateway.client.call(RequestCode.SESSION_RECORDS, header)
        answer = reply.header(SessionRecordsResponse)
        assert answer.answered == len(wanted)
        return bodies_of(reply)

    assert await bodies(positions[0], positions[2]) == [b"0", b"2"]
    assert await bodies(positions[1] + 1, positions[1], 1 << 40) == [b"1"]
    assert await refused(bodies()) == Code.MISSING_FIELD
