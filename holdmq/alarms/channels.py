"""The ways on which notices leave a process: mail and webhook, each with a thread and a bounded queue.

Nothing here runs on the event loop but `Channel.put`. What cannot be delivered is tried again, less and less
often, then dropped: all of it is logged and counted.
"""

from __future__ import annotations

import json
import smtplib
import ssl
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final

from holdmq.alarms.core.alarms import AlarmKey, Notice, State
from holdmq.config.alarms import AlarmsSection
from holdmq.errors import ConfigError
from holdmq.files.private_file import read_private, refuse_if_open_to_others
from holdmq.service import telemetry
from holdmq.wire.statistics_headers import ChannelRow

NOTICES_MAX: Final = 1_000
"""Notices that wait for one way out; the oldest go first: what is new matters more."""
NOTICES_AT_ONCE: Final = 100
"""Notices of one mail or POST."""
ATTEMPTS_MAX: Final = 8
"""Attempts at one delivery: some four minutes, then what is newer gets its turn."""
PAUSE_MIN_S: Final = 2.0
PAUSE_MAX_S: Final = 60.0
CLOSE_S: Final = 2.0
"""How long an end waits for a delivery under way."""
SECRET_FILE_MAX_BYTES: Final = 64 << 10
"""A password or token, which is a line."""

Deliver = Callable[[Sequence[Notice]], None]
log = telemetry.get_logger()

FAILURES: Final = (OSError, HTTPException, ValueError)
"""What a delivery may fail with: connections, TLS, refusals of SMTP and HTTP (OSErrors too), odd answers."""


class Channel:
    """One way out: a thread that hands waiting notices to `deliver`, which raises one of FAILURES."""

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        *,
        notices_max: int = NOTICES_MAX,
        pause_min_s: float = PAUSE_MIN_S,
    ) -> None:
        self.name = name
        self.sent = self.failed = self.dropped = 0
        self.last_error = ""
        self._deliver = deliver
        self._notices_max = notices_max
        self._pause_min_s = pause_min_s
        self._waiting: deque[Notice] = deque()
        self._under_way: Sequence[Notice] = ()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"alarms-{name}", daemon=True)
        self._thread.start()

    def row(self) -> ChannelRow:
        """What ALARM_LIST tells of it."""
        return ChannelRow(
            self.name, self.sent, self.failed, self.dropped, len(self._waiting), self.last_error
        )

    def put(self, notices: Sequence[Notice]) -> None:
        """Queue notices; never waits for a delivery."""
        with self._changed:
            self._waiting.extend(notices)
            lost = len(self._waiting) - self._notices_max
            for _ in range(lost):
                self._waiting.popleft()
            self._changed.notify_all()
        if lost > 0:
            self.dropped += lost
            log.warning("notices of alarms were dropped: too many wait", channel=self.name, notices=lost)

    def undelivered(self) -> set[AlarmKey]:
        """The alarms whose notices wait or are under way; what was dropped is not among them."""
        with self._changed:
            return {notice.key for notice in (*self._waiting, *self._under_way)}

    def close(self) -> None:
        """End the thread (blocking, CLOSE_S at most); what waits is tried once more in that time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)
        if self._waiting:
            log.warning(
                "notices of alarms are lost at the end", channel=self.name, notices=len(self._waiting)
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), NOTICES_AT_ONCE))]
                self._under_way = batch
            if not batch:
                return
            if self._send(batch):
                self.sent += len(batch)
                self.last_error = ""
            else:
                self.dropped += len(batch)
            with self._changed:
                self._under_way = ()

    def _send(self, batch: Sequence[Notice]) -> bool:
        """Deliver notices, in several attempts; False = they are dropped."""
        pause_s = self._pause_min_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self._deliver(batch)
            except FAILURES as error:
                self.failed += 1
                self.last_error = f"{type(error).__name__}: {error}"
            else:
                return True
            is_last = attempt == ATTEMPTS_MAX or self._is_closing
            log.warning(
                "notices of alarms could not be delivered",
                channel=self.name,
                notices=len(batch),
                reason=self.last_error,
                attempt=attempt,
                next_s=None if is_last else pause_s,
            )
            if is_last:
                return False
            self._pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return False

    def _pause(self, pause_s: float) -> None:
        until = monotonic() + pause_s
        with self._changed:
            while not self._is_closing and (left := until - monotonic()) > 0:
                self._changed.wait(left)


def refuse_open_secrets(section: AlarmsSection) -> None:
    """Raise ConfigError when others can read a configured file of a secret that is there (blocking)."""
    for key in ("smtp_password_file", "webhook_token_file"):
        path = Path(getattr(section, key))
        if path.is_file():  # else it may be there when it is read, and is looked at again then
            refuse_if_open_to_others(path, f"alarms.{key}")


def channels(section: AlarmsSection, broker: str) -> list[Channel]:
    """The channels that the configuration names, running."""
    found: list[Channel] = []
    if section.smtp_host:
        found.append(Channel("mail", Mail(section, broker)))
    if section.webhook_url:
        found.append(Channel("webhook", Webhook(section, broker)))
    return found


class Mail:
    """Sends notices as one mail to all receivers."""

    def __init__(self, section: AlarmsSection, broker: str) -> None:
        self._section = section
        self._broker = broker

    def __call__(self, notices: Sequence[Notice]) -> None:
        section = self._section
        message = self.message(notices)
        context = ssl.create_default_context(cafile=section.smtp_ca or None)
        with self._connect(context) as server:
            if section.smtp_security == "starttls":
                server.starttls(context=context)
            if section.smtp_user:
                server.login(section.smtp_user, _secret(section.smtp_password, section.smtp_password_file))
            refused = server.send_message(message)
            if refused:
                log.warning("a mail server refused some receivers", receivers=sorted(refused))

    def _connect(self, context: ssl.SSLContext) -> smtplib.SMTP:
        section = self._section
        if section.smtp_security == "tls":
            return smtplib.SMTP_SSL(
                section.smtp_host, section.smtp_port, timeout=section.timeout_s, context=context
            )
        return smtplib.SMTP(section.smtp_host, section.smtp_port, timeout=section.timeout_s)

    def message(self, notices: Sequence[Notice]) -> EmailMessage:
        """The mail; its subject names the first alarm, its text all of them."""
        first = notices[0]
        more = f" and {len(notices) - 1} more" if len(notices) > 1 else ""
        message = EmailMessage()
        message["Subject"] = f"[HoldMQ {self._broker}] {first.state.value}: {_title(first)}{more}"
        message["From"] = self._section.mail_from
        message["To"] = ", ".join(self._section.mail_to)
        message["Date"] = format_datetime(_utc(first.at_ms))
        message["Message-ID"] = make_msgid(domain="holdmq.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n\n".join(_paragraph(notice) for notice in notices) + "\n")
        return message


class Webhook:
    """Sends notices as one JSON document in a POST; any answer but 2xx is a failure."""

    def __init__(self, section: AlarmsSection, broker: str) -> None:
        self._section = section
        self._broker = broker
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, notices: Sequence[Notice]) -> None:
        section = self._section
        headers = {"Content-Type": "application/json", "User-Agent": "holdmq"}
        if section.webhook_token or section.webhook_token_file:
            token = _secret(section.webhook_token, section.webhook_token_file)
            headers["Authorization"] = f"Bearer {token}"
        body = json.dumps({"broker": self._broker, "alarms": [_fields(notice) for notice in notices]})
        # The configuration takes no scheme but http and https.
        request = urllib.request.Request(  # noqa: S310
            section.webhook_url, body.encode(), headers, method="POST"
        )
        # Who answers 2xx has it; what else the answer says is not read.
        self._opener.open(request, timeout=section.timeout_s).close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, or somewhere that nobody chose: it is an error."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _secret(value: Any, path: str) -> str:
    """A secret as it is configured, or the one line of its file; raises OSError."""
    if value is not None:
        return str(value.get_secret_value())
    try:
        return read_private(Path(path), "a secret of alarms", SECRET_FILE_MAX_BYTES).decode().strip()
    except ConfigError as error:
        raise OSError(str(error)) from error


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1e3, UTC)


def _title(notice: Notice) -> str:
    return f"{notice.key.kind.replace('_', ' ')} of {notice.key.name}"


def _paragraph(notice: Notice) -> str:
    lines = [f"{notice.state.value.upper()}: {_title(notice)}", notice.text]
    lines.append(f"now {notice.value}, threshold {notice.threshold}, peak {notice.peak}")
    lines.append(f"since {_utc(notice.since_ms):%Y-%m-%d %H:%M:%S} UTC")
    if notice.state is State.OVER:
        lines.append(f"over at {_utc(notice.at_ms):%Y-%m-%d %H:%M:%S} UTC")
    return "\n".join(lines)


def _fields(notice: Notice) -> dict[str, Any]:
    return {
        "state": notice.state.value,
        "kind": notice.key.kind,
        "name": notice.key.name,
        "value": notice.value,
        "threshold": notice.threshold,
        "peak": notice.peak,
        "since_ms": notice.since_ms,
        "at_ms": notice.at_ms,
        "text": notice.text,
    }
