"""Threads that ask: what takes time or may block is answered here, and the event loop goes on.

::

    event loop ──ask()──► line ──► thread 1: an event loop of its own, ASKED_AT_A_TIME questions at a time
               ◄─answers── news ◄── thread N: its own plug-ins

A question that has waited too long is answered with a failure, whatever its thread does. A thread that stands
still (a plug-in that blocks) is given up and replaced; when it comes back, it ends. No object of asyncio is
made per connection: only per question in hand, which are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.access.plugins import CLOSE_S, PluginClient, PluginFailure, PluginKind, Plugins
from gateway.ground.counters import Counters
from holdmq.service import telemetry
from holdmq.service.interpreter import SWITCH_INTERVAL_S

ASKED_AT_A_TIME: Final = 16
"""Questions that one thread has in hand: a server over the network answers so many side by side."""
LOST_MAX: Final = 8
"""Threads that stand still and are given up; past it no new ones are made, and what is asked is refused."""
START_AGAIN_S: Final = 5.0
"""How often plug-ins that could not be made are tried again."""
LOGGED_PER_S: Final = 10
"""Lines about plug-ins that fail."""
BEAT_S: Final = 0.25
UNTRIED_PER_TURN: Final = 100
"""Questions that nobody waits for any more, given up in one turn of the loop: some milliseconds."""

log = telemetry.get_logger()


class AccessQuestion:
    """What is asked: whether a password is right, whether a client may come in, or may use a topic.

    `topic` None = may it come in? `is_of_file`: only the password file is asked (PasswordChecks), where the
    user's hash is `hash_text`; None = it does not know him; `decoys` are computed as well. `on_answer` is
    called once, on the event loop; None = it was. `is_wanted`: whether anybody still waits for the answer.
    """

    __slots__ = (
        "action", "asker", "client", "deadline", "decoys", "hash_text", "is_being_answered", "is_of_file",
        "is_wanted", "on_answer", "topic",
    )  # fmt: skip

    def __init__(
        self,
        client: PluginClient,
        *,
        hash_text: str | None = None,
        decoys: Sequence[str] = (),
        is_of_file: bool = False,
        topic: str | None = None,
        action: str = "",
    ) -> None:
        self.client = client
        self.on_answer: Callable[[AccessAnswer], None] | None = None
        self.hash_text = hash_text
        self.decoys = decoys
        self.is_of_file = is_of_file
        self.topic = topic
        self.action = action
        self.deadline = 0.0
        self.asker: Asker | None = None
        self.is_wanted: Callable[[], bool] = always
        self.is_being_answered = False


class AccessAnswer:
    """`is_yes`; `is_named`: as the user whose name was given. `failure`: nobody could say, and why.

    `is_busy`: that is because too many ask. `tenant`: whose client it is, "" = nobody has said it.
    """

    __slots__ = ("failure", "is_busy", "is_named", "is_yes", "tenant")

    def __init__(
        self,
        is_yes: bool,
        is_named: bool = True,
        failure: str = "",
        is_busy: bool = False,
        tenant: str = "",
    ) -> None:
        self.tenant = tenant
        self.is_yes = is_yes
        self.is_named = is_named
        self.failure = failure
        self.is_busy = is_busy


UNTRIED: Final = AccessAnswer(False)
"""The answer to what was not asked, as everybody who waited for it is held back or gone."""


def always() -> bool:
    """Whether an answer is wanted that nobody takes back."""
    return True


class Askers:
    """The threads of one worker. Everything but `_serve` runs on its event loop."""

    def __init__(
        self,
        kinds: Sequence[PluginKind],
        counters: Counters,
        *,
        threads: int,
        timeout_s: float,
        asks_max: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._kinds = kinds
        self._counters = counters
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._timeout_s = timeout_s
        self._asks_max = asks_max
        self._line: deque[AccessQuestion] = deque()
        self._asked: dict[AccessQuestion, None] = {}
        self._askers: list[Asker] = []
        self._lost: list[Asker] = []
        self._logged = 0
        self._next_second = 0.0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Count the questions in hand."""
        return len(self._line) + len(self._asked)

    def start(self) -> None:
        """Begin the threads: at once, so that a plug-in that cannot be made is known before it is needed."""
        # Else the event loop waits 5 ms for a plug-in that computes, at each of its callbacks.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for _ in range(self._threads):
            self._add()

    def _add(self) -> None:
        asker = Asker(self, self._kinds, self._timeout_s)
        self._askers.append(asker)
        asker.start()

    def ask(self, question: AccessQuestion, on_answer: Callable[[AccessAnswer], None]) -> None:
        """Have a question answered: `on_answer` is called in a later turn of the loop."""
        question.on_answer = on_answer
        self._counters.access_asks_total += 1
        if self.waiting >= self._asks_max or not self._askers:
            failure = AccessAnswer(False, failure="too many questions wait for an answer")
            self._loop.call_soon(self._answer, question, failure)
            return
        # What waits for a thread may take as long as what is asked.
        question.deadline = self._loop.time() + 2 * self._timeout_s
        self._line.append(question)
        self._hand_out()

    def _hand_out(self) -> None:
        untried: list[AccessQuestion] = []
        while self._line and len(untried) < UNTRIED_PER_TURN and not self._is_closed:
            asker = min(self._askers, key=lambda a: a.in_hand, default=None)
            if asker is None or asker.in_hand >= ASKED_AT_A_TIME:
                break
            question = self._line.popleft()
            if question.on_answer is None or not question.is_wanted():
                untried.append(question)
                continue
            question.asker = asker
            question.deadline = max(question.deadline, self._loop.time() + self._timeout_s)
            self._asked[question] = None
            asker.take(question)
        if untried:
            # Later, as for what was asked: who asks must have gone on first.
            self._loop.call_soon(self._give_up_untried, untried)
        self._counters.access_asks_waiting = self.waiting

    def _give_up_untried(self, untried: list[AccessQuestion]) -> None:
        for question in untried:
            self._answer(question, UNTRIED)
        self._hand_out()

    def answered(self, asker: Asker, news: list[tuple[AccessQuestion, AccessAnswer]]) -> None:
        """A thread has answers."""
        for question, answer in news:
            asker.in_hand -= 1
            if self._asked.pop(question, self) is None:
                self._answer(question, answer)
        self._hand_out()

    def _answer(self, question: AccessQuestion, answer: AccessAnswer) -> None:
        on_answer, question.on_answer = question.on_answer, None
        if on_answer is None:
            return
        if answer.failure:
            self._counters.access_failures_total += 1
            if self._logged < LOGGED_PER_S:
                self._logged += 1
                log.error("access could not be decided; the client is refused", reason=answer.failure,
                          client=question.client.client_id)  # fmt: skip
        on_answer(answer)

    def tick(self, now: float) -> None:
        """Answer what has waited too long; replace threads that stand still."""
        if now >= self._next_second:
            self._next_second = now + 1
            self._logged = 0
        for asker in [a for a in self._askers if a.is_still(self._timeout_s)]:
            self._give_up(asker)
        self._lost = [asker for asker in self._lost if asker.is_alive]
        self._counters.access_threads_lost = len(self._lost)
        while self._line and self._line[0].deadline <= now:
            self._answer(self._line.popleft(), AccessAnswer(False, failure="no thread was free to ask"))
        # Two calls may follow one another: what is in hand has its plug-ins' own limit as well.
        for question in [q for q in self._asked if q.deadline + self._timeout_s * len(self._kinds) <= now]:
            del self._asked[question]
            name = question.asker.plugins.entered if question.asker is not None else ""
            self._answer(question, AccessAnswer(False, failure=f"{name}: no answer in time"))

    def _give_up(self, asker: Asker) -> None:
        self._askers.remove(asker)
        self._lost.append(asker)
        asker.close()
        name = asker.plugins.entered
        log.error("a plug-in blocks its thread, which is given up", plugin=name, lost=len(self._lost))
        for question in [q for q in self._asked if q.asker is asker]:
            del self._asked[question]
            self._answer(question, AccessAnswer(False, failure=f"{name}: it blocks its thread"))
        if len(self._lost) < LOST_MAX and not self._is_closed:
            self._add()
        self._hand_out()

    async def close(self) -> None:
        """End the threads; one that stands still is left behind, as nothing can end it."""
        self._is_closed = True
        for asker in self._askers:
            asker.close()
        until = self._loop.time() + CLOSE_S
        for asker in self._askers:
            await asyncio.to_thread(asker.join, max(0.0, until - self._loop.time()))


class Asker:
    """One thread, with an event loop and plug-ins of its own.

    `in_hand` is the event loop's count of what it was given; `_beat_at` when the thread last showed life.
    """

    def __init__(self, pool: Askers, kinds: Sequence[PluginKind], timeout_s: float) -> None:
        self._pool = pool
        self._main = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._has_plugins = bool(kinds)
        self._loop = asyncio.new_event_loop()
        self._news: list[tuple[AccessQuestion, AccessAnswer]] = []
        self._news_lock = threading.Lock()
        self._beat_at = time.monotonic()
        self._failed = self._failure = ""
        self._failed_at = 0.0
        self._is_started = False
        self._is_closing = False
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_hand = 0
        self.plugins = Plugins(kinds)
        # A daemon: the process must end though a plug-in does not.
        self._thread = threading.Thread(target=self._run, name="access", daemon=True)

    def start(self) -> None:
        """Begin to serve on a thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end (blocking)."""
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def is_still(self, timeout_s: float) -> bool:
        """Whether it has shown no life for longer than a plug-in may take."""
        return self.in_hand > 0 and time.monotonic() - self._beat_at > timeout_s + 2 * BEAT_S

    def take(self, question: AccessQuestion) -> None:
        """Give it a question."""
        self.in_hand += 1
        self._loop.call_soon_threadsafe(self._begin, question)

    def close(self) -> None:
        """Have it end when it has answered, or now if it stands still."""
        self._is_closing = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)

    # On its thread

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.call_soon(self._beat)
            if self._has_plugins:
                loop.run_until_complete(self._ready())
            loop.run_forever()
            for task in self._tasks:
                task.cancel()
            loop.run_until_complete(self.plugins.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except RuntimeError:
            if not self._is_closing:  # else it was stopped while it was starting
                raise
        finally:
            loop.close()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._loop.call_later(BEAT_S, self._beat)

    def _begin(self, question: AccessQuestion) -> None:
        task = self._loop.create_task(self._serve(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, question: AccessQuestion) -> None:
        answer = AccessAnswer(False, failure="the question could not be asked")
        try:
            if question.on_answer is not None:  # else it was given up meanwhile
                answer = await self._find(question)
        except PluginFailure as failure:
            answer = AccessAnswer(False, failure=f"{failure.name}: {failure}")
        finally:
            # Whatever happened: a question that is not told of would be in hand for ever.
            self._tell(question, answer)

    async def _find(self, question: AccessQuestion) -> AccessAnswer:
        client = question.client
        if not await self._ready():
            raise PluginFailure(self._failed, self._failure)
        if question.topic is not None:
            return AccessAnswer(
                await self.plugins.allows(client, question.topic, question.action, self._timeout_s)
            )
        said = await self.plugins.authenticate(client, self._timeout_s)
        return AccessAnswer(bool(said.is_yes), said.is_named, tenant=said.tenant)

    async def _ready(self) -> bool:
        """Whether the plug-ins are made; tried again at intervals."""
        async with self._starting:
            if self._is_started:
                return True
            if self._failure and time.monotonic() - self._failed_at < START_AGAIN_S:
                return False
            try:
                await self.plugins.start(self._timeout_s)
            except PluginFailure as failure:
                self._failed, self._failure = failure.name, str(failure)
                self._failed_at = time.monotonic()
                log.error("a plug-in cannot be made; clients that need it are refused",
                          plugin=failure.name, reason=self._failure)  # fmt: skip
                return False
            self._is_started = True
            return True

    def _tell(self, question: AccessQuestion, answer: AccessAnswer) -> None:
        with self._news_lock:
            self._news.append((question, answer))
            is_first = len(self._news) == 1
        if is_first:
            with contextlib.suppress(RuntimeError):  # the worker has ended
                self._main.call_soon_threadsafe(self._told)

    # On the event loop again

    def _told(self) -> None:
        with self._news_lock:
            news, self._news = self._news, []
        self._pool.answered(self, news)
