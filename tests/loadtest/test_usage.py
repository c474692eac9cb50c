from __future__ import annotations

import os
import subprocess
import sys

from loadtest.usage import children_of, cpu_s, resident_bytes


def test_what_a_process_uses_is_what_the_kernel_says() -> None:
    before = resident_bytes(os.getpid())
    kept = bytearray(os.urandom(32 << 20))
    assert resident_bytes(os.getpid()) - before > 24 << 20
    assert kept
    began = cpu_s(os.getpid())
    while cpu_s(os.getpid()) < began + 0.02:
        sum(range(10_000))
    times = os.times()
    assert abs(cpu_s(os.getpid()) - times.user - times.system) < 0.5


def test_children_are_those_that_a_process_has_begun() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in children_of(os.getpid())
    child.communicate(b"\n")
    assert child.pid not in children_of(os.getpid())
