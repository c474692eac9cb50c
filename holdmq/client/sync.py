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
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

import uvloop

from holdmq.client.admin import Admin
from holdmq.client.bounds import Bounds
from holdmq.client.group_consumer import Consumer
from holdmq.client.group_pull_consumer import GroupPullConsumer
from holdmq.client.lanes import SendResult
from holdmq.client.lifecycle import GroupConsumer
from holdmq.client.producer import Producer
from holdmq.client.pull_consumer import ASSIGN_TIMEOUT_S, PullConsumer, Start
from holdmq.client.shared_consumer import SharedConsumer
from holdmq.client.workers import Handler
from holdmq.errors import TransportError, UsageError
from holdmq.message import Message, TopicQueue

P = ParamSpec("P")
T = TypeVar("T")


class _Closing(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closing)
C_co = TypeVar("C_co", bound=_Closing, covariant=True)


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


class _Blocking(Generic[C_co]):
    """What the blocking classes share: settings, and the asyncio object once it was used.

    A setting that `make` does not take is refused with TypeError here, not by the first call.
    """

    def __init__(self, make: Callable[..., C_co], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inspect.signature(make).bind(*args, **kwargs)
        self._make = make
        self._args = args
        self._kwargs = kwargs
        self._inner: C_co | None = None
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

    def _run(self, work: Callable[[C_co], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._inner is None:
                self._thread = _loop_thread()
                self._inner = self._thread.run(self._made())
            inner, thread = self._inner, self._thread
        assert thread is not None
        if thread.pid != os.getpid():
            raise UsageError("this object was used before the process forked; make a new one in the child")
        return thread.run(work(inner))

    def _on_loop(self, work: Callable[[C_co], T]) -> T:
        """Call `work`, which does not wait, on the loop's thread: it belongs to whatever the loop runs."""

        async def call(inner: Any) -> T:
            return work(inner)

        return self._run(call)

    async def _made(self) -> C_co:
        return self._make(*self._args, **self._kwargs)


def _awaited(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[C], P], T]:
    """A method that waits for what the asyncio object's `method` of the same arguments returns."""

    @functools.wraps(method)
    def call(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda inner: method(inner, *args, **kwargs))

    return call


def _called(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Blocking[C], P], T]:
    """A method that calls the asyncio object's `method`, which does not wait, on the loop's thread."""

    @functools.wraps(method)
    def call(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._on_loop(lambda inner: method(inner, *args, **kwargs))

    return call


def _taken(topics: Iterable[str] | Mapping[str, str]) -> list[str] | dict[str, str]:
    """Topics in a shape that can be pickled and used again."""
    return dict(topics) if isinstance(topics, Mapping) else list(topics)


class SyncProducer(_Blocking[Producer]):
    """A blocking `Producer`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Producer, (list(registries),), settings)

    send = _awaited(Producer.send)
    send_batch = _awaited(Producer.send_batch)
    send_one_way = _awaited(Producer.send_one_way)
    send_bodies = _awaited(Producer.send_bodies)

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


class SyncPullConsumer(_Blocking[PullConsumer]):
    """A blocking `PullConsumer`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
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

    seek = _awaited(PullConsumer.seek)
    poll = _awaited(PullConsumer.poll)
    poll_raw = _awaited(PullConsumer.poll_raw)
    positions = _called(PullConsumer.positions)
    lag = _called(PullConsumer.lag)


G = TypeVar("G", bound=GroupConsumer)


class _PulledMember(_Blocking[G]):
    """A blocking member of a group that is asked for messages; it becomes one on first use."""

    def __init__(
        self,
        make: Callable[..., G],
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        settings: dict[str, Any],
    ) -> None:
        super().__init__(make, (list(registries), group, _taken(topics)), settings)

    async def _made(self) -> G:
        consumer = await super()._made()
        await consumer.start()
        return consumer

    def start(self) -> None:
        """Become a member; see `holdmq.client.lifecycle.GroupConsumer.start`."""
        self._on_loop(lambda _: None)


class SyncSharedConsumer(_PulledMember[SharedConsumer]):
    """A blocking `SharedConsumer` that pulls: its settings, but no handler. It starts on first use."""

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        **settings: Any,
    ) -> None:
        super().__init__(SharedConsumer, registries, group, topics, settings)

    pull = _awaited(SharedConsumer.pull)
    ack = _awaited(SharedConsumer.ack)
    nack = _awaited(SharedConsumer.nack)
    extend = _awaited(SharedConsumer.extend)


class SyncGroupPullConsumer(_PulledMember[GroupPullConsumer]):
    """A blocking `GroupPullConsumer`; takes the same settings. It starts on first use."""

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        **settings: Any,
    ) -> None:
        super().__init__(GroupPullConsumer, registries, group, topics, settings)

    poll = _awaited(GroupPullConsumer.poll)
    commit = _awaited(GroupPullConsumer.commit)
    retry_later = _awaited(GroupPullConsumer.retry_later)
    positions = _called(GroupPullConsumer.positions)
    numbers = _called(GroupPullConsumer.numbers)


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
        super().__init__(Consumer, (list(registries), group, handler, _taken(topics)), settings)

    def __enter__(self) -> Self:
        self.start()
        return self

    start = _awaited(Consumer.start)
    seek = _awaited(Consumer.seek)
    pause = _called(Consumer.pause)
    resume = _called(Consumer.resume)
    positions = _called(Consumer.positions)
    numbers = _called(Consumer.numbers)


class SyncAdmin(_Blocking[Admin]):
    """A blocking `Admin`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Admin, (list(registries),), settings)

    cluster = _awaited(Admin.cluster)
    topics = _awaited(Admin.topics)
    broker_status = _awaited(Admin.broker_status)
    connections = _awaited(Admin.connections)
    shared_groups = _awaited(Admin.shared_groups)
    statistics = _awaited(Admin.statistics)
    backlog = _awaited(Admin.backlog)
    alarms = _awaited(Admin.alarms)
    create_topic = _awaited(Admin.create_topic)

    def queue_bounds(self, topics: Iterable[str]) -> dict[TopicQueue, Bounds]:
        """Return the bounds of queues, as `Admin.queue_bounds` does."""
        wanted = list(topics)
        return self._run(lambda a: a.queue_bounds(wanted))
