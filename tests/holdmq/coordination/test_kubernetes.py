"""The client of Kubernetes against an API server that conflicts, fails, lags, restarts and forgets."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes_asyncio.config import incluster_config
from kubernetes_leases import (
    NAMESPACE,
    Lease,
    LeaseFault,
    LeaseServer,
    at_random,
    kubeconfig,
    lease_server,
)
from register_history import RegisterHistory
from security import Authority

from holdmq.coordination import kubernetes_api
from holdmq.coordination.api import ShardSnapshot, ShardState
from holdmq.coordination.kubernetes import KubernetesCoordinator
from holdmq.coordination.kubernetes_api import KubernetesAccess
from holdmq.coordination.lease_object import SHARD, holding_of
from holdmq.errors import ConfigError, CoordinatorError, ShardStateError, UsageError

STATE = ShardState(1, "a", ("a", "b", "c"), 1)
SECOND = replace(STATE, epoch=2, leader="b")
NAME = "holdmq.shard"
NOTHING = ShardSnapshot(None, 0, "")
TIMEOUT_S = 5.0
SHORT_S = 1.5
"""Of clients whose calls are not answered: long enough for those that are, on a machine with much to do."""
TTL_S = 2.0
Make = Callable[..., KubernetesCoordinator]
UNKNOWN = [
    LeaseFault.HANG, LeaseFault.HANG_AFTER, LeaseFault.BREAK, LeaseFault.BREAK_AFTER, LeaseFault.FAIL,
    LeaseFault.FAIL_AFTER,
]  # fmt: skip
AFTER = {LeaseFault.HANG_AFTER, LeaseFault.BREAK_AFTER, LeaseFault.FAIL_AFTER}


@pytest.fixture
async def server() -> AsyncIterator[LeaseServer]:
    async with lease_server() as made:
        yield made


@pytest.fixture
async def client(server: LeaseServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[KubernetesCoordinator] = []
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(server))

    def make(replica_id: str, timeout_s: float = TIMEOUT_S) -> KubernetesCoordinator:
        access = KubernetesAccess(str(path), NAMESPACE)
        made.append(KubernetesCoordinator(access, "holdmq", "shard", replica_id, timeout_s))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def _founded(coordinator: KubernetesCoordinator) -> int:
    version = await coordinator.compare_and_set(0, STATE)
    assert version is not None
    return version


def _renewed(lease: Lease) -> None:
    lease["spec"] |= {
        "holderIdentity": "c_0123456789abcdef",
        "leaseDurationSeconds": 9,
        "renewTime": f"2030-01-02T12:00:00.{random.randrange(10**6):06}Z",
    }


def _once(server: LeaseServer, method: str, act: Callable[[], None]) -> None:
    """Do something right before the next request of this method is done."""

    async def before(came: str) -> None:
        if came == method:
            server.before = None
            act()

    server.before = before


async def test_renewals_do_not_look_like_changes_of_the_state(server: LeaseServer, client: Make) -> None:
    a = client("a")
    version = await _founded(a)
    _once(server, "PATCH", lambda: server.edit(NAME, _renewed))
    new = await a.compare_and_set(version, SECOND)
    assert new is not None
    assert await a.read() == ShardSnapshot(SECOND, new, "c")
    assert server.count("PATCH") == 2


async def test_a_state_that_came_in_between_is_an_answer(server: LeaseServer, client: Make) -> None:
    a = client("a")
    version = await _founded(a)
    theirs = server.stored(NAME)["metadata"]["annotations"] | {"holdmq/state-version": str(version + 1)}
    _once(
        server, "PATCH", lambda: server.edit(NAME, lambda lease: lease["metadata"].update(annotations=theirs))
    )
    assert await a.compare_and_set(version, SECOND) is None
    assert (await a.read()).state == STATE


async def test_an_object_that_somebody_else_made_first_is_read(server: LeaseServer, client: Make) -> None:
    a = client("a")
    b = client("b")

    def first() -> None:
        server.edit(NAME, lambda lease: lease["metadata"]["annotations"].update({SHARD: "holdmq/shard"}))

    _once(server, "POST", first)
    assert await a.compare_and_set(0, STATE) is not None
    server.delete(NAME)
    _once(server, "POST", first)
    assert await b.hold(TTL_S) is not None


async def test_an_object_that_others_never_leave_alone_ends_the_call_in_time(
    server: LeaseServer, client: Make
) -> None:
    a = client("a", SHORT_S)
    version = await _founded(a)

    async def before(method: str) -> None:
        if method == "PATCH":
            server.edit(NAME, _renewed)

    server.before = before
    with pytest.raises(CoordinatorError, match=r"others keep changing|no answer in time"):
        await a.compare_and_set(version, SECOND)
    server.before = None
    assert (await a.read()).version == version


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_set_that_is_not_answered_is_unknown_and_never_sent_again(
    server: LeaseServer, client: Make, fault: LeaseFault, method: str
) -> None:
    a = client("a", SHORT_S)
    version = await _founded(a) if method == "PATCH" else 0
    sent = server.count(method)
    server.faults[method] = [fault]
    with pytest.raises(CoordinatorError, match=r"compare_and_set .* unknown outcome"):
        await a.compare_and_set(version, SECOND)
    assert server.count(method) == sent + 1
    snapshot = await a.read()
    assert (snapshot.state == SECOND) == (fault in AFTER)
    assert (snapshot.version != version) == (fault in AFTER)
    assert (await a.compare_and_set(version, replace(STATE, epoch=3)) is None) == (fault in AFTER)


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_a_lease_whose_answer_was_lost_is_found(
    server: LeaseServer, client: Make, fault: LeaseFault
) -> None:
    a, b = client("a", SHORT_S), client("b")
    await _founded(a)
    server.faults["PATCH"] = [fault]
    with pytest.raises(CoordinatorError, match="hold"):
        await a.hold(TTL_S)
    taken = holding_of(server.stored(NAME)).identity
    held = await a.hold(TTL_S)
    assert held
    assert not taken or held == taken
    assert await b.hold(TTL_S) is None
    server.faults["PATCH"] = [fault]
    with pytest.raises(CoordinatorError):
        await a.hold(TTL_S)
    assert await a.hold(TTL_S) == held


async def test_an_attempt_that_arrives_late_is_no_acquisition_of_somebody_else(
    server: LeaseServer, client: Make
) -> None:
    a = client("a", SHORT_S)
    await _founded(a)
    server.faults["PATCH"] = [LeaseFault.BREAK]
    with pytest.raises(CoordinatorError):
        await a.hold(TTL_S)
    late: list[Lease] = []
    server.faults["PATCH"] = [LeaseFault.HANG_AFTER]
    with pytest.raises(CoordinatorError):
        await a.hold(TTL_S)
    late.append(server.stored(NAME))
    server.edit(NAME, lambda lease: lease["spec"].update(holderIdentity=""))
    # The first attempt has come at last, when the second one has read that nobody holds it.
    _once(server, "PATCH", lambda: server.edit(NAME, lambda lease: lease.update(spec=late[0]["spec"])))
    assert await a.hold(TTL_S) == late[0]["spec"]["holderIdentity"]


async def test_a_server_under_pressure_is_asked_again(server: LeaseServer, client: Make) -> None:
    a = client("a")
    version = await _founded(a)
    server.faults |= {"GET": [LeaseFault.BUSY], "PATCH": [LeaseFault.BUSY]}
    assert await a.compare_and_set(version, SECOND) is not None
    short = client("a", SHORT_S)
    server.faults["GET"] = [LeaseFault.BUSY] * 9
    with pytest.raises(CoordinatorError, match="asks for a pause"):
        await short.read()


async def test_a_token_that_was_renewed_is_read_again(
    server: LeaseServer, client: Make, tmp_path: Path
) -> None:
    a = client("a")
    version = await _founded(a)
    server.token = "another"
    with pytest.raises(CoordinatorError, match=r"look at the service account's token"):
        await a.read()
    (tmp_path / "kubeconfig").write_text(kubeconfig(server, "another"))
    assert await a.compare_and_set(version, SECOND) is not None
    server.token = "a third"
    (tmp_path / "kubeconfig").write_text(kubeconfig(server, "a third"))
    waiting = a.changed(NOTHING, 10)
    assert (await asyncio.wait_for(waiting, 5)).state == SECOND


async def test_who_may_not_is_told_what_is_missing(server: LeaseServer, client: Make) -> None:
    server.faults["GET"] = [LeaseFault.FORBIDDEN]
    with pytest.raises(CoordinatorError, match="get, create, patch, list and watch on leases"):
        await client("a").read()


async def test_a_namespace_that_is_not_there_is_said(
    server: LeaseServer, client: Make, tmp_path: Path
) -> None:
    access = KubernetesAccess(str(tmp_path / "kubeconfig"), "nowhere")
    a = KubernetesCoordinator(access, "holdmq", "shard", "a", TIMEOUT_S)
    with pytest.raises(CoordinatorError, match="create the namespace"):
        await a.compare_and_set(0, STATE)
    await a.close()
    assert client


async def test_no_call_takes_longer_than_it_may(server: LeaseServer, client: Make) -> None:
    a = client("a", SHORT_S)
    await _founded(a)
    server.chance = lambda _: LeaseFault.HANG
    clock = asyncio.get_running_loop().time
    calls: list[Callable[[], Awaitable[object]]] = [
        a.read,
        lambda: a.compare_and_set(0, STATE),
        lambda: a.hold(TTL_S),
        lambda: a.release("a_1"),
        lambda: a.changed(NOTHING, 0.5),
    ]
    for call in calls:
        began = clock()
        with pytest.raises(CoordinatorError, match="no answer in time"):
            await call()
        assert clock() - began < 2 * SHORT_S + 2


async def test_reads_ask_the_store_and_not_a_cache_that_is_behind(server: LeaseServer, client: Make) -> None:
    server.lag_s = 30
    a, b = client("a"), client("b")
    version = await _founded(a)
    assert await b.read() == ShardSnapshot(STATE, version, "")
    assert await b.changed(NOTHING, 5) == ShardSnapshot(STATE, version, "")
    assert all("resourceVersion" not in query for method, query in server.requests if method == "GET")


async def test_a_watch_that_is_behind_is_late_and_not_wrong(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    version = await _founded(a)
    server.lag_s = 0.7
    waiting = asyncio.create_task(b.changed(await b.read(), 20))
    await asyncio.sleep(0.3)
    new = await a.compare_and_set(version, SECOND)
    assert await asyncio.wait_for(waiting, 5) == ShardSnapshot(SECOND, new, "")
    # The late news of old versions do not count as changes.
    began = asyncio.get_running_loop().time()
    assert (await b.changed(await b.read(), 1.5)).version == new
    assert asyncio.get_running_loop().time() - began >= 1.4


async def test_a_watch_whose_past_is_forgotten_begins_anew(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    version = await _founded(a)

    def forget() -> None:
        server.edit("another", lambda lease: None)
        server.forget_events()

    _once(server, "WATCH", forget)
    waiting = asyncio.create_task(b.changed(await b.read(), 20))
    await asyncio.sleep(0.5)
    new = await a.compare_and_set(version, SECOND)
    assert await asyncio.wait_for(waiting, 5) == ShardSnapshot(SECOND, new, "")
    assert server.count("WATCH") >= 2


async def test_a_wait_survives_restarts_of_the_server(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    version = await _founded(a)
    waiting = asyncio.create_task(b.changed(await b.read(), 20))
    for _ in range(2):
        await asyncio.sleep(0.3)
        await server.stop()
        with pytest.raises(CoordinatorError):
            await a.read()
        await server.start()
    new = await a.compare_and_set(version, SECOND)
    assert await asyncio.wait_for(waiting, 5) == ShardSnapshot(SECOND, new, "")


async def test_renewals_do_not_end_a_wait(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    held = await a.hold(TTL_S)
    assert held
    waiting = asyncio.create_task(b.changed(await b.read(), 20))
    for _ in range(8):
        await asyncio.sleep(TTL_S / 4)
        assert await a.hold(TTL_S) == held
    assert not waiting.done()
    assert server.count("WATCH") == 1
    await a.release(held)
    assert await asyncio.wait_for(waiting, 5) == ShardSnapshot(None, 0, "")


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:00.000000Z", "2999-12-31T23:59:59.999999Z"])
async def test_clocks_of_machines_are_not_compared(server: LeaseServer, client: Make, moment: str) -> None:
    b = client("b")
    assert await client("a").hold(TTL_S)
    server.edit(NAME, lambda lease: lease["spec"].update(renewTime=moment))
    assert (await b.read()).holder == "a"
    await asyncio.sleep(TTL_S / 2)
    assert await b.hold(TTL_S) is None
    await asyncio.sleep(TTL_S / 2 + 0.1)
    assert (await b.read()).holder == ""
    assert await b.hold(TTL_S)


async def test_who_comes_late_waits_for_a_whole_lease(server: LeaseServer, client: Make) -> None:
    assert await client("a").hold(TTL_S)
    await asyncio.sleep(TTL_S + 0.2)
    b = client("b")
    assert (await b.read()).holder == "a"
    assert await b.hold(TTL_S) is None
    await asyncio.sleep(TTL_S + 0.1)
    assert await b.hold(TTL_S)


async def test_a_holder_that_was_only_late_goes_on(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    held = await a.hold(TTL_S)
    assert (await b.read()).holder == "a"
    await asyncio.sleep(TTL_S + 0.2)
    assert (await b.read()).holder == ""
    assert await a.hold(TTL_S) == held
    assert (await b.read()).holder == "a"


async def test_a_holder_of_another_hand_waits_for_its_time(server: LeaseServer, client: Make) -> None:
    a = client("a")
    assert await a.hold(TTL_S)
    server.edit(NAME, lambda lease: lease["spec"].update(holderIdentity="somebody"))
    assert await a.hold(TTL_S) is None
    assert (await a.read()).holder == "somebody"


async def test_an_object_that_was_deleted_has_lost_its_state_and_its_lease(
    server: LeaseServer, client: Make
) -> None:
    a = client("a")
    version = await _founded(a)
    held = await a.hold(TTL_S)
    server.delete(NAME)
    assert await a.read() == NOTHING
    assert await a.compare_and_set(version, SECOND) is None
    assert held
    await a.release(held)
    again = await a.hold(TTL_S)
    assert again not in (None, held)
    new = await a.compare_and_set(0, SECOND)
    assert new is not None
    assert abs(new - version) > 1_000_000
    _once(server, "PATCH", lambda: server.delete(NAME))
    assert await a.compare_and_set(new, STATE) is None


async def test_a_wait_sees_that_an_object_is_deleted_and_made(server: LeaseServer, client: Make) -> None:
    a, b = client("a"), client("b")
    await _founded(a)
    waiting = asyncio.create_task(b.changed(await b.read(), 20))
    await asyncio.sleep(0.3)
    server.delete(NAME)
    assert await asyncio.wait_for(waiting, 5) == NOTHING
    waiting = asyncio.create_task(b.changed(NOTHING, 20))
    await asyncio.sleep(0.3)
    version = await _founded(a)
    assert await asyncio.wait_for(waiting, 5) == ShardSnapshot(STATE, version, "")


async def test_an_object_of_another_shard_is_left_alone(server: LeaseServer, client: Make) -> None:
    server.edit(NAME, lambda lease: lease["metadata"]["annotations"].update({SHARD: "other/shard"}))
    before = server.stored(NAME)
    a = client("a")
    for call in (a.read(), a.compare_and_set(0, STATE), a.hold(TTL_S)):
        with pytest.raises(ShardStateError, match="is of 'other/shard'"):
            await call
    assert server.stored(NAME) == before


async def test_fields_of_others_stay(server: LeaseServer, client: Make) -> None:
    a = client("a")
    version = await _founded(a)
    server.edit(NAME, lambda lease: lease["metadata"].update(labels={"team": "iot"}))
    held = await a.hold(TTL_S)
    assert held
    assert await a.compare_and_set(version, SECOND)
    await a.release(held)
    assert server.stored(NAME)["metadata"]["labels"] == {"team": "iot"}


async def test_replicas_in_a_pod_use_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("api")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    for name, text in (("token", "first"), ("namespace", NAMESPACE)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", authority.ca)
    monkeypatch.setattr(kubernetes_api, "NAMESPACE_FILE", tmp_path / "namespace")
    async with lease_server(tls) as server:
        server.token = "first"
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        a = KubernetesCoordinator(KubernetesAccess(), "holdmq", "shard", "a", 5.0)
        version = await a.compare_and_set(0, STATE)
        assert version is not None
        # Tokens of pods are renewed each hour; the old one may end before its time.
        server.token = "second"
        (tmp_path / "token").write_text("second")
        assert await a.read() == ShardSnapshot(STATE, version, "")
        await a.close()


async def test_outside_of_a_pod_it_is_said_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "NAMESPACE_FILE", tmp_path / "nothing")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"coordination\.kubernetes\.namespace"):
        KubernetesCoordinator(KubernetesAccess(), "holdmq", "shard", "a", 1.0)
    for access in (KubernetesAccess("", NAMESPACE), KubernetesAccess(str(tmp_path / "none"), NAMESPACE)):
        a = KubernetesCoordinator(access, "holdmq", "shard", "a", 1.0)
        with pytest.raises(CoordinatorError, match=r"coordination\.kubernetes\.kubeconfig"):
            await a.read()
        await a.close()


async def test_names_and_times_that_make_no_sense_are_refused(client: Make) -> None:
    with pytest.raises(UsageError):
        client("a/b")
    with pytest.raises(UsageError):
        await client("a").hold(0.5)


@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_under_faults_see_one_register_and_one_holder(
    server: LeaseServer, client: Make, seed: int
) -> None:
    history = RegisterHistory(TTL_S, margin_s=0.5)
    clock = asyncio.get_running_loop().time
    # On a machine with other work, eight seconds do not hold enough of what is to be checked.
    least, most = clock() + 8, clock() + 40
    server.chance = at_random(seed, 0.12)
    server.lag_s = 0.2

    def goes_on() -> bool:
        now = clock()
        return now < least or (now < most and not (history.sets > 20 and history.unknown > 5))

    async def use(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        coordinator = client(f"r{number}", 0.5)
        held, version = None, 0
        while goes_on():
            match chance.randrange(8):
                case 0 | 1 | 2:
                    snapshot = await history.read(coordinator, clock)
                    version = snapshot.version if snapshot is not None else version
                case 3 | 4 | 5:
                    new = await history.compare_and_set(coordinator, version, clock)
                    version = new if new is not None else version
                case 6:
                    held = await history.hold(coordinator, f"r{number}", clock)
                case _:
                    if held is not None and chance.random() < 0.3:
                        await history.release(coordinator, f"r{number}", held, clock)
                        held = None
            await asyncio.sleep(chance.random() * 0.1)

    async def disturb() -> None:
        while goes_on():
            await asyncio.sleep(1.5)
            await server.stop()
            await asyncio.sleep(0.2)
            await server.start()

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(use(number))
        group.create_task(disturb())
    print(history.summary())
    history.check()
    assert history.sets > 20
    assert history.unknown > 5
