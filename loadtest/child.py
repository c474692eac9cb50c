"""A process that a benchmark tells what to do, over a pipe: work that must not wait for its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, Final

from holdmq.errors import StartupError

TOLD_S: Final = 300.0
"""How long a child may take for any of its steps."""
END_S: Final = 10.0


class ChildProcess:
    """Runs `target(pipe, *arguments)`, a function of a module, in a process of its own.

    On its pipe it receives what it is told, and sends what it has to tell.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, word: Any) -> None:
        """Send `word` to the process."""
        self._pipe.send(word)

    def told(self, timeout_s: float = TOLD_S) -> Any:
        """What it tells next; StartupError when it says nothing, or is gone, or tells a StartupError."""
        if not self._pipe.poll(timeout_s):
            raise StartupError(f"a process of the benchmark did not answer within {timeout_s:.0f} s")
        try:
            word = self._pipe.recv()
        except EOFError as error:
            raise StartupError("a process of the benchmark ended without a word") from error
        if isinstance(word, StartupError):
            raise word
        return word

    def kill(self) -> None:
        """Kill the process in the middle of what it does."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """End it: its pipe closes, and it has END_S for the rest."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
