from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
from processes import wait_until

TESTER = """
import os, signal, sys
from pathlib import Path

from processes import Stack

# Who was started in the background of a shell, as tests may be, ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
stack = Stack(Path(sys.argv[1]))
try:
    process = stack.start("registry")
    os.killpg(0, signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    assert process.wait(40) == 0, stack.log("registry")
print(stack.start("registry").pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_services_end_with_ctrl_c_as_they_do_for_a_user_and_none_outlives_its_tester(tmp_path: Path) -> None:
    """The process that forks goes on after Ctrl-C: who starts services is to see how they ended."""
    done = subprocess.run(
        [sys.executable, "-c", TESTER, tmp_path],
        env={"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (-9, "")
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)), "the service is gone")
