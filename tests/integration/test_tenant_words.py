"""Two tenants whose applications name topics and groups alike, each in its own words, over real processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Stack, end_all
from security import ADMIN_SECRET, KEYS, SERVICE_SECRET, write_keys

from holdmq.client import (
    Admin,
    Consumer,
    DeadLetters,
    GroupAdmin,
    GroupPullConsumer,
    Message,
    Messages,
    Producer,
    PullConsumer,
    RouteTable,
    Security,
    SharedConsumer,
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
    Table,
)
from holdmq.client.tenants import TenantAdmin
from holdmq.errors import Code, HoldMQError, RemoteError, UsageError

TENANTS = ("acme", "beta")
SECRETS = {name: f"secret-of-{name}-" + name[0] * 32 for name in TENANTS}
TENANT_KEYS = "".join(
    f"""
[keys.{name}]
secret = "{SECRETS[name]}"
roles = ["client", "reader"]
produce = ["*"]
consume = ["*"]
groups = ["*"]
tenant = "{name}"
"""
    for name in TENANTS
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("words")
    (directory / "service.secret").write_text(SERVICE_SECRET, encoding="utf-8")
    (directory / "service.secret").chmod(0o600)
    stack = Stack(
        directory,
        {
            "security.keys_file": write_keys(directory / "keys.toml", KEYS + TENANT_KEYS),
            "client.access_key": "service",
            "client.secret_file": directory / "service.secret",
        },
    )
    try:
        stack.start_all(("registry", "broker", "gateway"))
        with SyncAdmin([stack.registry], security=Security("admin", ADMIN_SECRET)) as admin:
            admin.create_topic("orders")
        yield stack
    finally:
        end_all([stack])


def settings(stack: Stack, tenant: str) -> dict[str, Any]:
    """What a tenant's application gives the SDK."""
    return {"security": Security(tenant, SECRETS[tenant]), "tenant": tenant}


def above(tenant: str = "") -> dict[str, Any]:
    """What an operator gives it, who has a key of no tenant."""
    return {"security": Security("admin", ADMIN_SECRET), "tenant": tenant}


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)
    assert holds(), what


@pytest.mark.parametrize("mode", ["clustering", "broadcast", "polled", "shared", "pulled"])
def test_two_tenants_read_what_they_sent_and_nothing_else(stack: Stack, tmp_path: Path, mode: str) -> None:
    topic, group = f"orders-{mode}", f"readers-{mode}"
    registries = [stack.registry]

    async def go() -> None:
        found: dict[str, list[Message]] = {name: [] for name in TENANTS}

        async def consume(tenant: str) -> None:
            own = settings(stack, tenant)
            mine = found[tenant]
            if mode in ("clustering", "broadcast"):

                async def take(message: Message) -> None:
                    mine.append(message)

                async with Consumer(
                    registries, group, take, [topic], mode=mode, start="earliest", client_id=f"c-{mode}",
                    offsets_directory=tmp_path, strategy="consistent_hash", **own,
                ):  # fmt: skip
                    await until(lambda: len(mine) >= 4, "its messages")
            elif mode == "polled":
                async with GroupPullConsumer(registries, group, [topic], start="earliest", **own) as polled:
                    while len(mine) < 4:
                        mine.extend(await polled.poll())
                    await polled.commit()
            elif mode == "shared":
                async with SharedConsumer(registries, group, [topic], start="earliest", **own) as shared:
                    while len(mine) < 4:
                        messages = await shared.pull()
                        mine.extend(messages)
                        await shared.ack(*messages)
            else:
                async with PullConsumer(registries, **own) as pulled:
                    await pulled.assign([topic], "earliest")
                    while len(mine) < 4:
                        mine.extend(await pulled.poll())

        for tenant in TENANTS:
            async with Producer(registries, **settings(stack, tenant)) as producer:
                body = f"of {tenant}".encode()
                sent = await producer.send(Message(topic, body, "t", keys=("k",), properties={"a": "b"}))
                assert sent.queue.topic == topic
                await producer.send_batch([Message(topic, body), Message(topic, body, keys=("k",))])
                await producer.send_bodies(topic, [body])
        await asyncio.gather(*map(consume, TENANTS))
        for tenant, messages in found.items():
            assert {m.topic for m in messages} == {topic}
            assert [bytes(m.body) for m in messages] == [f"of {tenant}".encode()] * 4

    asyncio.run(go())


def test_who_names_wholes_and_who_has_the_setting_are_members_of_one_group(stack: Stack) -> None:
    registries = [stack.registry]

    async def go() -> None:
        plain = {"security": Security("acme", SECRETS["acme"])}
        async with Producer(registries, **plain) as producer:
            for i in range(40):
                await producer.send(Message("acme%mixed", b"%d" % i))
        got: dict[str, list[Message]] = {"whole": [], "own": []}

        def taker(name: str) -> Callable[[Message], Any]:
            async def take(message: Message) -> None:
                got[name].append(message)

            return take

        options: dict[str, Any] = {"start": "earliest", "strategy": "consistent_hash"}
        async with (
            Consumer(
                registries, "acme%g", taker("whole"), ["acme%mixed"], client_id="m1", **plain, **options
            ) as whole,
            Consumer(
                registries, "g", taker("own"), ["mixed"], client_id="m2", **settings(stack, "acme"), **options
            ) as own,
        ):
            await until(lambda: len(got["whole"]) + len(got["own"]) >= 40, "all messages")
            await until(
                lambda: (
                    len(whole.positions()) + len(own.positions()) == 4
                    and not {q.queue_id for q in whole.positions()} & {q.queue_id for q in own.positions()}
                ),
                "each queue at one member",
            )
        assert {m.topic for m in got["whole"]} <= {"acme%mixed"}
        assert {m.topic for m in got["own"]} <= {"mixed"}

    asyncio.run(go())


def test_retries_and_dead_letters_are_in_the_tenants_words(stack: Stack) -> None:
    registries = [stack.registry]

    async def go() -> None:
        async with GroupAdmin(registries, **above("acme")) as groups:
            await groups.update("fails", retry_max_times=1, delay_levels_ms=[50])
        tried: list[Message] = []

        async def fail(message: Message) -> None:
            tried.append(message)
            raise ValueError("no")

        own = settings(stack, "acme")
        async with Producer(registries, **own) as producer:
            await producer.send(Message("letters", b"bad"))
            await producer.send(Message("letters", b"later"), delay_ms=100)
        async with (
            DeadLetters(registries, **own) as letters,
            Consumer(registries, "fails", fail, ["letters"], start="earliest", **own),
        ):
            await until(lambda: len(tried) >= 4, "two tries of each")
            async with asyncio.timeout(60):
                while (await letters.groups("fails")).get("fails", (0, 0))[0] < 2:
                    await asyncio.sleep(0.1)
            assert {m.topic for m in tried} == {"letters"}
            found = [letter async for letter in letters.read("fails")]
            assert {letter.message.topic for letter in found} == {"letters"}
            assert {letter.origin.topic for letter in found if letter.origin} == {"letters"}
        async with DeadLetters(registries, **above("beta")) as letters:
            assert await letters.groups() == {}
        async with DeadLetters(registries, **above("acme")) as letters:
            async with Admin(registries, **above("acme")) as admin:
                await admin.create_topic("again")
            sent = await letters.resend("fails", topic="again")
            assert (sent.resent, sent.failures) == (2, []), sent
            assert list(await letters.groups()) == ["fails"]
        async with Admin(registries, **above()) as admin:
            assert "%DLQ%acme%fails" in {t.topic for t in await admin.topics(include_system=True)}

    asyncio.run(go())


def test_a_shared_group_gets_what_failed_again_and_its_dead_letter_in_own_words(stack: Stack) -> None:
    registries = [stack.registry]

    async def go() -> None:
        for tenant in TENANTS:
            async with GroupAdmin(registries, **above(tenant)) as groups:
                await groups.update("pickers", retry_max_times=1)
        own = settings(stack, "beta")
        async with Producer(registries, **own) as producer:
            await producer.send(Message("picked", b"bad"))
        tried: list[tuple[str, int]] = []
        async with SharedConsumer(registries, "pickers", ["picked"], start="earliest", **own) as shared:
            while len(tried) < 2:
                for message in await shared.pull():
                    tried.append((message.topic, message.reconsume_times))
                    await shared.nack(message)
            async with DeadLetters(registries, **own) as letters, asyncio.timeout(60):
                while not (found := [letter async for letter in letters.read("pickers")]):
                    await asyncio.sleep(0.1)
        assert tried == [("picked", 0), ("picked", 1)]
        assert [(letter.message.topic, letter.message.body) for letter in found] == [("picked", b"bad")]
        async with Admin(registries, **above("beta")) as admin:
            (view,) = (await admin.shared_groups("pickers")).values()
            assert not isinstance(view, HoldMQError)
            assert {row.topic for row in view.queues} <= {"picked", "%RETRY%pickers"}
        async with Admin(registries, **above("acme")) as admin:
            (view,) = (await admin.shared_groups()).values()
            assert not isinstance(view, HoldMQError)
            assert "picked" not in {row.topic for row in view.queues}

    asyncio.run(go())


def test_admin_calls_are_in_own_words_and_show_nothing_of_others(stack: Stack) -> None:
    registries = [stack.registry]

    async def go() -> None:
        for tenant in TENANTS:
            async with Admin(registries, **above(tenant)) as admin:
                rows = await admin.create_topic("admin", 2)
                assert {row.topic for row in rows.values()} == {"admin"}
            async with Producer(registries, **settings(stack, tenant)) as producer:
                await producer.send(Message("admin", b"x", keys=("k",)), timeout_s=30)
        async with Admin(registries, **above("acme")) as admin, Admin(registries, **above()) as whole:
            topics = {view.topic: view for view in await admin.topics()}
            assert topics["admin"].messages_in == 1
            assert not any("%" in name for name in topics)
            page = await admin.topic_page(search="adm")
            assert ([view.topic for view in page.topics], page.total) == (["admin"], 1)
            assert (await admin.topic_page(search="acme")).total == 0
            assert "admin" in (await admin.cluster()).topics
            assert {q.topic for q in await admin.queue_bounds(["admin"])} == {"admin"}
            (statistics,) = (await admin.statistics(["admin"], [])).values()
            assert not isinstance(statistics, HoldMQError)
            assert {row.name for row in statistics.topics} == {"admin"}
            # Others are busier: the broker's twenty busiest would be theirs.
            async with Producer(registries, **above()) as producer:
                for other in range(20):
                    await producer.send_batch([Message(f"busy-{other}", b"x") for _ in range(20)])
            counted: set[str] = set()
            async with asyncio.timeout(60):
                while "admin" not in counted:
                    (busiest,) = (await admin.statistics(rows_max=20)).values()
                    assert not isinstance(busiest, HoldMQError)
                    counted = {row.name for row in busiest.topics}
                    await asyncio.sleep(0.2)
            kept = {name.removeprefix("%RETRY%").removeprefix("%DLQ%") for name in counted}
            assert not any("%" in name for name in kept), kept
            await admin.pause_topic("admin")
            await admin.pause_topic("admin", False)
            await admin.delete_topic("admin", force=True)
            left = {view.topic for view in await whole.topics()}
            assert "beta%admin" in left
            assert "acme%admin" not in left
            with pytest.raises(UsageError, match="is not of the tenant 'acme'"):
                await admin.create_topic("beta%admin")
        async with Messages(registries, **above("beta")) as messages:
            (found,) = (await messages.newest_page("admin")).messages
            assert found.topic == "admin"
            assert found.message_id is not None
            assert (await messages.get(found.message_id)).topic == "admin"
        async with Messages(registries, **above("acme")) as messages:
            with pytest.raises(RemoteError) as refused:
                await messages.get(found.message_id)
            assert refused.value.code == Code.MESSAGE_UNKNOWN
        async with GroupAdmin(registries, **above("acme")) as groups:
            await groups.update("billing")
            assert "billing" in await groups.groups()
        async with GroupAdmin(registries, **above("beta")) as groups:
            assert "billing" not in await groups.groups()

    asyncio.run(go())


def test_tables_of_one_name_are_two(stack: Stack) -> None:
    async def go() -> None:
        for tenant in TENANTS:
            async with Table("prices", [stack.registry], **above(tenant)) as table:
                await table.create()
                await table.put("tea", tenant.encode())
        for tenant in TENANTS:
            async with Table("prices", [stack.registry], **settings(stack, tenant)) as table:
                entry = await table.get("tea")
                assert entry is not None
                assert entry.value == tenant.encode()

    asyncio.run(go())


def test_an_application_that_names_wholes_goes_on_without_the_setting(stack: Stack) -> None:
    acme = Security("acme", SECRETS["acme"])
    with SyncProducer([stack.registry], security=acme) as producer:
        producer.send(Message("acme%wholes", b"1"))
    with SyncPullConsumer([stack.registry], **settings(stack, "acme")) as consumer:
        consumer.assign(["wholes"], "earliest")
        (message,) = consumer.poll(hold_ms=30_000)
        assert (message.topic, message.body) == ("wholes", b"1")
    with SyncPullConsumer([stack.registry], security=acme) as consumer:
        consumer.assign(["acme%wholes"], "earliest")
        (message,) = consumer.poll(hold_ms=30_000)
        assert message.topic == "acme%wholes"


def test_an_error_says_that_key_and_setting_are_of_two_tenants(stack: Stack) -> None:
    with (
        pytest.raises(HoldMQError) as refused,
        SyncAdmin([stack.registry], security=Security("acme", SECRETS["acme"]), tenant="beta") as admin,
    ):
        admin.topics()
    assert "access key 'acme' is of the tenant 'acme', the client's `tenant` is 'beta'" in str(refused.value)
    with (
        pytest.raises(HoldMQError) as refused,
        SyncProducer([stack.registry], security=Security("acme", SECRETS["acme"])) as producer,
    ):
        producer.send(Message("orders", b"of nobody"))
    assert "set the client's `tenant` to 'acme', or say the whole name 'acme%orders'" in str(refused.value)


def test_a_refusal_names_what_the_application_named(stack: Stack) -> None:
    with (
        pytest.raises(HoldMQError) as refused,
        SyncAdmin([stack.registry], **settings(stack, "acme")) as admin,
    ):
        admin.create_topic("mine")
    assert "acme%" not in str(refused.value)
    with (
        pytest.raises(UsageError, match="'acme%orders' is a whole name: with the tenant 'acme' say 'orders'"),
        SyncProducer([stack.registry], **settings(stack, "acme")) as producer,
    ):
        producer.send(Message("acme%orders", b"x"))


def holdmq(
    stack: Stack, *words: str, key: str = "admin", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator does, or as a tenant (`key`)."""
    secret = {"admin": ADMIN_SECRET, **SECRETS}[key]
    return subprocess.run(
        [sys.executable, "-m", "holdmq.cli", *words],
        env={
            **os.environ,
            "HOLDMQ_CLIENT__REGISTRIES": f'["{stack.registry}"]',
            "HOLDMQ_CLIENT__ACCESS_KEY": key,
            "HOLDMQ_CLIENT__SECRET": secret,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_are_in_a_tenants_words(stack: Stack) -> None:
    for tenant in TENANTS:
        own = ("--tenant", tenant)
        assert holdmq(stack, "topic", "create", "commands", *own).returncode == 0
        sent = holdmq(stack, "pub", "commands/a", "-m", f"of {tenant}", *own, "--json", key=tenant)
        assert answer(sent)["topic"] == "commands"
        found = answer(holdmq(stack, "topic", "list", "--search", "commands", "--json", *own, key=tenant))
        assert [row["topic"] for row in found] == ["commands"]
    read = answer(
        holdmq(
            stack, "sub", "#", "--from", "earliest", "--count", "1", "--tenant", "beta", "--json", key="beta"
        )
    )
    assert "beta" in read["body"] or read["mqtt_topic"] != "commands/a"
    read = holdmq(stack, "sub", "commands/#", "--from", "earliest", "--count", "1", "--tenant", "beta")
    assert read.stdout == "commands/a of beta\n", read
    by_variable = holdmq(stack, "topic", "list", "--json", HOLDMQ_CLIENT__TENANT="acme")
    assert "commands" in {row["topic"] for row in answer(by_variable)}
    whole = {row["topic"] for row in answer(holdmq(stack, "topic", "list", "--json"))}
    assert {"acme%commands", "beta%commands"} <= whole
    group = answer(holdmq(stack, "group", "create", "clerks", "--tenant", "acme", "--json"))
    assert "acme%" not in json.dumps(group)
    assert "clerks" in holdmq(stack, "group", "list", "--tenant", "acme").stdout
    assert "clerks" not in holdmq(stack, "group", "list", "--tenant", "beta").stdout
    refused = holdmq(stack, "topic", "list", "--tenant", "beta", key="acme")
    assert refused.returncode == 1
    assert "is of the tenant 'acme', the client's `tenant` is 'beta'" in refused.stderr


def test_tenants_are_listed_shown_and_removed_by_name(stack: Stack) -> None:
    with SyncAdmin([stack.registry], **above("gone")) as admin:
        admin.create_topic("orders")
        admin.create_topic("meters")
    with SyncProducer([stack.registry], **above("gone")) as producer:
        producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    assert holdmq(stack, "group", "create", "readers", "--tenant", "gone").returncode == 0
    assert holdmq(stack, "quota", "set", "tenant:gone", "--topics", "7").returncode == 0
    assert holdmq(stack, "quota", "set", "tenant:promised", "--topics", "7").returncode == 0

    found = {row["tenant"]: row for row in answer(holdmq(stack, "tenant", "list", "--json"))}
    assert {"acme", "beta", "gone", "promised"} <= found.keys()
    assert found["acme"]["keys"] == ["acme"]
    assert (found["promised"]["topics"], found["promised"]["messages"]) == ([], 0)
    shown = answer(holdmq(stack, "tenant", "show", "gone", "--json"))
    assert shown["topics"] == ["meters", "orders"]
    assert (shown["groups"], shown["messages"], shown["keys"]) == (["readers"], 2, [])
    assert shown["quota"]["limits"] == {"topics": 7}
    assert shown["quota"]["used"]["topics"] == 2

    users = stack.directory / "users.tenants"
    users.write_text("# whose\nada:gone\nmeter-*:gone\nbob:of-users\n", encoding="utf-8")
    with_users = f"--set=access.tenants_file={users}"
    found = {row["tenant"]: row for row in answer(holdmq(stack, "tenant", "list", "--json", with_users))}
    assert found["gone"]["users"] == ["ada", "meter-*"]
    assert found["of-users"]["topics"] == []
    before = holdmq(stack, "tenant", "remove", "gone", with_users)
    assert "users: ada, meter-*" in before.stdout

    before = holdmq(stack, "tenant", "remove", "gone")
    assert before.returncode == 0
    assert "topics: meters, orders" in before.stdout
    assert answer(holdmq(stack, "tenant", "show", "gone", "--json")) == shown
    removed = answer(holdmq(stack, "tenant", "remove", "gone", "--yes", "--json"))
    assert removed["topics"] == ["meters", "orders"]
    assert (removed["groups"], removed["had_quota"], removed["failures"]) == (["readers"], True, [])
    absent = holdmq(stack, "tenant", "show", "gone")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "nothing names a tenant gone" in absent.stderr
    assert "beta" in {row["tenant"] for row in answer(holdmq(stack, "tenant", "list", "--json"))}
    denied = holdmq(stack, "tenant", "list", key="acme")
    assert "NOT_PERMITTED" in denied.stderr


def test_a_tenant_whose_application_runs_is_not_removed(stack: Stack) -> None:
    async def go() -> None:
        async def take(_message: Message) -> None:
            return None

        async with Producer([stack.registry], **settings(stack, "beta")) as producer:
            await producer.send(Message("kept", b"x"))
        async with (
            Consumer([stack.registry], "running", take, ["kept"], **settings(stack, "beta")),
            TenantAdmin([stack.registry], **above()) as tenants,
        ):
            with pytest.raises(RemoteError) as refused:
                await tenants.remove("beta")
            assert refused.value.code == Code.GROUP_IN_USE
            view = await tenants.show("beta")
            assert view is not None
            assert "kept" in view.topics

    asyncio.run(go())


def test_what_shares_routes_has_their_tenant(stack: Stack) -> None:
    async def go() -> None:
        routes = RouteTable([stack.registry], "one", **settings(stack, "acme"))
        routes.start()
        try:
            producer = Producer(routes=routes)
            assert producer.tenant == "acme"
            await producer.send(Message("orders", b"x"))
            with pytest.raises(UsageError, match="the shared routes are of the tenant 'acme', not 'beta'"):
                Producer(routes=routes, tenant="beta")
            await producer.close()
        finally:
            await routes.close()

    asyncio.run(go())
