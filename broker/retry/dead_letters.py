"""Dead letters: what groups gave up is listed, sent again, and purged. Reading them is a PULL.

Sending again goes through the store's timer, due at once: the copy names the dead letter, so that a letter
is sent once, also over a crash between the copy and the mark (broker.retry.copies). deadLetters.json keeps
the marks: what was sent again, when and for whom, and the offset below which letters were given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import structlog

from broker.kernel.request_family import RequestFamily
from broker.produce.core.delays import UNFIT_KINDS
from broker.retry.copies import Copies, MovedMessage
from broker.retry.core.dead_letters import RANGES_MAX, Marks
from broker.retry.core.moves import resent_copy
from broker.state.state_file import StateFile
from broker.topics.requests import TopicRequests
from holdmq.errors import BusyError, Code, HoldMQError, RecordError, RemoteError, StorageError
from holdmq.names.topics import group_fault, is_system_topic, topic_fault
from holdmq.record.batch import split_records
from holdmq.record.codec import VERIFY_ALL, Record, decode_record
from holdmq.record.origin import DLQ_PREFIX, dlq_topic, origin_of, retry_topic, value_in
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.move_headers import (
    DeadLetterRow,
    DlqListRequest,
    DlqListResponse,
    DlqPurgeRequest,
    DlqPurgeResponse,
    DlqResendRequest,
    DlqResendResponse,
    ResendFailure,
    ResentLetters,
)
from storage.api.queues import MessageQueues, QueueRead, ReadStatus
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC

RESEND_MAX: Final = 1_000
"""Dead letters that one RESEND looks at: a second's work of a disk; callers go on at `next_offset`."""
REQUESTS_MAX: Final = 100
"""RESENDs and PURGEs in hand; past it BUSY: people ask for them, one after the other."""
BY_MAX: Final = 128
"""Characters of a name for which letters are sent again: a user and a host fit."""
READ_BYTES: Final = 1 << 20
READ_RECORDS: Final = 256
RETRY_AFTER_MS: Final = 500
QUEUE: Final = 0
"""Dead letters have one queue per group and broker."""

log = structlog.get_logger("holdmq.broker")


class _Resend:
    """One RESEND in hand: where it is, and what it has done."""

    __slots__ = ("at_ms", "by", "end", "failures", "group", "left", "looked_at", "offset", "offsets",
                 "reading", "repeated", "request", "resent", "target")  # fmt: skip

    def __init__(self, request: Request, header: DlqResendRequest, first: int, end: int, now_ms: int) -> None:
        self.request = request
        self.at_ms = now_ms
        self.by = header.by
        self.group = header.group
        self.target = header.topic
        self.offsets = None if header.offsets is None else deque(header.offsets)
        self.offset = first
        self.end = end
        self.left = min(header.limit, RESEND_MAX)
        self.reading = 0
        self.resent = self.repeated = self.looked_at = 0
        self.failures: list[ResendFailure] = []

    def fail(self, offset: int, error: HoldMQError) -> None:
        remark = error.remark if isinstance(error, RemoteError) else str(error)
        self.failures.append(ResendFailure(offset, error.code, remark))


class DeadLetterRequests(RequestFamily):
    """Handles DLQ_LIST, DLQ_RESEND and DLQ_PURGE. Without `load` the marks are in memory only."""

    def __init__(
        self,
        store: MessageQueues,
        copies: Copies,
        topics: TopicRequests,
        marks: Marks,
        clock_ms: Callable[[], int],
    ) -> None:
        self.marks = marks
        self.resent = self.purged = self.failed_saves = 0
        self._store = store
        self._copies = copies
        self._topics = topics
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._file: StateFile | None = None
        self._resends: deque[_Resend] = deque()
        self._purges: list[tuple[Request, str, int]] = []
        self._unsaved: list[_Resend] = []
        self._working: asyncio.Future[Any] | None = None
        self._early: list[tuple[OnRequest, Request]] = []
        self._is_dirty = False
        self._is_closed = False
        copies.recovered.subscribe(self._recovered)

    # The part

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.DLQ_LIST: partial(self._handle, self.list_groups),
            RequestCode.DLQ_RESEND: partial(self._handle, self.resend),
            RequestCode.DLQ_PURGE: partial(self._handle, self.purge),
        }

    def numbers(self) -> Mapping[str, int]:
        return {
            "dead_letters_resent_total": self.resent,
            "dead_letters_purged_total": self.purged,
            "dead_letters_save_failures_total": self.failed_saves,
            "dead_letters_requests": len(self._early) + self._in_hand,
        }

    @property
    def _in_hand(self) -> int:
        return len(self._resends) + len(self._purges) + len(self._unsaved)

    def release_all(self) -> None:
        """Draining: what has not begun is refused."""
        self._is_closed = True
        while len(self._resends) > 1:
            self._resends.pop().request.refuse(RemoteError(Code.SHUTTING_DOWN, "the broker is draining"))

    def load(self, file: StateFile, accept_backup: bool = False) -> None:
        """Read deadLetters.json (blocking), and keep it from now on; StorageError if it is damaged."""
        self._file = file
        loaded = file.load(accept_backup)
        if loaded is not None:
            self.marks.load(loaded.content, str(file.path))
            for group, marks in self.marks.items():
                # What power loss took: a later letter may get the offset of one that was sent again.
                marks.cut(*self._ends(group))

    def forget(self, group: str, topics: Collection[str] | None = None) -> None:
        """A group begins anew in these topics (None = all): what it fails with again is moved again.

        For offsets that were reset, and groups that were deleted. Saved soon.
        """
        self._copies.known.forget(group, topics)
        is_all = topics is None or retry_topic(group) in topics
        marks = self.marks.of(group)
        for topic in ("",) if is_all else topics or ():
            marks.forgotten[topic] = list(self._ends(group))
        self._save()

    def _ends(self, group: str) -> tuple[int, int]:
        """The ends of the timer's queue and of a group's dead letters."""
        timer = self._store.bounds(TIMER_TOPIC, TIMER_QUEUE)[1]
        return timer, self._store.bounds(dlq_topic(group), QUEUE)[1]

    def _firsts(self, group: str) -> tuple[int, int]:
        """The first offsets of the timer's queue and of a group's dead letters."""
        timer = self._store.bounds(TIMER_TOPIC, TIMER_QUEUE)[0]
        return timer, self._store.bounds(dlq_topic(group), QUEUE)[0]

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        if self._file is not None:
            self._file.close()

    def _handle(self, handler: OnRequest, request: Request) -> None:
        """Handle a request, but not before it is known what was sent again."""
        if self._copies.is_recovered:
            handler(request)
            return
        if len(self._early) >= REQUESTS_MAX:
            raise BusyError("the broker has just started", RETRY_AFTER_MS)
        self._early.append((handler, request))

    def _recovered(self) -> None:
        """Mark what was sent again before the marks could be saved."""
        for group, topic, _, offset in self._copies.known.keys_of(DLQ_PREFIX):
            marks = self.marks.of(group)
            if topic == dlq_topic(group) and offset >= marks.purged:
                marks.resent.add(offset)
        early, self._early = self._early, []
        for handler, request in early:
            try:
                handler(request)
            except HoldMQError as error:
                request.refuse(error)

    # Listing

    def list_groups(self, request: Request) -> None:
        """DLQ_LIST: groups with dead letters, or one group."""
        header = request.header(DlqListRequest)
        wanted = header.group
        found: list[DeadLetterRow] = []
        table = self._topics.table
        if wanted is None:
            groups = sorted(
                topic.name.removeprefix(DLQ_PREFIX)
                for topic in table.all()
                if topic.name.startswith(DLQ_PREFIX)
            )
        else:
            groups = [wanted] if table.get(dlq_topic(wanted)) is not None else []
        for group in groups:
            first, end = self._bounds(group)
            found.append(DeadLetterRow(group, first, end, self.marks.of(group).resent.count_from(first)))
        resends: list[ResentLetters] = []
        if groups and wanted is not None and header.resends_from >= 0:
            first, end = self._bounds(wanted)
            begin = max(first, header.resends_from)
            stamps = self.marks.of(wanted).resends_between(begin, min(end, header.resends_from + RESEND_MAX))
            resends = [ResentLetters(*stamp) for stamp in stamps]
        request.reply(DlqListResponse(found, resends))

    def _bounds(self, group: str) -> tuple[int, int]:
        """First and end offset of what is left of a group's dead letters."""
        first, end = self._store.bounds(dlq_topic(group), QUEUE)
        return min(max(first, self.marks.of(group).purged), end), end

    def _check(self, group: str) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise RemoteError(Code.GROUP_INVALID, fault)
        if self._topics.table.get(dlq_topic(group)) is None:
            raise RemoteError(Code.GROUP_UNKNOWN, f"group {group!r} has no dead letters here")
        if self._is_closed:
            raise RemoteError(Code.SHUTTING_DOWN, "the broker is draining")
        if self._in_hand >= REQUESTS_MAX:
            raise BusyError(f"{REQUESTS_MAX} requests for dead letters are in hand", RETRY_AFTER_MS)

    # Purging

    def purge(self, request: Request) -> None:
        """DLQ_PURGE: answered when it is durable."""
        header = request.header(DlqPurgeRequest)
        self._check(header.group)
        _, end = self._bounds(header.group)
        wanted = end if header.end_offset < 0 else min(header.end_offset, end)
        self._purges.append((request, header.group, wanted))
        self._save()

    # Sending again

    def resend(self, request: Request) -> None:
        """DLQ_RESEND: answered when the copies are in the log and marked."""
        header = request.header(DlqResendRequest)
        self._check(header.group)
        if header.topic:
            fault = topic_fault(header.topic)
            if fault is not None:
                raise RemoteError(Code.TOPIC_INVALID, fault)
            if self._topics.table.get(header.topic) is None:
                raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {header.topic!r} does not exist here")
        if len(header.by) > BY_MAX or not header.by.isprintable():
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"`by` is the name of who asks: up to {BY_MAX} characters that print"
            )
        if header.limit < 1 or (header.offsets is not None and len(header.offsets) > RESEND_MAX):
            raise RemoteError(Code.LIMIT_EXCEEDED, f"a RESEND is for 1 to {RESEND_MAX} dead letters")
        if header.offsets is not None and not all(isinstance(o, int) for o in header.offsets):
            raise RemoteError(Code.MISSING_FIELD, "offsets are numbers")
        if header.offsets is not None and len(self.marks.of(header.group).resent) >= RANGES_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"{RANGES_MAX} single letters of {header.group!r} were sent again: send the rest, or purge",
            )
        first, end = self._bounds(header.group)
        if header.end_offset >= 0:
            end = min(end, header.end_offset)
        first = max(first, header.first_offset)
        self._resends.append(_Resend(request, header, first, end, self._clock_ms()))
        if len(self._resends) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Read the next letters of the first request, or end it."""
        while self._resends:
            resend = self._resends[0]
            asked = self._next_of(resend)
            if asked is None:
                self._resends.popleft()
                self._unsaved.append(resend)
                self._save()
                continue
            topic, (offset, count) = dlq_topic(resend.group), asked
            read = self._store.read_queue(topic, QUEUE, 0, offset, READ_BYTES, count)
            if read is None:
                work = partial(self._store.read_queue_cold, topic, QUEUE, 0, offset, READ_BYTES, count)
                self._working = self._loop.run_in_executor(self._store.reader_pool, work)
                self._working.add_done_callback(partial(self._was_read, resend, offset))
                return
            if not self._take(resend, offset, read):
                return

    def _next_of(self, resend: _Resend) -> tuple[int, int] | None:
        """The next offset to read and how many from there; None = all is done."""
        marks = self.marks.of(resend.group)
        if resend.offsets is not None:
            while resend.offsets:
                offset = resend.offsets.popleft()
                first, end = self._bounds(resend.group)
                if not first <= offset < end:
                    gone = f"group {resend.group!r} has no dead letter {offset} here"
                    resend.fail(offset, RemoteError(Code.MESSAGE_UNKNOWN, gone))
                elif offset in marks.resent:
                    resend.repeated += 1
                else:
                    return offset, 1
            return None
        while resend.offset < resend.end and resend.offset in marks.resent:
            resend.offset += 1
            resend.repeated += 1
        if resend.offset >= resend.end or resend.looked_at >= resend.left:
            return None
        return resend.offset, min(READ_RECORDS, resend.end - resend.offset, resend.left - resend.looked_at)

    def _was_read(self, resend: _Resend, offset: int, finished: asyncio.Future[QueueRead]) -> None:
        self._working = None
        if finished.cancelled():
            return
        error = finished.exception()
        if error is None:
            if self._take(resend, offset, finished.result()):
                self._go_on()
            return
        if not isinstance(error, StorageError):
            self._resends.popleft()
            resend.request.refuse(RemoteError(Code.SYSTEM_ERROR, f"dead letters could not be read: {error}"))
            self._go_on()
            raise error
        resend.fail(offset, error)
        resend.looked_at += 1
        resend.offset = offset + 1
        self._go_on()

    def _take(self, resend: _Resend, offset: int, read: QueueRead) -> bool:
        """Send what was read; False = go on when the last of it is answered."""
        letters: list[Record] = []
        for part in read.parts:
            at = 0
            for size in split_records(part).tolist():
                try:
                    letters.append(decode_record(part, at, VERIFY_ALL))
                except RecordError as error:
                    resend.fail(offset + len(letters), RemoteError(Code.CORRUPT, str(error)))
                at += size
        if read.status is ReadStatus.CORRUPT:
            resend.fail(offset, RemoteError(Code.CORRUPT, read.reason))
        if resend.offsets is None:
            following = max(read.next_offset, offset + 1)
            resend.looked_at += following - offset
            resend.offset = following
        marks = self.marks.of(resend.group)
        fresh = [letter for letter in letters if letter.queue_offset not in marks.resent]
        resend.repeated += len(letters) - len(fresh)
        # One more than there are: the first may be answered before the last is asked for.
        resend.reading = len(fresh) + 1
        for letter in fresh:
            self._send(resend, letter)
        resend.reading -= 1
        return not resend.reading

    def _send(self, resend: _Resend, letter: Record) -> None:
        origin = origin_of(letter.properties)
        name = resend.target or value_in(letter.properties, "REAL_TOPIC") or (origin.topic if origin else "")
        done = partial(self._sent, resend, letter.queue_offset)
        topic = self._topics.table.get(name)
        if topic is None:
            done(RemoteError(Code.TOPIC_UNKNOWN, f"topic {name!r} does not exist here; name another"))
        elif is_system_topic(name) or not topic.is_writable or not topic.write_queues:
            done(RemoteError(Code.TOPIC_PERM, f"topic {name!r} may not be written"))
        elif topic.kind in UNFIT_KINDS:
            done(RemoteError(Code.KIND_UNFIT, f"dead letters cannot go to {name!r}, a {topic.kind} topic"))
        else:
            queue_id = (origin.queue_id if origin is not None else 0) % topic.write_queues
            try:
                copy = resent_copy(letter, resend.group, name, queue_id, self._clock_ms())
            except RecordError as error:
                done(error)
                return
            self._copies.put(copy, 0, done)

    def _sent(self, resend: _Resend, offset: int, moved: MovedMessage | HoldMQError) -> None:
        if isinstance(moved, HoldMQError):
            resend.fail(offset, moved)
        else:
            self.marks.of(resend.group).note_resent(offset, resend.at_ms, resend.by)
            if moved.is_repeat:
                resend.repeated += 1
            else:
                resend.resent += 1
                self.resent += 1
        resend.reading -= 1
        if not resend.reading:
            self._go_on()

    # The file

    def _save(self) -> None:
        """Write the marks, then answer whoever waits for them."""
        if self._file is not None and self._file.is_saving:
            self._is_dirty = True
            return
        self._is_dirty = False
        purges, self._purges = self._purges, []
        resends, self._unsaved = self._unsaved, []
        purging: dict[str, int] = {}
        for _, group, end in purges:
            purging[group] = max(end, purging.get(group, 0))
        if self._file is None:
            self._saved(purges, resends)
            return
        self.marks.prune(self._firsts)
        self._file.save(
            self.marks.content(purging),
            self._file.data_version + 1,
            partial(self._save_ended, purges, resends),
        )

    def _save_ended(
        self, purges: list[tuple[Request, str, int]], resends: list[_Resend], error: HoldMQError | None
    ) -> None:
        if error is None:
            self._saved(purges, resends)
        else:
            self.failed_saves += 1
            log.error("what was done to dead letters is not saved", reason=str(error))
            for request, _, _ in purges:
                request.refuse(error)
            for resend in resends:
                resend.request.refuse(error)
        if self._purges or self._unsaved or self._is_dirty:
            self._save()

    def _saved(self, purges: list[tuple[Request, str, int]], resends: list[_Resend]) -> None:
        for request, group, end in purges:
            first, _ = self._bounds(group)
            self.marks.of(group).purge(end)
            count = max(0, end - first)
            self.purged += count
            log.warning("dead letters were purged", group=group, messages=count, end_offset=end)
            request.reply(DlqPurgeResponse(count, self._bounds(group)[0]))
        for resend in resends:
            is_over = resend.offsets is not None or resend.offset >= resend.end
            log.info(
                "dead letters were sent again",
                group=resend.group,
                messages=resend.resent,
                by=resend.by,
                topic=resend.target or "their own",
                failed=len(resend.failures),
            )
            following = -1 if is_over else resend.offset
            answer = DlqResendResponse(resend.resent, resend.repeated, resend.failures, following)
            resend.request.reply(answer)
