"""Three real logs on simulated disks that are copies of one another, and somebody who knows who leads.

Replication's decisions are made here by one that sees everything, so that each run asks the log engine alone:
is it what it said it is, after whatever happened? `check` compares every copy with what was confirmed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from log_copies import HOME, CopyOfLog
from sim_disk import SimDisk
from sim_notes import Note, check_keys, notes_of, pending_in

from broker.replication.core.prefix import common_prefix, next_epoch
from holdmq.errors import BehindError, HoldMQError, ShardLostError, StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.timer import DelayedRecord
from storage.core.scan import batch_of, whole_records
from storage.log.core.names import blank_size_at

KEYS = (("devices", 0), ("devices", 1), ("devices", 2), ("other", 7))
LATE = ("later", 0)


class Sent:
    """A batch that was given to a leader, as it was stamped, and what its appender was told."""

    def __init__(self, serials: range) -> None:
        self.serials = serials
        self.batch: Batch | None = None
        self.is_told = False
        self.error: StorageError | None = None


class LogShard:
    """`log` is what a leader was ever told to confirm, byte for byte from position 0 on."""

    def __init__(self, seed: int, flush: str, retention_segments: int = 0, count: int = 3) -> None:
        self.chance = Random(seed)
        self.flush = flush
        self.log = bytearray()
        self.copies = [
            CopyOfLog(flush=flush, settings=_settings(retention_segments), segment_bytes=size)
            for size in self.chance.choices((2048, 4096, 8192), k=count)
        ]
        self.epoch = 1
        self.leader: int | None = None
        self.in_sync = {0}
        self.attached: set[int] = set()
        self.counted: dict[int, int] = {}
        self.acknowledged = [0] * count
        self.seen = [0] * count
        self.broken: set[int] = set()
        self.sent: list[Sent] = []
        self.scheduled: dict[int, Sent] = {}
        self.serial = 0
        self.now_s = 1_000.0
        self.did: dict[str, int] = {}
        self.copies[0].trust()
        self.elect(0)

    def note(self, what: str) -> None:
        """Count what happened: a run in which nothing did says nothing."""
        self.did[what] = self.did.get(what, 0) + 1

    # Who leads

    def elect(self, wanted: int | None = None) -> bool:
        """Let a copy lead that surely has everything; False = there is none now."""
        fit = [i for i in sorted(self.in_sync - self.broken) if self.copies[i].log.is_whole]
        fit = [i for i in fit if self.copies[i].log.failure is None]
        if not fit:
            return False
        index = self.chance.choice(fit) if wanted is None else wanted
        copy = self.copies[index]
        self.have_room(index)
        if self.believes_to_lead(index):
            self.end_leading(index)
        copy.settle()
        assert copy.log.written_position >= len(self.log), "it has all that was confirmed"
        old, self.leader = self.leader, index
        self.epoch += 1
        copy.lead(self.epoch)
        if old is not None and old != index and len(self.in_sync) > 1:
            self.in_sync.discard(old)
        self.attached, self.counted = set(), {}
        self.note("elected")
        return True

    def end_leading(self, index: int) -> None:
        """Who led opens its log again, as a copy."""
        copy = self.copies[index]
        copy.log.end_leading()
        copy.restart()

    def attach(self, index: int) -> None:
        """A copy greets the leader: its log becomes a beginning of the leader's."""
        if self.leader is None or index == self.leader or index in self.attached | self.broken:
            return
        self.have_room(index)
        copy, leader = self.copies[index], self.copies[self.leader]
        if self.believes_to_lead(index):
            self.end_leading(index)
        copy.settle()
        log, its = copy.log, leader.log
        if log.failure is not None:
            return
        if log.store_id != its.store_id or log.written_position < its.first_position:
            self.start_over(index)
            return
        common = common_prefix(log.epochs, log.written_position, its.epochs, its.written_position)
        if common.end < log.written_position or common.epochs < len(log.epochs):
            self.acknowledged[index] = min(self.acknowledged[index], common.end)
            self.note("cut")
            copy.cut(common.end, common.epochs)
            assert copy.log.written_position == common.end
            assert len(copy.log.epochs) == common.epochs
        self.attached.add(index)

    def start_over(self, index: int) -> None:
        self.in_sync.discard(index)
        assert self.leader is not None
        self.note("began anew")
        self.broken.discard(index)
        self.have_room(index)
        self.copies[index].start_over(self.copies[self.leader])
        self.acknowledged[index] = self.seen[index] = 0
        self.attached.add(index)

    def grow(self, index: int) -> None:
        """Count a copy that has all that is confirmed."""
        if self.leader is None or index not in self.attached or index in self.in_sync:
            return
        copy = self.copies[index]
        if self.counted.get(index, 0) >= len(self.log) and copy.log.failure is None:
            self.have_room(index)
            copy.trust()
            self.in_sync.add(index)
            self.note("grew")

    def shrink(self, index: int) -> None:
        if index != self.leader and len(self.in_sync) > 2:
            self.in_sync.discard(index)

    # What they do

    def append(self) -> None:
        """Give records to whoever believes that it leads."""
        index = self.chance.choice([i for i in range(len(self.copies)) if self.believes_to_lead(i)] or [-1])
        if index < 0:
            return
        chance = self.chance
        raw, sizes, runs = b"", [], []
        first = self.serial
        for topic, queue_id in chance.sample(KEYS, chance.choice((1, 1, 2))):
            count, padding = chance.choice((1, 1, 2, 4)), chance.choice((0, 10, 100, 500))
            bodies = [b"%d." % (self.serial + i) + b"x" * padding for i in range(count)]
            properties = [_properties(self.serial + i) for i in range(count)]
            part, part_sizes = encode_batch(topic.encode(), queue_id, bodies, properties, 5)
            raw += part
            sizes.append(part_sizes)
            runs.append(BatchRun(topic, queue_id, count))
            self.serial += count
        sent = Sent(range(first, self.serial))
        self.sent.append(sent)
        batch = Batch(memoryview(bytearray(raw)), np.concatenate(sizes), runs)
        self.copies[index].store.append(batch, self.told(sent))

    def told(self, sent: Sent) -> Callable[[Batch, StorageError | None], None]:
        def told(batch: Batch, error: StorageError | None) -> None:
            assert not sent.is_told, "each is told once"
            sent.is_told, sent.batch, sent.error = True, batch, error

        return told

    def schedule(self) -> None:
        """Delay a record: it leaves once, whoever leads then."""
        if self.leader is None:
            return
        copy = self.copies[self.leader]
        record = encode_record(
            LATE[0].encode(), LATE[1], b"%d.late" % self.serial, _properties(self.serial), 5
        )
        due_ms = int(copy.now_s * 1e3) + self.chance.choice((0, 500, 3_000, 40_000, 1_000_000))
        sent = Sent(range(self.serial, self.serial + 1))
        self.scheduled[self.serial] = sent
        self.serial += 1
        copy.store.timer.schedule([DelayedRecord(record, due_ms)], self.told(sent))

    def believes_to_lead(self, index: int) -> bool:
        replicated = self.copies[index].store.replicated
        return replicated is not None and replicated.leads_from is not None

    def fetch(self, index: int) -> None:
        """One fetch of a copy: it says what it has, and gets what follows."""
        if self.leader is None or index not in self.attached:
            return
        copy, leader = self.copies[index], self.copies[self.leader]
        log, its = copy.log, leader.log
        if log.failure is not None:
            return
        self.counted[index] = log.durable_position
        self.acknowledged[index] = max(self.acknowledged[index], log.durable_position)
        log.confirm_to(its.confirmed_position)
        log.drop_below(its.first_position)
        following = next_epoch(its.epochs, log.epochs[-1].epoch)
        if following is not None and following.start <= log.appended_position:
            assert following.start == log.appended_position
            if log.durable_position == log.appended_position:
                self.have_room(index)
                copy.begin_epoch(following.epoch)
            return
        try:
            copy.fetch(leader, self.chance.choice((1, 300, 1000, 1 << 20)))
        except BehindError:
            self.attached.discard(index)
            copy.settle()
            self.start_over(index)
        except HoldMQError as error:
            if not error.retriable:
                assert log.failure is not None

    def catch_up(self, index: int) -> None:
        """Some fetches of a copy, one after the other."""
        self.attach(index)
        for _ in range(self.chance.choice((2, 10, 40))):
            self.fetch(index)
            self.write(index)
            self.deliver(index)
        self.grow(index)

    def confirm(self) -> None:
        """Let the leader confirm what all have that count."""
        if self.leader is None:
            return
        log = self.copies[self.leader].log
        limit = min(
            log.durable_position if index == self.leader else self.counted.get(index, 0)
            for index in self.in_sync | {self.leader}
        )
        if limit > len(self.log):
            self.log += raw_log(self.copies[self.leader], len(self.log), limit)
        log.confirm_to(limit)

    def write(self, index: int) -> None:
        self.copies[index].store.writer.step()

    def flush_logs(self, index: int) -> None:
        copy = self.copies[index]
        if self.chance.random() < 0.5:
            self.pass_time(11)
        copy.store.flusher.step()

    def tick(self, index: int) -> None:
        self.pass_time(0.5)
        self.copies[index].store.timer.step()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for index, copy in enumerate(self.copies):
            copy.now_s = self.now_s + index  # no two clocks are the same

    # What happens to them

    def have_room(self, index: int) -> None:
        disk = self.copies[index].disk
        disk.capacity_bytes = None
        if index not in self.broken:
            disk.failing = lambda _asked, _path: None

    def stop(self, index: int) -> None:
        """Its process is gone, or will be at once."""
        self.broken.discard(index)
        self.have_room(index)
        self.attached.discard(index)
        self.counted.pop(index, None)
        if self.leader == index:
            self.leader = None

    def kill(self, index: int) -> None:
        self.stop(index)
        copy = self.copies[index]
        was_whole, failure = copy.log.is_whole, copy.log.failure
        copy.kill()
        self.note("killed")
        self.started(index)
        if failure is None:
            assert copy.log.written_position >= self.acknowledged[index]
            assert copy.log.is_whole or not was_whole

    def restart(self, index: int) -> None:
        copy = self.copies[index]
        self.have_room(index)
        copy.settle()
        self.stop(index)
        was_whole, failure = copy.log.is_whole, copy.log.failure
        copy.restart()
        self.note("restarted")
        self.started(index)
        if failure is None:
            assert copy.log.is_whole or not was_whole

    def lose_power(self, index: int) -> None:
        if self.flush == "async" and not self.may_lose(index):
            return
        self.stop(index)
        copy = self.copies[index]
        copy.lose_power(self.chance.randrange(1 << 30))
        self.note("lost power")
        if copy.log.written_position < self.acknowledged[index]:
            assert self.flush == "async"
            assert not copy.log.is_whole, "it knows that it lacks something"
            self.note("lost records")
        self.started(index)

    def started(self, index: int) -> None:
        """It is up again: what is not sure to be whole is counted no more."""
        log = self.copies[index].log
        assert log.epochs[-1].epoch <= self.epoch
        if not log.is_whole:
            self.in_sync.discard(index)
            self.acknowledged[index] = min(self.acknowledged[index], log.written_position)
            self.seen[index] = min(self.seen[index], log.written_position)

    def may_lose(self, index: int) -> bool:
        """Whether others surely have everything without it."""
        others = [i for i in self.in_sync - self.broken - {index} if self.copies[i].log.is_whole]
        return any(self.copies[i].log.failure is None for i in others)

    def fill_up(self, index: int) -> None:
        """No room for a while, or in a moment."""
        disk = self.copies[index].disk
        if index in self.broken or self.chance.random() < 0.5:
            disk.capacity_bytes = disk.used_bytes + self.chance.choice((0, 100, 3000))
        else:
            where = self.chance.choice(("commitlog", "0", "devices"))
            disk.failing = lambda asked, path: (
                errno.ENOSPC if asked in ("write", "preallocate") and where in path.parts[-2:] else None
            )
        self.note("full")

    def break_disk(self, index: int) -> None:
        """Its disk fails, until the process is started again."""
        if not self.may_lose(index):
            return
        asked_for = self.chance.choice(("write", "sync"))
        self.broken.add(index)
        self.copies[index].disk.failing = lambda asked, path: (
            errno.EIO if asked == asked_for and path.parent.name == "commitlog" else None
        )
        self.note("broken")

    def damage(self, index: int) -> None:
        """Bytes change on the way: they are refused, and nothing else happens."""
        if self.leader is None or index not in self.attached:
            return
        copy, leader = self.copies[index], self.copies[self.leader]
        position = copy.log.appended_position
        following = next_epoch(leader.log.epochs, copy.log.epochs[-1].epoch)
        if following is not None and following.start <= position:
            return
        try:
            given = leader.read(position, 1 << 20)
        except BehindError:
            return
        data = bytearray(b"".join(given.parts))
        if len(data) <= 8:
            return  # a blank is what its eight bytes say
        at = self.chance.randrange(len(data))
        if self.chance.random() < 0.3:
            del data[-self.chance.choice((1, 2, 50)) :]
        else:
            data[at] ^= 1 << self.chance.randrange(8)
        try:
            copy.log.append_copied(memoryview(data), position, copy.copied.append)
        except HoldMQError:
            assert copy.log.appended_position == position
            self.note("damaged")
            return
        raise AssertionError(f"damage at {at} of {len(data)} was taken")

    # One step, and what holds after it

    def step(self) -> None:
        chance = self.chance
        index = chance.randrange(len(self.copies))
        what = chance.random()
        for limit, act in self.acts(index):
            if what < limit:
                act()
                break
            what -= limit
        if chance.random() < 0.7:
            self.deliver(chance.randrange(len(self.copies)))
        if self.leader is not None and self.copies[self.leader].log.failure is not None:
            self.leader = None
        if self.leader is None and chance.random() < 0.3:
            self.elect()
        for each, copy in enumerate(self.copies):
            if copy.log.failure is not None and chance.random() < 0.2:
                self.kill(each)
        self.check()

    def acts(self, index: int) -> list[tuple[float, Callable[[], object]]]:
        return [
            (0.17, self.append),
            (0.03, self.schedule),
            (0.18, lambda: self.write(index)),
            (0.18, lambda: self.fetch(index)),
            (0.05, lambda: self.catch_up(index)),
            (0.08, self.confirm),
            (0.07, lambda: self.attach(index)),
            (0.05, lambda: self.grow(index)),
            (0.05, lambda: self.flush_logs(index)),
            (0.04, lambda: self.tick(index)),
            (0.02, lambda: self.damage(index)),
            (0.01, lambda: self.shrink(index)),
            (0.01, lambda: self.fill_up(index)),
            (0.01, lambda: self.have_room(index)),
            (0.01, lambda: self.kill(index)),
            (0.01, lambda: self.lose_power(index)),
            (0.01, lambda: self.restart(index)),
            (0.005, lambda: self.break_disk(index)),
            (0.02, self.elect),
        ]

    def deliver(self, index: int) -> None:
        copy = self.copies[index]
        for _ in range(self.chance.choice((1, 3, 1000))):
            if not copy.posted:
                return
            copy.posted.popleft()()

    def check(self) -> None:
        """What holds at every moment."""
        for index, copy in enumerate(self.copies):
            log, store = copy.log, copy.store
            assert log.first_position <= log.confirmed_position <= log.durable_position
            if log.failure is None:
                assert log.durable_position <= log.written_position <= log.appended_position
            confirmed = log.confirmed_position
            assert confirmed <= len(self.log)
            assert confirmed >= min(self.seen[index], store._checkpoint.position)
            self.seen[index] = confirmed
            assert store._checkpoint.position <= confirmed
            assert store.flusher.indexed <= confirmed
            assert store.index.keys.position <= confirmed
            assert store.timer.follower.end <= confirmed
        for sent in self.sent:
            if sent.is_told and sent.error is None and sent.batch is not None:
                batch = sent.batch
                assert self.log[batch.position : batch.end] == batch.records, "told only of what is confirmed"
        self.sent = [sent for sent in self.sent if not sent.is_told or sent.error is not None]

    def compare(self) -> None:
        """Every copy has the bytes that were confirmed, as far as it has any."""
        for copy in self.copies:
            first = copy.log.first_position
            end = copy.log.confirmed_position
            assert raw_log(copy, first, end) == self.log[first:end]

    # The end

    def heal(self) -> None:
        """Nothing fails any more: all become the same, whoever leads."""
        for index, copy in enumerate(self.copies):
            self.have_room(index)
            if copy.log.failure is not None or index in self.broken:
                self.kill(index)
        while self.leader is None:
            assert self.elect(), "somebody has everything"
        leader = self.copies[self.leader]
        for seconds in (1, 1, 2_000, 10, 10, 10, 10):
            self.pass_time(seconds)
            self.bring_up()
            for copy in self.copies:
                copy.store.timer.step()
                copy.deliver()
            self.bring_up()
        for copy in self.copies:
            # A file that lost its end twice may end where the log did: two files have the same bytes.
            low, end = max(copy.log.first_position, leader.log.first_position), len(self.log)
            assert raw_log(copy, low, end) == raw_log(leader, low, end)
            assert copy.log.confirmed_position == leader.log.confirmed_position == len(self.log)
            assert [tuple(each) for each in copy.log.epochs] == [tuple(each) for each in leader.log.epochs]

    def let_each_lead(self) -> None:
        """Each takes the lead in turn, delays a record, and releases it."""
        for index, copy in enumerate(self.copies):
            assert self.elect(index)
            self.schedule()
            self.bring_up()
            copy.store.timer.step()
            assert copy.store.timer.pending == len(pending_in(self.notes(), copy.log.first_position))
            for _ in range(4):
                self.pass_time(500)
                copy.store.timer.step()
                self.bring_up()
                copy.store.timer.step()
                assert copy.store.timer.pending == len(pending_in(self.notes(), copy.log.first_position))
            assert copy.store.timer.pending == 0

    def bring_up(self) -> None:
        """Let all have what the leader has."""
        for _ in range(3000):
            ends = set()
            for index, copy in enumerate(self.copies):
                copy.settle()
                if copy.log.failure is not None:
                    self.kill(index)
                    if self.leader is None:
                        assert self.elect(), "somebody has everything"
                self.attach(index)
                self.fetch(index)
                copy.settle()
                self.grow(index)
                copy.flush_step()
                ends.add((copy.log.written_position, copy.log.confirmed_position, copy.log.epochs[-1].epoch))
            self.confirm()
            for copy in self.copies:
                copy.settle()
            self.check()
            if len(ends) == 1 and len(self.in_sync) == len(self.copies):
                (written, confirmed, _), *_ = ends
                if written == confirmed:
                    return
        raise AssertionError("they do not become the same")

    def check_whole(self) -> None:
        """Everything that is derived is what the log says, also when it is built anew."""
        notes = self.notes()
        self.check_told(notes)
        expected: dict[tuple[str, int], tuple[int, bytes]] = {}
        for copy in self.copies:
            first = copy.log.first_position
            for again in range(3):
                if again == 1:
                    copy.kill()
                elif again == 2:
                    copy.settle()
                    copy.store.close()
                    for name in ("consumequeue", "keyindex", "timer"):
                        remove(copy.disk, HOME / name)
                    copy._again()
                copy.confirm(len(self.log))
                copy.flush_step()
                copy.store.timer.step()
                copy.deliver()
                for topic, queue_id in (*KEYS, LATE, ("%TIMER", 0)):
                    found = (
                        copy.log.queue_ends().get((topic, queue_id), 0),
                        copy.queue_bytes(queue_id, topic),
                    )
                    known = expected.setdefault((topic, queue_id), found)
                    # A copy may have a segment that is gone elsewhere.
                    assert found[0] == known[0]
                    assert found[1].endswith(known[1]) or known[1].endswith(found[1])
                    if first == self.copies[0].log.first_position:
                        assert found == known, (topic, queue_id, again)
                check_keys(copy.store, copy.disk, HOME / "keyindex", notes, self.chance)
                if copy.store.timer._is_counted:
                    assert copy.store.timer.pending == len(pending_in(notes, first))

    def notes(self) -> list[Note]:
        return [note for batch in batches_in(self.log) for note in notes_of(batch)]

    def check_told(self, notes: list[Note]) -> None:
        refused = [
            sent
            for sent in (*self.sent, *self.scheduled.values())
            if sent.error is not None and not isinstance(sent.error, ShardLostError)
        ]
        for sent in refused:
            for serial in sent.serials:
                assert b"\x01u%d\x02" % serial not in self.log, "nothing of what was refused is stored"
        left = [note.leaves for note in notes if note.leaves is not None]
        assert len(left) == len(set(left)), "each delayed record leaves once"
        for serial, sent in self.scheduled.items():
            if sent.is_told and sent.error is None:
                assert self.log.count(b"\x01u%d\x02" % serial) >= 2, "it waited, and left"


def _settings(retention_segments: int) -> dict[str, object]:
    return {
        "retention_segments": retention_segments,
        "disk_early_percent": 1000.0,
        "disk_forced_percent": 1000.0,
        "disk_refuse_percent": 1000.0,
    }


def _properties(serial: int) -> bytes:
    """A tag and an id of its own for each, a key for some."""
    keys = b"KEYS\x01k%d\x02" % (serial % 5) if serial % 4 == 0 else b""
    return b"TAGS\x01%d/t\x02" % (serial % 7) + keys + b"UNIQ_KEY\x01u%d\x02" % serial


def raw_log(copy: CopyOfLog, begin: int, end: int) -> bytes:
    """The bytes of a log from its files."""
    parts = []
    for segment in copy.store._segments.table:
        low, high = max(begin, segment.start), min(end, segment.end)
        if low < high:
            content = copy.disk.content(segment.path)[low - segment.start : high - segment.start]
            parts.append(bytes(content).ljust(high - low, b"\0"))
    raw = b"".join(parts)
    assert len(raw) == end - begin
    return raw


def batches_in(log: bytearray) -> list[Batch]:
    """All batches of a log that begins at position 0."""
    found: list[Batch] = []
    position = 0
    while position < len(log):
        view = memoryview(bytes(log[position:]))
        whole = whole_records(view, position)
        if not len(whole.sizes):
            blank = blank_size_at(view, 0)
            assert blank, f"nothing at {position}: {whole.reason}"
            position += blank
            continue
        found.append(batch_of(view, whole.sizes, position, lambda _: 1))
        position = found[-1].end
    return found


def remove(disk: SimDisk, directory: Path) -> None:
    """Delete all files below a directory."""
    for name in disk.list(directory):
        path = directory / name
        try:
            disk.content(path)
        except AssertionError:
            remove(disk, path)
        else:
            disk.unlink(path)
