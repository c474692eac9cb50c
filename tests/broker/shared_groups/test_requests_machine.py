"""Any order of steps of a shared group over a real broker and store, crashes of the broker included.

A crash is a copy of the store's directory in the midst of it all, the log last: what `kill -9` would leave.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from broker_stack import Stack, start_broker, stop_broker
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from shared_peer import Got, SharedPeer

from holdmq.record.batch import split_records
from holdmq.record.codec import decode_record
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.topic_headers import TopicGrowRequest

T = TypeVar("T")
Place = tuple[int, int]
RETRY_MAX = 2
LAPSE_MS = 150
CHECKPOINTS = ("checkpoint.json", "checkpoint.json.bak")


def copy_as_it_is(before: Path, after: Path) -> None:
    """Copy the directory of a broker that runs. Raises FileNotFoundError or shutil.Error."""
    log = before / "store" / "commitlog"
    # A checkpoint says what queue files have: one that is newer than their copies would lie.
    checkpoints = {
        name: (log.parent / name).read_bytes() for name in os.listdir(log.parent) if name in CHECKPOINTS
    }
    shutil.copytree(before, after, ignore=lambda path, names: names if Path(path) == log else [])
    for segment in sorted(log.iterdir()):
        shutil.copy(segment, after / "store" / "commitlog" / segment.name)
    for name, content in checkpoints.items():
        (after / "store" / name).write_bytes(content)


class Flight(NamedTuple):
    member: SharedPeer
    got: Got


class BrokerMachine(RuleBasedStateMachine):
    """Members that are quick, slow, leave or die; queues that are added; a broker that is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="shared-machine-"))
        self.loop = asyncio.new_event_loop()
        self.broker: Stack = self.run(start_broker(self.home / "0"))
        self.lives = 0
        self.queues = 2
        self.produced = 0
        self.members: list[SharedPeer] = []
        self.flights: dict[Place, Flight] = {}
        self.places: set[Place] = set()
        self.acknowledged: set[Place] = set()
        self.low: dict[Place, int] = {}
        self.high: dict[Place, int] = {}
        self.given_up: set[Place] = set()
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 120))

    async def begin(self) -> None:
        await self.broker.create("t", self.queues)
        await self.broker.client.call(
            RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=RETRY_MAX)
        )
        member = await self.joined()
        await member.leave()
        self.members.remove(member)
        await member.close()

    async def joined(self) -> SharedPeer:
        address = f"127.0.0.1:{self.broker.server.rpc.port}"
        member = SharedPeer(address, f"member-{self.lives}-{len(self.members)}")
        self.members.append(member)
        # Nothing lapses by itself, however long the machine takes for a step.
        return await member.open("g", "t", invisible_ms=3_600_000)

    # Steps

    @rule(queue_id=st.integers(0, 3), count=st.integers(1, 6))
    def produce(self, queue_id: int, count: int) -> None:
        self.run(self.produced_now(queue_id % self.queues, count))

    async def produced_now(self, queue_id: int, count: int) -> None:
        self.produced += 1
        bodies = [(b"%d-%d" % (self.produced, i), None) for i in range(count)]
        result = await self.broker.produce("t", queue_id, *bodies, producer_id=self.produced)
        assert result.status == 0
        self.places.update((queue_id, result.base_offset + i) for i in range(count))

    @precondition(lambda self: self.queues < 4)
    @rule()
    def grow(self) -> None:
        self.queues += 1
        self.run(self.broker.client.call(RequestCode.TOPIC_GROW, TopicGrowRequest("t", self.queues)))

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self) -> None:
        self.run(self.joined())

    @precondition(lambda self: self.members)
    @rule(data=st.data(), messages_max=st.integers(1, 8))
    def pull(self, data: Any, messages_max: int) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.note(member, self.run(member.pull(messages_max)))

    def note(self, member: SharedPeer, messages: list[Got]) -> None:
        for got in messages:
            place = got.queue_id, got.offset
            assert place in self.places
            assert place not in self.flights, "in flight at two members"
            assert place not in self.acknowledged, "acknowledged, and delivered again"
            assert self.low.get(place, 0) <= got.attempts <= self.high.get(place, 0)
            self.low[place] = self.high[place] = got.attempts
            self.flights[place] = Flight(member, got)

    def failed(self, place: Place) -> None:
        del self.flights[place]
        if self.high[place] >= RETRY_MAX:
            self.given_up.add(place)
        else:
            self.low[place] += 1
            self.high[place] += 1

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), count=st.integers(1, 5))
    def ack(self, data: Any, count: int) -> None:
        first = self.flights[data.draw(st.sampled_from(sorted(self.flights)))].member
        mine = [place for place, flight in self.flights.items() if flight.member is first][:count]
        assert self.run(first.ack(*(self.flights[place].got for place in mine))) == []
        for place in mine:
            del self.flights[place]
            self.acknowledged.add(place)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def nack(self, data: Any) -> None:
        place = data.draw(st.sampled_from(sorted(self.flights)))
        flight = self.flights[place]
        assert self.run(flight.member.nack(flight.got)) == []
        self.failed(place)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def lapse(self, data: Any) -> None:
        """A member is too slow with one message."""
        place = data.draw(st.sampled_from(sorted(self.flights)))
        self.run(self.lapsed(self.flights[place]))
        self.failed(place)

    async def lapsed(self, flight: Flight) -> None:
        counts = self.broker.server.shared.core.counts
        before = counts.expired
        assert await flight.member.extend(flight.got, invisible_ms=LAPSE_MS) == []
        while counts.expired == before:
            await asyncio.sleep(0.01)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), dies=st.booleans())
    def leave(self, data: Any, dies: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        self.run(self.left(member, dies))
        for place in [place for place, flight in self.flights.items() if flight.member is member]:
            if dies:
                self.failed(place)
            else:
                del self.flights[place]

    async def left(self, member: SharedPeer, dies: bool) -> None:
        if not dies:
            await member.leave()
        await member.close()
        while member.member_id in self.broker.server.shared.core.members:
            await asyncio.sleep(0.005)

    @rule()
    def save(self) -> None:
        self.run(self.saved())

    async def saved(self) -> None:
        journal = self.broker.server.shared.journal
        before = journal.snapshots
        for _ in range(100):
            journal.save_snapshot()
            has_news = journal._snapshot is not None or journal._saving is not None
            if journal.snapshots > before or not has_news:
                return
            await asyncio.sleep(0.01)

    @rule(is_killed=st.booleans())
    def restart(self, is_killed: bool) -> None:
        self.run(self.restarted(is_killed))
        self.flights.clear()
        if is_killed:
            # What was not in the log yet is forgotten; never is it more than it was.
            self.low = dict.fromkeys(self.low, 0)

    async def restarted(self, is_killed: bool) -> None:
        before = self.home / str(self.lives)
        self.lives += 1
        after = self.home / str(self.lives)
        while is_killed:
            with suppress(FileNotFoundError, shutil.Error):
                copy_as_it_is(before, after)
                break
            # A file was written anew, and its name went, between a look and the other.
            shutil.rmtree(after, ignore_errors=True)
        # Nobody is blamed for the broker's end: its members are there until then.
        await stop_broker(self.broker)
        for member in self.members:
            await member.close()
        self.members.clear()
        if not is_killed:
            before.rename(after)
        self.broker = await start_broker(after)

    # The end

    def teardown(self) -> None:
        try:
            self.run(self.drained())
        finally:
            self.run(self.ended())
            self.loop.close()
            shutil.rmtree(self.home)

    async def drained(self) -> None:
        """Nothing is lost, and nothing is stuck: all that is left comes, or is with the dead letters."""
        for member in [*self.members]:
            held = [place for place, flight in self.flights.items() if flight.member is member]
            if held:
                await member.ack(*(self.flights[place].got for place in held))
            for place in held:
                del self.flights[place]
                self.acknowledged.add(place)
        member = await self.joined()
        while True:
            while got := await member.pull(100):
                self.note(member, got)
                assert await member.ack(*got) == []
                for message in got:
                    del self.flights[message.queue_id, message.offset]
                    self.acknowledged.add((message.queue_id, message.offset))
            state = await member.state("g")
            rows = [row for (topic, _), row in state.items() if topic == "t"]
            if all(row.floor == row.end_offset for row in rows):
                break
            await asyncio.sleep(0.01)
        dead = self.dead_letters()
        assert len(dead) == len(set(dead)), "a dead letter is there twice"
        assert self.given_up >= set(dead)
        assert self.places == self.acknowledged | set(dead)

    def dead_letters(self) -> list[Place]:
        store = self.broker.store
        first, end = store.bounds("%DLQ%g", 0)
        found: list[Place] = []
        while first < end:
            read = store.read_queue_cold("%DLQ%g", 0, 0, first, 1 << 20, 10_000)
            for part in read.parts:
                at = 0
                for size in split_records(part).tolist():
                    properties = decode_record(part, at).properties
                    origin = properties.split(b"ORIGIN\x01")[1].split(b"\x02")[0].decode()
                    _, queue_id, offset, attempt = origin.rsplit("/", 3)
                    assert int(attempt) == RETRY_MAX + 1
                    found.append((int(queue_id), int(offset)))
                    at += size
            first = read.next_offset
        return found

    async def ended(self) -> None:
        for member in self.members:
            await member.close()
        await stop_broker(self.broker)


TestBrokerMachine = pytest.mark.timeout(900)(BrokerMachine.TestCase)
TestBrokerMachine.settings = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
