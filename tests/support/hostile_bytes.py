"""Changed bytes against one parser in this process, with a bound on work and memory of each input.

A parser may refuse an input with the errors that it documents. Anything else fails: another exception, more
memory than a multiple of what came, or a processor that is kept busy. The bound on the processor is that of a
watchdog, many times what the slowest input takes, and counts this process's own time only.
"""

from __future__ import annotations

import contextlib
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from types import FrameType
from typing import Final, NamedTuple

STALL_S: Final = 2.0
"""Processor time of one input: the slowest takes some milliseconds; colliding keys took minutes."""
MEMORY_BASE_BYTES: Final = 2 << 20
"""What a parser may hold whatever came: caches of the standard library, the text of an error."""
MEMORY_PER_BYTE: Final = 80
"""What a parser may hold for each byte: an empty map is one, and 64 here, and a pointer."""
BATCH: Final = 200
"""Inputs that are given for their work, before the same ones are for their memory."""
INPUT_MAX_BYTES: Final = 256 << 10
"""An input at most; repeated parts make it so large now and then."""

INTERESTING: Final = (
    b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
    b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\r\n", b"\n", b" ", b"",
)  # fmt: skip
"""Bytes at which something begins or ends: numbers at their limits, what is no UTF-8, ends of lines."""


class Stalled(BaseException):
    """An input kept the processor busy; no handler of a parser may take it for its own error."""


class Target(NamedTuple):
    """A parser under test.

    `parse` takes one input whole. `seeds` are inputs that are as they should be, or hostile in a way that
    chance would not find; `tokens` are pieces of which inputs are made; `refusals` is what it may raise.
    `large` are given once each, as they are.
    """

    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    tokens: Sequence[bytes]
    refusals: tuple[type[Exception], ...]
    large: Sequence[bytes] = ()


class Told(NamedTuple):
    """What the inputs did: how many were taken and refused, and the most memory that one held."""

    taken: int
    refused: int
    peak_bytes: int


class Mutations:
    """Gives changed inputs, the same ones for the same seed."""

    def __init__(self, seeds: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> None:
        self._rng = random.Random(seed)
        self._seeds = list(seeds)
        self._tokens = [*tokens, *INTERESTING]

    def inputs(self, count: int) -> Iterator[bytes]:
        """So many inputs; the seeds themselves are the first."""
        yield from self._seeds[:count]
        for _ in range(count - len(self._seeds)):
            yield self._changed(self._rng.choice(self._seeds))

    def _changed(self, seed: bytes) -> bytes:
        rng = self._rng
        data = bytearray(seed)
        for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 5)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(9)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1 and at < len(data):
                data[at] = rng.randrange(256)
            elif kind == 2:
                del data[at : at + rng.randint(1, 8)]
            elif kind == 3:
                data[at:at] = rng.choice(self._tokens)
            elif kind == 4:
                token = rng.choice(self._tokens)
                data[at : at + len(token)] = token
            elif kind == 5:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            elif kind == 6:
                other = rng.choice(self._seeds)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            elif kind == 7 and rng.random() < 0.2:
                part = bytes(data[at : at + rng.randint(1, 64)])
                data[at:at] = part * rng.choice((2, 16, 256, 1024))
            else:
                del data[at:]
        return bytes(data[:INPUT_MAX_BYTES])


def give(target: Target, count: int, seed: int) -> Told:
    """Give a parser so many inputs, each twice: for its work, and for its memory, as tracing that is slow.

    Fails with the first that goes past a bound or is not refused properly.
    """
    taken = refused = most = 0
    changed = Mutations(target.seeds, target.tokens, seed).inputs(count - len(target.large))
    inputs = chain(target.large, changed)
    while batch := list(islice(inputs, BATCH)):
        for data in batch:
            if _is_taken_in_time(target, data):
                taken += 1
            else:
                refused += 1
        tracemalloc.start(1)
        try:
            most = max(most, *(_memory_of(target, data) for data in batch))
        finally:
            tracemalloc.stop()
    return Told(taken, refused, most)


def _is_taken_in_time(target: Target, data: bytes) -> bool:
    """Whether the parser takes this; it may refuse it as it says."""
    previous = signal.signal(signal.SIGVTALRM, _stalled)
    signal.setitimer(signal.ITIMER_VIRTUAL, STALL_S)
    try:
        target.parse(data)
    except target.refusals:
        return False
    except Stalled:
        raise AssertionError(f"the processor was busy for {STALL_S} s with {_shown(data)}") from None
    except Exception as error:
        raise AssertionError(f"{error!r} is no proper refusal of {_shown(data)}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    return True


def _memory_of(target: Target, data: bytes) -> int:
    """How much memory the parser held at most, in bytes."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    with contextlib.suppress(*target.refusals):
        target.parse(data)
    peak = tracemalloc.get_traced_memory()[1] - before
    limit = MEMORY_BASE_BYTES + MEMORY_PER_BYTE * len(data)
    assert peak <= limit, f"{peak} bytes (at most {limit}) were held for {_shown(data)}"
    return peak


def _stalled(signum: int, frame: FrameType | None) -> None:
    raise Stalled


def _shown(data: bytes) -> str:
    return f"{len(data)} bytes {data[:300]!r}"
