"""The JVM of a Spark session: a child of this process, or the one that spark-submit started it from."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from typing import Any, Final, Protocol

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

END_TIMEOUT_S: Final = 10.0
"""How long a JVM may take to end once its session has stopped, before it is killed."""
ENV_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""What spark-submit sets for the program that it runs."""


class Jvm(Protocol):
    """The process that Spark runs in."""

    def end(self, wait_s: float = 0) -> str | None:
        """Return how it ended, as the rest of a sentence on it; None if it still runs after `wait_s`."""

    def close(self, wait_s: float = END_TIMEOUT_S) -> None:
        """Give it back: nothing of Spark is called any more. Blocking; killed after `wait_s`."""


class ChildJvm:
    """A JVM that this process started.

    It ends when its standard input closes, so it never outlives this process, however that ends.
    """

    __slots__ = ("_process",)

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def end(self, wait_s: float = 0) -> str | None:
        """Return its exit code as a sentence's rest, None if it still runs after `wait_s`."""
        try:
            return f"ended with exit code {self._process.wait(wait_s)}"
        except subprocess.TimeoutExpired:
            return None

    def close(self, wait_s: float = END_TIMEOUT_S) -> None:
        """End it: ask, wait, kill."""
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SubmittingJvm:
    """The JVM of spark-submit, process `pid`, which waits for this process and ends with its exit code."""

    __slots__ = ("_descriptor",)

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def end(self, wait_s: float = 0) -> str | None:
        """Return that it is gone; nobody but its parent learns its exit code."""
        if self._descriptor < 0:
            return None
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return "is gone" if poll.poll(wait_s * 1000) else None

    def close(self, wait_s: float = END_TIMEOUT_S) -> None:
        """Let go of it: it ends once this process has."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Forward:
    """What the JVM calls for a signal: it is for this process, which stops Spark in order."""

    def handle(self, _signal: Any) -> None:
        """Take a signal of the JVM's."""
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        """The interface as py4j wants it named."""

        implements = ("sun.misc.SignalHandler",)


def submitting_jvm(gateway: Any) -> SubmittingJvm:
    """Return the JVM of spark-submit behind `gateway`, and have SIGTERM and SIGINT that it gets drain us.

    By itself it would end at once, with Spark's context torn away under a running batch, and exit code 143.
    """
    start_callbacks: Callable[[Any], None] = ensure_callback_server_started
    start_callbacks(gateway)
    forward = _Forward()
    for name in ("TERM", "INT"):
        gateway.jvm.sun.misc.Signal.handle(gateway.jvm.sun.misc.Signal(name), forward)
    return SubmittingJvm(gateway.jvm.java.lang.ProcessHandle.current().pid())


def is_submitted() -> bool:
    """Return whether spark-submit runs this process."""
    return ENV_SUBMITTED in os.environ
