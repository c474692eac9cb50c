from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from spark_streaming.job.jvm import ChildJvm, SubmittingJvm


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that ends when its standard input does, as the JVM of a session."""
    made = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.wait()
    if made.stdin is not None:
        made.stdin.close()


def test_a_child_ends_with_its_session_and_tells_its_exit_code(process: subprocess.Popen[bytes]) -> None:
    jvm = ChildJvm(process)
    assert jvm.end() is None
    jvm.close()
    assert jvm.end() == "ended with exit code 0"


def test_a_child_that_is_killed_tells_by_what(process: subprocess.Popen[bytes]) -> None:
    jvm = ChildJvm(process)
    process.send_signal(signal.SIGKILL)
    assert jvm.end(wait_s=60) == "ended with exit code -9"


def test_the_jvm_of_spark_submit_is_gone_or_there_and_outlives_its_session(
    process: subprocess.Popen[bytes],
) -> None:
    jvm = SubmittingJvm(process.pid)
    assert jvm.end() is None
    other = SubmittingJvm(process.pid)
    other.close()
    assert other.end() is None
    assert process.poll() is None
    process.kill()
    assert jvm.end(wait_s=60) == "is gone"
    jvm.close()
