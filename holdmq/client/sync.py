"""The SDK without async: blocking calls over one event loop on a background thread per process.

Objects connect on first use, and belong to the process that used them first:

- Pickled (to a Spark executor), they carry their settings alone; the copy connects by itself,
  and a consumer's copy starts without an assignment.
- After a fork, make new ones: using one that was used before the fork raises UsageError, as its
  sockets and its event loop stayed in the parent.

Calls may come from any thread, but from none that runs an event loop's callbacks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar

import uvloop

from holdmq.client.admin import Admin, ClusterView, TopicView
from holdmq.client.bounds import Bounds
from holdmq.client.cursors import Position, Pulled
from holdmq.client.group_consumer import START_TIMEOUT_S, Consumer
from holdmq.client.lanes import SendResult
from holdmq.client.owners import StoredRun
from holdmq.client.producer import Producer
from holdmq.client.pull_consumer import (
    ASSIGN_TIMEOUT_S,
    POLL_HOLD_MS,
    POLL_MAX_BYTES,
    PullConsumer,
    Start,
)
from holdmq.client.shared_calls import SharedView
from holdmq.client.shared_consumer import SharedConsumer
from holdmq.client.shared_member import SharedMessage
from holdmq.client.start_positions import FirstStart
from holdmq.client.statistics import AlarmsView, BacklogView, StatisticsView
from holdmq.client.workers import Handler
from holdmq.errors import HoldMQError, TransportError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.rpc.security import Security
from holdmq.wire.headers import BrokerStatusResponse, ConnectionRow

T = TypeVar("T")


class _Closing(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closing)


class _LoopThread:
    """An event loop on a daemon thread of this process."""

    __slots__ = ("loop", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = uvloop.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="holdmq client", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


_thread: _LoopThread | None = None
_thread_lock = threading.Lock()


def _loop_thread() -> _LoopThread:
    global _thread
    with _thread_lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = _LoopThread()
        return _thread


def _renew_lock() -> None:
    # The parent's other threads do not exist in the child: a lock that one of them held stays locked.
    global _thread_lock
    _thread_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class _Blocking(Generic[C]):
    """What the blocking classes share: settings, and the asyncio object once it was used."""

    def __init__(self, make: Callable[..., C], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._make = make
        self._args = args
        self._kwargs = kwargs
        self._inner: C | None = None
        self._thread: _LoopThread | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self._make, "args": self._args, "kwargs": self._kwargs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _Blocking.__init__(self, state["make"], state["args"], state["kwargs"])

    def close(self) -> None:
        """Finish what is in hand and disconnect; the next call connects again."""
        with self._lock:
            inner, self._inner = self._inner, None
            thread = self._thread
        if inner is not None and thread is not None and thread.pid == os.getpid():
            thread.run(inner.close())

    def _run(self, work: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._inner is None:
                self._thread = _loop_thread()
                self._inner = self._thread.run(self._made())
            inner, thread = self._inner, self._thread
        assert thread is not None
        if thread.pid != os.getpid():
            raise UsageError("this object was used before the process forked; make a new one in the child")
        return thread.run(work(inner))

    async def _made(self) -> C:
        return self._make(*self._args, **self._kwargs)


class SyncProducer(_Blocking[Producer]):
    """A blocking `Producer`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Producer, (list(registries),), settings)

    def send(
        self,
        message: Message,
        *,
        key: bytes | str | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        due: datetime | int | None = None,
        delay_level: int = 0,
    ) -> SendResult:
        """Store a message; see `Producer.send`. For many messages `send_batch` is much faster."""
        return self._run(
            lambda p: p.send(
                message,
                key=key,
                queue=queue,
                timeout_s=timeout_s,
                delay_ms=delay_ms,
                due=due,
                delay_level=delay_level,
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        key: bytes | str | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
        delay_ms: int | None = None,
        due: datetime | int | None = None,
        delay_level: int = 0,
    ) -> list[SendResult]:
        """Store many messages; see `Producer.send_batch`."""
        return self._run(
            lambda p: p.send_batch(
                messages,
                key=key,
                queue=queue,
                timeout_s=timeout_s,
                delay_ms=delay_ms,
                due=due,
                delay_level=delay_level,
            )
        )

    def send_async(
        self,
        message: Message,
        *,
        key: bytes | str | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Put a message in hand; the future gets what `send` returns or raises. See `Producer.send_async`."""
        done: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def settle(sent: asyncio.Future[SendResult]) -> None:
            error = TransportError("the producer was closed") if sent.cancelled() else sent.exception()
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(sent.result())

        async def begin(producer: Producer) -> None:
            sent = await producer.send_async(message, key=key, queue=queue, timeout_s=timeout_s)
            sent.add_done_callback(settle)

        self._run(begin)
        return done

    def send_one_way(
        self,
        message: Message,
        *,
        key: bytes | str | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Put a message in hand and forget it; see `Producer.send_one_way`."""
        self._run(lambda p: p.send_one_way(message, key=key, queue=queue, timeout_s=timeout_s))

    def send_bodies(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tag: str | None = None,
        key: bytes | str | None = None,
        queue: TopicQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[StoredRun]:
        """Store many plain messages, the fastest way to send; see `Producer.send_bodies`."""
        return self._run(
            lambda p: p.send_bodies(topic, bodies, tag=tag, key=key, queue=queue, timeout_s=timeout_s)
        )


class SyncPullConsumer(_Blocking[PullConsumer]):
    """A blocking `PullConsumer`; takes the same settings."""

    def __init__(
        self,
        registries: Sequence[str],
        *,
        client_id: str = "",
        tags: Collection[str] | None = None,
        tag_filter: str | None = None,
        security: Security | None = None,
    ) -> None:
        settings = {"client_id": client_id, "tags": tags, "tag_filter": tag_filter, "security": security}
        super().__init__(PullConsumer, (list(registries),), settings)

    def assign(
        self,
        topics: Iterable[str | TopicQueue],
        start: Start = "latest",
        timeout_s: float = ASSIGN_TIMEOUT_S,
    ) -> None:
        """Choose what to read; see `PullConsumer.assign`."""
        wanted = list(topics)
        self._run(lambda c: c.assign(wanted, start, timeout_s))

    def seek(
        self, queue: TopicQueue, start: Start, log_epoch: int = 0, timeout_s: float = ASSIGN_TIMEOUT_S
    ) -> None:
        """Move in one queue; see `PullConsumer.seek`."""
        self._run(lambda c: c.seek(queue, start, log_epoch, timeout_s))

    def poll(self, max_bytes: int = POLL_MAX_BYTES, hold_ms: int = POLL_HOLD_MS) -> list[Message]:
        """Return the next messages; see `PullConsumer.poll`."""
        return self._run(lambda c: c.poll(max_bytes, hold_ms))

    def poll_raw(self, max_bytes: int = POLL_MAX_BYTES, hold_ms: int = POLL_HOLD_MS) -> list[Pulled]:
        """Return the next records as bytes; see `PullConsumer.poll_raw`."""
        return self._run(lambda c: c.poll_raw(max_bytes, hold_ms))

    def positions(self) -> dict[TopicQueue, Position]:
        """Where each queue is read next; see `PullConsumer.positions`."""
        return self._run(_positions)

    def lag(self) -> dict[TopicQueue, int]:
        """Messages ahead of each position; see `PullConsumer.lag`."""
        return self._run(_lag)


async def _positions(consumer: PullConsumer) -> dict[TopicQueue, Position]:
    return consumer.positions()


async def _lag(consumer: PullConsumer) -> dict[TopicQueue, int]:
    return consumer.lag()


class SyncSharedConsumer(_Blocking[SharedConsumer]):
    """A blocking `SharedConsumer` that pulls: its settings, but no handler. It starts on first use."""

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        **settings: Any,
    ) -> None:
        named = dict(topics) if isinstance(topics, Mapping) else list(topics)
        super().__init__(SharedConsumer, (list(registries), group, named), settings)

    async def _made(self) -> SharedConsumer:
        consumer = await super()._made()
        await consumer.start()
        return consumer

    def start(self) -> None:
        """Become a member; see `SharedConsumer.start`."""
        self._run(_nothing)

    def pull(self, messages_max: int = 64, hold_ms: int = 1_000) -> list[SharedMessage]:
        """Return the next messages; see `SharedConsumer.pull`."""
        return self._run(lambda c: c.pull(messages_max, hold_ms))

    def ack(self, *messages: SharedMessage) -> None:
        """Done with these; see `SharedConsumer.ack`."""
        self._run(lambda c: c.ack(*messages))

    def nack(self, *messages: SharedMessage, delay_s: float = 0.0) -> None:
        """Give these back; see `SharedConsumer.nack`."""
        self._run(lambda c: c.nack(*messages, delay_s=delay_s))

    def extend(self, *messages: SharedMessage, invisible_s: float) -> None:
        """Keep these in flight; see `SharedConsumer.extend`."""
        self._run(lambda c: c.extend(*messages, invisible_s=invisible_s))


async def _nothing(_consumer: SharedConsumer) -> None:
    return None


class SyncConsumer(_Blocking[Consumer]):
    """A blocking `Consumer`; takes the same settings. Plain handlers run on threads; `with` starts it."""

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        handler: Handler,
        topics: Iterable[str] | Mapping[str, str] = (),
        **settings: Any,
    ) -> None:
        wanted = dict(topics) if isinstance(topics, Mapping) else list(topics)
        super().__init__(Consumer, (list(registries), group, handler, wanted), settings)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Become a member; see `Consumer.start`."""
        self._run(lambda c: c.start(timeout_s))

    def pause(self) -> None:
        """See `Consumer.pause`."""
        self._run(_pause)

    def resume(self) -> None:
        """See `Consumer.resume`."""
        self._run(_resume)

    def seek(self, queue: TopicQueue, to: FirstStart | int, timeout_s: float = 10.0) -> None:
        """See `Consumer.seek`."""
        self._run(lambda c: c.seek(queue, to, timeout_s))

    def positions(self) -> dict[TopicQueue, Position]:
        """See `Consumer.positions`."""
        return self._run(_done_positions)

    def numbers(self) -> dict[str, int]:
        """See `Consumer.numbers`."""
        return self._run(_numbers)


async def _pause(consumer: Consumer) -> None:
    consumer.pause()


async def _resume(consumer: Consumer) -> None:
    consumer.resume()


async def _done_positions(consumer: Consumer) -> dict[TopicQueue, Position]:
    return consumer.positions()


async def _numbers(consumer: Consumer) -> dict[str, int]:
    return consumer.numbers()


class SyncAdmin(_Blocking[Admin]):
    """A blocking `Admin`; takes the same settings."""

    def __init__(
        self,
        registries: Sequence[str],
        *,
        client_id: str = "",
        role: str = "console",
        security: Security | None = None,
    ) -> None:
        settings = {"client_id": client_id, "role": role, "security": security}
        super().__init__(Admin, (list(registries),), settings)

    def cluster(self) -> ClusterView:
        """See `Admin.cluster`."""
        return self._run(lambda a: a.cluster())

    def shared_groups(self, group: str = "") -> dict[str, SharedView | HoldMQError]:
        """See `Admin.shared_groups`."""
        return self._run(lambda a: a.shared_groups(group))

    def topics(self, include_system: bool = False) -> list[TopicView]:
        """See `Admin.topics`."""
        return self._run(lambda a: a.topics(include_system))

    def create_topic(self, topic: str, queues: int = 0, key_levels: int = 1) -> None:
        """See `Admin.create_topic`."""
        self._run(lambda a: a.create_topic(topic, queues, key_levels))

    def queue_bounds(self, topics: Iterable[str]) -> dict[TopicQueue, Bounds]:
        """See `Admin.queue_bounds`."""
        wanted = list(topics)
        return self._run(lambda a: a.queue_bounds(wanted))

    def broker_status(self) -> dict[str, BrokerStatusResponse | HoldMQError]:
        """See `Admin.broker_status`."""
        return self._run(lambda a: a.broker_status())

    def connections(self) -> dict[str, list[ConnectionRow] | HoldMQError]:
        """See `Admin.connections`."""
        return self._run(lambda a: a.connections())

    def statistics(
        self,
        topics: Collection[str] | None = None,
        groups: Collection[str] | None = None,
        *,
        queues: bool = False,
        rows_max: int = 100,
    ) -> dict[str, StatisticsView | HoldMQError]:
        """See `Admin.statistics`."""
        return self._run(lambda a: a.statistics(topics, groups, queues=queues, rows_max=rows_max))

    def backlog(
        self, groups: Collection[str] | None = None, rows_max: int = 1000
    ) -> dict[str, BacklogView | HoldMQError]:
        """See `Admin.backlog`."""
        return self._run(lambda a: a.backlog(groups, rows_max))

    def alarms(self) -> dict[str, AlarmsView | HoldMQError]:
        """See `Admin.alarms`."""
        return self._run(lambda a: a.alarms())
