"""Passwords of the password file are checked on threads of their own, by turns of addresses.

A check takes 20 to 40 ms of a core, and nobody has to be known to ask for one: so a check waits neither for
plug-ins nor behind those that another address asked for (gateway.access.core.fair_line), and one that nobody
waits for any more is not made.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from gateway.access.askers import UNTRIED, UNTRIED_PER_TURN, AccessAnswer, AccessQuestion
from gateway.access.core.fair_line import FairLine
from gateway.access.passwords import verify
from gateway.ground.counters import Counters
from holdmq.service import telemetry
from holdmq.service.interpreter import SWITCH_INTERVAL_S

BUSY: Final = AccessAnswer(False, failure="too many passwords wait to be checked", is_busy=True)

log = telemetry.get_logger()


class PasswordChecks:
    """The checks of one worker, on its event loop; only `_checked` runs on threads."""

    def __init__(self, counters: Counters, *, threads: int, waiting_max: int, wait_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._counters = counters
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._wait_s = wait_s
        self._line: FairLine[AccessQuestion] = FairLine(waiting_max)
        # In the order of their deadlines, those that were answered included.
        self._due: deque[AccessQuestion] = deque()
        self._running = 0
        self._refused = 0
        self._next_second = 0.0
        self._is_closed = False
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="passwords")

    def start(self) -> None:
        """Have threads take turns often enough."""
        # Else the event loop waits 5 ms for a hash that is computed without C.
        sys.setswitchinterval(SWITCH_INTERVAL_S)

    def ask(
        self, address: bytes, question: AccessQuestion, on_answer: Callable[[AccessAnswer], None]
    ) -> None:
        """Have a password checked: `on_answer` is called in a later turn of the loop.

        With BUSY when there is no place or no time for it, with UNTRIED when nobody wants it at its turn.
        """
        question.on_answer = on_answer
        self._counters.access_asks_total += 1
        if self._is_closed or not self._line.put(address, question):
            self._loop.call_soon(self._refuse, question)
            return
        question.deadline = self._loop.time() + self._wait_s
        self._due.append(question)
        self._hand_out()

    def _hand_out(self) -> None:
        untried: list[AccessQuestion] = []
        while self._running < self._threads and len(untried) < UNTRIED_PER_TURN and not self._is_closed:
            question = self._line.take()
            if question is None:
                break
            if question.on_answer is None or not question.is_wanted():
                untried.append(question)
                continue
            try:
                future = self._loop.run_in_executor(self._pool, _checked, question)
            except RuntimeError as error:  # no thread can be started: who waits must hear of it
                log.error("a password could not be checked", reason=str(error))
                self._loop.call_soon(self._refuse, question)
                break
            question.is_being_answered = True
            self._running += 1
            self._counters.password_checks_total += len(question.decoys) + (question.hash_text is not None)
            future.add_done_callback(partial(self._done, question))
        if untried:
            # Later, as for a check that was made: who asks must have gone on first.
            self._loop.call_soon(self._give_up, untried)
        self._counters.password_checks_waiting = len(self._line)

    def _give_up(self, untried: list[AccessQuestion]) -> None:
        for question in untried:
            self._answer(question, UNTRIED)
        self._hand_out()

    def _done(self, question: AccessQuestion, future: asyncio.Future[bool]) -> None:
        self._running -= 1
        if future.cancelled():
            return
        self._hand_out()  # before the answer is told: the thread need not wait for that
        error = future.exception()
        if error is not None:
            log.error("a password could not be checked", client=question.client.client_id, exc_info=error)
            self._answer(question, AccessAnswer(False, failure="the password could not be checked"))
        else:
            self._answer(question, AccessAnswer(future.result()))

    def _refuse(self, question: AccessQuestion) -> None:
        self._counters.password_checks_refused_total += 1
        self._refused += 1
        self._answer(question, BUSY)

    def _answer(self, question: AccessQuestion, answer: AccessAnswer) -> None:
        on_answer, question.on_answer = question.on_answer, None
        if on_answer is not None:
            if answer.failure:
                self._counters.access_failures_total += 1
            on_answer(answer)

    def tick(self, now: float) -> None:
        """Refuse what has waited too long; once a second say how many there were."""
        while self._due and (self._due[0].on_answer is None or self._due[0].deadline <= now):
            question = self._due.popleft()
            if question.on_answer is not None and not question.is_being_answered:
                self._refuse(question)
        if now >= self._next_second:
            self._next_second = now + 1
            if self._refused:
                log.warning("more passwords come than can be checked; clients are refused",
                            refused=self._refused, waiting=len(self._line))  # fmt: skip
                self._refused = 0

    async def close(self) -> None:
        """End the threads, each after its check."""
        self._is_closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def _checked(question: AccessQuestion) -> bool:
    return verify(question.hash_text, question.client.password or b"", question.decoys)
