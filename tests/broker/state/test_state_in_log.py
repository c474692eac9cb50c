"""A broker whose state is in its log has, after whatever happened, what that log says: all rooms of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_stack import Stack, make_record, produce_body, start_broker, stop_broker
from cut_log import cut_log, record_starts
from group_peer import GroupPeer
from shared_peer import SharedPeer

from holdmq.errors import Code, StoreFormatError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRun, PullQueue, RunResult
from holdmq.wire.move_headers import (
    TO_DEAD_LETTERS,
    DlqPurgeRequest,
    DlqResendRequest,
    SendBackRequest,
    SentBack,
)
from holdmq.wire.topic_headers import TopicDeleteRequest, TopicPauseRequest

PRODUCER = 77


class State(NamedTuple):
    """What the rooms know."""

    topics: str
    groups: str
    offsets: str
    shared: str
    letters: str


def state_of(broker: Stack) -> State:
    server = broker.server
    shared = server.shared.core.groups
    return State(
        json.dumps({t.name: t.row() for t in server.topics.table.found(include_system=False)}),
        json.dumps({n: g.retry_max_times for n, g in sorted(server.groups.settings.table.groups.items())}),
        json.dumps(server.groups.offsets.table.snapshot(), sort_keys=True),
        json.dumps(
            {
                str(queue.key): (queue.floor, queue.acknowledged.count)
                for group in shared.values()
                for queue in group.order
                if queue.floor or queue.acknowledged.count
            },
            sort_keys=True,
        ),
        json.dumps(
            {group: m for group, m in server.dead_letters.marks.content({}).items() if any(m.values())},
            sort_keys=True,
        ),
    )


class Brokers:
    """Brokers that a test starts over directories; those that still run end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[Stack] = []

    async def start(self, directory: Path | None = None, **settings: Any) -> Stack:
        settings = {"is_state_in_log": True, **settings}
        stack = await start_broker(directory or self.directory, **settings)
        self._running.append(stack)
        return stack

    async def stop(self, stack: Stack) -> None:
        self._running.remove(stack)
        await stop_broker(stack)

    async def stop_all(self) -> None:
        while self._running:
            await stop_broker(self._running.pop())


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    made = Brokers(tmp_path / "first")
    yield made
    await made.stop_all()


class Life:
    """What a broker did, and what its rooms knew after each step."""

    def __init__(self, broker: Stack) -> None:
        self.broker = broker
        self.known: list[tuple[int, State]] = []
        self.produced: list[tuple[int, bytes, list[ProduceRun], int]] = []
        self.acknowledged: list[tuple[int, str, int]] = []
        self._sequences: Counter[str] = Counter()

    def note(self) -> None:
        self.known.append((self.broker.store.confirmed_position, state_of(self.broker)))

    async def produce(self, topic: str, queue_id: int, *messages: bytes) -> None:
        """PRODUCE, and remember the request: it may have to be sent again."""
        body = produce_body([make_record(topic, queue_id, message) for message in messages])
        runs = [ProduceRun(topic, queue_id, len(messages), PRODUCER, 1, self._sequences[topic])]
        self._sequences[topic] += len(messages)
        answer = await self.broker.produce_raw(body, runs)
        (result,) = rows(RunResult, answer.results)
        assert result.status == Code.OK
        self.produced.append((self.broker.store.confirmed_position, body, runs, result.base_offset))
        self.note()

    async def call(self, code: RequestCode, header: Any) -> None:
        await self.broker.client.call(code, header, 20.0)
        self.note()


async def lived(broker: Stack) -> Life:
    """Every room learns a few things, one after the other."""
    life = Life(broker)
    await broker.server.sessions.opened.wait()
    await broker.server.retained.opened.wait()
    life.note()
    for topic in ("t", "gone", "kept"):
        await broker.create(topic, 1)
        life.note()
    await life.produce("t", 0, *(b"%d" % number for number in range(20)))
    await life.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=3))
    member = GroupPeer(broker, "member")
    await member.join()
    await member.lease(0)
    life.note()
    for offset in (3, 7, 12):
        assert await member.report(0, offset, wait_for_disk=True) == []
        life.acknowledged.append((broker.store.confirmed_position, "t@g", offset))
        life.note()
        await life.produce("t", 0, b"after %d" % offset)
    shared = await SharedPeer(f"127.0.0.1:{broker.server.rpc.port}").open("s", "t")
    life.note()
    got = await shared.pull()
    for some in (got[:5], got[8:10]):
        await shared.ack(*some)
        life.note()
    places = [SentBack("t", 0, offset, 0, TO_DEAD_LETTERS) for offset in range(4)]
    await life.call(RequestCode.SEND_BACK, SendBackRequest("g", places))
    await life.call(RequestCode.DLQ_RESEND, DlqResendRequest("g", offsets=[0], by="ada"))
    await life.call(RequestCode.DLQ_PURGE, DlqPurgeRequest("g", 2))
    await life.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("kept", True))
    await life.produce("gone", 0, b"a", b"b")
    await life.call(RequestCode.TOPIC_DELETE, TopicDeleteRequest("gone", True))
    await member.client.close()
    await shared.close()
    life.note()
    return life


async def test_a_log_that_is_cut_anywhere_makes_the_broker_of_that_moment(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = await brokers.start()
    life = await lived(broker)
    await brokers.stop(broker)
    cuts = record_starts(brokers.directory / "store")
    last = life.known[-1][0]
    assert len(cuts) > 100
    for number, cut in enumerate([cut for cut in cuts if cut >= life.known[0][0]][::4]):
        directory = tmp_path / f"cut-{number}"
        shutil.copytree(brokers.directory, directory)
        cut_log(directory / "store", cut)
        again = await brokers.start(directory)
        await again.server.sessions.opened.wait()
        await again.server.retained.opened.wait()
        found = state_of(again)
        before = [state for end, state in life.known if end <= cut][-1]
        behind = next((state for end, state in life.known if end >= cut), before) if cut < last else before
        # The message that a letter became comes before the note of who sent it, and says that it was sent.
        possible = (before, behind, behind._replace(letters=without_stamps(behind.letters)))
        for name, value in found._asdict().items():
            assert value in {getattr(state, name) for state in possible}, (name, cut)
        await check_served(again, life, cut)
        await brokers.stop(again)
        shutil.rmtree(directory)


def without_stamps(letters: str) -> str:
    return json.dumps(
        {g: {**marks, "stamps": []} for g, marks in json.loads(letters).items()}, sort_keys=True
    )


async def check_served(again: Stack, life: Life, cut: int) -> None:
    """What was acknowledged below the cut is there; what was not answered is sent again, and stored once."""
    offsets = again.server.groups.offsets.table
    topics = json.loads(state_of(again).topics)
    for end, at, offset in life.acknowledged:
        if end <= cut:
            topic, _, group = at.partition("@")
            known = offsets.get(group, topic, 0)
            assert known is not None
            assert known >= offset
    for end, body, runs, base_offset in life.produced:
        if end <= cut and runs[0].topic in topics:
            (result,) = rows(RunResult, (await again.produce_raw(body, runs)).results)
            assert (result.status, result.base_offset) == (Code.OK, base_offset), "it is a repeat"
    left = [produced for produced in life.produced if produced[0] > cut]
    if left and "t" in topics:
        _, body, runs, base_offset = left[0]
        if runs[0].topic == "t":
            for _ in range(2):
                (result,) = rows(RunResult, (await again.produce_raw(body, runs)).results)
                assert (result.status, result.base_offset) == (Code.OK, base_offset)
    if "t" in topics:
        first, end = again.store.bounds("t", 0)
        got: list[bytes] = []
        while len(got) < end - first:
            got += (await again.pull(PullQueue("t", 0, 0, first + len(got))))[1]
        assert len(got) == end - first
        # The letter that was sent again is a message of its own.
        assert Counter(got) - Counter(set(got)) in (Counter(), Counter([b"0"])), "each is stored once"


Lost = Callable[[Path], None]


def _nothing(store: Path) -> None:
    """A clean restart."""


def _configuration(store: Path) -> None:
    shutil.rmtree(store / "config")


def _all_that_is_derived(store: Path) -> None:
    for name in ("config", "tables", "consumequeue", "keyindex", "timer"):
        shutil.rmtree(store / name, ignore_errors=True)


@pytest.mark.parametrize("lose", [_nothing, _configuration, _all_that_is_derived])
async def test_files_may_be_deleted_for_the_log_has_them(brokers: Brokers, lose: Lost) -> None:
    broker = await brokers.start()
    life = await lived(broker)
    await brokers.stop(broker)
    assert sorted(path.name for path in (brokers.directory / "store" / "config").iterdir()) == ["home.json"]
    lose(brokers.directory / "store")
    again = await brokers.start()
    assert state_of(again) == life.known[-1][1]


async def test_a_store_that_had_files_takes_them_into_its_log_and_back(brokers: Brokers) -> None:
    broker = await brokers.start(is_state_in_log=False)
    life = await lived(broker)
    config = brokers.directory / "store" / "config"
    await brokers.stop(broker)
    files = sorted(path.name for path in config.iterdir())
    assert "topic.json" in files
    again = await brokers.start()
    assert state_of(again) == life.known[-1][1]
    assert sorted(path.name for path in (config / "before-log").iterdir()) == files
    await again.create("later", 1)
    member = GroupPeer(again, "member")
    await member.join()
    await member.lease(0)
    assert await member.report(0, 15, wait_for_disk=True) == []
    await member.client.close()
    known = state_of(again)
    await brokers.stop(again)
    back = await brokers.start(is_state_in_log=False)
    assert state_of(back) == known
    assert not (config / "home.json").exists()
    await brokers.stop(back)
    assert state_of(await brokers.start(is_state_in_log=False)) == known


async def test_a_clean_end_loses_no_offset_that_was_reported(brokers: Brokers) -> None:
    broker = await brokers.start()
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % number, None) for number in range(20)))
    member = GroupPeer(broker, "member")
    await member.join()
    await member.lease(0)
    assert await member.report(0, 17) == []
    await member.client.close()
    await brokers.stop(broker)
    _configuration(brokers.directory / "store")
    again = await brokers.start()
    assert again.server.groups.offsets.table.get("g", "t", 0) == 17


async def test_a_topic_is_there_once_the_log_has_it_and_not_before(brokers: Brokers) -> None:
    broker = await brokers.start()
    await broker.create("t", 1)
    known = state_of(broker)
    appends: list[Callable[[], object]] = []
    append = broker.store.writer.put  # type: ignore[attr-defined]
    broker.store.writer.put = lambda pending: appends.append(lambda: append(pending))  # type: ignore[attr-defined]
    creating: Awaitable[None] = asyncio.ensure_future(broker.create("later", 1))
    while not appends:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert state_of(broker) == known, "a topic is there once the log has it"
    broker.store.writer.put = append  # type: ignore[attr-defined]
    for each in appends:
        each()
    await creating
    assert "later" in state_of(broker).topics


@pytest.mark.parametrize("cut_part", range(12))
async def test_a_first_start_may_end_anywhere(brokers: Brokers, tmp_path: Path, cut_part: int) -> None:
    """What is missing in a log was never made; in a directory somebody lost it."""
    broker = await brokers.start()
    await broker.server.sessions.opened.wait()
    await broker.server.retained.opened.wait()
    await brokers.stop(broker)
    cuts = record_starts(brokers.directory / "store")
    for cut in cuts[cut_part::12]:
        directory = tmp_path / f"cut-{cut}"
        shutil.copytree(brokers.directory, directory)
        cut_log(directory / "store", cut)
        again = await brokers.start(directory)
        await again.server.sessions.opened.wait()
        await again.server.retained.opened.wait()
        await again.create("t", 1)
        await brokers.stop(again)


@pytest.mark.parametrize("name", ["topic.json", "subscriptionGroup.json", "consumerOffset.json"])
async def test_a_store_that_lost_a_file_does_not_move_without_it(brokers: Brokers, name: str) -> None:
    broker = await brokers.start(is_state_in_log=False)
    await lived(broker)
    await brokers.stop(broker)
    config = brokers.directory / "store" / "config"
    for path in (config / name, config / f"{name}.bak"):
        path.unlink(missing_ok=True)
    with pytest.raises(StoreFormatError, match=name.replace(".", r"\.")):
        await brokers.start()
    assert not (config / "home.json").exists()


async def test_a_log_without_any_state_is_not_taken_for_a_new_one(brokers: Brokers) -> None:
    broker = await brokers.start(is_state_in_log=False)
    await lived(broker)
    await brokers.stop(broker)
    shutil.rmtree(brokers.directory / "store" / "config")
    with pytest.raises(StoreFormatError, match=r"topic\.json"):
        await brokers.start()
