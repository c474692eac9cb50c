"""What the servers have of one shard, read as it was at one moment, and what in it contradicts itself.

A shard is a broker's name; all of its keys have one hash tag, and are those of `storage.kv.core.layout`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import redis

from holdmq.errors import StoreFormatError
from holdmq.names.topics import PRODUCED_TOPIC
from storage.core.epochs import Epochs
from storage.kv.core.layout import FORMAT, IMPORTING, RUN, ShardKeys, offset_in, queue_of

STEP: Final = 256
"""Queues, or keys, that one transaction asks for: a server does nothing else meanwhile, for some ms."""
RUNS_READ: Final = 100
"""Newest runs of a queue whose bytes are counted; what is older is taken to be like them."""
T = TypeVar("T")
NUMBERS: Final = ("format", "term", "lease_ms", "end", "first", "store_ms", "lost")


class KvFinding(NamedTuple):
    """One thing of a shard that cannot be as it is."""

    shard: str
    key: str
    what: str


class QueueFacts(NamedTuple):
    """A queue: what the hashes say of it, and what its stream has."""

    name: str
    """Topic and queue id, with a slash between, as hashes have it."""
    next: int | None
    first: int | None
    last: int | None
    """The last id that its stream was given; None = there is no stream."""
    runs: int
    oldest: tuple[int, int] | None
    """Offset behind the oldest run that is kept, and its records."""

    @property
    def topic(self) -> str:
        return queue_of(self.name)[0]


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """A shard as it was at one moment, but for queues, each of which is of a moment of its own."""

    keys: ShardKeys
    state: dict[str, str]
    now_ms: int
    """What the server's clock said."""
    epochs: str | None
    log_last: int | None
    log_batches: int
    log_oldest: tuple[int, int] | None
    """Position behind the oldest batch that is kept, and its bytes."""
    waiting: tuple[int, int]
    """Delayed messages by due time, and their records."""
    queues: list[QueueFacts]
    tables: dict[str, tuple[int, int, int]]
    """Topic → rows, keys in their order, and rows as each change counted them."""

    @property
    def name(self) -> str:
        return self.keys.shard

    def number(self, field: str) -> int:
        """A number of the state; 0 where there is none."""
        return number_in(self.state.get(field)) or 0

    @property
    def lease_left_ms(self) -> int:
        """How long its owner has it, by the server's clock; 0 = anybody may take it."""
        return max(0, self.number("lease_ms") - self.now_ms)

    @property
    def epoch(self) -> int:
        """The log epoch; 0 when it cannot be read."""
        found = _epochs_of(self)
        return found.current if isinstance(found, Epochs) else 0


def shard_names(client: redis.Redis, key: str) -> list[str]:
    """The shards that a set of them has."""
    return sorted(_text(name) for name in client.smembers(key))


def keys_of(client: redis.Redis, tag: str) -> Iterator[list[str]]:
    """All keys of a shard, in steps; one that comes or goes meanwhile may be missing."""
    for step in _in_steps(client.scan_iter(match=f"{tag}:*", count=10 * STEP)):
        yield sorted({_text(key) for key in step})


def read_shard(client: redis.Redis, keys: ShardKeys) -> ShardFacts:
    """Read a shard from the server that has it."""
    named: dict[str, set[str]] = {kind: set() for kind in "qTK"}
    for step in keys_of(client, keys.tag):
        for key in step:
            kind, _, name = key[len(keys.tag) + 1 :].partition(":")
            if kind in named:
                named[kind].add(name)
    asked = client.pipeline(transaction=True)
    asked.hgetall(keys.state)
    asked.time()
    asked.get(keys.epochs)
    asked.xinfo_stream(keys.log)
    asked.zcard(keys.due)
    asked.hlen(keys.waiting)
    asked.hkeys(keys.ends)
    asked.hkeys(keys.firsts)
    state, (seconds, micros), epochs, log, due, waiting, *fields = answers_of(asked)
    queues = named["q"].union(*(map(_text, known) for known in fields))
    oldest = None if log is None else log["first-entry"]
    return ShardFacts(
        keys=keys,
        state={_text(field): _text(value) for field, value in state.items()},
        now_ms=seconds * 1000 + micros // 1000,
        epochs=None if epochs is None else _text(epochs),
        log_last=None if log is None else offset_in(log["last-generated-id"]),
        log_batches=0 if log is None else log["length"],
        log_oldest=None if oldest is None else (offset_in(oldest[0]), len(oldest[1].get(b"r", b""))),
        waiting=(due, waiting),
        queues=list(_read_queues(client, keys, sorted(queues))),
        tables=dict(_read_tables(client, keys, sorted(named["T"] | named["K"]))),
    )


def _read_queues(client: redis.Redis, keys: ShardKeys, names: Sequence[str]) -> Iterator[QueueFacts]:
    for step in _in_steps(names):
        asked = client.pipeline(transaction=True)
        asked.hmget(keys.ends, step)
        asked.hmget(keys.firsts, step)
        for name in step:
            asked.xinfo_stream(keys.queue(*queue_of(name)))
        ends, firsts, *streams = answers_of(asked)
        for name, end, first, stream in zip(step, ends, firsts, streams, strict=True):
            last, runs, oldest = None, 0, None
            if stream is not None:
                last, runs = offset_in(stream["last-generated-id"]), stream["length"]
                if entry := stream["first-entry"]:
                    oldest = offset_in(entry[0]), run_in(entry[1])[3]
            yield QueueFacts(name, number_in(end), number_in(first), last, runs, oldest)


def _read_tables(
    client: redis.Redis, keys: ShardKeys, topics: Sequence[str]
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for step in _in_steps(topics):
        asked = client.pipeline(transaction=True)
        for topic in step:
            asked.hlen(keys.table(topic))
            asked.zcard(keys.table_order(topic))
            asked.hget(keys.sizes, f"{topic}/rows")
        answers = answers_of(asked)
        for i, topic in enumerate(step):
            rows, ordered, counted = answers[3 * i : 3 * i + 3]
            yield topic, (rows, ordered, number_in(counted) or 0)


def findings_in(facts: ShardFacts) -> Iterator[KvFinding]:
    """What in a shard cannot be as it is."""

    keys = facts.keys

    def found(key: str, what: str) -> KvFinding:
        return KvFinding(facts.name, key, what)

    if not facts.state:
        yield found(keys.state, "is missing: the shard has no state, and no broker can own it")
        return
    for field in NUMBERS:
        if number_in(facts.state.get(field)) is None:
            yield found(keys.state, f"has no number as its {field}: {facts.state.get(field)!r}")
    if facts.number("format") == IMPORTING:
        yield found(
            keys.state, "is imported half: run holdmq kv import again, which goes on where it stopped"
        )
        return
    if facts.number("format") != FORMAT:
        yield found(keys.state, f"is of format {facts.number('format')}; this version reads {FORMAT}")
        return
    end, first = facts.number("end"), facts.number("first")
    if first > end:
        yield found(keys.state, f"says that the log begins at {first} and ends at {end}")
    if (facts.log_last or 0) != end:
        yield found(keys.log, f"has {facts.log_last or 0} as its last id, and the log ends at {end}")
    if facts.log_oldest is not None and facts.log_oldest[0] - facts.log_oldest[1] != first:
        begin = facts.log_oldest[0] - facts.log_oldest[1]
        yield found(keys.log, f"begins at {begin}, and the log's first position is {first}")
    epochs = _epochs_of(facts)
    if isinstance(epochs, str):
        yield found(keys.epochs, epochs)
    elif (last_start := epochs.content()["epochs"][-1][1]) > end:
        yield found(keys.epochs, f"has an epoch that begins at {last_start}, behind the log's end {end}")
    for queue in facts.queues:
        stream = keys.queue(*queue_of(queue.name))
        yield from (found(stream, what) for what in _wrong_in(queue))
    for topic, (rows, ordered, counted) in facts.tables.items():
        if rows != ordered:
            yield found(keys.table(topic), f"has {rows} rows, and {ordered} keys are in their order")
        if rows != counted:
            yield found(keys.table(topic), f"has {rows} rows, and {counted} were counted")
    if facts.waiting[0] != facts.waiting[1]:
        due, records = facts.waiting
        yield found(keys.waiting, f"has {records} delayed messages, and {due} have a due time")


def _wrong_in(queue: QueueFacts) -> Iterator[str]:
    if queue.next is None:
        if queue.last is not None:
            yield f"is a stream up to {queue.last} of a queue that is not known"
        elif queue.first is not None:
            yield f"has a first offset, {queue.first}, and no next one"
        return
    if queue.last is None:
        if queue.next > 0:
            yield f"is missing, and the queue's next offset is {queue.next}"
    elif queue.last != queue.next:
        yield f"has {queue.last} as its last id, and the queue's next offset is {queue.next}"
    first = queue.first or 0
    if first > queue.next:
        yield f"is kept from {first} on, and its next offset is {queue.next}"
    if queue.oldest is not None and queue.oldest[0] - queue.oldest[1] != first:
        yield f"begins at {queue.oldest[0] - queue.oldest[1]}, and is kept from {first} on"


def _epochs_of(facts: ShardFacts) -> Epochs | str:
    """The log's epochs, or what is wrong with them."""
    if facts.epochs is None:
        return Epochs([])
    try:
        return Epochs.of_content(json.loads(facts.epochs), facts.keys.epochs)
    except (ValueError, TypeError):
        return "is no JSON"
    except StoreFormatError:
        return "has no list of rising epochs"


class TopicUse(NamedTuple):
    """What a topic has in a shard."""

    topic: str
    queues: int
    records: int
    batches: int
    bytes: int
    is_exact: bool
    """Whether each run's bytes were counted, and not only the newest runs' of each queue."""


def topics_in(client: redis.Redis, facts: ShardFacts) -> list[TopicUse]:
    """Count what each topic of a shard has; its bytes by the newest runs of each queue."""
    found: dict[str, TopicUse] = {}
    for step in _in_steps(queue for queue in facts.queues if queue.topic != PRODUCED_TOPIC):
        asked = client.pipeline(transaction=False)
        for queue in step:
            asked.xrevrange(facts.keys.queue(*queue_of(queue.name)), count=RUNS_READ)
        for queue, entries in zip(step, answers_of(asked), strict=True):
            runs = [run_in(fields) for _, fields in entries or ()]
            kept = (queue.next or 0) - (queue.first or 0)
            size, records = sum(run[2] for run in runs), sum(run[3] for run in runs)
            is_exact = queue.runs <= RUNS_READ
            total = size if is_exact else size * kept // max(1, records)
            before = found.get(queue.topic, TopicUse(queue.topic, 0, 0, 0, 0, True))
            found[queue.topic] = TopicUse(
                queue.topic, before.queues + 1, before.records + kept, before.batches + queue.runs,
                before.bytes + total, before.is_exact and is_exact,
            )  # fmt: skip
    return [found[topic] for topic in sorted(found)]


KINDS: Final = {
    "l": "log", "q": "queues", "b": "queues", "g": "queues", "t": "timers", "w": "timers", "T": "tables",
    "K": "tables", "z": "tables", "x": "keys", "s": "state", "e": "state", "f": "state",
    "h": "state",
}  # fmt: skip
"""What a key is for, by what follows the hash tag."""


def memory_of(client: redis.Redis, tag: str) -> dict[str, int]:
    """The bytes of memory that a shard takes, by what its keys are for, as MEMORY USAGE samples it."""
    found = dict.fromkeys(KINDS.values(), 0) | {"others": 0}
    for step in keys_of(client, tag):
        asked = client.pipeline(transaction=False)
        for key in step:
            asked.memory_usage(key)
        for key, size in zip(step, answers_of(asked), strict=True):
            kind = KINDS.get(key[len(tag) + 1 :].partition(":")[0], "others")
            found[kind] += size or 0
    return found


def _in_steps(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while step := list(islice(left, STEP)):
        yield step


def number_in(text: str | bytes | None) -> int | None:
    """The whole number that a text is; None if it is none."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def answers_of(asked: Any) -> list[Any]:
    """The answers of a pipeline; None for a key that is not there where a command wants one."""
    answers: list[Any] = []
    for answer in asked.execute(raise_on_error=False):
        if isinstance(answer, redis.ResponseError) and "no such key" in str(answer):
            answers.append(None)
        elif isinstance(answer, Exception):
            raise answer
        else:
            answers.append(answer)
    return answers


def run_in(fields: dict[bytes, bytes]) -> tuple[int, int, int, int]:
    """Log position, store time, bytes and records of a run; zeros for what is none."""
    packed = fields.get(b"p", b"")
    position, store_ms, size, records = RUN.unpack(packed) if len(packed) == RUN.size else (0, 0, 0, 0)
    return position, store_ms, size, records


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
