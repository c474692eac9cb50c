"""What a process keeps for as long as it lives: Spark's Python workers are reused from task to task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What is closed when its use is over."""

    def close(self) -> None:
        """Give back what is held."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Closable)


class Kept(Generic[Key, Value]):
    """One value for each key, made on first use and kept; used from any thread.

    A forked process has none of its parent's: connections and threads stay behind.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._values: dict[tuple[int, Key], Value] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value:
        """Return this process's value for `key`; raises what making it raises."""
        own = (os.getpid(), key)
        with self._lock:
            found = self._values.get(own)
            if found is None:
                found = self._values[own] = self._make(key)
            return found

    def close(self) -> None:
        """Close every value of this process, whose use is over; who asks again gets a new one."""
        with self._lock:
            pid = os.getpid()
            own = [self._values.pop(key) for key in list(self._values) if key[0] == pid]
        for value in own:
            value.close()
