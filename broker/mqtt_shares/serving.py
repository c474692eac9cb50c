"""Hands out what share groups have: reads the log for them, from memory or on the reader pool.

A group whose whole log was looked at is *live*: only a batch that may concern it, by topic and tag hash, is
looked at, and puts its position there. So a group that nobody publishes to costs nothing, and one without
members on line stands where the first message for it lies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import structlog

from broker.kernel.core.filters import FilterSet
from broker.kernel.log_reads import LogRead, read_on, record_at
from broker.mqtt_shares.core.groups import ShareGroup, ShareGroups
from broker.mqtt_shares.feeds import ShareFeed
from broker.reading.core.readers import EVERYWHERE, NOWHERE, TAG_TESTS_MAX, Picked, ReadableRange, scan
from broker.topics.core.table import TopicTable
from holdmq.errors import RecordError
from holdmq.mqtt.filters import matches
from holdmq.names.tenants import SEPARATOR
from holdmq.names.topics import TREE_PREFIX, filter_terms, join_mqtt_topic, topic_of_filter
from holdmq.record.codec import Record, decode_record
from holdmq.rpc.connection import Connection
from storage.api.batches import Batch
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues

TAIL_SCAN_BYTES: Final = 4 << 20
"""Log looked at in memory in one turn for one group, as for readers."""
PICK_BYTES_PER_MESSAGE: Final = 512
PICK_MIN_BYTES: Final = 4 << 10
PICK_MAX_BYTES: Final = 64 << 10
"""Records looked at for the room that members have: what is too much is looked at again."""
CHUNK_MIN_BYTES: Final = 64 << 10
CHUNK_MAX_BYTES: Final = 1 << 20
"""One read from disk: twice as much as the last, while nothing is found."""
WAITING_READ_MAX: Final = 256
"""Messages that come again and are looked at at a time: some milliseconds of a reader thread."""
ROOM_ENOUGH: Final = WAITING_READ_MAX
"""More than is handed out at a time: so many members' room is counted, of however many."""
RETRY_S: Final = 1.0
"""When a group whose part of the log could not be read looks again."""

LOOK_AGAIN_S: Final = 0.5
"""How soon a group is looked at again while another broker may have the shard: well within a lease."""

log = structlog.get_logger("holdmq.broker")


class ShareServing:
    """`feeds` are the gateways by connection. `given(feed)` is called when there is an answer to send,
    `settle` after a read from disk. `may_hand_out` is False while another broker may have the shard.
    """

    def __init__(
        self,
        core: ShareGroups[Connection],
        queues: MessageQueues,
        order: LogOrder,
        topics: TopicTable,
        feeds: dict[Connection, ShareFeed],
        given: Callable[[ShareFeed], None],
        may_hand_out: Callable[[], bool],
        settle: Callable[[], None],
    ) -> None:
        self.scans = 0
        self.cold_reads = 0
        self.damaged = 0
        self.is_draining = False
        self.trees: list[tuple[str, int]] | None = None
        """Topics of gateways' routing rules, with `key_levels`; None = they must be looked for."""
        self._core = core
        self._queues = queues
        self._order = order
        self._topics = topics
        self._feeds = feeds
        self._given = given
        self._may_hand_out = may_hand_out
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._by_topic: dict[str, dict[str, ShareGroup[Connection]]] = {}

    # Filters

    def add(self, group: ShareGroup[Connection]) -> None:
        """A group came, or what its filter means changed: look for its messages."""
        self.remove(group)
        filters = group.filters = FilterSet()
        filters.is_hidden = self._topics.is_table
        topic = topic_of_filter(group.topic_filter)
        levels = 1 if topic is None else self._topics.key_levels(topic)
        terms = filter_terms(group.topic_filter, levels, self._find_trees())
        filters.change(terms, ())
        group.topics = {term.topic for term in terms}
        for name in group.topics:
            self._by_topic.setdefault(name, {})[group.name] = group

    def _find_trees(self) -> list[tuple[str, int]]:
        if self.trees is None:
            named = [t for t in self._topics.all() if t.name.startswith(TREE_PREFIX)]
            self.trees = [(topic.name, topic.key_levels) for topic in named]
        return self.trees

    def remove(self, group: ShareGroup[Connection]) -> None:
        """A group is gone."""
        for name in group.topics:
            groups = self._by_topic.get(name, {})
            if groups.get(group.name) is group:
                del groups[group.name]
                if not groups:
                    del self._by_topic[name]

    def of_topic(self, topic: str) -> list[ShareGroup[Connection]]:
        """The groups that may want messages of a topic."""
        tenant, separator, _ = topic.partition(SEPARATOR)
        # As in FilterSet.of_topic: `acme%` stands for every topic of a tenant, and "" for none of them.
        own, every = self._by_topic.get(topic), self._by_topic.get(tenant + separator if separator else "")
        if every is None or (separator and not tenant):
            return [] if own is None else list(own.values())
        return list(every.values() if own is None else (own | every).values())

    # Serving

    def confirmed(self, batches: list[Batch]) -> None:
        """Batches became visible: groups that they may concern look at them."""
        for batch in batches:
            if batch.position < 0:
                continue
            for run in batch.runs:
                for group in self.of_topic(run.topic):
                    if group.is_live and group.filters.may_pass_any(run.topic, run.hashes):
                        group.is_live = False
                        group.position = max(group.position, batch.position)
                        self.serve(group)

    def serve(self, group: ShareGroup[Connection]) -> None:
        """Hand out what there is while members have room."""
        core, order = self._core, self._order
        if group.is_reading or self.is_draining or core.groups.get(group.name) is not group:
            return
        if not self._may_hand_out():
            group.is_reading = True  # until it is looked at again
            self._loop.call_later(LOOK_AGAIN_S, self._look_again, group)
            return
        if group.waits and (room := self._room(group)) and not self._serve_waiting(group, room):
            return
        looked = 0
        while True:
            if group.position >= order.confirmed_position:
                group.is_live = True
                group.settled.clear()
                return
            room = self._room_ahead(group)
            if not room:
                return
            if group.position < order.first_position:
                group.position = order.first_position
            batches = order.tail(group.position, TAIL_SCAN_BYTES)
            if batches is None:
                self._load(group)
                return
            before = group.position
            picked = self._give(group, batches, room)
            if picked is None:
                return
            looked += group.position - before
            if picked.is_cut or looked >= TAIL_SCAN_BYTES or group.position == before:
                # Others get their turn before it goes on.
                self._loop.call_soon(self._serve_on, group)
                return

    def _look_again(self, group: ShareGroup[Connection]) -> None:
        group.is_reading = False
        self._serve_on(group)

    def _serve_on(self, group: ShareGroup[Connection]) -> None:
        self.serve(group)
        self._settle()

    def _room(self, group: ShareGroup[Connection]) -> int:
        """How many messages its members have room for, about; if none, feeds that can take none know."""
        room = 0
        for member in group.ready:
            if room >= ROOM_ENOUGH:
                break
            feed = None if member.owner is None or member.credit <= 0 else self._feeds.get(member.owner)
            if feed is None:
                continue
            if feed.can_take:
                room += member.credit
            else:
                feed.stalled[group.name] = group
        return room

    def _room_ahead(self, group: ShareGroup[Connection]) -> int:
        """The same for messages that are not in hand yet: none at the bound of these."""
        if self._core.is_full:
            self._core.crowded[group.name] = group
            return 0
        return self._room(group)

    def _can_take(self, connection: Connection) -> bool:
        feed = self._feeds.get(connection)
        return feed is not None and feed.can_take

    def _give(self, group: ShareGroup[Connection], batches: Any, room: int) -> Picked | None:
        """Look at batches from the group's position on; None = a message has to wait where it is."""
        self.scans += 1
        credit = min(PICK_MAX_BYTES, max(PICK_MIN_BYTES, room * PICK_BYTES_PER_MESSAGE))
        picked = scan(group.filters, batches, group.position, credit, self._window_of, TAG_TESTS_MAX)
        for part in picked.parts:
            at = 0
            while at < len(part):
                size = int.from_bytes(part[at : at + 4], "big")
                if not self._offer(group, part[at : at + size]):
                    return None
                at += size
        group.position = picked.position
        return picked

    def _offer(self, group: ShareGroup[Connection], raw: memoryview) -> bool:
        """Hand out a record that was found, if the filter wants it; False = it has to wait where it is."""
        record = self._wanted(group, raw)
        if record is None:
            return True
        position = record.physical_offset
        if self._is_paused(record):
            group.position = position
            return False
        if group.is_known(position):
            return True
        if not record.qos and position < group.qos0_from:
            self._core.counts.passed += 1
            return True
        if self._hand_out(group, record, raw):
            return True
        group.position = position
        return False

    def _hand_out(self, group: ShareGroup[Connection], record: Record, raw: memoryview) -> bool:
        position = record.physical_offset
        member = self._core.give(group, position, record.qos, self._can_take)
        if member is None:
            self._room(group)  # who could not take it is told that something waits
            return False
        assert member.owner is not None
        feed = self._feeds[member.owner]
        feed.open_answer().add(member, position, raw, is_taken=member.out.get(position, False))
        self._given(feed)
        return True

    def _wanted(self, group: ShareGroup[Connection], raw: memoryview) -> Record | None:
        """The record, if it is a message that the group's filter matches."""
        try:
            record = decode_record(raw)
            tag = record.tag
            mqtt_topic = join_mqtt_topic(record.topic.decode(), None if tag is None else tag.decode())
        except (RecordError, UnicodeError) as error:
            self.damaged += 1
            log.error(
                "a record for a share group is damaged, and passed by",
                group=group.name,
                position=group.position,
                reason=str(error),
            )
            return None
        return record if mqtt_topic is not None and matches(group.topic_filter, mqtt_topic) else None

    def _window_of(self, name: str) -> ReadableRange:
        topic = self._topics.get(name)
        return EVERYWHERE if topic is not None and topic.is_readable else NOWHERE

    def _is_paused(self, record: Record) -> bool:
        topic = self._topics.get(record.topic.decode())
        return topic is not None and topic.is_paused and record.physical_offset >= topic.paused_at

    # From disk

    def _load(self, group: ShareGroup[Connection]) -> None:
        """Read on from the group's position on the reader pool."""
        self.cold_reads += 1
        chunk = group.chunk_bytes = min(CHUNK_MAX_BYTES, max(CHUNK_MIN_BYTES, 2 * group.chunk_bytes))
        position = group.position

        def loaded(found: LogRead) -> None:
            given = self._core.counts.given
            while group.position < found.next_position:
                room = self._room_ahead(group)
                if not room:
                    break
                before = group.position
                if not found.batches or self._give(group, found.batches, room) is None:
                    break
                if group.position == before:
                    break
            is_through = not found.batches or group.position >= found.batches[-1].end
            if is_through:
                group.position = max(group.position, found.next_position)
            if self._core.counts.given != given:
                group.chunk_bytes = 0
            if is_through:
                self.serve(group)

        self._run(group, lambda: read_on(self._order, position, chunk, "a share group"), loaded)

    def _run(
        self, group: ShareGroup[Connection], read: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        group.is_reading = True
        future = self._loop.run_in_executor(self._queues.reader_pool, read)

        def finished(result: asyncio.Future[Any]) -> None:
            group.is_reading = False
            if result.cancelled():
                return
            error = result.exception()
            if error is not None:
                log.error("reading for a share group failed", group=group.name, reason=str(error))
                self._loop.call_later(RETRY_S, self._serve_on, group)
                return
            if self._core.groups.get(group.name) is group:
                done(result.result())
                self._settle()

        future.add_done_callback(finished)

    # What comes again

    def _serve_waiting(self, group: ShareGroup[Connection], room: int) -> bool:
        """Hand out what waits; False = it goes on by itself, after a read from disk or others' turn."""
        positions = self._core.next_waiting(group, min(room, WAITING_READ_MAX))
        cold: list[int] = []
        for position in positions:
            if position < self._order.first_position:
                self._core.drop(group, position, is_behind=True)
                continue
            batches = self._order.tail(position, 1)
            if batches is None:
                cold.append(position)
            elif not self._give_again(group, position, _record_in(batches, position)):
                return True
        if not cold:
            if len(positions) < WAITING_READ_MAX or not group.waits:
                return True
            self._loop.call_soon(self._serve_on, group)
            return False

        def loaded(found: list[tuple[int, memoryview | None]]) -> None:
            for position, raw in found:
                if position in group.waits and not self._give_again(group, position, raw):
                    return
            self.serve(group)

        self.cold_reads += 1
        self._run(group, lambda: [(p, record_at(self._order, p)) for p in cold], loaded)
        return False

    def _give_again(self, group: ShareGroup[Connection], position: int, raw: memoryview | None) -> bool:
        """Hand out a message that waits; False = nobody has room, or its topic is paused."""
        record = None if raw is None else self._wanted(group, raw)
        if record is None or raw is None or self._window_of(record.topic.decode()) is NOWHERE:
            self._core.drop(group, position, is_behind=raw is None)
            return True
        return not self._is_paused(record) and self._hand_out(group, record, raw)


def _record_in(batches: Any, position: int) -> memoryview | None:
    """The record at a log position, if one of the batches has one there."""
    for batch in batches:
        if batch.position <= position < batch.end:
            at = position - batch.position
            index = int(np.searchsorted(batch.starts, at))
            if index < len(batch.sizes) and int(batch.starts[index]) == at:
                found: memoryview = batch.records[at : at + int(batch.sizes[index])]
                return found
    return None
