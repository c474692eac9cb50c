"""Topics: requests that create, change, grow, shrink, pause and delete them.

A topic is durable in topic.json before its first record, and every change before it is answered. The
rules are in `broker.topics.core.changes`, the file in `broker.topics.topic_file`, the end of queues in
`broker.topics.queue_deletion`, topics that live in memory in `broker.topics.temporary`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from broker.kernel.events import Event
from broker.kernel.request_family import RequestFamily
from broker.readers.readers import TopicReaders
from broker.state.state_file import Done, StateFile
from broker.topics.core import changes as topic_changes
from broker.topics.core.changes import Undrained
from broker.topics.core.table import KIND_LOG, KIND_TABLE, NOT_DELETING, Topic, TopicTable
from broker.topics.queue_deletion import GroupOffsets, NoGroups, QueueDeletion
from broker.topics.table_emptying import TableEmptying
from broker.topics.temporary import UNREAD_S, TemporaryTopics
from broker.topics.topic_file import Plan, Staged, TopicFile
from holdmq.errors import BusyError, Code, HoldMQError, RemoteError, UsageError, WireError
from holdmq.files.disk import Disk
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.ban_headers import BAN_TOPIC
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import TopicCreateRequest, TopicCreateResponse
from holdmq.wire.quota_headers import QUOTA_TOPIC
from holdmq.wire.retained_headers import RETAINED_TOPIC
from holdmq.wire.session_headers import SESSION_TOPIC
from holdmq.wire.topic_headers import (
    DELETE,
    HIDE_FROM_CONSUMERS,
    HIDE_FROM_PRODUCERS,
    SPREAD_FIXED,
    STEPS,
    QueuesRemoveRequest,
    TopicDeleteRequest,
    TopicGrowRequest,
    TopicPauseRequest,
    TopicUpdateRequest,
)
from storage.api.batches import Batch
from storage.api.queues import DeletableQueues, TemporaryQueues
from storage.api.retention import MessageRetention
from storage.api.tables import TableStore

HIDE_GRACE_S: Final = 45.0
"""How long queues that are hidden from producers still take records: clients refresh their routes every
30 s, so that nobody who follows an old route is refused, and nothing has to be sent again elsewhere."""
PARKED_MAX: Final = 1_000
"""TOPIC_CREATEs that wait until a topic of their name is deleted; past it BUSY."""
RETRY_AFTER_MS: Final = 500
OWN_TABLES: Final = (SESSION_TOPIC, RETAINED_TOPIC, BAN_TOPIC, QUOTA_TOPIC)
"""What every broker has at its first start: nobody's topics, and not counted in `broker.topics_max`."""

Required = Callable[[HoldMQError | None], None]

log = structlog.get_logger("holdmq.broker")


class TopicStore(DeletableQueues, Protocol):
    """What topics need of the store."""

    @property
    def retention(self) -> MessageRetention:
        """Where topics' own retention is kept."""

    @property
    def temporary(self) -> TemporaryQueues:
        """The queues of temporary topics."""

    @property
    def tables(self) -> TableStore | None:
        """The newest values by key of topics that are tables; None = this store keeps none."""

    @property
    def reader_pool(self) -> Executor:
        """Where blocking reads belong."""

    @property
    def first_position(self) -> int:
        """The log offset of the oldest record that is kept."""

    @property
    def confirmed_position(self) -> int:
        """The log offset up to which records are visible."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset and next confirmed offset of a queue."""


class TopicQuotas(Protocol):
    """Knows how many topics tenants may have."""

    def check_topics(self, name: str, names: Callable[[], Iterable[str]]) -> None:
        """Raise RemoteError if a topic of this name is one too many; `names` gives those of all others."""


class NoQuotas:
    """Stands for quotas until a store is open: nobody makes topics before that."""

    def check_topics(self, name: str, names: Callable[[], Iterable[str]]) -> None:
        """Refuse no topic at all."""


class TopicRequests(RequestFamily):
    """The topic table and its file. `load` it, then `start` it over an open store.

    `table_changed` happens after changes that registries must hear of, once for all of a turn;
    `topic_changed(before, after)` for each topic that changed: None = it was, or is, not there.
    """

    def __init__(
        self,
        path: Path,
        table: TopicTable,
        auto_create: bool,
        readers: TopicReaders,
        hide_grace_s: float = HIDE_GRACE_S,
        disk: Disk | None = None,
        temporary_unread_s: float = UNREAD_S,
    ) -> None:
        self.table = table
        self.table_changed: Event[[]] = Event()
        self.topic_changed: Event[[Topic | None, Topic | None]] = Event()
        self.is_new = True
        """Whether there was no file to load: a log with records and no topics has lost it."""
        self.temporary = TemporaryTopics(readers.table, self.drop_temporary, temporary_unread_s)
        readers.unread.subscribe(self.temporary.unread)
        self._file = TopicFile(StateFile(path, disk), table, self._applied)
        self._auto_create = auto_create
        self._hide_grace_s = hide_grace_s
        self._loop = asyncio.get_running_loop()
        self._store: TopicStore | None = None
        self._groups: GroupOffsets = NoGroups()
        self._quotas: TopicQuotas = NoQuotas()
        self._deletion: QueueDeletion | None = None
        self._parked: dict[str, list[Request]] = {}
        self._told_due = False
        self._showing: set[tuple[str, int]] = set()

    def reconfigure(
        self, auto_create: bool, hide_grace_s: float, topics_max: int, queues_default: int
    ) -> None:
        """Take other values of the broker's keys for topics; what exists stays as it is."""
        self._auto_create = auto_create
        self._hide_grace_s = hide_grace_s
        self.table.topics_max = topics_max
        self.table.queues_default = queues_default

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.TOPIC_CREATE: self.create,
            RequestCode.TOPIC_UPDATE: self.update,
            RequestCode.TOPIC_GROW: self.grow,
            RequestCode.QUEUES_REMOVE: self.remove_queues,
            RequestCode.TOPIC_DELETE: self.delete,
            RequestCode.TOPIC_PAUSE: self.pause,
        }

    def numbers(self) -> Mapping[str, int]:
        deletion = self._deletion
        return {
            "topics": len(self.table),
            "topics_paused": sum(topic.is_paused for topic in self.table.all()),
            "topic_changes_waiting": self._file.waiting,
            "topic_deletions": 0 if deletion is None else len(deletion),
            "queues_deleted_total": 0 if deletion is None else deletion.deleted,
            "queue_deletion_retries_total": 0 if deletion is None else deletion.retries,
            **self.temporary.numbers(),
        }

    # Life

    def load(self, accept_backup: bool = False) -> None:
        """Read the file (blocking); an absent one is an empty table. StorageError if damaged."""
        loaded = self._file.file.load(accept_backup)
        self.is_new = loaded is None
        if loaded is not None:
            self.table.load(loaded.content, loaded.data_version, str(self._file.file.path))

    def start(self, store: TopicStore, groups: GroupOffsets, quotas: TopicQuotas) -> None:
        """Go on where the last run ended: retention, pauses, old routes, deletions. The store is open."""
        self._quotas = quotas
        self._store = store
        self._groups = groups
        self.temporary.store = store.temporary
        self._deletion = QueueDeletion(self._file, store, groups)
        now = self._loop.time()
        for topic in self.table.all():
            self.table.set(topic_changes.clamp_pause(topic, store.confirmed_position))
            if topic.retention_ms:
                self._set_age(topic)
            if topic.write_queues < topic.read_queues and not topic.order:
                self.table.allow_until(topic.name, now + self._hide_grace_s)
        self._deletion.begin_all()

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self.temporary.close()
        if self._deletion is not None:
            self._deletion.close()
        self._file.close()

    # Creating

    def create(self, request: Request) -> None:
        """TOPIC_CREATE: answered when the topic is durable."""
        header = request.header(TopicCreateRequest)
        if header.by_use:
            known = self.table.get(header.topic)
            if known is not None:
                request.reply(TopicCreateResponse([known.row()]))
                return
            if not self._auto_create:
                raise RemoteError(
                    Code.TOPIC_UNKNOWN,
                    f"topic {header.topic!r} does not exist and broker.auto_create_topics is off",
                )
        self._create(request, header)

    def _create(self, request: Request, header: TopicCreateRequest) -> None:
        parked = False

        def plan(staged: Staged) -> None:
            nonlocal parked
            known = staged.get(header.topic)
            if known is not None and known.is_leaving:
                self._park(request, header.topic)
                parked = True
                return
            if header.by_use and known is not None:
                return
            topic = topic_changes.new_topic(known, header, self.table.queues_default)
            if topic is None:
                return
            if self.room(staged) <= 0:
                raise self.is_full()
            self._check_age(topic)
            if known is None:
                self._quotas.check_topics(topic.name, staged.names)
            staged.put(topic)

        def done(error: HoldMQError | None) -> None:
            if not parked:
                self._answer(request, header.topic, error)

        self._file.submit(plan, done)

    def room(self, staged: Staged) -> int:
        """How many more topics there may be."""
        own = sum(staged.get(name) is not None for name in OWN_TABLES)
        return self.table.topics_max - (len(staged) - own)

    def is_full(self) -> RemoteError:
        """The refusal of a topic for which there is no room."""
        return RemoteError(
            Code.TOPIC_LIMIT,
            f"broker.topics_max ({self.table.topics_max}) topics exist; delete some or raise it",
        )

    def _park(self, request: Request, name: str) -> None:
        """A topic of this name is being deleted: its successor comes when that is over."""
        if sum(map(len, self._parked.values())) >= PARKED_MAX:
            raise BusyError(f"topic {name!r} is being deleted", RETRY_AFTER_MS)
        self._parked.setdefault(name, []).append(request)

    def _unpark(self, name: str) -> None:
        for request in self._parked.pop(name, []):
            try:
                self._create(request, request.header(TopicCreateRequest))
            except HoldMQError as error:
                request.refuse(error)

    def require(self, name: str, queues: int, done: Required, *, is_table: bool = False) -> None:
        """Have a system topic, whatever topics_max says; an existing one stays as it is.

        `done` gets None when it is durable, perhaps at once, or why it cannot be. Of a table routes name
        brokers that are away, too: its keys go nowhere else.
        """
        kind = KIND_TABLE if is_table else KIND_LOG
        if self.table.get(name) is not None:
            done(None)
            return

        def plan(staged: Staged) -> None:
            if staged.get(name) is None:
                staged.put(
                    Topic(
                        name,
                        queues,
                        queues,
                        order=is_table,
                        kind=kind,
                        stored_queues=queues,
                        spread=SPREAD_FIXED,
                    )
                )

        self._file.submit(plan, done, is_bounded=False)

    # Changing

    def update(self, request: Request) -> None:
        """TOPIC_UPDATE: perm, order, retention, what the first group does, spread."""
        header = request.header(TopicUpdateRequest)

        def change(topic: Topic) -> Topic:
            after = topic_changes.update(topic, header)
            if after.retention_ms != topic.retention_ms:
                self._check_age(after)
            return after

        self._change(request, header.topic, change)

    def grow(self, request: Request) -> None:
        """TOPIC_GROW: more queues, at any time; an ordered topic when it is drained."""
        header = request.header(TopicGrowRequest)
        self._change(
            request,
            header.topic,
            lambda topic: topic_changes.grow(topic, header.queues, self._undrained(topic)),
            moves_keys=True,
        )

    def remove_queues(self, request: Request) -> None:
        """Answer QUEUES_REMOVE: take one step of the removal."""
        header = request.header(QueuesRemoveRequest)
        queues = header.queues
        if header.step not in STEPS:
            raise WireError(f"step {header.step!r} is not one of {', '.join(STEPS)}", Code.MISSING_FIELD)

        def change(topic: Topic) -> Topic:
            if header.step == HIDE_FROM_PRODUCERS:
                return topic_changes.hide_from_producers(topic, queues, self._undrained(topic))
            if header.step == HIDE_FROM_CONSUMERS:
                grace_s = self.table.grace_s(topic.name, self._loop.time())
                return topic_changes.hide_from_consumers(topic, queues, self._undrained(topic), grace_s)
            return topic_changes.delete_queues(topic, queues)

        self._change(
            request,
            header.topic,
            change,
            moves_keys=header.step == HIDE_FROM_PRODUCERS,
            deletes=header.step == DELETE,
        )

    def delete(self, request: Request) -> None:
        """TOPIC_DELETE: answered when everything that it held is given up durably."""
        header = request.header(TopicDeleteRequest)
        known = self.table.get(header.topic)
        if known is not None and known.is_temporary:
            self.drop_temporary(header.topic)
            request.reply(TopicCreateResponse([]))
            return
        store = self._opened()
        tables = store.tables
        if known is None or not known.is_table or tables is None:
            self._delete(request, header)
            return

        def emptied(error: HoldMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                self._delete(request, header)
            except HoldMQError as refusal:
                request.refuse(refusal)

        if not header.force:
            topic_changes.delete_topic(known, False)
        emptying = TableEmptying(tables, store.reader_pool, header.topic, header.force, emptied)
        emptying.start(store.confirmed_position)

    def _delete(self, request: Request, header: TopicDeleteRequest) -> None:
        self._change(
            request,
            header.topic,
            lambda topic: topic_changes.delete_topic(topic, header.force),
            deletes=True,
        )

    def give_up(self, name: str, done: Done) -> None:
        """Delete a topic with all in it, whoever uses it; `done` when that is durable. Raises BUSY."""

        def plan(staged: Staged) -> None:
            known = staged.get(name)
            if known is not None:
                staged.put(topic_changes.delete_topic(known, True))

        def written(error: HoldMQError | None) -> None:
            if error is None and self._deletion is not None:
                self._deletion.when_done(name, done)
            else:
                done(error)

        self.submit(plan, written)

    def pause(self, request: Request) -> None:
        """TOPIC_PAUSE: keep, or deliver again what was kept and what comes."""
        header = request.header(TopicPauseRequest)
        store = self._opened()
        self._change(
            request,
            header.topic,
            lambda topic: (
                topic_changes.pause(topic, store.confirmed_position)
                if header.pause
                else topic_changes.resume(topic, store.confirmed_position, store.first_position)
            ),
        )

    def drop_temporary(self, name: str) -> None:
        """A temporary topic goes with all that it holds: nobody reads it, or it was deleted."""
        known = self.table.get(name)
        if known is not None and known.is_temporary:
            self.table.remove(name)
            self._applied(known, None)

    def _change(
        self,
        request: Request,
        name: str,
        change: Callable[[Topic], Topic],
        *,
        moves_keys: bool = False,
        deletes: bool = False,
    ) -> None:
        """Plan a change of one topic, write it, answer. Raises BusyError."""
        self._opened()
        early: list[Topic] = []
        is_held = False

        def plan(staged: Staged) -> None:
            nonlocal is_held
            before = topic_changes.existing(staged.get(name), name)
            after = change(before)
            if after == before:
                return
            staged.put(after)
            if moves_keys and before.order:
                # What producers send until this is durable would be behind the drained end.
                is_held = True
                self.table.hold(name)
            if before.is_paused and not after.is_paused:
                # Delivered from now on: what readers pass from here on was not kept from them.
                early.append(before)
                self.table.set(after)
                self._tell(before, after)

        def done(error: HoldMQError | None) -> None:
            if is_held:
                self.table.release(name)
            if error is not None and early:
                resumed = self.table.get(name)
                self.table.set(early[0])
                self._tell(resumed, early[0])
            if error is None and deletes and self._deletion is not None:
                self._deletion.when_done(name, lambda failed: self._answer(request, name, failed))
                return
            self._answer(request, name, error)

        self.submit(plan, done)

    def submit(self, plan: Plan, done: Done) -> None:
        """Run a plan against the table; `done` when what it changed is durable. Raises BUSY."""
        self._file.submit(plan, done)

    def _answer(self, request: Request, name: str, error: HoldMQError | None) -> None:
        if error is not None:
            request.refuse(error)
            return
        known = self.table.get(name)
        request.reply(TopicCreateResponse([known.row()] if known is not None else []))

    def confirmed(self, batches: list[Batch]) -> None:
        """Messages became visible: a queue that was hidden from consumers before they came is shown again.

        No producer writes there, but a delayed message is released to the queue that it was sent to.
        """
        for batch in batches:
            for run in batch.runs:
                topic = self.table.get(run.topic)
                if topic is not None and run.queue_id >= topic.read_queues:
                    self._show_again(run.topic, run.queue_id)

    def _show_again(self, name: str, queue_id: int) -> None:
        key = (name, queue_id)
        if key in self._showing or self._deletion is None:
            return
        self._showing.add(key)

        def plan(staged: Staged) -> None:
            topic = staged.get(name)
            if topic is not None:
                staged.put(topic_changes.show_again(topic, queue_id))

        def shown(error: HoldMQError | None) -> None:
            self._showing.discard(key)
            if error is None:
                log.warning("a removed queue got a message and is shown again", topic=name, queue_id=queue_id)
            else:
                # The next message tries again.
                log.error(
                    "a queue with a message is hidden", topic=name, queue_id=queue_id, reason=str(error)
                )

        def deleted(error: HoldMQError | None) -> None:
            if error is not None:
                shown(error)
            else:
                self._file.submit(plan, shown, is_bounded=False)

        # What is being deleted is deleted first: the message lies behind that.
        self._deletion.when_done(name, deleted)

    # Conditions

    def undrained(self, name: str, queue_id: int) -> str | None:
        """Why a queue may not go, by what groups have consumed and what is on its way; None = it may."""
        store = self._opened()
        end_offset = store.bounds(name, queue_id)[1]
        behind = self._groups.behind(name, queue_id, end_offset)
        is_written = store.is_being_written(name, queue_id)
        return topic_changes.why_undrained(queue_id, end_offset, list(behind), is_written)

    def _undrained(self, topic: Topic) -> Undrained:
        return lambda queue_id: self.undrained(topic.name, queue_id)

    def _opened(self) -> TopicStore:
        if self._store is None:
            raise BusyError("the broker is starting", RETRY_AFTER_MS)
        return self._store

    def _check_age(self, topic: Topic) -> None:
        """Raise TOPIC_INVALID for a retention that is longer than the log's."""
        if self._store is None or not topic.retention_ms:
            return
        try:
            # No topic has the empty name: this only asks.
            self._store.retention.set_topic_age("", topic.retention_ms)
        except UsageError as error:
            sentence = str(error).replace("topic ''", f"topic {topic.name!r}")
            raise RemoteError(Code.TOPIC_INVALID, sentence) from error
        self._store.retention.set_topic_age("", None)

    def _set_age(self, topic: Topic) -> None:
        assert self._store is not None
        try:
            self._store.retention.set_topic_age(topic.name, topic.retention_ms or None)
        except UsageError as error:
            # The log's was lowered since: the topic follows it.
            log.warning("a topic keeps messages as long as the log only", topic=topic.name, reason=str(error))
            self._store.retention.set_topic_age(topic.name, None)

    # Effects

    def _applied(self, before: Topic | None, after: Topic | None) -> None:
        name = after.name if after is not None else before.name if before is not None else ""
        if after is None:
            self._gone(name, before)
        else:
            self._there(before, after)
        self._tell(before, self.table.get(name))
        self._tell_registries()
        if after is None:
            self._unpark(name)

    def _gone(self, name: str, before: Topic | None) -> None:
        if self._store is None:
            return
        if before is not None and before.is_temporary:
            self.temporary.removed(name)
        else:
            self._store.retention.set_topic_age(name, None)

    def _there(self, before: Topic | None, after: Topic) -> None:
        store = self._store
        if after.is_temporary:
            self.temporary.added(after.name)
        if store is None:
            return
        if (before.retention_ms if before is not None else 0) != after.retention_ms:
            self._set_age(after)
        if before is None:
            return
        if after.write_queues < before.write_queues and not after.order and not after.is_leaving:
            self.table.allow_until(after.name, self._loop.time() + self._hide_grace_s)
        if after.is_paused and not before.is_paused:
            # What was confirmed while the file was written has been delivered.
            self.table.set(replace(after, paused_at=store.confirmed_position))
        if after.deleting_to != NOT_DELETING and before.deleting_to == NOT_DELETING:
            assert self._deletion is not None
            self._deletion.begin(after)

    def _tell(self, before: Topic | None, after: Topic | None) -> None:
        self.topic_changed.happened(before, after)

    def _tell_registries(self) -> None:
        """Once for all changes of this turn."""
        if not self._told_due:
            self._told_due = True
            self._loop.call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._told_due = False
        self.table_changed.happened()
