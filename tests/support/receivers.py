"""Who notices go to: a real mail server and a real HTTP server on loopback, on threads of their own."""

from __future__ import annotations

import asyncio
import email
import email.policy
import json
import queue
import ssl
import threading
import warnings
from collections.abc import Callable
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

WAIT_S = 40.0
USER, PASSWORD = "alarms", "correct horse"


class MailServer:
    """A mail server on a free port; `refusals` are answered, one each, before a mail is taken.

    `context`: it offers STARTTLS, or with `is_tls` speaks TLS from the start; `needs_login`: with USER and
    PASSWORD only.
    """

    def __init__(
        self, context: ssl.SSLContext | None = None, *, is_tls: bool = False, needs_login: bool = False
    ) -> None:
        self.refusals: list[str] = []
        self.attempts = 0
        self.receivers: list[list[str]] = []
        self._mails: queue.Queue[EmailMessage] = queue.Queue()
        options: dict[str, Any] = {
            "hostname": "localhost",
            "authenticator": self._authenticate,
            "auth_required": needs_login,
            "auth_require_tls": not is_tls,
            "tls_context": None if is_tls else context,
            "require_starttls": context is not None and not is_tls,
        }
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(
                lambda: self._protocol(options),
                "127.0.0.1",
                0,
                ssl=context if is_tls else None,
            )
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _protocol(self, options: dict[str, Any]) -> SMTP:
        with warnings.catch_warnings():
            # It takes TLS from the first byte for none at all.
            warnings.filterwarnings("ignore", message="Requiring AUTH while not requiring TLS")
            return SMTP(self, loop=self._loop, **options)

    @staticmethod
    def _authenticate(
        _server: SMTP, _session: Session, _envelope: Envelope, _how: str, data: Any
    ) -> AuthResult:
        wanted = LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=data == wanted, handled=False)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.attempts += 1
        if self.refusals:
            return self.refusals.pop(0)
        assert isinstance(envelope.content, bytes)
        self.receivers.append(list(envelope.rcpt_tos))
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self._mails.put(message)
        return "250 taken"

    def next(self) -> EmailMessage:
        """The next mail that came or comes."""
        return self._mails.get(timeout=WAIT_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class HookServer:
    """An HTTP server on a free port that keeps what was posted. `statuses` are answered first, then 204."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.before: Callable[[], object] = lambda: None
        self._posts: queue.Queue[dict[str, Any]] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.before()
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                status = outer.statuses.pop(0) if outer.statuses else 204
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", outer.url)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if status < 300:
                    outer._posts.put(json.loads(body))

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/alarms"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def next(self) -> dict[str, Any]:
        """The next document that was or is posted."""
        return self._posts.get(timeout=WAIT_S)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)
