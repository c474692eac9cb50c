"""What the pages and the API show, read at most once a second however many ask.

One thread reads the table, the event loop asks the cluster; both only while somebody looks. A page's
stream takes the newest `Frame` when it is ready for it: a slow page skips frames, and holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter as Counted
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter, Gauge

from console.live.answers import tps_answer
from console.live.cluster import Cluster
from console.live.core.window import WINDOW_S
from console.live.tables import TpsTable
from holdmq.service import telemetry

TICK_S: Final = 1.0
"""Time between two events of a stream: what the job's seconds change in."""

FRESH_S: Final = 0.5
"""An answer may be this old: a poller that asks more often gets the same one again."""

STREAM_SECONDS: Final = 15
"""Seconds that each event repeats: parts of a second may come late, from a topic that lags behind."""

STREAM_TOPICS: Final = 24
"""Topics that an event names, the busiest; more lines than that nobody can tell apart."""

OVERVIEW_WAIT_S: Final = 0.25
"""How long an event waits for the cluster's answers; without them it carries the counts alone."""

STREAMS: Final = Gauge("holdmq_console_streams", "Pages that hold a stream open.", registry=telemetry.METRICS)
STREAMS_REFUSED: Final = Counter(
    "holdmq_console_streams_refused_total",
    "Streams refused because console.streams_max were open.",
    registry=telemetry.METRICS,
)


class StreamsFullError(Exception):
    """console.streams_max pages are open."""


class SharedFeed:
    """The shared view. `run` drives the streams until `close`; the other calls may come at any time."""

    def __init__(self, table_path: Path, streams_max: int, clock: Callable[[], float] = time.time) -> None:
        self._table = TpsTable(table_path)
        self._clock = clock
        self._streams_max = streams_max
        self._streams: Counted[Cluster] = Counted()
        # One thread: the window is not shared, and a table that hangs must not take a pool along.
        self._thread = ThreadPoolExecutor(1, "console-tables")
        self._refreshed_at = -FRESH_S
        self._turn = asyncio.Lock()
        self._watched = asyncio.Event()
        self._changed = asyncio.Condition()
        self._asking: dict[Cluster, asyncio.Future[dict[str, Any]]] = {}
        self._frames: dict[Cluster, bytes] = {}
        self._number = 0
        self._closed = asyncio.Event()

    async def tps(self, seconds: int, top: int | None) -> bytes:
        """Return the JSON of ``/api/v1/tps``: the last `seconds` (1–900), `top` topics (None: all)."""
        async with self._turn:
            await self._refresh()
            answer: bytes = await self._in_thread(lambda: self._encode(seconds, top))
            return answer

    async def run(self) -> None:
        """Make a frame every second while a stream is open; ends after `close`."""
        try:
            while not self._closed.is_set():
                await self._watched.wait()
                started = time.monotonic()
                frames = await self._make_frames(list(self._streams))
                async with self._changed:
                    self._frames = frames
                    self._number += 1
                    self._changed.notify_all()
                if not self._streams and not self._closed.is_set():
                    self._watched.clear()
                with contextlib.suppress(TimeoutError):
                    left = TICK_S - (time.monotonic() - started)
                    async with asyncio.timeout(max(0.05, left)):
                        await self._closed.wait()
        finally:
            for asking in self._asking.values():
                asking.cancel()

    @contextlib.contextmanager
    def stream(self, cluster: Cluster) -> Iterator[AsyncIterator[bytes]]:
        """Hold one of the `streams_max` streams; its frames are server-sent events, and end after `close`.

        Each has what the job counted, and what `cluster` says of itself.

        Raises StreamsFullError when all are taken.
        """
        if self._streams.total() >= self._streams_max:
            STREAMS_REFUSED.inc()
            raise StreamsFullError(
                f"{self._streams_max} pages are open (console.streams_max); close one, then reload"
            )
        self._streams[cluster] += 1
        STREAMS.inc()
        self._watched.set()
        try:
            yield self._frames_of(cluster)
        finally:
            self._streams[cluster] -= 1
            if not self._streams[cluster]:
                del self._streams[cluster]
            STREAMS.dec()

    async def _frames_of(self, cluster: Cluster) -> AsyncIterator[bytes]:
        seen = self._number
        # A first byte at once: the browser knows that the stream is open.
        yield b"retry: 2000\n\n"
        while True:
            async with self._changed:
                await self._changed.wait_for(partial(self._has_passed, seen))
                seen, frame = self._number, self._frames.get(cluster)
            if self._closed.is_set():
                return
            if frame is not None:
                yield frame

    def _has_passed(self, seen: int) -> bool:
        return self._closed.is_set() or self._number != seen

    async def close(self) -> None:
        """End every stream and `run`; `tps` still answers. Then call `release`."""
        self._closed.set()
        self._watched.set()
        async with self._changed:
            self._changed.notify_all()

    def release(self) -> None:
        """Let the thread go; nothing may be asked any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _make_frames(self, clusters: list[Cluster]) -> dict[Cluster, bytes]:
        for cluster in clusters:
            if cluster not in self._asking:
                self._asking[cluster] = asyncio.ensure_future(cluster.overview())
        counts = b"event: tps\ndata: %b\n\n" % await self.tps(STREAM_SECONDS, STREAM_TOPICS)
        frames = dict.fromkeys(clusters, counts)
        # A broker that is gone must not hold up the counts: pages keep what they have of the cluster.
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=OVERVIEW_WAIT_S)
        for cluster, asking in list(self._asking.items()):
            if not asking.done():
                continue
            del self._asking[cluster]
            if cluster in frames:
                overview = json.dumps(asking.result(), separators=(",", ":")).encode()
                frames[cluster] += b"event: cluster\ndata: %b\n\n" % overview
        return frames

    async def _refresh(self) -> None:
        if time.monotonic() - self._refreshed_at >= FRESH_S:
            await self._in_thread(lambda: self._table.refresh(self._clock()))
            self._refreshed_at = time.monotonic()

    def _encode(self, seconds: int, top: int | None) -> bytes:
        answer = tps_answer(
            self._table.window, self._clock(), min(seconds, WINDOW_S), top, self._table.notice
        )
        return json.dumps(answer, separators=(",", ":")).encode()

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
