"""QoS 2 publishes over crashes at any point: gateway, row and broker, and a client that keeps its half.

Whatever dies and whatever is still on its way from a gateway that is gone, no message is in the log twice,
and in the end every one is there.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.produce.core.received import ReceivedIds as Known
from gateway.session.received import ReceivedQueues, ReceivedWrite
from holdmq.record.codec import SYS_QOS_SHIFT, encode_record
from holdmq.record.once import Once
from holdmq.wire.session_state import ReceivedRow, SessionState, decode_state
from storage.api.batches import Batch, BatchRun

UID = 77
QUEUE = ("b1", 0)


class Message:
    """One message of the client: `is_received` once PUBREC came."""

    def __init__(self, body: int) -> None:
        self.body = body
        self.is_received = False


class Connection:
    """A gateway's side: `sending` are records on their way, `writing` the row on its way."""

    def __init__(self, epoch: int, row: ReceivedRow | None) -> None:
        self.received = ReceivedQueues(UID, epoch, row)
        self.unreleased: dict[int, bool] = dict.fromkeys(self.received.recorded, True)
        self.sending: list[tuple[int, int, bytes]] = []
        self.writing: tuple[ReceivedRow, ReceivedWrite] | None = None
        self.waits_for_row: list[tuple[int, Message]] = []
        self.asked: set[int] = set()


class Model:
    """`step` does one thing, if it can happen now."""

    def __init__(self) -> None:
        self.epoch = 100
        self.row: ReceivedRow | None = None
        self.connection = Connection(self.epoch, None)
        self.stale: list[tuple[int, int, bytes]] = []
        self.known = Known(trim_from=0)
        self.snapshot: dict[str, Any] = {}
        self.snapshot_at = 0
        self.log: list[tuple[int, bytes]] = []
        self.on_their_way: list[tuple[Connection | None, int, int, bytes, list[tuple[int, Once]]]] = []
        self.client: dict[int, Message] = {}
        self.to_resend: list[int] = []
        self.published = 0

    # The client

    def step(self, kind: str, choice: int) -> None:
        connection = self.connection
        received = [i for i, m in self.client.items() if m.is_received and i not in connection.asked]
        if kind == "publish" and len(self.client) < 4:
            self.publish(choice % 4 + 1)
        elif kind == "resend" and self.to_resend:
            self.resend()
        elif kind == "pubrel" and received:
            self._take_pubrel(received[choice % len(received)])
        elif kind == "write row" and connection.writing is None:
            self.write_row()
        elif kind == "row is written" and connection.writing is not None:
            self.row_is_written()
        elif kind == "row is not answered" and connection.writing is not None:
            self.row_is_not_answered(is_stored=choice % 2 == 0)
        elif kind == "produce" and connection.sending:
            self.produce()
        elif kind == "late" and self.stale:
            self.produce_what_comes_late(choice % len(self.stale))
        elif kind == "confirm" and self.on_their_way:
            self.confirm()
        elif kind == "snapshot":
            self.take_snapshot()
        elif kind == "broker dies":
            self.broker_dies(choice % 5)
        elif kind == "worker dies":
            self.worker_dies(is_stored=choice % 2 == 0, is_late=choice % 4 < 2)
        elif kind == "connection ends":
            self.connection_ends()
        self.nothing_is_stored_twice()

    def publish(self, packet_id: int) -> None:
        while packet_id in self.client:
            packet_id = packet_id % 4 + 1
        self.published += 1
        message = self.client[packet_id] = Message(self.published)
        self._take_publish(packet_id, message)

    def resend(self) -> None:
        packet_id = self.to_resend.pop(0)
        message = self.client[packet_id]
        if message.is_received:
            self._take_pubrel(packet_id)
        else:
            self._take_publish(packet_id, message)

    # The gateway

    def _take_publish(self, packet_id: int, message: Message) -> None:
        connection = self.connection
        if packet_id in connection.unreleased:
            message.is_received = message.is_received or connection.unreleased[packet_id]
            return
        connection.unreleased[packet_id] = False
        if connection.received.queues.get("t") != QUEUE:
            connection.waits_for_row.append((packet_id, message))
            if len(connection.waits_for_row) == 1:
                connection.received.bind("t", QUEUE, self._bound)
            return
        connection.sending.append((packet_id, message.body, connection.received.note(packet_id)))

    def _bound(self) -> None:
        connection = self.connection
        for packet_id, message in connection.waits_for_row:
            connection.sending.append((packet_id, message.body, connection.received.note(packet_id)))
        connection.waits_for_row.clear()

    def _take_pubrel(self, packet_id: int) -> None:
        if packet_id in self.connection.asked:
            return  # a client sends PUBREL once over a connection
        self.connection.asked.add(packet_id)
        if packet_id in self.to_resend:
            self.to_resend.remove(packet_id)
        self.connection.unreleased.pop(packet_id, None)
        self.connection.received.release(packet_id, 0)

    def write_row(self) -> None:
        connection = self.connection
        row = connection.received.row(connection.unreleased)
        connection.writing = (self._as_stored(row), connection.received.begin_write(connection.unreleased))

    def _as_stored(self, row: ReceivedRow) -> ReceivedRow:
        decoded = decode_state(SessionState({}, [], 1, row).encode()).received
        assert decoded is not None
        return decoded

    def row_is_written(self) -> None:
        connection = self.connection
        assert connection.writing is not None
        self.row, write = connection.writing
        connection.writing = None
        connection.received.written(write)
        for packet_id in write.completed:
            connection.asked.discard(packet_id)
            self.client.pop(packet_id, None)
        for bound in write.bound:
            bound()

    def row_is_not_answered(self, *, is_stored: bool) -> None:
        connection = self.connection
        assert connection.writing is not None
        row, write = connection.writing
        connection.writing = None
        self.row = row if is_stored else self.row
        connection.received.failed(write)

    # The broker

    def produce(self) -> None:
        if self._produce(self.connection, *self.connection.sending[0]):
            self.connection.sending.pop(0)

    def produce_what_comes_late(self, at: int) -> None:
        if self._produce(None, *self.stale[at]):
            self.stale.pop(at)

    def _produce(self, connection: Connection | None, packet_id: int, body: int, pair: bytes) -> bool:
        sifted = self.known.sift([pair])
        if sifted is None:
            return False
        if sifted.kept:
            self.on_their_way.append((connection, packet_id, body, pair, sifted.notes))
        else:
            self._answer(connection, packet_id)
        return True

    def confirm(self) -> None:
        connection, packet_id, body, pair, notes = self.on_their_way.pop(0)
        self.known.confirm(notes, len(self.log))
        self.log.append((body, pair))
        self._answer(connection, packet_id)

    def _answer(self, connection: Connection | None, packet_id: int) -> None:
        if connection is self.connection and packet_id in connection.unreleased:
            connection.unreleased[packet_id] = True
            self.client[packet_id].is_received = True

    def take_snapshot(self) -> None:
        captured = [self.known.capture(uid) for uid in self.known.uids()]
        self.snapshot = {f"{n:08}": row for n, row in enumerate(captured) if row is not None}
        self.snapshot_at = len(self.log)

    def broker_dies(self, kept: int) -> None:
        """Of what was on its way the log has the first part; who lives sends again what was not answered."""
        again: list[tuple[int, int, bytes]] = []
        for at, (connection, packet_id, body, pair, _notes) in enumerate(self.on_their_way):
            if at < kept:
                self.log.append((body, pair))
            if connection is self.connection:
                again.append((packet_id, body, pair))
        self.connection.sending[:0] = again
        self.on_their_way.clear()
        self.known = Known(trim_from=0)
        self.known.load(self.snapshot)
        begin = self.snapshot_at
        if self.log[begin:]:
            self.known.apply(batch_of(self.log[begin:], begin))

    # Ends

    def worker_dies(self, *, is_stored: bool, is_late: bool) -> None:
        """`is_stored`: the row that was on its way arrives; `is_late`: so do its records, any time later."""
        connection = self.connection
        if connection.writing is not None and is_stored:
            self.row = connection.writing[0]
        if is_late:
            self.stale += connection.sending
        self._connect()

    def connection_ends(self) -> None:
        """In order: the row says at the end how it stands."""
        connection = self.connection
        if connection.writing is not None:
            self.row = connection.writing[0]
        self.row = self._as_stored(connection.received.row(connection.unreleased, is_over=True))
        self.stale += connection.sending
        self._connect()

    def _connect(self) -> None:
        self.epoch += 1
        self.connection = Connection(self.epoch, self.row)
        self.to_resend = list(self.client)

    # What holds

    def nothing_is_stored_twice(self) -> None:
        bodies = [body for body, _ in self.log]
        assert len(bodies) == len(set(bodies)), bodies

    def end(self) -> None:
        """Nothing dies any more: all is there, once."""
        for _ in range(100):
            if not self.client:
                break
            for packet_id in list(self.client):
                if self.client[packet_id].is_received:
                    self._take_pubrel(packet_id)
                else:
                    self._take_publish(packet_id, self.client[packet_id])
            self.to_resend = []
            if self.connection.writing is None:
                self.write_row()
            self.row_is_written()
            while self.on_their_way:
                self.confirm()
            while self.connection.sending and self._produce(self.connection, *self.connection.sending[0]):
                self.connection.sending.pop(0)
            while self.on_their_way:
                self.confirm()
        assert not self.client
        self.nothing_is_stored_twice()
        assert sorted(body for body, _ in self.log) == list(range(1, self.published + 1))


def batch_of(records: list[tuple[int, bytes]], base_offset: int) -> Batch:
    """As a start reads them from the log."""
    raw = [
        encode_record(b"t", 0, b"%d" % body, pair, 1, sys_flag=2 << SYS_QOS_SHIFT) for body, pair in records
    ]
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    return Batch(memoryview(b"".join(raw)), sizes, [BatchRun("t", 0, len(raw), base_offset=base_offset)])


STEPS = {
    "publish": 4,
    "resend": 3,
    "pubrel": 3,
    "write row": 3,
    "row is written": 3,
    "row is not answered": 1,
    "produce": 4,
    "late": 1,
    "confirm": 4,
    "snapshot": 1,
    "broker dies": 1,
    "worker dies": 1,
    "connection ends": 1,
}
"""What happens, and how often beside the others."""


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @rule(kind=st.sampled_from(sorted(STEPS)), choice=st.integers(0, 19))
    def step(self, kind: str, choice: int) -> None:
        self.model.step(kind, choice)

    def teardown(self) -> None:
        self.model.end()


Machine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestPublishesOverCrashes = Machine.TestCase

RUNS = int(os.environ.get("HOLDMQ_RECEIVED_RUNS", "1500"))
"""HOLDMQ_RECEIVED_RUNS=100000 for the long form."""


def test_long_runs_of_chance_store_everything_once() -> None:
    chance = random.Random(5)
    kinds, weights = list(STEPS), list(STEPS.values())
    for _ in range(RUNS):
        model = Model()
        done = []
        for kind in chance.choices(kinds, weights, k=90):
            choice = chance.randrange(20)
            done.append((kind, choice))
            try:
                model.step(kind, choice)
            except AssertionError as error:
                raise AssertionError(f"after {done}") from error
        model.end()
