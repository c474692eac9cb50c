from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from holdmq.client import (
    Message,
    SyncAdmin,
    SyncConsumer,
    SyncMessages,
    SyncProducer,
    SyncPullConsumer,
    SyncSharedConsumer,
    SyncTable,
    TopicQueue,
)
from holdmq.errors import RemoteError, UsageError

T = TypeVar("T")


async def off_loop(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def test_blocking_calls_send_and_receive(registries: list[str], broker: Any) -> None:
    def work() -> list[bytes]:
        with (
            SyncProducer(registries) as producer,
            SyncPullConsumer(registries, tag_filter="42/#") as consumer,
        ):
            assert producer.send(Message("t", b"0", "42/x")).queue_offset == 0
            assert len(producer.send_batch([Message("t", b"1", "42"), Message("t", b"2", "43")])) == 2
            consumer.assign(["t"], "earliest")
            got: list[bytes] = []
            while len(got) < 2:
                got += [m.body for m in consumer.poll()]
            assert sum(p.offset for p in consumer.positions().values()) == 3
            assert set(consumer.lag().values()) == {0}
            consumer.seek(next(iter(consumer.positions())), "earliest")
            assert consumer.poll_raw(hold_ms=20_000)
            return got

    assert sorted(await off_loop(work)) == [b"0", b"1"]


async def test_errors_come_through(registries: list[str], broker: Any) -> None:
    broker.auto_create = False

    def work() -> None:
        with SyncProducer(registries) as producer:
            producer.send(Message("t", b""))

    with pytest.raises(RemoteError, match="auto_create_topics"):
        await off_loop(work)


async def test_a_pickled_copy_connects_by_itself(registries: list[str], broker: Any) -> None:
    def work() -> None:
        with SyncProducer(registries, send_timeout_s=60.0) as producer:
            producer.send(Message("t", b"1"))
            with pickle.loads(pickle.dumps(producer)) as copy:
                copy.send(Message("t", b"2"))
                assert copy._inner.producer_id != producer._inner.producer_id  # type: ignore[union-attr]
        with SyncPullConsumer(registries) as consumer:
            consumer.assign(["t"], "earliest")
            with pickle.loads(pickle.dumps(consumer)) as copy:
                assert copy.positions() == {}

    await off_loop(work)
    assert sorted(broker.bodies("t")) == [b"1", b"2"]


async def test_after_close_the_next_call_connects_again(registries: list[str], broker: Any) -> None:
    def work() -> None:
        producer = SyncProducer(registries)
        producer.close()
        producer.send(Message("t", b"1"))
        producer.close()
        producer.send(Message("t", b"2"))
        producer.close()

    await off_loop(work)
    assert len(broker.bodies("t")) == 2


FORK = """
import os, sys
from holdmq.client import Message, SyncProducer
from holdmq.errors import UsageError
registries = [sys.argv[1]]
used, unused = SyncProducer(registries), SyncProducer(registries)
used.send(Message("t", b"parent"))
pid = os.fork()
if pid == 0:
    try:
        used.send(Message("t", b"never"))
        os._exit(1)
    except UsageError as error:
        assert "forked" in str(error), error
    unused.send(Message("t", b"child"))
    unused.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
used.send(Message("t", b"parent again"))
used.close()
"""


async def test_a_forked_child_makes_its_own_connection(registries: list[str], broker: Any) -> None:
    def work() -> None:
        subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, registries[0]],
            check=True,
            timeout=50,
            cwd=os.getcwd(),
        )

    await off_loop(work)
    assert sorted(broker.bodies("t")) == [b"child", b"parent", b"parent again"]


async def test_the_cluster_is_shown_and_topics_are_created(registries: list[str], make_broker: Any) -> None:
    one = await make_broker("a")
    await make_broker("b")

    def work() -> None:
        with SyncAdmin(registries) as admin:
            admin.create_topic("t", 3)
            admin.create_topic("t", 3)
            with pytest.raises(UsageError, match="letters"):
                admin.create_topic("a.b")
            (view,) = admin.topics()
            assert (view.topic, view.queues, view.messages_in, set(view.rows)) == ("t", 6, 10, {"a", "b"})
            assert {row.broker for row in admin.cluster().brokers} == {"a", "b"}
            status = admin.broker_status()
            assert {name: getattr(s, "writable", s) for name, s in status.items()} == {"a": True, "b": True}
            connections = admin.connections()["a"]
            assert isinstance(connections, list)
            assert "console" in {row.role for row in connections}

    await off_loop(work)
    await one.add_topic("u", 2)
    one.append("u", 1, b"x" * 200)

    def bounds() -> None:
        with SyncAdmin(registries) as admin:
            found = admin.queue_bounds(["u", "none"])
            assert {q: b.end_offset for q, b in found.items()} == {
                TopicQueue("u", "a", 0): 0,
                TopicQueue("u", "a", 1): 1,
            }

    await off_loop(bounds)


@pytest.mark.parametrize(
    "make",
    [
        SyncAdmin,
        SyncMessages,
        SyncProducer,
        SyncPullConsumer,
        lambda registries, **settings: SyncConsumer(registries, "g", print, ["t"], **settings),
        lambda registries, **settings: SyncSharedConsumer(registries, "g", ["t"], **settings),
        lambda registries, **settings: SyncTable("t", registries, **settings),
    ],
)
def test_an_unknown_setting_is_refused_where_it_is_given(make: Callable[..., Any]) -> None:
    make(["127.0.0.1:1"], client_id="c")
    with pytest.raises(TypeError, match="clientid"):
        make(["127.0.0.1:1"], clientid="c")


def test_importing_the_client_loads_nothing_heavy() -> None:
    code = (
        "import sys, holdmq.client; assert 'numpy' not in sys.modules; holdmq.client.SyncProducer;"
        "heavy = {'pyarrow', 'pyspark', 'pandas', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
