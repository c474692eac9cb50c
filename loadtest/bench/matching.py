"""The filter trie: what a match costs, and what a filter takes, by how many there are.

    python -m loadtest.bench.matching [--filters 1000 10000 100000] [--memory 1000000]

Three kinds of filters, a subscriber each: exact (`cmd/<device>/set`), below (`cmd/<device>/#`), plus
(`cmd/<device>/+/set`). A match is of a topic that one filter matches: CPU time, the best of five rounds.
Memory is what the process grew by while filters were added, with a number as subscriber.

Deep is what somebody would do who wants to stop a worker: filters of `+` and `a` with 128 levels that all
match `a/a/a…`. 64 of them are what `gateway.plus_levels_per_client_max` leaves a client; 1,000 are beyond it.
Beside the time it says how many nodes and levels one match looked at. Again is the same topic once more.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from holdmq.mqtt import FilterTrie
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.usage import resident_bytes

ROUNDS: Final = 5
MATCHES: Final = 20_000
KINDS: Final[dict[str, tuple[str, str]]] = {
    "exact": ("cmd/device-{n:07d}/set", "cmd/device-{n:07d}/set"),
    "below": ("cmd/device-{n:07d}/#", "cmd/device-{n:07d}/set/x"),
    "plus": ("cmd/device-{n:07d}/+/set", "cmd/device-{n:07d}/valve/set"),
}


DEEP_LEVELS: Final = 128
DEEP_FILTERS: Final = (64, 1_000)


def filled(topic_filter: str, count: int) -> FilterTrie[int, int]:
    """A trie with so many filters."""
    trie: FilterTrie[int, int] = FilterTrie()
    for n in range(count):
        trie.add(topic_filter.format(n=n), n, n)
    return trie


def match_ns(trie: FilterTrie[int, int], topic: str, count: int) -> float:
    """Nanoseconds of CPU of one match, topics spread over all filters."""
    step = max(1, count // 1_000)
    topics = [topic.format(n=n).encode() for n in range(0, count, step)]
    if any(len(trie.match(each)) != 1 for each in topics):
        raise AssertionError("a topic has not one subscriber")
    best = float("inf")
    repeats = max(1, MATCHES // len(topics))
    match: Callable[[bytes], list[tuple[int, int]]] = trie.match
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(repeats):
            for each in topics:
                match(each)
        best = min(best, (time.thread_time_ns() - began) / (repeats * len(topics)))
    return best


def deep_match(count: int, steps_budget: int) -> tuple[float, int]:
    """Milliseconds of CPU of one match, the best of five, and its steps, by so many deep filters."""
    choose = Random(1)  # noqa: S311 # the same filters each time, nothing secret
    trie: FilterTrie[int, int] = FilterTrie(steps_budget)
    while len(trie) < count:
        trie.add("/".join(["+", *choose.choices("+a", k=DEEP_LEVELS - 1)]), 0, 0)
    topic = "/".join("a" * DEEP_LEVELS).encode()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        found = trie.match(topic)
        best = min(best, (time.thread_time_ns() - began) / 1e6)
        if len(found) != count:
            raise AssertionError("a deep filter does not match")
    return best, trie.steps


def bytes_per_filter(topic_filter: str, count: int) -> float:
    """What a filter takes, measured in a process of its own: what one frees the next one uses."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        before = resident_bytes(os.getpid())
        trie = filled(topic_filter, count)
        grown = resident_bytes(os.getpid()) - before
        os.write(write_end, str(grown / len(trie)).encode())
        os._exit(0)
    os.wait()
    os.close(write_end)
    with os.fdopen(read_end) as told:
        return float(told.read())


def measure(options: Options, _home: Path) -> None:
    """Print what a match costs and a filter takes, for every kind of filter."""
    for kind, (topic_filter, topic) in KINDS.items():
        costs = [
            f"{count:,}: {match_ns(filled(topic_filter, count), topic, count):,.0f} ns"
            for count in options.filters
        ]
        size = bytes_per_filter(topic_filter, options.memory)
        say(f"{kind:6} match {'  '.join(costs)}; {size:.0f} bytes a filter of {options.memory:,}")
    costs = []
    for count in DEEP_FILTERS:
        took_ms, steps = deep_match(count, 1 << 60)
        again_ms, _ = deep_match(count, 0)
        costs.append(f"{count:,}: {took_ms:.3f} ms in {steps:,} steps, again {again_ms:.3f} ms")
    say(f"deep   match {'  '.join(costs)}")


def main() -> int:
    """Run the benchmark and print its lines; the exit code."""
    return BenchCommand(
        __doc__, filters=[1_000, 10_000, 100_000], memory=(1_000_000, "filters whose memory is measured")
    ).run(measure)


if __name__ == "__main__":
    sys.exit(main())
