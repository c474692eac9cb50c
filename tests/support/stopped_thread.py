"""One thread of another process stopped while its others go on, as a debugger does it (ptrace(2)).

All calls for a process must come from the same thread. Needs root, or to be the process's parent.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

SEIZE: Final = 0x4206
INTERRUPT: Final = 0x4207
DETACH: Final = 17
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long
WALL: Final = 0x40000000


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None):
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace {request:#x} of {pid}: {os.strerror(code)}")


def stop_main_thread(pid: int) -> None:
    """Stop the main thread of a process, where its event loop runs."""
    _ptrace(SEIZE, pid)
    _ptrace(INTERRUPT, pid)
    os.waitpid(pid, WALL)


def let_go(pid: int) -> None:
    """Let a thread go on that `stop_main_thread` stopped."""
    _ptrace(DETACH, pid)
