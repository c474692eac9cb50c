from __future__ import annotations

import os
import subprocess
import sys

from loadtest.usage import (
    TreeCpu,
    children_of,
    cpu_of_tree_s,
    cpu_s,
    proportional_bytes,
    resident_bytes,
    tree_of,
)


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


def test_a_tree_is_a_process_and_those_below_it_and_its_cpu_that_of_the_ended_too() -> None:
    spin = "import os\nwhile sum(os.times()[:2]) < 0.2: pass\n"
    code = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {spin!r}])\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
        "child.communicate(b'\\n')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert tree_of(parent.pid) == [parent.pid, child]
    assert {parent.pid, child} < set(tree_of(os.getpid()))
    assert cpu_of_tree_s(parent.pid) >= cpu_s(parent.pid) + 0.15
    assert 0 < proportional_bytes(child) <= resident_bytes(child)
    parent.communicate(b"\n")
    assert proportional_bytes(parent.pid) == resident_bytes(parent.pid) == 0


def test_cpu_of_a_tree_keeps_what_is_seen_of_processes_that_nobody_waits_for() -> None:
    spin = "import os, time\nwhile sum(os.times()[:2]) < 0.2: pass\nprint('spun', flush=True)\ninput()\n"
    code = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {spin!r}])\n"
        "child.wait()\n"
        "print('ended', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"spun\n"
        cpu = TreeCpu(parent.pid)
        before = cpu.look()
        assert before >= 0.2
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"ended\n"
        assert tree_of(parent.pid) == [parent.pid]
        assert cpu.look() >= before
        # The kernel has forgotten it.
        assert cpu_of_tree_s(parent.pid) < before
        parent.stdin.write(b"\n")
