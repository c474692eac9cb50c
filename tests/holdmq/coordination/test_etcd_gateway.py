"""The client of etcd's gateway against members that say, or leave out, what a test wants."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from processes import free_port

from holdmq.coordination.api import ShardSnapshot, ShardState
from holdmq.coordination.etcd import EtcdCoordinator
from holdmq.coordination.etcd_gateway import ANSWER_MAX_BYTES, EtcdAccess, EtcdGateway, EtcdRefusalError
from holdmq.errors import CoordinatorError, UsageError

STATE = ShardState(1, "a", ("a", "b"), 1)
STATE_KEY = base64.b64encode(b"/holdmq/shard/state")
SHORT_S = 0.6
"""Of clients whose members do not answer."""
Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def says(fields: dict[str, Any], status: int = 200, term: int = 5) -> Reply:
    """An answer of etcd."""

    async def reply(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        header = {"header": {"raft_term": str(term), "revision": "9"}} if status == 200 else {}
        return web.json_response(header | fields, status=status)

    return reply


def refuses(code: int, message: str, status: int) -> Reply:
    return says({"code": code, "message": message, "details": []}, status)


async def hangs(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError("nobody waits so long")


async def breaks(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class ScriptedMember:
    """A member with a line of replies for each path; the last of a line stays."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: dict[str, deque[Reply]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.tokens: list[str] = []

    def script(self, path: str, *replies: Reply) -> None:
        self.replies[path] = deque(replies)

    def asked(self, path: str) -> int:
        return sum(called == path for called, _ in self.calls)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.calls.append((request.path, body))
        self.tokens.append(request.headers.get("Authorization", ""))
        line = self.replies[request.path]
        return await (line.popleft() if len(line) > 1 else line[0])(request, body)


Start = Callable[[], Awaitable[ScriptedMember]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def started() -> ScriptedMember:
            member = ScriptedMember()
            app = web.Application()
            app.router.add_post("/{path:.*}", member.serve)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            port = free_port()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            member.url = f"http://127.0.0.1:{port}"
            return member

        yield started


@pytest.fixture
async def client() -> AsyncIterator[Callable[..., EtcdCoordinator]]:
    made: list[EtcdCoordinator] = []

    def make(*members: ScriptedMember | str, timeout_s: float = 5.0, **access: str) -> EtcdCoordinator:
        urls = tuple(each if isinstance(each, str) else each.url for each in members)
        made.append(EtcdCoordinator(EtcdAccess(urls, **access), "/holdmq/", "shard", "a", timeout_s))
        return made[-1]

    yield make
    for each in made:
        await each.close()


Make = Callable[..., EtcdCoordinator]
NOTHING = says({"kvs": []})
RANGE, TXN, KEEPALIVE = "/v3/kv/range", "/v3/kv/txn", "/v3/lease/keepalive"
GRANT, REVOKE, LOGIN, WATCH = "/v3/lease/grant", "/v3/lease/revoke", "/v3/auth/authenticate", "/v3/watch"


def lease_key(lease_id: int, holder: str = "a", term: int = 5) -> Reply:
    key, value = (base64.b64encode(text.encode()).decode() for text in ("/holdmq/shard/lease", holder))
    kvs = [{"key": key, "value": value, "lease": str(lease_id), "mod_revision": "4"}]
    return says({"kvs": kvs}, term=term)


async def test_a_member_that_is_gone_is_passed_over_and_asked_last(start: Start, client: Make) -> None:
    there = await start()
    there.script(RANGE, NOTHING)
    there.script(TXN, says({"succeeded": True}))
    coordinator = client(f"http://127.0.0.1:{free_port()}", there)
    assert await coordinator.read() == ShardSnapshot(None, 0, "")
    assert await coordinator.compare_and_set(0, STATE) == 9
    assert there.asked(RANGE) == there.asked(TXN) == 1


async def test_a_set_goes_to_the_next_member_only_if_the_first_cannot_have_got_it(
    start: Start, client: Make
) -> None:
    there = await start()
    there.script(TXN, says({"succeeded": True}))
    assert await client(f"http://127.0.0.1:{free_port()}", there).compare_and_set(0, STATE) == 9
    for fault in (hangs, breaks, refuses(14, "etcdserver: request timed out", 503), says({}, 500)):
        first, second = await start(), await start()
        first.script(TXN, fault)
        second.script(TXN, says({"succeeded": True}))
        coordinator = client(first, second, timeout_s=SHORT_S)
        with pytest.raises(CoordinatorError, match=r"compare_and_set .* unknown outcome") as caught:
            await coordinator.compare_and_set(0, STATE)
        assert not isinstance(caught.value, EtcdRefusalError)
        assert second.asked(TXN) == 0
        assert await coordinator.compare_and_set(0, STATE) == 9
        assert (first.asked(TXN), second.asked(TXN)) == (1, 1)


async def test_a_read_goes_on_to_the_next_member_after_any_fault(start: Start, client: Make) -> None:
    for fault in (hangs, breaks, refuses(14, "etcdserver: no leader", 503), says({}, 500)):
        first, second = await start(), await start()
        first.script(RANGE, fault)
        second.script(RANGE, NOTHING)
        assert await client(first, second, timeout_s=2 * SHORT_S).read() == ShardSnapshot(None, 0, "")
        assert (first.asked(RANGE), second.asked(RANGE)) == (1, 1)


async def test_no_call_takes_longer_than_it_may(start: Start, client: Make) -> None:
    first, second = await start(), await start()
    for member in (first, second):
        for path in (RANGE, TXN, KEEPALIVE, GRANT, REVOKE, WATCH):
            member.script(path, hangs)
    coordinator = client(first, second, timeout_s=SHORT_S)
    clock = asyncio.get_running_loop().time
    calls: list[Callable[[], Awaitable[Any]]] = [
        coordinator.read,
        lambda: coordinator.compare_and_set(0, STATE),
        lambda: coordinator.hold(9),
        lambda: coordinator.release("7f"),
    ]
    for call in calls:
        began = clock()
        with pytest.raises(CoordinatorError, match="no answer in time"):
            await call()
        assert SHORT_S / 2 < clock() - began < SHORT_S + 1
    began = clock()
    with pytest.raises(CoordinatorError):
        await coordinator.changed(ShardSnapshot(None, 0, ""), 0.5)
    assert 0.5 < clock() - began < 0.5 + 2 * SHORT_S + 1


@pytest.mark.parametrize(
    "reply",
    [
        says({"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: no leader"}, 503),
        says({"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}}),
        says({"error": {"code": 14, "message": "etcdserver: no leader", "details": []}}),
    ],
)
async def test_errors_of_older_and_newer_gateways_are_understood(
    start: Start, client: Make, reply: Reply
) -> None:
    member = await start()
    member.script(RANGE, reply)
    with pytest.raises(CoordinatorError, match="etcdserver: no leader"):
        await client(member).read()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"7",
        b'"x"',
        b"{}x",
        b'{"error": 5}',
        b"[" * 9999,
        b'{"succeeded": true}',
        b'{"header": {"raft_term": "x"}, "succeeded": true}',
        b'{"header": 5, "succeeded": true, "ID": []}',
        b'{"header": {"raft_term": "5"}, "kvs": [5], "succeeded": true}',
        b'{"header": {"raft_term": "5"}, "succeeded": true, "kvs": [{"key": "%s", "value": "!"}]}'
        % STATE_KEY,
    ],
)
@pytest.mark.parametrize("status", [200, 404, 502])
async def test_what_is_no_answer_of_etcd_is_an_unknown_outcome(
    start: Start, client: Make, body: bytes, status: int
) -> None:
    async def reply(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    member = await start()
    for path in (RANGE, TXN, GRANT, KEEPALIVE, REVOKE):
        member.script(path, reply)
    coordinator = client(member)
    for call in (coordinator.read(), coordinator.compare_and_set(0, STATE), coordinator.hold(9)):
        with pytest.raises(CoordinatorError):
            await call


async def test_an_answer_without_end_is_not_kept(start: Start, client: Make) -> None:
    async def reply(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(ANSWER_MAX_BYTES // 65_536 + 8):
            await response.write(b" " * 65_536)
        return response

    member = await start()
    member.script(RANGE, reply)
    with pytest.raises(CoordinatorError, match=f"more than {ANSWER_MAX_BYTES} bytes|no answer in time"):
        await client(member).read()


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [(7, 403, "readwrite"), (8, 429, "out of space"), (3, 400, "password"), (9, 400, "unset coordination")],
)
async def test_a_refusal_says_what_to_do_and_asks_nobody_else(
    start: Start, client: Make, code: int, status: int, hint: str
) -> None:
    first, second = await start(), await start()
    first.script(RANGE, refuses(code, "etcdserver: no", status))
    second.script(RANGE, NOTHING)
    with pytest.raises(EtcdRefusalError, match=hint):
        await client(first, second).read()
    assert second.asked(RANGE) == 0


async def test_a_token_that_was_forgotten_is_fetched_again(start: Start, client: Make) -> None:
    member = await start()
    member.script(LOGIN, says({"token": "t1"}), says({"token": "t2"}), says({"token": "t3"}))
    member.script(RANGE, NOTHING, refuses(16, "etcdserver: invalid auth token", 401), NOTHING)
    member.script(
        TXN, refuses(3, "etcdserver: revision of auth store is old", 400), says({"succeeded": False})
    )
    coordinator = client(member, user="holdmq", password="secret")
    await coordinator.read()
    assert member.tokens == ["", "t1"]
    await coordinator.read()
    assert await coordinator.compare_and_set(3, STATE) is None
    assert member.asked(LOGIN) == 3
    assert member.tokens[-1] == "t3"
    assert member.calls[0][1] == {"name": "holdmq", "password": "secret"}


async def test_calls_that_come_together_log_in_once(start: Start, client: Make) -> None:
    member = await start()
    member.script(LOGIN, says({"token": "t1"}))
    member.script(RANGE, NOTHING)
    coordinator = client(member, user="holdmq", password="secret")
    await asyncio.gather(*(coordinator.read() for _ in range(8)))
    assert member.asked(LOGIN) == 1


async def test_a_token_that_no_login_mends_ends_the_call(start: Start, client: Make) -> None:
    member = await start()
    member.script(LOGIN, says({"token": "t"}))
    member.script(RANGE, refuses(16, "etcdserver: invalid auth token", 401))
    with pytest.raises(EtcdRefusalError, match="invalid auth token"):
        await client(member, user="holdmq", password="x").read()
    assert member.asked(RANGE) == 2


async def _held(member: ScriptedMember, coordinator: EtcdCoordinator) -> None:
    """Have it take L with etcd's lease 127."""
    member.script(RANGE, NOTHING)
    member.script(GRANT, says({"ID": "127", "TTL": "9"}))
    member.script(TXN, says({"succeeded": True}))
    assert await coordinator.hold(9) == "7f"


async def test_a_renewal_counts_only_if_no_other_leader_came_up_before_it(start: Start, client: Make) -> None:
    member = await start()
    coordinator = client(member)
    await _held(member, coordinator)
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, "ID": "127", "TTL": "9"}}))
    member.script(RANGE, lease_key(127, term=6))
    with pytest.raises(CoordinatorError, match="changes its leader"):
        await coordinator.hold(9)
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "6"}, "ID": "127", "TTL": "9"}}))
    assert await coordinator.hold(9) == "7f"


async def test_a_renewal_and_its_proof_are_of_one_member(start: Start, client: Make) -> None:
    first, second = await start(), await start()
    coordinator = client(first, second)
    await _held(first, coordinator)
    first.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, "ID": "127", "TTL": "9"}}))
    first.script(RANGE, refuses(14, "etcdserver: no leader", 503))
    second.script(RANGE, lease_key(127))
    with pytest.raises(CoordinatorError, match="no leader"):
        await coordinator.hold(9)
    assert second.asked(RANGE) == 0


@pytest.mark.parametrize("kept", [{"ID": "127"}, {"ID": "127", "TTL": "0"}, {"ID": "127", "TTL": "-1"}])
async def test_a_lease_that_ended_is_taken_anew_and_says_so(
    start: Start, client: Make, kept: dict[str, str]
) -> None:
    member = await start()
    coordinator = client(member)
    await _held(member, coordinator)
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, **kept}}))
    member.script(REVOKE, refuses(5, "etcdserver: requested lease not found", 404))
    member.script(GRANT, says({"ID": "128", "TTL": "9"}))
    assert await coordinator.hold(9) == "80"
    member.script(RANGE, lease_key(5, "b"))
    assert await coordinator.hold(9) is None


async def test_a_key_that_another_lease_has_is_lost_though_the_own_lease_lives(
    start: Start, client: Make
) -> None:
    member = await start()
    coordinator = client(member)
    await _held(member, coordinator)
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, "ID": "127", "TTL": "9"}}))
    member.script(REVOKE, says({}))
    member.script(RANGE, lease_key(5, "b"))
    assert await coordinator.hold(9) is None
    assert member.asked(REVOKE) == 1


async def test_a_lease_whose_key_may_yet_be_written_is_revoked_before_a_new_one(
    start: Start, client: Make
) -> None:
    member = await start()
    coordinator = client(member)
    member.script(RANGE, NOTHING)
    member.script(GRANT, says({"ID": "127", "TTL": "9"}), says({"ID": "128", "TTL": "9"}))
    member.script(TXN, breaks, says({"succeeded": True}))
    with pytest.raises(CoordinatorError):
        await coordinator.hold(9)
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, "ID": "127", "TTL": "9"}}))
    member.script(REVOKE, says({}))
    assert await coordinator.hold(9) == "80"
    assert [path for path, _ in member.calls][-6:] == [KEEPALIVE, RANGE, REVOKE, RANGE, GRANT, TXN]


async def test_an_acquisition_whose_answer_was_lost_is_found(start: Start, client: Make) -> None:
    member = await start()
    coordinator = client(member)
    member.script(RANGE, NOTHING)
    member.script(GRANT, says({"ID": "127", "TTL": "9"}))
    member.script(TXN, breaks)
    with pytest.raises(CoordinatorError):
        await coordinator.hold(9)
    member.script(RANGE, lease_key(127))
    member.script(KEEPALIVE, says({"result": {"header": {"raft_term": "5"}, "ID": "127", "TTL": "9"}}))
    assert await coordinator.hold(9) == "7f"


async def test_watches_that_end_at_once_do_not_become_a_loop(start: Start, client: Make) -> None:
    member = await start()
    member.script(RANGE, NOTHING)
    member.script(WATCH, says({"result": {"created": True}}))
    began = asyncio.get_running_loop().time()
    assert await client(member).changed(ShardSnapshot(None, 0, ""), 1.0) == ShardSnapshot(None, 0, "")
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert 2 <= member.asked(WATCH) <= 5


async def test_a_lease_has_one_length(start: Start, client: Make) -> None:
    member = await start()
    coordinator = client(member)
    with pytest.raises(UsageError):
        await coordinator.hold(0.5)
    await _held(member, coordinator)
    with pytest.raises(UsageError):
        await coordinator.hold(10)


async def test_parts_of_seconds_of_a_lease_are_rounded_up(start: Start, client: Make) -> None:
    member = await start()
    member.script(RANGE, NOTHING)
    member.script(GRANT, says({"ID": "127", "TTL": "9"}))
    member.script(TXN, says({"succeeded": True}))
    await client(member).hold(8.2)
    assert dict(member.calls)[GRANT] == {"TTL": "9"}


async def test_a_replica_and_an_acquisition_have_names_of_their_kind(client: Make) -> None:
    with pytest.raises(UsageError):
        EtcdCoordinator(EtcdAccess(("http://127.0.0.1:1",)), "/holdmq/", "shard", "a/b", 1)
    with pytest.raises(UsageError):
        await client("http://127.0.0.1:1").release("not hexadecimal")


def test_passwords_are_not_shown() -> None:
    assert "hush" not in repr(EtcdAccess(("http://127.0.0.1:1",), "holdmq", "hush"))


async def test_a_gateway_that_was_never_used_is_closed() -> None:
    gateway = EtcdGateway(EtcdAccess(("http://127.0.0.1:1",)))
    await gateway.close()
    assert gateway.is_closed
