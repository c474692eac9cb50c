"""Offsets of consumer groups: reports, questions, resets and clones.

A report counts only under the lease of its queue, and only raises an offset. A reset alone lowers one:
it ends the queue's lease, so that nothing of before it can be reported after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

import structlog

from broker.groups.core.leases import LeaseKey, Leases
from broker.groups.core.offsets import OffsetTable, Reported, clamp
from broker.groups.core.settings import GroupSetting, check_name
from broker.groups.offset_file import OffsetFile
from broker.groups.settings import GroupSettings
from broker.kernel.events import Event
from broker.kernel.offset_times import Times, look_up_times
from broker.kernel.request_family import RequestFamily
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.record.origin import retry_topic
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.offset_headers import (
    FROM_MEMORY,
    FROM_STORE,
    MEMORY_THEN_STORE,
    TO_EARLIEST,
    TO_LATEST,
    TO_OFFSET,
    TO_TIME,
    OffsetChange,
    OffsetChangeResponse,
    OffsetCloneRequest,
    OffsetGetRequest,
    OffsetGetResponse,
    OffsetReport,
    OffsetReportRequest,
    OffsetReportResponse,
    OffsetResetRequest,
    OffsetResult,
    OffsetRow,
)
from storage.api.queues import MessageQueues

ROWS_MAX: Final = 16_384
"""Queues of one request or answer: what a PULL may name, too."""

T = TypeVar("T")
OffsetAt = Callable[[str, int, int], int]
"""Blocking: the first offset of (topic, queue id) stored at a time in ms or later; the end if none was."""

log = structlog.get_logger("holdmq.broker")


class SharedProgress(Protocol):
    """How far shared groups are: a queue's offset says where they began (broker.shared_groups.state)."""

    def topics(self, group: str) -> set[str]:
        """Topics that a shared group reads, its retries among them."""

    def queues(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        """By queue id: the offset below which all is done, and messages done from there on."""


class Consumers(Protocol):
    """What offsets need to know of groups."""

    def require(self, name: str) -> GroupSetting:
        """The group; raises GROUP_UNKNOWN."""

    def subscribed_topics(self, name: str) -> set[str]:
        """Topics that a group's members subscribe to."""

    def check_unused(self, name: str) -> None:
        """Raise GROUP_IN_USE if a group has members."""

    def end_leases(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """End the leases on these queues, and tell who had them."""


class OffsetRequests(RequestFamily):
    """Handles OFFSET_REPORT, OFFSET_GET, OFFSET_RESET and OFFSET_CLONE for one broker.

    `is_sync`: reports that are answered are answered from disk. `reset_done(group, topics)` happens when a
    group's offsets in these topics were set anew.
    """

    def __init__(
        self,
        store: MessageQueues,
        topics: TopicTable,
        table: OffsetTable,
        file: OffsetFile,
        settings: GroupSettings,
        leases: Leases[Connection],
        offset_at: OffsetAt,
        is_sync: bool,
        *,
        consumers: Consumers,
        shared: SharedProgress,
    ) -> None:
        self.table = table
        self.file = file
        self.reports = self.refused = self.behind = self.skipped = self.resets = 0
        self._store = store
        self._topics = topics
        self._settings = settings
        self._leases = leases
        self._offset_at = offset_at
        self.is_sync = is_sync
        self._loop = asyncio.get_running_loop()
        self._consumers = consumers
        self._shared = shared
        self.reset_done: Event[[str, set[str]]] = Event()

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.OFFSET_REPORT: self.report,
            RequestCode.OFFSET_GET: self.get,
            RequestCode.OFFSET_RESET: self.reset,
            RequestCode.OFFSET_CLONE: self.clone,
        }

    def numbers(self) -> Mapping[str, int]:
        return {
            "offsets": self.table.size,
            "offset_reports_total": self.reports,
            "offset_reports_refused_total": self.refused,
            "offset_resets_total": self.resets,
            "offsets_behind_total": self.behind,
            "offsets_behind_messages_total": self.skipped,
            "offsets_moved_at_start_total": self.file.moved,
            "offset_saves_total": self.file.saves,
            "offset_save_failures_total": self.file.failures,
            "offset_waiters": self.file.waiting,
        }

    # Reports

    def report(self, request: Request) -> None:
        """Answer OFFSET_REPORT: take the offsets that a member confirms."""
        header = request.header(OffsetReportRequest)
        reports = _bounded(rows(OffsetReport, header.offsets))
        group = self._consumers.require(header.group)
        if header.wait_for_disk:
            _check_kept(group, (r.topic for r in reports))
        if header.only_first:
            # Two members that start at the same time may take different places for the group's first.
            reports = [r for r in reports if self.table.get(header.group, r.topic, r.queue_id) < 0]
        refused = self.apply(request.connection, header.group, reports)
        answer = OffsetReportResponse(refused)
        if (header.wait_for_disk or self.is_sync) and not request.command.is_one_way:
            self.reply_durable(request, answer)
        else:
            request.reply(answer)

    def apply(
        self, connection: Connection, group: str, reports: Iterable[OffsetReport]
    ) -> list[OffsetResult]:
        """Take what a connection reports of a group's progress; returns what was refused."""
        refused: list[OffsetResult] = []
        first: dict[str, dict[int, int]] = {}
        now = self._loop.time()
        for report in reports:
            if report.offset < 0:
                continue
            self.reports += 1
            code = self._refusal(connection, group, report, now)
            if code is Code.OK:
                outcome = self.table.report(group, report.topic, report.queue_id, report.offset)
                if outcome is Reported.FIRST:
                    first.setdefault(report.topic, {})[report.queue_id] = report.offset
                elif outcome is Reported.FULL:
                    code = Code.LIMIT_EXCEEDED
            if code is not Code.OK:
                self.refused += 1
                refused.append(OffsetResult(report.topic, report.queue_id, code))
        for topic, queues in first.items():
            bounds = {q: self._store.bounds(topic, q) for q in queues}
            log.info(
                "a group has its first offsets in a topic",
                group=group,
                topic=topic,
                offsets=queues,
                bounds=bounds,
                peer=connection.address,
            )
        return refused

    def _refusal(self, connection: Connection, group: str, report: OffsetReport, now: float) -> Code:
        topic = self._topics.get(report.topic)
        if topic is None or not 0 <= report.queue_id < topic.read_queues:
            return Code.QUEUE_UNKNOWN
        key = LeaseKey(group, report.topic, report.queue_id)
        if report.generation:
            if not self._leases.is_valid(connection, key, report.generation, now):
                return Code.GROUP_FENCED
        elif self._leases.holder(key, now) is not None:
            return Code.GROUP_FENCED
        # What was learnt in an older epoch may have been taken back since; a pull tells.
        is_old = 0 < report.log_epoch < self._store.epoch
        if is_old or report.offset > self._store.bounds(report.topic, report.queue_id)[1]:
            return Code.OFFSET_AHEAD
        return Code.OK

    def reply_durable(self, request: Request, answer: Header) -> None:
        """Answer when consumerOffset.json has everything of this moment. Raises BUSY."""

        def saved(error: HoldMQError | None) -> None:
            if error is None:
                request.reply(answer)
            else:
                request.refuse(error)

        self.file.wait(saved)

    # Questions

    def current(self, group: str, topic: str, queue_id: int) -> int:
        """A group's offset, -1 = none. One that retention passed moves to the first, counted and logged."""
        offset = self.table.get(group, topic, queue_id)
        if offset < 0:
            return offset
        first, _ = self._store.bounds(topic, queue_id)
        if offset >= first:
            return offset
        self.behind += 1
        self.skipped += first - offset
        self.table.report(group, topic, queue_id, first)
        log.warning(
            "retention passed a group's offset; it goes on at the first message",
            group=group,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            first_offset=first,
        )
        return first

    def start_of(self, group: GroupSetting, topic: str, queue_id: int) -> int:
        """Where a member that leased a queue starts; -1 = it chooses itself."""
        offset = self.current(group.name, topic, queue_id)
        if offset < 0 and not group.consume_from_min_enable:
            return self._store.bounds(topic, queue_id)[1]
        return offset

    def get(self, request: Request) -> None:
        """OFFSET_GET: answered when the age of every backlog is known."""
        header = request.header(OffsetGetRequest)
        if header.read_type not in (FROM_MEMORY, FROM_STORE, MEMORY_THEN_STORE):
            raise WireError(
                f"read_type {header.read_type!r}: memory, store and memory_then_store are", Code.MISSING_FIELD
            )
        self._consumers.require(header.group)
        names = header.topics
        if names is None:
            names = sorted({*self._topics_of(header.group), *self._consumers.subscribed_topics(header.group)})
        found: list[OffsetRow] = []
        for name in names:
            topic = self._topics.get(str(name))
            if topic is not None:
                shared = self._shared_queues(header.group, topic.name)
                found += [self._row(header, topic, q, shared) for q in range(topic.read_queues)]
                _bounded(found)
        late = [(r.topic, r.queue_id, r.offset) for r in found if r.first_offset <= r.offset < r.end_offset]

        def looked(times: Times | HoldMQError) -> None:
            if isinstance(times, HoldMQError):
                request.refuse(times)
                return
            aged = [r._replace(oldest_ms=times.get((r.topic, r.queue_id, r.offset), 0)) for r in found]
            request.reply(OffsetGetResponse(aged, self._store.epoch))

        look_up_times(self._store, late, looked)

    def has_begun(self, group: str) -> bool:
        """Whether a group has an offset in any topic."""
        return bool(self._topics_of(group))

    def _topics_of(self, group: str) -> set[str]:
        found = set(self.table.topics(group))
        return found | self._shared.topics(group)

    def _shared_queues(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        return self._shared.queues(group, topic)

    def _places(self, group: str, topic: str) -> dict[int, int]:
        """Where a group of any mode is in the queues of a topic."""
        shared = self._shared_queues(group, topic)
        return {**self.table.queues(group, topic), **{q: floor for q, (floor, _) in shared.items()}}

    def _row(
        self,
        header: OffsetGetRequest,
        topic: Topic,
        queue_id: int,
        shared: Mapping[int, tuple[int, int]],
    ) -> OffsetRow:
        bounds = self._store.bounds(topic.name, queue_id)
        if queue_id in shared:
            floor, done = shared[queue_id]
            return OffsetRow(topic.name, queue_id, max(floor, bounds[0]), *bounds, 0, done)
        offset = -1
        if header.read_type != FROM_STORE:
            offset = self.current(header.group, topic.name, queue_id)
        if offset < 0 and header.read_type != FROM_MEMORY:
            offset = self.table.get_saved(header.group, topic.name, queue_id)
        return OffsetRow(topic.name, queue_id, offset, *bounds, 0, 0)

    # Resets

    def reset(self, request: Request) -> None:
        """OFFSET_RESET: answered when it is on disk."""
        header = request.header(OffsetResetRequest)
        group = self._consumers.require(header.group)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {header.topic!r} does not exist here")
        queue_ids = list(range(topic.read_queues))
        if header.queue_ids is not None:
            unknown = [q for q in header.queue_ids if q not in queue_ids]
            if unknown:
                raise RemoteError(Code.QUEUE_UNKNOWN, f"{header.topic} has no queue {unknown[0]!r} here")
            queue_ids = sorted(set(header.queue_ids))
        if header.to == TO_TIME:
            self._reset_to_time(request, header, group, queue_ids)
            return
        wanted: dict[int, int] = {}
        for queue_id in queue_ids:
            first, end = self._store.bounds(header.topic, queue_id)
            places = {TO_EARLIEST: first, TO_LATEST: end, TO_OFFSET: header.value}
            if header.to not in places:
                raise WireError(
                    f"to {header.to!r}: earliest, latest, time and offset are", Code.MISSING_FIELD
                )
            wanted[queue_id] = places[header.to]
        self._finish_reset(request, header, group, wanted)

    def _reset_to_time(
        self, request: Request, header: OffsetResetRequest, group: GroupSetting, queue_ids: list[int]
    ) -> None:
        def find() -> dict[int, int]:
            return {q: self._offset_at(header.topic, q, header.value) for q in queue_ids}

        def found(future: asyncio.Future[dict[int, int]]) -> None:
            if future.cancelled():
                return
            try:
                self._finish_reset(request, header, group, future.result())
            except HoldMQError as error:
                request.refuse(error)

        future = self._loop.run_in_executor(self._store.reader_pool, find)
        future.add_done_callback(found)

    def _finish_reset(
        self, request: Request, header: OffsetResetRequest, group: GroupSetting, wanted: dict[int, int]
    ) -> None:
        changes: list[OffsetChange] = []
        before = self._places(group.name, header.topic)
        for queue_id, offset in wanted.items():
            first, end = self._store.bounds(header.topic, queue_id)
            after = clamp(offset, first, end)
            if after == first < end and not group.consume_from_min_enable:
                raise RemoteError(
                    Code.GROUP_DISABLED,
                    f"group {group.name!r}: consumeFromMinEnable is off, and queue {queue_id} would begin "
                    "at its first message",
                )
            changes.append(OffsetChange(header.topic, queue_id, before.get(queue_id, -1), after))
        if header.dry_run:
            request.reply(OffsetChangeResponse(changes))
            return
        self._apply(group.name, changes)
        self._consumers.end_leases(group.name, header.topic, wanted)
        log.warning(
            "a group's offsets were reset",
            group=group.name,
            topic=header.topic,
            to=header.to,
            value=header.value,
            changes={c.queue_id: (c.before, c.after) for c in changes},
            peer=request.connection.address,
        )
        self.reply_durable(request, OffsetChangeResponse(changes))

    def clone(self, request: Request) -> None:
        """OFFSET_CLONE: the target is created if need be; answered when it is on disk."""
        header = request.header(OffsetCloneRequest)
        check_name(header.target)
        self._consumers.require(header.source)
        self._consumers.check_unused(header.target)
        if header.source == header.target:
            raise RemoteError(Code.GROUP_INVALID, "a group cannot be cloned to itself")
        if header.dry_run:
            request.reply(OffsetChangeResponse(self._cloned(header)))
            return

        def created(error: HoldMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                self._consumers.check_unused(header.target)
                changes = self._cloned(header)
                self._apply(header.target, changes)
                log.warning(
                    "a group's offsets were cloned",
                    source=header.source,
                    target=header.target,
                    queues=len(changes),
                    peer=request.connection.address,
                )
                self.reply_durable(request, OffsetChangeResponse(changes))
            except HoldMQError as refusal:
                request.refuse(refusal)

        self._settings.change(lambda groups: self._settings.table.plan_create(groups, header.target), created)

    def _cloned(self, header: OffsetCloneRequest) -> list[OffsetChange]:
        changes: list[OffsetChange] = []
        names = header.topics
        if names is None:
            # Retries are for the group that failed: a copy would never pass its offset there.
            names = sorted(self._topics_of(header.source) - {retry_topic(header.source)})
        for name in names:
            shared = self._shared_queues(header.source, str(name))
            targets = self._places(header.target, name)
            for queue_id in sorted(self._places(header.source, name)):
                before = targets.get(queue_id, -1)
                if queue_id in shared:
                    after = max(shared[queue_id][0], self._store.bounds(name, queue_id)[0])
                else:
                    after = self.current(header.source, name, queue_id)
                changes.append(OffsetChange(name, queue_id, before, after))
            _bounded(changes)
        return changes

    def _apply(self, group: str, changes: list[OffsetChange]) -> None:
        table = self.table
        new = sum(table.get(group, change.topic, change.queue_id) < 0 for change in changes)
        if self.table.room < new:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"{self.table.size} offsets are kept; there is no room for {new} more"
            )
        self.resets += 1
        for change in changes:
            self.table.reset(group, change.topic, change.queue_id, change.after)
        self.reset_done.happened(group, {change.topic for change in changes})

    # Other parts

    def group_deleted(self, group: str) -> None:
        """A group, or the last member of a temporary one, is gone."""
        self.table.drop_group(group)
        self.file.forget(group)

    def queue_deleted(self, topic: str, queue_id: int) -> None:
        """A queue, perhaps with its topic, is gone."""
        self.table.drop_queue(topic, queue_id)


def _check_kept(group: GroupSetting, topics: Iterable[str]) -> None:
    if group.is_temporary:
        raise RemoteError(Code.KIND_UNFIT, f"group {group.name!r} is temporary: its offsets are not saved")
    for topic in topics:
        if topic.endswith("#tmp"):
            raise RemoteError(Code.KIND_UNFIT, f"topic {topic!r} is temporary: offsets in it are not saved")


def _bounded(found: list[T]) -> list[T]:
    if len(found) > ROWS_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"more than {ROWS_MAX} queues; name some of the topics")
    return found
