"""TLS handshakes of a listener: bounded, and their failures said.

The event loops drop a failed handshake without a word to anybody. So they are given SSL objects
(`SSLContext.sslobject_class`) that count the handshakes under way and tell of those that fail.
"""

from __future__ import annotations

import ssl
import time
import weakref
from collections.abc import Callable
from typing import Final

HANDSHAKES_MAX: Final = 2_000
"""Handshakes at a time, some 100 KiB each: more than come when a fleet reconnects; past it they fail."""

OnFailed = Callable[[BaseException], None]


class Handshakes:
    """Watches the handshakes of `context`; `on_failed(error)` is called inside each that fails.

    `timeout_s` is when the event loop ends them.
    """

    def __init__(self, context: ssl.SSLContext, timeout_s: float, on_failed: OnFailed) -> None:
        self.running: weakref.WeakKeyDictionary[ssl.SSLObject, float] = weakref.WeakKeyDictionary()
        """Those under way and when they began. One whose peer went away is not ended: it goes with its
        connection, or when it is as old as none can be."""
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        watch = self

        class Watched(ssl.SSLObject):
            def do_handshake(self) -> None:
                watch.begin(self)
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except BaseException as error:
                    watch.end(self, error)
                    raise
                watch.end(self, None)

        context.sslobject_class = Watched

    def begin(self, handshake: ssl.SSLObject) -> None:
        """A step of a handshake; raises SSLError when it is the first and too many are under way."""
        if handshake not in self.running:
            now = time.monotonic()
            if len(self.running) >= HANDSHAKES_MAX:
                self._forget_until(now - self._timeout_s)
            if len(self.running) >= HANDSHAKES_MAX:
                error = ssl.SSLError(f"{HANDSHAKES_MAX} TLS handshakes are under way")
                self._on_failed(error)
                raise error
            self.running[handshake] = now

    def end(self, handshake: ssl.SSLObject, error: BaseException | None) -> None:
        """A handshake is over."""
        self.running.pop(handshake, None)
        if error is not None:
            self._on_failed(error)

    def _forget_until(self, then: float) -> None:
        for handshake in [handshake for handshake, began in self.running.items() if began <= then]:
            del self.running[handshake]
