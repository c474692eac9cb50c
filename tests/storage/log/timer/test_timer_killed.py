"""kill -9 of a process with a timer: every delayed message is released, once, at its place."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from any_disk import ANY_DISK
from killed_program import said_until_killed

from holdmq.record.codec import decode_record
from storage.api.timer import value_of

ROUNDS: Final = 6
STORED_MIN: Final = 50
"""Messages that a process has stored before it is killed, however slow the machine is."""
CHILD: Final = """
import json, queue, random, sys, time
from holdmq.config.model import StorageSection
from holdmq.record.codec import encode_record
from storage.log.timer import timer
from storage.log.store import now_ms, open_store
from storage.api.timer import DelayedRecord

timer.CHECKPOINT_INTERVAL_S = 0.05
directory, seed = sys.argv[1], int(sys.argv[2])
rnd = random.Random(seed)
posted = queue.SimpleQueue()
settings = StorageSection.model_validate(
    {"data_dir": directory, "segment_size_bytes": 1 << 20, "flush_interval_ms": 20, **json.loads(sys.argv[3])}
)
store = open_store(settings, "b1", lambda _: 1, posted.put)
store.open()


def confirmed(names):
    def done(_batch, error):
        assert error is None, error
        sys.stdout.write("".join(f"{name}\\n" for name in names))
        sys.stdout.flush()
    return done


count = 0
while True:
    names = [f"{seed}-{count + i}" for i in range(rnd.randrange(1, 20))]
    count += len(names)
    messages = []
    for name in names:
        body = name.encode() + bytes(rnd.randrange(300))
        due_ms = now_ms() + rnd.choice([0, 5, 50, 300, 60_000])
        messages.append(DelayedRecord(encode_record(b"devices", 0, body, b"", 1), due_ms))
    store.timer.schedule(messages, confirmed(names))
    until = time.monotonic() + 0.002
    while time.monotonic() < until:
        try:
            posted.get(timeout=0.001)()
        except queue.Empty:
            pass
"""


@pytest.mark.timeout(900)
def test_every_delayed_message_is_released_once_across_kills(
    driver: Callable[..., Any], tmp_path: Path
) -> None:
    directory = tmp_path / "store"
    rnd = random.Random(11)
    stored: set[str] = set()
    for seed in range(ROUNDS):
        arguments = [str(directory), str(seed), json.dumps(ANY_DISK)]
        stored.update(said_until_killed(CHILD, arguments, STORED_MIN, rnd.uniform(0.0, 0.5)))
    d = driver(directory).open()
    assert d.store.epoch > 1
    d.clock_ms = int(time.time() * 1e3) + 200_000
    d.store.timer.wake()
    until = time.monotonic() + 100
    while d.store.bounds("devices", 0)[1] < d.store.bounds("%TIMER", 0)[1]:
        assert time.monotonic() < until
        d.posted.get(timeout=60)()
    d.wait_indexed()
    raw = d.queue_bytes("devices", 0, cold=True)
    released: list[str] = []
    origins: list[bytes | None] = []
    at = 0
    while at < len(raw):
        record = decode_record(raw, at)
        at += record.total_size
        released.append(record.body.rstrip(b"\0").decode())
        origins.append(value_of(record.properties, b"ORIGIN"))
    assert len(stored) >= ROUNDS * STORED_MIN
    assert len(set(origins)) == len(origins)
    assert len(set(released)) == len(released)
    assert stored <= set(released)
    # What was not answered may be stored all the same, but is nothing that nobody sent.
    assert len(released) == d.store.bounds("%TIMER", 0)[1]
