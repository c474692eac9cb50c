"""TLS handshakes of a listener: bounded, and their failures said.

The event loops drop a failed handshake without a word to anybody. So they are given SSL objects
(`SSLContext.sslobject_class`) that count the handshakes under way and tell of those that fail.
"""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Callable
from typing import Final

HANDSHAKES_MAX: Final = 1_000
"""Handshakes at a time: a few seconds of a core's work; past it they fail at once."""

OnFailed = Callable[[BaseException], None]


class Handshakes:
    """Watches the handshakes of `context`; `on_failed(error)` is called inside each that fails."""

    def __init__(self, context: ssl.SSLContext, on_failed: OnFailed) -> None:
        self.running: weakref.WeakSet[ssl.SSLObject] = weakref.WeakSet()
        """Those under way; one whose peer went away goes with its connection."""
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
            if len(self.running) >= HANDSHAKES_MAX:
                error = ssl.SSLError(f"{HANDSHAKES_MAX} TLS handshakes are under way")
                self._on_failed(error)
                raise error
            self.running.add(handshake)

    def end(self, handshake: ssl.SSLObject, error: BaseException | None) -> None:
        """A handshake is over."""
        self.running.discard(handshake)
        if error is not None:
            self._on_failed(error)
