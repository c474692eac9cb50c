"""SHARE_JOIN, SHARE_LEAVE, SHARE_SETTLE, SHARE_READ, SHARE_LIST: MQTT's shared subscriptions at one broker.

The shell around `broker.mqtt_shares.core.groups`: this broker's part of every `$share/<name>/<filter>`, over
its own log. What must outlive it is in `%SHARE%` and a snapshot (broker.mqtt_shares.journal); messages leave
as answers to held reads (broker.mqtt_shares.feeds, broker.mqtt_shares.serving). Source: mqtt.md, Shared.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import structlog

from broker.kernel.request_family import RequestFamily
from broker.kernel.snapshot_file import SnapshotFile
from broker.mqtt_shares.core.groups import ShareGroup, ShareGroups
from broker.mqtt_shares.feeds import READS_MAX, ShareAnswer, ShareFeed
from broker.mqtt_shares.journal import ShareJournal
from broker.mqtt_shares.serving import ShareServing
from broker.readers.core.table import TopicReader
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, RemoteError, StorageError
from holdmq.mqtt.filters import parse_filter
from holdmq.mqtt.reasons import MqttError
from holdmq.names.topics import TREE_PREFIX, topic_of_filter
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import Empty
from holdmq.wire.reader_headers import MQTT_SHARE
from holdmq.wire.share_headers import (
    JOINS_MAX,
    SETTLED_MAX,
    ShareCredit,
    ShareGroupRow,
    ShareJoin,
    ShareJoined,
    ShareJoinRequest,
    ShareJoinResponse,
    ShareLeave,
    ShareLeaveRequest,
    ShareListRequest,
    ShareListResponse,
    ShareOffline,
    SharePositions,
    ShareReadRequest,
    ShareReadResponse,
    ShareSettleRequest,
)
from storage.api.batches import Batch
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues
from storage.api.retention import LogNeed

CREDIT_MAX_BYTES: Final = 8 << 20
HOLD_MAX_MS: Final = 120_000
TICK_S: Final = 1.0
"""How exactly holds and the ends of sessions that are away are kept."""
RETRY_S: Final = 1.0
"""How long a gateway gets nothing after the log refused what it was to get."""
SNAPSHOT_LOG_BYTES: Final = 16 << 20
"""How far the log may grow past a snapshot in which nothing else changed: what a start looks at again."""
ROWS_MAX: Final = 1_000

log = structlog.get_logger("holdmq.broker")


class ShareMode(RequestFamily):
    """All share groups of one broker. `load` it over an open store, before the first request."""

    def __init__(
        self,
        queues: MessageQueues,
        order: LogOrder,
        topics: TopicTable,
        file: SnapshotFile,
        may_hand_out: Callable[[], bool],
        core: ShareGroups[Connection] | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.core: ShareGroups[Connection] = core or ShareGroups()
        self.journal = ShareJournal(queues, order, file, self._capture, self._unwritten)
        self._feeds: dict[Connection, ShareFeed] = {}
        self.serving = ShareServing(
            self.core, queues, order, topics, self._feeds, self._given, may_hand_out, self._settle
        )
        self._queues = queues
        self._order = order
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._answering: dict[ShareFeed, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._is_settling = False
        self._is_flushing = False
        self._refusals = 0

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.SHARE_JOIN: self.join,
            RequestCode.SHARE_LEAVE: self.leave,
            RequestCode.SHARE_SETTLE: self.settle,
            RequestCode.SHARE_READ: self.read,
            RequestCode.SHARE_LIST: self.list_,
        }

    def load(self, accept_backup: bool = False) -> None:
        """Read how far the groups are (blocking), before the first request. StorageError if damaged."""
        restored = self.journal.load(accept_backup)
        end = self._order.confirmed_position
        for name, group in restored.groups.items():
            if group.position > end:
                log.error("a share group is ahead of the log, and goes on at its end", group=name)
                group.position = end
        self.core.restore(restored, self._clock_ms(), end)
        self._take_groups()

    def start(self) -> None:
        """Begin to save snapshots, and to look at the clock."""
        self.journal.start()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Stop the timers, and finish a snapshot under way (blocking)."""
        if self._timer is not None:
            self._timer.cancel()
        self.journal.close()

    def release_all(self) -> None:
        self._is_draining = self.serving.is_draining = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for feed in self._feeds.values():
            while feed.reads:
                feed.reads.popleft()[0].reply(ShareReadResponse([]))

    def closed(self, connection: Connection) -> None:
        self._feeds.pop(connection, None)
        if not self._is_draining:
            # Nobody is blamed for the broker's own end: a start takes everybody for away.
            self.core.owner_gone(connection, self._clock_ms())
            self._settle()

    def writable(self, connection: Connection) -> None:
        feed = self._feeds.get(connection)
        if feed is not None:
            self._unstall(feed)

    def numbers(self) -> Mapping[str, int | float]:
        core, counts, journal = self.core, self.core.counts, self.journal
        return {
            "share_groups": len(core.groups),
            "share_members": core.members,
            "share_messages_in_hand": core.in_hand,
            "share_is_full": int(core.is_full),
            "share_joins_total": counts.joins,
            "share_joins_refused_total": counts.refused,
            "share_given_total": counts.given,
            "share_given_again_total": counts.given_again,
            "share_settled_total": counts.settled,
            "share_returned_total": counts.returned,
            "share_nobody_total": counts.nobody,
            "share_behind_total": counts.behind,
            "share_passed_total": counts.passed,
            "share_scans_total": self.serving.scans,
            "share_reads_cold_total": self.serving.cold_reads,
            "share_damaged_total": self.serving.damaged,
            "share_records_total": journal.records,
            "share_records_refused_total": journal.refused,
            "share_snapshots_total": journal.snapshots,
            "share_snapshot_failures_total": journal.snapshot_failures,
        }

    def confirmed(self, batches: list[Batch]) -> None:
        """Hand out messages that became visible."""
        if self.core.groups:
            self.serving.confirmed(batches)

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """A topic appeared, was resumed, or is gone: filters mean something else, or messages may go on."""
        if after is None:
            return
        core, serving = self.core, self.serving
        is_tree = after.name.startswith(TREE_PREFIX)
        if is_tree:
            serving.trees = None
        if before is None or before.key_levels != after.key_levels:
            for group in list(core.groups.values()) if is_tree else serving.of_topic(after.name):
                if is_tree or topic_of_filter(group.topic_filter) == after.name:
                    serving.add(group)
        for group in serving.of_topic(after.name):
            serving.serve(group)
        self._settle()

    def needs(self) -> Iterator[LogNeed]:
        """What groups have yet to be done with; on any thread."""
        now_ms, confirmed = self._clock_ms(), self._order.confirmed_position
        for group in list(self.core.groups.values()):
            yield LogNeed(f"share group {group.name}", now_ms, group.floor(confirmed))

    def readers_of(self, topic: str) -> Iterator[TopicReader[Connection]]:
        """The gateways that have members of groups whose filters may pass messages of a topic, by group."""
        for group in self.serving.of_topic(topic):
            found: set[Connection] = set()
            for member in group.members.values():
                feed = None if member.owner is None else self._feeds.get(member.owner)
                if feed is not None and feed.connection not in found:
                    found.add(feed.connection)
                    yield TopicReader(
                        feed.connection, MQTT_SHARE, group.name, (topic,), feed.opened_at, feed.seen_at
                    )
                    if len(found) == len(self._feeds):
                        break

    # Requests

    def join(self, request: Request) -> None:
        """SHARE_JOIN: answered when it is durable where the groups begin, and who holds them."""
        wanted = rows(ShareJoin, request.header(ShareJoinRequest).joins)
        self._check(len(wanted))
        self._feed(request.connection)
        joined: list[ShareJoined] = []
        confirmed, first = self._order.confirmed_position, self._order.first_position
        for row in wanted:
            fault = _fault(row)
            if fault:
                joined.append(ShareJoined(Code.GROUP_INVALID, fault))
                continue
            limit = self._order.epoch_limit(row.log_epoch)
            end = confirmed if limit is None else min(limit, confirmed)
            position = confirmed if row.position < 0 else max(first, min(row.position, end))
            joined.append(ShareJoined(*self.core.join(request.connection, row, position, confirmed)))
        self._take_groups()
        self._gather()
        self.journal.write(partial(self._answer, request, ShareJoinResponse(joined)))
        self._settle()

    def leave(self, request: Request) -> None:
        """SHARE_LEAVE: answered when it is durable."""
        wanted = rows(ShareLeave, request.header(ShareLeaveRequest).leaves)
        self._check(len(wanted))
        for row in wanted:
            self.core.leave(row.name, row.client_id, row.keep_uid)
        self._gather()
        self.journal.write(partial(self._answer, request, Empty()))
        self._settle()

    def _answer(self, request: Request, answer: Header, error: StorageError | None) -> None:
        if error is None:
            request.reply(answer)
        else:
            self._refusals += 1
            request.refuse(error)

    def settle(self, request: Request) -> None:
        """SHARE_SETTLE: answered when what is done is durable."""
        header = request.header(ShareSettleRequest)
        done, back = rows(SharePositions, header.done), rows(SharePositions, header.back)
        if sum(len(row.positions) for row in (*done, *back)) > SETTLED_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{SETTLED_MAX} positions in one SHARE_SETTLE")
        owner, core = request.connection, self.core
        for row in done:
            core.done(owner, row.member_id, row.positions)
        for row in back:
            core.back(owner, row.member_id, row.positions)
        now_ms = self._clock_ms()
        for gone in rows(ShareOffline, header.offline):
            core.offline(owner, gone.member_id, gone.expiry_s, now_ms, gone.begun)
        for credit in rows(ShareCredit, header.credits):
            core.credit(owner, credit.member_id, credit.messages)
        self._settle()
        if done:
            self.journal.write(partial(self._answer, request, Empty()))
        else:
            request.reply(Empty())

    def read(self, request: Request) -> None:
        """SHARE_READ: answered when there is something for a member of this connection, or its hold ends."""
        header = request.header(ShareReadRequest)
        feed = self._feed(request.connection)
        if len(feed.reads) >= READS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"{READS_MAX} SHARE_READs on one connection")
        if self._is_draining:
            raise RemoteError(Code.SHUTTING_DOWN, "the broker is draining")
        credit = max(1, min(header.credit_bytes, CREDIT_MAX_BYTES))
        feed.seen_at = self._loop.time()
        deadline = feed.seen_at + max(0, min(header.hold_ms, HOLD_MAX_MS)) / 1e3
        feed.reads.append((request, credit, deadline))
        self._unstall(feed)

    def _feed(self, connection: Connection) -> ShareFeed:
        feed = self._feeds.get(connection)
        if feed is None:
            feed = self._feeds[connection] = ShareFeed(connection, self._loop.time())
        return feed

    def list_(self, request: Request) -> None:
        """Answer SHARE_LIST with the groups of this broker."""
        header = request.header(ShareListRequest)
        count = max(1, min(header.max_count, ROWS_MAX))
        names = (n for n in self.core.groups if n.startswith(header.prefix) and n > header.after)
        found = heapq.nsmallest(count + 1, names)
        shown = [self._row(self.core.groups[name]) for name in found[:count]]
        request.reply(ShareListResponse(shown, shown[-1].name if len(found) > count else None))

    def _row(self, group: ShareGroup[Connection]) -> ShareGroupRow:
        behind = 0 if group.is_live else self._order.confirmed_position - group.position
        sessions, online = len(group.members), group.online
        return ShareGroupRow(group.name, sessions, online, len(group.out), len(group.waits), max(0, behind))

    def _check(self, count: int) -> None:
        if self._is_draining:
            raise RemoteError(Code.SHUTTING_DOWN, "the broker is draining")
        if not 0 < count <= JOINS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {JOINS_MAX} rows in one request")

    # What steps lead to

    def _take_groups(self) -> None:
        core = self.core
        while core.ended or core.made:
            for group in core.made:
                if core.groups.get(group.name) is group:
                    self.serving.add(group)
            core.made = []
            for group in core.ended:
                self.serving.remove(group)
            core.ended = []

    def _settle(self) -> None:
        """Serve who was woken, and write the news down."""
        if self._is_settling:
            return
        self._is_settling = True
        core = self.core
        try:
            self._take_groups()
            while core.woken:
                woken, core.woken = core.woken, {}
                for group in woken.values():
                    self.serving.serve(group)
            while core.crowded and not core.is_full:
                self.serving.serve(core.crowded.pop(next(iter(core.crowded))))
        finally:
            self._is_settling = False
        if core.news:
            self._gather()
            self.journal.write()

    def _gather(self) -> None:
        """Give the core's news to the journal."""
        self.journal.news.extend(self.core.news)

    def _given(self, feed: ShareFeed) -> None:
        self._answering[feed] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what was put together in this turn."""
        self._is_flushing = False
        answering, self._answering = self._answering, {}
        for feed in answering:
            answer = feed.take_answer()
            if answer is None:
                continue
            if not answer.has_taken:
                answer.send()
                continue
            feed.is_waiting = True
            self._gather()
            self.journal.write(partial(self._written, feed, answer))
        for feed in answering:
            self._unstall(feed)

    def _written(self, feed: ShareFeed, answer: ShareAnswer, error: StorageError | None) -> None:
        """The log has who QoS 2 messages belong to, or refused that."""
        if error is None:
            feed.is_waiting = False
            answer.send()
            self._unstall(feed)
            return
        self._refusals += 1
        for share in answer.shares.values():
            if share.member.owner is feed.connection:
                self.core.unsent(share.member, share.positions)
        answer.request.reply(ShareReadResponse([]))
        self._settle()
        self._loop.call_later(RETRY_S, self._try_again, feed)

    def _try_again(self, feed: ShareFeed) -> None:
        feed.is_waiting = False
        self._unstall(feed)

    def _unstall(self, feed: ShareFeed) -> None:
        """A feed may take something (again)."""
        if feed.stalled and feed.can_take:
            stalled, feed.stalled = feed.stalled, {}
            for group in stalled.values():
                self.serving.serve(group)
            self._settle()

    # Snapshots and the clock

    def _capture(self) -> list[list[object]]:
        return list(self.core.entries(self._order.confirmed_position))

    def _unwritten(self) -> int:
        if not self.core.groups:
            return self._refusals
        grown = self._order.confirmed_position // SNAPSHOT_LOG_BYTES
        return self._refusals + self.serving.scans + self.core.counts.given + grown

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now = self._loop.time()
        for feed in self._feeds.values():
            for request in feed.held_until(now):
                request.reply(ShareReadResponse([]))
        now_ms = self._clock_ms()
        deadline = self.core.next_deadline()
        if deadline is not None and deadline * 1e3 <= now_ms:
            self.core.expire(now_ms)
            self._settle()


def _fault(row: ShareJoin) -> str:
    """Why a session cannot be a member, "" = it can."""
    try:
        if not parse_filter(row.name).is_shared:
            return f"{row.name[:64]!r} is no shared subscription"
    except MqttError as error:
        return str(error)
    if row.qos not in (0, 1, 2) or not 0 <= row.expiry_s <= 0xFFFFFFFF or row.uid <= 0:
        return "its QoS, expiry or number is out of range"
    return ""
