"""Notices on their way out, to a real mail server and a real HTTP server."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import free_port, wait_until
from receivers import PASSWORD, USER, HookServer, MailServer
from security import Authority

from holdmq.alarms import channels as alarm_channels
from holdmq.alarms.channels import ATTEMPTS_MAX, Channel, Mail, Webhook, channels, refuse_open_secrets
from holdmq.alarms.core.alarms import AlarmKey, Notice, State
from holdmq.config.alarms import AlarmsSection
from holdmq.errors import ConfigError

WAIT_S = 20.0
FIRST = Notice(
    State.RAISED,
    AlarmKey("backlog_messages", "billing"),
    12,
    10,
    15,
    1_700_000_000_000,
    1_700_000_001_000,
    "12 wait",
)
OVER = FIRST._replace(state=State.OVER, value=0, at_ms=1_700_000_060_000)


def notices(count: int) -> list[Notice]:
    return [FIRST._replace(key=AlarmKey("dead_letters", str(i))) for i in range(count)]


@pytest.fixture
def mail_server() -> Iterator[Callable[..., MailServer]]:
    made: list[MailServer] = []

    def make(*arguments: Any, **settings: Any) -> MailServer:
        made.append(MailServer(*arguments, **settings))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def hook() -> Iterator[HookServer]:
    server = HookServer()
    yield server
    server.close()


@pytest.fixture
def channel() -> Iterator[Callable[..., Channel]]:
    made: list[Channel] = []

    def make(deliver: Any, **settings: Any) -> Channel:
        made.append(Channel("test", deliver, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mail_section(port: int, **keys: Any) -> AlarmsSection:
    addresses = {"mail_from": "holdmq@example.org", "mail_to": ["ops@example.org", "dev@example.org"]}
    section = AlarmsSection(smtp_host="127.0.0.1", smtp_port=port, **addresses, **keys)
    section.check()
    return section


# Mail


def test_a_mail_names_the_alarm_and_goes_to_all(mail_server: Callable[..., MailServer]) -> None:
    server = mail_server()
    Mail(mail_section(server.port, smtp_security="none"), "broker-7")([FIRST, OVER])
    mail = server.next()
    assert mail["Subject"] == "[HoldMQ broker-7] raised: backlog messages of billing and 1 more"
    assert mail["From"] == "holdmq@example.org"
    assert server.receivers == [["ops@example.org", "dev@example.org"]]
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content()
    assert "now 12, threshold 10, peak 15" in text
    assert "since 2023-11-14 22:13:20 UTC" in text
    assert "over at 2023-11-14 22:14:20 UTC" in text


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_goes_by_tls_with_a_login(
    security: str, tmp_path: Path, mail_server: Callable[..., MailServer]
) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("mail")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    server = mail_server(context, is_tls=security == "tls", needs_login=True)
    keys = {"smtp_security": security, "smtp_ca": authority.ca, "smtp_user": USER}
    secret = tmp_path / "password"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o644)
    with pytest.raises(OSError, match=f"chmod 600 {secret}"):
        Mail(mail_section(server.port, **keys, smtp_password_file=str(secret)), "b")([FIRST])
    secret.chmod(0o600)
    Mail(mail_section(server.port, **keys, smtp_password_file=str(secret)), "b")([FIRST])
    assert "billing" in server.next()["Subject"]
    with pytest.raises(OSError, match="535"):
        Mail(mail_section(server.port, **keys, smtp_password="wrong"), "b")([FIRST])
    without_ca = {**keys, "smtp_ca": ""}
    with pytest.raises(ssl.SSLCertVerificationError):
        Mail(mail_section(server.port, **without_ca, smtp_password=PASSWORD), "b")([FIRST])
    assert server.attempts == 1


def test_a_server_without_starttls_gets_nothing(mail_server: Callable[..., MailServer]) -> None:
    server = mail_server()
    with pytest.raises(OSError, match="STARTTLS"):
        Mail(mail_section(server.port), "b")([FIRST])
    assert server.attempts == 0


def test_a_mail_that_is_refused_for_now_is_sent_again(
    mail_server: Callable[..., MailServer], channel: Callable[..., Channel]
) -> None:
    server = mail_server()
    server.refusals = ["451 come back later", "452 still full"]
    mail = Mail(mail_section(server.port, smtp_security="none"), "b")
    out = channel(mail, pause_min_s=0.001)
    out.put([FIRST])
    assert "billing" in server.next()["Subject"]
    wait_until(lambda: out.sent == 1 and not out.last_error, "the mail counts as sent", WAIT_S)
    assert (out.failed, out.dropped, out.last_error, server.attempts) == (2, 0, "", 3)


# Webhook


def test_a_webhook_gets_the_alarms_as_json_with_its_token(hook: HookServer, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("t0ken\n")
    secret.chmod(0o600)
    Webhook(AlarmsSection(webhook_url=hook.url, webhook_token_file=str(secret)), "broker-7")([FIRST, OVER])
    posted = hook.next()
    assert posted["broker"] == "broker-7"
    assert posted["alarms"][0] == {
        "state": "raised",
        "kind": "backlog_messages",
        "name": "billing",
        "value": 12,
        "threshold": 10,
        "peak": 15,
        "since_ms": 1_700_000_000_000,
        "at_ms": 1_700_000_001_000,
        "text": "12 wait",
    }
    assert posted["alarms"][1]["state"] == "over"
    assert hook.headers[0]["authorization"] == "Bearer t0ken"
    assert hook.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize("status", [301, 302, 307, 401, 500, 503])
def test_any_answer_but_2xx_is_a_failure_and_no_redirect_is_followed(hook: HookServer, status: int) -> None:
    hook.statuses = [status]
    with pytest.raises(OSError, match=str(status)):
        Webhook(AlarmsSection(webhook_url=hook.url, webhook_token="t"), "b")([FIRST])
    assert len(hook.headers) == 1


def test_a_webhook_that_is_silent_is_given_up_after_its_timeout(hook: HookServer) -> None:
    answers = threading.Event()
    hook.before = answers.wait
    try:
        with pytest.raises(OSError, match="timed out"):
            Webhook(AlarmsSection(webhook_url=hook.url, timeout_s=0.2), "b")([FIRST])
    finally:
        answers.set()


# Channels


def test_the_configuration_says_which_channels_there_are(hook: HookServer) -> None:
    assert channels(AlarmsSection(), "b") == []
    section = mail_section(free_port(), webhook_url=hook.url)
    made = channels(section, "b")
    assert [one.name for one in made] == ["mail", "webhook"]
    for one in made:
        one.close()


def test_what_cannot_be_delivered_is_dropped_after_some_attempts_and_what_is_newer_goes(
    hook: HookServer, channel: Callable[..., Channel]
) -> None:
    hook.statuses = [500] * ATTEMPTS_MAX
    out = channel(Webhook(AlarmsSection(webhook_url=hook.url), "b"), pause_min_s=0.001)
    out.put([FIRST])
    wait_until(lambda: out.dropped == 1, "the notice is dropped", WAIT_S)
    assert (out.failed, out.sent) == (ATTEMPTS_MAX, 0)
    assert "500" in out.last_error
    out.put([OVER])
    assert hook.next()["alarms"][0]["state"] == "over"


def test_nobody_at_the_other_end_is_a_failure_like_any(channel: Callable[..., Channel]) -> None:
    for deliver in (
        Mail(mail_section(free_port(), smtp_security="none"), "b"),
        Webhook(AlarmsSection(webhook_url=f"http://127.0.0.1:{free_port()}/"), "b"),
    ):
        out = channel(deliver, pause_min_s=0.001)
        out.put([FIRST])
        wait_until(lambda out=out: out.dropped == 1, "the notice is dropped", WAIT_S)  # type: ignore[misc]
        assert "refused" in out.last_error.lower()


def test_a_full_queue_drops_the_oldest_and_never_makes_anybody_wait(channel: Callable[..., Channel]) -> None:
    going, begun = threading.Event(), threading.Event()
    taken: list[list[str]] = []

    def deliver(batch: Any) -> None:
        begun.set()
        assert going.wait(WAIT_S)
        taken.append([notice.key.name for notice in batch])

    out = channel(deliver, notices_max=3)
    out.put(notices(1))
    assert begun.wait(WAIT_S)
    out.put(notices(5))
    assert out.row()[2:5] == (0, 2, 3)
    going.set()
    wait_until(lambda: out.sent == 4, "the rest is delivered", WAIT_S)
    assert taken == [["0"], ["2", "3", "4"]]


def test_many_notices_go_in_few_deliveries(channel: Callable[..., Channel], monkeypatch: Any) -> None:
    monkeypatch.setattr(alarm_channels, "NOTICES_AT_ONCE", 4)
    sizes: list[int] = []
    out = channel(lambda batch: sizes.append(len(batch)))
    out.put(notices(10))
    wait_until(lambda: out.sent == 10, "all are delivered", WAIT_S)
    assert sizes == [4, 4, 2]


def test_an_end_does_not_wait_for_a_delivery_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_channels, "CLOSE_S", 0.01)
    going, begun = threading.Event(), threading.Event()

    def deliver(_: Any) -> None:
        begun.set()
        assert going.wait(WAIT_S)

    out = Channel("test", deliver)
    out.put([FIRST])
    assert begun.wait(WAIT_S)
    out.close()
    assert out.sent == 0
    going.set()
    out._thread.join(WAIT_S)
    assert not out._thread.is_alive()


def test_an_end_while_a_failure_is_waited_out_tries_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_channels, "CLOSE_S", WAIT_S)
    waiting = threading.Event()
    tries: list[int] = []

    def deliver(batch: Any) -> None:
        tries.append(len(batch))
        raise OSError("nobody there")

    out = Channel("test", deliver, pause_min_s=1000)
    pause = out._pause

    def wait_out(pause_s: float) -> None:
        waiting.set()
        pause(pause_s)

    out._pause = wait_out  # type: ignore[method-assign]
    out.put([FIRST])
    assert waiting.wait(WAIT_S)
    out.close()
    assert tries == [1, 1]
    assert out.dropped == 1


@pytest.mark.parametrize("key", ["smtp_password_file", "webhook_token_file"])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    section = AlarmsSection(**{key: str(path)})
    refuse_open_secrets(section)
    refuse_open_secrets(AlarmsSection(**{key: "not-there"}))
    path.chmod(0o640)
    os.chown(path, os.geteuid() or 1234, -1)
    with pytest.raises(ConfigError, match=f"alarms.{key}: {path} has mode 0640.*chmod 600"):
        refuse_open_secrets(section)
